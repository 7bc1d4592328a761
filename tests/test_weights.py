"""Weights from files: parity with transformers, refusals by name, adapters out and in."""

import dataclasses
import json
import os

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import nonzero

from rhea_jax import assets, weights
from rhea_jax.config import Memory
from rhea_jax.model import append, forward, init_adapters, init_cache, logits

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
torch = pytest.importorskip("torch", reason="parity needs torch: pip install -e '.[test]'")

SMALL = dict(vocab_size=160, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=256)
FAMILIES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", dict(num_key_value_heads=4, tie_word_embeddings=False)),
    "llama_gqa_tied": ("LlamaForCausalLM", "LlamaConfig", dict(num_key_value_heads=2, tie_word_embeddings=True)),
    "llama3": ("LlamaForCausalLM", "LlamaConfig", dict(num_key_value_heads=2, rope_parameters=dict(
        rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32))),
    "mistral": ("MistralForCausalLM", "MistralConfig", dict(num_key_value_heads=2, sliding_window=None)),
    "mistral_window": ("MistralForCausalLM", "MistralConfig", dict(num_key_value_heads=2, sliding_window=5)),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", dict(num_key_value_heads=2, tie_word_embeddings=True)),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", dict(num_key_value_heads=2, head_dim=12, tie_word_embeddings=False)),
}
run = jax.jit(forward, static_argnums=0)


def make(name, folder, **save):
    import transformers

    kind, config, more = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, config)(**SMALL, **more)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for p_name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.05 + (1.0 if "norm" in p_name else 0.0))
    model.save_pretrained(folder, **save)
    return model


def theirs(model, tokens):
    with torch.inference_mode():
        out = model(torch.tensor(tokens), output_hidden_states=True)
    return out.logits.numpy(), out.hidden_states[-1].numpy()


@pytest.mark.parametrize("name", FAMILIES)
def test_parity_with_transformers(name, tmp_path):
    reference = make(name, tmp_path, **({"max_shard_size": "20KB"} if name == "llama" else {}))
    assert (tmp_path / "model.safetensors.index.json").exists() == (name == "llama")
    model = weights.read_config(tmp_path)
    tokens = np.random.default_rng(0).integers(0, 160, (2, 40))
    want, want_h = theirs(reference, tokens)
    at = jnp.tile(jnp.arange(40, dtype=jnp.int32), (2, 1))
    for unrolled in (False, True):
        params = weights.load(tmp_path, model, unrolled=unrolled)
        h, _ = run(model, params, None, params.embed[tokens], at)
        np.testing.assert_allclose(h, want_h, atol=1e-4)
        np.testing.assert_allclose(logits(params, h), want, atol=1e-4)
        cache, out = init_cache(model, params.layers, 2, 48, jnp.float32), []
        for start in range(0, 40, 8):  # a chunk longer than the window of 5 and shorter than the prompt
            part = slice(start, start + 8)
            h, new = run(model, params, None, params.embed[tokens[:, part]], at[:, part], (cache,))
            cache = append(cache, new, at[:, part], 8)
            out.append(h)
        np.testing.assert_allclose(jnp.concatenate(out, 1), want_h, atol=1e-4)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_gguf_types_give_the_values_that_the_library_writes(kind, tmp_path):
    folder = tmp_path / "hf"
    make("llama_gqa_tied", folder)
    model = weights.read_config(folder)
    plain = weights.load(folder, model)
    file = tmp_path / "tiny.gguf"
    write_gguf(file, model, plain, gguf.GGMLQuantizationType[kind])
    assert dataclasses.replace(weights.read_config(file), norm_eps=model.norm_eps) == model
    loaded = weights.load(file, model)
    bound = {"F32": 1e-7, "F16": 1e-3, "BF16": 1e-2, "Q8_0": 2e-2}.get(kind, 0.2)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(loaded)):
        assert float(jnp.abs(a - b).max() / jnp.abs(a).max()) < bound


