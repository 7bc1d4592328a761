"""Shared small things: a tiny backbone of random weights, adapters that are not zero, eight fake CPU devices."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, settings

from rhea_jax.config import Memory, Model
from rhea_jax.model import init_adapters, init_params, unroll

jax.config.update("jax_num_cpu_devices", 8)
settings.register_profile("ours", deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
settings.load_profile("ours")

TINY = Model(vocab=96, width=32, mlp=48, layers=3, heads=4, kv_heads=2, head_dim=8, positions=512, rope_theta=1e4)


def nonzero(adapters, key):
    """The same adapters with every b matrix drawn at random, as if they had been trained."""
    leaves, tree = jax.tree.flatten(adapters)
    keys = jax.random.split(key, len(leaves))
    return tree.unflatten(x if jnp.any(x) else 0.05 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys))


@pytest.fixture(scope="session")
def tiny():
    """(Model, Memory, Params, Adapters) small enough for every test."""
    memory = Memory(latents=4, rank=2, alpha=4.0, window=32)
    params = init_params(TINY, jax.random.key(0))
    return TINY, memory, params, nonzero(init_adapters(TINY, memory, params, jax.random.key(1)), jax.random.key(2))


@pytest.fixture(scope="session")
def tiny_unrolled(tiny):
    """The same with unrolled layers."""
    model, memory, params, adapters = tiny
    adapters = adapters.replace(cmp=unroll(adapters.cmp), gen=unroll(adapters.gen))
    return model, memory, params.replace(layers=unroll(params.layers)), adapters
