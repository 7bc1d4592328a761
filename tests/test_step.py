"""The optimizer step: sums over micro-steps, a frozen base, and the gradient of Eq. 2 through both adapters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rhea_jax.config import Memory, Train
from rhea_jax.model import init_adapters
from train import data, step
from train.data import Sample

MEMORY = Memory(latents=4, rank=2, alpha=4.0, window=32)
TRAIN = Train(lr=1e-2, batch=4, shapes=((2, 48, 32, 2, 48),), remat="none", longest=12)


def sample(seed, windows=(9, 6), before=8, target=5, teacher=False):
    """A sample of random ids whose prompt reads all its windows."""
    rng = np.random.default_rng(seed)
    draw = lambda n: rng.integers(0, 96, n).astype(np.int32)  # noqa: E731
    slots = np.arange(4 * len(windows), dtype=np.int32)
    tokens = np.concatenate([draw(before), np.zeros(len(slots), np.int32), draw(3 + target)])
    latent = np.concatenate([np.full(before, -1), slots, np.full(3 + target, -1)]).astype(np.int32)
    return Sample(str(seed), tokens, latent, len(tokens) - target, tuple(draw(n) for n in windows), len(windows) - 1, False,
                  draw(20 + target) if teacher else None)


def run(tiny, parts, train=TRAIN, shape=TRAIN.shapes[0], adapters=None):
    """The state and metrics after one optimizer step over these micro-batches."""
    cfg, _, params, made = tiny
    state = step.init_state(train, adapters or made, 10)
    for part in parts:
        state = step.microstep(cfg, train, params, state, data.collate(MEMORY, train, shape, part))
    return step.apply(train, 10, state)


RAGGED = [sample(0), sample(1, (5,), 4, 2), sample(2, (11,), 3, 11), sample(3, (), 6, 1)]


def plain_loss(tiny, s):
    """Eq. 2 for one sample, one call after the other and nothing packed: the oracle of `loss`."""
    from rhea_jax.memory import compress, embed_hybrid
    from rhea_jax.model import forward, logits

    cfg, _, params, adapters = tiny
    latents = jnp.concatenate([compress(cfg, params, adapters, np.pad(w, (0, 4))[None], np.array([len(w)])) for w in s.windows]) \
        if s.windows else jnp.zeros((1, 4, 32))
    x = embed_hybrid(params.embed, latents, s.tokens[None], s.latent[None])
    h, _ = forward(cfg, params, adapters.gen, x, jnp.arange(len(s.tokens))[None])
    log_p = jax.nn.log_softmax(logits(params, h))[0]
    return -sum(log_p[at - 1, s.tokens[at]] for at in range(s.target, len(s.tokens)))


def test_a_packed_batch_has_the_loss_of_its_samples_alone(tiny):
    cfg, _, params, adapters = tiny
    batch = data.collate(MEMORY, TRAIN, TRAIN.shapes[0], RAGGED)
    total, sums = step.loss(cfg, TRAIN, params, adapters, batch)
    assert float(total) == pytest.approx(float(sum(plain_loss(tiny, s) for s in RAGGED)), rel=1e-5)
    assert float(sums["targets"]) == sum(len(s.tokens) - s.target for s in RAGGED) == 19


@pytest.mark.parametrize("changes", [{"remat": "layers"}, {"remat": "dots"}, {"one_by_one": True}])
def test_recomputation_changes_no_gradient(tiny, changes):
    cfg, _, params, adapters = tiny
    batch = data.collate(MEMORY, TRAIN, TRAIN.shapes[0], RAGGED)
    of = lambda train: jax.grad(lambda a: step.loss(cfg, train, params, a, batch)[0])(adapters)  # noqa: E731
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), of(TRAIN), of(dataclasses.replace(TRAIN, **changes)))


@pytest.mark.parametrize("parts", [[[0], [1], [2], [3]], [[0, 1], [2, 3]]])
def test_micro_steps_equal_one_batch(tiny, parts):
    whole, metrics = run(tiny, [RAGGED])
    split, again = run(tiny, [[RAGGED[i] for i in part] for part in parts])
    assert float(metrics["nll"]) == pytest.approx(float(again["nll"]), abs=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), whole.adapters, split.adapters)


def test_devices_equal_one_batch(tiny):
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    cfg, _, params, adapters = tiny
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    batch = data.collate(MEMORY, TRAIN, TRAIN.shapes[0], RAGGED)
    rows = lambda x: jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))  # noqa: E731
    everywhere = lambda tree: jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))  # noqa: E731
    spread = jax.tree.map(everywhere, batch).replace(windows=rows(batch.windows), prompts=jax.tree.map(rows, batch.prompts))
    state = step.microstep(cfg, TRAIN, everywhere(params), everywhere(step.init_state(TRAIN, adapters, 10)), spread)
    there, _ = step.apply(TRAIN, 10, state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), there.adapters, run(tiny, [RAGGED])[0].adapters)


def test_the_gradient_is_that_of_finite_differences(tiny):
    cfg, _, params, adapters = tiny
    batch = data.collate(MEMORY, TRAIN, TRAIN.shapes[0], RAGGED)
    of = jax.jit(lambda a: step.loss(cfg, TRAIN, params, a, batch)[0])
    grads = jax.grad(of)(adapters)
    for name in ("cmp", "gen", "mem"):
        part = getattr(grads, name)
        slope = float(optax.tree.norm(part))  # along itself
        by = lambda e: jax.tree.map(lambda x, g: x + e / slope * g, getattr(adapters, name), part)  # noqa: E731
        moved = [float(of(adapters.replace(**{name: by(e)}))) for e in (1e-3, -1e-3)]
        assert (moved[0] - moved[1]) / 2e-3 == pytest.approx(slope, rel=1e-2)


@pytest.mark.parametrize("form", ["append", "spread", "mean"])
def test_the_loss_reaches_every_matrix(tiny, form):
    cfg, _, params, adapters = tiny
    grads = jax.grad(lambda a: step.loss(cfg, TRAIN, params, a, data.collate(MEMORY, TRAIN, TRAIN.shapes[0], RAGGED))[0])(adapters.replace(form=form))
    for name, leaf in jax.tree_util.tree_leaves_with_path((grads.cmp, grads.gen, *([] if form == "mean" else [grads.mem]))):
        assert float(jnp.abs(leaf).max()) > 0, name


def test_fifty_steps_lower_the_loss_and_leave_base_and_constants_alone(tiny):
    cfg, _, params, _ = tiny
    fresh = init_adapters(cfg, MEMORY, params, jax.random.key(0)).replace(center=jnp.ones(32), spread=jnp.full(32, 0.1))
    before = jax.tree.map(np.array, params)
    state, losses = step.init_state(TRAIN, fresh, 50), []
    batch = data.collate(MEMORY, TRAIN, TRAIN.shapes[0], RAGGED)
    for _ in range(50):
        state, metrics = step.apply(TRAIN, 50, step.microstep(cfg, TRAIN, params, state, batch))
        losses.append(float(metrics["nll"]))
    assert losses[-1] < 0.5 * losses[0]
    jax.tree.map(np.testing.assert_array_equal, before, params)
    np.testing.assert_array_equal(state.adapters.center, fresh.center)
    np.testing.assert_array_equal(state.adapters.spread, fresh.spread)


def test_rates_and_decay_are_those_of_the_config(tiny):
    cfg, _, params, adapters = tiny
    train = dataclasses.replace(TRAIN, lr=1e-2, lr_cmp=0.0, warmup=3, schedule="cosine", decay=0.0)
    state, metrics = run(tiny, [RAGGED], train)
    np.testing.assert_array_equal(state.adapters.mem, adapters.mem)
    assert float(jnp.abs(state.adapters.gen.q[1] - adapters.gen.q[1]).max()) == pytest.approx(1e-2 / 4, rel=1e-2)  # a first Adam step is lr
    rate = step.schedule(train, 10)
    assert [float(rate(n)) for n in (0, 3, 10)] == pytest.approx([0.25, 1.0, 0.0], abs=1e-6)
    kept, _ = run(tiny, [], dataclasses.replace(TRAIN, decay=0.1))  # no targets, no gradient: decay alone
    np.testing.assert_array_equal(kept.adapters.mem, adapters.mem)
    np.testing.assert_allclose(kept.adapters.gen.q[0], adapters.gen.q[0] * (1 - 1e-2 * 0.1), rtol=1e-5)


def test_distillation_reads_the_raw_history_with_the_bare_backbone(tiny):
    from rhea_jax.model import forward, logits

    cfg, _, params, adapters = tiny
    train, s = dataclasses.replace(TRAIN, distill=1.0), sample(5, teacher=True)
    batch = data.collate(MEMORY, train, train.shapes[0], [s])
    total, _ = step.loss(cfg, train, params, adapters, batch)
    h, _ = forward(cfg, params, None, params.embed[s.teacher][None], jnp.arange(len(s.teacher))[None])
    q = jax.nn.log_softmax(logits(params, h))[0, len(s.teacher) - 6 : -1]
    latents = step.latents_of(cfg, train, params, adapters, batch)
    p = jax.nn.log_softmax(logits(params, step.hidden(cfg, params, adapters.gen, latents, batch.prompts, batch.target)[:5]))
    assert float(total) == pytest.approx(float(jnp.sum(jnp.exp(q) * (q - p))), rel=1e-4)


def test_the_retrieval_term_is_infonce_over_equation_4(tiny):
    cfg, _, params, adapters = tiny
    train = dataclasses.replace(TRAIN, contrast=1.0)
    some = [dataclasses.replace(sample(i), match=1, windows=(*sample(i).windows[:2], np.arange(5, dtype=np.int32) + i)) for i in range(2)]
    shape = (2, 48, 32, 3, 48)
    batch = data.collate(MEMORY, train, shape, some)
    latents = step.latents_of(cfg, train, params, adapters, batch)
    cosine = lambda a, b: max(float(x @ y / jnp.linalg.norm(x) / jnp.linalg.norm(y)) for x in a for y in b)  # noqa: E731
    want = 0.0
    for mine, others in ((0, (3, 4)), (3, (0, 1))):
        scores = np.array([cosine(latents[mine + 2], latents[w]) for w in (mine + 1, *others)]) / train.temperature
        want += 5 * (np.logaddexp.reduce(scores) - scores[0])
    assert float(step.contrast_sum(latents, batch, train.temperature)) == pytest.approx(want, rel=1e-4)
