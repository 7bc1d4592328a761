"""Makes training data of conversations by the paper's rules, counted: `python -m train.curate --out DIR`."""

import argparse
import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import multiprocessing
import os
import platform
import random
import signal
import sys
from array import array
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path

import rich.console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rhea_jax import assets
from rhea_jax.startup import in_one_line
from rhea_jax.tokenizer import load_tokenizer
from train import filters, overlap, sources
from train.filters import STAGES, Rules

_BATCH = 32  # sessions that a process takes at once
_LIBRARIES = ("rhea_jax", "tokenizers", "numpy", "regex", "pyarrow", "datasketch")


def curate(given, out, rules, model="smollm2-135m", limit=None, processes=1, data=None, offline=False):
    """Writes train.jsonl and manifest.json into a folder; same inputs, same bytes. Returns the manifest.

    given: what `sources.find` takes.  limit: so many sessions at most, drawn by the seed.
    data: folder of benchmarks whose texts are kept out when rules.dedup.
    Raises: ValueError, one line, for a file that can't be used or written, and when nothing is left.
    """
    found, path = _found(given, offline), Path(assets.resolve(model, offline))
    tokenizer, excluded = load_tokenizer(path), sources.excluded_bases()
    marks = overlap.benchmark_marks(data) if rules.dedup and data else None
    part, broken = out / "train.jsonl.part", []
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _progress() as progress:
            settings = rules, tokenizer, excluded, marks
            verdicts = _verdicts(_sessions(found, broken, progress), processes, *settings)
            tokens, dropped, parts, read = _write(verdicts, part, rules, progress)
        if limit and limit < len(tokens):
            dropped["limit", f"over {limit:,} sessions"] = len(tokens) - limit
            tokens = _draw(part, tokens, limit, rules.seed)
        manifest = {
            "sources": [{"label": label, **_about(p), "breaks_off": p in broken}
                        for label, paths in found for p in paths],
            "rules": asdict(rules) | {"limit": limit},
            "tokenizer": {"model": model, "sha256": _digest(tokenizer.text.to_str().encode())},
            "benchmarks": None if marks is None else _benchmarks(marks),
            "read": read, "stages": _stages(read, dropped), "parts_left_out": dict(sorted(parts.items())),
            "kept": _checked(part, excluded) | {"tokens": sum(tokens)},
            "output": _about(part) | {"file": "train.jsonl"},
            "versions": {"python": platform.python_version(),
                         **{name: importlib.metadata.version(name) for name in _LIBRARIES}},
        }
        _replace(part, manifest, out)
    except OSError as error:
        raise ValueError(f"{error.filename or out} can't be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return manifest


@contextlib.contextmanager
def _writing(path, mode="w"):
    """A file that is on the disk when the block ends, and gone when it fails."""
    try:
        with path.open(mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ValueError(f"{path} can't be written: {error.strerror or error}") from None
        raise


def _found(given, offline):
    found = [sources.find(source, offline) for source in given]
    paths = [path.resolve() for _, paths in found for path in paths]
    if twice := [str(path) for path, n in Counter(paths).items() if n > 1]:
        raise ValueError(f"source {twice[0]} is given {paths.count(Path(twice[0]))} times; allowed: once")
    return found


def _progress():
    console = rich.console.Console(stderr=True)
    kept = TextColumn("{task.fields[kept]:,} sessions kept")
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), kept
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _sessions(found, broken, progress):
    """Yields the sessions of all sources; the paths of files that break off are added to `broken`."""
    total = sum(path.stat().st_size for _, paths in found for path in paths)
    task, before = progress.add_task("curating", total=total, kept=0), 0
    for label, paths in found:
        for path in paths:
            def warn(line, path=path):
                broken.append(path)
                progress.console.print(f"warning: {line}", markup=False, highlight=False, soft_wrap=True)

            def advance(done, before=before):
                progress.update(task, completed=before + done)

            yield from sources.read(path, label, warn, advance)
            before += path.stat().st_size


def _verdicts(sessions, processes, *settings):
    """Yields the verdicts in the order of the sessions; few batches are under way at any time."""
    if processes == 1:
        for session in sessions:
            yield filters.judge(session, *settings)
        return
    waiting = deque()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin, settings) as pool:
        for batch in iter(lambda: list(itertools.islice(sessions, _BATCH)), []):
            waiting.append(pool.submit(_judge, batch))
            if len(waiting) > 3 * processes:
                yield from waiting.popleft().result()
        for future in waiting:
            yield from future.result()


def _begin(*settings):
    """What a process of the pool does first: Ctrl-C is the parent's, one core is enough for it."""
    global _settings
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _settings = settings


def _judge(batch):
    return [filters.judge(session, *_settings) for session in batch]


