"""The chat's commands: each takes the chat and the words behind its name, and returns what to show."""

from collections import Counter

from infer import store as stores
from infer import transfer
from rhea_jax import context

HELP = """/why            each exchange with score and level in the last turn
/why prompt     the exact prompt; a \\ marks a text that looks like a control token
/memory         the stored exchanges; show N, pin N, unpin N, forget N
/instructions   the rules in force; add TEXT, edit N TEXT, remove N, history
/forget N       deletes exchange N for good, from every file
/undo           takes the last exchange back, with what it did to the rules
/retry          answers the last message again (greedy decoding: the same way)
/system [TEXT]  shows or sets the system message; - goes back to the model's own
/sessions       all sessions; /load NAME continues one, /save NAME copies this
/export FILE    this session as JSON Lines
/stats          tokens and seconds of this session
/quit           leaves; so does Ctrl-D
Ctrl-C stops a reply and keeps what there is of it; Esc Enter starts a new line.
A message that begins with // is sent with one slash less."""


def run(chat, line):
    """Runs one command line and returns its text.  Raises: ValueError for an unknown command or argument."""
    name, _, rest = line[1:].partition(" ")
    command = COMMANDS.get(name.lower())
    if command is None:
        raise ValueError(f"/{name} is no command; /help lists them, a message that begins with / is sent by //")
    return command(chat, rest.strip())


def help_(chat, rest):
    return HELP


def why(chat, rest):
    turn = chat.session.last
    if turn is None or turn.plan is None:
        return "nothing was asked yet in this run"
    if rest == "prompt":
        return context.show(chat.session.backbone.tokenizer, turn.plan)
    m = chat.session.memory
    rule = f"the best {m.top}" if m.score == "bm25" else f"raw above {m.tau_high}, latent from {m.tau_low}"
    lines = [f"score: {m.score}, {rule}; the latest {m.recent} always raw" if m.recent else f"score: {m.score}, {rule}"]
    texts = {e.id: e.user for e in chat.session.exchanges}
    lines += [f"{i:>4}  {'     -' if score is None else f'{score:6.3f}'}  {level:<8} {_line(texts.get(i, ''))}" for i, score, level in turn.recall]
    lines += [f"rule  {r}" + "  (over memory.im_cap: not in the prompt)" * (r in turn.unseen) for r in turn.instructions]
    return "\n".join(lines + [f"prompt: {turn.prompt_tokens} tokens; /why prompt shows it"])


def memory(chat, rest):
    words = rest.split()
    if not words:
        rows = [f"{e.id:>4} {'*' if e.pinned else ' '}{'rule ' if not e.episodic else ''}{_line(e.user)}  ->  {_line(e.reply)}" for e in chat.session.exchanges]
        return "\n".join(rows) or "no exchanges yet"
    if words[0] not in ("show", "pin", "unpin", "forget") or len(words) != 2:
        raise ValueError(f"/memory {rest}; allowed: show N, pin N, unpin N, forget N")
    number = _number(words[1])
    if words[0] == "forget":
        return forget(chat, words[1])
    if words[0] == "show":
        found = [e for e in chat.session.exchanges if e.id == number]
        if not found:
            raise ValueError(f"exchange {number} is not in memory")
        return f"{found[0].user}\n\n{found[0].reply}"
    chat.session.pin(number, words[0] == "pin")
    return f"exchange {number} is {'always recalled whole' if words[0] == 'pin' else 'recalled by its score'}"


def instructions(chat, rest):
    session, (verb, _, tail) = chat.session, rest.partition(" ")
    rules = list(session.rules)
    if not verb:
        return "\n".join(f"{n:>3}  {r}" for n, r in enumerate(rules, 1)) or "no rules yet"
    if verb == "history":
        return "\n".join(f"{'now ' if active else 'gone'}  {text}" for text, _, _, active in session.store.history()) or "no rules yet"
    if verb == "add" and tail:
        session.set_rules([*rules, tail])
        return f"rule {len(rules) + 1} added"
    number, _, text = tail.partition(" ")
    if verb not in ("edit", "remove") or (verb == "edit" and not text):
        raise ValueError(f"/instructions {rest}; allowed: add TEXT, edit N TEXT, remove N, history")
    at = _number(number) - 1
    if not 0 <= at < len(rules):
        raise ValueError(f"rule {number} does not exist; allowed: 1 to {len(rules)}")
    rules[at : at + 1] = [text] if verb == "edit" else []
    session.set_rules(rules)
    return f"rule {number} {'changed' if verb == 'edit' else 'removed'}"


def forget(chat, rest):
    number, session = _number(rest), chat.session
    born = session.store.born(number)
    rules_too = bool(born) and chat.confirm(f"it brought the rule {born[0]!r}; remove that too?")
    said = [e.user for e in session.exchanges if e.id == number]
    session.forget(number, rules_too)
    chat.unremember(said)
    return f"exchange {number} is deleted" + (", with its rule" if rules_too else ", its rule stays" if born else "")


def undo(chat, rest):
    gone = chat.session.undo()
    if gone is None:
        return "nothing to undo"
    chat.unremember([gone.user])
    return f"taken back: {_line(gone.user)}"


def retry(chat, rest):
    if not chat.session.exchanges:
        return "nothing to retry"
    chat.ask()
    return ""


def system(chat, rest):
    if rest:
        chat.session.set_system(None if rest == "-" else rest)
    return f"system message: {chat.session.system or '(the model’s own)'}"


def sessions(chat, rest):
    return "\n".join(f"{'*' if name == chat.session.store.name else ' '} {name}" for name, _ in stores.names()) or "no sessions yet"


def save(chat, rest):
    if not rest:
        raise ValueError("/save needs a name for the copy")
    chat.session.store.copy(rest)
    return f"copied to session {rest!r}; this one goes on"


def load(chat, rest):
    if not rest:
        raise ValueError("/load needs the name of a session; /sessions lists them")
    chat.open(rest, create=False)
    return f"session {rest!r}: {_count(chat.session.exchanges, 'exchange')}, {_count(chat.session.rules, 'rule')}"


def export(chat, rest):
    if not rest:
        raise ValueError("/export needs a file name")
    return f"{transfer.export(chat.session.store, rest)} exchanges and rules written to {rest}"


def stats(chat, rest):
    turns = [e.info for e in chat.session.exchanges if e.info]
    levels = Counter(r["level"] for t in turns for r in t.get("recall", []))
    lines = [f"{_count(chat.session.exchanges, 'exchange')}, {_count(chat.session.rules, 'rule')}, "
             f"{sum(t.get('prompt_tokens', 0) for t in turns)} prompt and {sum(t.get('new_tokens', 0) for t in turns)} new tokens",
             "recalled in all turns: " + (", ".join(f"{n} {level}" for level, n in sorted(levels.items())) or "nothing yet")]
    if chat.session.last:
        lines.append("last turn: " + ", ".join(f"{k} {v:.2f} s" for k, v in chat.session.last.seconds.items()))
    return "\n".join(lines)


def quit_(chat, rest):
    raise EOFError


def _number(text):
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no number of an exchange or rule")
    return int(text)


def _count(things, name):
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"


def _line(text, width=60):
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


COMMANDS = {"help": help_, "why": why, "memory": memory, "instructions": instructions, "forget": forget, "undo": undo, "retry": retry,
            "system": system, "sessions": sessions, "save": save, "load": load, "export": export, "stats": stats, "quit": quit_}
