"""Conversations out of files, one at a time: ShareGPT, UltraChat, TopiOCQA, plain role/content messages."""

import codecs
import gzip
import hashlib
import itertools
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from rhea_jax import assets
from rhea_jax.text import ROLES, clean

_LISTS = ("conversations", "conversation", "items", "messages", "conv", "data")
_IDS = ("id", "conversation_id", "prompt_id", "_id")
_ENDINGS = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".parquet")
_FORMS = "a JSON list, JSON Lines (either may be gzipped) or parquet"
_KEYS = f"a list under one of {', '.join(_LISTS)}, or TopiOCQA's Conversation_no, Question, Answer"
_BLOCK = 1 << 20
_BETWEEN = re.compile(r"[\s,]*")


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation as its file has it; a role that is neither system, user nor assistant keeps its own name."""

    id: str
    base: str  # the chat that it is a piece of
    source: str
    messages: tuple[tuple[str, str], ...]  # (role, text)


def base_of(session_id):
    """The id of the chat that a session is a piece of: `base_13` begins at message 13 of `base`."""
    return re.sub(r"_\d+$", "", session_id)


def excluded_bases():
    """The hashed bases that are kept for validation and tests, as `hash_base` writes them."""
    return frozenset((Path(__file__).parent / "exclude_bases.txt").read_text(encoding="ascii").split())


def hash_base(base):
    """The first 16 hex digits of the sha256 of a base id."""
    return hashlib.sha256(base.encode()).hexdigest()[:16]


def is_excluded(session_id, excluded):
    """Whether a session is, or is a piece of (a piece of) a chat that is never trained on."""
    while hash_base(session_id) not in excluded:
        if (base := base_of(session_id)) == session_id:
            return False
        session_id = base
    return True


def find(source, offline=False):
    """(label, [path]) of what `--source` names: a data set of the registry, a file, a folder of files, or LABEL=PATH.

    Raises: ValueError when there is no such thing.
    """
    if source in assets.DATASETS:
        return source, [assets.fetch(assets.DATASETS[source], offline)]
    named = re.fullmatch(r"([\w.-]+)=(.+)", source, re.DOTALL)
    label, path = named.groups() if named and not Path(source).exists() else (None, source)
    path = Path(path).expanduser()
    try:
        paths = sorted(p for p in path.iterdir() if p.name.lower().endswith(_ENDINGS)) if source and path.is_dir() else [path]
    except OSError as error:
        raise ValueError(f"source {path} can't be read: {error.strerror}") from None
    if not paths:
        raise ValueError(f"source {path} holds no data file; allowed: files that end in {', '.join(_ENDINGS)}")
    if not paths[0].is_file():
        raise ValueError(f"source {source!r} is no file and no folder; allowed besides these: {', '.join(assets.DATASETS)}")
    return label or path.name.split(".")[0], paths


def read(path, label, warn, advance=lambda done: None):
    """Yields the conversations of a file, whose form is told by its content, not by its name.

    warn: hears in one line how much was saved of a JSON file that breaks off.  advance: hears how many bytes of the file are read.
    Raises: ValueError naming the file and what is wrong with it.
    """
    n = 0
    try:
        with open(path, "rb") as raw:
            start = raw.read(4)
            raw.seek(0)
            if not start:
                raise ValueError(f"{path} is empty; allowed: {_FORMS}")
            if start == b"PAR1":
                values = _rows(path, raw, advance)
            else:
                values = _values(path, gzip.open(raw) if start[:2] == b"\x1f\x8b" else raw, warn, lambda: advance(raw.tell()))
            for n, record in enumerate(_whole(path, values), 1):
                yield _session(path, n, record, label)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is a damaged gzip file after record {n}: {error}; allowed: a whole one") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 after record {n}: {error.reason}; allowed: {_FORMS}") from None
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror or error}") from None
    if not n:
        raise ValueError(f"{path} holds no conversation; allowed: {_FORMS}")


def _texts(stream, advance):
    """The text of a file in blocks; a character cut by the end of the file is left out."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    while block := stream.read(_BLOCK):
        advance()
        yield decoder.decode(block)


