"""Trains the two adapters of a backbone: `python -m train.run --config configs/smollm2_135m.py`.

A run lives in --config.train.out: checkpoints, curves for TensorBoard, the same as JSON Lines, and the best adapters so far.
It resumes by itself from its newest checkpoint; Ctrl-C or SIGTERM saves and leaves.
"""

import dataclasses
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from rhea_jax import weights
from rhea_jax.config import from_dict
from rhea_jax.flags import FLAGS, read, usage
from rhea_jax.model import Adapters, fitted, init_adapters, stacked
from rhea_jax.startup import cache_folder, in_one_line, prepare
from train import curate, data, filters, gap, step
from train.base import load_base, standardised

_CONFIG = Path(__file__).resolve().parent.parent / "configs" / "smollm2_135m.py"
_FREE = ("out", "hours", "stop", "save_minutes", "keep", "eval_steps")  # fields that a resumed run may change
_REPORT = 64  # samples that the dry report looks at
_STATISTICS = 128  # replies whose latents the standardisation is measured on


def packed(tree):
    """A copy of a state's tree with every Adapters in stacked form: the form of checkpoints, whatever the device ran."""
    return jax.tree.map(jnp.copy, _each(stacked, tree))


def unpacked(base, tree):
    """The same tree in the form of the base's layers."""
    return _each(lambda a: fitted(a, base.params), tree)


def _each(change, tree):
    """The tree with every Adapters in it changed."""
    held = lambda a: isinstance(a, Adapters)  # noqa: E731
    return jax.tree.map(lambda a: change(a) if held(a) else a, tree, is_leaf=held)


class Curves:
    """TensorBoard events and the same as JSON Lines; after a resume no step has two values."""

    def __init__(self, folder, start):
        import tensorboardX

        self.lines = folder / "metrics.jsonl"
        held = self.lines.read_text(encoding="utf-8").splitlines() if self.lines.exists() else []
        held = [line for line in held if line.endswith("}") and json.loads(line)["step"] <= start]
        self.lines.write_text("".join(line + "\n" for line in held), encoding="utf-8")
        self.board = tensorboardX.SummaryWriter(str(folder / "curves"), purge_step=start + 1)

    def __call__(self, at, values):
        for name, value in values.items():
            self.board.add_scalar(name, value, at)
        self.board.flush()
        with self.lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": at, **values}) + "\n")


class Checkpoints:
    """The newest complete checkpoints of a run, and the best by held-back likelihood."""

    def __init__(self, folder, train):
        from orbax.checkpoint import v1 as ocp

        keep = ocp.training.preservation_policies
        best = keep.BestN(get_metric_fn=lambda m: -m["nll_latent"], n=1, keep_checkpoints_without_metrics=False)
        self.made = ocp.training.Checkpointer(folder.resolve() / "checkpoints", cleanup_tmp_directories=True,
                                              preservation_policy=keep.AnyPreservationPolicy([keep.LatestN(train.keep), best]))

    def latest(self):
        """(step, facts) of the newest, or None."""
        found = self.made.checkpoints
        return (found[-1].step, self.made.checkpointables_metadata(found[-1].step).custom_metadata) if found else None

    def load(self, at, like):
        """The saved tree with the shapes of `like`."""
        return self.made.load(at, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), like))

    def save(self, state, facts, metrics, wait=False):
        """Begins to write a state; a step that is there already is left."""
        at = int(state.step)
        if at not in [c.step for c in self.made.checkpoints]:
            self.made.save_async(at, packed(_kept(state)), force=True, custom_metadata=facts, metrics=metrics or None)
        if wait:
            self.made.wait()


def _kept(state):
    return {"step": state.step, "adapters": state.adapters, "opt": state.opt}


def _differs(saved, config):
    """The fields by which a checkpoint's config is another run's."""
    old, new = (flatten_dict(tree, sep=".") for tree in (saved, config))
    return [f"{n} was {old.get(n)}, is {new.get(n)}" for n in sorted(old | new)
            if old.get(n) != new.get(n) and n.removeprefix("train.") not in _FREE and not n.startswith("chat.")]


