"""Adapters in PEFT's form, out and in: folders `cmp` and `gen`, and beside them a file of our own."""

import contextlib
import json
import math
import os
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from rhea_jax.config import FORMS
from rhea_jax.model import PROJECTIONS, Adapters, Lora, projection_shape, stack
from rhea_jax.weights import HUGGING_FACE, header, read_json, strangers

_ADAPTERS = ("cmp", "gen")
_KEPT = ("mem", "center", "spread")
_BESIDE = "latents.safetensors"  # holds _KEPT, and our card among its metadata
_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
_READ = ("peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules",
         "layers_to_transform", "init_lora_weights")
# These change nothing that a forward pass computes; a field of neither list that is set is refused by name.
_INERT = ("auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "megatron_core",
          "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type")
_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")  # others begin by changing the base
_FLOATS = ("F64", "F32", "F16", "BF16")
_SHOWN = 40  # mismatches in one error


@contextlib.contextmanager
def new_folder(folder):
    """A folder to write into, which gets its name in one step when the block ends well, and else is gone.

    Raises: ValueError when something has that name already, or it can't be written.
    """
    folder = Path(folder)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder} is there already; allowed: a new or an empty folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
            made = Path(scratch) / "made"  # not the scratch folder itself, which nobody else may read
            made.mkdir()
            yield made
            os.replace(made, folder)
    except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(f"{folder} can't be written: {getattr(error, 'strerror', None) or error}") from None


def save_tensors(file, tensors, **metadata):
    """Writes numpy arrays as a safetensors file, whatever their order in memory."""
    file.touch()
    mode = file.stat().st_mode
    safetensors.numpy.save_file({n: np.ascontiguousarray(x) for n, x in tensors.items()}, file, metadata)
    file.chmod(mode)  # the library leaves a file that only its owner may read


def save_latents(folder, adapters, card):
    """Writes what neither PEFT nor merged weights have a place for: mem, center, spread, form and card."""
    kept = {n: np.asarray(getattr(adapters, n), np.float32) for n in _KEPT}
    card = json.dumps({**card, "form": adapters.form}, ensure_ascii=False)
    save_tensors(folder / _BESIDE, kept, card=card)


def export_peft(folder, model, adapters, base_name, card):
    """Writes folder/cmp and folder/gen as PEFT loads them, and our own things beside, all in float32.

    base_name: where PEFT finds the base.  card: that of save_adapters.
    Raises: ValueError when the folder holds something already, or can't be written.
    """
    modules = _modules(model)
    with new_folder(folder) as new:
        for which in _ADAPTERS:
            lora = stack(getattr(adapters, which))
            pairs = {n: [np.asarray(x, np.float32) for x in getattr(lora, n)] for n in PROJECTIONS}
            rank = pairs["q"][0].shape[-1]
            alpha = lora.scale * rank
            config = {
                "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base_name,
                "r": rank, "lora_alpha": int(alpha) if alpha == int(alpha) else alpha, "lora_dropout": 0.0,
                "target_modules": sorted({m.rpartition(".")[2] for m in modules.values()}), "bias": "none",
                "inference_mode": True}
            (new / which).mkdir()
            save_tensors(new / which / _TENSORS, {_tensor(m, part): x[i].T for (n, i), m in modules.items()
                                                  for part, x in zip("AB", pairs[n])}, format="pt")
            text = json.dumps(config, indent=1, ensure_ascii=False)
            (new / which / _CONFIG).write_text(text, encoding="utf-8")
        save_latents(new, adapters, card)


def _modules(model):
    """(projection, layer) -> the module's name in transformers."""
    return {(n, i): HUGGING_FACE[n].format(i).removesuffix(".weight")
            for n in PROJECTIONS for i in range(model.layers)}


def _tensor(module, part):
    return f"base_model.model.{module}.lora_{part}.weight"


def import_peft(folder, model, bases=(), fresh=None):
    """(Adapters in float32 and stacked form, card) of folder/cmp and folder/gen, written by us or by PEFT.

    Of a module that PEFT did not adapt both matrices are zero.
    bases: the base's fingerprints; () skips their comparison.
    fresh: adapters that lend mem, center and spread where PEFT alone wrote; None: there must be ours.
    Raises: ValueError naming at once all that does not fit the model, and all that we do not compute.
    """
    folder, problems = Path(folder), []
    beside = folder / _BESIDE if fresh is None or (folder / _BESIDE).exists() else None
    card = _read_card(beside, model, bases, problems) if beside else {"form": fresh.form}
    found = {which: _read_config(folder / which, model, problems) for which in _ADAPTERS}
    if all(found.values()):
        pairs = zip(("r", "scale"), *(found[which][:2] for which in _ADAPTERS))
        problems += [f"gen: {what} is {gen:g}; allowed: that of cmp, {cmp:g}"
                     for what, cmp, gen in pairs if cmp != gen]
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ValueError(f"adapters {folder}: {'; '.join(problems[:_SHOWN])}{more}")
    if beside:
        with safetensors.safe_open(beside, framework="numpy") as opened:
            kept = {n: jnp.asarray(opened.get_tensor(n).astype(np.float32)) for n in _KEPT}
    else:
        kept = {n: getattr(fresh, n) for n in _KEPT}
    loras = {which: _read_lora(folder / which / _TENSORS, model, *found[which]) for which in _ADAPTERS}
    return Adapters(**loras, **kept, form=card.get("form", "append")), card


