"""Adapters to PEFT and back, and merged weights: equal logits in peft and transformers; refusals."""

import dataclasses
import itertools
import json
import subprocess
import sys

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from conftest import files_up_to

from rhea_jax import vocabulary, weights
from rhea_jax.config import Model, RopeScaling
from rhea_jax.interchange import export_peft, import_peft
from rhea_jax.merged import config_of, export_merged, merge
from rhea_jax.model import PROJECTIONS, Adapters, Lora, logits, projection_shape, rope_frequencies, unroll
from train import export

torch = pytest.importorskip("torch", reason="parity needs torch: pip install -e '.[test]'")
peft = pytest.importorskip("peft", reason="parity needs peft: pip install -e '.[test]'")
from test_weights import make, run, theirs, write_gguf  # noqa: E402 - needs torch

TOKENS = np.random.default_rng(0).integers(0, 160, (2, 24))
Q0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def draw(model, rank=2, scale=2.0, seed=0):
    """Adapters of four latents, all random."""
    rng, L, D = np.random.default_rng(seed), model.layers, model.width
    normal = lambda *shape: jnp.asarray(0.1 * rng.standard_normal(shape).astype(np.float32))  # noqa: E731

    def lora():
        sizes = {n: projection_shape(model, n) for n in PROJECTIONS}
        pairs = {n: (normal(L, i, rank), normal(L, rank, o)) for n, (i, o) in sizes.items()}
        return Lora(**pairs, scale=scale)

    return Adapters(lora(), lora(), mem=normal(4, D), center=normal(D), spread=normal(D), form="spread")


def ours(model, params, lora):
    at = jnp.tile(jnp.arange(TOKENS.shape[1], dtype=jnp.int32), (len(TOKENS), 1))
    return np.asarray(logits(params, run(model, params, lora, params.embed[TOKENS], at)[0]))


def close(a, b):
    np.testing.assert_allclose(a, b, atol=1e-4)


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        np.testing.assert_array_equal(x, y)


def made(name, folder):
    """(folder of a random model that transformers wrote, Model, Params, adapters)."""
    make(name, folder)
    model = weights.read_config(folder)
    return folder, model, weights.load(folder, model), draw(model)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return made("mistral_window", tmp_path_factory.mktemp("base"))


@pytest.fixture
def written(tmp_path):
    """(Model, a function that edits and reads a PEFT folder of that model)."""
    model = Model(vocab=16, width=8, mlp=12, layers=2, heads=2, kv_heads=1, head_dim=4)
    export_peft(tmp_path / "peft", model, draw(model), "some/base", {"base": "f" * 16})
    return model, tmp_path / "peft"


def load(folder):
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


# --- PEFT ---


def test_out_and_in_again_changes_no_bit(base, tmp_path):
    folder, model, params, adapters = base
    card = {"base": weights.fingerprint(model, params), "layout": "turns", "weights": "größer"}
    unrolled = adapters.replace(cmp=unroll(adapters.cmp), gen=unroll(adapters.gen))
    for n, form in enumerate((adapters, unrolled)):
        export_peft(tmp_path / str(n), model, form, str(folder), card)
        again, said = import_peft(tmp_path / str(n), model, (card["base"],))
        same(adapters, again)
        assert said == card | {"form": "spread"}


def test_peft_gives_our_logits(base, tmp_path):
    folder, model, params, adapters = base
    export_peft(tmp_path / "out", model, adapters, str(folder), {"base": "any"})
    reference = peft.PeftModel.from_pretrained(load(folder), tmp_path / "out" / "cmp", adapter_name="cmp")
    reference.load_adapter(tmp_path / "out" / "gen", adapter_name="gen")
    seen = [ours(model, params, None)]
    for which in ("cmp", "gen"):
        reference.set_adapter(which)
        seen.append(ours(model, params, getattr(adapters, which)))
        close(seen[-1], theirs(reference, TOKENS)[0])
    assert min(np.abs(a - b).max() for a, b in itertools.combinations(seen, 2)) > 0.1


