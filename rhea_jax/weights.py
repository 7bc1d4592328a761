"""Weights into Params: one name table a format, families told apart by their config; adapters in and out."""

import functools
import hashlib
import json
import os
import struct
from pathlib import Path

import gguf
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from rhea_jax.config import FORMS, Model, OutOfRange, RopeScaling
from rhea_jax.model import PROJECTIONS, Adapters, Layer, Lora, Params, projection_shape
from rhea_jax.startup import native_dtype

# Our name -> the name in the file, with {} for the layer; the two formats differ in nothing else but q and k (see _halves).
HUGGING_FACE = {
    "embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight",
    "attn_norm": "model.layers.{}.input_layernorm.weight", "mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
    **{n: "model.layers.{}.self_attn." + n + "_proj.weight" for n in "qkvo"},
    **{n + "_bias": "model.layers.{}.self_attn." + n + "_proj.bias" for n in "qkv"},
    **{n + "_norm": "model.layers.{}.self_attn." + n + "_norm.weight" for n in "qk"},
    **{n: "model.layers.{}.mlp." + n + "_proj.weight" for n in ("gate", "up", "down")},
}
_GGUF = {
    "embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight",
    "attn_norm": "blk.{}.attn_norm.weight", "mlp_norm": "blk.{}.ffn_norm.weight",
    **{n: "blk.{}.attn_" + n + ".weight" for n in "qkv"}, "o": "blk.{}.attn_output.weight",
    **{n + "_bias": "blk.{}.attn_" + n + ".bias" for n in "qkv"},
    **{n + "_norm": "blk.{}.attn_" + n + "_norm.weight" for n in "qk"},
    **{n: "blk.{}.ffn_" + n + ".weight" for n in ("gate", "up", "down")},
}
_FAMILIES = {"llama": {}, "mistral": {}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True}}
_IGNORED = ("rotary_emb.inv_freq", "rope_freqs.weight")  # recomputed from the config


# --- the shape of a backbone -------------------------------------------------------------------------------------------


def read_config(path):
    """The Model that a folder's config.json or a GGUF file's metadata describes.

    Raises: ValueError naming the file and every feature that we do not compute; nothing is ignored.
    """
    try:
        return _config_of_gguf(path) if path.is_file() else _config_of_folder(path)
    except (TypeError, AttributeError, ZeroDivisionError, OverflowError, OutOfRange) as error:
        raise ValueError(f"{path}: a field of its config has an impossible value: {error}") from None


def _refuse(where, features):
    bad = [f"{name} {value!r}" for name, value in features.items() if value not in (None, False, 0, 0.0)]
    if bad:
        raise ValueError(f"{where}: not supported: {', '.join(bad)}; allowed: Llama, Mistral, Qwen2 and Qwen3 as published")


def read_json(path):
    """A JSON file's object.  Raises: ValueError naming the file when it is missing or broken."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}; allowed: an object")
    return value


def _config_of_folder(folder):
    path = folder / "config.json"
    c = read_json(path)
    family = c.get("model_type")
    if family not in _FAMILIES:
        raise ValueError(f"{path}: model_type is {family!r}; allowed: {', '.join(_FAMILIES)}")
    rope = c.get("rope_parameters") or {}
    scaling = c.get("rope_scaling") or rope
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    windowed = c.get("use_sliding_window", family == "mistral") and c.get("sliding_window")
    layer_types = set(c.get("layer_types") or [])
    biased = c.get("attention_bias", False) if family != "qwen2" else False
    _refuse(path, {
        "hidden_act": None if c.get("hidden_act", "silu") == "silu" else c["hidden_act"],
        "rope_type": None if kind in ("default", "llama3") else kind,
        "partial_rotary_factor": None if rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 1.0)) == 1
        else rope.get("partial_rotary_factor", c.get("partial_rotary_factor")),
        "mlp_bias": c.get("mlp_bias"), "attention_bias": biased, "quantization_config": c.get("quantization_config"),
        "layer_types": sorted(layer_types) if len(layer_types) > 1 or (layer_types == {"sliding_attention"} and not windowed) else None,
        "max_window_layers": c.get("max_window_layers") if windowed and family != "mistral" and c.get("max_window_layers") else None,
        "final_logit_softcapping": c.get("final_logit_softcapping"), "logit_scale": c.get("logit_scale"),
    })
    try:
        heads, width = c["num_attention_heads"], c["hidden_size"]
        return Model(
            vocab=c["vocab_size"], width=width, mlp=c["intermediate_size"], layers=c["num_hidden_layers"], heads=heads,
            kv_heads=c.get("num_key_value_heads") or heads, head_dim=c.get("head_dim") or width // heads,
            positions=c["max_position_embeddings"], rope_theta=float(rope.get("rope_theta") or c.get("rope_theta") or 1e4),
            rope_scaling=_llama3(path, scaling) if kind == "llama3" else None, window=windowed or None,
            norm_eps=c.get("rms_norm_eps", 1e-6), tied=bool(c.get("tie_word_embeddings", False)), **_FAMILIES[family])
    except KeyError as error:
        raise ValueError(f"{path}: field {error} is missing") from None


def _llama3(path, s):
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    if missing := [n for n in names if n not in s]:
        raise ValueError(f"{path}: rope_scaling lacks {', '.join(missing)}")
    return RopeScaling(*(float(s[n]) for n in names[:3]), int(s[names[3]]))


class _Reader(gguf.GGUFReader):
    """Reads through a plain view of the mapped file: slices of a numpy.memmap cost five times as much, once per string."""

    @property
    def data(self):
        return self._view

    @data.setter
    def data(self, mapped):
        self._view = mapped.view(np.ndarray)


@functools.lru_cache(maxsize=2)
def open_gguf(path):
    """A GGUF file's reader, opened once for config, weights and tokenizer.  Raises: ValueError for a broken file."""
    try:
        return _Reader(path)
    except (ValueError, KeyError, IndexError, OSError, struct.error, UnicodeDecodeError, OverflowError) as error:
        size = os.path.getsize(path) if os.path.exists(path) else "no"
        raise ValueError(f"{path} ({size} bytes) is no whole GGUF file: {str(error).splitlines()[0]}") from None


