"""One conversation with two memories: recognize, score, recall, build, generate, store (the turn of DESIGN's figure)."""

import contextlib
import time
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import regex

from infer import recognizer
from infer.lexical import Index, words
from rhea_jax import context, generate, memory
from rhea_jax.context import Exchange
from rhea_jax.memory import LATENT, OMIT, RAW
from rhea_jax.text import clean

LEVELS = {OMIT: "omitted", LATENT: "latent", RAW: "raw"}
_BLANK = regex.compile(r"[\s\p{Z}\p{Cf}\p{Cc}]*")
_THOUGHT = regex.compile(r"<think>(.*?)(?:</think>\s*|$)", regex.DOTALL)


@dataclass
class Turn:
    """What one turn did, for the screen, for JSON and for `/why`."""

    user: str
    reply: str = ""
    thought: str = ""
    instructions: tuple = ()  # the rules in force,
    unseen: tuple = ()  # and those of them that the cap keeps out of the prompt
    changes: tuple = ()
    recall: list = field(default_factory=list)  # (exchange id, score, level name)
    prompt_tokens: int = 0
    new_tokens: int = 0
    seconds: dict = field(default_factory=lambda: dict.fromkeys(("recognize", "compress", "retrieve", "prefill", "decode"), 0.0))
    notes: list = field(default_factory=list)
    plan: context.Plan | None = None
    ended: str = "end"  # end, limit, stop string or interrupted
    stored: bool = False
    speed: float | None = None  # new tokens a second, without the first block, which may have had to compile

    def record(self):
        """The turn as plain values, the record of `--json`."""
        return {"user": self.user, "reply": self.reply, "instructions": list(self.instructions),
                "recall": [{"exchange": i, "score": None if score is None else round(float(score), 4), "level": level}
                           for i, score, level in self.recall],
                "prompt_tokens": self.prompt_tokens, "new_tokens": self.new_tokens,
                "seconds": {k: round(v, 4) for k, v in self.seconds.items()}, "notes": self.notes, "ended": self.ended}


class _Clock:
    """Adds the time between two calls to a stage."""

    def __init__(self, seconds):
        self.seconds, self.last = seconds, time.perf_counter()

    def __call__(self, stage):
        now = time.perf_counter()
        self.seconds[stage] += now - self.last
        self.last = now


