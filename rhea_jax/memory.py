"""Episodic memory: compression, scores, levels, and the embedding of a hybrid prompt (paper 3.2, 3.4, 3.5)."""

import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rhea_jax.model import forward
from rhea_jax.shapes import shaped

OMIT, LATENT, RAW = 0, 1, 2  # levels of recall


@flax.struct.dataclass
class Hybrid:
    """A prompt of text and latents, planned on the host with integers only; chat and training read the same form."""

    tokens: np.ndarray  # [B, T] int32 vocabulary ids, 0 where a latent or nothing stands
    latent: np.ndarray  # [B, T] int32 row of the flattened latents (window * M + slot), -1 where text stands
    valid: np.ndarray  # [B, T] bool


@flax.struct.dataclass
class Bank:
    """Latents of all stored exchanges, one row a window; its capacity doubles when it is full."""

    latents: jax.Array  # [C, M, D]
    owner: jax.Array  # [C] int32 exchange of each window, -1 for an empty row
    count: int = flax.struct.field(pytree_node=False, default=0)


@shaped
def embed_hybrid(embed_VD, latents_CMD, tokens_BT, latent_BT):
    """Token embeddings with latents in their recorded slots: the operator T of Eq. 5.

    Shapes: x_BTD in the dtype of embed_VD.  Paper: section 3.5.
    """
    x_BTD = embed_VD[tokens_BT]
    rows = latents_CMD.reshape(-1, latents_CMD.shape[-1]).astype(x_BTD.dtype)
    return jnp.where((latent_BT >= 0)[..., None], rows[jnp.maximum(latent_BT, 0)], x_BTD)


def compress(cfg, params, adapters, tokens_WP, length_W):
    """Latents of windows of text, one a row from its start: `compress_packed` in its simplest form.

    Shapes: latents_WMD float32; length_W counts text and frame tokens, 0 to P - M.  Paper: section 3.2, Eq. 1.
    """
    W, P = tokens_WP.shape
    return compress_packed(cfg, params, adapters, tokens_WP, jnp.arange(W) * P, length_W)


@shaped
def compress_packed(cfg, params, adapters, tokens_RP, start_W, length_W, policy=None):
    """Latents of windows of text that stand side by side in rows, each with M free positions behind it, by the adapters' form.

    "append": the last hidden states at M embeddings appended right after the text, padding after them (the paper).
    "spread": the same with the rotary positions of the M spread evenly over the text (Zhao et al., arXiv 2409.14364).
    "mean": means of the text's own hidden states over M equal stretches (Feldman and Artzi, arXiv 2510.20797).
    Shapes: latents_WMD float32, standardised by the adapters' constants; start_W into the flattened [R * P], R * P for a
    window that is none; length_W counts text and frame tokens.
    """
    M, (R, P), form = len(adapters.mem), tokens_RP.shape, adapters.form
    start_W, length_W = jnp.asarray(start_W), jnp.asarray(length_W)
    flat, extra = jnp.arange(R * P), 0 if form == "mean" else M
    inside = (flat >= start_W[:, None]) & (flat < (start_W + length_W + extra)[:, None])
    window, held = jnp.argmax(inside, axis=0), inside.any(axis=0)
    at = flat - start_W[window]
    slot = at - length_W[window]
    latent = jnp.where(held & (slot >= 0), slot, -1)
    turn = jnp.where(latent >= 0, (slot + 1) * length_W[window] // M - 1, at) if form == "spread" else at
    rows = lambda x: x.reshape(R, P)  # noqa: E731
    x = embed_hybrid(params.embed, adapters.mem[None], jnp.where(rows(held & (slot < 0)), tokens_RP, 0), rows(latent))
    h, _ = forward(cfg, params, adapters.cmp, x, rows(jnp.where(held, at, -1)), segment_BT=rows(window), turn_BT=rows(turn), policy=policy)
    h = h.reshape(R * P, -1).astype(jnp.float32)
    if extra:
        h = h[jnp.minimum((start_W + length_W)[:, None] + jnp.arange(M), R * P - 1)]
    else:
        h = jnp.einsum("wmp,pd->wmd", _stretches(flat - start_W[:, None] - 1, length_W - 2, M), h)
    return (h - adapters.center) * adapters.spread


def _stretches(at_WP, length_W, M):
    """Weights [W, M, P] of the means over M equal stretches of each text, without the frame tokens around it.

    A position at an edge counts by its share, so that no stretch of a short text is empty.
    """
    size = jnp.maximum(length_W, 1)[:, None, None] / M
    edge, at = size * jnp.arange(M)[:, None], at_WP[:, None]
    return jnp.clip(jnp.minimum(at + 1, edge + size) - jnp.maximum(at, edge), 0, 1) / size


@functools.partial(jax.jit, static_argnames=("num_exchanges", "kind"))
@shaped
def scores(query_QMD, latents_CMD, owner_C, num_exchanges, kind="max"):
    """Scores every stored exchange against the query: the best cosine over all pairs of windows.

    kind: "max" compares each latent of the query with each of the exchange (the paper); "mean" the windows' mean latents;
    "concat" the windows' M latents joined into one vector.
    Shapes: score [num_exchanges] float32; owner_C int32, -1 for an empty row.  Units: cosine in [-1, 1]; an exchange
    without latents is -inf.  Paper: section 3.4, Eq. 4.
    """
    form = {"max": lambda x: x, "mean": lambda x: x.mean(1, keepdims=True), "concat": lambda x: x.reshape(len(x), 1, -1)}[kind]

    def unit(x):
        x = form(x.astype(jnp.float32))
        return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-30))

    pair = jnp.einsum("qmd,cnd->cqmn", unit(query_QMD), unit(latents_CMD), precision="highest")
    best_C = jnp.where(owner_C >= 0, pair.max(axis=(1, 2, 3)), -jnp.inf)
    return jax.ops.segment_max(best_C, jnp.where(owner_C >= 0, owner_C, num_exchanges), num_exchanges + 1)[:-1]


