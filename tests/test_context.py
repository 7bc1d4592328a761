"""Hybrid prompts: the length of Eq. 6, nothing dropped, latents in their recorded slots, exact costs."""

import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_tokenizer import ALL, ORDINARY, TYPED, made  # noqa: F401 - a fixture

from rhea_jax import context
from rhea_jax.config import Memory
from rhea_jax.context import Exchange
from rhea_jax.memory import LATENT, OMIT, RAW
from rhea_jax.text import clean

MEMORY = Memory(latents=4, window=32)
BYTES = [w for w in ALL if w[0] == "bytes"]
LEVELS = st.sampled_from([OMIT, LATENT, RAW])
LAYOUTS = st.sampled_from(["turns", "table13"])


@st.composite
def conversations(draw, text=TYPED):
    """(system, rules, recalled, query): a bank of windows, some exchanges without any, some not recalled at all."""
    recalled, first = [], 0
    for n in range(draw(st.integers(0, 4))):
        windows = draw(st.integers(0, 3))
        recalled.append((n * 3, Exchange(draw(text), draw(text), first, windows), draw(LEVELS)))
        first += windows
    return draw(st.none() | text), draw(st.lists(text, max_size=3)), recalled, draw(text)


@pytest.mark.parametrize("which", ALL, ids="-".join)
@given(conversations(), LAYOUTS, st.booleans())
@example((None, [], [(0, Exchange("", "Hello, traveller."), RAW)], "  "), "turns", True)
def test_length_is_equation_6_and_separators(made, which, talk, layout, readable):  # noqa: F811
    t, (system, rules, recalled, query) = made[which][0], talk
    plan = context.build(t, MEMORY, layout, system, rules, recalled, query, readable)
    tokens, latent, valid = (x[0] for x in (plan.hybrid.tokens, plan.hybrid.latent, plan.hybrid.valid))
    assert len(plan) == len(tokens) == len(latent) and valid.all() and tokens.dtype == latent.dtype == np.int32

    # Every part is there, in order, once.
    wanted = [("system", 0)] * bool(system or t.default_system) + [("rule", i) for i in range(len(rules))]
    for n, e, level in recalled:
        told = [("reply", n)] * (level == RAW) + [("latent", n)] * (level == LATENT and readable and e.windows > 0)
        wanted += [("user", n), *told] if level else []
    assert [(kind, i) for kind, i, _, _ in plan.spans] == [*wanted, ("query", 0)]

    # Latents stand where the spans say, whole and in order, and nowhere else: no typed text makes one.
    exchange = {n: e for n, e, _ in recalled}
    slots = [range(a, b) for kind, _, a, b in plan.spans if kind == "latent"]
    rows = [np.arange(4 * exchange[n].first, 4 * (exchange[n].first + exchange[n].windows)) for kind, n, _, _ in plan.spans if kind == "latent"]
    assert np.flatnonzero(latent >= 0).tolist() == [s for span in slots for s in span]
    assert latent[latent >= 0].tolist() == [r for span in rows for r in span.tolist()] and not tokens[latent >= 0].any()

    # Eq. 6: what the spans hold, and between them only what a prompt of empty texts has.
    said = {"system": lambda _: system or t.default_system, "rule": rules.__getitem__, "query": lambda _: query,
            "user": lambda n: exchange[n].user, "reply": lambda n: exchange[n].reply}
    for (_, _, _, end), (_, _, start, _) in zip(plan.spans, plan.spans[1:]):
        assert end <= start + 1  # one token may join the end of a text with the start of the next only where nothing is between
    control = {i for i, _, _ in t.control.values()}
    for kind, i, a, b in plan.spans:
        if kind != "latent":
            assert not control & set(tokens[a:b].tolist())
            text = clean(said[kind](i))
            text = text if t.byte_level else text.replace("▁", " ")  # to SentencePiece a typed ▁ is a blank
            assert text.strip() in t.decode(tokens[a:b])
    covered = sum(b - a for _, _, a, b in plan.spans)
    bare = context.build(t, MEMORY, layout, system and "s", ["r"] * len(rules),
                         [(n, Exchange("u", "b", e.first, e.windows), level) for n, e, level in recalled], "q", readable)
    separators = len(bare) - sum(b - a for _, _, a, b in bare.spans)
    texts = sum(kind != "latent" for kind, *_ in plan.spans)
    assert separators - 2 * texts <= len(plan) - covered <= separators + 2 * texts  # a blank may join its neighbour or leave it


@pytest.mark.parametrize("which", BYTES, ids="-".join)
@given(conversations(ORDINARY))
def test_equals_the_rendered_prompt_around_the_latents(made, which, talk):  # noqa: F811
    """The slow version: the whole prompt as strings between latents, encoded by the tokenizer with all its added tokens."""
    (t, full), (system, rules, recalled, query) = made[which], talk
    recalled = [(n, e, level) for n, e, level in recalled if level == RAW or (level == LATENT and e.windows)]
    head = system or t.default_system or ""
    if rules:
        head += "\n\n" * bool(head) + context.RULES + "".join(f"\n- {r}" for r in rules)
    said = [("user", e.user) if k == 0 else ("assistant", e.reply if level == RAW else f"\x00{i}\x00")
            for i, (_, e, level) in enumerate(recalled) for k in (0, 1)] + [("user", query)]
    if head and t.system_role:
        said = [("system", head), *said]
    elif head:
        said = [("user", f"{head}\n\n{said[0][1]}"), *said[1:]]
    said = [(role, text.strip() if role in t.trims else text) for role, text in said]
    whole = "".join(said[p][1] if isinstance(p, int) else p for p in t.render([role for role, _ in said]))
    expected = []
    for k, part in enumerate(whole.split("\x00")):
        if k % 2:
            e = recalled[int(part)][1]
            expected += [-1 - r for r in range(4 * e.first, 4 * (e.first + e.windows))]
        else:
            expected += full.encode(part, add_special_tokens=False).ids
    plan = context.build(t, MEMORY, "turns", system, rules, recalled, query)
    assert np.where(plan.hybrid.latent < 0, plan.hybrid.tokens, -1 - plan.hybrid.latent)[0].tolist() == expected


