"""Text to ids and back: the model's own template with its control tokens, typed text never with any."""

import copy
import functools
import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import jinja2
import jinja2.ext
import jinja2.sandbox
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from rhea_jax.text import clean
from rhea_jax.weights import field as gguf_field
from rhea_jax.weights import open_gguf, read_json

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
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_SPLITS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A model's vocabulary, template and control ids."""

    text: tokenizers.Tokenizer  # no added token is known to it, so none can come out
    bare: tokenizers.Tokenizer  # the same without SentencePiece's leading blank
    control: dict[str, tuple[int, bool, bool]]  # added token -> id, takes blanks before it, behind it
    template: str
    bos: int | None
    eos: int
    first_only: bool = False  # the leading blank stands only at the start of the whole prompt
    ends: tuple[int, ...] = ()  # ids that end a reply
    default_system: str | None = None  # what the template says where nobody gave a system message
    system_role: bool = True  # whether the template has one
    trims: bool = False  # whether it strips the blanks around a message
    markers: tuple[str, ...] = ()  # words of ordinary text by which the template marks roles
    cuts: dict = field(default_factory=dict)

    @functools.cached_property
    def dropped(self):
        """Control ids that a decoded text leaves out; thinking marks stay, for the chat to see."""
        return frozenset(i for name, (i, _, _) in self.control.items() if name not in THINK)

    def encode(self, text):
        """Ids of a text typed by anyone: never a control id.  Lone surrogates become U+FFFD."""
        return self.bare.encode(clean(text), add_special_tokens=False).ids

    def decode(self, ids):
        """The text of ids; special ids are dropped by id, never by how they look."""
        names = {i: name for name, (i, _, _) in self.control.items() if name in THINK}
        out, run = [], []
        for i in (*(int(i) for i in ids if int(i) not in self.dropped), None):
            if i is None or i in names:
                out.append(self.text.decode(run, skip_special_tokens=False) if run else "")
                out.append(names.get(i, ""))
                run = []
            else:
                run.append(i)
        return "".join(out)

    def stream(self, blocks):
        """Yields the text of blocks of ids as it becomes certain; joined it is just decode(all ids)."""
        ids, sent = [], 0
        for block in blocks:
            ids.extend(int(i) for i in block)
            text = self.decode(ids)
            ready = len(text.rstrip("\ufffd"))  # the start of a character whose other bytes are still to come
            if ready > sent:
                yield text[sent:ready]
                sent = ready
        if rest := self.decode(ids)[sent:]:
            yield rest

    def render(self, roles, generation=True):
        """The template's literal text around the contents of messages with these roles: str pieces, int for content i.

        Raises: ValueError when the template refuses such a conversation.
        """
        messages = [{"role": role, "content": f"\ue000{i}\ue001"} for i, role in enumerate(roles)]
        pieces = _SLOT.split(_render(self.template, messages, self._name(self.bos), self._name(self.eos), generation))
        return [int(p) if i % 2 else p for i, p in enumerate(pieces) if p or i % 2]

    def _name(self, i):
        return next((name for name, (j, _, _) in self.control.items() if j == i), "")

    def split(self, literal):
        """A literal of the template cut at its control tokens: str for text, int for an id."""
        if not self.control:
            return [literal] if literal else []
        pattern = "|".join(re.escape(n) for n in sorted(self.control, key=len, reverse=True))
        return [self.control[p][0] if i % 2 else p for i, p in enumerate(re.split(f"({pattern})", literal)) if p]

    def cut(self, marker):
        """Where a typed marker is cut so that its ids differ from the template's: inside one of the marker's tokens."""
        if marker not in self.cuts:
            encoding = self.bare.encode(marker, add_special_tokens=False)
            wide = [(b - a, a) for a, b in encoding.offsets if b - a > 1]
            self.cuts[marker] = max(wide)[1] + 1 if wide else None
        return self.cuts[marker]


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
    """The tokenizer of a model folder or of a GGUF file, with the given template or the model's own.

    Raises: ValueError naming the file and what it lacks.
    """
    full, names, found, ends = _of_gguf(path) if path.is_file() else _of_folder(path)
    template = TEMPLATES.get(template, template) or found
    if not template:
        raise ValueError(f"{path} has no chat template; give one by config.template, a name ({', '.join(TEMPLATES)}) or jinja text")
    data = json.loads(full.to_str())
    added = {t["content"]: (t["id"], t["lstrip"], t["rstrip"]) for t in data["added_tokens"]}
    bos, eos = (added.get(n, (full.token_to_id(n) if n else None,))[0] for n in names)
    if eos is None:
        raise ValueError(f"{path}: eos_token is {names[1]!r}, which is not in the vocabulary")
    for name, i in zip(names, (bos, eos)):
        if i is not None:
            added.setdefault(name, (i, False, False))
    data |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    bare, first_only = _without_leading_blank(data)
    text = tokenizers.Tokenizer.from_str(json.dumps(data))
    known = Tokenizer(text, text if bare == data else tokenizers.Tokenizer.from_str(json.dumps(bare)), added, template, bos, eos,
                      first_only)
    return _learn(known, ends)


