"""Vocabularies from a model's files: tokenizer.json, SentencePiece's tokenizer.model, or a GGUF file's metadata."""

import struct

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from rhea_jax.weights import field as gguf_field
from rhea_jax.weights import open_gguf, read_json

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # kinds of pieces; both formats number them so
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_SPLITS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def read(path):
    """(tokenizer with its added tokens, (bos, eos) names, chat template, ids that end a reply) of a folder or a .gguf.

    Raises: ValueError naming the file and what it lacks.
    """
    return _of_gguf(path) if path.is_file() else _of_folder(path)


def _of_folder(folder):
    optional = lambda name: read_json(folder / name) if (folder / name).exists() else {}  # noqa: E731
    config, file = optional("tokenizer_config.json"), folder / "tokenizer.json"
    if file.exists():
        try:
            full = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001 - the library raises nothing narrower for a broken file
            raise ValueError(f"{file} is no tokenizer: {error}") from None
    elif (folder / "tokenizer.model").exists():
        full = _of_sentencepiece(folder / "tokenizer.model")
    else:
        raise ValueError(f"{folder} has neither tokenizer.json nor tokenizer.model")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((t["template"] for t in template if t.get("name") == "default"), None)
    if (folder / "chat_template.jinja").exists():
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    ends = optional("generation_config.json").get("eos_token_id")
    names = [n["content"] if isinstance(n, dict) else n for n in (config.get("bos_token"), config.get("eos_token"))]
    if names[1] is None:
        i = read_json(folder / "config.json").get("eos_token_id")
        names[1] = full.id_to_token(i[0] if isinstance(i, list) else i) if i is not None else None
    return full, names, template, ends if isinstance(ends, list) else [] if ends is None else [ends]


def _of_gguf(path):
    reader = open_gguf(path)
    get = lambda name, default=None: gguf_field(reader, f"tokenizer.ggml.{name}", default)  # noqa: E731
    tokens, kinds, kind = get("tokens", []), get("token_type", []), get("model")
    if kind == "gpt2":
        full = _byte_level(path, tokens, get("merges", []), get("pre", "default"))
        _add(full, tokens, kinds)
    elif kind == "llama":
        full = _sentence_piece(tokens, get("scores", []), kinds, get("add_space_prefix", True))
    else:
        raise ValueError(f"{path}: tokenizer.ggml.model is {kind!r}; allowed: gpt2, llama")
    names = [tokens[i] if i is not None else None for i in (get("bos_token_id"), get("eos_token_id"))]
    ends = [i for i in (get("eot_token_id"), get("eom_token_id")) if i is not None]
    return full, names, gguf_field(reader, "tokenizer.chat_template"), ends


def _add(full, tokens, kinds):
    named = lambda *of: [tokenizers.AddedToken(t, normalized=False) for t, k in zip(tokens, kinds) if k in of]  # noqa: E731
    full.add_special_tokens(named(UNKNOWN, CONTROL))
    full.add_tokens(named(USER_DEFINED))


def _byte_level(path, tokens, merges, pre):
    if pre == "smollm":
        split = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2])
    elif pre in ("default", "gpt-2"):
        split = _GPT2
    elif pre in _SPLITS:
        split = pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(_SPLITS[pre]), "isolated"),
                                         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        allowed = ", ".join(["default", "gpt-2", "smollm", *_SPLITS])
        raise ValueError(f"{path}: tokenizer.ggml.pre is {pre!r}; allowed: {allowed}")
    vocab, merges = {t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]
    full = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe"))
    full.pre_tokenizer, full.decoder = split, decoders.ByteLevel()
    if pre == "qwen2":
        full.normalizer = normalizers.NFC()
    return full


def _sentence_piece(tokens, scores, kinds, prefix):
    """SentencePiece BPE: merges in falling order of the score of what they make."""
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = []
    for piece, score, kind in zip(tokens, scores, kinds):
        if kind == NORMAL:  # typed text never merges into a control or a byte piece
            parts = [(piece[:k], piece[k:]) for k in range(1, len(piece)) if piece[:k] in vocab and piece[k:] in vocab]
            merges += [(-score, p) for p in sorted(parts, key=lambda p: (vocab[p[0]], vocab[p[1]]))]
    merges = [p for _, p in sorted(merges, key=lambda m: m[0])]
    unknown = tokens[kinds.index(UNKNOWN)] if UNKNOWN in kinds else None
    full = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    blank = [normalizers.Prepend("▁")] if prefix else []
    full.normalizer = normalizers.Sequence([*blank, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    full.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    _add(full, tokens, kinds)
    return full


def _of_sentencepiece(file):
    """The tokenizer of a SentencePiece file: a protobuf message of pieces and the specs of trainer and normalizer."""
    try:
        message = [*_fields(file.read_bytes())]
        pieces = [dict(_fields(value)) for number, value in message if number == 1]
        trainer, normalizer = (dict(_fields(next((v for n, v in message if n == wanted), b""))) for wanted in (2, 3))
        tokens = [p[1].decode() for p in pieces]
        scores = [struct.unpack("<f", p.get(2, bytes(4)))[0] for p in pieces]
    except (IndexError, KeyError, TypeError, ValueError, struct.error):
        raise ValueError(f"{file} is no SentencePiece model") from None
    kind, name, squeezes = trainer.get(3, 1), normalizer.get(1, b"").decode(), normalizer.get(4, 1)
    if kind != 2 or name != "identity" or squeezes:
        raise ValueError(f"{file}: model type {kind}, normalizer {name!r}, extra blanks {'removed' if squeezes else 'kept'}; "
                         "allowed: 2 (BPE), 'identity', kept; a tokenizer.json beside it would be used instead")
    return _sentence_piece(tokens, scores, [p.get(3, NORMAL) for p in pieces], bool(normalizer.get(3, 1)))


def _fields(data):
    """(number, value) of each field of a protobuf message; values are int, or bytes for anything longer."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 2: None, 5: 4}[key & 7] or varint()
        if at + size > len(data):
            raise ValueError
        yield key >> 3, data[at : at + size]
        at += size
