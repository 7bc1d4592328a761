"""The backbone as one function over pytrees: the same `forward` compresses, prefills, decodes and trains."""

import dataclasses
import functools
import math

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rhea_jax.shapes import shaped

PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
_FAR = 1 << 15  # positions of one of several texts in a row at most
_KEY_BLOCK = 512  # slots of a cache per step of the softmax
_QUERY_BLOCK = 512  # longer calls attend block by block, so that scores never take T x S at once


@flax.struct.dataclass
class Layer:
    """Weights of one layer, or of all of them stacked along a leading L."""

    attn_norm: jax.Array  # [D]
    q: jax.Array  # [D, N*H]
    k: jax.Array  # [D, K*H]
    v: jax.Array  # [D, K*H]
    o: jax.Array  # [N*H, D]
    mlp_norm: jax.Array  # [D]
    gate: jax.Array  # [D, F]
    up: jax.Array  # [D, F]
    down: jax.Array  # [F, D]
    q_bias: jax.Array | None = None  # [N*H], Qwen2
    k_bias: jax.Array | None = None  # [K*H]
    v_bias: jax.Array | None = None  # [K*H]
    q_norm: jax.Array | None = None  # [H], Qwen3
    k_norm: jax.Array | None = None  # [H]


@flax.struct.dataclass
class Params:
    """A backbone. `layers` is one stacked Layer (scanned) or a tuple of them (unrolled: nothing copied, slower to compile)."""

    embed: jax.Array  # [V, D]
    layers: Layer | tuple[Layer, ...]
    norm: jax.Array  # [D]
    head: jax.Array | None = None  # [D, V]; None: tied to embed


@flax.struct.dataclass
class Lora:
    """Low-rank pairs (a [I, R], b [R, O]) of all seven projections, stacked along L or one layer's."""

    q: tuple[jax.Array, jax.Array]
    k: tuple[jax.Array, jax.Array]
    v: tuple[jax.Array, jax.Array]
    o: tuple[jax.Array, jax.Array]
    gate: tuple[jax.Array, jax.Array]
    up: tuple[jax.Array, jax.Array]
    down: tuple[jax.Array, jax.Array]
    scale: float = flax.struct.field(pytree_node=False, default=2.0)  # alpha / r


@flax.struct.dataclass
class Adapters:
    """All that training changes, and what latents are: their form and standardisation (append and identity are the paper)."""

    cmp: Lora | tuple[Lora, ...]
    gen: Lora | tuple[Lora, ...]
    mem: jax.Array  # [M, D] appended embeddings
    center: jax.Array  # [D] subtracted from latents,
    spread: jax.Array  # [D] which are then multiplied by this
    form: str = flax.struct.field(pytree_node=False, default="append")  # one of config.FORMS


@flax.struct.dataclass
class Cache:
    """Keys and values by slot. Slots are not positions: `position` says which slot holds which, -1 holds nothing."""

    k: jax.Array | tuple[jax.Array, ...]  # [L, B, K, S, H], or L arrays [B, K, S, H] for unrolled layers
    v: jax.Array | tuple[jax.Array, ...]  # likewise
    position: jax.Array  # [B, S] int32
    length: jax.Array  # [] int32: the next slot to write; a shorter length is an undo


def rms_norm(x, weight, eps):
    """Root-mean-square norm over the last axis, in float32."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + eps)
    return (y * weight.astype(jnp.float32)).astype(x.dtype)


def rope_frequencies(cfg):
    """Radians per position of each of the H/2 pairs, numpy float32, with Llama-3's scaling where the model has it."""
    freq = cfg.rope_theta ** -(np.arange(0, cfg.head_dim, 2, dtype=np.float64) / cfg.head_dim)
    if (s := cfg.rope_scaling) is not None:
        turns = s.positions * freq / (2 * np.pi)  # over the positions of the original training
        blend = np.clip((turns - s.low) / (s.high - s.low), 0, 1)
        freq = freq * (blend + (1 - blend) / s.factor)
    return freq.astype(np.float32)