def resolve(score_E, tau_low, tau_high):
    """The level of each exchange, numpy int: RAW above tau_high, LATENT from tau_low up to and with tau_high, else OMIT.

    Paper: section 3.4.
    """
    score_E = np.asarray(score_E)
    return np.where(score_E > tau_high, RAW, np.where(score_E >= tau_low, LATENT, OMIT))


def demote(level_E, score_E, cost, fixed, budget):
    """Lowers the lowest-scored exchanges, raw -> latent -> omitted, one step at a time in rising score, until all fits.

    cost(exchange, level) is in tokens; `fixed` exchanges are never touched.  An exchange goes down as far as it must before
    the next one loses anything; of equal scores the older goes first.  A step that frees nothing is not taken alone.
    Shapes: new level_E; the second result counts the exchanges lowered.
    """
    level_E = np.array(level_E)
    total = sum(cost(e, level_E[e]) for e in np.flatnonzero(level_E))
    lowered = 0
    for e in np.argsort(score_E, kind="stable"):
        if total <= budget:
            break
        if e in fixed or level_E[e] == OMIT:
            continue
        lowered += 1
        while total > budget and level_E[e] > OMIT:
            total += cost(e, level_E[e] - 1) - cost(e, level_E[e])
            level_E[e] -= 1
    return level_E, lowered


def init_bank(memory, width, capacity, dtype=jnp.float32):
    """An empty bank for `capacity` windows."""
    return Bank(latents=jnp.zeros((capacity, memory.latents, width), dtype), owner=jnp.full(capacity, -1, jnp.int32))


@functools.partial(jax.jit, donate_argnums=(0, 1))
def _put(latents, owner, new_WMD, owner_W, at):
    return (jax.lax.dynamic_update_slice_in_dim(latents, new_WMD.astype(latents.dtype), at, 0),
            jax.lax.dynamic_update_slice_in_dim(owner, owner_W, at, 0))


def store(bank, latents_WMD, exchange):
    """A bank that also holds the windows of one exchange; the old bank's buffers are given up."""
    need, grow = bank.count + len(latents_WMD), 0
    while len(bank.owner) + grow < need:
        grow += len(bank.owner) + grow
    latents = jnp.pad(bank.latents, ((0, grow), (0, 0), (0, 0))) if grow else bank.latents
    owner = jnp.pad(bank.owner, (0, grow), constant_values=-1) if grow else bank.owner
    for n, window in enumerate(latents_WMD):  # one at a time: one executable for any number of windows
        latents, owner = _put(latents, owner, window[None], jnp.full(1, exchange, jnp.int32), bank.count + n)
    return Bank(latents=latents, owner=owner, count=need)
