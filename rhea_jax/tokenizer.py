"""Text to ids and back: the model's own template with its control tokens, typed text never with any."""

import codecs
import copy
import functools
import itertools
import json
import re
from dataclasses import dataclass, replace
from datetime import datetime

import jinja2
import jinja2.ext
import jinja2.sandbox
import numpy as np
import tokenizers

from rhea_jax import vocabulary
from rhea_jax.text import clean

# Vicuna's files bring no template; this is the form of v1.1 and later.
TEMPLATES = {
    "vicuna": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }} {% else %}A chat between a curious "
    "user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite answers to the user's "
    "questions. {% endif %}{% for m in messages %}{% if m['role'] == 'user' %}USER: {{ m['content'] }} {% elif m['role'] == "
    "'assistant' %}ASSISTANT: {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:"
    "{% endif %}",
}
THINK = ("<think>", "</think>")
_SLOT = re.compile("\ue000(\\d+)\ue001")  # where a message's content stands while the template is rendered
_BYTE = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's name of a byte


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A model's vocabulary, template and control ids."""

    text: tokenizers.Tokenizer  # no added token is known to it, so none can come out
    bare: tokenizers.Tokenizer  # the same without SentencePiece's leading blank
    control: dict[str, tuple[int, bool, bool]]  # added token -> id, takes blanks before it, behind it
    template: str
    bos: int | None
    eos: int
    byte_level: bool  # else SentencePiece
    first_only: bool = False  # the leading blank stands only at the start of the whole prompt
    ends: tuple[int, ...] = ()  # ids that end a reply
    default_system: str | None = None  # what the template says where nobody gave a system message
    system_role: bool = True  # whether the template has one
    trims: frozenset[str] = frozenset()  # roles around whose messages it strips the blanks
    markers: tuple[str, ...] = ()  # words of ordinary text by which the template marks roles

    @functools.cached_property
    def _controls(self):
        return frozenset(i for i, _, _ in self.control.values())

    @functools.cached_property
    def _thinks(self):
        return {self.control[name][0]: name.encode() for name in THINK if name in self.control}

    @property
    def dropped(self):
        """Control ids that a decoded text leaves out; thinking marks stay, for the chat to see."""
        return self._controls - self._thinks.keys()

    def encode(self, text):
        """Ids of a text typed by anyone: never a control id.  Lone surrogates become U+FFFD."""
        text = clean(text)
        ids = self.bare.encode(text, add_special_tokens=False).ids
        return ids if self._controls.isdisjoint(ids) else self.spell(text)[0]

    def spell(self, text, cuts=(), blank=False):
        """Ids without any control id, and where each begins and ends in the text; no token reaches across a cut.

        blank: with SentencePiece's leading blank.
        """
        ids, starts, ends = [], [], []
        bounds = [0, *sorted(cuts), len(text)]
        for a, b in zip(bounds, bounds[1:]):
            encoding = (self.text if blank and a == 0 else self.bare).encode(text[a:b], add_special_tokens=False)
            ids.extend(encoding.ids)
            offsets = np.array(encoding.offsets, int).reshape(-1, 2) + a
            starts.append(offsets[:, 0])
            ends.append(offsets[:, 1])
        starts, ends = np.concatenate(starts), np.concatenate(ends)
        if not self._controls.isdisjoint(ids):  # a vocabulary whose merges can spell a control token's name
            more = {int(starts[n]) + 1 for n, i in enumerate(ids) if i in self._controls} - {*cuts}
            if more:
                return self.spell(text, {*cuts, *more}, blank)
        return ids, starts, ends

    def decode(self, ids):
        """The text of ids; special ids are dropped by id, never by how they look."""
        return "".join(self.stream([ids]))

    def stream(self, blocks):
        """Yields the text of blocks of ids as it becomes certain; joined it is just decode(all ids)."""
        decoder, opened = codecs.getincrementaldecoder("utf-8")("replace"), self.byte_level
        for block in blocks:
            piece = decoder.decode(b"".join(self._bytes(int(i)) for i in block))
            if piece and not opened:
                piece, opened = piece.removeprefix(" "), True
            if piece:
                yield piece
        if rest := decoder.decode(b"", final=True):
            yield rest

    def _bytes(self, i):
        if i in self._controls:
            return self._thinks.get(i, b"")
        piece = self.text.id_to_token(i)
        if piece is None:  # embeddings padded beyond the vocabulary
            return b""
        if self.byte_level:
            return b"".join(_BYTES.get(c) or c.encode() for c in piece)
        byte = _BYTE.fullmatch(piece)
        return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()

    def render(self, roles, generation=True):
        """The template's literal text around the contents of messages with these roles: str pieces, int for content i.

        Raises: ValueError when the template refuses such a conversation.
        """
        messages = [{"role": role, "content": f"\ue000{i}\ue001"} for i, role in enumerate(roles)]
        pieces = _SLOT.split(self._shown(messages, generation))
        return [int(p) if i % 2 else p for i, p in enumerate(pieces) if p or i % 2]

    def _shown(self, messages, generation=False):
        name = lambda i: next((name for name, (j, _, _) in self.control.items() if j == i), "")  # noqa: E731
        return _render(self.template, messages, name(self.bos), name(self.eos), generation)

    def split(self, literal):
        """A literal of the template cut at its control tokens: str for text, int for an id."""
        out, name = [], ""
        for i, part in enumerate(self._pattern.split(literal)):
            if i % 2 == 0:
                out.append(part.lstrip() if i and self.control[name][2] else part)
            else:
                name = part
                if self.control[name][1]:
                    out[-1] = out[-1].rstrip()
                out.append(self.control[name][0])
        return [p for p in out if p != ""]

    @functools.cached_property
    def _pattern(self):
        names = "|".join(re.escape(n) for n in sorted(self.control, key=len, reverse=True))
        return re.compile(f"({names})")