def rope(x, cos_BTH, sin_BTH):
    """Rotates the halves of [B, T, heads, H], the order of Hugging Face weights, in float32."""
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos_BTH[:, :, None], sin_BTH[:, :, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def project(x, w_IO, lora=None, scale=1.0):
    """x @ w, plus the adapter's low-rank product: the only place where an adapter meets the backbone."""
    w_IO = w_IO.astype(x.dtype)
    if lora is None:
        return x @ w_IO
    a_IR, b_RO = (m.astype(x.dtype) for m in lora)
    return _adapted(x.reshape(-1, x.shape[-1]), w_IO, a_IR, b_RO, scale).reshape(*x.shape[:-1], -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _adapted(x_XI, w_IO, a_IR, b_RO, scale):
    return _adapted_forward(x_XI, w_IO, a_IR, b_RO, scale)[0]


def _adapted_forward(x_XI, w_IO, a_IR, b_RO, scale):
    u_XR = x_XI @ a_IR
    return x_XI @ w_IO + scale * (u_XR @ b_RO), (x_XI, w_IO, a_IR, b_RO, u_XR)


def _adapted_backward(scale, kept, g_XO):
    """The rule by hand: autodiff of a product of three axes makes XLA:CPU copy operands and leave its fast matmul (docs/LOG.md)."""
    x_XI, w_IO, a_IR, b_RO, u_XR = kept
    g_XR = scale * (g_XO @ b_RO.T)
    return g_XO @ w_IO.T + g_XR @ a_IR.T, x_XI.T @ g_XO, x_XI.T @ g_XR, scale * (u_XR.T @ g_XO)


_adapted.defvjp(_adapted_forward, _adapted_backward)


@shaped
def attend(q_BTNH, at_BT, memories, window=None):
    """Grouped-query attention where a query at position p sees the slots whose position is in (p - window, p].

    memories: (k_BKSH, v_BKSH, at_BS) each, seen side by side, the new positions last; at_* are int32 positions, -1 in a slot
    that holds nothing.  The G query heads of a key head are folded into rows: plain batched products, and no copy of k or v.
    Shapes: out [B, T, N*H].
    """
    B, T, N, H = q_BTNH.shape
    if T > _QUERY_BLOCK and T % _QUERY_BLOCK == 0:
        split = lambda x: jnp.moveaxis(x.reshape(B, -1, _QUERY_BLOCK, *x.shape[2:]), 1, 0)  # noqa: E731
        block = jax.checkpoint(lambda a: attend(*a, memories, window))
        return jnp.moveaxis(jax.lax.map(block, (split(q_BTNH), split(at_BT))), 0, 1).reshape(B, T, N * H)
    K = memories[0][0].shape[1]
    q = q_BTNH.reshape(B, T, K, N // K, H).transpose(0, 2, 3, 1, 4).reshape(B, K, -1, H)
    at_q = jnp.tile(at_BT, (1, N // K))[:, :, None]

    def score(k, at_k):
        back = at_q - at_k[:, None, :]
        seen = (back >= 0) & (at_k >= 0)[:, None, :] & (True if window is None else back < window)
        dot = jnp.einsum("bkqh,bksh->bkqs", q, k, preferred_element_type=jnp.float32) * H**-0.5
        return jnp.where(seen[:, None], dot, -1e30)

    *caches, (k, v, at_k) = memories
    s = score(k, at_k)
    top = jax.lax.stop_gradient(s.max(-1, keepdims=True))
    e = jnp.exp(s - top)
    total, out = e.sum(-1, keepdims=True), _weigh(e, v)
    for cache in caches:
        top, total, out = _attend_blocks(score, (top, total, out), *cache)
    out = out / total
    return out.astype(q.dtype).reshape(B, K, N // K, T, H).transpose(0, 3, 1, 2, 4).reshape(B, T, N * H)


def _weigh(weight, v):
    return jnp.einsum("bkqs,bksh->bkqh", weight.astype(v.dtype), v, preferred_element_type=jnp.float32)


def _attend_blocks(score, carry, k, v, at_k):
    """Goes on with a softmax over a cache, block by block and only as far as it is filled (Milakov and Gimelshein 2018)."""
    S = at_k.shape[1]
    size = math.gcd(S, _KEY_BLOCK)
    filled = jnp.max(jnp.where(at_k >= 0, jnp.arange(1, S + 1), 0))

    def block(i, carry):
        top, total, out = carry
        k_i, v_i = (jax.lax.dynamic_slice_in_dim(x, i * size, size, 2) for x in (k, v))
        s = score(k_i, jax.lax.dynamic_slice_in_dim(at_k, i * size, size, 1))
        higher = jnp.maximum(top, s.max(-1, keepdims=True))
        e, scale = jnp.exp(s - higher), jnp.exp(top - higher)
        return higher, total * scale + e.sum(-1, keepdims=True), out * scale + _weigh(e, v_i)

    return jax.lax.fori_loop(0, (filled + size - 1) // size, block, carry)


def _attention(cfg, layer, lora, x_BTD, angles, memories, at_BT):
    """One layer's attention over `memories` and the T new positions, whose keys and values [B, K, T, H] it also returns."""
    B, T, _ = x_BTD.shape
    heads = {"q": cfg.heads, "k": cfg.kv_heads, "v": cfg.kv_heads}
    q, k, v = (_with_bias(project(x_BTD, getattr(layer, n), *_pair(lora, n)), getattr(layer, n + "_bias"))
               .reshape(B, T, heads[n], cfg.head_dim) for n in "qkv")
    if layer.q_norm is not None:
        q, k = rms_norm(q, layer.q_norm, cfg.norm_eps), rms_norm(k, layer.k_norm, cfg.norm_eps)
    q, k = rope(q, *angles), rope(k, *angles)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    out = attend(q, at_BT, [*memories, (k, v, at_BT)], cfg.window)
    return project(out, layer.o, *_pair(lora, "o")), (k, v)


def _pair(lora, name):
    return (None, 1.0) if lora is None else (getattr(lora, name), lora.scale)


def _with_bias(y, bias):
    return y if bias is None else y + bias.astype(y.dtype)


def _layer(cfg, layer, lora, x_BTD, angles, memories, at_BT):
    """Attention and gated MLP with their residuals."""
    h = rms_norm(x_BTD, layer.attn_norm, cfg.norm_eps)
    out, new = _attention(cfg, layer, lora, h, angles, memories, at_BT)
    x_BTD = x_BTD + out
    h = rms_norm(x_BTD, layer.mlp_norm, cfg.norm_eps)
    gated = jax.nn.silu(project(h, layer.gate, *_pair(lora, "gate"))) * project(h, layer.up, *_pair(lora, "up"))
    return x_BTD + project(gated, layer.down, *_pair(lora, "down")), new


def _run_layers(step, x, layers, *per_layer):
    """Runs `step(x, layer, ...) -> (x, new)` through all layers, scanned or unrolled by the form of `layers`."""
    if not isinstance(layers, tuple):
        return jax.lax.scan(lambda x, at: step(x, *at), x, (layers, *per_layer))
    out, step = [], jax.jit(step)  # traced once for all layers, inlined by the compiler
    for i, layer in enumerate(layers):
        x, new = step(x, layer, *jax.tree.map(lambda a: a[i], list(per_layer), is_leaf=lambda a: isinstance(a, tuple)))
        out.append(new)
    return x, tuple(zip(*out))


@shaped
def forward(cfg, params, lora, x_BTD, at_BT, caches=(), segment_BT=None, turn_BT=None, policy=None):
    """Runs the backbone over embeddings; an adapter is an argument, so one frozen base serves both roles.

    The T positions see every earlier position of the caches and of themselves; `append` writes what they leave.
    segment_BT: several texts may stand side by side in a row, none sees another; each has its number and its own positions.
    turn_BT: positions for the rotary angles, where they are not those of the mask.
    policy: what of a layer's work is kept for the backward pass (jax.checkpoint_policies); None keeps all.
    Shapes: hidden_BTD after the final norm, and the new (k, v) in the cache's form, T slots; at_BT int32 positions, -1 for
    padding, which then touches no valid row.
    """
    angle = (at_BT if turn_BT is None else turn_BT)[..., None].astype(jnp.float32) * rope_frequencies(cfg)
    if segment_BT is not None:  # twice as far apart as a window reaches
        at_BT = jnp.where(at_BT >= 0, at_BT + 2 * _FAR * segment_BT, -1)
        cfg = dataclasses.replace(cfg, window=min(cfg.window or _FAR, _FAR))
    angles = jnp.cos(angle), jnp.sin(angle)
    held = [jnp.where(jnp.arange(c.position.shape[1]) < c.length, c.position, -1) for c in caches]

    def step(x, layer, lora, ks, vs):
        return _layer(cfg, layer, lora, x, angles, list(zip(ks, vs, held)), at_BT)

    if policy is not None:
        step = jax.checkpoint(step, policy=policy)
    x_BTD, new = _run_layers(step, x_BTD, params.layers, lora, [c.k for c in caches], [c.v for c in caches])
    return rms_norm(x_BTD, params.norm, cfg.norm_eps), new


def append(cache, new, at_BT, count):
    """The cache with T new slots behind its length, which then grows by `count`, the slots that the next write leaves be.

    length + T <= S is the caller's to check: a write past the end would shift silently.
    """
    def put(old, new):
        return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), cache.length, old.ndim - 2)
    k, v = jax.tree.map(put, (cache.k, cache.v), new)
    position = jax.lax.dynamic_update_slice_in_dim(cache.position, at_BT, cache.length, 1)
    return Cache(k=k, v=v, position=position, length=cache.length + count)


def logits(params, h):
    """Scores over the vocabulary, float32, of hidden states [..., D]."""
    if params.head is None:
        return jnp.einsum("...d,vd->...v", h, params.embed.astype(h.dtype), preferred_element_type=jnp.float32)
    return jnp.einsum("...d,dv->...v", h, params.head.astype(h.dtype), preferred_element_type=jnp.float32)


def init_cache(cfg, layers, batch, slots, dtype):
    """An empty cache, stacked or a tuple as `layers` is."""
    shape, length = (batch, cfg.kv_heads, slots, cfg.head_dim), jnp.zeros((), jnp.int32)
    if isinstance(layers, tuple):
        k, v = (tuple(jnp.zeros(shape, dtype) for _ in range(cfg.layers)) for _ in "kv")
    else:
        k, v = (jnp.zeros((cfg.layers, *shape), dtype) for _ in "kv")
    return Cache(k=k, v=v, position=jnp.full((batch, slots), -1, jnp.int32), length=length)


def init_params(cfg, key, dtype=jnp.float32):
    """Random weights of a stacked backbone, for tests and for abstract shapes."""
    D, H = cfg.width, cfg.head_dim
    size = {name: projection_shape(cfg, name) for name in PROJECTIONS}
    keys = iter(jax.random.split(key, 9))
    draw = lambda *shape: (jax.random.normal(next(keys), shape) * shape[-2] ** -0.5).astype(dtype)  # noqa: E731
    ones = lambda *shape: jnp.ones((cfg.layers, *shape), dtype)  # noqa: E731
    layer = Layer(attn_norm=ones(D), mlp_norm=ones(D), **{n: draw(cfg.layers, *size[n]) for n in PROJECTIONS},
                  **({n + "_bias": 0.02 * ones(size[n][1]) for n in "qkv"} if cfg.qkv_bias else {}),
                  **({n + "_norm": ones(H) for n in "qk"} if cfg.qk_norm else {}))
    return Params(embed=draw(cfg.vocab, D), layers=layer, norm=jnp.ones(D, dtype), head=None if cfg.tied else draw(D, cfg.vocab))


def init_adapters(cfg, memory, params, key):
    """Adapters that change nothing yet (b is zero), float32; `mem` starts as the vocabulary's mean embedding.

    Paper: section A.1.
    """
    def lora(key):
        pairs = {}
        for name, k in zip(PROJECTIONS, jax.random.split(key, len(PROJECTIONS))):
            # Widths from the config: a quantized weight has another shape.
            i, o = projection_shape(cfg, name)
            a = jax.random.uniform(k, (cfg.layers, i, memory.rank), minval=-1, maxval=1) * i**-0.5
            pairs[name] = (a, jnp.zeros((cfg.layers, memory.rank, o)))
        return Lora(**pairs, scale=memory.alpha / memory.rank)

    k1, k2 = jax.random.split(key)
    mean = jnp.mean(params.embed.astype(jnp.float32), axis=0)
    return Adapters(cmp=lora(k1), gen=lora(k2), mem=jnp.tile(mean, (memory.latents, 1)),
                    center=jnp.zeros(cfg.width), spread=jnp.ones(cfg.width), form=memory.form)


def projection_shape(cfg, name):
    """(in, out) of one of the seven projections."""
    heads, kv = cfg.heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim
    return {"q": (cfg.width, heads), "k": (cfg.width, kv), "v": (cfg.width, kv), "o": (heads, cfg.width),
            "gate": (cfg.width, cfg.mlp), "up": (cfg.width, cfg.mlp), "down": (cfg.mlp, cfg.width)}[name]


def stack(tree):
    """An unrolled tuple as one stacked tree: the form of files."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *tree) if isinstance(tree, tuple) else tree


def stacked(adapters):
    """Adapters with both Loras stacked, whatever form a device runs."""
    return adapters.replace(cmp=stack(adapters.cmp), gen=stack(adapters.gen))


def fitted(adapters, params):
    """Stacked adapters in the form of a backbone's layers."""
    if not isinstance(params.layers, tuple):
        return adapters
    return adapters.replace(cmp=unroll(adapters.cmp), gen=unroll(adapters.gen))


def unroll(tree):
    """A stacked Layer or Lora as a tuple, one entry a layer: the form for CPU, where a scan copies each layer's weights."""
    count = len(jax.tree.leaves(tree)[0])
    return tuple(jax.tree.map(functools.partial(lambda i, x: x[i], i), tree) for i in range(count))