def field(reader, name, default=None):
    """A metadata value of a GGUF file."""
    found = reader.get_field(name)
    return default if found is None else found.contents()


def _config_of_gguf(path):
    reader = open_gguf(path)
    family = field(reader, "general.architecture")
    if family not in _FAMILIES:
        raise ValueError(f"{path}: general.architecture is {family!r}; allowed: {', '.join(_FAMILIES)}")
    names = {t.name for t in reader.tensors}
    get = lambda key, default=None: field(reader, f"{family}.{key}", default)  # noqa: E731
    scaling = get("rope.scaling.type")
    _refuse(path, {"expert_count": get("expert_count"), "rope.scaling.type": None if scaling == "none" else scaling,
                   "rope_freqs.weight (Llama-3 scaling in a GGUF)": "rope_freqs.weight" in names,
                   "attention biases": family == "llama" and "blk.0.attn_q.bias" in names})
    try:
        width, heads = get("embedding_length"), get("attention.head_count")
        return Model(
            vocab=len(reader.get_field("tokenizer.ggml.tokens").data), width=width, mlp=get("feed_forward_length"),
            layers=get("block_count"), heads=heads, kv_heads=get("attention.head_count_kv", heads),
            head_dim=get("attention.key_length", width // heads), positions=get("context_length"),
            rope_theta=float(get("rope.freq_base", 1e4)), window=get("attention.sliding_window"),
            norm_eps=float(f"{get('attention.layer_norm_rms_epsilon'):.6g}"), tied=_GGUF["head"] not in names,
            **_FAMILIES[family])
    except (TypeError, AttributeError):
        raise ValueError(f"{path}: its metadata lack a field of {family}'s shape") from None


# --- tensors -----------------------------------------------------------------------------------------------------------


def shapes(model):
    """Our name -> (shape in the file's order [out, in], whether it repeats per layer)."""
    D, H = model.width, model.head_dim
    out = {"embed": ((model.vocab, D), False), "norm": ((D,), False), "attn_norm": ((D,), True), "mlp_norm": ((D,), True)}
    if not model.tied:
        out["head"] = ((model.vocab, D), False)
    for name in PROJECTIONS:
        out[name] = (projection_shape(model, name)[::-1], True)
    if model.qkv_bias:
        out |= {n + "_bias": ((projection_shape(model, n)[1],), True) for n in "qkv"}
    if model.qk_norm:
        out |= {n + "_norm": ((H,), True) for n in "qk"}
    return out


def load(path, model, dtype="float32", unrolled=False):
    """Params of a folder with safetensors or of a GGUF file, one tensor at a time.

    Raises: ValueError naming all missing, extra and misshapen tensors at once, or a file that is broken or a pickle.
    """
    table, found, read = _gguf_tensors(path, model) if path.is_file() else _folder_tensors(path)
    wanted = shapes(model)
    names = {(ours, i): table[ours].format(i) for ours, (_, per_layer) in wanted.items()
             for i in (range(model.layers) if per_layer else [None])}
    problems = [f"missing {n}" for n in names.values() if n not in found]
    extra = set(found) - set(names.values()) - ({table["head"]} if model.tied else set())
    problems += [f"extra {n}" for n in sorted(extra) if not n.endswith(_IGNORED)]
    problems += [f"{n} has shape {found[n]}, not {wanted[ours][0]}" for (ours, _), n in names.items()
                 if n in found and tuple(found[n]) != wanted[ours][0]]
    if problems:
        shown = "; ".join(problems[:40]) + (f"; and {len(problems) - 40} more" if len(problems) > 40 else "")
        raise ValueError(f"{path}: {shown}")

    def tensor(ours, i=None):
        x = read(names[ours, i])
        return np.ascontiguousarray(x.T if x.ndim == 2 and ours != "embed" else x).astype(dtype, copy=False)

    fields = [n for n, (_, per_layer) in wanted.items() if per_layer]
    if unrolled:
        layers = tuple(Layer(**{n: jnp.asarray(tensor(n, i)) for n in fields}) for i in range(model.layers))
    else:
        stacked = {}
        for n in fields:
            first = tensor(n, 0)
            out = np.empty((model.layers, *first.shape), first.dtype)
            for i in range(model.layers):
                out[i] = first if i == 0 else tensor(n, i)
            stacked[n] = jnp.asarray(out)
        layers = Layer(**stacked)
    return Params(embed=jnp.asarray(tensor("embed")), layers=layers, norm=jnp.asarray(tensor("norm")),
                  head=None if model.tied else jnp.asarray(tensor("head")))


def load_here(path, model, dtype="auto"):
    """The same as this device runs it best: its native dtype where that is auto, layers unrolled on a CPU."""
    return load(path, model, native_dtype() if dtype == "auto" else dtype, unrolled=jax.default_backend() == "cpu")


def _folder_tensors(folder):
    """(name table, tensor -> shape, reader) of a folder with model.safetensors, whole or in shards."""
    index = folder / "model.safetensors.index.json"
    files = [folder / "model.safetensors"]
    if index.exists():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(f, str) for f in shards.values()):
            raise ValueError(f"{index}: weight_map is {str(shards)[:60]!r}; allowed: an object of tensor -> file")
        files = sorted({folder / f for f in shards.values()})
    if not index.exists() and not files[0].exists():
        pickles = sorted(p.name for s in ("bin", "pth", "pt") for p in folder.glob(f"*.{s}"))
        raise ValueError(f"{folder} has no model.safetensors" + (f"; a pickle ({pickles[0]}) is never opened" if pickles else ""))
    found, where = {}, {}
    for file in files:
        for name, shape in header(file).items():
            found[name], where[name] = shape, file
    opened = {}

    def read(name):
        file = where[name]
        if file not in opened:
            opened[file] = safetensors.safe_open(file, framework="numpy")
        return opened[file].get_tensor(name)

    return HUGGING_FACE, found, read


