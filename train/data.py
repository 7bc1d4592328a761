"""Samples (history, query, target reply) of curated sessions, built as the chat builds its prompts, and their micro-batches."""

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import grain
import jax
import numpy as np

from rhea_jax import context
from rhea_jax.memory import LATENT, OMIT, RAW, Hybrid
from train import filters, rules, sources
from train.step import Batch, Prompts

MIXED = {LATENT: 0.6, RAW: 0.2, OMIT: 0.2}  # levels drawn for train.recall = "mixed"
AGAIN = ("Say your last reply once more, word for word.", "Repeat exactly what you just told me.", "Could you write that again, unchanged?",
         "What did you just say? Give me the same text.", "把你刚才的回答原样再说一遍。")  # questions of train.rebuild


@dataclass(frozen=True)
class Session:
    """A conversation that begins with a user's message."""

    id: str
    turns: tuple[tuple[str, str], ...]  # (user, reply)
    system: str | None = None


@dataclass(frozen=True)
class Sample:
    """A prompt with the target behind it; latent rows count from this sample's first window."""

    id: str
    tokens: np.ndarray  # [n] int32
    latent: np.ndarray  # [n] int32
    target: int  # where the reply begins: the first label
    windows: tuple[np.ndarray, ...]  # of recalled replies; with a retrieval term the query's behind them
    match: int  # window of the latest exchange, -1 where there is none
    cut: bool  # whether old exchanges or the target's end had to go
    teacher: np.ndarray | None = None  # [m] int32 ids of the same with the history raw


def read_sessions(path, warn=lambda line: None):
    """The sessions of a file, or of a folder's train.jsonl, in any of the forms that `sources.read` knows.

    What is no conversation of user and assistant in turns is left out, and `warn` hears how much in one line.
    Raises: ValueError naming the file and what is wrong with it.
    """
    path = Path(path).expanduser()
    path, out, n = path / "train.jsonl" if path.is_dir() else path, [], 0
    for n, session in enumerate(sources.read(path, path.name.split(".")[0], warn), 1):
        reason, system, pairs, _ = filters.exchanges(session.messages)
        if pairs and not reason:
            out.append(Session(session.id, tuple(pairs), system))
    if len(out) < n:
        warn(f"{path}: {n - len(out)} of {n} sessions are left out: their roles do not alternate")
    if not out:
        raise ValueError(f"{path} holds no conversation of user and assistant in turns")
    return out


@functools.lru_cache(maxsize=8)
def end_of_reply(tokenizer):
    """The control id that the template sets behind a reply."""
    pieces = tokenizer.render(("user", "assistant", "user"))
    behind = pieces[pieces.index(1) + 1]
    ids = [p for p in tokenizer.split(behind) if isinstance(p, int)] if isinstance(behind, str) else []
    return ids[0] if ids else tokenizer.eos


