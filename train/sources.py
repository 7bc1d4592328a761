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
_TURNWISE = ("Conversation_no", "Question", "Answer")
_KEYS = f"a list under one of {', '.join(_LISTS)}, or TopiOCQA's {', '.join(_TURNWISE)}"
_BLOCK = 1 << 20
_BETWEEN = re.compile(r"[\s,]*")


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation as its file has it; a role that is not system, user or assistant keeps its name."""

    id: str
    base: str  # the chat that it is a piece of
    source: str
    messages: tuple[tuple[str, str], ...]  # (role, text)


def base_of(session_id):
    """The id of the chat that a session is a piece of: `base_13` begins at message 13 of `base`."""
    return re.sub(r"_\d+$", "", session_id)


def excluded_bases():
    """Hash of a base that is never trained on -> why: the two lists that ship with the project."""
    lists = {"held back": "exclude_bases.txt", "copy of a chat held back": "exclude_copies.txt"}
    texts = {why: (Path(__file__).parent / name).read_text(encoding="ascii") for why, name in lists.items()}
    return {digest: why for why, text in texts.items() for digest in text.split()}


def hash_base(base):
    """The first 16 hex digits of the sha256 of a base id."""
    return hashlib.sha256(base.encode()).hexdigest()[:16]


def why_excluded(session_id, excluded):
    """Why a session is never trained on, or None; pieces (of pieces) of an excluded chat are not either."""
    while (why := excluded.get(hash_base(session_id))) is None:
        if (base := base_of(session_id)) == session_id:
            return None
        session_id = base
    return why


def find(source, offline=False):
    """(label, [path]) of what `--source` names: a data set of the registry, a file, a folder, or LABEL=PATH.

    Raises: ValueError when there is no such thing.
    """
    if source in assets.DATASETS:
        return source, [assets.fetch(assets.DATASETS[source], offline)]
    named = re.fullmatch(r"([\w.-]+)=(.+)", source, re.DOTALL)
    label, path = named.groups() if named and not Path(source).exists() else (None, source)
    path = Path(path).expanduser()
    try:
        inside = sorted(path.iterdir()) if source and path.is_dir() else None
    except OSError as error:
        raise ValueError(f"source {path} can't be read: {error.strerror}") from None
    paths = [path] if inside is None else [p for p in inside if p.name.lower().endswith(_ENDINGS)]
    if not paths:
        raise ValueError(f"source {path} has no data file; allowed: names that end in {', '.join(_ENDINGS)}")
    if not paths[0].is_file():
        names = ", ".join(assets.DATASETS)
        raise ValueError(f"source {source!r} is no file and no folder; allowed besides these: {names}")
    return label or path.name.split(".")[0], paths


def read(path, label, warn, advance=lambda done: None):
    """Yields the conversations of a file, whose form is told by its content, not by its name.

    warn: hears in one line how much was saved of a JSON file that breaks off.
    advance: hears how many bytes of the file have been read.
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
                stream = gzip.open(raw) if start[:2] == b"\x1f\x8b" else raw
                values = _values(path, stream, warn, lambda: advance(raw.tell()))
            for n, record in enumerate(_whole(path, values), 1):
                yield _session(path, n, record, label)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        said = f"{path} is a damaged gzip file after record {n}: {error}; allowed: a whole one"
        raise ValueError(said) from None
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
    """Yields the values of a JSON list or of JSON Lines as they come; the whole ones if the file breaks off.

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
                    said = f"{path} record {n + 1} is no JSON: {error.msg}; allowed: {_FORMS}"
                    raise ValueError(said) from None
                except RecursionError:
                    raise ValueError(f"{path} record {n + 1} is nested too deep") from None
                n += 1
                yield value
    if listed or text[at:].strip():
        warn(f"{path} breaks off; its {n:,} whole records are used")


def _check_start(path, text):
    first = text.splitlines()[0]
    if first[0] == "<":
        raise ValueError(f"{path} is HTML or XML and begins with {first!r}; allowed: {_FORMS}")
    if first[0] not in "[{":
        raise ValueError(f"{path} begins with {first!r}; allowed: {_FORMS}")


def _rows(path, raw, advance):
    """Yields the rows of a parquet file, batch by batch, without the columns that aren't needed."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(raw)
        names = file.schema_arrow.names
        wanted = [name for name in names if name in (*_LISTS, *_IDS, *_TURNWISE)]
        if not {*_LISTS, _TURNWISE[0]} & {*wanted}:
            raise ValueError(f"{path} has the columns {', '.join(names)}; allowed: {_KEYS}")
        for batch in file.iter_batches(batch_size=256, columns=wanted):
            advance(raw.tell())
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} is a damaged parquet file: {str(error).splitlines()[0]}") from None


def _whole(path, values):
    """The records, one a conversation; TopiOCQA's own files have one a turn, which are put together."""
    first = next(values, None)
    if first is None:
        return
    values = itertools.chain([first], values)
    if not (isinstance(first, dict) and _TURNWISE[0] in first):
        yield from values
        return
    turns = ([turn.get(key) if isinstance(turn, dict) else None for key in _TURNWISE] for turn in values)
    for number, turns in itertools.groupby(turns, lambda turn: turn[0]):
        yield {"id": f"{path.stem}-{number}", "conv": [{"user": u, "assistant": a} for _, u, a in turns]}


def _session(path, n, record, label):
    """Raises: ValueError when the record has no field that could hold a conversation."""
    if not isinstance(record, dict):
        raise ValueError(f"{path} record {n} is {str(record)[:60]!r}; allowed: an object with {_KEYS}")
    turns = next((record[key] for key in _LISTS if isinstance(record.get(key), list)), None)
    if turns is None and not any(key in record for key in _LISTS):
        names = ", ".join(record)[:200]
        raise ValueError(f"{path} record {n} has the fields {names}; allowed: {_KEYS}")
    ids = [record[key] for key in _IDS if isinstance(record.get(key), (str, int))]
    name = str(ids[0]) if ids else f"{label}-{n}"
    return Session(clean(name), base_of(clean(name)), label, tuple(_messages(turns or [])))


def _messages(turns):
    """Yields (role, text) of turns that are texts by turns, messages, or pairs of user's text and reply."""
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
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    return clean(content) if isinstance(content, str) else ""
