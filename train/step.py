"""One optimizer step in two jitted calls: micro-steps that add sums, and an apply that divides once (paper, Eq. 2)."""

import functools

import flax.struct
import jax
import jax.numpy as jnp
import optax

from rhea_jax import memory, model
from rhea_jax.memory import Hybrid
from rhea_jax.model import Adapters, Lora

_CHUNK = 256  # targets whose scores over the vocabulary exist at once
_POLICIES = {"none": None, "dots": jax.checkpoint_policies.dots_saveable, "layers": jax.checkpoint_policies.nothing_saveable}


@flax.struct.dataclass
class Prompts:
    """Prompts side by side in rows."""

    hybrid: Hybrid  # [B, T]
    at: jax.Array  # [B, T] int32 position in its prompt
    segment: jax.Array  # [B, T] int32 number of the prompt


@flax.struct.dataclass
class Batch:
    """The samples of one micro-step, packed into one of train.shapes."""

    windows: jax.Array  # [R, P] int32 windows of replies that are recalled as latents, and of queries, side by side
    start: jax.Array  # [W] int32 where each begins in the flattened [R * P], R * P for none
    length: jax.Array  # [W] int32
    prompts: Prompts  # [B, T]
    target: jax.Array  # [Y] int32 position in the flattened [B * T] whose successor is to be told, -1 for padding
    label: jax.Array  # [Y] int32 the successor
    owner: jax.Array  # [W] int32 sample whose history a window belongs to, -1 for queries and padding
    query: jax.Array  # [Z] int32 window of each sample's query, -1 where the retrieval term leaves the sample out
    match: jax.Array  # [Z] int32 window of the exchange just before it
    weight: jax.Array  # [Z] float32 the sample's targets
    teacher: Prompts | None = None  # [B, S] with raw history, for distillation
    teacher_target: jax.Array | None = None  # [Y] int32 the same targets in the teacher's flattened [B * S]


@flax.struct.dataclass
class State:
    """What a run changes; donated by every call."""

    step: jax.Array  # [] int32 optimizer steps done
    adapters: Adapters
    opt: optax.OptState
    grads: Adapters  # float32 sums over the micro-steps since the last apply
    sums: dict[str, jax.Array]  # likewise: nll, kl, contrast, targets


def schedule(train, steps):
    """The learning rate by optimizer step: a linear warm-up, then constant or a cosine to 0 at `steps`."""
    after = optax.constant_schedule(1.0) if train.schedule == "constant" else \
        optax.cosine_decay_schedule(1.0, max(1, steps - train.warmup))
    rise = optax.linear_schedule(1 / (train.warmup + 1), 1.0, train.warmup)
    return optax.join_schedules([rise, after], [train.warmup])


def optimizer(train, steps):
    """AdamW as a chain that is counted in optimizer steps; decay on the adapters' matrices only."""
    lr, lr_cmp = train.lr, train.lr if train.lr_cmp is None else train.lr_cmp

    def matrices(tree):
        return jax.tree.map(lambda x: isinstance(x, Lora), tree, is_leaf=lambda x: isinstance(x, Lora))

    def rate(updates, _=None):
        part = lambda tree, by: jax.tree.map(lambda x: -by * x, tree)  # noqa: E731
        return updates.replace(**{n: part(getattr(updates, n), lr if n == "gen" else lr_cmp) for n in ("cmp", "gen", "mem")})

    return optax.chain(
        optax.clip_by_global_norm(train.clip) if train.clip else optax.identity(),
        optax.scale_by_adam(),
        optax.add_decayed_weights(train.decay, matrices),
        optax.stateless(rate),
        optax.scale_by_schedule(schedule(train, steps)))


def init_state(train, adapters, steps):
    """The state before the first step; it owns its buffers."""
    zeros = lambda tree: jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), tree)  # noqa: E731
    sums = {n: jnp.zeros((), jnp.float32) for n in ("nll", "kl", "contrast", "targets")}
    adapters = jax.tree.map(jnp.array, adapters)
    return State(jnp.zeros((), jnp.int32), adapters, optimizer(train, steps).init(adapters), zeros(adapters), sums)