def build(tokenizer, memory, train, session, turn, rng):
    """One Sample: the reply of a turn given the train.history exchanges before it, fewer where no shape holds so many.

    Levels are drawn with rng where train.recall is "mixed", a rule and its obedient replies in a share train.obey of samples.
    In a share train.rebuild the turn is another one: the reply before it is asked for once more, to be told from its latents.
    Returns None where nothing of the target is left, or of the history.
    """
    instructions = ()
    if train.obey and rng.random() < train.obey:
        rule = rules.draw(rng)
        instructions, session = (rule.text,), replace(session, turns=tuple((u, rules.rewrite(rule, b)) for u, b in session.turns))
    (query, said), before = session.turns[turn], session.turns[:turn]
    rebuilt = bool(turn and train.rebuild and rng.random() < train.rebuild)
    if rebuilt:
        query, said = str(rng.choice(AGAIN)), before[-1][1]
    target = tokenizer.encode(said)
    if not target:
        return None
    target.append(end_of_reply(tokenizer))
    widest = train.shapes[-1]
    wanted = min(len(target), train.longest, widest[2])
    if train.recall == "mixed":
        levels = [*rng.choice(list(MIXED), size=len(before), p=list(MIXED.values()))]
    else:
        levels = [LATENT] * len(before)
    if rebuilt:
        levels[-1] = LATENT
    asked = _rows(tokenizer, memory, query)[:1] if train.contrast else []
    replies = [_rows(tokenizer, memory, b) if level == LATENT else () for (_, b), level in zip(before, levels)]
    oldest = 0 if train.history is None else max(0, len(before) - train.history)
    for start in range(oldest, max(len(before), 1)):
        kept, windows, recalled = range(start, len(before)), [], []
        for e in kept:
            recalled.append((e, context.Exchange(*before[e], len(windows), len(replies[e])), levels[e]))
            windows += replies[e]
        if _pack([len(w) + memory.latents for w in windows + asked], *widest[3:]) is None:
            continue
        plan = context.build(tokenizer, memory, memory.layout, session.system, instructions, recalled, query)
        room = widest[1] - len(plan)
        if room >= wanted or (start + 1 >= len(before) and room > 0):
            break
    else:
        return None
    labels = target[: min(room, wanted)]
    match = len(windows) - 1 if recalled and levels[-1] == LATENT and not rebuilt else -1
    teacher = None
    if train.distill:
        raw = [(n, e, RAW) for n, e, level in recalled if level != OMIT]
        teacher = np.array([*context.build(tokenizer, memory, "turns", session.system, instructions, raw, query).hybrid.tokens[0], *labels], np.int32)
    tokens = np.array([*plan.hybrid.tokens[0], *labels], np.int32)
    latent = np.array([*plan.hybrid.latent[0], *[-1] * len(labels)], np.int32)
    cut = start > 0 or len(labels) < len(target)
    return Sample(f"{session.id}:{turn}", tokens, latent, len(plan), (*windows, *asked), match, cut, teacher)


def _rows(tokenizer, memory, text):
    tokens, length = context.windows(tokenizer, memory, text)
    return [row[:n] for row, n in zip(tokens, length)]


def _pack(lengths, rows, width):
    """Where texts of these lengths begin in rows laid end to end, the longest first into the first row with room; None if they don't fit."""
    used, out = [0] * rows, [0] * len(lengths)
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((r for r in range(rows) if used[r] + lengths[i] <= width), None)
        if row is None:
            return None
        out[i] = row * width + used[row]
        used[row] += lengths[i]
    return out


def place(memory, shape, samples):
    """(where each window begins, where each prompt does) of samples that fit a shape together, else None."""
    B, T, Y, R, P = shape
    most, extra = _most(shape), 0 if memory.form == "mean" else memory.latents
    windows = [len(w) + extra for s in samples for w in s.windows]
    if len(windows) > most[0] or len(samples) > most[1] or sum(len(s.tokens) - s.target for s in samples) > Y:
        return None
    at, prompts = _pack(windows, R, P), _pack([len(s.tokens) for s in samples], B, T)
    return None if at is None or prompts is None else (at, prompts)


