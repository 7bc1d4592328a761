"""Ids: equal to transformers', equal piece by piece, and never a control id out of typed text."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from rhea_jax import assets, context
from rhea_jax import tokenizer as tk
from rhea_jax.config import Memory
from rhea_jax.memory import RAW
from rhea_jax.text import clean

TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
              "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "trimmed": "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}<|im_end|>\n\n{{ m['content'] | trim }}</s>{% endfor %}"
               "{% if add_generation_prompt %}<|im_start|>assistant<|im_end|>\n\n{% endif %}",
    "inst": "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
            "{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
            "{% else %}{{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}",
    "thinking": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'].split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
                "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
    "vicuna": None,
}
CONTROLS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]


def folder(path, kind, template):
    """A model folder with a small tokenizer: `bytes` is byte-level BPE, `pieces` is SentencePiece-like."""
    text = ["the user said [INST] hello [/INST] and USER: what ASSISTANT: yes Question: now 你好 世界 é 🎉"] * 40
    if kind == "bytes":
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=CONTROLS[:4])
    else:
        made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>", *CONTROLS[:4], *(f"<0x{i:02X}>" for i in range(256))])
    made.train_from_iterator(text, trainer)
    if kind == "pieces":  # bytes are ordinary pieces of the vocabulary, not added tokens
        data = json.loads(made.to_str())
        data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] in CONTROLS]
        made = tokenizers.Tokenizer.from_str(json.dumps(data))
    made.add_tokens([tokenizers.AddedToken(t, special=False, normalized=False) for t in CONTROLS[4:]])
    path.mkdir(exist_ok=True)
    made.save(str(path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>"} | ({"chat_template": template} if template else {})
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(kind, template name) -> (our tokenizer, the full one of the library)."""
    out = {}
    for kind in ("bytes", "pieces"):
        for name, template in TEMPLATES.items():
            path = folder(tmp_path_factory.mktemp("t") / f"{kind}-{name}", kind, template)
            out[kind, name] = tk.load_tokenizer(path, "vicuna" if template is None else None), tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    return out


ALL = [(kind, name) for kind in ("bytes", "pieces") for name in TEMPLATES]
PIECES = st.one_of(st.sampled_from([*CONTROLS, "[INST]", "[/INST]", "USER:", "ASSISTANT:", "<|im_", "end|>", " ", "\n", "<", "</s", "s>", "\u200b", "🎉", "é"]), st.text(max_size=6))
TYPED = st.lists(PIECES, max_size=8).map("".join)


@pytest.mark.parametrize("which", ALL, ids="-".join)
@given(TYPED)
@example("<|im_end|>")
@example("<s></s><think>\ud800")
def test_typed_text_never_becomes_a_control_id(made, which, text):
    t, _ = made[which]
    control = {i for i, _, _ in t.control.values()}
    assert not control & set(t.encode(text))
    plan = context.build(t, Memory(), "turns", text, [text], [(0, context.Exchange(text, text), RAW)], text)
    for kind, _, a, b in plan.spans:
        assert not control & set(plan.hybrid.tokens[0, a:b].tolist()), kind
    assert (plan.hybrid.latent == -1).all()


@pytest.mark.parametrize("which", ALL, ids="-".join)
@given(TYPED, st.lists(st.integers(1, 5), min_size=1))
def test_streamed_pieces_join_to_the_decoded_whole(made, which, text, sizes):
    t, _ = made[which]
    ids, blocks = t.encode(text) + [t.eos] + t.encode("é🎉"), []
    while ids:
        size = sizes[len(blocks) % len(sizes)]
        blocks, ids = [*blocks, ids[:size]], ids[size:]
    assert "".join(t.stream(blocks)) == t.decode([i for b in blocks for i in b])


@pytest.mark.parametrize("which", [w for w in ALL if w[0] == "bytes"], ids="-".join)
@given(TYPED)
def test_decode_is_the_inverse_of_encode(made, which, text):
    t, _ = made[which]
    assert t.decode(t.encode(text)) == clean(text)


ORDINARY = st.lists(st.sampled_from(["hello", "the user", "你好", "é", "12", "\n", " ", "yes.", "🎉", "x=1"]), max_size=6).map("".join)


@pytest.mark.parametrize("which", ALL, ids="-".join)
@given(st.lists(ORDINARY, min_size=3, max_size=3))
def test_piece_by_piece_equals_the_whole_prompt(made, which, texts):
    t, full = made[which]
    check_whole(t, full, texts)


def check_whole(t, full, texts):
    plan = context.build(t, Memory(), "turns", None, [], [(0, context.Exchange(texts[0], texts[1]), RAW)], texts[2])
    roles = ["user", "assistant", "user"]
    if t.default_system:  # the template inserts it by itself
        pass
    texts = [x.strip() for x in texts] if t.trims else texts
    whole = "".join(texts[p] if isinstance(p, int) else p for p in t.render(roles))
    assert plan.hybrid.tokens[0].tolist() == full.encode(whole, add_special_tokens=False).ids


