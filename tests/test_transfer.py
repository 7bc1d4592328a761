"""Conversations in and out: an export comes back as it was, any other file is read or refused whole."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer.store import Store, delete
from infer.transfer import export, import_

OWN = {"format": "rhea_jax session", "version": 2, "system": None}
TURN = {"user": "u", "assistant": "r", "episodic": True, "pinned": False}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RHEA_HOME", str(tmp_path / "home"))
    return tmp_path


def lines(*values):
    return "\n".join(json.dumps(v) for v in values)


def said(*pairs):
    return [{"role": role, "content": text} for role, text in pairs]


def read(home, content, suffix=""):
    """(system, exchanges, rules, notes) of a file of this content; each message that ends with ! is a rule."""
    (home / "f.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with Store("new") as store:
        notes = import_(store, f"{home / 'f.json'}{suffix}", lambda rules, text: (
            (*rules, text) if text.endswith("!") else rules, not text.endswith("!")))
        got = store.get("system"), [(e.user, e.reply, e.episodic) for e in store.exchanges()], store.rules(), notes[1:]
    delete("new")
    return got


CONVERSATION = said(("system", "s"), ("user", "be brief!"), ("assistant", "ok"), ("user", "hi"), ("assistant", "ho"))
SHAREGPT = [{"from": m["role"].replace("user", "human").replace("assistant", "gpt"), "value": m["content"]}
            for m in CONVERSATION]


@pytest.mark.parametrize("content", [
    json.dumps(CONVERSATION), json.dumps({"messages": CONVERSATION}), json.dumps([{"messages": CONVERSATION}]),
    json.dumps([CONVERSATION]), json.dumps(CONVERSATION, indent=2), lines(*CONVERSATION), json.dumps(SHAREGPT),
    json.dumps({"id": 1, "conversations": SHAREGPT}), json.dumps([{"conversations": SHAREGPT}]),
    lines({"conversations": SHAREGPT}) + "\n\n", "\ufeff" + lines(*CONVERSATION).replace("\n", "\r\n"),
])
def test_every_form_is_read(home, content):
    assert read(home, content) == ("s", [("be brief!", "ok", False), ("hi", "ho", True)], ["be brief!"], [])


def test_histories_that_do_not_alternate(home):
    history = said(("assistant", "hello"), ("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d"),
                   ("user", "left over"))
    system, exchanges, _, notes = read(home, json.dumps(history))
    assert exchanges == [("", "hello", True), ("a\n\nb", "c\n\nd", True)] and system is None
    assert notes == ["the last message has no reply and is left out: 'left over'"]


@pytest.mark.parametrize("form", [lines, lambda *v: json.dumps(v)])
def test_one_of_several_is_picked(home, form):
    content = form({"messages": said(("user", "a"), ("assistant", "b"))}, {"conversations": SHAREGPT})
    assert read(home, content, "#1")[1] == [("a", "b", True)]
    assert read(home, content, "#2")[0] == "s"
    for suffix, message in (("", r"holds 2 conversations; allowed: one, such as .*f.json#1"), ("#3", "#1 to #2")):
        with pytest.raises(ValueError, match=message):
            read(home, content, suffix)


def test_a_file_whose_name_ends_like_a_pick(home):
    (home / "a#2").write_text(json.dumps(CONVERSATION))
    with Store("s") as store:
        assert import_(store, home / "a#2", lambda r, t: (r, True))[0].startswith("2 exchanges")


@pytest.mark.parametrize("content, message", [
    ("", "holds no conversation"), ("[]", "holds no conversation"), ("null", "item 1 is no conversation"),
    ("5", "item 1 is no conversation"), ('{"a": 1}', "item 1 is no conversation"), (b"\xff", "byte 0 is no UTF-8"),
    ("[\n1,\n}", "line 3 is no JSON"), ('{"role": "user", "content": "a"}\n\nxx', "line 3 is no JSON"),
    ("[" * 100_000, "nested too deep"), (json.dumps([{"role": ["x"], "content": "a"}]), r"message 1 has role \['x'\]"),
    (lines(*CONVERSATION, {"role": "tool", "content": "a"}), "line 6 has role 'tool'; allowed: system"),
    (json.dumps([{"role": "user", "content": None}]), "message 1 has content 'None'; allowed: a text"),
    (lines({**OWN, "version": 9}), "version 9 of the export format; allowed: 1 to 2"),
    (lines(OWN, TURN, 5), "line 3 has id 'None'; allowed: int"), (lines({**OWN, "system": 5}), "line 1 has system '5'"),
    (lines(OWN, {**TURN, "user": 1}), "line 2 has user '1'; allowed: str"),
    (lines(OWN, {**TURN, "pinned": 1}), "line 2 has pinned '1'; allowed: bool"),
    (lines(OWN, {"user": "u"}), "line 2 has assistant 'None'"), (lines(OWN, {"rule": 5}), "line 2 has rule '5'"),
    (lines(OWN, {**TURN, "id": 3}, {**TURN, "id": 3}), "line 3 has id 3; allowed: more than 3"),
    (lines(OWN, {**TURN, "id": 10**30}), "line 2 has id '1"), (lines(OWN, {"rule": "x", "born": "1"}), "line 2 has born"),
    (lines(OWN, {"rule": "x", "born": 2**80}), "line 2 has born"), (lines(OWN, {"rule": "x", "made": 10**400}), "made"),
])
def test_a_wrong_file_is_one_line_and_nothing_is_stored(home, content, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(home, content)
    assert "\n" not in str(caught.value) and "f.json" in str(caught.value)
    with Store("new") as store:
        assert store.exchanges() == [] and store.every_rule() == [] and store.get("system") is None


def test_missing_files_and_sessions_in_use_are_named(home):
    with Store("s") as store:
        with pytest.raises(ValueError, match="none.json can't be read: No such file"):
            import_(store, home / "none.json", None)
        store.set_rules(["x"])
        with pytest.raises(ValueError, match="'s' already holds"):
            import_(store, home / "none.json", None)
        with pytest.raises(ValueError, match="can't be written: No such file"):
            export(store, home / "no" / "folder.jsonl")


def test_an_import_that_fails_midway_stores_nothing(home):
    (home / "f.json").write_text(json.dumps(CONVERSATION))

    def recognize(rules, text):
        if text == "hi":
            raise KeyError
        return rules, True

    with Store("s") as store:
        with pytest.raises(KeyError):
            import_(store, home / "f.json", recognize)
        assert store.exchanges() == [] and store.get("system") is None


def test_an_export_of_version_1_is_read(home):
    content = lines({**OWN, "version": 1, "system": "s"}, TURN, {**TURN, "pinned": True}, {"rule": "a"}, {"rule": "b"})
    assert read(home, content) == ("s", [("u", "r", True)] * 2, ["a", "b"], [])


TEXT = st.text(st.characters(exclude_categories=()), max_size=6) | st.sampled_from(["\u2028", "\x85\n", "\r", "\ud800"])


@given(st.lists(st.tuples(TEXT, TEXT, st.lists(TEXT, max_size=3), st.booleans(), st.booleans()), max_size=5), TEXT)
def test_an_export_comes_back_exactly(home, turns, system):
    file = home / "out.jsonl"
    file.unlink(missing_ok=True)
    with Store("a") as a, Store("b") as b:
        a.put("system", system)
        for user, reply, rules, episodic, pinned in turns:
            a.pin(a.commit(user, reply, rules, episodic, {"user": user}).id, pinned)
        if len(turns) > 2:
            a.forget(2)
        a.set_rules([*a.rules()[1:], system])
        assert export(a, file) == len(a.exchanges()) + len(a.every_rule())
        assert file.stat().st_mode & 0o777 == 0o600
        import_(b, file, None)
        assert (b.exchanges(), b.every_rule(), b.get("system")) == (a.exchanges(), a.every_rule(), a.get("system"))
        a.undo(), b.undo()
        assert (b.exchanges(), b.rules()) == (a.exchanges(), a.rules())
    delete("a")
    delete("b")