def _most(shape):
    """(windows, samples) that a micro-batch can hold: of 64 and of 128 positions, and four a row at least."""
    B, T, _, R, P = shape
    return R * max(4, P // 64), B * max(4, T // 128)


def collate(memory, train, shape, samples):
    """A Batch of samples that together fit a shape; what is over is padding.

    Shapes: as Batch.
    """
    (B, T, Y, R, P), (W, Z) = shape, _most(shape)
    starts, places = place(memory, shape, samples)
    windows, start, length, owner = np.zeros(R * P, np.int32), np.full(W, R * P, np.int32), np.zeros(W, np.int32), np.full(W, -1, np.int32)
    target, label, query, match, weight = np.full(Y, -1, np.int32), np.zeros(Y, np.int32), *np.full((2, Z), -1, np.int32), np.zeros(Z, np.float32)
    prompts, teacher, raw_target = empty(B * T), None, None
    if train.distill:
        S = -(-max(len(s.teacher) for s in samples) // 512) * 512
        teacher, raw_target = empty(Z * S), np.full(Y, -1, np.int32)
    w = y = 0
    for z, s in enumerate(samples):
        lay(prompts, places[z], z, s.tokens, np.where(s.latent >= 0, s.latent + w * memory.latents, -1))
        for i, row in enumerate(s.windows, w):
            windows[starts[i] : starts[i] + len(row)] = row
            start[i], length[i], owner[i] = starts[i], len(row), z
        told = len(s.tokens) - s.target
        target[y : y + told] = places[z] + np.arange(s.target, len(s.tokens)) - 1
        label[y : y + told], weight[z] = s.tokens[s.target :], told
        if train.distill:
            lay(teacher, z * S, z, s.teacher, -1)
            raw_target[y : y + told] = z * S + len(s.teacher) - told + np.arange(told) - 1
        w, y = w + len(s.windows), y + told
        if train.contrast:
            owner[w - 1] = -1
            if s.match >= 0:
                query[z], match[z] = w - 1, w - len(s.windows) + s.match
    shaped = lambda p, n: jax.tree.map(lambda x: x.reshape(n, -1), p)  # noqa: E731
    return Batch(windows.reshape(R, P), start, length, shaped(prompts, B), target, label, owner, query, match, weight,
                 teacher and shaped(teacher, Z), raw_target)


def empty(size):
    """Prompts of so many flattened positions, none of them used yet."""
    zeros = np.zeros(size, np.int32)
    return Prompts(Hybrid(zeros.copy(), zeros - 1, np.zeros(size, bool)), zeros.copy(), zeros.copy())


def lay(prompts, at, number, tokens, latent):
    """Sets a prompt with its number among others, from a flattened position on."""
    here = slice(at, at + len(tokens))
    h = prompts.hybrid
    h.tokens[here], h.latent[here], h.valid[here] = tokens, latent, True
    prompts.at[here], prompts.segment[here] = np.arange(len(tokens)), number


def group(memory, train, samples):
    """[(shape, samples)] of an optimizer step: each sample in the first shape that holds it, in the first micro-batch with room."""
    out, left = [], sorted(samples, key=lambda s: -sum(map(len, s.windows)))
    for shape in train.shapes:
        parts, rest = [], []
        for s in left:
            if place(memory, shape, [s]) is None:
                rest.append(s)
            elif (part := next((p for p in parts if place(memory, shape, [*p, s])), None)) is None:
                parts.append([s])
            else:
                part.append(s)
        out, left = out + [(shape, part) for part in parts], rest
    return out


def waste(batches):
    """The share of positions, in prompts and windows together, that are padding."""
    used = sum(int(b.prompts.hybrid.valid.sum() + b.length.sum()) for b in batches)
    return 1 - used / max(1, sum(b.prompts.at.size + b.windows.size for b in batches))


def index(train, sessions):
    """[(session, turn or None)]: None stands for a turn that is drawn anew in every epoch."""
    if train.targets == "one":
        return [(s, None) for s in range(len(sessions))]
    return [(s, t) for s, session in enumerate(sessions) for t in range(len(session.turns))]


class _Build(grain.transforms.RandomMap):
    def __init__(self, tokenizer, memory, train, sessions):
        self.all = tokenizer, memory, train, sessions

    def random_map(self, at, rng):
        tokenizer, memory, train, sessions = self.all
        session = sessions[at[0]]
        first = min(1, len(session.turns) - 1)  # a first turn has nothing to remember
        turns = first + rng.permutation(len(session.turns) - first) if at[1] is None else [at[1]]
        samples = (build(tokenizer, memory, train, session, int(turn), rng) for turn in turns)
        return next((s for s in samples if s and any(place(memory, shape, [s]) for shape in train.shapes)), None)


def stream(tokenizer, memory, train, sessions):
    """A grain IterDataset of optimizer steps, each a list of samples: shuffled anew each epoch, prefetched, exactly resumable.

    A sample that has no target or fits no shape is None in its step.
    """
    data = grain.MapDataset.source(index(train, sessions)).seed(train.seed).shuffle().repeat(train.epochs)
    data = data.random_map(_Build(tokenizer, memory, train, sessions))
    return data.batch(train.batch, drop_remainder=True, batch_fn=list).to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=4))