def header(file):
    """Tensor -> shape of one safetensors file.  Raises: ValueError naming the file when it is missing or cut."""
    try:
        with safetensors.safe_open(file, framework="numpy") as opened:
            return {n: tuple(opened.get_slice(n).get_shape()) for n in opened.keys()}
    except (FileNotFoundError, OSError):
        raise ValueError(f"{file} is missing") from None
    except safetensors.SafetensorError as error:
        raise ValueError(f"{file} is no whole safetensors file: {error}") from None


def _gguf_tensors(path, model):
    """The same of a GGUF file, whose tensors are dequantized to float32 as they are read."""
    reader = open_gguf(path)
    tensors = {t.name: t for t in reader.tensors}
    found = {n: tuple(int(x) for x in reversed(t.shape)) for n, t in tensors.items()}
    permuted = {t.format(i) for t in (_GGUF["q"], _GGUF["k"]) for i in range(model.layers)} \
        if field(reader, "general.architecture") == "llama" else set()

    def read(name):
        t = tensors[name]
        try:
            x = gguf.dequantize(t.data, t.tensor_type).reshape(found[name])
        except NotImplementedError:
            raise ValueError(f"{path}: {name} has type {t.tensor_type.name}, which can't be read") from None
        return _halves(x, x.shape[0] // model.head_dim) if name in permuted else x

    return _GGUF, found, read


def _halves(w, heads):
    """Undoes llama.cpp's order of q and k, which interleaves the two halves that rope rotates."""
    return w.reshape(heads, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


# --- adapters ----------------------------------------------------------------------------------------------------------

_FORMAT = 1


def fingerprint(model, params):
    """16 hex digits that name a base and the values it was loaded with, equal for stacked and unrolled layers."""
    digest = hashlib.sha256(repr(model).encode())
    first = params.layers[0] if isinstance(params.layers, tuple) else params.layers
    for x in (params.embed[:64], params.norm, first.q if first.q.ndim == 2 else first.q[0]):
        digest.update(np.asarray(x).astype(np.float32).tobytes())
        digest.update(str(x.dtype).encode())
    return digest.hexdigest()[:16]


def fingerprints(model, params):
    """What the base may be called: its fingerprint as it is, then as it would be in each narrower dtype."""
    names = [params.embed.dtype.name] + ["bfloat16", "float16"] * (params.embed.dtype == np.float32)
    return tuple(fingerprint(model, jax.tree.map(lambda x: x.astype(n), params)) for n in names)


def strangers(card, bases):
    """What is wrong, a list of one line or none, when a card's adapters were made for none of the fingerprints `bases`."""
    known = {card.get("base"), *card.get("bases", ())}
    return [f"made for base {card.get('base')}, this one is {bases[0]}"] if bases and not known & set(bases) else []


def latents_fingerprint(base, adapters, memory):
    """What stored latents depend on: base, cmp, mem, standardisation, M and window, but not gen."""
    digest = hashlib.sha256(f"{base} {memory.latents} {memory.window} {adapters.form}".encode())
    cmp = adapters.cmp[0] if isinstance(adapters.cmp, tuple) else adapters.cmp
    for pair in (getattr(cmp, n) for n in PROJECTIONS):
        for x in pair:
            digest.update(np.asarray(x if x.ndim == 2 else x[0], np.float32).tobytes())
    for x in (adapters.mem, adapters.center, adapters.spread):
        digest.update(np.asarray(x, np.float32).tobytes())
    return digest.hexdigest()[:16]


def save_adapters(folder, adapters, card, dtype="bfloat16"):
    """Writes adapters.safetensors and card.json, each in one step; `adapters` in stacked form.

    card: plain values; must name `base` (fingerprint; others of it in `bases`), and gets format, rank, alpha, latents and dtype from the adapters.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {n: np.asarray(getattr(adapters, n), np.float32) for n in ("mem", "center", "spread")}
    for which in ("cmp", "gen"):
        for name in PROJECTIONS:
            for part, x in zip("ab", getattr(getattr(adapters, which), name)):
                tensors[f"{which}.{name}.{part}"] = np.asarray(x).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    rank = adapters.cmp.q[0].shape[-1]
    card = {**card, "format": _FORMAT, "rank": rank, "alpha": adapters.cmp.scale * rank, "latents": len(adapters.mem), "form": adapters.form, "dtype": dtype}
    for name, data in (("adapters.safetensors", safetensors.numpy.save(tensors)),
                       ("card.json", json.dumps(card, indent=1, ensure_ascii=False).encode())):
        part = folder / f"{name}.part"
        part.write_bytes(data)
        os.replace(part, folder / name)


def load_adapters(folder, model, bases=()):
    """(Adapters in float32 and stacked form, card) of a folder.

    Raises: ValueError naming every mismatch with the model at once; no `bases` (fingerprints) skips their comparison.
    """
    folder = Path(folder)
    card, file = read_json(folder / "card.json"), folder / "adapters.safetensors"
    if card.get("format") != _FORMAT:
        raise ValueError(f"{folder / 'card.json'}: format is {card.get('format')!r}; allowed: {_FORMAT}")
    for name in ("rank", "latents", "alpha"):
        if type(card.get(name)) not in (int, float) or card[name] <= 0:
            raise ValueError(f"{folder / 'card.json'}: {name} is {card.get(name)!r}; allowed: a number above 0")
    if (form := card.get("form", "append")) not in FORMS:
        raise ValueError(f"{folder / 'card.json'}: form is {form!r}; allowed: {', '.join(FORMS)}")
    found, problems = header(file), strangers(card, bases)
    rank, latents = card["rank"], card["latents"]
    wanted = {"mem": (latents, model.width), "center": (model.width,), "spread": (model.width,)}
    for which in ("cmp", "gen"):
        for name in PROJECTIONS:
            i, o = projection_shape(model, name)
            wanted |= {f"{which}.{name}.a": (model.layers, i, rank), f"{which}.{name}.b": (model.layers, rank, o)}
    problems += [f"{n} is missing" for n in wanted if n not in found] + [f"extra {n}" for n in sorted(set(found) - set(wanted))]
    problems += [f"{n} has shape {found[n]}, not {s}" for n, s in wanted.items() if n in found and found[n] != s]
    if problems:
        raise ValueError(f"adapters {folder}: {'; '.join(problems)}")
    with safetensors.safe_open(file, framework="numpy") as opened:
        get = lambda n: jnp.asarray(opened.get_tensor(n).astype(np.float32))  # noqa: E731
        loras = {w: Lora(**{n: (get(f"{w}.{n}.a"), get(f"{w}.{n}.b")) for n in PROJECTIONS}, scale=card["alpha"] / rank)
                 for w in ("cmp", "gen")}
        return Adapters(**loras, **{n: get(n) for n in ("mem", "center", "spread")}, form=form), card
