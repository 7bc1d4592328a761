"""Puts a prompt together on the host: instructions, recalled exchanges and the question become one Hybrid (Eq. 5, Eq. 6)."""

import functools
import re
from dataclasses import dataclass, replace

import numpy as np

from rhea_jax.memory import OMIT, RAW, Hybrid
from rhea_jax.text import clean
from rhea_jax.tokenizer import covering, forms

RULES = "Rules for every reply:"  # heads the instructional memory in the system role (layout turns)
PARTS = {"rule": "Instruction:", "memory": "Background:", "query": "Question:"}  # Table 13
SPEAKERS = {"user": "User:", "reply": "Assistant:"}
UNTOLD = "…"  # stands for a reply that is not recalled


@dataclass(frozen=True)
class Exchange:
    """What was said, and which rows of the bank hold the reply's windows."""

    user: str
    reply: str
    first: int = 0
    windows: int = 0


@dataclass(frozen=True)
class Typed:
    """A text that somebody typed, and what it is in the prompt."""

    text: str
    kind: str  # system, rule, user, reply or query
    index: int = 0


@dataclass(frozen=True)
class Slots:
    """Latents of an exchange: rows of the flattened bank."""

    rows: tuple[int, ...]
    index: int = 0


@dataclass(frozen=True)
class Plan:
    """A prompt: its Hybrid [1, T], and the span of each typed or latent part (kind, index, start, stop)."""

    hybrid: Hybrid
    spans: tuple[tuple[str, int, int, int], ...]

    def __len__(self):
        return self.hybrid.tokens.shape[1]


def build(tokenizer, memory, layout, system, rules, recalled, query, readable=True, system_latents=None):
    """One prompt: instructional memory, recalled exchanges in the order given, the question.

    recalled: (number, Exchange, level) each, level RAW or LATENT; a LATENT exchange whose latents can't be read
    (`readable` False, or no windows) is told by its user text alone.  system_latents: an Exchange whose windows stand for
    the system message in layout table13.  The length is Eq. 6 plus the separators between the spans.
    Raises: ValueError when the model's template refuses the conversation.
    Paper: section 3.5, Eq. 5.
    """
    recalled = [(n, e, level, readable and e.windows > 0) for n, e, level in recalled if level != OMIT]
    rules, query = [Typed(r, "rule", i) for i, r in enumerate(rules)], Typed(query, "query")
    system = None if system_latents else system or tokenizer.default_system
    messages = (_turns if layout == "turns" else _table13)(memory, system, rules, recalled, query)
    if system_latents:
        messages[0] = ("user", [_slots(system_latents, -1, memory), "\n", *messages[0][1]])
    if messages[0][0] == "system" and not tokenizer.system_role:
        messages = [("user", [*messages[0][1], "\n\n", *messages[1][1]]), *messages[2:]]
    pieces = []
    for piece in tokenizer.render(tuple(role for role, _ in messages)):
        if isinstance(piece, int):
            role, content = messages[piece]
            pieces += _trimmed(content) if role in tokenizer.trims else content
        else:
            pieces += tokenizer.split(piece)
    words = (*tokenizer.markers, *((*PARTS.values(), *SPEAKERS.values()) if layout == "table13" else (RULES,)))
    return _encode(tokenizer, [p for p in pieces if p != ""], words)


def _trimmed(content):
    """A message's content as a template leaves it that strips the blanks around messages."""
    content = list(content)
    for order, strip in ((1, str.lstrip), (-1, str.rstrip)):
        for i in range(len(content))[::order]:
            piece = content[i]
            if isinstance(piece, Slots):
                break
            text = strip(clean(piece.text) if isinstance(piece, Typed) else piece)
            content[i] = replace(piece, text=text) if isinstance(piece, Typed) else text
            if text:
                break
    return content


def _slots(exchange, number, memory):
    M = memory.latents
    return Slots(tuple(range(exchange.first * M, (exchange.first + exchange.windows) * M)), number)


def _reply(number, exchange, level, readable, memory):
    if level == RAW:
        return Typed(exchange.reply, "reply", number)
    return _slots(exchange, number, memory) if readable else UNTOLD


def _turns(memory, system, rules, recalled, query):
    """Each exchange as a user and an assistant turn of the model's own template; rules in the system role."""
    head = [Typed(system, "system")] if system else []
    if rules:
        head += ["\n\n"] * bool(head) + [RULES]
        for rule in rules:
            head += ["\n- ", rule]
    messages = [("system", head)] if head else []
    for n, e, level, readable in recalled:
        messages += [("user", [Typed(e.user, "user", n)]), ("assistant", [_reply(n, e, level, readable, memory)])]
    return [*messages, ("user", [query])]


def _table13(memory, system, rules, recalled, query):
    """All in one user turn, as in Table 13; a part with nothing in it keeps its label, as there."""
    body = [PARTS["rule"]]
    for rule in rules:
        body += [" ", rule]
    body += ["\n", PARTS["memory"]]
    for n, e, level, readable in recalled:
        body += ["\n", SPEAKERS["user"], " ", Typed(e.user, "user", n), "\n", SPEAKERS["reply"], " ",
                 _reply(n, e, level, readable, memory)]
    body += ["\n", PARTS["query"], " ", query]
    return [*([("system", [Typed(system, "system")])] if system else []), ("user", body)]


