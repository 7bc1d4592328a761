"""Standing instructions that code can follow and check: made of real conversations, so that the generator learns to obey."""

import json
import re
from dataclasses import dataclass

_PHRASES = ("Stay curious.", "That is all for now.", "Over to you.", "以上。", "Thanks for asking!", "More tomorrow.")
_OPENINGS = ("Certainly:", "Well now,", "As requested:", "Bonjour!", "好的：", "Noted.")
_SENTENCE = re.compile(r"[^.!?。！？\n]*[.!?。！？\n]+|[^.!?。！？\n]+$")
_SHORT = 320  # characters: a reply whose end matters is cut to whole sentences of so many


@dataclass(frozen=True)
class Rule:
    """A rule as drawn: its kind, its wording, and the word or number in it."""

    kind: str
    text: str
    value: str = ""


def _sentences(text):
    return [s.strip() for s in _SENTENCE.findall(text) if s.strip()]


def _short(text, limit=_SHORT):
    out = ""
    for s in _sentences(text):
        if out and len(out) + len(s) > limit:
            break
        out = f"{out} {s}".strip()
    return out[: 2 * limit]


# kind -> (wordings, values, rewrite(text, value), check(text, value)); a wording is never one of a benchmark's.
KINDS = {
    "upper": (("WRITE IN CAPITALS ONLY, WHATEVER I ASK.", "All you write to me has to be in capital letters."), ("",),
              lambda t, v: t.upper(), lambda t, v: t == t.upper()),
    "lower": (("no capital letters in anything you write here.", "Keep everything you say in small letters."), ("",),
              lambda t, v: t.lower(), lambda t, v: t == t.lower()),
    "closing": (("Sign off each message to me with: {}", "The last words of whatever you tell me shall be {}"), _PHRASES,
                lambda t, v: f"{_short(t)} {v}", lambda t, v: t.rstrip().endswith(v)),
    "opening": (("Open whatever you write with {}", "I want {} at the head of all your messages."), _OPENINGS,
                lambda t, v: f"{v} {t}", lambda t, v: t.lstrip().startswith(v)),
    "no_commas": (("Commas are forbidden in this chat.", "Leave out all commas from here on."), ("",),
                  lambda t, v: re.sub(r"[,，、]", "", t), lambda t, v: not re.search(r"[,，、]", t)),
    "bullets": (("Give me nothing but bullet points, each on a line of its own with a dash.", "Dash lists only, please, for all I ask."), ("",),
                lambda t, v: "\n".join(f"- {s}" for s in _sentences(t)), lambda t, v: all(s.startswith("- ") for s in t.strip().splitlines())),
    "json": (('Wrap what you say as JSON with the single key "{}".', 'I parse you by machine: only JSON, key "{}".'), ("text", "reply", "out"),
             lambda t, v: json.dumps({v: _short(t)}, ensure_ascii=False), lambda t, v: _is_json(t, v)),
    "brief": (("One sentence has to do, each time.", "Never spend more than a single sentence on me."), ("",),
              lambda t, v: (_sentences(t) or [t])[0], lambda t, v: len(_sentences(t)) <= 1),
    "quotes": (("Put double quotes around all you tell me.", "Everything you write belongs between double quotes."), ("",),
               lambda t, v: f'"{_short(t)}"', lambda t, v: t.strip().startswith('"') and t.strip().endswith('"')),
    "excited": (("Exclamation marks instead of full stops, in all you write!", "Be excited: no full stop, only exclamation marks."), ("",),
                lambda t, v: re.sub(r"[.。]", "!", t), lambda t, v: not re.search(r"[.。]", t)),
    "title": (("Give each message a first line that reads {}", "Above all your texts stands the line {}"), ("# Notes", "== Answer ==", "[reply]"),
              lambda t, v: f"{v}\n{t}", lambda t, v: t.lstrip().startswith(v + "\n")),
}
UNSEEN = ("quotes", "excited", "title")  # never trained on: do they generalise?


def _is_json(text, key):
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return False
    return isinstance(value, dict) and list(value) == [key]


def draw(rng, kinds=tuple(k for k in KINDS if k not in UNSEEN)):
    """A Rule of one of these kinds, by a numpy generator."""
    kind = kinds[rng.integers(len(kinds))]
    wordings, values, *_ = KINDS[kind]
    value = values[rng.integers(len(values))]
    return Rule(kind, wordings[rng.integers(len(wordings))].format(value), value)


def rewrite(rule, reply):
    """The reply as the rule wants it."""
    return KINDS[rule.kind][2](reply, rule.value)


def obeys(rule, reply):
    """Whether a reply is as the rule wants it."""
    return bool(reply.strip()) and KINDS[rule.kind][3](reply.strip(), rule.value)