def _without_leading_blank(data):
    """(tokenizer data that never put a blank in front, whether the original does so only at the very start)."""
    data, first_only = copy.deepcopy(data), False
    steps = data["normalizer"] or {}
    if steps.get("type") == "Sequence":
        steps["normalizers"] = [s for s in steps["normalizers"] if s["type"] != "Prepend"]
    pre = data["pre_tokenizer"] or {}
    for step in [pre, *pre.get("pretokenizers", [])]:
        if step.get("type") == "Metaspace":
            first_only = step.get("prepend_scheme") == "first"
            step["prepend_scheme"] = "never"
            step.pop("add_prefix_space", None)
    return data, first_only


def _learn(t, ends):
    """Reads off the template how it ends a reply, treats blanks, a missing system message, and marks roles."""
    turn, bos, eos = ["user", "assistant"], t._name(t.bos), t._name(t.eos)
    render = lambda contents, roles: _render(  # noqa: E731
        t.template, [{"role": r, "content": c} for r, c in zip(roles, contents)], bos, eos, False)
    shown = render([" U ", " A "], turn)
    behind = t.split(t.render(turn, False)[-1]) if not isinstance(t.render(turn, False)[-1], int) else []
    ends = {t.eos, *ends, *[p for p in behind[:1] if isinstance(p, int)]}
    try:
        whole = render(["S", "U"], ["system", "user"])
        before, middle = whole.split("S", 1)[0], None
        pieces = t.render(["system", "user"], False)
        system_role = 0 in pieces and 1 in pieces
    except ValueError:
        system_role = False
    default = None
    if system_role:
        plain = t.render(["user"], False)[0]
        before = pieces[0] if isinstance(pieces[0], str) else ""
        middle = pieces[pieces.index(0) + 1] if isinstance(pieces[pieces.index(0) + 1], str) else ""
        if isinstance(plain, str) and plain.startswith(before) and plain.endswith(middle) and len(plain) > len(before + middle):
            default = plain[len(before) : len(plain) - len(middle)] or None
    literals = [p for p in t.render((["system"] if system_role else []) + turn * 2) if isinstance(p, str)]
    words = {w for p in literals for part in t.split(p) if isinstance(part, str) for w in part.split()}
    markers = tuple(sorted((w for w in words if re.search(r"\w", w) and re.search(r"[^\w\s]", w)), key=len, reverse=True))
    return Tokenizer(t.text, t.bare, t.control, t.template, t.bos, t.eos, t.first_only, tuple(sorted(ends)), default, system_role,
                     " U " not in shown, markers)