class Session:
    """The state of one conversation around the pure functions; everything durable is in its store."""

    def __init__(self, backbone, store, log_odds=None, progress=lambda items, title: items):
        self.backbone, self.store, self._log_odds = backbone, store, log_odds
        self.memory, self.chat = backbone.config.memory, backbone.config.chat
        self.last = None
        self._said_fallback = False
        self.reload(progress)

    # --- state ---

    def reload(self, progress=lambda items, title: items):
        """Takes exchanges, rules and latents from the store; latents of another model are made anew from the text."""
        self.exchanges, self.rules = self.store.exchanges(), tuple(self.store.rules())
        self._index = Index()
        self._index.change([_terms(e) for e in self.exchanges])
        self._rows, self._bank = [], memory.init_bank(self.memory, self.backbone.model.width, 64)
        self._system_latents = None
        system = self.system or self.backbone.tokenizer.default_system
        if self.memory.system == "latent" and system:
            latents = self._compress(system)
            self._system_latents = Exchange("", system, self._bank.count, len(latents))
            self._bank = memory.store(self._bank, latents, -1)  # nobody's: never scored
        if self._needs_latents:
            stored = self.store.latents(self.backbone.fingerprint)
            missing = [e for e in self.exchanges if e.id not in stored]
            for e in progress(missing, "compressing stored replies") if missing else []:
                stored[e.id] = np.asarray(self._compress(e.reply))
                self.store.put_latents(e.id, stored[e.id], self.backbone.fingerprint)
            for e in self.exchanges:
                self._remember(stored[e.id])
        else:
            self._rows = [(0, 0)] * len(self.exchanges)

    @property
    def system(self):
        """The system message of this conversation, or None for the model's own."""
        return self.store.get("system")

    @property
    def _needs_latents(self):
        return self.backbone.adapters is not None

    @property
    def key(self):
        """What sampling draws from in the next turn: the seed and the number that its exchange will have."""
        return jax.random.fold_in(jax.random.key(self.chat.seed), self.store.next_id())

    def _compress(self, text):
        b = self.backbone
        return generate.compress_text(b.model, b.params, b.adapters, b.tokenizer, self.memory, text)

    def _remember(self, latents_WMD):
        self._rows.append((self._bank.count, len(latents_WMD)))
        self._bank = memory.store(self._bank, jnp.asarray(latents_WMD), len(self._rows) - 1)

    # --- a turn ---

    def turn(self, text, say=lambda piece, thought=False: None, stopped=lambda: False):
        """Answers a message; `say` gets the reply as it comes, `stopped` is asked between blocks.

        A stopped reply is kept as far as it came, if it has a visible character; otherwise the turn leaves no trace.
        Raises: ValueError for a message that is empty or does not fit, before anything has changed.
        """
        turn = Turn(user=clean(text))
        if _BLANK.fullmatch(turn.user):
            raise ValueError("the message is empty; allowed: at least one visible character")
        clock = _Clock(turn.seconds)
        rules, turn.changes, episodic = self._recognize(turn.user)
        clock("recognize")
        shown = self._capped(rules, turn)
        turn.instructions = rules
        query = self._compress(turn.user) if self._needs_latents and self.exchanges and self.memory.score != "bm25" else None
        if query is not None:
            query.block_until_ready()
        clock("compress")
        turn.plan = self._recall(turn, shown, query)
        clock("retrieve")
        with contextlib.suppress(_Stopped):
            self._answer(turn, say, stopped, clock)
        if turn.ended == "interrupted" and _BLANK.fullmatch(turn.reply):
            self.last = turn
            return turn
        self._keep(turn, rules, episodic, clock)
        return turn

    def _recognize(self, text):
        """(rules after the message, changes, whether its exchange is more than the rule)."""
        m, found = self.memory, None
        if self._log_odds is not None and not recognizer.is_global(text):
            if recognizer.combine(False, text, self._log_odds(text)):
                found = [text.strip()]
        rules, changes = recognizer.update(self.rules, text, m.im, m.im_update, found)
        return rules, changes, not (recognizer.says_only_rule(text) and m.im != "whole")

    def _capped(self, rules, turn):
        """The rules that go into the prompt: the newest within memory.im_cap tokens; what falls out is named beforehand."""
        kept, out, total, cap = [], [], 0, self.memory.im_cap
        for rule in reversed(rules):
            size = len(self.backbone.tokenizer.encode(rule))
            fits = total + size <= cap
            (kept if fits else out).insert(0, rule)
            total += size * fits
        if out:
            turn.notes.append(f"rules are over memory.im_cap ({cap} tokens); in force but not in the prompt: "
                              + ", ".join(repr(r[:60]) for r in out[:8]) + f" and {len(out) - 8} more" * (len(out) > 8))
        elif total > 0.8 * cap and len(rules) > 1:
            turn.notes.append(f"rules take {total} of {cap} tokens; the next to fall out is {rules[0][:60]!r}")
        turn.unseen = tuple(out)
        return kept

    def score(self, text, query=None):
        """The score of every stored exchange for a text, numpy [E]: BM25, or Eq. 4 over latents [Q, M, D]."""
        if self.memory.score == "bm25":
            return self._index.scores(words(text))
        if not self.exchanges:
            return np.zeros(0, np.float32)
        size = len(self._bank.owner)
        return np.asarray(memory.scores(query, self._bank.latents, self._bank.owner, size, self.memory.score))[: len(self.exchanges)]

    def levels(self, score_E):
        """The level of every exchange before any budget; -inf scores and exchanges that are rules alone are omitted."""
        m, E = self.memory, len(self.exchanges)
        level = np.zeros(E, int)
        if m.score == "bm25":
            best = [e for e in np.argsort(-score_E, kind="stable") if score_E[e] > 0 and self.exchanges[e].episodic]
            level[best[: m.top]] = RAW
        elif E:
            level = memory.resolve(score_E, m.tau_low, m.tau_high)
            if not self.backbone.trained:
                level[level == LATENT] = RAW
        for e in range(E):
            if not self.exchanges[e].episodic:
                level[e] = OMIT
            if self.exchanges[e].pinned or (m.keep_first and e == 0):
                level[e] = RAW
        episodic = [e for e in range(E) if self.exchanges[e].episodic]
        level[episodic[max(0, len(episodic) - m.recent) :]] = RAW
        return level

    def _recall(self, turn, rules, query):
        """Scores, levels and the prompt that they make, demoted until it fits."""
        score = self.score(turn.user, query)
        level = self.levels(score)
        bare = self._build(rules, [], turn.user)
        room = generate.room(self.chat)
        if len(bare) > room:
            raise ValueError(f"the message takes {len(bare)} tokens with rules and system message; allowed: {room} "
                             f"(chat.context {self.chat.context} less chat.max_new {self.chat.max_new}); shorten it, nothing was stored")
        budget = room - len(bare) if self.memory.budget is None else min(self.memory.budget, room - len(bare))
        wanted = level.copy()
        spare = budget
        while True:
            level, _ = memory.demote(level, score, self._cost, (), spare)
            plan = self._build(rules, [(i, level[i]) for i in np.flatnonzero(level)], turn.user)
            if len(plan) - len(bare) <= budget or not level.any():
                break
            spare -= len(plan) - len(bare) - budget  # where a template has no control tokens, costs are a token or two off
        if lowered := np.flatnonzero(level != wanted).tolist():
            turn.notes.append(f"{len(lowered)} recalled exchanges lowered to fit {budget} tokens: "
                              + ", ".join(f"{self.exchanges[e].id} to {self._name(e, level[e])}" for e in lowered[:8]))
        if not self.backbone.trained and not self._said_fallback:
            self._said_fallback = True
            how = "BM25 (the best few whole)" if self.memory.score == "bm25" else f"{self.memory.score} cosine of an untrained compressor"
            turn.notes.append(f"no trained adapters for this model: replies are recalled whole or not at all, scored by {how}")
        turn.recall = [(e.id, score[i] if np.isfinite(score[i]) else None, self._name(i, level[i])) for i, e in enumerate(self.exchanges)]
        return plan

    def _name(self, i, level):
        return "user" if level == LATENT and not self.backbone.trained else LEVELS[int(level)]

    def _exchange(self, i):
        e = self.exchanges[i]
        return Exchange(e.user, e.reply, *self._rows[i])

    def _cost(self, i, level):
        return context.cost(self.backbone.tokenizer, self.memory, self.memory.layout, self._exchange(i), level, self.backbone.trained)

    def _build(self, rules, recalled, text):
        recalled = [(self.exchanges[i].id, self._exchange(i), level) for i, level in recalled]
        return context.build(self.backbone.tokenizer, self.memory, self.memory.layout, self.system, rules, recalled, text, self.backbone.trained,
                             self._system_latents)

    def _answer(self, turn, say, stopped, clock):
        """Generates, splits thoughts from the reply, and hands both on as they come."""
        def between():
            if stopped():
                turn.ended = "interrupted"
                raise _Stopped

        b, turn.prompt_tokens = self.backbone, len(turn.plan)
        blocks = generate.generate(b.model, b.params, b.gen, self.chat, turn.plan.hybrid, self._bank.latents, b.tokenizer.ends,
                                   self.key, between)
        counted = _Counter(blocks, b.tokenizer.ends, stopped, lambda: clock("prefill"))
        said = thought = 0
        whole = ""
        for piece in b.tokenizer.stream(counted):
            whole += piece
            turn.reply, turn.thought = split_thought(whole)
            cut = [at for s in self.chat.stop if (at := turn.reply.find(s)) >= 0]
            if cut:
                turn.reply, counted.ended = turn.reply[: min(cut)], "stop string"
            if len(turn.thought) > thought:
                say(turn.thought[thought:], True)
                thought = len(turn.thought)
            ready = turn.reply if counted.ended else _held_back(turn.reply, self.chat.stop)
            if len(ready) > said:
                say(ready[said:], False)
                said = len(ready)
            if cut:
                break
        if len(turn.reply) > said:
            say(turn.reply[said:], False)
        turn.new_tokens, turn.ended, turn.speed = counted.count, counted.ended or "limit", counted.speed()
        clock("decode")
        if not turn.reply.strip():
            turn.notes.append("the model ended its reply at once" if turn.ended == "end" else "the reply is empty")

    def _keep(self, turn, rules, episodic, clock):
        """Stores exchange and rules in one transaction, then the latents of the stored text."""
        info = {k: v for k, v in turn.record().items() if k in ("recall", "prompt_tokens", "new_tokens", "ended")}
        info["recall"] = [r for r in info["recall"] if r["level"] != "omitted"]
        stored = self.store.commit(turn.user, turn.reply, rules, episodic, info)
        self.exchanges.append(stored)
        self.rules, turn.stored, self.last = rules, True, turn
        self._index.change([*self._index.documents, _terms(stored)])
        if self._needs_latents:
            clock("decode")
            latents = np.asarray(self._compress(stored.reply))
            self._remember(latents)
            clock("compress")
            self.store.put_latents(stored.id, latents, self.backbone.fingerprint)
        else:
            self._rows.append((0, 0))

    # --- edits ---

    def retry(self, say=lambda piece, thought=False: None, stopped=lambda: False):
        """Answers the last message again; the new exchange takes the old one's place only once it is stored.  None: no exchange."""
        try:
            with self.store.transaction():
                if (gone := self.undo()) is None:
                    return None
                turn = self.turn(gone.user, say, stopped)
                if not turn.stored:
                    raise _Stopped
                self.pin(self.exchanges[-1].id, gone.pinned)
        except BaseException as error:
            self.reload()
            if not isinstance(error, _Stopped):
                raise
        else:
            self.store.scrub()
        return turn

    def undo(self):
        """Takes the last exchange back, with what it did to the rules; None if there is none."""
        gone = self.store.undo()
        if gone:
            self.last = None
            self.reload()
        return gone

    def forget(self, exchange, rules_too=False):
        """Deletes an exchange for good.  Raises: ValueError for a number that is not in memory."""
        if exchange not in {e.id for e in self.exchanges}:
            raise ValueError(f"exchange {exchange} is not in memory; allowed: {', '.join(str(e.id) for e in self.exchanges[-12:]) or 'none yet'}")
        self.store.forget(exchange, rules_too)
        context.cost.cache_clear()
        self.last = None  # its prompt may quote what was forgotten
        self.reload()

    def pin(self, exchange, on=True):
        """Recalls an exchange raw in every turn, or no longer."""
        if exchange not in {e.id for e in self.exchanges}:
            raise ValueError(f"exchange {exchange} is not in memory")
        self.store.pin(exchange, on)
        self.exchanges = self.store.exchanges()

    def set_system(self, text):
        """Sets the system message, None for the model's own."""
        self.store.put("system", text)
        if self.memory.system == "latent":
            self.reload()

    def set_rules(self, rules):
        """Replaces the rules in force by hand."""
        self.store.set_rules(rules)
        self.rules = tuple(rules)


