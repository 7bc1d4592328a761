"""A terminal chat with role-aware memory: `python -m infer.chat`.

Where input is no terminal, each line of it is a message (or a command), and the replies go to the output.  Without --config
it is configs/smollm2_135m.py, with --model configs/chat.py.
"""

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from absl import flags
from wcwidth import wcswidth

from infer import commands, transfer
from infer.store import Store, folder
from rhea_jax import config as configs
from rhea_jax.flags import FLAGS, read, usage
from rhea_jax.startup import prepare

_CONFIGS = Path(__file__).resolve().parent.parent / "configs"
flags.DEFINE_string("model", None, "smollm2-135m, a folder with safetensors, a .gguf file, or a hub id")
flags.DEFINE_string("adapters", None, "a folder with trained adapters for this model")
flags.DEFINE_string("recognizer", None, "a model whose verdict is added to the rules that recognize instructions")
flags.DEFINE_string("session", None, "the session to begin or to continue")
flags.DEFINE_string("prompt", None, "answer this one message and leave")
flags.DEFINE_string("system", None, "the system message")
flags.DEFINE_string("import", None, "a conversation to begin with: our export, ShareGPT, or role/content messages")
flags.DEFINE_bool("json", False, "print one JSON record per turn")
flags.DEFINE_bool("offline", False, "never ask the network")

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # would let a reply command the terminal


def read_flags(argv):
    """The Config that the command line asks for.  Raises: ValueError naming the flag or field, its value, what is allowed."""
    named = any(re.match(r"--?model(=|$)", a) for a in argv)
    values = read(argv, _CONFIGS / ("chat.py" if named else "smollm2_135m.py"))
    if FLAGS.model:
        values["weights"] = FLAGS.model
    if FLAGS.adapters:
        values["adapters"] = FLAGS.adapters
    return configs.from_dict(values)


