"""Prefill and decode: chunks, blocks and ragged batches give what one plain call gives."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhea_jax import generate as g
from rhea_jax.config import Chat
from rhea_jax.memory import Hybrid
from rhea_jax.model import forward, logits

CHAT = Chat(context=256, chunk=16, block=4, max_new=24)
NONE = jnp.zeros((1, 4, 32))


def hybrid(*lengths, seed=0):
    rng, T = np.random.default_rng(seed), max(lengths)
    valid = np.arange(T) < np.array(lengths)[:, None]
    tokens = np.where(valid, rng.integers(0, 96, valid.shape), 0).astype(np.int32)
    return Hybrid(tokens=tokens, latent=np.full(valid.shape, -1, np.int32), valid=valid)


@functools.partial(jax.jit, static_argnums=0)
def plain(cfg, params, lora, tokens, at):
    return forward(cfg, params, lora, params.embed[tokens], at)[0]


def greedy(cfg, params, lora, tokens, count):
    """Every token by a fresh call over the whole text: the oracle of prefill and decode."""
    tokens, size = list(tokens), len(tokens) + count
    for _ in range(count):
        at = np.where(np.arange(size) < len(tokens), np.arange(size), -1)[None]
        h = plain(cfg, params, lora, np.pad(np.array([tokens], np.int32), ((0, 0), (0, size - len(tokens)))), at)
        tokens.append(int(jnp.argmax(logits(params, h[:, len(tokens) - 1]))))
    return tokens[-count:]


@pytest.mark.parametrize("form", ["tiny", "tiny_unrolled"])
@pytest.mark.parametrize("length", [1, 15, 16, 37])
def test_decode_equals_one_call_per_token(form, length, request):
    cfg, _, params, adapters = request.getfixturevalue(form)
    h = hybrid(length)
    ours = np.concatenate(list(g.generate(cfg, params, adapters.gen, CHAT, h, NONE, [-5], jax.random.key(0))))
    assert len(ours) == CHAT.max_new
    assert ours[:12].tolist() == greedy(cfg, params, adapters.gen, h.tokens[0], 12)


def test_a_reply_ends_at_an_ending_id(tiny):
    cfg, _, params, adapters = tiny
    h = hybrid(9)
    every = np.concatenate(list(g.generate(cfg, params, None, CHAT, h, NONE, [-5], jax.random.key(0))))
    stop = int(every[6])
    ours = np.concatenate(list(g.generate(cfg, params, None, CHAT, h, NONE, [stop, 95], jax.random.key(0))))
    assert ours.tolist() == every[: every.tolist().index(stop) + 1].tolist()


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([8, 16, 64]))
def test_ragged_rows_equal_single_rows(tiny, one, two, chunk):
    cfg, _, params, adapters = tiny
    chat = dataclasses.replace(CHAT, chunk=chunk)
    h = hybrid(one, two)
    out, cache = g.fill(cfg, params, adapters.gen, chat, h, NONE)
    if one > (two - 1) // chunk * chunk and two > (one - 1) // chunk * chunk:  # the last chunk holds both rows' ends
        for row, n in enumerate((one, two)):
            single, _ = g.fill(cfg, params, adapters.gen, chat, hybrid(n).replace(tokens=h.tokens[row : row + 1, :n]), NONE)
            np.testing.assert_allclose(out[row], single[0], atol=1e-4)


def test_latents_reach_the_generator(tiny):
    cfg, _, params, adapters = tiny
    h = hybrid(20)
    h.latent[0, 5:9] = np.arange(4)
    latents = jax.random.normal(jax.random.key(3), (1, 4, 32))
    a, _ = g.fill(cfg, params, adapters.gen, CHAT, h, latents)
    b, _ = g.fill(cfg, params, adapters.gen, CHAT, h, latents * 2)
    x = params.embed[h.tokens].at[0, 5:9].set(latents[0])
    whole, _ = forward(cfg, params, adapters.gen, x, jnp.arange(20)[None])
    np.testing.assert_allclose(a, logits(params, whole[:, -1]), atol=1e-4)
    assert float(jnp.abs(a - b).max()) > 1e-3


def test_capacity_is_checked_on_the_host():
    assert g.capacities(CHAT) == [64, 96, 128, 192, 256]
    assert g.capacity(CHAT, 1) == 64 and g.capacity(CHAT, 41) == 96 and g.capacity(CHAT, g.room(CHAT)) == 256
    with pytest.raises(ValueError, match="the prompt has 500 tokens; allowed: 232"):
        g.capacity(CHAT, 500)


@given(st.integers(1, 300), st.integers(1, 40), st.sampled_from([4, 8]), st.sampled_from([16, 64]))
def test_every_write_stays_inside_the_cache(tokens, max_new, block, chunk):
    chat = dataclasses.replace(CHAT, max_new=max_new, block=block, chunk=chunk)
    if tokens <= g.room(chat):
        slots = g.capacity(chat, tokens)
        assert -(-tokens // chunk) * chunk <= slots and tokens + -(-(max_new - 1) // block) * block <= slots


def draws(sampling, scores, seen=None, n=400):
    keys = jax.random.split(jax.random.key(0), n)
    return np.asarray(jax.vmap(lambda k: g.pick(sampling, jnp.asarray([scores], jnp.float32), seen, k)[0])(keys))


def test_sampling_options():
    scores = [0.0, 3.0, 2.9, -1.0]
    assert set(draws(g.Sampling(), scores)) == {1}
    assert set(draws(g.Sampling(temperature=1.0), scores)) >= {0, 1, 2}
    assert set(draws(g.Sampling(temperature=1.0, top_k=2), scores)) == {1, 2}
    assert set(draws(g.Sampling(temperature=1.0, top_p=0.5), scores)) == {1}
    assert set(draws(g.Sampling(temperature=1.0, top_p=0.9), scores)) == {1, 2}
    seen = jnp.array([[False, True, False, True]])
    assert set(draws(g.Sampling(penalty=1.2), scores, seen)) == {2}


def test_a_seed_repeats_a_reply(tiny):
    cfg, _, params, _ = tiny
    chat = dataclasses.replace(CHAT, temperature=1.0, repetition_penalty=1.3)
    run = lambda seed: np.concatenate(  # noqa: E731
        list(g.generate(cfg, params, None, chat, hybrid(9), NONE, [-5], jax.random.key(seed)))).tolist()
    assert run(1) == run(1) != run(2)