@functools.lru_cache(maxsize=256)
def forms(tokenizer, marker):
    """The ids that a marker of the template, or of the layout, has beside other text: a typed one must have others."""
    out = set()
    for before, behind, blank in itertools.product(("", " ", "\n"), ("", " ", "\n"), (False, True)):
        ids, starts, ends = tokenizer.spell(before + marker + behind, blank=blank)
        out.add(tuple(ids[covering(starts, ends, len(before), len(before) + len(marker))]))
    return out


def covering(starts, ends, a, b):
    """The slice of the tokens that hold any of a text's characters a to b."""
    first = int(np.searchsorted(ends, a, "right"))
    return slice(first, max(first, int(np.searchsorted(starts, b))))


def _byte_names():
    """GPT-2's printable name of each byte -> the byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    names = {b: chr(b) for b in plain} | {b: chr(256 + n) for n, b in enumerate(others)}
    return {name: bytes([b]) for b, name in names.items()}


_BYTES = _byte_names()


class _NoGenerationTag(jinja2.ext.Extension):
    """`{% generation %}` only marks what to train on; its body is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@functools.lru_cache(maxsize=8)
def _compiled(template):
    def refuse(message):
        raise jinja2.TemplateError(message)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _NoGenerationTag])
    env.filters["tojson"] = lambda x, indent=None, **_: json.dumps(x, ensure_ascii=False, indent=indent)
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return env.from_string(template)


def _render(template, messages, bos, eos, generation):
    try:
        return _compiled(template).render(messages=messages, tools=None, documents=None, bos_token=bos, eos_token=eos,
                                          add_generation_prompt=generation, enable_thinking=False)
    except jinja2.TemplateError as error:
        raise ValueError(f"the model's chat template refuses this conversation: {error}") from None


