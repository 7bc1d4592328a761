"""What texts share: near-duplicate sessions by MinHash, overlap with benchmark texts by n-grams."""

import json
import zlib
from pathlib import Path

import numpy as np
import regex
from datasketch import MinHash, MinHashLSH

BENCHMARKS = ("mt_bench", "mt_bench_plus", "mt_eval", "ifeval", "state_tracking", "character_bench")
NGRAM = 13  # words that a session and a benchmark text must share in a row
SHORT = 5  # a shorter benchmark text says too little to be recognized
SHINGLE, PERMUTATIONS, ALIKE = 5, 128, 0.8
# Scripts that are written without blanks count a character as a word.
_ALONE = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}"
_WORD = regex.compile(rf"(?V1)[{_ALONE}]|[\w--[{_ALONE}]]+")
_STEP = np.uint64(0x9E3779B97F4A7C15)


def words(text):
    """Hashes of a text's words, whatever their case and the marks between them.

    Shapes: uint64 [words].
    """
    return np.array([zlib.crc32(word.encode()) for word in _WORD.findall(text.casefold())], np.uint64)


def grams(hashes, n):
    """Hashes of all runs of n words; none of a shorter text.

    Shapes: uint64 [words] -> uint64 [max(0, words - n + 1)].
    """
    runs = max(0, len(hashes) - n + 1)
    out = np.full(runs, n, np.uint64)
    for k in range(n):
        out = (out ^ hashes[k : k + runs]) * _STEP
    return out ^ (out >> np.uint64(32))


def marks(text):
    """What a text is recognized by in another: its runs of NGRAM words; a shorter text is one run."""
    hashes = words(text)
    return grams(hashes, min(NGRAM, len(hashes))) if len(hashes) >= SHORT else hashes[:0]


def benchmark_marks(data):
    """The marks of every text that the benchmarks in a folder put to a model, sorted.

    Raises: ValueError when the folder holds none of them, or a line that is no JSON.
    """
    paths = [path for name in BENCHMARKS for path in Path(data).glob(f"{name}/*.jsonl")]
    paths = sorted(path for path in paths if not path.stem.endswith("_single"))
    if not paths:
        raise ValueError(f"data {data} holds no benchmark; allowed: a folder with {', '.join(BENCHMARKS)}")
    return np.unique(np.concatenate([marks(text) for path in paths for text in _asked(path)]))


def _asked(path):
    """The user's texts of a benchmark file; the *_single files only repeat them with replies pasted in."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} can't be read: {error}") from None
    for n, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
                yield from [turn["user"] for turn in row["conv"]] if "conv" in row else [row["prompt"]]
            except (json.JSONDecodeError, KeyError, TypeError):
                said = f"{path} line {n} is {line[:60]!r}; allowed: an object with conv or prompt"
                raise ValueError(said) from None


def holds(benchmark, text):
    """Whether a text has a mark of a benchmark, which are sorted."""
    found = marks(text)
    at = np.searchsorted(benchmark, found)
    return bool((benchmark[np.minimum(at, len(benchmark) - 1)] == found).any())


def sketch(text, seed):
    """The MinHash of a text's runs of SHINGLE words; a shorter text is one run.

    Shapes: uint32 [PERMUTATIONS].
    """
    hashes = words(text)
    made = MinHash(PERMUTATIONS, seed, hashfunc=int)
    made.update_batch(np.unique(grams(hashes, min(SHINGLE, len(hashes))) >> np.uint64(32)))
    return made.hashvalues


class Seen:
    """The sketches of the sessions so far."""

    def __init__(self, seed):
        self.seed, self.index, self.sketches = seed, MinHashLSH(ALIKE, PERMUTATIONS), []
        self.permutations = MinHash(PERMUTATIONS, seed).permutations

    def like(self, values):
        """Whether a sketch so far is like this one."""
        near = self.index.query(self._made(values))
        return any((self.sketches[key] == values).mean() >= ALIKE for key in near)

    def add(self, values):
        """Keeps a sketch."""
        self.index.insert(len(self.sketches), self._made(values))
        self.sketches.append(values)

    def _made(self, values):
        return MinHash(seed=self.seed, hashvalues=values, permutations=self.permutations, scheme="affine32")
