"""The jitted calls of a chat turn: embed, prefill by chunks, decode by blocks; and the host loop that streams ids."""

import functools
from dataclasses import dataclass

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rhea_jax import context, memory
from rhea_jax.model import Cache, append, forward, init_cache, logits

compress_step = jax.jit(memory.compress, static_argnames="cfg")
embed_step = jax.jit(memory.embed_hybrid)
_BUCKETS = (64, 256)  # window sizes to which a text is padded, before memory.window itself


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    penalty: float = 1.0  # on tokens of the reply so far (Keskar et al. 2019); those of the prompt may be needed as they are


@flax.struct.dataclass
class State:
    """What one decode block hands to the next; donated."""

    cache: Cache
    token_B: jax.Array  # [B] int32 chosen, not yet fed
    at_B: jax.Array  # [B] int32 its position
    done_B: jax.Array  # [B] bool
    seen_BV: jax.Array | None  # [B, V] bool, only with a repetition penalty
    key: jax.Array


def pick(sampling, logits_BV, seen_BV, key):
    """The next token of each row, int32 [B]."""
    if seen_BV is not None:
        p = sampling.penalty
        logits_BV = jnp.where(seen_BV, jnp.where(logits_BV > 0, logits_BV / p, logits_BV * p), logits_BV)
    if sampling.temperature == 0:
        return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
    logits_BV = logits_BV / sampling.temperature
    if sampling.top_k:
        kth = jax.lax.top_k(logits_BV, min(sampling.top_k, logits_BV.shape[-1]))[0][:, -1:]
        logits_BV = jnp.where(logits_BV < kth, -jnp.inf, logits_BV)
    if sampling.top_p < 1:
        falling = jnp.sort(logits_BV, axis=-1)[:, ::-1]
        before = jnp.cumsum(jax.nn.softmax(falling, axis=-1), axis=-1) - jax.nn.softmax(falling, axis=-1)
        keep = jnp.sum(before < sampling.top_p, axis=-1, keepdims=True)  # the first always
        lowest = jnp.take_along_axis(falling, jnp.maximum(keep, 1) - 1, axis=-1)
        logits_BV = jnp.where(logits_BV < lowest, -jnp.inf, logits_BV)
    return jax.random.categorical(key, logits_BV, axis=-1).astype(jnp.int32)


def compress_text(cfg, params, adapters, tokenizer, settings, text):
    """Latents [W, M, D] of a text's windows, one call a window, so that few executables serve every length."""
    out = []
    for row, n in zip(*context.windows(tokenizer, settings, text)):
        size = next((b for b in _BUCKETS if n + settings.latents <= b < settings.window), settings.window)
        out.append(compress_step(cfg, params, adapters, row[None, :size], np.array([n], np.int32)))
    return jnp.concatenate(out)


@functools.partial(jax.jit, static_argnames="cfg", donate_argnames="cache")
def prefill(cfg, params, lora, x_BTD, at_BT, cache):
    """Feeds one chunk; the logits follow the last valid position of each row.

    Shapes: logits_BV float32.  The cache's length stops behind the longest row's last valid slot, so that the next write
    covers the chunk's padding.
    """
    count_B = jnp.sum(at_BT >= 0, axis=1)
    h, new = forward(cfg, params, lora, x_BTD, at_BT, (cache,))
    last = jnp.take_along_axis(h, jnp.maximum(count_B - 1, 0)[:, None, None], axis=1)[:, 0]
    return logits(params, last), append(cache, new, at_BT, jnp.max(count_B))


@functools.partial(jax.jit, static_argnames="sampling")
def first(sampling, logits_BV, seen_BV, key):
    """The first new token: `pick` as an executable of its own."""
    return pick(sampling, logits_BV, seen_BV, key)


