"""Episodic memory: what a window becomes, how exchanges are scored, which level each gets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhea_jax import memory as mem
from rhea_jax.model import forward


def plain_scores(query, latents, owner, num, kind):
    """The double loop of Eq. 4 and its two variants: the oracle of `scores`."""
    form = {"max": list, "mean": lambda x: [np.mean(x, 0)], "concat": lambda x: [np.concatenate(x)]}[kind]
    out = np.full(num, -np.inf)
    for window, e in zip(latents, owner):
        if e >= 0:
            for q in query:
                for a in form(q):
                    for b in form(window):
                        out[e] = max(out[e], a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    return out


@pytest.mark.parametrize("kind", ["max", "mean", "concat"])
def test_scores_equal_the_plain_loop(kind):
    draw = np.random.default_rng(0).normal
    query, latents = draw(size=(2, 4, 8)), draw(size=(6, 4, 8))
    owner = np.array([1, 0, 1, 3, -1, -1], np.int32)
    ours = mem.scores(jnp.asarray(query, jnp.float32), jnp.asarray(latents, jnp.float32), jnp.asarray(owner), 5, kind)
    np.testing.assert_allclose(ours, plain_scores(query, latents, owner, 5, kind), atol=1e-5)
    assert np.isneginf(np.asarray(ours)[[2, 4]]).all()


@given(seed=st.integers(0, 999))
def test_scores_ignore_the_order_of_windows(seed):
    rng = np.random.default_rng(seed)
    query, latents = rng.normal(size=(1, 4, 8)), rng.normal(size=(8, 4, 8))
    owner, order = rng.integers(-1, 3, 8).astype(np.int32), rng.permutation(8)
    a, b = (np.asarray(mem.scores(jnp.asarray(query), jnp.asarray(x), jnp.asarray(o), 3))
            for x, o in ((latents, owner), (latents[order], owner[order])))
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_thresholds_are_closed_below_and_open_above():
    assert mem.resolve([0.4999, 0.5, 0.6, 0.7, 0.7001, -np.inf], 0.5, 0.7).tolist() == [0, 1, 1, 1, 2, 0]


def cost(exchange, level):
    return (0, 3, 10)[level]


def test_demotion_takes_the_lowest_scored_down_first():
    level, score = [2, 2, 1, 2], [0.9, 0.8, 0.6, 0.75]
    down = lambda budget, fixed=(): mem.demote(level, score, cost, fixed, budget)[0].tolist()  # noqa: E731
    assert down(33) == level
    assert down(32) == [2, 2, 0, 2]
    assert down(23) == [2, 2, 0, 1]
    assert down(20) == [2, 2, 0, 0]
    assert down(4) == [1, 0, 0, 0]
    assert down(10, fixed={3}) == [0, 0, 0, 2]
    assert mem.demote(level, score, cost, (), 0)[1] == 4


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(-1, 1)), max_size=12), st.integers(0, 130))
def test_demotion_fits_and_never_promotes(rows, budget):
    level, score = np.array([r[0] for r in rows], int), np.array([r[1] for r in rows])
    after, lowered = mem.demote(level, score, cost, (), budget)
    assert sum(cost(0, a) for a in after) <= budget
    assert (after <= level).all() and (after != level).sum() == lowered


def test_latents_stand_right_behind_the_text(tiny):
    cfg, memory, params, adapters = tiny
    tokens = np.random.default_rng(0).integers(0, 96, (1, 9)).astype(np.int32)
    x = jnp.concatenate([params.embed[tokens], adapters.mem[None]], 1)
    h, _ = forward(cfg, params, adapters.cmp, x, jnp.arange(13)[None])
    for width in (13, 32):
        padded = np.pad(tokens, ((0, 0), (0, width - 9)), constant_values=77)
        ours = mem.compress(cfg, params, adapters, padded, jnp.array([9]))
        np.testing.assert_allclose(ours, (h[:, 9:] - adapters.center) * adapters.spread, atol=1e-5)


def test_standardisation_is_part_of_compress(tiny):
    cfg, _, params, adapters = tiny
    tokens, length = np.ones((2, 16), np.int32), jnp.array([3, 12])
    identity = adapters.replace(center=jnp.zeros(32), spread=jnp.ones(32))
    raw = mem.compress(cfg, params, identity, tokens, length)
    center, spread = jnp.arange(32.0), jnp.full(32, 0.5)
    other = mem.compress(cfg, params, adapters.replace(center=center, spread=spread), tokens, length)
    np.testing.assert_allclose(other, (raw - center) * spread, atol=1e-5)


def test_gradient_reaches_every_compressor_matrix_and_mem(tiny):
    cfg, memory, params, adapters = tiny
    tokens = np.random.default_rng(1).integers(0, 96, (1, 20)).astype(np.int32)

    def loss(adapters):
        latents = mem.compress(cfg, params, adapters, tokens, jnp.array([16]))
        latent = jnp.where(jnp.arange(20) < 4, jnp.arange(20), -1)[None]
        x = mem.embed_hybrid(params.embed, latents, jnp.asarray(tokens), latent)
        h, _ = forward(cfg, params, adapters.gen, x, jnp.arange(20)[None])
        return jnp.sum(h[:, 6:] ** 2 * jnp.arange(32.0))

    grads = jax.grad(loss)(adapters)
    for name, leaf in jax.tree_util.tree_leaves_with_path((grads.cmp, grads.gen, grads.mem)):
        assert float(jnp.abs(leaf).max()) > 0, name


def test_hybrid_places_latents_by_position_only(tiny):
    _, _, params, _ = tiny
    latents = jnp.arange(3 * 4 * 32, dtype=jnp.float32).reshape(3, 4, 32)
    tokens, latent = jnp.array([[5, 0, 0, 7]]), jnp.array([[-1, 11, 2, -1]])
    x = mem.embed_hybrid(params.embed, latents, tokens, latent)
    np.testing.assert_array_equal(x[0, [0, 3]], params.embed[jnp.array([5, 7])])
    np.testing.assert_array_equal(x[0, [1, 2]], latents.reshape(12, 32)[jnp.array([11, 2])])


@given(st.lists(st.integers(1, 3), min_size=1, max_size=9))
def test_a_bank_grows_and_keeps_its_rows(sizes):
    from rhea_jax.config import Memory

    bank = mem.init_bank(Memory(latents=2, window=16), 4, 2)
    rows = np.random.default_rng(0).normal(size=(sum(sizes), 2, 4)).astype(np.float32)
    at = 0
    for e, n in enumerate(sizes):
        bank = mem.store(bank, jnp.asarray(rows[at : at + n]), e)
        at += n
    assert bank.count == at and (len(bank.owner) & (len(bank.owner) - 1)) == 0
    np.testing.assert_array_equal(bank.latents[:at], rows)
    assert bank.owner[:at].tolist() == [e for e, n in enumerate(sizes) for _ in range(n)] and (bank.owner[at:] == -1).all()


@pytest.mark.parametrize("form", ["append", "spread", "mean"])
def test_packed_windows_are_those_of_one_row_each(tiny, form):
    cfg, _, params, adapters = tiny
    adapters, rng = adapters.replace(form=form), np.random.default_rng(2)
    texts = [rng.integers(0, 96, n).astype(np.int32) for n in (9, 4, 11, 3)]
    starts, tokens = [0, 15, 32, 50], np.full((2, 32), 77, np.int32)
    for at, text in zip(starts, texts):
        tokens.reshape(-1)[at : at + len(text)] = text
    start, length = np.array([*starts, 64], np.int32), np.array([*map(len, texts), 0], np.int32)
    packed = mem.compress_packed(cfg, params, adapters, tokens, start, length)
    assert np.isfinite(packed).all()
    for latents, text in zip(packed, texts):
        alone = mem.compress(cfg, params, adapters, text[None] if form == "mean" else np.pad(text, (0, 4))[None], np.array([len(text)]))
        np.testing.assert_allclose(latents, alone[0], atol=1e-5)


def test_means_are_over_equal_stretches_of_the_text(tiny):
    cfg, _, params, adapters = tiny
    adapters = adapters.replace(form="mean", center=jnp.zeros(32), spread=jnp.ones(32))
    tokens = np.random.default_rng(0).integers(0, 96, (1, 10)).astype(np.int32)
    h, _ = forward(cfg, params, adapters.cmp, params.embed[tokens], jnp.arange(10)[None])
    np.testing.assert_allclose(mem.compress(cfg, params, adapters, tokens, np.array([10]))[0], h[0, 1:9].reshape(4, 2, -1).mean(1), atol=1e-5)
    short = mem.compress(cfg, params, adapters, tokens, np.array([3]))[0]  # one token of text: all four stretches are of it
    np.testing.assert_allclose(short, np.tile(h[0, 1], (4, 1)), atol=1e-5)
