"""What makes a session fit for training: the paper's four stages and the overlap with benchmarks."""

import itertools
import json
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import regex

from train import overlap, sources

STAGES = ("selection", "classifier", "density", "horizon", "overlap", "limit")


@dataclass(frozen=True)
class Rules:
    """What the stages keep. Defaults: the paper's, A.3, where it gives a number."""

    min_tokens: int = 10  # of an exchange, user and reply together
    min_turns: int = 3
    max_turns: int = 15
    code_lines: int = 10  # of one fenced block, or outside of any in one message
    code_share: float = 0.2  # of a session's characters, in fenced blocks
    table_rows: int = 5
    tags: int = 5
    formulas: int = 10
    run: int = 150  # ASCII characters without a blank, addresses aside
    letters: float = 0.75  # share of letters and blanks
    dedup: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one session: kept with its line, or left out at a stage for a reason."""

    stage: str | None
    reason: str | None
    parts: dict[str, int]  # what was left out of the session itself -> how many
    line: str = ""
    tokens: int = 0
    sketch: np.ndarray | None = field(default=None, compare=False)


_FENCE = regex.compile(r"^[ \t]*(```|~~~)[^\n]*\n(.*?)(?:^[ \t]*\1|\Z)", regex.DOTALL | regex.MULTILINE)
_URL = regex.compile(r"https?://[!-~]+")
_CODE = regex.compile(
    r"^[ \t]*(?:"
    r"[)}\]]+[;,]?|[^\n]*(?:\{|\}|[)\]}'\"]\)?;|/>|->)|[\w.$\\\[\]'\"]+ ?(?:[-+*/|]?=|:=|<-) ?\S[^\n]*"
    r"|(?:def|class|function|func|fn|struct|interface) \w[^\n]*[({:]"
    r"|(?:const|let|var) [\w{\[][^\n=]*=|(?:public|private|static) \w[^\n]*[=({;]"
    r"|import [\w.{*][\w.,{}* ]*(?:from ['\"][^\n]*)?;?|from [\w.]+ import [^\n]*"
    r"|(?:return|elif|else|except|try|#include|using namespace)\b[^\n]*[:;>)]"
    r"|</?[\w-]+(?: [^\n]*)?>|[\w.\\]+\([^\n]*\)|Copy code)[ \t]*$",
    regex.MULTILINE)
_TABLE = regex.compile(r"^[^\n|]*\|[^\n|]*\|[^\n]*$|^[^\n\t]+\t[^\n\t]+\t[^\n]*$", regex.MULTILINE)
_TAG = regex.compile(r"</?[a-zA-Z][\w-]*(?:\s[^<>\n]{0,300})?/?>")
_FORMULA = regex.compile(r"\\[a-zA-Z]{2,}|\$\$|\\[\[(]")
_RUN = regex.compile(r"[!-~]+")
_LETTERS = regex.compile(r"[\p{L}\p{M}\s]+")


def special(texts, rules):
    """Why a session's texts are not ordinary language, or None: code, tables, markup, formulas, data.

    Paper: A.3, second stage; its classifier was not published.
    """
    blocks = [m[2] for text in texts for m in _FENCE.finditer(text)]
    if any(block.count("\n") >= rules.code_lines for block in blocks):
        return "large code block"
    if blocks and sum(map(len, blocks)) >= rules.code_share * sum(map(len, texts)):
        return "much code"
    plain = [_URL.sub("", _FENCE.sub("", text)) for text in texts]
    has = lambda pattern, n: any(_finds(pattern, text, n) for text in plain)  # noqa: E731
    if has(_CODE, rules.code_lines):
        return "code outside of a block"
    if has(_TABLE, rules.table_rows):
        return "table"
    if has(_TAG, rules.tags):
        return "markup"
    if has(_FORMULA, rules.formulas):
        return "formulas or escapes"
    if any(len(run) >= rules.run for text in plain for run in _RUN.findall(text)):
        return "text without blanks"
    letters = sum(len(m) for text in plain for m in _LETTERS.findall(text))
    return "few letters" if letters < rules.letters * sum(map(len, plain)) else None


def _finds(pattern, text, n):
    """Whether a pattern is found so many times."""
    return next(itertools.islice(pattern.finditer(text), n - 1, None), None) is not None


def exchanges(messages):
    """(why not or None, system text or None, [(user, reply)], parts left out) of a session's messages."""
    parts = Counter()
    if not messages:
        return "no messages", None, [], parts
    if any(role not in ("system", "user", "assistant") for role, _ in messages):
        return "unknown role", None, [], parts
    rest = list(itertools.dropwhile(lambda m: m[0] == "system", messages))
    system = "\n\n".join(text for _, text in messages[: len(messages) - len(rest)] if text.strip()) or None
    while rest and rest[0][0] == "assistant":
        parts["leading reply"] += 1
        rest.pop(0)
    if rest and rest[-1][0] == "user":
        parts["last message without a reply"] += 1
        rest.pop()
    if any(role != ("user", "assistant")[i % 2] for i, (role, _) in enumerate(rest)):
        return "roles do not alternate", None, [], parts
    texts = [text for _, text in rest]
    return None if rest else "no exchange", system, list(zip(texts[::2], texts[1::2])), parts


def dense(pairs, tokenizer, min_tokens):
    """(the exchanges that say something, their tokens, counts of the others).

    Paper: A.3, third stage; user and reply are counted together, in tokens, so that Chinese needs no blanks.
    """
    kept, total, parts = [], 0, Counter()
    for user, reply in pairs:
        tokens = len(tokenizer.encode(user)) + len(tokenizer.encode(reply))
        if not user.strip() or not reply.strip():
            parts["exchange with an empty message"] += 1
        elif tokens < min_tokens:
            parts[f"exchange under {min_tokens} tokens"] += 1
        else:
            kept.append((user, reply))
            total += tokens
    return kept, total, parts


def judge(session, rules, tokenizer, excluded, benchmark):
    """The Verdict over one session: the stages one after the other, the first reason counts.

    excluded: as `sources.excluded_bases` has it.  benchmark: sorted marks of benchmark texts, or None.
    Paper: A.3.
    """
    if reason := sources.why_excluded(session.id, excluded):
        return Verdict("selection", reason, {})
    reason, system, pairs, parts = exchanges(session.messages)
    if reason:
        return Verdict("selection", reason, parts)
    if reason := special([text for pair in pairs for text in pair], rules):
        return Verdict("classifier", reason, parts)
    pairs, tokens, more = dense(pairs, tokenizer, rules.min_tokens)
    parts = parts + more
    if not pairs:
        return Verdict("density", "no exchange left", parts)
    if len(pairs) < rules.min_turns:
        return Verdict("horizon", f"under {rules.min_turns} turns", parts)
    if len(pairs) > rules.max_turns:
        return Verdict("horizon", f"over {rules.max_turns} turns", parts)
    texts = [text for pair in pairs for text in pair]
    if benchmark is not None and any(overlap.holds(benchmark, text) for text in texts):
        return Verdict("overlap", "benchmark text", parts)
    sketch = overlap.sketch("\n".join(texts), rules.seed) if rules.dedup else None
    return Verdict(None, None, parts, _line(session, system, texts), tokens, sketch)


def _line(session, system, texts):
    messages = [("system", system)] * bool(system) + list(zip(itertools.cycle(("user", "assistant")), texts))
    messages = [{"role": role, "content": text} for role, text in messages]
    record = {"id": session.id, "source": session.source, "messages": messages}
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))
