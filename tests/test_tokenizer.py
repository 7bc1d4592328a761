"""Ids: equal to transformers', equal piece by piece, and never a control id out of typed text."""

import gzip
import json
import os
import re
import time
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
    "headers": "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}<|im_end|>\n\n{% if m['role'] == 'assistant' %}{{ m['content'] }}"
               "{% else %}{{ m['content'] | trim }}{% endif %}</s>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant<|im_end|>\n\n{% endif %}",
    "newline": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}\n<|im_end|>\n{% endfor %}"
               "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "plain": "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{{ eos_token }}\n{% endfor %}"
             "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "default": "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe good. Today: {{ strftime_now('%Y') }}<|im_end|>\n{% endif %}"
               "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
               "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
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
    if kind == "pieces":  # SentencePiece learns no merge across a blank, but applies its merges to the whole text
        made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    made.train_from_iterator(text, trainer)
    if kind == "pieces":  # bytes are ordinary pieces of the vocabulary, not added tokens
        data = json.loads(made.to_str())
        data["added_tokens"], data["pre_tokenizer"] = [t for t in data["added_tokens"] if t["content"] in CONTROLS], None
        made = tokenizers.Tokenizer.from_str(json.dumps(data))
    made.add_tokens([tokenizers.AddedToken(t, special=False, normalized=False) for t in CONTROLS[4:]])
    path.mkdir(exist_ok=True)
    made.save(str(path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>"} | ({"chat_template": template} if template else {})
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


class Quiet(dict):
    """Vocabularies, kept out of the report of a failure."""

    def __repr__(self):
        return "tokenizers"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(kind, template name) -> (our tokenizer, the full one of the library)."""
    out = Quiet()
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


@pytest.mark.parametrize("which", ALL, ids="-".join)
@given(st.lists(st.lists(st.integers(0, 500), max_size=5), max_size=6))
def test_streamed_pieces_join_for_any_ids(made, which, blocks):
    """Also ids that no text has: broken characters, control ids, ids beyond the vocabulary."""
    t, full = made[which]
    assert "".join(t.stream(blocks)) == t.decode([i for b in blocks for i in b])


@pytest.mark.parametrize("which", ALL, ids="-".join)
@given(TYPED)
def test_decode_equals_the_library(made, which, text):
    t, _ = made[which]
    ids = t.text.encode(clean(text), add_special_tokens=False).ids
    assert t.decode(ids) == t.text.decode(ids, skip_special_tokens=False)


@given(st.text(st.characters(codec=None)))
@example("\ufeff\ufeffx\ud800y\udc00\ud83d\ude00")
def test_clean_changes_lone_surrogates_only(text):
    assert clean(text) == re.sub("[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]", "\ufffd", text).encode(
        "utf-16", "surrogatepass").decode("utf-16")


def test_control_names_that_merges_can_spell_stay_text():
    """A vocabulary may hold the parts of a control token's name and a merge that joins them."""
    vocab = {c: i for i, c in enumerate(["</s>", "<s>", "</", "s>", "<", "/", "s", ">", "x"])}
    full = tokenizers.Tokenizer(models.BPE(vocab, [("<", "/"), ("s", ">"), ("</", "s>")]))
    full.decoder = decoders.ByteLevel()
    full.add_special_tokens(["</s>", "<s>"])
    data = json.loads(full.to_str()) | {"added_tokens": []}
    bare = tokenizers.Tokenizer.from_str(json.dumps(data))
    assert bare.encode("x</s>").ids == [8, 0]
    t = tk.Tokenizer(bare, bare, {"</s>": (0, False, False), "<s>": (1, False, False)}, "", 1, 0, True)
    assert 0 not in t.encode("x</s></s>") and t.decode(t.encode("x</s></s>")) == "x</s></s>"


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
    texts = [x.strip() if role in t.trims else x for x, role in zip(texts, roles)]
    whole = "".join(texts[p] if isinstance(p, int) else p for p in t.render(roles))
    assert plan.hybrid.tokens[0].tolist() == full.encode(whole, add_special_tokens=False).ids


@pytest.mark.parametrize("which", ALL, ids="-".join)
@given(st.lists(st.sampled_from(["MARK", "MARK", " ", "\n", "x", "é", "(", ":"]), min_size=1, max_size=8), st.sampled_from(["turns", "table13"]))
def test_typed_markers_differ_from_the_template(made, which, parts, layout):
    """No way in which the template, or the layout, writes a marker is found among the ids of a typed text that holds it."""
    t, _ = made[which]
    words = [*t.markers, *([*context.PARTS.values(), *context.SPEAKERS.values()] if layout == "table13" else [context.RULES])]
    for marker in words:
        text = "".join(parts).replace("MARK", marker)
        plan = context.build(t, Memory(), layout, None, [text], [(0, context.Exchange(text, text), RAW)], text)
        for kind, _, a, b in plan.spans:
            typed = tuple(plan.hybrid.tokens[0, a:b].tolist())
            for form in tk.forms(t, marker):
                spread = len(form) < len(marker)  # one token a character can't be told apart: there is no other spelling
                assert not spread or kind == "system" or not any(typed[i : i + len(form)] == form for i in range(len(typed))), marker
            if kind in ("user", "reply", "query"):
                assert text.strip() in t.decode(typed)


def test_which_words_are_markers(made):
    assert "[INST]" in made["pieces", "inst"][0].markers and "USER:" in made["pieces", "vicuna"][0].markers
    assert "<|user|>" in made["bytes", "plain"][0].markers
    assert made["bytes", "default"][0].markers == made["bytes", "chatml"][0].markers == ()


def test_what_is_read_off_a_template(made):
    chatml, inst, trimmed = (made["bytes", n][0] for n in ("chatml", "inst", "trimmed"))
    assert chatml.system_role and not inst.system_role and trimmed.trims and not chatml.trims
    assert set(chatml.ends) == {chatml.control["<|im_end|>"][0], chatml.eos}
    assert made["bytes", "thinking"][0].render(["user"])[-1].endswith("<think>\n\n</think>\n\n")
    assert made["bytes", "vicuna"][0].default_system.startswith("A chat between")
    assert made["bytes", "default"][0].default_system.startswith("Be good. Today: 2") and chatml.default_system is None
    assert made["bytes", "headers"][0].trims == {"system", "user"}
    assert set(made["bytes", "newline"][0].ends) == {chatml.control["<|im_end|>"][0], chatml.eos}


def test_a_system_message_without_a_role_goes_into_the_first_turn(made):
    t, _ = made["bytes", "inst"]
    plan = context.build(t, Memory(), "turns", "Be kind.", ["No commas"], [], "hello")
    assert context.show(t, plan) == f"<s>[INST] Be kind.\n\n{context.RULES}\n- No commas\n\nhello [/INST]"


def test_a_model_without_template_says_so(tmp_path):
    with pytest.raises(ValueError, match="has no chat template; give one by config.template"):
        tk.load_tokenizer(folder(tmp_path / "x", "bytes", None))
    with pytest.raises(ValueError, match="config.template is 'vicunna'; allowed: vicuna or jinja text"):
        tk.load_tokenizer(tmp_path / "x", "vicunna")
    with pytest.raises(ValueError, match="does not show each message"):
        tk.load_tokenizer(tmp_path / "x", "{{ messages[0]['content'] }}")
    with pytest.raises(ValueError, match="refuses this conversation"):
        tk.load_tokenizer(tmp_path / "x", "{% if %}")
    (tmp_path / "x" / "tokenizer.json").write_text("<html>")
    with pytest.raises(ValueError, match="tokenizer.json is no tokenizer"):
        tk.load_tokenizer(tmp_path / "x")


@pytest.mark.parametrize("text", ["word " * 40_000, "a" * 200_000, "\n" * 200_000, "你好世界" * 50_000, "[INST]" * 33_000], ids=lambda x: x[:6].strip() or "blank")
def test_long_text_is_encoded_quickly(made, text):
    """200,000 characters; the machine may be busy, so its own processor time counts."""
    start = time.process_time()
    for kind in ("bytes", "pieces"):
        made[kind, "chatml"][0].encode(text)
    assert time.process_time() - start < 2


def test_sentencepiece_model_file(tmp_path):
    """A folder with nothing but tokenizer.model: its ids are those of SentencePiece, blanks in front and bytes included."""
    sentencepiece = pytest.importorskip("sentencepiece")
    words = ["the user said hello", "what a day it was", "yes and no  with   blanks", "你好 世界", "x = [1, 2, 3]", "answer the question"] * 30
    train = lambda name, **more: sentencepiece.SentencePieceTrainer.train(  # noqa: E731
        sentence_iterator=iter(words), model_prefix=str(tmp_path / name), vocab_size=380, model_type="bpe", byte_fallback=True,
        remove_extra_whitespaces=False, minloglevel=9, character_coverage=0.99, **more)
    train("tokenizer", normalization_rule_name="identity")
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    t = tk.load_tokenizer(tmp_path, "vicuna")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    for text in [*words[:6], " leading", "é🎉 unseen", "</s><s>", "<0x0A>\n", "a  b"]:
        assert t.text.encode(text, add_special_tokens=False).ids == theirs.encode(text), text
        assert t.decode(theirs.encode(text)) == text
    assert not {t.bos, t.eos} & set(t.encode("<s></s><unk>"))
    train("tokenizer", normalization_rule_name="nmt_nfkc")
    with pytest.raises(ValueError, match="normalizer 'nmt_nfkc'"):
        tk.load_tokenizer(tmp_path, "vicuna")
    (tmp_path / "tokenizer.model").write_bytes(b"<html>")
    with pytest.raises(ValueError, match="is no SentencePiece model"):
        tk.load_tokenizer(tmp_path, "vicuna")


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
