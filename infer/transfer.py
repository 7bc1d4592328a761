"""Conversations in and out as JSON Lines; ShareGPT-shaped and role/content conversations in."""

import json
import os
import re
from pathlib import Path

from infer.store import Exchange, Rule
from rhea_jax.text import ROLES

FORMAT, VERSION = "rhea_jax session", 2
_FORMS = "a session's export, ShareGPT conversations (from, value) or messages (role, content)"
_TEXT, _NUMBER, _ID = (str,), (int, float), (int, type(None))


def export(store, path):
    """Writes a session to a new file in one step: a header with the system message, a line per exchange and rule.

    {"format", "version", "system"}, {"id", "user", "assistant", "episodic", "pinned", "made", "info"},
    {"rule", "born", "made", "gone_by", "gone"}: all rules ever, in order; those in force have gone null.
    Latents are not written: they belong to a model and are made anew from the text.
    """
    lines = [{"format": FORMAT, "version": VERSION, "system": store.get("system")}]
    lines += [{"id": e.id, "user": e.user, "assistant": e.reply, "episodic": e.episodic, "pinned": e.pinned,
               "made": e.made, "info": e.info} for e in store.exchanges()]
    lines += [{"rule": r.text, "born": r.born, "made": r.made, "gone_by": r.gone_by, "gone": r.gone}
              for r in store.every_rule()]
    path = Path(path).expanduser()
    if path.exists():
        raise ValueError(f"{path} exists; allowed: a new file")
    part = Path(f"{path}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ValueError(f"{path} can't be written: {error.strerror}") from None
    return len(lines) - 1


def import_(store, path, recognize):
    """Reads a conversation into an empty session, wholly or not at all; notes say what had to be left out.

    path: of several conversations in a file, FILE#N is the N-th.
    recognize: (rules, text) -> (rules, whether the exchange is more than a rule); our export brings both.
    Raises: ValueError naming file and line.
    """
    if store.exchanges() or store.every_rule():
        raise ValueError(f"session {store.name!r} already holds exchanges or rules; allowed: a new session")
    path, pick = _picked(str(path))
    values, unit = _values(path)
    own = values and isinstance(values[0], dict) and values[0].get("format") == FORMAT
    if own:
        system, exchanges, rules = _own(path, values)
        pairs, notes = exchanges, []
    else:
        system, pairs, notes = _pairs(*_conversation(path, values, unit, pick))
    with store.transaction():
        if system is not None:
            store.put("system", system)
        if own:
            store.fill(exchanges, rules)
        else:
            held = ()
            for user, reply in pairs:
                held, episodic = recognize(held, user)
                store.commit(user, reply, held, episodic)
    return [f"{len(pairs)} exchanges read from {path}", *notes]


def _picked(path):
    """(file, number or None) of FILE or FILE#N; a file whose name ends so comes first."""
    found = re.fullmatch(r"(.+)#(\d{1,9})", path)
    return (found[1], int(found[2])) if found and not os.path.exists(path) else (path, None)


def _values(path):
    """([value], what one of them is called) of a file that is one JSON value or one a line."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} can't be read: byte {error.start} is no UTF-8") from None
    # Not splitlines(): a text may hold U+2028 and its like as they are.
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    n = 1
    try:
        try:
            value = json.loads(text) if lines else []
            return (value, "item") if isinstance(value, list) else ([value], "item")
        except json.JSONDecodeError as error:
            if error.msg != "Extra data":
                raise
        values = []
        for n, line in lines:  # noqa: B007 (the errors below name it)
            values.append(json.loads(line))
        return values, "line"
    except json.JSONDecodeError as error:
        line = n + error.lineno - 1
        raise ValueError(f"{path} line {line} is no JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError(f"{path} line {n} is nested too deep; allowed: {_FORMS}") from None


def _conversation(path, values, unit, pick):
    """(where, what a message is called, messages) of the one conversation that is asked for."""
    if values and all(isinstance(v, dict) and ("role" in v or "from" in v) for v in values):
        return path, "message" if unit == "item" else unit, values
    if not values:
        raise ValueError(f"{path} holds no conversation; allowed: {_FORMS}")
    if pick is None and len(values) > 1:
        raise ValueError(f"{path} holds {len(values)} conversations; allowed: one, such as {path}#1")
    if pick is not None and not 1 <= pick <= len(values):
        raise ValueError(f"{path}#{pick}: allowed: #1 to #{len(values)}")
    value = values[(pick or 1) - 1]
    if isinstance(value, dict):
        value = value.get("messages", value.get("conversations"))
    if not isinstance(value, list):
        raise ValueError(f"{path} {unit} {pick or 1} is no conversation; allowed: {_FORMS}")
    return f"{path} {unit} {pick or 1}" if len(values) > 1 else path, "message", value


def _pairs(where, unit, messages):
    """(system, exchanges, notes): a leading reply answers an empty message, equal neighbours are joined."""
    system, turns, notes = None, [], []
    for n, m in enumerate(messages, 1):
        m = m if isinstance(m, dict) else {}
        role, text = m.get("role", m.get("from")), m.get("content", m.get("value"))
        who = ROLES.get(role) if isinstance(role, str) else None
        if who is None:
            raise ValueError(f"{where} {unit} {n} has role {role!r}; allowed: {', '.join(ROLES)}")
        if not isinstance(text, str):
            raise ValueError(f"{where} {unit} {n} has content {str(text)[:60]!r}; allowed: a text")
        if who == "system":
            system = text if system is None else f"{system}\n\n{text}"
        elif turns and turns[-1][0] == who:
            turns[-1] = (who, f"{turns[-1][1]}\n\n{text}")
        else:
            turns.append((who, text))
    if turns and turns[0][0] == "assistant":
        turns.insert(0, ("user", ""))
    if turns and turns[-1][0] == "user":
        notes.append(f"the last message has no reply and is left out: {turns.pop()[1][:60]!r}")
    return system, [(turns[i][1], turns[i + 1][1]) for i in range(0, len(turns), 2)], notes


def _own(path, values):
    """(system, exchanges, rules) of our own export; version 1 had no ids, times, records and ended rules."""
    if values[0].get("version") not in (1, VERSION):
        raise ValueError(f"{path} has version {values[0].get('version')!r} of the export format; "
                         f"allowed: 1 to {VERSION}")
    exchanges, rules = [], []
    system = _field(path, 1, values[0], "system", (str, type(None)), None)
    for n, line in enumerate(values[1:], 2):
        def field(key, kinds, *default, n=n, line=line):
            return _field(path, n, line, key, kinds, *default)

        if isinstance(line, dict) and "rule" in line:
            rules.append(Rule(field("rule", _TEXT), field("born", _ID, None), field("made", _NUMBER, 0.0),
                              field("gone_by", _ID, None), field("gone", (*_NUMBER, type(None)), None)))
        else:
            last = exchanges[-1].id if exchanges else 0
            exchanges.append(Exchange(
                field("id", (int,), last + 1), field("user", _TEXT), field("assistant", _TEXT),
                field("episodic", (bool,)), field("pinned", (bool,)), field("made", _NUMBER, 0.0),
                field("info", (dict,), {})))
            if exchanges[-1].id <= last:
                raise ValueError(f"{path} line {n} has id {exchanges[-1].id}; allowed: more than {last}")
    return system, exchanges, rules


def _field(path, n, line, key, kinds, *default):
    """A field of an export's line, of one of these kinds."""
    value = line.get(key, *default) if isinstance(line, dict) else None
    odd = isinstance(value, bool) and bool not in kinds
    large = isinstance(value, _NUMBER) and not abs(value) < 2**53
    if odd or large or not isinstance(value, kinds):
        raise ValueError(f"{path} line {n} has {key} {str(value)[:60]!r}; allowed: "
                         + " or ".join("null" if k is type(None) else k.__name__ for k in kinds))
    return value
