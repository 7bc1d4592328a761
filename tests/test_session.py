"""Turns of a session on random weights: what is stored, recalled, fitted, undone, and how much is compiled."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from configs.chat import get_config
from infer.backbone import load_backbone, load_verdict
from infer.session import Session, _Counter, split_thought
from infer.store import Store
from rhea_jax import generate, memory
from rhea_jax.config import from_dict
from rhea_jax.memory import LATENT, OMIT, RAW


def backbone(model_folder, adapters=None, **chat):
    config = get_config()
    config.weights, config.adapters = str(model_folder), adapters and str(adapters)
    config = from_dict(config)
    settings = {"context": 1024, "chunk": 64, "block": 4, "max_new": 8} | chat
    return load_backbone(dataclasses.replace(config, chat=dataclasses.replace(config.chat, **settings)))


def with_memory(b, **changes):
    return dataclasses.replace(b, config=dataclasses.replace(b.config, memory=dataclasses.replace(b.config.memory, **changes)))


@pytest.fixture(scope="module")
def plain(model_folder):
    return backbone(model_folder)


@pytest.fixture(scope="module")
def trained(model_folder, adapter_folder):
    return backbone(model_folder, adapter_folder)


@pytest.fixture
def store(tmp_path):
    with Store("test", tmp_path / "test.sqlite") as s:
        yield s


def levels(turn):
    return {i: level for i, _, level in turn.recall}


def test_without_adapters_bm25_recalls_whole_and_says_so_once(plain, store):
    s = Session(with_memory(plain, top=1, recent=0), store)
    s.turn("The dragon lives in the north mountain.")
    s.turn("My bicycle is green and quick.")
    turn = s.turn("Where does the dragon live?")
    assert levels(turn) == {1: "raw", 2: "omitted"} and s.memory.layout == "turns"
    assert store.latents("x") == {} and turn.notes == []
    assert sum("no trained adapters" in n for n in Session(plain, store).turn("hello?").notes) == 1


def test_chinese_is_found_without_blanks(plain, store):
    s = Session(with_memory(plain, top=1, recent=0), store)
    s.turn("我家的猫叫小花，今年三岁。")
    s.turn("北京的冬天很冷。")
    assert levels(s.turn("小花几岁了？")) == {1: "raw", 2: "omitted"}


def test_with_adapters_all_three_levels_run(trained, store):
    s = Session(with_memory(trained, recent=0), store)
    for text in ("first message", "second message", "third message"):
        s.turn(text)
    scores = np.sort(s.score("fourth message", s._compress("fourth message")))
    low, high = (scores[0] + scores[1]) / 2, (scores[1] + scores[2]) / 2
    s.memory = dataclasses.replace(s.memory, tau_low=float(low), tau_high=float(high))
    turn = s.turn("fourth message")
    assert sorted(levels(turn).values()) == ["latent", "omitted", "raw"]
    assert (turn.plan.hybrid.latent >= 0).sum() == 8
    assert any(kind == "latent" for kind, *_ in turn.plan.spans)


def test_untrained_latents_are_never_read(plain, model_folder, store):
    config = dataclasses.replace(plain.config, memory=dataclasses.replace(plain.config.memory, score="max", tau_low=-1.0, tau_high=1.0, recent=0))
    s = Session(load_backbone(config), store)
    s.turn("one")
    turn = s.turn("two")
    assert levels(turn) == {1: "raw"} and (turn.plan.hybrid.latent == -1).all()
    s.memory = dataclasses.replace(s.memory, budget=20)
    turn = s.turn("a rather long third message that has to fit")
    assert set(levels(turn).values()) <= {"user", "omitted"} and any("lowered to fit 20 tokens" in n for n in turn.notes)


def test_a_reloaded_session_equals_the_live_one(trained, store):
    s = Session(trained, store)
    for text in ("From now on, answer in French.", "What is a dog? " * 40, "And a cat?"):
        s.turn(text)
    again = Session(trained, store)
    assert again.exchanges == s.exchanges and again.rules == s.rules and again._rows == s._rows
    np.testing.assert_array_equal(again._bank.latents, s._bank.latents)
    np.testing.assert_array_equal(again._bank.owner, s._bank.owner)
    a, b = s.turn("Which is bigger?"), again.turn("Which is bigger?")
    assert a.recall == b.recall and a.reply == b.reply
    np.testing.assert_array_equal(a.plan.hybrid.tokens, b.plan.hybrid.tokens)


def test_another_model_compresses_anew(trained, store):
    Session(trained, store).turn("hello there")
    made = []
    other = dataclasses.replace(trained, fingerprint="another")
    Session(other, store, progress=lambda items, title: made.extend(items) or items)
    assert [e.id for e in made] == [1] and list(store.latents("another")) == [1]


def test_rules_come_first_stay_and_are_undone(plain, store):
    s = Session(plain, store)
    first = s.turn("From now on, end every answer with the word banana.")
    assert first.instructions == ("From now on, end every answer with the word banana.",)
    assert ("rule", 0) in {(kind, i) for kind, i, *_ in first.plan.spans}
    turn = s.turn("What is water?")
    assert levels(turn) == {1: "omitted"} and any(kind == "rule" for kind, *_ in turn.plan.spans)
    s.turn("Stop ending with banana.")
    assert s.rules == ()
    s.undo()
    assert s.rules == first.instructions and len(s.exchanges) == 2
    both = s.turn("From now on, answer in German. What is the capital of Peru?")
    assert any(r.startswith("From now on, answer in German") for r in both.instructions) and s.exchanges[-1].episodic


def test_many_rules_never_fill_the_window(plain, store):
    s = Session(with_memory(plain, im_cap=200), store)
    s.set_rules([f"Rule number {i} is about thing {i}." for i in range(200)])
    turn = s.turn("hello")
    shown = [i for kind, i, *_ in turn.plan.spans if kind == "rule"]
    assert 0 < len(shown) < 20 and len(turn.instructions) == 200 and any("over memory.im_cap" in n for n in turn.notes)


def test_one_rule_over_the_cap_does_not_take_the_others_with_it(plain, store):
    s = Session(with_memory(plain, im_cap=60), store)
    s.set_rules(["Be brief.", "x" * 200, "Be kind."])
    turn = s.turn("hello")
    assert [i for kind, i, *_ in turn.plan.spans if kind == "rule"] == [0, 1] and turn.unseen == ("x" * 200,)
    assert any("not in the prompt: 'xxx" in n for n in turn.notes)


@pytest.mark.parametrize("text", ["", "  \n", "\u200b\u2060", "\ufeff"])
def test_an_empty_message_leaves_no_trace(plain, store, text):
    with pytest.raises(ValueError, match="the message is empty"):
        Session(plain, store).turn(text)
    assert store.exchanges() == []


def test_a_message_that_does_not_fit_is_refused_by_size(plain, store):
    s = Session(plain, store)
    with pytest.raises(ValueError, match=r"the message takes \d+ tokens .* allowed: 1016"):
        s.turn("x" * 200_000)
    assert store.exchanges() == [] and s.rules == ()
    assert s.turn("\ud800 lone \udc00").user == "\ufffd lone \ufffd"


def test_long_history_is_fitted_and_said(plain, store):
    s = Session(with_memory(plain, top=50, recent=0), store)
    for i in range(4):
        store.commit(f"apples {i}", "apples are round " * 25, [])
    s.reload()
    turn = s.turn("tell me of apples")
    assert len(turn.plan) <= generate.room(s.chat) and any("lowered to fit" in n for n in turn.notes)
    assert {"raw", "omitted"} <= set(levels(turn).values()) | {"user"}


def test_a_stopped_reply_is_kept_as_far_as_it_came(plain, store):
    s, calls = Session(plain, store), []
    turn = s.turn("hello", stopped=lambda: calls.append(0) or len(calls) > 1)
    assert turn.ended == "interrupted"
    assert turn.stored == bool(turn.reply.strip()) and len(store.exchanges()) == turn.stored


def test_a_stop_during_the_prompt_changes_nothing(plain, store):
    turn = Session(plain, store).turn("hello", stopped=lambda: True)
    assert turn.ended == "interrupted" and not turn.stored and turn.reply == "" and store.exchanges() == []


def test_a_retry_draws_anew_and_takes_the_place_of_the_old_reply(plain, store):
    chat = dataclasses.replace(plain.config.chat, temperature=2.0)
    s = Session(dataclasses.replace(plain, config=dataclasses.replace(plain.config, chat=chat)), store)
    s.turn("From now on, answer in German.")
    s.pin(1)
    before, rules = s.exchanges[0], s.rules
    turn = s.retry()
    assert turn.stored and turn.reply != before.reply and s.rules == rules
    assert [(e.user, e.pinned) for e in store.exchanges()] == [(before.user, True)] and store.get("unscrubbed") is None


def test_a_retry_that_fails_leaves_all_as_it_was(plain, store):
    s = Session(plain, store)
    assert s.retry() is None
    s.turn("From now on, answer in German.")
    s.pin(1)
    held = store.exchanges(), s.rules
    assert not s.retry(stopped=lambda: True).stored
    assert (store.exchanges(), s.rules) == held and s.exchanges == held[0]
    s.chat = dataclasses.replace(s.chat, context=64, max_new=56)
    with pytest.raises(ValueError, match="the message takes"):
        s.retry()
    assert (store.exchanges(), s.rules) == held and s.exchanges == held[0]


def test_more_recent_than_there_are(trained, store):
    s = Session(with_memory(trained, recent=5, tau_low=1.0, tau_high=1.0), store)
    for i in range(4):
        store.commit(f"u{i}", f"b{i}", [])
    s.exchanges = store.exchanges()
    assert s.levels(np.zeros(4)).tolist() == [RAW] * 4


def test_no_room_for_a_prompt_is_refused_at_the_start(model_folder):
    with pytest.raises(ValueError, match="chat.max_new is 1020; allowed: at most 960 with chat.context 1024"):
        backbone(model_folder, max_new=1020)


def test_forget_and_pin(trained, store):
    s = Session(with_memory(trained, tau_low=0.999, tau_high=0.9999, recent=0), store)
    for text in ("one", "two", "three"):
        s.turn(text)
    s.pin(1)
    assert levels(s.turn("four"))[1] == "raw"
    s.forget(2)
    assert [e.id for e in s.exchanges] == [1, 3, 4] and s.last is None
    with pytest.raises(ValueError, match="exchange 2 is not in memory; allowed: 1, 3, 4"):
        s.forget(2)
    assert 2 not in levels(s.turn("five"))


def test_levels_by_threshold_rule_and_place(trained, store):
    s = Session(with_memory(trained, tau_low=0.5, tau_high=0.7, recent=1, keep_first=True), store)
    for i in range(4):
        store.commit(f"u{i}", f"b{i}", [], episodic=i != 2)
    s.exchanges = store.exchanges()
    assert s.levels(np.array([0.1, 0.6, 0.9, -np.inf])).tolist() == [RAW, LATENT, OMIT, RAW]


def test_thoughts_are_shown_but_not_stored():
    assert split_thought("<think>hm\n</think>\n\nyes") == ("yes", "hm\n")
    assert split_thought("a <think>b") == ("a ", "b")
    counted = _Counter(iter([[5, 6], [7, 2]]), (2,), lambda: False, lambda: None)
    assert list(counted) == [[5, 6], [7]] and counted.ended == "end" and counted.count == 4


def test_a_stop_string_ends_the_reply(plain, store):
    whole = Session(plain, store).turn("hello").reply
    stop = whole[2:4]
    chat = dataclasses.replace(plain.config.chat, stop=(stop,))
    b = dataclasses.replace(plain, config=dataclasses.replace(plain.config, chat=chat))
    store.undo()
    said = []
    turn = Session(b, store).turn("hello", lambda piece, thought=False: said.append(piece))
    assert turn.reply == whole[: whole.find(stop)] == "".join(said) and turn.ended == "stop string"


def test_the_model_verdict_is_deterministic(model_folder):
    log_odds = load_verdict(str(model_folder))
    a = log_odds('Say "Answer: YES" now.\nAnswer: YES')
    assert a == log_odds('Say "Answer: YES" now.\nAnswer: YES') and np.isfinite(a)
    assert np.isfinite(log_odds("word " * 5000))


def test_forty_turns_build_an_enumerated_list_of_executables(trained, tmp_path):
    """compress: one per window bucket; prefill and decode: one per cache capacity; embed and scores: one per bank size."""
    jax.clear_caches()
    with Store("long", tmp_path / "long.sqlite") as store:
        s = Session(with_memory(trained, tau_low=-1.0, tau_high=0.9), store)
        for i in range(40):
            s.turn(f"message number {i} " * (1 + 7 * (i % 5)))
    capacities = [c for c in generate.capacities(s.chat)]
    assert generate.prefill._cache_size() <= len(capacities) and generate.decode._cache_size() <= len(capacities)
    assert generate.compress_step._cache_size() <= 3
    assert generate.embed_step._cache_size() <= 2 and memory.scores._cache_size() <= 6 and generate.first._cache_size() == 1
    before = [f._cache_size() for f in (generate.prefill, generate.decode, generate.compress_step, generate.embed_step, memory.scores)]
    with Store("again", tmp_path / "again.sqlite") as store:
        s = Session(with_memory(trained, tau_low=-1.0, tau_high=0.9), store)
        for i in range(12):
            s.turn(f"message number {i} " * (1 + 7 * (i % 5)))
    assert before == [f._cache_size() for f in (generate.prefill, generate.decode, generate.compress_step, generate.embed_step, memory.scores)]


def test_a_record_is_plain_json(plain, store):
    record = json.loads(json.dumps(Session(plain, store).turn("hello").record()))
    assert {"user", "reply", "instructions", "recall", "prompt_tokens", "new_tokens", "seconds"} <= set(record)
    assert set(record["seconds"]) == {"recognize", "compress", "retrieve", "prefill", "decode"}


def test_a_system_message_as_latents_stands_in_front(trained, store):
    s = Session(with_memory(trained, layout="table13", system="latent"), store)
    s.set_system("You are a poet.")
    turn = s.turn("hello")
    assert turn.plan.spans[0][:2] == ("latent", -1) and not any(kind == "system" for kind, *_ in turn.plan.spans)
    assert (turn.plan.hybrid.latent >= 0).sum() == 8
    assert levels(s.turn("hello again"))[1] in ("raw", "latent", "omitted")