def _read_config(folder, model, problems):
    """(rank, scale, {(projection, layer): module} adapted) of a PEFT folder; None for a bad config.

    Raises: ValueError for a file that is missing, broken or a pickle; what does not fit goes to `problems`.
    """
    config, file = read_json(folder / _CONFIG), folder / _TENSORS
    pickles = sorted(p.name for s in ("bin", "pt", "pth") for p in folder.glob(f"*.{s}"))
    if pickles and not file.exists():
        raise ValueError(f"{folder} has no {_TENSORS}; a pickle ({pickles[0]}) is never opened")
    if faults := _faults(config):
        problems += [f"{folder.name}: {f}" for f in faults]
        return None
    rank, alpha, layers = config["r"], config["lora_alpha"], config.get("layers_to_transform")
    layers = range(model.layers) if layers is None else [layers] if type(layers) is int else layers
    within = lambda module, names: any(f".{module}".endswith(f".{n}") for n in names or ())  # noqa: E731
    adapted = {at: m for at, m in _modules(model).items() if at[1] in layers
               and within(m, config["target_modules"]) and not within(m, config.get("exclude_modules"))}
    if not adapted:
        problems.append(f"{folder.name}: target_modules is {config['target_modules']}; allowed: names of "
                        f"{', '.join(sorted({m.rpartition('.')[2] for m in _modules(model).values()}))}")
    wanted = {}
    for (name, _), module in adapted.items():
        i, o = projection_shape(model, name)
        wanted |= {_tensor(module, "A"): (rank, i), _tensor(module, "B"): (o, rank)}
    _compare(file, wanted, f"{folder.name}: ", problems)
    return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank), adapted


def _faults(config):
    """What a PEFT config asks for that is no plain LoRA, and fields without a sensible value."""
    names = lambda x: isinstance(x, list) and all(isinstance(n, str) for n in x)  # noqa: E731
    whole = lambda x: type(x) is int and x >= 0  # noqa: E731
    alpha, layers = config.get("lora_alpha"), config.get("layers_to_transform")
    checks = {
        "peft_type": ("LORA", config.get("peft_type") == "LORA"),
        "r": ("a whole number above 0", whole(config.get("r")) and config["r"] > 0),
        "lora_alpha": ("a number above 0", type(alpha) in (int, float) and 0 < alpha < 1e9),
        "use_rslora": ("true or false", config.get("use_rslora") in (None, True, False)),
        "target_modules": ("a list of names", names(config.get("target_modules"))),
        "exclude_modules": ("a list of names", names(config.get("exclude_modules") or [])),
        "layers_to_transform": ("numbers of layers", layers is None or whole(layers)
                                or isinstance(layers, list) and all(map(whole, layers))),
        "init_lora_weights": ("true, false, gaussian, orthogonal, eva",
                              config.get("init_lora_weights") in _STARTS),
    }
    faults = [f"{n} is {config.get(n)!r}; allowed: {allowed}"
              for n, (allowed, fits) in checks.items() if not fits]
    others = {n: v for n, v in config.items() if n not in _READ and n not in _INERT}
    return faults + [f"{n} is {v!r}, which is not supported" for n, v in others.items() if v and v != "none"]


def _compare(file, wanted, where, problems):
    """Names what a safetensors file lacks, has too much, or has in another shape than {tensor: shape}."""
    found = header(file)
    with safetensors.safe_open(file, framework="numpy") as opened:
        kinds = {n: opened.get_slice(n).get_dtype() for n in found}
    problems += [f"{where}missing {n}" for n in wanted if n not in found]
    problems += [f"{where}extra {n}" for n in sorted(set(found) - set(wanted))]
    problems += [f"{where}{n} has shape {found[n]}, not {s}"
                 for n, s in wanted.items() if n in found and found[n] != s]
    problems += [f"{where}{n} has type {kinds[n]}; allowed: {', '.join(_FLOATS)}"
                 for n in wanted if n in found and kinds[n] not in _FLOATS]


def _read_card(file, model, bases, problems):
    """The card of what stands beside PEFT's folders, whose tensors and base are compared."""
    shape, D = header(file).get("mem"), model.width
    wanted = {"mem": (shape and shape[0] or 1, D), "center": (D,), "spread": (D,)}
    _compare(file, wanted, "", problems)
    with safetensors.safe_open(file, framework="numpy") as opened:
        text = (opened.metadata() or {}).get("card", "{}")
    try:
        card = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: its card is no JSON: {error}") from None
    if not isinstance(card, dict):
        raise ValueError(f"{file}: its card is a {type(card).__name__}; allowed: an object")
    if (form := card.get("form", "append")) not in FORMS:
        problems.append(f"form is {form!r}; allowed: {', '.join(FORMS)}")
    problems += strangers(card, bases)
    return card


def _read_lora(file, model, rank, scale, adapted):
    """The Lora of a PEFT file that was compared before, stacked."""
    pairs, L = {}, model.layers
    for name in PROJECTIONS:
        i, o = projection_shape(model, name)
        pairs[name] = np.zeros((L, i, rank), np.float32), np.zeros((L, rank, o), np.float32)
    with safetensors.safe_open(file, framework="numpy") as opened:
        for (name, layer), module in adapted.items():
            for part, x in zip("AB", pairs[name]):
                x[layer] = opened.get_tensor(_tensor(module, part)).astype(np.float32).T
    return Lora(**{n: tuple(map(jnp.asarray, pair)) for n, pair in pairs.items()}, scale=scale)