class Chat:
    """One run of the program: a backbone, the session at hand, and how to talk to the user."""

    def __init__(self, config, interactive):
        from rich.console import Console

        self.interactive, self.history = interactive, None
        form = {"highlight": False, "emoji": False, "soft_wrap": not interactive}
        self.out, self.err = Console(**form), Console(stderr=True, **form)
        self._stop = False
        self._scratch = contextlib.ExitStack()
        self.session = None
        self.config = config

    def start(self):
        """Loads the model and opens the session, showing what takes long."""
        from infer.backbone import load_backbone, load_verdict

        with self._status("loading the model"):
            given = not FLAGS.model
            self.backbone = load_backbone(self.config, FLAGS.offline, given)
            self.log_odds = load_verdict(FLAGS.recognizer, FLAGS.offline) if FLAGS.recognizer else None
        if FLAGS.session or self.interactive:
            self.open(FLAGS.session or time.strftime("%Y-%m-%d %H.%M.%S"))
        else:
            scratch = self._scratch.enter_context(tempfile.TemporaryDirectory())
            self._use(Store("unnamed", Path(scratch) / "unnamed.sqlite"))
        if FLAGS["import"].value:
            self._import(FLAGS["import"].value)
        if FLAGS.system is not None:
            self.session.set_system(FLAGS.system)

    def _import(self, path):
        from infer import recognizer

        m = self.backbone.config.memory

        def recognize(rules, text):
            rules, _ = recognizer.update(rules, text, m.im, m.im_update)
            return rules, not (recognizer.says_only_rule(text) and m.im != "whole")

        for note in transfer.import_(self.session.store, path, recognize):
            self.note(note)
        self.session.reload(self._progress)

    def open(self, name, create=True):
        """Turns to another session; the one at hand stays if that fails."""
        self._use(Store(name, create=create))

    def _use(self, store):
        from infer.session import Session

        old = self.session
        self.session = Session(self.backbone, store, self.log_odds, self._progress)
        if old:
            old.store.close()

    def close(self):
        """Frees the session and what was only for this run."""
        if self.session:
            self.session.store.close()
        self._scratch.close()

    def _status(self, what):
        return self.err.status(what) if self.err.is_terminal else contextlib.nullcontext()

    def _progress(self, items, title):
        from rich.progress import track

        return track(items, title, console=self.err, transient=True, disable=not self.err.is_terminal)

    def note(self, text):
        """A quiet line beside the conversation."""
        self.err.print(_CONTROL.sub("", text), style="dim", markup=False)

    def confirm(self, question):
        """Asks yes or no; no where nobody can be asked."""
        if not self.interactive:
            return False
        try:
            return self.out.input(f"{question} [y/N] ", markup=False).strip().lower() in ("y", "yes", "j", "是")
        except (KeyboardInterrupt, EOFError):
            raise ValueError("stopped; nothing was changed") from None

    def unremember(self, texts):
        """Takes messages out of the input history, on disk too."""
        if self.history is not None:
            try:
                forget_input(self.history, texts)
            except OSError as error:
                raise ValueError(f"{self.history} can't be rewritten ({error.strerror}): the message is still in it") from None

    def ask(self, text=None):
        """One turn: the reply streams, then a quiet line says what was recalled.  text: None for the last message, anew."""
        self._stop, thinking = False, [None]
        lines = Lines(self.out.width if self.interactive else None)

        def say(piece, thought=False):
            thinking[0] and thinking[0].stop()
            thinking[0] = None
            show(lines.feed(_CONTROL.sub("", piece)), thought)

        def show(text, thought=False):
            if FLAGS.json or not text:
                return
            if self.interactive:
                self.out.print(text, end="", style="dim" if thought else None, markup=False, soft_wrap=True)
            else:
                sys.stdout.write(text)
            sys.stdout.flush()

        def stop(*_):
            self._stop = True

        before = signal.signal(signal.SIGINT, stop)
        try:
            if self.interactive:
                thinking[0] = self.err.status("…")
                thinking[0].start()
            stopped = lambda: self._stop  # noqa: E731
            turn = self.session.retry(say, stopped) if text is None else self.session.turn(text, say, stopped)
        finally:
            thinking[0] and thinking[0].stop()
            signal.signal(signal.SIGINT, before)
        if FLAGS.json:
            print(json.dumps(turn.record(), ensure_ascii=False), flush=True)
        else:
            show(lines.rest())
            print(flush=True)
            self._report(turn)
        if self._stop and not self.interactive:
            raise KeyboardInterrupt

    def _report(self, turn):
        for note in turn.notes:
            self.note(note)
        for c in turn.changes:
            old = f" (was: {c.old})" if c.op == "replace" else ""
            word = {"add": "rule added", "replace": "rule replaced", "cancel": "rule ended", "duplicate": "rule already known"}[c.op]
            self.note(f"{word}: {c.old if c.op == 'cancel' else c.rule}{old} — /undo takes it back")
        if turn.ended == "interrupted":
            self.note("stopped; what there is of the reply is kept, /undo removes it" if turn.stored else "stopped before the first word; nothing has changed")
        if turn.ended == "limit":
            self.note(f"the reply reached chat.max_new ({self.session.chat.max_new} tokens)")
        if self.interactive:
            self.note(status_line(turn))


class Lines:
    """Breaks streamed text between words at the terminal's width; a word is held back until its end is known."""

    _UNIT = re.compile(r"\s|[\u2e80-\uffef]|[^\s\u2e80-\uffef]+")

    def __init__(self, width):
        self.width, self.column, self.held = width, 0, ""

    def feed(self, piece):
        """What can be shown of the text so far."""
        if self.width is None:
            return piece
        units = self._UNIT.findall(self.held + piece)
        self.held = units.pop() if units and not units[-1].isspace() and ord(units[-1][0]) < 0x2E80 else ""
        return "".join(map(self._place, units))

    def rest(self):
        """The word that was held back."""
        held, self.held = self.held, ""
        return self._place(held) if held else ""

    def _place(self, unit):
        if unit == "\n":
            self.column = 0
            return unit
        wide = max(0, wcswidth(unit))
        if self.column and self.column + wide > self.width:
            self.column = 0 if unit.isspace() else wide
            return "\n" if unit.isspace() else "\n" + unit
        self.column = (self.column + wide) % self.width if wide > self.width else self.column + wide
        return unit


def status_line(turn):
    """What was recalled, in one line."""
    count = {level: sum(r[2] == level for r in turn.recall) for level in ("raw", "latent", "user", "omitted")}
    named = [f"{count['raw']} raw", *([f"{count['latent']} latent"] if count["latent"] else []),
             *([f"{count['user']} question only"] if count["user"] else []), f"{count['omitted']} left out"]
    speed = f", {turn.speed:.0f} a second" if turn.speed else ""
    return f"recalled: {', '.join(named)} · rules: {len(turn.instructions)} · {turn.prompt_tokens} tokens in, {turn.new_tokens} out{speed}"