@pytest.mark.parametrize("which", [w for w in BYTES if w[1] in ("chatml", "thinking", "trimmed", "headers", "newline", "default")], ids="-".join)
@given(conversations(), LAYOUTS, st.booleans())
def test_costs_add_up_to_the_prompt(made, which, talk, layout, readable):  # noqa: F811
    """Exact where control tokens stand around every message."""
    t, (system, rules, recalled, query) = made[which][0], talk
    bare = len(context.build(t, MEMORY, layout, system, rules, [], query, readable))
    costs = sum(context.cost(t, MEMORY, layout, e, level, readable) for _, e, level in recalled)
    slack = 2 * len(recalled) if layout == "table13" else 0  # there a text ends in ordinary text, and may join it
    assert abs(len(context.build(t, MEMORY, layout, system, rules, recalled, query, readable)) - bare - costs) <= slack


def test_cost_of_ten_thousand_exchanges(made):  # noqa: F811
    """A second turn finds every cost; the processor's time counts."""
    t = made["bytes", "chatml"][0]
    exchanges = [Exchange(f"question {i}", f"answer {i} " * 5, i, 1) for i in range(10_000)]
    for e in exchanges:
        context.cost(t, MEMORY, "turns", e, LATENT)
    start = time.process_time()
    for e in exchanges:
        context.cost(t, MEMORY, "turns", Exchange(e.user, e.reply, e.first, e.windows), LATENT)
    assert time.process_time() - start < 0.5


def test_layouts_read_as_promised(made):  # noqa: F811
    t = made["bytes", "chatml"][0]
    recalled = [(1, Exchange("", "Hello."), RAW), (4, Exchange("And?", "So.", 2, 2), LATENT), (5, Exchange("x", "y", 4, 1), OMIT),
                (6, Exchange("Untold", "gone"), LATENT)]
    assert context.show(t, context.build(t, MEMORY, "turns", "Be kind.", ["No commas.", "Rhyme."], recalled, "Now?")) == (
        "<|im_start|>system\nBe kind.\n\nRules for every reply:\n- No commas.\n- Rhyme.<|im_end|>\n"
        "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n⟨exchange 4: 8 latents⟩<|im_end|>\n"
        "<|im_start|>user\nUntold<|im_end|>\n<|im_start|>assistant\n…<|im_end|>\n"
        "<|im_start|>user\nNow?<|im_end|>\n<|im_start|>assistant\n")
    assert context.show(t, context.build(t, MEMORY, "table13", None, ["No commas.", "Rhyme."], recalled, "Now?")) == (
        "<|im_start|>user\nInstruction: No commas. Rhyme.\nBackground:\nUser: \nAssistant: Hello.\n"
        "User: And?\nAssistant: ⟨exchange 4: 8 latents⟩\nUser: Untold\nAssistant: …\nQuestion: Now?<|im_end|>\n"
        "<|im_start|>assistant\n")
    assert context.show(t, context.build(t, MEMORY, "table13", "Be kind.", [], [], "Now?", system_latents=Exchange("", "", 7, 1))) == (
        "<|im_start|>user\n⟨system: 4 latents⟩\nInstruction:\nBackground:\nQuestion: Now?<|im_end|>\n<|im_start|>assistant\n")


def test_blanks_go_only_where_the_template_strips_them(made):  # noqa: F811
    t = made["bytes", "headers"][0]
    plan = context.build(t, MEMORY, "turns", None, [], [(0, Exchange(" u ", " b\n"), RAW)], "\tq ")
    assert context.show(t, plan).count("\n\nu</s>") == 1 and "\n\n b\n</s>" in context.show(t, plan) and "\n\nq</s>" in context.show(t, plan)
    assert "User:  u \nAssistant:  b\n\nQuestion: \tq</s>" in context.show(t, context.build(t, MEMORY, "table13", None, [], [(0, Exchange(" u ", " b\n"), RAW)], "\tq "))


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@given(TYPED)
def test_windows_hold_all_of_a_text(made, kind, text):  # noqa: F811
    t = made[kind, "chatml"][0]
    tokens, length = context.windows(t, MEMORY, text)
    assert tokens.shape == (len(length), MEMORY.window) and tokens.dtype == length.dtype == np.int32
    assert (tokens[:, 0] == t.bos).all() and all(row[n - 1] == t.eos and not row[n:].any() for row, n in zip(tokens, length))
    assert [i for row, n in zip(tokens, length) for i in row[1 : n - 1]] == t.encode(text)
    assert length.max() + MEMORY.latents <= MEMORY.window and (length[:-1] == MEMORY.window - MEMORY.latents).all()
    if not text:
        assert length.tolist() == [2]