@pytest.mark.parametrize("asked", [
    dict(r=4, lora_alpha=5, target_modules=["q_proj", "k_proj", "gate_proj"], use_rslora=True,
         layers_to_transform=[0, 2]),
    dict(r=4, lora_alpha=4, target_modules="all-linear"),
    dict(r=2, lora_alpha=1, target_modules=["self_attn.o_proj", "up_proj", "layers.1.mlp.down_proj"],
         exclude_modules=["layers.0.mlp.up_proj"]),
], ids=["rslora", "all", "names"])
def test_folders_of_peft_itself_load_here(base, asked, tmp_path):
    folder, model, params, adapters = base
    torch.manual_seed(1)
    config = peft.LoraConfig(**asked, task_type="CAUSAL_LM", init_lora_weights=False)
    reference = peft.get_peft_model(load(folder), config, adapter_name="cmp").eval()
    reference.add_adapter("gen", config)
    reference.save_pretrained(tmp_path)
    again, card = import_peft(tmp_path, model, ("any",), fresh=adapters)
    assert card == {"form": "spread"} and again.cmp.q[0].shape == (model.layers, model.width, asked["r"])
    same((again.mem, again.center, again.spread), (adapters.mem, adapters.center, adapters.spread))
    for which in ("cmp", "gen"):
        reference.set_adapter(which)
        close(ours(model, params, getattr(again, which)), theirs(reference, TOKENS)[0])
    with pytest.raises(ValueError, match="latents.safetensors is missing"):
        import_peft(tmp_path, model)


@pytest.mark.parametrize("changes, named", [
    ({"use_dora": True}, "gen: use_dora is True, which is not supported"),
    ({"bias": "all", "modules_to_save": ["norm"]}, "gen: bias is 'all'.*; gen: modules_to_save is .'norm'"),
    ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"), ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern"),
    ({"something_new": {"a": 1}}, "something_new is .*, which is not supported"),
    ({"fan_in_fan_out": True}, "fan_in_fan_out is True"), ({"peft_type": "LOHA"}, "'LOHA'; allowed: LORA"),
    ({"r": 0}, "r is 0; allowed: a whole number above 0"),
    ({"r": True}, "r is True"), ({"lora_alpha": "2"}, "lora_alpha is '2'; allowed: a number"),
    ({"lora_alpha": float("nan")}, "lora_alpha is nan"), ({"lora_alpha": 10**400}, "lora_alpha is 1000"),
    ({"use_rslora": "yes"}, "use_rslora is 'yes'"),
    ({"target_modules": ".*proj"}, "target_modules is '.*proj'; allowed: a list"),
    ({"target_modules": ["c_attn"]}, "target_modules is .'c_attn'.; allowed: names of down_proj, gate_proj"),
    ({"target_modules": None}, "target_modules is None"), ({"exclude_modules": "x"}, "modules is 'x'"),
    ({"layers_to_transform": [-1]}, "to_transform is .-1."), ({"layers_pattern": "h"}, "pattern is 'h'"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'; allowed: true"),
    ({"r": 3}, "lora_A.weight has shape .2, 8., not .3, 8.*gen: r is 3; allowed: that of cmp, 2"),
    ({"lora_alpha": 5}, "gen: scale is 2.5; allowed: that of cmp, 2"),
    ({"target_modules": ["q_proj"]}, "gen: extra .*layers.0.mlp.down_proj.lora_A.weight"),
])
def test_what_is_no_plain_lora_is_refused_by_name(changes, named, written):
    model, folder = written
    path = folder / "gen" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=f"adapters .*: .*{named}"):
        import_peft(folder, model)


def test_everything_that_does_not_fit_is_named_at_once(written):
    model, folder = written
    file = folder / "cmp" / "adapter_model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    del tensors[Q0]
    tensors[Q0.replace("_A", "_B")] = np.zeros((3, 3), np.float32)
    tensors["other"] = np.zeros(1, np.float32)
    tensors[Q0.replace("q_proj", "k_proj")] = np.zeros((2, 8), np.int8)
    safetensors.numpy.save_file(tensors, file)
    with pytest.raises(ValueError) as error:
        import_peft(folder, dataclasses.replace(model, width=12, mlp=20), ("0" * 16,))
    for said in (f"cmp: missing {Q0}", "cmp: extra other", "lora_B.weight has shape (3, 3), not (8, 2)",
                 "k_proj.lora_A.weight has type I8; allowed: F64", "mem has shape (4, 8), not (4, 12)",
                 "center has shape", f"made for base {'f' * 16}, this one is {'0' * 16}", "more"):
        assert said in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 8000