def load_tokenizer(path, template=None):
    """The tokenizer of a model folder or a GGUF file, with the given template (a name or jinja text) or the model's own.

    Raises: ValueError naming the file and what it lacks.
    """
    full, names, found, ends = vocabulary.read(path)
    allowed = f"{', '.join(TEMPLATES)} or jinja text"
    if template and "{" not in template and template not in TEMPLATES:
        raise ValueError(f"config.template is {template!r}; allowed: {allowed}")
    template = TEMPLATES.get(template, template) or found
    if not template:
        raise ValueError(f"{path} has no chat template; give one by config.template: {allowed}")
    data = json.loads(full.to_str())
    added = {t["content"]: (t["id"], t["lstrip"], t["rstrip"]) for t in data["added_tokens"]}
    bos, eos = (added.get(n, (full.token_to_id(n) if n else None,))[0] for n in names)
    if eos is None:
        raise ValueError(f"{path}: eos_token is {names[1]!r}, which is not in the vocabulary")
    for name, i in zip(names, (bos, eos)):
        if i is not None:
            added.setdefault(name, (i, False, False))
    steps = json.dumps(data["decoder"])
    if '"ByteLevel"' not in steps and "▁" not in steps and "\\u2581" not in steps:
        raise ValueError(f"{path}: the tokenizer's decoder is {steps[:60]}; allowed: byte-level or SentencePiece BPE")
    data |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    text = tokenizers.Tokenizer.from_str(json.dumps(data))
    bare, first_only = _without_leading_blank(data)
    bare = text if bare == data else tokenizers.Tokenizer.from_str(json.dumps(bare))
    return _learn(Tokenizer(text, bare, added, template, bos, eos, '"ByteLevel"' in steps, first_only), ends, path)


def _without_leading_blank(data):
    """(tokenizer data that never put a blank in front, whether the original does so only at the very start)."""
    steps, pre, first_only = copy.deepcopy(data["normalizer"] or {}), copy.deepcopy(data["pre_tokenizer"] or {}), False
    if steps.get("type") == "Sequence":
        steps["normalizers"] = [s for s in steps["normalizers"] if s["type"] != "Prepend"]
    for step in [pre, *pre.get("pretokenizers", [])]:
        if step.get("type") == "Metaspace":
            first_only = step.get("prepend_scheme") == "first"
            step["prepend_scheme"] = "never"
            step.pop("add_prefix_space", None)
    return data | {"normalizer": steps or None, "pre_tokenizer": pre or None}, first_only


def _learn(t, ends, path):
    """Reads off the template how it ends a reply, treats blanks, a missing system message, and marks roles."""
    turn = ["user", "assistant"]
    pieces = t.render(turn, False)
    if [p for p in pieces if isinstance(p, int)] != [0, 1]:
        raise ValueError(f"{path}: the chat template does not show each message of a conversation once and in order")
    behind = [p for literal in pieces[pieces.index(1) + 1 :] for p in t.split(literal)]
    ends = {t.eos, *ends, *[p for p in behind if isinstance(p, int)][:1]}
    try:
        pieces = t.render(["system", "user"], False)
    except ValueError:
        pieces = []
    system_role, default = 0 in pieces and 1 in pieces, None
    if system_role:
        plain = "".join(p for p in t.render(["user"], False)[:1] if isinstance(p, str))
        before = pieces[0] if isinstance(pieces[0], str) else ""
        middle = pieces[pieces.index(0) + 1] if isinstance(pieces[pieces.index(0) + 1], str) else ""
        if plain.startswith(before) and plain.endswith(middle) and len(plain) > len(before + middle):
            default = plain[len(before) : len(plain) - len(middle)]
    roles = ["system"] * system_role + turn
    shown = t._shown([{"role": r, "content": f" {r.upper()}. "} for r in roles])
    trims = frozenset(r for r in roles if f" {r.upper()}. " not in shown)
    pieces = t.render(["system"] * system_role + turn * 2)
    first, later = _words(t, pieces[:1]), _words(t, pieces[1:])
    # The first literal may hold whole sentences, whose words mark nothing.
    marks = later | {w for w in first if re.search(r"[\[\]<>|#]", w)}
    marks = [w for w in marks if re.search(r"\w", w) and re.search(r"[^\w\s]", w)]
    return replace(t, ends=tuple(sorted(ends)), default_system=default, system_role=system_role, trims=trims,
                   markers=tuple(sorted(marks, key=lambda w: (-len(w), w))))


def _words(t, pieces):
    parts = [part for literal in pieces if isinstance(literal, str) for part in t.split(literal)]
    return {word for part in parts if isinstance(part, str) for word in part.split()}
