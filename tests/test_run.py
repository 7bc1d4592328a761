"""A training run as a program: resume, kills, adapters that the chat loads, one clear line for what is wrong."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from infer.backbone import load_backbone
from infer.session import Session
from infer.store import Store
from rhea_jax.config import FORMS, Chat, Config, Memory
from train import gap
from train.run import Run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(0)
    words = "river stone cloud bread horse music window garden silver winter".split()
    text = lambda n: " ".join(rng.choice(words) for _ in range(n))  # noqa: E731
    with (folder / "train.jsonl").open("w") as file:
        for i in range(14):
            messages = [{"role": role, "content": text(n)} for _ in range(3) for role, n in (("user", 4), ("assistant", 9))]
            file.write(json.dumps({"id": f"s{i}", "messages": messages}) + "\n")
    return folder


def command(model_folder, corpus, out, *more):
    return [sys.executable, "-m", "train.run", f"--config.weights={model_folder}", f"--config.train.data={corpus}", f"--config.train.out={out}",
            "--config.train.batch=2", "--config.train.epochs=2", "--config.train.lr=1e-2", "--config.train.eval_sessions=2", "--config.train.eval_steps=100",
            "--config.train.distill=0.0", "--config.memory.rank=2", "--config.train.save_minutes=0", "--config.train.shapes=((1,256,128,2,128),)", *more]


ENV = {**os.environ, "JAX_PLATFORMS": "cpu", "RHEA_CACHE": os.environ.get("RHEA_TEST_CACHE", "/tmp/rhea_jax-test-cache")}


def run(*args, code=0):
    done = subprocess.run(command(*args), env=ENV, capture_output=True, text=True, timeout=300)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def curves(out):
    return [(x["step"], x["train/loss"]) for x in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "train/loss" in x]


def adapters(out):
    return {n: x.tobytes() for n, x in __import__("safetensors.numpy").numpy.load_file(out / "last/adapters.safetensors").items()}


@pytest.fixture(scope="module")
def straight(model_folder, corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("straight") / "run"
    return out, run(model_folder, corpus, out)


def test_a_run_learns_reports_and_writes_adapters(straight, model_folder, tmp_path):
    out, said = straight
    assert "12 sessions, 12 steps of 2; held back: 2" in said and "padding" in said and "compiled prompts (1, 256)" in said
    steps = curves(out)
    assert [s for s, _ in steps] == list(range(1, 13)) and np.mean([x for _, x in steps[-3:]]) < np.mean([x for _, x in steps[:3]])
    assert list((out / "curves").glob("events*")) and json.loads((out / "config.json").read_text())["config"]["train"]["batch"] == 2
    memory = Memory(rank=2, score="auto", layout="auto", tau_low=-1.0, tau_high=1.0)
    b = load_backbone(Config(weights=str(model_folder), adapters=str(out / "adapters"), memory=memory, chat=Chat(context=1024, chunk=64, max_new=4)))
    with Store("t", tmp_path / "t.sqlite") as store:
        talk = Session(b, store)
        talk.turn("river stone")
        assert [level for *_, level in talk.turn("cloud bread").recall] == ["latent"]


def test_a_resumed_run_is_the_straight_one(straight, model_folder, corpus, tmp_path):
    out = tmp_path / "run"
    run(model_folder, corpus, out, "--config.train.stop=3")
    assert "resumed at step 3 of 12" in run(model_folder, corpus, out)
    assert adapters(out) == adapters(straight[0]) and curves(out) == curves(straight[0])


def killed(model_folder, corpus, out, kills, seed):
    rng = random.Random(seed)
    for _ in range(kills):
        process = subprocess.Popen(command(model_folder, corpus, out), env=ENV, stderr=subprocess.PIPE, text=True)
        for _ in range(rng.randint(1, 3)):  # so many steps are seen
            for line in process.stderr:
                if line.startswith("step ") and "/" in line:
                    break
        time.sleep(rng.random() * 0.2)
        process.send_signal(rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)))
        rest = process.stderr.read()
        assert process.wait(60) in (0, -signal.SIGKILL) and "Traceback" not in rest, rest


def test_kills_change_nothing(straight, model_folder, corpus, tmp_path):
    killed(model_folder, corpus, tmp_path / "run", 5, 0)
    run(model_folder, corpus, tmp_path / "run")
    assert adapters(tmp_path / "run") == adapters(straight[0]) and curves(tmp_path / "run") == curves(straight[0])


@pytest.mark.long
def test_fifty_kills_change_nothing(straight, model_folder, corpus, tmp_path):
    for n in range(10):
        killed(model_folder, corpus, tmp_path / str(n), 5, n)
        run(model_folder, corpus, tmp_path / str(n))
        assert adapters(tmp_path / str(n)) == adapters(straight[0])


def test_what_is_wrong_is_one_line(straight, model_folder, corpus, tmp_path):
    for more, said in ((["--config.train.batch=500"], "allowed: at least one batch of 500"), (["--config.train.data=/none"], "/none can't be read"),
                       (["--config.train.remat=some"], "train.remat is 'some'; allowed: none, dots, layers"), (["--config.train.shapes=((1,2),)"], "five whole numbers"),
                       (["--config.train.out=/proc/none"], "train.out /proc/none can't be written")):
        err = run(model_folder, corpus, tmp_path / "x", *more, code=2).splitlines()
        assert said in err[-1] and err[-1].startswith("error: "), err
    assert "train.lr was 0.01, is 0.5" in run(model_folder, corpus, straight[0], "--config.train.lr=0.5", code=2)
    with pytest.raises(ValueError, match="step 3: loss nan, gradient norm 1.0 with samples a:1; stopped"):
        Run._log(None, 3, {"nll": float("nan"), "grad_norm": 1.0}, ["a:1"], 1.0)


def test_the_measure_as_a_command(straight, model_folder, corpus):
    done = subprocess.run([sys.executable, "-m", "train.gap", "--data", str(corpus), "--model", str(model_folder), "--adapters", str(straight[0] / "adapters"),
                           "--limit", "3", "--json"], env=ENV, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)
    assert {"nll_raw", "nll_latent", "nll_omit", "nll_foreign", "nll_raw_base", "nll_omit_base", "gap_recovered", "low", "high", "n", "latents_per_window", "window"} <= set(found)
    assert found["n"] == 3 and found["latents_per_window"] == 8 and found["window"] == 512


def test_the_measure_takes_the_lowest_of_each_arm():
    targets = np.array([10, 30])
    nats = {"raw_base": 1.0, "raw_gen": 1.5, "omit_base": 3.0, "omit_gen": 2.5, "latent": 1.7, "foreign": 2.0}
    found = gap.figures({a: x * targets for a, x in nats.items()}, targets)
    assert (found["nll_raw"], found["nll_omit"]) == (1.0, 2.0) and found["gap_recovered"] == pytest.approx(0.3)
    assert found["low"] == pytest.approx(0.3) and found["foreign_minus_own"] == pytest.approx(0.3)
    assert FORMS == ("append", "spread", "mean")