def test_broken_files_are_named(written):
    model, folder = written
    card, whole = folder / "latents.safetensors", (folder / "latents.safetensors").read_bytes()
    for text, said in (("{", "its card is no JSON"), ("[]", "its card is a list"),
                       ('{"form": "x"}', "form is 'x'; allowed: append")):
        safetensors.numpy.save_file(safetensors.numpy.load(whole), card, {"card": text})
        with pytest.raises(ValueError, match=said):
            import_peft(folder, model)
    card.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match="latents.safetensors is no whole safetensors file"):
        import_peft(folder, model)
    card.write_bytes(whole)
    file = folder / "gen" / "adapter_model.safetensors"
    file.rename(file.with_name("adapter_model.bin"))
    with pytest.raises(ValueError, match="has no adapter_model.safetensors; a pickle .* is never opened"):
        import_peft(folder, model)
    (folder / "gen" / "adapter_model.bin").unlink()
    with pytest.raises(ValueError, match="adapter_model.safetensors is missing"):
        import_peft(folder, model)
    (folder / "cmp" / "adapter_config.json").unlink()
    with pytest.raises(ValueError, match="adapter_config.json is missing"):
        import_peft(folder, model)


def test_a_folder_is_written_whole_or_not_at_all(written, tmp_path):
    model, folder = written
    before = sorted(p.name for p in tmp_path.iterdir())
    for size in (100, 15000):  # not even the first file fits; all but the last do
        with files_up_to(size), pytest.raises(ValueError, match="new can't be written: "):
            export_peft(tmp_path / "new", model, draw(model), "x", {"base": "y" * 20000})
        assert sorted(p.name for p in tmp_path.iterdir()) == before
    for taken in (folder, folder / "latents.safetensors"):
        with pytest.raises(ValueError, match="is there already; allowed: a new or an empty folder"):
            export_peft(taken, model, draw(model), "x", {})
    with pytest.raises(ValueError, match="x can't be written: File exists"):
        export_peft(folder / "latents.safetensors" / "x", model, draw(model), "x", {})
    (tmp_path / "empty").mkdir()
    export_peft(tmp_path / "empty", model, draw(model), "x", {})
    (tmp_path / "plain.txt").touch()
    modes = {p.stat().st_mode for p in (tmp_path / "empty").rglob("*.*")}
    assert modes == {(tmp_path / "plain.txt").stat().st_mode}


# --- merged ---


@pytest.mark.parametrize("name", ["mistral_window", "qwen2"])
def test_merged_weights_are_base_and_adapter(name, tmp_path):
    folder, model, params, adapters = made(name, tmp_path / "base")
    want = ours(model, params, adapters.gen)
    merged = merge(params, adapters.gen)
    close(ours(model, merged, None), want)
    unrolled = merge(params.replace(layers=unroll(params.layers)), unroll(adapters.gen))
    same(unrolled.layers, unroll(merged.layers))
    half = lambda tree: jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)  # noqa: E731
    assert merge(half(params), adapters.gen).layers.q.dtype == jnp.bfloat16
    (folder / "chat_template.jinja").write_text("{{ bos_token }}")
    for dtype in ("float32", "bfloat16"):
        out = tmp_path / dtype
        export_merged(out, folder, model, params, adapters, {"base": "b"}, dtype)
        assert weights.read_config(out) == model
        assert (out / "chat_template.jinja").read_text() == "{{ bos_token }}"
        assert json.loads((out / "config.json").read_text())["dtype"] == dtype
    close(theirs(load(tmp_path / "float32"), TOKENS)[0], want)
    same(weights.load(tmp_path / "float32", model), merged)
    same(weights.load(tmp_path / "bfloat16", model, "bfloat16"), half(merged))
    kept = safetensors.numpy.load_file(tmp_path / "float32" / "latents.safetensors")
    for n in ("mem", "center", "spread"):
        np.testing.assert_array_equal(kept.pop(n), getattr(adapters, n))
    assert not kept


def test_a_gguf_file_becomes_a_folder(tmp_path):
    make("llama_gqa_tied", tmp_path / "hf")
    model = weights.read_config(tmp_path / "hf")
    params, adapters, file = weights.load(tmp_path / "hf", model), draw(model), tmp_path / "tiny.gguf"
    write_gguf(file, model, params, gguf.GGMLQuantizationType.F32)
    model = weights.read_config(file)
    export_merged(tmp_path / "out", file, model, weights.load(file, model), adapters, {})
    assert weights.read_config(tmp_path / "out") == model
    close(theirs(load(tmp_path / "out"), TOKENS)[0], ours(model, params, adapters.gen))
    (full, *rest, _), (full2, *rest2, ends) = map(vocabulary.read, (file, tmp_path / "out"))
    assert full.to_str() == full2.to_str() and rest == rest2 and ends == [2]