def latents_of(cfg, train, params, adapters, batch):
    """Latents [W, M, D] of a micro-step's windows, all rows at once or mapped one by one."""
    policy, (R, P) = _POLICIES[train.remat], batch.windows.shape
    if not train.one_by_one:
        return memory.compress_packed(cfg, params, adapters, batch.windows, batch.start, batch.length, policy)

    @jax.checkpoint
    def row(total, at):
        r, tokens = at
        start = jnp.where(batch.start // P == r, batch.start % P, P)
        made = memory.compress_packed(cfg, params, adapters, tokens[None], start, batch.length, policy)
        return total + jnp.where((start < P)[:, None, None], made, 0), None

    zero = jnp.zeros((len(batch.start), *adapters.mem.shape))
    return jax.lax.scan(row, zero, (jnp.arange(R), batch.windows))[0]


def hidden(cfg, params, lora, latents_WMD, prompts, target_Y, policy=None):
    """Hidden states [Y, D] of prompts at flattened positions, where a negative one reads any."""
    x = memory.embed_hybrid(params.embed, latents_WMD, prompts.hybrid.tokens, prompts.hybrid.latent)
    at = jnp.where(prompts.hybrid.valid, prompts.at, -1)
    h = model.forward(cfg, params, lora, x, at, segment_BT=prompts.segment, policy=policy)[0]
    return h.reshape(-1, h.shape[-1])[jnp.maximum(target_Y, 0)]


def target_sums(params, h_YD, target_Y, label_Y, teacher_YD=None):
    """(sum of negative log likelihood, sum of KL from the teacher) over the targets, chunk by chunk of the vocabulary's scores.

    Units: nats.
    """
    size = min(_CHUNK, len(h_YD))
    pad = -len(h_YD) % size
    split = lambda x: jnp.pad(x, [(0, pad)] + [(0, 0)] * (x.ndim - 1)).reshape(-1, size, *x.shape[1:])  # noqa: E731
    told = split(target_Y + 1) > 0

    @jax.checkpoint
    def chunk(carry, at):
        h, label, told, teacher = at
        log_p = jax.nn.log_softmax(model.logits(params, h))
        nll = -jnp.take_along_axis(log_p, label[:, None], axis=1)[:, 0]
        kl = jnp.zeros(())
        if teacher is not None:
            log_q = jax.nn.log_softmax(model.logits(params, teacher))
            kl = jnp.sum(jnp.where(told, jnp.sum(jnp.exp(log_q) * (log_q - log_p), axis=-1), 0))
        return (carry[0] + jnp.sum(jnp.where(told, nll, 0)), carry[1] + kl), None

    zero = (jnp.zeros(()), jnp.zeros(()))
    return jax.lax.scan(chunk, zero, (split(h_YD), split(label_Y), told, None if teacher_YD is None else split(teacher_YD)))[0]


def contrast_sum(latents_WMD, batch, temperature):
    """InfoNCE over Eq. 4: each query should find the exchange before it among those of other samples, weighted by its targets.

    So that one division by all targets serves every term of the loss.
    """
    unit = latents_WMD * jax.lax.rsqrt(jnp.maximum(jnp.sum(latents_WMD**2, -1, keepdims=True), 1e-12))
    score_ZW = jnp.einsum("zmd,wnd->zwmn", unit[jnp.maximum(batch.query, 0)], unit).max((2, 3)) / temperature
    other = (batch.owner >= 0) & (batch.owner != jnp.arange(len(batch.query))[:, None])
    right = jnp.arange(len(batch.owner)) == batch.match[:, None]
    log_p = jax.nn.log_softmax(jnp.where(other | right, score_ZW, -1e30))
    loss_Z = -jnp.take_along_axis(log_p, jnp.maximum(batch.match, 0)[:, None], 1)[:, 0]
    return jnp.sum(jnp.where((batch.query >= 0) & (batch.match >= 0), batch.weight * loss_Z, 0))


def loss(cfg, train, params, adapters, batch):
    """(summed loss, sums) of a micro-step: Eq. 2 through both adapters, with the options of the config."""
    policy, teacher = _POLICIES[train.remat], None
    latents = latents_of(cfg, train, params, adapters, batch)
    h = hidden(cfg, params, adapters.gen, latents, batch.prompts, batch.target, policy)
    if train.distill:
        teacher = jax.lax.stop_gradient(hidden(cfg, params, None, latents, batch.teacher, batch.teacher_target))
    nll, kl = target_sums(params, h, batch.target, batch.label, teacher)
    contrast = contrast_sum(latents, batch, train.temperature) if train.contrast else jnp.zeros(())
    sums = {"nll": nll, "kl": kl, "contrast": contrast, "targets": jnp.sum(batch.target >= 0).astype(jnp.float32)}
    return (1 - train.distill) * nll + train.distill * kl + train.contrast * contrast, sums


@functools.partial(jax.jit, static_argnames=("cfg", "train"), donate_argnames="state")
def microstep(cfg, train, params, state, batch):
    """Adds one micro-batch's summed gradient, losses and target count to the state."""
    of = lambda adapters: loss(cfg, train, params, adapters, batch)  # noqa: E731
    (_, sums), grads = jax.value_and_grad(of, has_aux=True)(state.adapters)
    add = lambda old, new: jax.tree.map(jnp.add, old, new)  # noqa: E731
    return state.replace(grads=add(state.grads, grads), sums=add(state.sums, sums))


@functools.partial(jax.jit, static_argnames=("train", "steps"), donate_argnames="state")
def apply(train, steps, state):
    """(state after one AdamW step over all targets since the last, metrics); accumulators are zeroed.

    The constants of the standardisation get no update.
    """
    total = jnp.maximum(state.sums["targets"], 1.0)
    grads = jax.tree.map(lambda g: g / total, state.grads)
    grads = grads.replace(center=jnp.zeros_like(grads.center), spread=jnp.zeros_like(grads.spread))
    updates, opt = optimizer(train, steps).update(grads, state.opt, state.adapters)
    metrics = {n: state.sums[n] / total for n in ("nll", "kl", "contrast")}
    metrics |= {"targets": state.sums["targets"], "grad_norm": optax.tree.norm(grads), "lr": train.lr * schedule(train, steps)(state.step)}
    zero = lambda tree: jax.tree.map(jnp.zeros_like, tree)  # noqa: E731
    return State(state.step + 1, optax.apply_updates(state.adapters, updates), opt, zero(state.grads), zero(state.sums)), metrics