@functools.partial(jax.jit, static_argnames=("cfg", "sampling", "block"), donate_argnames="state")
def decode(cfg, sampling, block, params, lora, eos_Z, limit, state):
    """Up to min(block, limit) more tokens a row, stopping when every row is done: one call to the device.

    Shapes: tokens [B, block] int32, -1 after a row's end; eos_Z the ids that end a reply, themselves returned.
    """
    cache, B = state.cache, len(state.token_B)
    tail = init_cache(cfg, params.layers, B, block, params.embed.dtype)

    def more(carry):
        i, done_B = carry[0], carry[3]
        return (i < jnp.minimum(block, limit)) & ~jnp.all(done_B)

    def step(carry):
        i, token_B, at_B, done_B, seen_BV, key, tail, out = carry
        at_B1 = jnp.where(done_B, -1, at_B)[:, None]
        h, new = forward(cfg, params, lora, params.embed[token_B][:, None], at_B1, (cache, tail))
        if seen_BV is not None:
            seen_BV = seen_BV.at[jnp.arange(B), token_B].set(True)
        key, now = jax.random.split(key)
        token_B = jnp.where(done_B, token_B, pick(sampling, logits(params, h[:, 0]), seen_BV, now))
        out = out.at[:, i].set(jnp.where(done_B, -1, token_B))
        done_B |= jnp.isin(token_B, eos_Z)
        return i + 1, token_B, at_B + 1, done_B, seen_BV, key, append(tail, new, at_B1, 1), out

    out = jnp.full((B, block), -1, jnp.int32)
    carry = (0, state.token_B, state.at_B, state.done_B, state.seen_BV, state.key, tail, out)
    count, token_B, at_B, done_B, seen_BV, key, tail, out = jax.lax.while_loop(more, step, carry)
    # New slots gather in a small tail and the cache is only read: XLA:CPU copied it twice a token where the loop wrote it.
    cache = append(cache, (tail.k, tail.v), tail.position, count)
    return out, State(cache, token_B, at_B, done_B, seen_BV, key)


def capacities(chat):
    """Sizes of caches that a chat may build, in slots: each one and a half or one and a third of the one before."""
    sizes, size = [], 4 * chat.chunk
    while size < chat.context:
        sizes += [size, size * 3 // 2]
        size *= 2
    return [s for s in sizes if s < chat.context and s % chat.chunk == 0] + [chat.context]


def capacity(chat, tokens):
    """Slots of the smallest cache for so many prompt tokens and max_new new ones.

    Raises: ValueError where none is large enough: a write past the end would shift silently.
    """
    need = _up(tokens, chat.chunk), tokens + _up(chat.max_new, chat.block)  # the padding of the last chunk and block counts
    if max(need) > chat.context:
        raise ValueError(f"the prompt has {tokens} tokens; allowed: {room(chat)} with chat.max_new {chat.max_new} and "
                         f"chat.context {chat.context}")
    return next(s for s in capacities(chat) if s >= max(need))


def _up(n, step):
    return -(-n // step) * step


def room(chat):
    """Prompt tokens at most, so that max_new more still have slots."""
    return max(0, min(chat.context - _up(chat.max_new, chat.block), chat.context // chat.chunk * chat.chunk))


def fill(cfg, params, lora, chat, hybrid, latents_CMD, between=None):
    """Prefills a fresh cache with a hybrid of one row or of ragged rows, chunk by chunk.

    between: called after each chunk; what it raises ends the prefill.
    Shapes: logits_BV and the cache behind it; hybrid leaves [B, T], valid left-aligned.
    """
    B, T = hybrid.tokens.shape
    cache = init_cache(cfg, params.layers, B, capacity(chat, T), params.embed.dtype)
    at = np.where(hybrid.valid, np.cumsum(hybrid.valid, axis=1) - 1, -1).astype(np.int32)
    pad = [(0, 0), (0, -T % chat.chunk)]
    tokens, latent, at = (np.pad(a, pad, constant_values=v) for a, v in ((hybrid.tokens, 0), (hybrid.latent, -1), (at, -1)))
    out = None
    for start in range(0, tokens.shape[1], chat.chunk):
        part = slice(start, start + chat.chunk)
        x = embed_step(params.embed, latents_CMD, tokens[:, part], latent[:, part])
        out, cache = prefill(cfg, params, lora, x, at[:, part], cache)
        if between:
            out.block_until_ready()
            between()
    return out, cache


def generate(cfg, params, lora, chat, hybrid, latents_CMD, eos_ids, key, between=None):
    """Yields new ids of a one-row hybrid in blocks, numpy int32, the ending id included; stops after chat.max_new."""
    sampling = Sampling(chat.temperature, chat.top_p, chat.top_k, chat.repetition_penalty)
    out, cache = fill(cfg, params, lora, chat, hybrid, latents_CMD, between)
    seen = None if sampling.penalty == 1 else jnp.zeros((1, cfg.vocab), bool)
    key, now = jax.random.split(key)
    token = first(sampling, out, seen, now)
    yield (ids := np.asarray(token))
    state = State(cache, token, jnp.asarray(hybrid.valid.sum(axis=1), jnp.int32), jnp.isin(token, np.asarray(eos_ids)), seen, key)
    left, eos = chat.max_new - 1, np.asarray(eos_ids, np.int32)
    while left > 0 and not np.isin(ids, eos).any():
        out, state = decode(cfg, sampling, chat.block, params, lora, eos, left, state)
        ids = np.asarray(out)[0]
        ids = ids[ids >= 0]
        left -= len(ids)
        yield ids