@pytest.mark.parametrize("more", [
    {}, {"window": 7}, {"qkv_bias": True, "tied": True}, {"qkv_bias": True, "window": 7},
    {"qk_norm": True, "head_dim": 16}, {"rope_scaling": RopeScaling(4.0, 1.0, 4.0, 16)}], ids=str)
def test_the_config_of_a_model_reads_back(more, tmp_path):
    import transformers

    plain = dict(vocab=16, width=32, mlp=12, layers=2, heads=4, kv_heads=2, head_dim=8, positions=64)
    model = Model(**plain | more)
    (tmp_path / "config.json").write_text(json.dumps(config_of(model)))
    assert weights.read_config(tmp_path) == model
    there = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    np.testing.assert_allclose(there.model.rotary_emb.inv_freq, rope_frequencies(model), rtol=1e-6)
    wanted = {weights.HUGGING_FACE[n].format(i): s for n, (s, per_layer) in weights.shapes(model).items()
              for i in range(model.layers if per_layer else 1)}
    assert {n: tuple(p.shape) for n, p in there.named_parameters()} == wanted
    windows = {getattr(layer.self_attn, "sliding_window", None) for layer in there.model.layers}
    assert there.config.model_type == "mistral" or windows == {model.window}  # whose layers keep none
    assert getattr(there.config, "sliding_window", None) == model.window


# --- the command ---


def test_the_command_goes_there_and_back(base, tmp_path, capsys):
    folder, model, params, adapters = base
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    mark = weights.fingerprint(model, half)  # as of a run on an accelerator
    weights.save_adapters(tmp_path / "own", adapters, {"base": mark, "layout": "table13"})
    stored, _ = weights.load_adapters(tmp_path / "own", model, (mark,))
    call = lambda *args: export.main(["train.export", "--model", str(folder), *map(str, args)])  # noqa: E731
    assert call("--adapters", tmp_path / "own", "--peft", tmp_path / "peft") == 0
    assert call("--from-peft", tmp_path / "peft", "--out", tmp_path / "back") == 0
    again, card = weights.load_adapters(tmp_path / "back", model, (mark,))
    same(again, stored)
    assert card["layout"] == "table13"
    assert call("--adapters", tmp_path / "own", "--merge", tmp_path / "merged", "--dtype", "float16") == 0
    written = safetensors.numpy.load_file(tmp_path / "merged" / "model.safetensors")
    assert {x.dtype for x in written.values()} == {np.dtype(np.float16)}
    (tmp_path / "peft" / "latents.safetensors").unlink()
    assert call("--from-peft", tmp_path / "peft", "--out", tmp_path / "fresh", "--latents", 3) == 0
    again, card = weights.load_adapters(tmp_path / "fresh", model, weights.fingerprints(model, params))
    assert again.mem.shape == (3, model.width) and card["form"] == "append"
    assert capsys.readouterr().out.splitlines()[-1] == f"wrote {tmp_path / 'fresh'}"
    again = ("--from-peft", tmp_path / "peft", "--out")
    for args, said in ((("--peft", "x"), "--peft needs --adapters and no --out"),
                       (("--from-peft", "x", "--adapters", "y"), "needs --out and no --adapters"),
                       ((*again, "z"), "latents.safetensors is missing"),
                       ((*again, "z", "--latents", 0), "memory.latents is 0; allowed"),
                       ((*again, tmp_path / "own", "--latents", 1), "is there already"),
                       (("--adapters", tmp_path / "peft", "--peft", "z"), "card.json is missing")):
        assert call(*args) == 2
        out = capsys.readouterr()
        assert said in out.err and out.err.startswith("error: ") and out.err.count("\n") == 1 and not out.out


def test_adapters_of_another_base_end_the_command_in_one_line(base, written, tmp_path):
    weights.save_adapters(tmp_path / "own", draw(written[0]), {"base": "f" * 16})
    command = ["--model", base[0], "--adapters", tmp_path / "own", "--merge", tmp_path / "x"]
    done = subprocess.run([sys.executable, "-m", "train.export", *command], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not (tmp_path / "x").exists()
    assert done.stderr.startswith("error: ")
    assert "made for base" in done.stderr and "cmp.q.a has shape" in done.stderr
