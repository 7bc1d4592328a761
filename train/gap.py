"""How much of the history's replies the latents recover: `python -m train.gap --data FILE [--adapters DIR] [--json]`."""

import argparse
import functools
import json
import sys
from dataclasses import dataclass

import jax
import numpy as np

from rhea_jax import context, generate, weights
from rhea_jax.config import Memory
from rhea_jax.memory import LATENT, RAW
from rhea_jax.model import fitted
from rhea_jax.startup import in_one_line, prepare
from train import data, step
from train.base import load_base

HISTORY = 2048  # tokens of raw history at most, in whole exchanges, the latest
ARMS = {  # name -> (level of the history's replies, whose adapter reads, layout is the model's own)
    "raw_own": ("raw", None, True), "raw_base": ("raw", None, False), "raw_gen": ("raw", "gen", False),
    "omit_base": ("omit", None, False), "omit_gen": ("omit", "gen", False),
    "latent": ("latent", "gen", False), "foreign": ("foreign", "gen", False)}


@dataclass(frozen=True)
class Case:
    """One session to be measured: its kept history, the query and the target's ids."""

    before: tuple[tuple[str, str], ...]
    query: str
    labels: tuple[int, ...]
    system: str | None
    cut: bool


def cases(tokenizer, memory, sessions, positions):
    """The last turn of every session that has a history, which is cut to HISTORY tokens of whole exchanges."""
    out = []
    for s in sessions:
        if len(s.turns) < 2 or not (ids := tokenizer.encode(s.turns[-1][1])):
            continue
        query, labels = s.turns[-1][0], (*ids, data.end_of_reply(tokenizer))
        alone = len(context.build(tokenizer, memory, "turns", s.system, (), (), query))
        for start in range(len(s.turns) - 1):
            before = s.turns[start:-1]
            recalled = [(n, context.Exchange(*e), RAW) for n, e in enumerate(before)]
            size = len(context.build(tokenizer, memory, "turns", s.system, (), recalled, query))
            if size - alone <= HISTORY and size + len(labels) <= positions:
                out.append(Case(before, query, labels, s.system, start > 0))
                break
    return out


@functools.partial(jax.jit, static_argnames="cfg")
def _nll(cfg, params, lora, latents, prompts, target, label):
    return step.target_sums(params, step.hidden(cfg, params, lora, latents, prompts, target), target, label)[0]


def _power(n, least):
    return max(least, 1 << (n - 1).bit_length())


def _latents(base, memory, adapters, case):
    """([windows of each exchange], all their latents)."""
    out = [np.asarray(generate.compress_text(base.model, base.params, adapters, base.tokenizer, memory, reply)) for _, reply in case.before]
    return list(map(len, out)), np.concatenate(out)


def measure(base, memory, layout, adapters, cases_, progress=lambda x: x):
    """{arm: summed nats [n]} and target tokens [n] of the cases; arms that equal another are left out.

    adapters: in the form of the base's layers.  The foreign latents are those of the case before, as often as needed.
    """
    sums, foreign = {a: [] for a in ARMS if layout != "turns" or a != "raw_own"}, None
    held = [_latents(base, memory, adapters, cases_[-1])] if cases_ else []
    for case in progress(cases_):
        counts, latents = _latents(base, memory, adapters, case)
        foreign, held = held[-1][1], [(counts, latents)]
        starts = np.cumsum([0, *counts])
        others = foreign[np.arange(len(latents)) % len(foreign)]
        for arm in sums:
            level, who, own = ARMS[arm]
            recalled = [(n, context.Exchange(*e, int(starts[n]), counts[n]), RAW if level == "raw" else LATENT)
                        for n, e in enumerate(case.before)]
            plan = context.build(base.tokenizer, memory, "turns" if own else layout, case.system, (), recalled, case.query, level != "omit")
            sums[arm].append(_of(base, adapters.gen if who else None, others if level == "foreign" else latents, plan, case.labels))
    return {a: np.array(x) for a, x in sums.items()}, np.array([len(c.labels) for c in cases_])