@pytest.mark.parametrize("which", ALL, ids="-".join)
def test_typed_markers_differ_from_the_template(made, which):
    t, _ = made[which]
    for marker in t.markers:
        template = t.bare.encode(marker, add_special_tokens=False).ids
        plan = context.build(t, Memory(), "turns", None, [], [], f"say {marker} again")
        (_, _, a, b), = [s for s in plan.spans if s[0] == "query"]
        typed = plan.hybrid.tokens[0, a:b].tolist()
        assert not any(typed[i : i + len(template)] == template for i in range(len(typed))), marker
    assert {"inst": "[INST]", "vicuna": "USER:"}.get(which[1], "") in ("", *t.markers)


def test_what_is_read_off_a_template(made):
    chatml, inst, trimmed = (made["bytes", n][0] for n in ("chatml", "inst", "trimmed"))
    assert chatml.system_role and not inst.system_role and trimmed.trims and not chatml.trims
    assert set(chatml.ends) == {chatml.control["<|im_end|>"][0], chatml.eos}
    assert made["bytes", "thinking"][0].render(["user"])[-1].endswith("<think>\n\n</think>\n\n")
    assert made["bytes", "vicuna"][0].default_system.startswith("A chat between")


def test_a_system_message_without_a_role_goes_into_the_first_turn(made):
    t, _ = made["bytes", "inst"]
    plan = context.build(t, Memory(), "turns", "Be kind.", ["No commas"], [], "hello")
    assert context.show(t, plan) == f"<s>[INST] Be kind.\n\n{context.RULES}\n- No commas\n\nhello [/INST]"


def test_a_model_without_template_says_so(tmp_path):
    with pytest.raises(ValueError, match="has no chat template; give one by config.template"):
        tk.load_tokenizer(folder(tmp_path / "x", "bytes", None))
    (tmp_path / "x" / "tokenizer.json").write_text("<html>")
    with pytest.raises(ValueError, match="tokenizer.json is no tokenizer"):
        tk.load_tokenizer(tmp_path / "x")


def test_long_text_is_encoded_quickly(made):
    import time

    start = time.perf_counter()
    made["bytes", "chatml"][0].encode("word " * 40_000)
    assert time.perf_counter() - start < 5


@pytest.fixture(scope="module")
def real():
    """Our tokenizer of the default model, transformers' as it loads it, and transformers' with the published splitting."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    pytest.importorskip("torch")
    import transformers

    try:
        path = assets.resolve("smollm2-135m")
    except ValueError as error:
        pytest.skip(f"the default model can't be had: {error}")
    plain, published = (transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name) for _ in range(2))
    # transformers' GGUF loader gives every byte-level model GPT-2's splitting; the published tokenizer.json of SmolLM2 (and
    # llama.cpp's `smollm`) besides takes each digit by itself.
    published.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return tk.load_tokenizer(path), plain, published


@pytest.fixture(scope="module")
def texts():
    """1,000 real texts: English, Chinese, code, emoji."""
    data = Path(os.environ.get("RHEA_DATA", ""))
    if not (data / "sharegpt/valid.jsonl.gz").exists():
        pytest.skip("needs the benchmark data: set RHEA_DATA")
    out = []
    with gzip.open(data / "sharegpt/valid.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            out += [m["value"] for m in json.loads(line)["conversations"]]
    for name in ("character_bench/memory_persona_zh.jsonl", "mt_bench/mt_bench.jsonl"):
        for line in (data / name).read_text(encoding="utf-8").splitlines():
            out += [x for turn in json.loads(line)["conv"] for x in (turn["user"], turn["assistant"]) if x]
    rng = np.random.default_rng(0)
    return [out[i] for i in rng.permutation(len(out))[:1000]]


def test_real_ids_equal_those_of_transformers(real, texts):
    ours, plain, published = real
    assert len(texts) == 1000 and all(any(a <= c <= b for t in texts for c in t) for a, b in ("一鿿", "☀🫶", "az")) and any("```" in t for t in texts)
    for text in texts:
        ids = ours.encode(text)
        assert ids == published(text, add_special_tokens=False)["input_ids"], text[:80]
        if not any(c.isnumeric() for c in text):
            assert ids == plain(text, add_special_tokens=False)["input_ids"], text[:80]


def test_real_prompts_equal_the_whole_prompt(real, texts):
    """No exceptions: every run between control tokens is encoded as one string."""
    ours, _, theirs = real
    for i in range(0, 999, 3):
        messages = [{"role": r, "content": c} for r, c in zip(("user", "assistant", "user"), texts[i : i + 3])]
        whole = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        plan = context.build(ours, Memory(), "turns", None, [], [(0, context.Exchange(texts[i], texts[i + 1]), RAW)], texts[i + 2])
        assert plan.hybrid.tokens[0].tolist() == theirs(whole, add_special_tokens=False)["input_ids"]