class _Stopped(Exception):
    """The user stopped a reply of which nothing is kept."""


class _Counter:
    """Passes blocks of ids on, counts and times them, drops the ending id, and notes why they ended."""

    def __init__(self, blocks, ends, stopped, first):
        self.blocks, self.ends, self.stopped, self.first = blocks, ends, stopped, first
        self.count, self.ended, self.seen = 0, None, []

    def speed(self):
        """Tokens a second from the second block on, None before there are any."""
        if len(self.seen) < 3:
            return None
        (start, before), (stop, count) = self.seen[1], self.seen[-1]
        return (count - before) / (stop - start)

    def __iter__(self):
        for n, ids in enumerate(self.blocks):
            if n == 0:
                self.first()
            self.count += len(ids)
            self.seen.append((time.perf_counter(), self.count))
            if len(ids) and int(ids[-1]) in self.ends:
                self.ended, ids = "end", ids[:-1]
            yield ids
            if self.ended:
                return
            if self.stopped():
                self.ended = "interrupted"
                return


def split_thought(text):
    """(reply, thought) of a generated text; a span that has not closed yet is all thought."""
    return _THOUGHT.sub("", text), "".join(m[1] for m in _THOUGHT.finditer(text))


def _held_back(text, stops):
    """The text without an end that may turn out to be the start of a stop string or of a thought."""
    for mark in (*stops, "<think>"):
        for n in range(len(mark) - 1, 0, -1):
            if text.endswith(mark[:n]):
                return text[:-n]
    return text


def _terms(exchange):
    return words(f"{exchange.user} {exchange.reply}")
