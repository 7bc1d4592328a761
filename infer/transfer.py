"""Conversations in and out as JSON Lines; ShareGPT-shaped and role/content conversations in."""

import json
import os
from pathlib import Path

FORMAT = "rhea_jax session"
_USER, _ASSISTANT = {"human", "user"}, {"gpt", "assistant", "chatgpt", "bing", "bard", "model"}


def export(store, path):
    """Writes a session: a header with the system message, then one line per exchange, then the rules in force; in one step."""
    lines = [{"format": FORMAT, "version": 1, "system": store.get("system")}]
    lines += [{"user": e.user, "assistant": e.reply, "episodic": e.episodic, "pinned": e.pinned} for e in store.exchanges()]
    lines += [{"rule": r} for r in store.rules()]
    part = Path(f"{path}.part")
    try:
        part.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise ValueError(f"{path} can't be written: {error.strerror}") from None
    return len(lines) - 1


def import_(store, path, recognize):
    """Reads a conversation into a session that is still empty; notes say what had to be left out.

    recognize: (rules, text) -> (rules, whether the exchange is more than a rule); our own export brings both along.
    Raises: ValueError naming file and line.
    """
    if store.exchanges():
        raise ValueError(f"session {store.name!r} already holds exchanges; allowed: import into a new one")
    system, pairs, rules, notes = _read(path)
    if system:
        store.put("system", system)
    held = ()
    for user, reply, episodic, pinned in pairs:
        if episodic is None:
            held, episodic = recognize(held, user)
        made = store.commit(user, reply, held, episodic)
        if pinned:
            store.pin(made.id)
    if rules is not None:
        store.set_rules(rules)
    return [f"{len(pairs)} exchanges read from {path}", *notes]


def _read(path):
    """(system, [(user, reply, episodic or None, pinned)], rules or None, notes) of a file of any of the three forms."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} can't be read: {error}") from None
    try:
        values = [json.loads(text)]
    except json.JSONDecodeError:
        values = []
        for n, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    values.append(json.loads(line))
                except json.JSONDecodeError as error:
                    raise ValueError(f"{path} line {n} is no JSON: {error}") from None
    if not values:
        raise ValueError(f"{path} is empty; allowed: a session's export, a ShareGPT conversation, or role/content messages")
    if isinstance(values[0], dict) and values[0].get("format") == FORMAT:
        return _own(path, values)
    if all(isinstance(v, dict) and "role" in v for v in values):
        values = [values]
    if len(values) == 1 and isinstance(values[0], list) and values[0] and all(isinstance(v, dict) and "conversations" in v for v in values[0]):
        values = values[0]
    if len(values) > 1:
        raise ValueError(f"{path} holds {len(values)} conversations; allowed: one")
    value = values[0]
    messages = value if isinstance(value, list) else value.get("messages") or value.get("conversations") if isinstance(value, dict) else None
    if not isinstance(messages, list):
        raise ValueError(f"{path} has no list of messages; allowed: messages with role and content, or conversations with from and value")
    return (*_pairs(path, messages), )


def _own(path, values):
    if values[0].get("version") != 1:
        raise ValueError(f"{path} has version {values[0].get('version')!r} of the export format; allowed: 1")
    try:
        pairs = [(v["user"], v["assistant"], v["episodic"], v["pinned"]) for v in values[1:] if "rule" not in v]
    except KeyError as error:
        raise ValueError(f"{path}: a line lacks {error}") from None
    return values[0].get("system"), pairs, [v["rule"] for v in values[1:] if "rule" in v], []


def _pairs(path, messages):
    """Exchanges of a list of messages: a leading reply answers an empty message, neighbours of one role are joined."""
    system, turns, notes = None, [], []
    for n, m in enumerate(messages, 1):
        role, text = (m.get("role") or m.get("from"), m.get("content", m.get("value"))) if isinstance(m, dict) else (None, None)
        if role == "system" and isinstance(text, str):
            system = text if system is None else f"{system}\n\n{text}"
            continue
        who = "user" if role in _USER else "assistant" if role in _ASSISTANT else None
        if who is None or not isinstance(text, str):
            raise ValueError(f"{path} message {n} has role {role!r}; allowed: system, user, assistant, human, gpt, each with a text")
        if turns and turns[-1][0] == who:
            turns[-1] = (who, f"{turns[-1][1]}\n\n{text}")
        else:
            turns.append((who, text))
    if turns and turns[0][0] == "assistant":
        turns.insert(0, ("user", ""))
    if turns and turns[-1][0] == "user":
        notes.append(f"the last message has no reply and is left out: {turns.pop()[1][:60]!r}")
    return system, [(turns[i][1], turns[i + 1][1], None, False) for i in range(0, len(turns), 2)], None, notes