def _values(path, stream, warn, advance):
    """Yields the values of a JSON list or of JSON Lines as they come in; of a file that breaks off the whole ones.

    Raises: ValueError when the text is not JSON, at the number of the record.
    """
    decode, text, at, n, listed = json.JSONDecoder().raw_decode, "", 0, 0, None
    for block in _texts(stream, advance):
        text, at = text[at:] + block, 0
        while (at := _BETWEEN.match(text, at).end()) < len(text):
            if listed is None:
                _check_start(path, text[at : at + 60])
                listed = text[at] == "["
                at += listed
            elif listed and text[at] == "]":
                listed, at = None, at + 1
            else:
                try:
                    value, at = decode(text, at)
                except json.JSONDecodeError as error:
                    if error.msg.startswith("Unterminated string") or error.pos > len(text) - 12:
                        break  # goes on in the next block
                    raise ValueError(f"{path} record {n + 1} is no JSON: {error.msg}; allowed: {_FORMS}") from None
                except RecursionError:
                    raise ValueError(f"{path} record {n + 1} is nested too deep") from None
                n += 1
                yield value
    if listed or text[at:].strip():
        warn(f"{path} breaks off; its {n:,} whole records are used")


def _check_start(path, text):
    if text[0] == "<":
        raise ValueError(f"{path} is HTML or XML ({text.splitlines()[0]!r}), perhaps a page instead of the download; allowed: {_FORMS}")
    if text[0] not in "[{":
        raise ValueError(f"{path} begins with {text.splitlines()[0]!r}; allowed: {_FORMS}")


def _rows(path, raw, advance):
    """Yields the rows of a parquet file, batch by batch, without the columns that aren't needed."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(raw)
        names = file.schema_arrow.names
        wanted = [name for name in names if name in (*_LISTS, *_IDS, "Conversation_no", "Question", "Answer")]
        if not {*_LISTS, "Conversation_no"} & {*wanted}:
            raise ValueError(f"{path} has the columns {', '.join(names)}; allowed: {_KEYS}")
        for batch in file.iter_batches(batch_size=256, columns=wanted):
            advance(raw.tell())
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} is a damaged parquet file: {str(error).splitlines()[0]}") from None


def _whole(path, values):
    """The records, one a conversation: the turns of TopiOCQA's own files, which stand one by one, are put together."""
    first = next(values, None)
    if first is None:
        return
    values = itertools.chain([first], values)
    if not (isinstance(first, dict) and "Conversation_no" in first):
        yield from values
        return
    for number, turns in itertools.groupby(values, lambda r: r.get("Conversation_no") if isinstance(r, dict) else None):
        turns = [{"user": t.get("Question"), "assistant": t.get("Answer")} for t in turns if isinstance(t, dict)]
        yield {"id": f"{path.stem}-{number}", "conv": turns}


def _session(path, n, record, label):
    """Raises: ValueError when the record has no field that could hold a conversation."""
    if not isinstance(record, dict):
        raise ValueError(f"{path} record {n} is {str(record)[:60]!r}; allowed: an object with {_KEYS}")
    turns = next((record[key] for key in _LISTS if isinstance(record.get(key), list)), None)
    if turns is None and not any(key in record for key in _LISTS):
        raise ValueError(f"{path} record {n} has the fields {', '.join(map(str, record))[:200]}; allowed: {_KEYS}")
    name = next((str(record[key]) for key in _IDS if isinstance(record.get(key), (str, int))), f"{label}-{n}")
    return Session(clean(name), base_of(clean(name)), label, tuple(_messages(turns or [])))


def _messages(turns):
    """Yields (role, text) of turns that are plain texts in turn, messages, or pairs of a user's text and its reply."""
    for i, turn in enumerate(turns):
        if isinstance(turn, str):
            yield ("user", "assistant")[i % 2], clean(turn)
        elif not isinstance(turn, dict):
            yield "", ""
        elif (role := turn.get("from", turn.get("role"))) is not None:
            role = clean(str(role)).strip().lower()
            yield ROLES.get(role, role), _text(turn.get("value", turn.get("content", turn.get("text"))))
        else:
            known = [(ROLES[key], _text(text)) for key, text in turn.items() if key in ROLES]
            yield from sorted(known, key=lambda m: ("system", "user", "assistant").index(m[0])) or [("", "")]


def _text(content):
    """A message's text; of a list of parts its texts; nothing for anything else."""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return clean(content) if isinstance(content, str) else ""
