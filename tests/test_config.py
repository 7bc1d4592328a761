"""Configs: the paper's defaults, one clear line for a wrong field, every config lowered at full size without weights."""

import importlib
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import configs
from rhea_jax import generate, memory
from rhea_jax.config import Chat, Config, Memory, Model, from_dict, to_dict
from rhea_jax.model import init_adapters, init_cache, init_params, unroll

NAMES = [m.name for m in pkgutil.iter_modules(configs.__path__)]


def get(name):
    return from_dict(importlib.import_module(f"configs.{name}").get_config())


def test_the_defaults_are_those_of_the_paper():
    m = Memory()
    assert (m.latents, m.rank, m.alpha, m.window, m.tau_low, m.tau_high, m.score) == (8, 16, 32.0, 512, 0.5, 0.7, "max")
    assert (m.layout, m.im, m.im_update, m.recent, m.keep_first) == ("table13", "whole", "union", 0, False)
    assert Chat().temperature == 0 and Chat().max_new == 512 and get("mistral7b").model == Model()


def test_the_bridge_to_flags_loses_nothing():
    assert from_dict(to_dict(Config())) == Config()
    values = to_dict(Config())
    values.memory.budget = 300
    values.chat.stop = ("a", "b")
    values.model.window = 4096
    made = from_dict(values)
    assert (made.memory.budget, made.chat.stop, made.model.window) == (300, ("a", "b"), 4096)
    with pytest.raises((AttributeError, KeyError)):
        values.memory.tau = 1


@pytest.mark.parametrize("field, value, said", [
    ("memory.tau_low", 0.9, "memory.tau_low is 0.9; allowed: at most memory.tau_high"),
    ("memory.score", "best", "memory.score is 'best'; allowed: auto, max, mean, concat, bm25"),
    ("memory.window", 9, "memory.window is 9; allowed: 11 to 8192"),
    ("memory.layout", "wide", "memory.layout is .wide.; allowed: auto, table13, turns"),
    ("chat.context", 1000, "chat.context is 1000; allowed: a multiple of chat.chunk"),
    ("chat.top_p", 1.5, "chat.top_p is 1.5; allowed: 0 to 1"),
    ("chat.max_new", 0, "chat.max_new is 0; allowed: at least 1"),
    ("chat.temperature", 1e-40, "allowed: 0 .greedy. or 0.01 to 10"),
    ("chat.stop", ("x", ""), "chat.stop holds an empty text"),
    ("model.kv_heads", 5, "allowed: a multiple of model.kv_heads"),
    ("dtype", "int3", "config.dtype is 'int3'; allowed: auto, float32"),
])
def test_a_wrong_value_is_named_with_what_is_allowed(field, value, said):
    values = to_dict(Config())
    *path, last = field.split(".")
    owner = values
    for name in path:
        owner = owner[name]
    owner[last] = value
    with pytest.raises(ValueError, match=said):
        from_dict(values)


def test_an_unknown_field_and_a_wrong_type_are_named():
    with pytest.raises(ValueError, match="config.wieghts is not a field; allowed: weights, adapters"):
        from_dict({"wieghts": "x"})
    with pytest.raises(ValueError, match="chat.max_new is 'many'; allowed: int"):
        from_dict({"chat": {"max_new": "many"}})
    with pytest.raises(ValueError, match="chat.max_new is True; allowed: int"):
        from_dict({"chat": {"max_new": True}})


@pytest.mark.parametrize("name", [n for n in NAMES if n != "chat"])
def test_every_config_is_lowered_at_full_size(name):
    """compress, prefill and decode from abstract values: shapes fit together without any weight."""
    config = get(name)
    m, mem, chat = config.model, config.memory, config.chat
    assert chat.context <= m.positions
    params = jax.eval_shape(lambda: init_params(m, jax.random.key(0), jnp.bfloat16))
    adapters = jax.eval_shape(lambda p: init_adapters(m, mem, p, jax.random.key(0)), params)
    out = jax.eval_shape(lambda *a: memory.compress(m, *a), params, adapters, np.zeros((2, mem.window), np.int32), np.zeros(2, np.int32))
    assert out.shape == (2, mem.latents, m.width)
    slots = generate.capacities(chat)[-1]
    cache = jax.eval_shape(lambda p: init_cache(m, p.layers, 1, slots, jnp.bfloat16), params)
    x, at = jax.ShapeDtypeStruct((1, chat.chunk, m.width), jnp.bfloat16), np.zeros((1, chat.chunk), np.int32)
    generate.prefill.lower(m, params, adapters.gen, x, at, cache)
    state = jax.eval_shape(lambda c: generate.State(c, jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32), jnp.zeros(1, bool), None,
                                                    jax.random.key(0)), cache)
    generate.decode.lower(m, generate.Sampling(), chat.block, params, adapters.gen, np.zeros(1, np.int32), 8, state)


def test_unrolled_layers_lower_too():
    m = get("tiny").model
    params = init_params(m, jax.random.key(0))
    params = params.replace(layers=unroll(params.layers))
    cache = init_cache(m, params.layers, 1, 64, jnp.float32)
    generate.prefill.lower(m, params, None, jnp.zeros((1, 16, m.width)), np.zeros((1, 16), np.int32), cache)