def _of_folder(folder):
    """(tokenizer, (bos, eos) names, template, ids that end a reply) of a model folder."""
    file, config = folder / "tokenizer.json", {}
    if (folder / "tokenizer_config.json").exists():
        config = read_json(folder / "tokenizer_config.json")
    if file.exists():
        try:
            full = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 - the library raises nothing narrower for a broken file
            raise ValueError(f"{file} is no tokenizer: {error}") from None
    elif (folder / "tokenizer.model").exists():
        import transformers

        full = transformers.AutoTokenizer.from_pretrained(folder, use_fast=True).backend_tokenizer
    else:
        raise ValueError(f"{folder} has neither tokenizer.json nor tokenizer.model")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((t["template"] for t in template if t.get("name") == "default"), None)
    if (folder / "chat_template.jinja").exists():
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    ends = read_json(folder / "generation_config.json").get("eos_token_id") if (folder / "generation_config.json").exists() else None
    names = [n["content"] if isinstance(n, dict) else n for n in (config.get("bos_token"), config.get("eos_token"))]
    if names[1] is None:
        i = read_json(folder / "config.json").get("eos_token_id")
        names[1] = full.id_to_token(i[0] if isinstance(i, list) else i) if i is not None else None
    return full, names, template, ends if isinstance(ends, list) else [] if ends is None else [ends]


def _of_gguf(path):
    """The same of a GGUF file, whose vocabulary becomes a byte-level or a SentencePiece BPE of the `tokenizers` library."""
    reader = open_gguf(Path(path))
    get = lambda name, default=None: gguf_field(reader, f"tokenizer.ggml.{name}", default)  # noqa: E731
    tokens, kinds, kind = get("tokens", []), get("token_type", []), get("model")
    vocab = {t: i for i, t in enumerate(tokens)}
    if kind == "gpt2":
        full = _byte_level(path, vocab, get("merges", []), get("pre", "default"))
    elif kind == "llama":
        full = _sentence_piece(vocab, get("scores"), tokens[get("unknown_token_id", 0)], get("add_space_prefix", True))
    else:
        raise ValueError(f"{path}: tokenizer.ggml.model is {kind!r}; allowed: gpt2, llama")
    special = [tokenizers.AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds) if k == 3]
    full.add_special_tokens(special)
    full.add_tokens([tokenizers.AddedToken(t, special=False, normalized=False) for t, k in zip(tokens, kinds) if k == 4])
    names = [tokens[i] if i is not None else None for i in (get("bos_token_id"), get("eos_token_id"))]
    ends = [i for i in (get("eot_token_id"), get("eom_token_id")) if i is not None]
    return full, names, gguf_field(reader, "tokenizer.chat_template"), ends


def _byte_level(path, vocab, merges, pre):
    if pre == "smollm":
        split = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2])
    elif pre in ("default", "gpt-2"):
        split = _GPT2
    elif pre in _SPLITS:
        split = pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(_SPLITS[pre]), "isolated"),
                                         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        raise ValueError(f"{path}: tokenizer.ggml.pre is {pre!r}; allowed: default, gpt-2, smollm, {', '.join(_SPLITS)}")
    full = tokenizers.Tokenizer(models.BPE(vocab, [tuple(m.split(" ")) for m in merges], ignore_merges=pre == "llama-bpe"))
    full.pre_tokenizer, full.decoder = split, decoders.ByteLevel()
    if pre == "qwen2":
        full.normalizer = normalizers.NFC()
    return full


def _sentence_piece(vocab, scores, unknown, prefix):
    """SentencePiece BPE: merges in falling order of the score of what they make."""
    merges = []
    for piece, i in vocab.items():
        parts = [(piece[:k], piece[k:]) for k in range(1, len(piece)) if piece[:k] in vocab and piece[k:] in vocab]
        merges += [(-scores[i], n, p) for n, p in enumerate(sorted(parts, key=lambda p: (vocab[p[0]], vocab[p[1]])))]
    merges = [p for _, _, p in sorted(merges, key=lambda m: m[0])]
    full = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    blank = [normalizers.Prepend("▁")] if prefix else []
    full.normalizer = normalizers.Sequence([*blank, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    full.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return full