def _of(base, lora, latents, plan, labels):
    n, k = len(plan) + len(labels), len(labels)
    T, Y, C = _power(n, 512), _power(k, 256), _power(len(latents), 4)
    pad = lambda x, size, value: np.pad(np.asarray(x, np.int32), (0, size - len(x)), constant_values=value)  # noqa: E731
    prompts = data.empty(T)
    data.lay(prompts, 0, 0, [*plan.hybrid.tokens[0], *labels], [*plan.hybrid.latent[0], *[-1] * k])
    prompts = jax.tree.map(lambda x: x[None], prompts)
    latents = np.pad(latents, ((0, C - len(latents)), (0, 0), (0, 0)))
    return float(_nll(base.model, base.params, lora, latents, prompts, pad(np.arange(len(plan) - 1, n - 1), Y, -1), pad(labels, Y, 0)))


def figures(sums, targets, draws=1000, seed=0):
    """The measure and its 95% interval, by a bootstrap over sessions, all pooled over target tokens.

    Units: nats a target token.
    """
    def of(pick):
        total = targets[pick].sum()
        nll = {a: x[pick].sum() / total for a, x in sums.items()}
        raw = min(v for a, v in nll.items() if a.startswith("raw"))
        omit = min(v for a, v in nll.items() if a.startswith("omit") or a == "foreign")
        return nll, raw, omit, (omit - nll["latent"]) / (omit - raw)

    nll, raw, omit, gap = of(np.arange(len(targets)))
    rng = np.random.default_rng(seed)
    drawn = [of(rng.integers(0, len(targets), len(targets))) for _ in range(draws)]
    low, high = np.percentile([d[3] for d in drawn], (2.5, 97.5))
    near, far = np.percentile([d[0]["foreign"] - d[0]["latent"] for d in drawn], (2.5, 97.5))
    return {"nll_raw": raw, "nll_latent": nll["latent"], "nll_omit": omit, "nll_foreign": nll["foreign"], "nll_raw_base": nll["raw_base"],
            "nll_omit_base": nll["omit_base"], "nll_raw_gen": nll["raw_gen"], "nll_omit_gen": nll["omit_gen"], "gap_recovered": gap,
            "low": low, "high": high, "foreign_minus_own": nll["foreign"] - nll["latent"], "foreign_low": near, "foreign_high": far,
            "n": len(targets), "targets": int(targets.sum())}


def main():
    parser = argparse.ArgumentParser(prog="train.gap", description=__doc__)
    parser.add_argument("--data", required=True, help="held-back conversations")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--adapters", required=True, help="a folder with adapters for this model")
    parser.add_argument("--limit", type=int, help="so many sessions at most, the first")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    args = parser.parse_args()
    prepare()
    base = load_base(args.model)
    adapters, card = weights.load_adapters(args.adapters, base.model, base.fingerprints)
    memory = Memory(latents=len(adapters.mem))
    found = cases(base.tokenizer, memory, data.read_sessions(args.data, functools.partial(print, file=sys.stderr)), base.model.positions)[: args.limit]
    if len(found) < 2:
        raise ValueError(f"{args.data} holds {len(found)} sessions with a history; allowed: at least 2")
    from rich.console import Console
    from rich.progress import track

    shown = functools.partial(track, description="measuring", console=Console(stderr=True), transient=True)
    result = figures(*measure(base, memory, card.get("layout", "turns"), fitted(adapters, base.params), found, shown))
    result |= {"latents_per_window": memory.latents, "window": memory.window, "histories_cut": sum(c.cut for c in found)}
    result = {k: round(v, 4) if isinstance(v, float) else v for k, v in result.items()}
    print(json.dumps(result) if args.json else "\n".join(f"{k:<20} {v}" for k, v in result.items()))


if __name__ == "__main__":
    sys.exit(in_one_line(main))
