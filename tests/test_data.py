"""Samples: the same ids, slots and positions as the chat's prompts; packing; shuffling that resumes exactly."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer.backbone import load_backbone
from infer.session import Session as Talk
from infer.store import Store
from rhea_jax import tokenizer
from rhea_jax.config import FORMS, Chat, Config, Memory, Train
from train import data
from train.data import Sample, Session

MEMORY = Memory(latents=8, rank=2, alpha=4.0, layout="turns")
TRAIN = Train(batch=2, epochs=2, shapes=((1, 256, 64, 2, 128), (1, 1024, 512, 4, 512)), longest=512)
TALK = Session("s", (("Hello there", "Hi. What can I do?"), ("Tell me of dogs", "Dogs bark. " * 60), ("And cats?", "They do not."), ("Why", "So")))


@pytest.fixture(scope="module")
def made(model_folder):
    return tokenizer.load_tokenizer(model_folder)


def test_a_sample_is_the_prompt_that_the_chat_builds(model_folder, adapter_folder, tmp_path):
    memory = dataclasses.replace(MEMORY, tau_low=-1.0, tau_high=1.0, score="max")  # all latent
    b = load_backbone(Config(weights=str(model_folder), adapters=str(adapter_folder), memory=memory, chat=Chat(context=2048, chunk=64, block=4, max_new=4)))
    with Store("x", tmp_path / "x.sqlite") as store:
        for user, reply in TALK.turns[:2]:
            store.commit(user, reply, [])
        plan = Talk(b, store).turn(TALK.turns[2][0]).plan
    sample = data.build(b.tokenizer, memory, TRAIN, TALK, 2, np.random.default_rng(0))
    n = sample.target
    assert n == len(plan)
    np.testing.assert_array_equal(sample.tokens[:n], plan.hybrid.tokens[0])
    np.testing.assert_array_equal(sample.latent[:n], plan.hybrid.latent[0])
    assert b.tokenizer.decode(sample.tokens[n:]) == "They do not." and sample.tokens[-1] in b.tokenizer.ends
    assert [len(w) for w in sample.windows] == [20, 502 + 2, 158 + 2] and sample.match == 2 and not sample.cut


def test_what_does_not_fit_goes_by_rule_oldest_first(made):
    small = dataclasses.replace(TRAIN, shapes=((1, 256, 8, 2, 128),), longest=8)
    assert data.build(made, MEMORY, small, TALK, 2, np.random.default_rng(0)) is None  # nothing of its history fits
    sample = data.build(made, MEMORY, small, TALK, 3, np.random.default_rng(0))
    assert len(sample.windows) == 1 and sample.match == 0 and len(sample.tokens) - sample.target == 3 and sample.cut
    assert data.build(made, MEMORY, small, Session("e", (("a", "b"), ("c", ""))), 1, np.random.default_rng(0)) is None
    two = dataclasses.replace(TRAIN, history=2)
    assert len(data.build(made, MEMORY, two, TALK, 3, np.random.default_rng(0)).windows) == 3  # a long reply and a short one


def test_a_share_of_samples_asks_for_the_last_reply_again(made):
    train = dataclasses.replace(TRAIN, rebuild=1.0, recall="mixed")
    for seed in range(9):
        sample = data.build(made, MEMORY, train, TALK, 1, np.random.default_rng(seed))
        prompt, told = made.decode(sample.tokens[: sample.target]), made.decode(sample.tokens[sample.target :])
        assert any(q in prompt for q in data.AGAIN) and "Tell me of dogs" not in prompt
        assert told == "Hi. What can I do?" and told not in prompt and len(sample.windows) == 1 and sample.match == -1


def test_of_the_turns_one_that_fits_is_drawn(made):
    small = dataclasses.replace(TRAIN, shapes=((1, 256, 8, 1, 128),), longest=8, epochs=4)
    steps = list(data.stream(made, MEMORY, small, [dataclasses.replace(TALK, id=str(i)) for i in range(2)]))
    assert len(steps) == 4 and {s.id.split(":")[1] for step in steps for s in step} == {"1", "3"}


def test_mixed_recall_draws_all_levels(made):
    train, rng = dataclasses.replace(TRAIN, recall="mixed"), np.random.default_rng(0)
    talk = Session("s", tuple((f"question {i}", f"answer {i}") for i in range(8)))
    texts = [data.build(made, MEMORY, train, talk, 7, rng) for _ in range(20)]
    assert len({len(t.windows) for t in texts}) > 2
    assert any("answer" in made.decode(t.tokens[: t.target]) for t in texts)


def test_a_teacher_reads_the_same_history_raw(made):
    train = dataclasses.replace(TRAIN, distill=0.5)
    sample = data.build(made, MEMORY, train, TALK, 2, np.random.default_rng(0))
    assert "Dogs bark." in made.decode(sample.teacher) and made.decode(sample.teacher).endswith("They do not.")


def random_sample(rng, i):
    windows = tuple(rng.integers(0, 96, rng.integers(2, 40)).astype(np.int32) for _ in range(rng.integers(0, 4)))
    tokens = rng.integers(0, 96, rng.integers(12, 60)).astype(np.int32)
    latent = np.full(len(tokens), -1, np.int32)
    latent[: 8 * len(windows)][: len(tokens) - 6] = np.arange(8 * len(windows), dtype=np.int32)[: len(tokens) - 6]
    return Sample(str(i), tokens, latent, len(tokens) - int(rng.integers(1, 6)), windows, -1, False)


@given(st.integers(0, 10_000), st.sampled_from(FORMS))
def test_packing_loses_nothing_and_mixes_nothing(seed, form):
    rng, memory = np.random.default_rng(seed), dataclasses.replace(MEMORY, form=form)
    samples = [random_sample(rng, i) for i in range(9)]
    train = dataclasses.replace(TRAIN, shapes=((1, 64, 16, 1, 64), (2, 96, 64, 3, 96)))
    parts = data.group(memory, train, samples)
    assert sorted(s.id for _, part in parts for s in part) == sorted(s.id for s in samples)
    for shape, part in parts:
        batch = data.collate(memory, train, shape, part)
        h, flat, w = batch.prompts.hybrid, batch.windows.reshape(-1), 0
        assert batch.length.sum() == sum(len(r) for s in part for r in s.windows)
        for z, s in enumerate(part):
            here = h.valid & (batch.prompts.segment == z)
            np.testing.assert_array_equal(h.tokens[here], s.tokens)
            np.testing.assert_array_equal(batch.prompts.at[here], np.arange(len(s.tokens)))
            np.testing.assert_array_equal(h.latent[here], np.where(s.latent >= 0, s.latent + 8 * w, -1))
            for row in s.windows:
                np.testing.assert_array_equal(flat[batch.start[w] : batch.start[w] + batch.length[w]], row)
                w += 1
        told = batch.target >= 0
        np.testing.assert_array_equal(h.tokens.reshape(-1)[batch.target[told] + 1], batch.label[told])
        assert 0 <= data.waste([batch]) < 1


def test_the_stream_goes_on_where_it_was(made):
    sessions = [dataclasses.replace(TALK, id=str(i)) for i in range(6)]
    ids = lambda steps: [[s and s.id for s in step] for step in steps]  # noqa: E731
    whole = ids(data.stream(made, MEMORY, TRAIN, sessions))
    assert len(whole) == 6 and len({i.split(":")[0] for step in whole[:3] for i in step}) == 6 and whole[:3] != whole[3:]
    it = iter(data.stream(made, MEMORY, TRAIN, sessions))
    first = ids([next(it) for _ in range(2)])
    again = iter(data.stream(made, MEMORY, TRAIN, sessions))
    again.set_state(json.loads(json.dumps(it.get_state())))
    assert first + ids(again) == whole
    every = dataclasses.replace(TRAIN, targets="all", epochs=1)
    assert len(list(data.stream(made, MEMORY, every, sessions))) == 12


def test_sessions_are_read_or_refused_by_line(tmp_path):
    file = tmp_path / "train.jsonl"
    good = {"id": "a", "messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "b"}]}
    file.write_text(json.dumps(good) + "\n")
    assert data.read_sessions(tmp_path) == data.read_sessions(file) == [Session("a", (("u", "b"),))]
    odd, heard = {"id": "b", "messages": good["messages"][:1] * 2}, []
    file.write_text(json.dumps({**good, "messages": [{"role": "system", "content": "s"}, *good["messages"]]}) + "\n" + json.dumps(odd))
    assert data.read_sessions(file, heard.append) == [Session("a", (("u", "b"),), "s")] and "1 of 2 sessions are left out" in heard[0]
    for text, said in (("{}", "record 1 has the fields"), ("<html>", "is HTML"), (json.dumps(odd), "holds no conversation of user"), ("", "is empty")):
        file.write_text(text)
        with pytest.raises(ValueError, match=said):
            data.read_sessions(file)
    with pytest.raises(ValueError, match="can't be read"):
        data.read_sessions(tmp_path / "none")