def forget_input(path, texts):
    """Rewrites prompt_toolkit's history file without these messages."""
    from prompt_toolkit.history import FileHistory

    texts = {t.strip() for t in texts}
    kept = [s for s in FileHistory(str(path)).load_history_strings() if s.strip() not in texts] if path.exists() else []
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        part.touch(0o600)
        rewritten = FileHistory(str(part))
        for s in reversed(kept):
            rewritten.store_string(s)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def on_terminal(chat):
    """Reads messages with history and paste until Ctrl-D or /quit."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings

    class History(FileHistory):
        def store_string(self, string):
            with contextlib.suppress(OSError):  # a full disk is no reason to stop talking
                super().store_string(string)

    chat.history = folder().parent / "history"
    chat.history.touch(0o600)
    keys = KeyBindings()
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    made = lambda: PromptSession("> ", history=History(str(chat.history)), key_bindings=keys)  # noqa: E731
    prompt, seen = made(), chat.history.stat().st_ino
    while True:
        try:
            text = prompt.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return 0
        if not text.strip():
            continue
        try:
            answer(chat, text)
        except EOFError:
            return 0
        except KeyboardInterrupt:
            chat.note("stopped")
        except ValueError as error:
            chat.err.print(_CONTROL.sub("", f"error: {error}"), style="red", markup=False)
        if chat.history.stat().st_ino != seen:
            prompt, seen = made(), chat.history.stat().st_ino


def answer(chat, text):
    """A message or a command.  Raises: ValueError for either, EOFError to leave."""
    if text.startswith("/") and not text.startswith("//"):
        shown = commands.run(chat, text.strip())
        if shown:
            (chat.err if FLAGS.json else chat.out).print(_CONTROL.sub("", shown), markup=False)
    else:
        chat.ask(text[1:] if text.startswith("//") else text)


def on_lines(chat, lines):
    """Answers line by line; a bad line is reported and the rest goes on.  Returns the exit code."""
    code = 0
    for line in lines:
        text = line.rstrip("\r\n")
        try:
            answer(chat, text)
        except EOFError:
            break
        except ValueError as error:
            code = 2
            print(_CONTROL.sub("", f"error: {error}"), file=sys.stderr)
            if FLAGS.json:
                print(json.dumps({"user": text, "error": str(error)}, ensure_ascii=False), flush=True)
    return code


def out_of_memory(error):
    """One line for a device that has no memory left, or None for another error of the runtime."""
    text = " ".join(str(error).split())
    if "RESOURCE_EXHAUSTED" not in text and "Out of memory" not in text:
        return None
    asked = re.search(r"allocat\w+ [\d.]+ ?\w+|[\d.]+[GMK]i?B?", text)
    return (f"the device is out of memory ({asked[0] if asked else text[:120]}); nothing stored is lost; "
            "lower --config.chat.context or --config.chat.max_new, or set --config.dtype=bfloat16")


def main(argv):
    interactive = False
    chat = None
    try:
        for n, stream in enumerate(("stdin", "stdout", "stderr")):
            if getattr(sys, stream) is None:  # closed by whoever started us
                setattr(sys, stream, open(os.devnull, "w" if n else "r"))
            getattr(sys, stream).reconfigure(encoding="utf-8", errors="replace")
        config = read_flags(argv)
        if FLAGS.help:
            print(usage(__doc__, "adapters", "import", "json", "model", "offline", "prompt", "recognizer", "session", "system"))
            return 0
        interactive = sys.stdin.isatty() and sys.stdout.isatty() and FLAGS.prompt is None and not FLAGS.json
        prepare()
        import jax

        chat = Chat(config, interactive)
        chat.start()
        b = chat.backbone
        chat.note(f"{b.config.weights}, {b.config.dtype} on {jax.default_backend()}, context {b.config.chat.context}"
                  + (f"; session {chat.session.store.name!r}; /help" if interactive else ""))
        if interactive:
            return on_terminal(chat)
        return on_lines(chat, [FLAGS.prompt] if FLAGS.prompt is not None else (line for line in sys.stdin if line.strip()))
    except ValueError as error:
        print(_CONTROL.sub("", f"error: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:
        if (line := out_of_memory(error)) is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        return 2
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in its buffer goes nowhere
        if isinstance(error, BrokenPipeError):
            return 0
        print(f"error: the output can't be written: {error.strerror or error}", file=sys.stderr)
        return 2
    finally:
        if chat:
            chat.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