class Run:
    """A training run: what it reads, the state it changes, and where it writes."""

    def __init__(self, config, offline=False):
        self.config, self.train, self.offline = config, config.train, offline
        self.out = Path(self.train.out)
        self._stop = self._pending = None
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"train.out {self.out} can't be written: {error.strerror}") from None
        self.base = load_base(config.weights, config.dtype, config.template, offline)
        self.memory = dataclasses.replace(config.memory, layout="turns" if config.memory.layout == "auto" else config.memory.layout)
        self._read()
        self.facts = {"config": json.loads(json.dumps(dataclasses.asdict(config))), "base": self.base.fingerprint}

    def _read(self):
        """Splits the sessions: a few, evenly spread, are held back for the curves."""
        sessions = data.read_sessions(self.train.data or self._default(), self.say)
        held = set(np.linspace(0, len(sessions) - 1, self.train.eval_sessions).astype(int).tolist())
        self.held = gap.cases(self.base.tokenizer, self.memory, [sessions[i] for i in sorted(held)], self.base.model.positions)
        self.sessions = [s for i, s in enumerate(sessions) if i not in held]
        count = len(data.index(self.train, self.sessions))
        self.steps = count * self.train.epochs // self.train.batch
        if not self.steps:
            raise ValueError(f"{self.train.data} has {count} samples in {self.train.epochs} epochs; allowed: at least one batch of {self.train.batch}")

    def _default(self):
        """The default source, curated for this backbone's tokenizer at first use."""
        folder = cache_folder() / "curated" / self.base.fingerprint
        if not (folder / "manifest.json").exists():
            self.say(f"curating the default source into {folder}")
            manifest = curate.curate(["sharegpt"], folder, filters.Rules(), self.config.weights, processes=os.cpu_count(), offline=self.offline)
            self.say("\n".join(curate.report(manifest)))
        return folder

    def begin(self):
        """The state to start from: the newest checkpoint's, or fresh adapters."""
        adapters = self._fresh()
        self.saves, self.stream = Checkpoints(self.out, self.train), iter(data.stream(self.base.tokenizer, self.memory, self.train, self.sessions))
        if (found := self.saves.latest()) is not None:
            at, facts = found
            if different := _differs(facts["config"], self.facts["config"]) + [f"base was {facts['base']}"] * (facts["base"] != self.base.fingerprint):
                raise ValueError(f"{self.out} holds a run of another config: {'; '.join(different)}; allowed: the same, or another train.out")
            like = jax.eval_shape(lambda a: packed(_kept(step.init_state(self.train, a, self.steps))), adapters)
            kept = unpacked(self.base, self.saves.load(at, like))
            state = step.init_state(self.train, kept["adapters"], self.steps)
            self.state = state.replace(step=kept["step"], opt=kept["opt"])
            self.stream.set_state(facts["stream"])
            self.best, self.seconds, self.position = facts["best"], facts["seconds"], facts["stream"]
            self.say(f"resumed at step {at} of {self.steps}")
        else:
            if self.train.standardise and not self.config.adapters:
                order = np.random.default_rng(self.train.seed).permutation(len(self.sessions))
                replies = [self.sessions[i].turns[0][1] for i in order[:_STATISTICS]]
                adapters = standardised(self.base, self.memory, adapters, replies)
            self.state = step.init_state(self.train, fitted(adapters, self.base.params), self.steps)
            self.best, self.seconds, self.position = None, 0.0, self.stream.get_state()
        self.compiled, self.latest = {}, {}
        self.curves = Curves(self.out, int(self.state.step))
        (self.out / "config.json").write_text(json.dumps(self.facts, indent=1), encoding="utf-8")

    def _fresh(self):
        """The config's adapters, or such as change nothing yet.  Raises: ValueError for adapters of another form than the config's."""
        if not self.config.adapters:
            return init_adapters(self.base.model, self.memory, self.base.params, jax.random.key(self.train.seed))
        adapters, card = weights.load_adapters(self.config.adapters, self.base.model, self.base.fingerprints)
        for name in ("latents", "rank", "alpha", "form"):
            if card.get(name, "append") != (wanted := getattr(self.memory, name)):
                raise ValueError(f"adapters {self.config.adapters}: {name} is {card.get(name)}; allowed with memory.{name} {wanted}: {wanted}")
        return adapters

    def say(self, text):
        print(text, file=sys.stderr, flush=True)

    def report(self):
        """What the run is about to do, from a look at its first samples."""
        samples = []
        for some in data.stream(self.base.tokenizer, self.memory, dataclasses.replace(self.train, batch=min(self.train.batch, _REPORT)), self.sessions):
            samples += some
            if len(samples) >= _REPORT:
                break
        found = [s for s in samples if s]
        parts = [p for i in range(0, len(found), self.train.batch) for p in data.group(self.memory, self.train, found[i : i + self.train.batch])]
        counts = {shape: sum(p[0] == shape for p in parts) for shape in self.train.shapes}
        self.say(f"{len(self.sessions)} sessions, {self.steps} steps of {self.train.batch}; held back: {len(self.held)}\n"
                 f"of {len(samples)} samples: {len(samples) - len(found)} without a target or too large, {sum(s.cut for s in found)} cut, "
                 f"{np.mean([len(s.tokens) for s in found]):.0f} positions, {np.mean([len(s.tokens) - s.target for s in found]):.0f} targets, "
                 f"{np.mean([len(s.windows) for s in found]):.1f} windows each; "
                 f"padding {data.waste([data.collate(self.memory, self.train, *p) for p in parts]):.0%}\n"
                 + "\n".join(f"  {n} micro-steps of {s[0]} rows of {s[1]}, windows in {s[3]} of {s[4]}, {s[2]} targets" for s, n in counts.items()))

    def micro(self, batch):
        """One micro-step, compiled at its first use."""
        shape = jax.tree.map(jnp.shape, batch)
        key = str(shape)
        if key not in self.compiled:
            start = time.perf_counter()
            made = step.microstep.lower(self.base.model, self.train, self.base.params, self.state, batch).compile()
            memory = made.memory_analysis()
            size = f", {(memory.argument_size_in_bytes + memory.temp_size_in_bytes) / 2**30:.1f} GiB" if memory else ""
            self.say(f"compiled prompts {shape.prompts.at}, windows {shape.windows} in {time.perf_counter() - start:.0f} s{size}")
            self.compiled[key] = made
        # One in flight at most: more would keep a signal waiting until all are through.
        self.state = self.compiled[key](self.base.params, jax.block_until_ready(self.state), batch)

    def evaluate(self):
        """Curves of the held-back sessions; the adapters are written out when they are the best so far."""
        if not self.held:
            return
        going = lambda cases: itertools.takewhile(lambda _: not self._stop, cases)  # noqa: E731
        sums, targets = gap.measure(self.base, self.memory, self.memory.layout, self.state.adapters, self.held, going)
        if self._stop:
            return
        found = gap.figures(sums, targets)
        self.curves(int(self.state.step), {f"eval/{n}": found[n] for n in ("nll_raw", "nll_latent", "nll_omit", "nll_foreign", "gap_recovered")})
        self.latest = {"nll_latent": found["nll_latent"]}
        self.say(f"step {int(self.state.step)}: " + ", ".join(f"{n} {found[n]:.4f}" for n in (
            "nll_raw", "nll_latent", "nll_omit", "nll_foreign", "gap_recovered", "foreign_minus_own")))
        if self.best is None or found["nll_latent"] < self.best:
            self.best = found["nll_latent"]
            self.write("adapters", found)

    def write(self, name, figures):
        """Writes the adapters as the chat loads them."""
        card = {"base": self.base.fingerprint, "bases": self.base.fingerprints, "weights": self.config.weights, "layout": self.memory.layout, "step": int(self.state.step),
                "window": self.memory.window, "hours": round(self.seconds / 3600, 2), "held_back": figures, "train": self.facts["config"]["train"]}
        weights.save_adapters(self.out / name, stacked(self.state.adapters), card)

    def loop(self):
        """Steps until the epochs, the hours or a signal end it.  Raises: ValueError for a loss or gradient that is not finite."""
        before = {s: signal.signal(s, self._signalled) for s in (signal.SIGINT, signal.SIGTERM)}
        saved = began = time.monotonic()
        spent = self.seconds
        try:
            if int(self.state.step) == 0:
                self.evaluate()
            for samples in () if self._over() else self.stream:
                start, sessions = time.monotonic(), [s.id for s in samples if s]
                for part in data.group(self.memory, self.train, [s for s in samples if s]):
                    self.micro(data.collate(self.memory, self.train, *part))
                    if self._stop:
                        break
                if self._stop:
                    break
                self.state, metrics = step.apply(self.train, self.steps, self.state)
                self._flush()
                self._pending = int(self.state.step), metrics, sessions, time.monotonic() - start
                self.position = self.stream.get_state()
                self.seconds = spent + time.monotonic() - began
                over = self._over()
                if over or int(self.state.step) % self.train.eval_steps == 0:
                    self._flush()
                    self.evaluate()
                if over or time.monotonic() - saved > 60 * self.train.save_minutes:
                    self._flush()
                    self.save()
                    saved = time.monotonic()
                if over:
                    break
            self._flush()
            if not self._stop and int(self.state.step) % self.train.eval_steps:
                self.evaluate()
            self.save(wait=True)
            self.write("last", self.latest)
        finally:
            for s, handler in before.items():
                signal.signal(s, handler)
        if self._stop:
            self.say(f"stopped by {signal.Signals(self._stop).name} at step {int(self.state.step)}; the same command goes on from there")

    def _over(self):
        return (self.train.hours is not None and self.seconds > 3600 * self.train.hours) or (
            self.train.stop is not None and int(self.state.step) >= self.train.stop)

    def save(self, wait=False):
        """Writes a checkpoint.  Raises: ValueError when the disk is full; the older one stays."""
        try:
            self.saves.save(self.state, {**self.facts, "stream": self.position, "best": self.best, "seconds": self.seconds}, self.latest, wait)
        except OSError as error:
            raise ValueError(f"{self.out} can't be written: {error.strerror or error}; the last checkpoint is whole") from None

    def _signalled(self, number, _):
        self._stop = number

    def _flush(self):
        """Logs the step whose metrics were left on the device while the next one ran."""
        if self._pending:
            self._log(*self._pending)
            self._pending = None

    def _log(self, at, metrics, sessions, took):
        """Writes a step's curves, after checking them."""
        m = {n: float(x) for n, x in metrics.items()}
        if not all(map(np.isfinite, m.values())):
            raise ValueError(f"step {at}: loss {m['nll']}, gradient norm {m['grad_norm']} with samples {', '.join(sessions[:16])}; "
                             "stopped, the last checkpoint is from before; allowed: finite values (lower train.lr, or set train.clip)")
        self.curves(at, {"train/loss": m["nll"], "train/kl": m["kl"], "train/contrast": m["contrast"], "train/grad_norm": m["grad_norm"],
                         "train/tokens": m["targets"], "train/tokens_per_s": m["targets"] / took, "train/lr": m["lr"]})
        left = (self.steps - at) * took / 3600
        self.say(f"step {at}/{self.steps} loss {m['nll']:.4f} kl {m['kl']:.3f} contrast {m['contrast']:.3f} grad {m['grad_norm']:.3f} "
                 f"{took:.1f} s, {left:.1f} h left")


def main():
    config = from_dict(read(sys.argv, _CONFIG))
    if FLAGS.help:
        print(usage(__doc__))
        return
    prepare()
    run = Run(config)
    run.say("\n".join(f"{k}: {v}" for k, v in dataclasses.asdict(config.train).items()))
    run.report()
    run.begin()
    run.loop()


if __name__ == "__main__":
    sys.exit(in_one_line(main))