def _encode(tokenizer, pieces, markers):
    """Ids of literal str, Typed and Slots pieces and of control ids (int): runs between controls and slots as one string.

    One string, because a BPE may join a literal with the text behind it; so the ids are those of the whole rendered prompt.
    """
    tokens, latent, spans, run = [], [], [], []

    def close():
        if run:
            ids, found = _encode_run(tokenizer, run, markers, at_start=not tokens)
            spans.extend((kind, index, a + len(tokens), b + len(tokens)) for kind, index, a, b in found)
            tokens.extend(ids)
            latent.extend([-1] * len(ids))
            run.clear()

    for piece in pieces:
        if isinstance(piece, int):
            close()
            tokens.append(piece)
            latent.append(-1)
        elif isinstance(piece, Slots):
            close()
            spans.append(("latent", piece.index, len(tokens), len(tokens) + len(piece.rows)))
            tokens.extend([0] * len(piece.rows))
            latent.extend(piece.rows)
        else:
            run.append(piece)
    close()
    shape = lambda x, dtype: np.asarray([x], dtype)  # noqa: E731
    hybrid = Hybrid(shape(tokens, np.int32), shape(latent, np.int32), np.ones((1, len(tokens)), bool))
    return Plan(hybrid, tuple(spans))


def _encode_run(tokenizer, run, markers, at_start):
    """Ids of literals and typed texts side by side, and the span of each typed one."""
    whole, places, typed = "", [], []
    for piece in run:
        text = piece
        if isinstance(piece, Typed):
            text = clean(piece.text)
            places.append((piece.kind, piece.index, len(whole), len(whole) + len(text)))
            typed += [(len(whole) + at, marker) for marker in markers for at in _found(text, marker)]
        whole += text
    blank, cuts = at_start or not tokenizer.first_only, {}
    while True:
        ids, starts, ends = tokenizer.spell(whole, cuts.values(), blank)
        # A typed marker is cut at its first letter, at its second, ... until its ids are none of the marker's own.
        alike = [(at, marker) for at, marker in typed if cuts.get(at, at) - at < len(marker) - 1
                 and tuple(ids[covering(starts, ends, at, at + len(marker))]) in forms(tokenizer, marker)]
        if not alike:
            break
        cuts.update((at, cuts.get(at, at) + 1) for at, _ in alike)
    # A token that joins a separator's blank with the first word belongs to the word.
    spans = [(kind, index, covering(starts, ends, a, b)) for kind, index, a, b in places]
    return ids, [(kind, index, span.start, span.stop) for kind, index, span in spans]


def _found(text, marker):
    at = text.find(marker)
    while at >= 0:
        yield at
        at = text.find(marker, at + 1)


@functools.lru_cache(maxsize=1 << 16)
def cost(tokenizer, memory, layout, exchange, level, readable=True):
    """Tokens that one exchange adds to a prompt at a level: its part of Eq. 6 and its separators.

    Exact where control tokens stand around a message; else a token at an edge may join its neighbour, one a text.
    """
    if level == OMIT:
        return 0
    one = build(tokenizer, memory, layout, None, (), [(0, exchange, level)], "q", readable)
    return len(one) - _alone(tokenizer, memory, layout)


@functools.lru_cache(maxsize=64)
def _alone(tokenizer, memory, layout):
    return len(build(tokenizer, memory, layout, None, (), (), "q"))


def windows(tokenizer, memory, text, size=None):
    """The compressor's windows of a text: tokens [W, size] int32, and how many of each are text and frame, [W] int32.

    A window is a frame id, up to P - 2 - M ids of the text, a frame id; a longer text takes several, none is cut.
    """
    room, ids = memory.window - memory.latents - 2, tokenizer.encode(text)
    parts = [ids[i : i + room] for i in range(0, len(ids), room)] or [[]]
    opening = tokenizer.eos if tokenizer.bos is None else tokenizer.bos
    size = size or memory.window
    rows = [[opening, *part, tokenizer.eos] for part in parts]
    tokens = np.array([row + [0] * (size - len(row)) for row in rows], np.int32)
    return tokens, np.array([len(row) for row in rows], np.int32)


def show(tokenizer, plan):
    """The exact prompt as one can read it, control tokens included, latents as ⟨exchange 3: 8 latents⟩.

    A text that only looks like a control token has a backslash before it.
    """
    names = {i: name for name, (i, _, _) in tokenizer.control.items()}
    tokens, out, run = plan.hybrid.tokens[0].tolist(), [], []
    latents = {a: (index, b) for kind, index, a, b in plan.spans if kind == "latent"}
    typed = functools.partial(re.sub, "|".join(map(re.escape, tokenizer.control)) or "(?!)", r"\\\g<0>")
    at = 0
    while at <= len(tokens):
        if at == len(tokens) or at in latents or tokens[at] in names:
            out.append(typed(tokenizer.decode(run)))
            run = []
        if at in latents:
            index, end = latents[at]
            out.append(f"⟨{'system' if index < 0 else f'exchange {index}'}: {end - at} latents⟩")
            at = end
            continue
        if at < len(tokens):
            out.append(names[tokens[at]]) if tokens[at] in names else run.append(tokens[at])
        at += 1
    return "".join(out)