def _write(verdicts, part, rules, progress):
    """Writes what is kept; returns its tokens, counts by (stage, reason), parts left out, sessions read.

    Raises: ValueError when nothing is kept.
    """
    tokens, dropped, parts, read = array("L"), Counter(), Counter(), 0
    seen = overlap.Seen(rules.seed) if rules.dedup else None
    with _writing(part) as file:
        for read, verdict in enumerate(verdicts, 1):
            parts.update(verdict.parts)
            if verdict.stage:
                dropped[verdict.stage, verdict.reason] += 1
            elif seen and seen.like(verdict.sketch):
                dropped["overlap", "near-duplicate"] += 1
            else:
                if seen:
                    seen.add(verdict.sketch)
                tokens.append(verdict.tokens)
                file.write(verdict.line + "\n")
                progress.update(progress.task_ids[0], kept=len(tokens))
    if not tokens:
        reasons = _counted({reason: n for (_, reason), n in dropped.items()})
        raise ValueError(f"nothing is left of {read:,} sessions: {reasons}")
    return tokens, dropped, parts, read


def _draw(part, tokens, limit, seed):
    """Keeps so many lines, drawn by the seed and in their order; returns their tokens."""
    drawn = sorted(random.Random(seed).sample(range(len(tokens)), limit))
    chosen, shorter = set(drawn), part.with_suffix(".drawn")
    with part.open("rb") as file, _writing(shorter, "wb") as out:
        out.writelines(line for n, line in enumerate(file) if n in chosen)
    os.replace(shorter, part)
    return [tokens[n] for n in drawn]


def _stages(read, dropped):
    """Each stage's sessions in, out, and left out by reason."""
    stages, left = {}, read
    for stage in STAGES:
        reasons = {reason: n for (where, reason), n in sorted(dropped.items()) if where == stage}
        stages[stage] = {"in": left, "out": left - sum(reasons.values()), "left_out": reasons}
        left = stages[stage]["out"]
    return stages


def _checked(part, excluded):
    """Counts over the file as it was written.

    Raises: ValueError when it holds a session that is kept for validation and test.
    """
    counts = Counter()
    with part.open(encoding="utf-8") as file:
        for line in file:
            session = json.loads(line)
            counts["exchanges"] += sum(m["role"] == "user" for m in session["messages"])
            counts[session["source"]] += 1
            if why := sources.why_excluded(session["id"], excluded):
                raise ValueError(f"session {session['id']} was about to be written; it is excluded: {why}")
    turns = counts.pop("exchanges")
    return {"sessions": counts.total(), "exchanges": turns, "by_source": dict(sorted(counts.items())),
            "excluded_bases": {"listed": dict(Counter(excluded.values())), "overlap": 0}}


def _benchmarks(marks):
    return {"marks": len(marks), "sha256": _digest(marks.tobytes())}


def _digest(data):
    return hashlib.sha256(data).hexdigest()


def _about(path):
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest}


def _replace(part, manifest, out):
    """Moves data and manifest into place; the manifest comes last and names the data's hash."""
    draft = out / "manifest.json.part"
    with _writing(draft) as file:
        file.write(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    os.replace(part, out / "train.jsonl")
    os.replace(draft, out / "manifest.json")


def _counted(counts):
    most_first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{n:,} {what}" for what, n in most_first)


def report(manifest):
    """The counts of a manifest as lines for a reader."""
    for stage, counts in manifest["stages"].items():
        if reasons := _counted(counts["left_out"]):
            yield f"{stage:10} {counts['in']:9,} -> {counts['out']:9,}   {reasons}"
    if parts := _counted(manifest["parts_left_out"]):
        yield f"left out of sessions: {parts}"
    kept = manifest["kept"]
    yield f"kept: {kept['sessions']:,} sessions, {kept['exchanges']:,} exchanges, {kept['tokens']:,} tokens"


def _number(low, high):
    def parse(text):
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r}; allowed: {low} to {high}")
        return int(text)

    return parse


def main():
    parser = argparse.ArgumentParser(prog="train.curate", description=__doc__, allow_abbrev=False)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    add, names = parser.add_argument, ", ".join(assets.DATASETS)
    add("--out", required=True, type=Path, help="folder for train.jsonl and manifest.json")
    add("--source", nargs="+", default=["sharegpt"], metavar="FILE",
        help=f"files, folders of files, LABEL=FILE, a data set of the registry: {names} (default: sharegpt)")
    add("--model", default="smollm2-135m", help="the backbone whose tokenizer counts")
    add("--limit", type=_number(1, 10**9), help="so many sessions at most, drawn by the seed")
    add("--processes", type=_number(1, 256), default=cores, help="default: the cores at hand")
    add("--seed", type=_number(0, 2**32 - 1), default=0)
    add("--dedup", action="store_true", help="leave out near-duplicates and what holds benchmark texts")
    add("--data", default=os.environ.get("RHEA_DATA"), help="folder of the benchmarks (default: RHEA_DATA)")
    add("--offline", action="store_true", help="no network")
    args = parser.parse_args()
    if args.dedup and not args.data:
        print("no --data, no RHEA_DATA: overlap with benchmarks is not looked for", file=sys.stderr)
    out, rules = args.out.expanduser(), Rules(dedup=args.dedup, seed=args.seed)
    manifest = curate(args.source, out, rules, args.model, args.limit, args.processes, args.data,
                      args.offline)
    print(*report(manifest), f"written: {out / 'train.jsonl'}, {out / 'manifest.json'}", sep="\n")


if __name__ == "__main__":
    try:
        sys.exit(in_one_line(main))
    except BrokenProcessPool:
        print("error: a process was ended from outside, perhaps for want of memory: try fewer --processes",
              file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
