"""An adapter folded into the weights, and the result as a model folder that other programs load."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rhea_jax import vocabulary
from rhea_jax.interchange import new_folder, save_latents, save_tensors
from rhea_jax.model import PROJECTIONS
from rhea_jax.weights import HUGGING_FACE, read_json, shapes

_FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
_COPIED = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
           "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
           "generation_config.json")


def merge(params, lora):
    """The backbone with an adapter's products added to its weights, in float32, then rounded to their dtype.

    Both stacked or both unrolled, as for `forward`; the result has the same form.
    """
    if isinstance(params.layers, tuple):
        return params.replace(layers=tuple(map(_fold, params.layers, lora)))
    return params.replace(layers=_fold(params.layers, lora))


@jax.jit
def _fold(layer, lora):
    added = {}
    for name in PROJECTIONS:
        w, a, b = (x.astype(jnp.float32) for x in (getattr(layer, name), *getattr(lora, name)))
        product = jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)  # else accelerators round
        added[name] = (w + lora.scale * product).astype(getattr(layer, name).dtype)
    return layer.replace(**added)


def export_merged(folder, source, model, params, adapters, card, dtype="float32"):
    """Writes a model folder that transformers loads: weights with `gen` in them, and latents.safetensors.

    source: the folder or GGUF file of `params`, which gives config and vocabulary.
    Raises: ValueError when the folder holds something already, or can't be written.
    """
    source, merged = Path(source), merge(params, adapters.gen)
    with new_folder(folder) as new:
        save_tensors(new / "model.safetensors", named(model, merged, dtype), format="pt")
        if source.is_file():
            config = config_of(model) | _write_vocabulary(new, source)
        else:
            config = {n: v for n, v in read_json(source / "config.json").items() if n != "torch_dtype"}
            for name in _COPIED:
                if (source / name).exists():
                    shutil.copyfile(source / name, new / name)
        (new / "config.json").write_text(json.dumps({**config, "dtype": dtype}, indent=1), encoding="utf-8")
        save_latents(new, adapters, card)


def named(model, params, dtype="float32"):
    """Hugging Face's name -> numpy array in the files' order [out, in], of stacked or unrolled params."""
    layers, out = params.layers, {}

    def rows(ours, per_layer):
        if not per_layer:
            return [getattr(params, ours)]
        return [getattr(y, ours) for y in layers] if isinstance(layers, tuple) else getattr(layers, ours)

    for ours, (_, per_layer) in shapes(model).items():
        for i, x in enumerate(map(np.asarray, rows(ours, per_layer))):
            x = x.astype(dtype, copy=False)
            out[HUGGING_FACE[ours].format(i)] = x.T if x.ndim == 2 and ours != "embed" else x
    return out


def config_of(model):
    """The config.json of a Model, where its source has none."""
    plain = "mistral" if model.window else "llama"
    family = "qwen3" if model.qk_norm else "qwen2" if model.qkv_bias else plain
    config = {
        "model_type": family, "architectures": [f"{_FAMILIES[family]}ForCausalLM"], "hidden_act": "silu",
        "vocab_size": model.vocab, "hidden_size": model.width, "intermediate_size": model.mlp,
        "num_hidden_layers": model.layers, "num_attention_heads": model.heads, "head_dim": model.head_dim,
        "num_key_value_heads": model.kv_heads, "max_position_embeddings": model.positions,
        "rope_theta": model.rope_theta, "rms_norm_eps": model.norm_eps, "tie_word_embeddings": model.tied}
    if model.window:
        config["sliding_window"] = model.window
        if family != "mistral":
            config |= {"use_sliding_window": True, "max_window_layers": 0}
    if s := model.rope_scaling:
        config["rope_scaling"] = {
            "rope_type": "llama3", "factor": s.factor, "low_freq_factor": s.low, "high_freq_factor": s.high,
            "original_max_position_embeddings": s.positions}
    return config


def _write_vocabulary(folder, source):
    """Writes a GGUF file's vocabulary as a folder has it; returns the ids that config.json repeats."""
    full, (bos, eos), template, ends = vocabulary.read(source)
    full.save(str(folder / "tokenizer.json"))
    said = {"bos_token": bos, "eos_token": eos, "chat_template": template}
    said = {"tokenizer_class": "PreTrainedTokenizerFast"} | {n: v for n, v in said.items() if v is not None}
    ids = {f"{n}_token_id": full.token_to_id(t) for n, t in (("bos", bos), ("eos", eos)) if t is not None}
    stops = sorted({*ends, *(i for n, i in ids.items() if n == "eos_token_id")})
    for name, values in (("tokenizer_config", said), ("generation_config", ids | {"eos_token_id": stops})):
        text = json.dumps(values, indent=1, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return ids
