"""The backbone: caches, padding, windows and adapters never change what one plain call computes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhea_jax import model as m
from rhea_jax.config import RopeScaling


forward = jax.jit(m.forward, static_argnums=0)


def ids(shape, seed=0, vocab=96):
    return jnp.asarray(np.random.default_rng(seed).integers(0, vocab, shape), jnp.int32)


def positions(batch, length):
    return jnp.tile(jnp.arange(length, dtype=jnp.int32), (batch, 1))


def plain_attention(q, k, v, at_q, at_k, window):
    """One head and one position at a time: the oracle of `attend`."""
    out = np.zeros(q.shape, np.float64)
    B, T, N, H = q.shape
    for b in range(B):
        for t in range(T):
            for n in range(N):
                head = n // (N // k.shape[1])
                seen = [s for s in range(k.shape[2]) if 0 <= at_k[b, s] <= at_q[b, t]
                        and (window is None or at_q[b, t] - at_k[b, s] < window)]
                score = np.array([q[b, t, n] @ k[b, head, s] / H**0.5 for s in seen])
                weight = np.exp(score - score.max())
                out[b, t, n] = (weight / weight.sum()) @ np.array([v[b, head, s] for s in seen])
    return out.reshape(B, T, N * H)


@pytest.mark.parametrize("window", [None, 3])
def test_attend_equals_the_plain_loop(window):
    draw = np.random.default_rng(0).normal
    q, k, v = draw(size=(2, 5, 4, 8)), draw(size=(2, 2, 9, 8)), draw(size=(2, 2, 9, 8))
    at_k = np.array([[0, 1, 2, 3, 4, 5, 6, -1, -1], [-1, 0, 1, 2, 3, 4, 5, 6, 7]], np.int32)
    at_q = np.array([[2, 3, 4, 5, 6], [3, 4, 5, 6, 7]], np.int32)
    out = m.attend(*(jnp.asarray(x, jnp.float32) for x in (q,)), jnp.asarray(at_q),
                   [(jnp.asarray(k[:, :, :4], jnp.float32), jnp.asarray(v[:, :, :4], jnp.float32), jnp.asarray(at_k[:, :4])),
                    (jnp.asarray(k[:, :, 4:], jnp.float32), jnp.asarray(v[:, :, 4:], jnp.float32), jnp.asarray(at_k[:, 4:]))],
                   window)
    np.testing.assert_allclose(out, plain_attention(q, k, v, at_q, at_k, window), atol=1e-5)


def test_long_calls_attend_block_by_block_alike(tiny, monkeypatch):
    cfg, _, params, _ = tiny
    x = params.embed[ids((2, 64))]
    whole, _ = forward(cfg, params, None, x, positions(2, 64))
    monkeypatch.setattr(m, "_QUERY_BLOCK", 16)
    blocks, _ = m.forward(cfg, params, None, x, positions(2, 64))
    np.testing.assert_allclose(blocks, whole, atol=1e-5)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("form", ["tiny", "tiny_unrolled"])
def test_chunks_equal_one_call(form, window, request):
    cfg, _, params, adapters = request.getfixturevalue(form)
    cfg = dataclasses.replace(cfg, window=window)
    tokens, at = ids((2, 21)), positions(2, 21)
    whole, _ = forward(cfg, params, adapters.gen, params.embed[tokens], at)
    cache, out = m.init_cache(cfg, params.layers, 2, 32, jnp.float32), []
    for a, b in ((0, 7), (7, 8), (8, 21)):
        h, new = forward(cfg, params, adapters.gen, params.embed[tokens[:, a:b]], at[:, a:b], (cache,))
        cache = m.append(cache, new, at[:, a:b], b - a)
        out.append(h)
    np.testing.assert_allclose(jnp.concatenate(out, 1), whole, atol=1e-5)


def test_stacked_equals_unrolled(tiny, tiny_unrolled):
    x = tiny[2].embed[ids((2, 9))]
    outs = [forward(cfg, p, a.cmp, x, positions(2, 9))[0] for cfg, _, p, a in (tiny, tiny_unrolled)]
    np.testing.assert_allclose(*outs, atol=1e-5)


@given(before=st.integers(0, 3), after=st.integers(0, 5))
def test_padding_is_inert(tiny, before, after):
    cfg, _, params, adapters = tiny
    x = params.embed[ids((1, 6))]
    plain, _ = forward(cfg, params, adapters.gen, x, positions(1, 6))
    noise = params.embed[ids((1, 16), seed=5)]
    padded = jnp.concatenate([noise[:, :before], x, noise[:, :after]], 1)
    at = jnp.asarray([[-1] * before + list(range(6)) + [-1] * after], jnp.int32)
    h, _ = forward(cfg, params, adapters.gen, padded, at)
    np.testing.assert_allclose(h[:, before : before + 6], plain, atol=1e-5)


def test_an_undo_is_a_shorter_length(tiny):
    cfg, _, params, _ = tiny
    cache = m.init_cache(cfg, params.layers, 1, 32, jnp.float32)
    tokens, at = ids((1, 12)), positions(1, 12)
    _, new = forward(cfg, params, None, params.embed[tokens], at, (cache,))
    cut = m.append(cache, new, at, 12).replace(length=jnp.int32(5))
    other = ids((1, 3), seed=9)
    h, _ = forward(cfg, params, None, params.embed[other], at[:, 5:8], (cut,))
    whole, _ = forward(cfg, params, None, params.embed[jnp.concatenate([tokens[:, :5], other], 1)], at[:, :8])
    np.testing.assert_allclose(h, whole[:, 5:], atol=1e-5)


def test_zero_adapter_is_the_base(tiny):
    cfg, memory, params, _ = tiny
    fresh = m.init_adapters(cfg, memory, params, jax.random.key(7))
    x = params.embed[ids((1, 8))]
    with_, without = (forward(cfg, params, lora, x, positions(1, 8))[0] for lora in (fresh.cmp, None))
    np.testing.assert_array_equal(with_, without)
    np.testing.assert_allclose(fresh.mem, jnp.tile(params.embed.mean(0), (memory.latents, 1)), atol=1e-6)


def test_rotary_scaling_keeps_fast_pairs_and_slows_slow_ones(tiny):
    scaled = dataclasses.replace(tiny[0], head_dim=64, rope_scaling=RopeScaling(factor=8.0, positions=64))
    plain = dataclasses.replace(scaled, rope_scaling=None)
    ratio = m.rope_frequencies(scaled) / m.rope_frequencies(plain)
    assert ratio[0] == 1 and ratio[-1] == pytest.approx(1 / 8) and (np.diff(ratio) <= 1e-7).all()


def test_a_name_promises_a_shape(tiny):
    cfg, _, params, _ = tiny
    with pytest.raises(ValueError, match=r"forward: at_BT has shape \(1, 5\)"):
        forward(cfg, params, None, params.embed[ids((1, 6))], positions(1, 5))


def test_the_gradient_by_hand_is_that_of_autodiff():
    shapes = {"x": (2, 5, 6), "w": (6, 7), "a": (6, 3), "b": (3, 7)}
    parts = {n: jax.random.normal(jax.random.key(i), s) for i, (n, s) in enumerate(shapes.items())}

    def loss(project, parts):
        return jnp.sum(jnp.sin(project(parts["x"], parts["w"], (parts["a"], parts["b"]), 0.7)))

    def plain(x, w, lora, scale):
        return x @ w + scale * (x @ lora[0] @ lora[1])

    ours, theirs = (jax.value_and_grad(functools.partial(loss, f))(parts) for f in (m.project, plain))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4), ours, theirs)
