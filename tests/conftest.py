"""Shared small things: a tiny backbone of random weights, adapters that are not zero, eight fake CPU devices."""

import contextlib
import json
import os
import resource
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it ignored, and so would our processes
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import pytest
import tokenizers
from hypothesis import HealthCheck, settings

from tokenizers import decoders, pre_tokenizers

from rhea_jax import weights
from rhea_jax.config import Memory, Model
from rhea_jax.interchange import save_tensors
from rhea_jax.merged import named
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


@contextlib.contextmanager
def files_up_to(size):
    """As on a full disk: no write of this process goes beyond this offset of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


CHATML = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def write_model(folder, seed=0, template=CHATML):
    """A model folder that every entry point can load: random Llama weights, one token per byte, ChatML."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    controls = ["<s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    made = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(controls + alphabet)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(controls[:3])
    made.add_tokens([tokenizers.AddedToken(c, special=False, normalized=False) for c in controls[3:]])
    model = Model(vocab=len(controls + alphabet), width=32, mlp=48, layers=2, heads=4, kv_heads=2, head_dim=8, positions=2048, rope_theta=1e4)
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / "model.safetensors", named(model, init_params(model, jax.random.key(seed))))
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "<|im_end|>", "chat_template": template}))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "vocab_size": model.vocab, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 2048, "rope_theta": 1e4,
        "rms_norm_eps": 1e-5}))
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A model folder of random weights."""
    return write_model(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(scope="session")
def adapter_folder(model_folder, tmp_path_factory):
    """Adapters for it, as if trained."""
    folder, model = tmp_path_factory.mktemp("adapters"), weights.read_config(model_folder)
    params = weights.load(model_folder, model)
    memory = Memory(rank=2, alpha=4.0)
    made = nonzero(init_adapters(model, memory, params, jax.random.key(3)), jax.random.key(4))
    weights.save_adapters(folder, made, {"base": weights.fingerprint(model, params), "layout": "turns"})
    return folder