def write_gguf(file, model, params, kind):
    """A GGUF of a Llama in llama.cpp's order of q and k."""
    def interleave(w, heads):
        return w.reshape(heads, 2, -1, w.shape[1]).swapaxes(1, 2).reshape(w.shape)

    writer = gguf.GGUFWriter(file, "llama")
    for key, value in (("block_count", model.layers), ("context_length", model.positions), ("embedding_length", model.width),
                       ("feed_forward_length", model.mlp), ("attention.head_count", model.heads), ("attention.head_count_kv", model.kv_heads)):
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", model.norm_eps)
    writer.add_float32("llama.rope.freq_base", model.rope_theta)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(model.vocab)])
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    tensors = {"token_embd.weight": params.embed, "output_norm.weight": params.norm}
    for i in range(model.layers):
        for ours, theirs_ in weights._GGUF.items():
            if ours in ("embed", "norm", "head") or (x := getattr(params.layers, ours)) is None:
                continue
            x = np.asarray(x[i])
            x = x.T if x.ndim == 2 else x
            tensors[theirs_.format(i)] = interleave(x, x.shape[0] // model.head_dim) if ours in "qk" else x
    for name, x in tensors.items():
        x = np.ascontiguousarray(x, np.float32)
        if x.ndim == 1 or (x.shape[-1] % 32 and kind.name.startswith("Q")):
            writer.add_tensor(name, x)
        else:
            writer.add_tensor(name, gguf.quantize(x, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def smollm2():
    try:
        return assets.resolve("smollm2-135m")
    except ValueError as error:
        pytest.skip(f"the default model can't be had: {error}")


def test_parity_of_the_default_model(smollm2):
    import transformers

    reference = transformers.AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32).eval()
    model = weights.read_config(smollm2)
    params = weights.load(smollm2, model, unrolled=False)
    tokens = np.random.default_rng(0).integers(0, 49152, (1, 48))
    want, want_h = theirs(reference, tokens)
    h, _ = run(model, params, None, params.embed[tokens], jnp.arange(48, dtype=jnp.int32)[None])
    np.testing.assert_allclose(logits(params, h), want, atol=1e-4 * max(1, np.abs(want).max()))
    np.testing.assert_allclose(h, want_h, atol=1e-4 * max(1, np.abs(want_h).max()))


def edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("changes, named", [
    ({"model_type": "gemma2"}, "model_type is 'gemma2'"), ({"hidden_act": "gelu"}, "hidden_act 'gelu'"), ({"mlp_bias": True}, "mlp_bias"),
    ({"attention_bias": True}, "attention_bias"), ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn'"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"), ({"partial_rotary_factor": 0.5, "rope_parameters": None}, "partial_rotary_factor"),
])
def test_features_are_refused_by_name(changes, named, tmp_path):
    make("llama", tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(ValueError, match=named):
        weights.read_config(tmp_path)


def test_all_wrong_tensors_are_named_at_once(tmp_path):
    import safetensors.numpy

    make("llama_gqa_tied", tmp_path)
    model = weights.read_config(tmp_path)
    tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"]
    tensors["model.layers.1.self_attn.q_proj.weight"] = np.zeros((3, 32), np.float32)
    tensors["model.layers.0.extra"] = np.zeros(1, np.float32)
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"missing model.norm.weight; extra model.layers.0.extra; model.layers.1.self_attn.q_proj.weight has shape \(3, 32\)"):
        weights.load(tmp_path, model)


def test_broken_files_are_named(tmp_path):
    make("llama_gqa_tied", tmp_path)
    model, file = weights.read_config(tmp_path), tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="no whole safetensors file"):
        weights.load(tmp_path, model)
    file.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="a pickle .pytorch_model.bin. is never opened"):
        weights.load(tmp_path, model)
    for text, said in (("[]", "holds a list"), ("3", "holds a int")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=said):
            weights.read_config(tmp_path)
    make("llama_gqa_tied", tmp_path)
    for field, value in (("num_attention_heads", 0), ("hidden_size", "wide"), ("rope_parameters", 3)):
        make("llama_gqa_tied", tmp_path)
        edit(tmp_path, **{field: value})
        with pytest.raises(ValueError, match="a field of its config has an impossible value"):
            weights.read_config(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": [1]}')
    with pytest.raises(ValueError, match="weight_map is"):
        weights.load(tmp_path, model)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json is no JSON"):
        weights.read_config(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + b"\x03" * 40)
    with pytest.raises(ValueError, match="no whole GGUF file"):
        weights.read_config(tmp_path / "x.gguf")


def test_a_cut_gguf_is_named(smollm2, tmp_path):
    cut = tmp_path / "cut.gguf"
    with smollm2.open("rb") as source:
        cut.write_bytes(source.read(30_000_000))
    with pytest.raises(ValueError, match="no whole GGUF file"):
        weights.load(cut, weights.read_config(cut))


def test_adapters_round_trip_and_refuse_strangers(tiny, tmp_path):
    model, memory, params, adapters = tiny
    base = weights.fingerprint(model, params)
    weights.save_adapters(tmp_path, adapters, {"base": base, "layout": "turns"}, dtype="float32")
    again, card = weights.load_adapters(tmp_path, model, (base,))
    assert card["layout"] == "turns" and card["latents"] == memory.latents and again.gen.scale == adapters.gen.scale
    for a, b in zip(jax.tree.leaves(adapters), jax.tree.leaves(again)):
        np.testing.assert_array_equal(a, b)
    for changed in ({"rank": None}, {"alpha": "two"}, {"latents": 0}):
        (tmp_path / "bad").mkdir(exist_ok=True)
        (tmp_path / "bad/card.json").write_text(json.dumps(card | changed))
        with pytest.raises(ValueError, match="card.json: .* allowed: a number above 0"):
            weights.load_adapters(tmp_path / "bad", model)
    other = dataclasses.replace(model, width=40, head_dim=10)
    with pytest.raises(ValueError, match="made for base .*; mem has shape .*; center has shape .*cmp.q.a has shape"):
        weights.load_adapters(tmp_path, other, ("0" * 16,))


def test_fingerprints_tell_what_latents_depend_on(tiny, tiny_unrolled):
    model, memory, params, adapters = tiny
    base = weights.fingerprint(model, params)
    assert base == weights.fingerprint(model, tiny_unrolled[2])
    assert base != weights.fingerprint(model, jax.tree.map(lambda x: x.astype(jnp.bfloat16), params))
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    assert set(weights.fingerprints(model, params)) & set(weights.fingerprints(model, half))
    assert weights.strangers({"base": base}, weights.fingerprints(model, half))  # the wider values are not to be had again
    assert not weights.strangers({"base": base, "bases": weights.fingerprints(model, params)}, weights.fingerprints(model, half))
    mark = weights.latents_fingerprint(base, adapters, memory)
    fresh = nonzero(init_adapters(model, memory, params, jax.random.key(5)), jax.random.key(6))
    assert mark == weights.latents_fingerprint(base, adapters.replace(gen=fresh.gen), memory)
    assert mark != weights.latents_fingerprint(base, adapters.replace(cmp=fresh.cmp), memory)
    assert mark != weights.latents_fingerprint(base, adapters.replace(center=adapters.center + 1), memory)
    assert mark != weights.latents_fingerprint(base, adapters, dataclasses.replace(memory, window=64))
    assert isinstance(memory, Memory)
