"""The store: what is stored comes back, what is deleted is gone, nothing leaves half a turn."""

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from conftest import files_up_to
from hypothesis import given
from hypothesis import strategies as st

from infer import store as stores
from infer.store import Rule, Store, StoreError, clean, delete, folder, names, path_of

REPO = Path(__file__).resolve().parent.parent
V1 = stores._SCHEMA.replace(" pinned INTEGER NOT NULL DEFAULT 0,", "")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RHEA_HOME", str(tmp_path))
    return tmp_path


def state(store):
    """All that a store holds, without the times."""
    exchanges = [(e.id, e.user, e.reply, e.episodic, e.pinned, e.info) for e in store.exchanges()]
    latents = {e: (x.dtype.name, x.shape, x.tobytes()) for e, x in store.latents("f").items()}
    return exchanges, store.rules(), store.history(), latents, store.get("system")


def bytes_of(path):
    return b"".join(p.read_bytes() for p in sorted(Path(path).rglob("*")) if p.is_file())


def copies():
    return sorted(folder().glob("*.damaged-*"))


# --- what is stored comes back ---


def test_a_session_comes_back_as_it_was():
    with Store("Zoë हिन्दी 1") as store:
        info = {"recall": ({"id": 1, "score": -float("inf")},)}
        first = store.commit("u1\0", "r1 \U0001f600", ["be brief"], info=info)
        store.commit("be kind", "ok", ["be brief", "be kind"], episodic=False)
        store.pin(1)
        store.put("system", "You are terse.")
        store.put_latents(1, np.arange(12, dtype=np.float32).reshape(1, 3, 4), "f")
        live, every = state(store), store.exchanges()
    assert first.id == 1 and not first.pinned and every[0].pinned and not every[1].episodic
    assert every[0].info == first.info == {"recall": [{"id": 1, "score": -float("inf")}]}
    with Store("Zoë हिन्दी 1", create=False) as store:
        assert state(store) == live and store.exchanges() == every
        assert store.rules() == ["be brief", "be kind"] and store.get("system") == "You are terse."
        assert abs(store.get("created") - time.time()) < 60
    assert [name for name, _ in names()] == ["Zoë हिन्दी 1"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float16", "float32", ">f4", "int8"])
def test_latents_round_trip_exactly(dtype):
    x = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(getattr(ml_dtypes, dtype, dtype))
    with Store("s") as store:
        store.commit("u", "r", [])
        for _ in range(2):
            store.put_latents(1, x, "f")
        y = store.latents("f")[1]
        assert y.dtype.name == x.dtype.name and y.shape == x.shape and (y == x).all()
        assert store.latents("other") == {}
        store.put_latents(1, x[:1], "other")
        assert store.latents("f") == {} and store.latents("other")[1].shape == (1, 3, 5)


def test_lone_surrogates_become_replacement_characters():
    assert clean("a\ud800b\udc00") == "a�b�" and clean("\ud83d\ude00\ufeff") == "\U0001f600\ufeff"
    with Store("s") as store:
        made = store.commit("u\udcff", "r\ud800", ["x\udfff"], info={"i\udfff": "\ud800"})
        assert made.info == {"i�": "�"}
        store.put("system", "y\udfff")
        store.set_rules(["x\udfff", "z\udfff"])
        assert (made.user, made.reply) == ("u�", "r�")
        assert (store.rules(), store.get("system")) == (["x�", "z�"], "y�")
        assert len(store.history()) == 2 and store.exchanges() == [made]


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a\\b", "..", "a" * 65, "\U0001f600" * 64, "a\0",
                                  "a\n", "a ", "C:x", "\udcff", "a.damaged-b"])
def test_names_that_no_session_can_have(name):
    with pytest.raises(StoreError, match="allowed: 1 to 64 printable") as caught:
        Store(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a", "Ünï", "日本語", "e\u0301", "2026-12-01 10.00.00", "a[1]", "-x",
                                  "\U0001f600" * 40])
def test_names_that_sessions_have(name):
    with Store(name) as store:
        assert store.path == path_of(name) and store.path.parent == folder()


def test_an_unknown_session_or_exchange_is_named():
    with pytest.raises(StoreError, match="session 'x' does not exist"):
        Store("x", create=False)
    with pytest.raises(StoreError, match="session 'x' does not exist"):
        delete("x")
    with Store("s") as store:
        before = state(store)
        for number in (1, 10**30):
            for act in (store.born, store.pin, store.forget, lambda e: store.put_latents(e, X, "f")):
                with pytest.raises(StoreError, match=f"exchange {number} is not in session 's'"):
                    act(number)
        assert store.undo() is None and state(store) == before


def test_several_changes_are_one_step():
    with Store("s") as store:
        store.commit("u", "r", ["a"])
        before = state(store)
        with pytest.raises(KeyError), store.transaction():
            store.commit("u2", "r2", ["b"])
            store.pin(2)
            store.put("system", "x")
            raise KeyError
        assert state(store) == before


def test_a_session_is_filled_as_another_was():
    with Store("a") as a, Store("b") as b:
        a.commit("u1", "r1", ["x", "y"], info={"n": 1})
        a.commit("u2", "r2", ["y", "z"], episodic=False)
        a.commit("u3", "r3", ["z"])
        a.set_rules(["q", "z"])
        a.pin(2)
        a.forget(1)
        b.fill(a.exchanges(), a.every_rule())
        assert (b.exchanges(), b.every_rule(), b.rules()) == (a.exchanges(), a.every_rule(), a.rules())
        b.undo()
        a.undo()
        assert (b.exchanges(), b.every_rule(), b.rules()) == (a.exchanges(), a.every_rule(), a.rules())
        with pytest.raises(StoreError, match="can't be written"):
            b.fill(a.exchanges(), [])
    with Store("c") as c:
        c.fill([], [Rule("x", 1, 0.0, 7, 0.0)])
        assert c.commit("u", "r", []).id == 8


# --- rules: history, undo, forget ---


def test_rules_keep_their_history():
    with Store("s") as store:
        store.commit("u", "r", ["a", "b"])
        store.commit("u", "r", ["a", "c"])
        store.set_rules(["c", "d"])
        assert store.history() == [("a", 1, None, 0), ("b", 1, 2, 0), ("c", 2, None, 1), ("d", None, None, 1)]
        assert (store.born(1), store.born(2)) == ([], ["c"])


@given(st.lists(st.lists(st.sampled_from("abcde"), max_size=6), max_size=8))
def test_undo_brings_back_every_list_of_rules(lists):
    with tempfile.TemporaryDirectory() as d, Store("s", Path(d) / "s.sqlite") as store:
        for rules in lists:
            store.commit("u", "r", rules)
            assert store.rules() == rules
        for rules in [[], *lists][-2::-1] if lists else []:
            store.undo()
            assert store.rules() == rules
        assert store.history() == [] and store.exchanges() == []


def test_undo_leaves_what_was_changed_by_hand():
    with Store("s") as store:
        store.commit("u", "r", ["a", "b"])
        store.commit("u", "r", ["b", "c"])
        store.set_rules(["b", "c", "hand"])
        store.undo()
        assert store.rules() == ["a", "b", "hand"]
        store.commit("u", "r", ["b", "hand"])
        store.set_rules(["a", "b", "hand"])
        store.undo()
        assert store.rules() == ["a", "b", "hand"]


def test_forget_returns_the_rules_that_stay():
    with Store("s") as store:
        store.commit("u", "r", ["a", "b"])
        store.commit("u", "r", ["b", "c"])
        assert store.forget(1) == ["b"] and store.rules() == ["b", "c"]
        assert [text for text, *_ in store.history()] == ["b", "c"]
        assert store.forget(2, rules_too=True) == [] and store.rules() == ["b"]
        store.purge_rules(["b"])
        assert store.history() == [] and store.exchanges() == []


@pytest.mark.parametrize("length", [10, 900, 20_000])
def test_what_is_deleted_is_in_no_file(length, home):
    rng = random.Random(length)
    secret = {n: "".join(rng.choices("abcdefgh", k=length)) for n in range(8)}
    latents = {n: np.random.default_rng(n).normal(size=(1, 8, 16)).astype(np.float32) for n in secret}
    with Store("s") as store:
        for n, text in secret.items():
            made = store.commit(f"U{text}", f"R{text[::-1]}", [f"rule {n}{text}"], info={"note": f"I{text}"})
            store.put_latents(made.id, latents[n], "f")
            store.put_latents(made.id, latents[n], "f")
        gone = [7, 2, 5]
        store.undo()
        store.forget(3)
        store.forget(6, rules_too=True)
        for n, text in secret.items():
            held = bytes_of(home)
            for mark in (f"U{text}", f"R{text[::-1]}", f"rule {n}{text}", f"I{text}"):
                parts = [mark[i : i + 400].encode() for i in range(0, max(len(mark) - 399, 1), 4500)]
                assert any(part in held for part in parts) == (n not in gone)
            assert (latents[n].tobytes()[:64] in held) == (n not in gone)
    assert secret[2].encode()[:400] not in bytes_of(home)


RULES = st.lists(st.sampled_from("abcdef"), max_size=4)
OPERATIONS = st.one_of(
    st.tuples(st.just("commit"), st.text(max_size=8), RULES, st.booleans()),
    st.tuples(st.just("set_rules"), RULES),
    st.tuples(st.sampled_from(["forget", "pin", "latents"]), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("undo")),
)


@given(st.lists(OPERATIONS, max_size=14))
def test_a_reloaded_store_equals_the_live_one(operations):
    """Beside it runs the obvious model: lists of exchanges and rules, and the rules before each exchange."""
    exchanges, rules, before = [], [], {}
    with tempfile.TemporaryDirectory() as d:
        path = Path(d) / "s.sqlite"
        with Store("s", path) as store:
            for name, *values in operations:
                ids = [e["id"] for e in exchanges]
                if name == "commit":
                    user, new, episodic = values
                    made = store.commit(user, "r", new, episodic)
                    before[made.id], rules = list(rules), new
                    exchanges.append({"id": made.id, "user": clean(user), "episodic": episodic,
                                      "pinned": False})
                elif name == "set_rules":
                    store.set_rules(*values)
                    if rules != values[0]:
                        rules, before = values[0], {}  # undo of what was changed by hand: see above
                elif name == "undo":
                    gone = store.undo()
                    assert (gone and gone.id) == (ids[-1] if ids else None)
                    if gone:
                        exchanges.pop()
                        rules = before.pop(gone.id, store.rules())
                elif ids:
                    at = values[0] % len(ids)
                    if name == "pin":
                        store.pin(ids[at], values[1])
                        exchanges[at]["pinned"] = values[1]
                    elif name == "latents":
                        store.put_latents(ids[at], np.full((1, 2, 2), at, np.float32), "f")
                    else:
                        born = store.born(ids[at]) if values[1] else []
                        store.forget(ids[at], values[1])
                        rules, before = [r for r in rules if r not in born], {}
                        exchanges.pop(at)
                assert store.rules() == rules
                assert exchanges == [{k: getattr(e, k) for k in ("id", "user", "episodic", "pinned")}
                                     for e in store.exchanges()]
            live = state(store), store.exchanges()
        with Store("s", path) as store:
            assert (state(store), store.exchanges()) == live


# --- one process, private files ---


def test_a_second_process_is_told_at_once_and_a_kill_frees_the_lock():
    code = ("import sys; from infer.store import Store; s = Store('s'); s.commit('u', 'r', []); "
            "print('open', flush=True); sys.stdin.read()")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], cwd=REPO, **pipes) as other:
        assert other.stdout.readline() == b"open\n"
        began = time.perf_counter()
        for act in (lambda: Store("s"), lambda: delete("s")):
            with pytest.raises(StoreError, match=rf"'s' is in use by another process \(pid {other.pid}\)"):
                act()
        assert time.perf_counter() - began < 0.5
        other.kill()
        other.wait()
        with Store("s") as store:
            assert len(store.exchanges()) == 1


def test_the_same_process_is_told_too_and_closing_twice_is_harmless():
    store = Store("s")
    with pytest.raises(StoreError, match="session 's' is open already"):
        Store("s")
    store.close()
    with open(os.devnull) as other:  # takes the number that the lock had
        store.close()
        os.fstat(other.fileno())


def test_files_are_private_at_every_moment(home, monkeypatch):
    v1_session("old")
    seen, connect = set(), sqlite3.connect

    def look(_):
        seen.update((p.suffix, p.stat().st_mode & 0o777) for p in folder().iterdir())

    def traced(*args, **kwargs):
        db = connect(*args, **kwargs)
        db.set_trace_callback(look)
        return db

    monkeypatch.setattr(sqlite3, "connect", traced)
    umask = os.umask(0)
    try:
        with Store("old") as store:
            store.commit("u" * 9000, "r", ["a"])
            store.undo()
            store.copy("new")
        path_of("bad").write_bytes(b"no database" * 400)
        with pytest.raises(StoreError, match="damaged"):
            Store("bad")
        look(None)
        monkeypatch.setattr(os, "fchmod", lambda *_: None)  # the first mode, not a correction of it
        with Store("fresh"):
            look(None)
    finally:
        os.umask(umask)
    assert {suffix for suffix, _ in seen} >= {".sqlite", ".sqlite-journal", ".lock", ".v1", ".part"}
    assert {mode for _, mode in seen} == {0o600, 0o400}
    assert folder().stat().st_mode & 0o777 == 0o700


def test_copy_and_delete(home):
    for name in ("a", "a.b", "a[1]", "[a]"):
        with Store(name) as store:
            store.commit(name, "r", ["x"])
            live = state(store)
    with Store("[a]") as store:
        store.copy("copy")
        with pytest.raises(StoreError, match="session 'copy' exists"):
            store.copy("copy")
        with pytest.raises(StoreError, match="open already"):
            store.copy("[a]")
        store.commit("u" * 90_000, "r", [])
        with files_up_to(50_000), pytest.raises(StoreError, match="can't be written"):
            store.copy("big")
    with Store("copy") as store:
        assert state(store) == live
    path_of("a").write_bytes(b"no database" * 400)
    with pytest.raises(StoreError, match="damaged"):
        Store("a")
    assert len(copies()) == 1
    delete("a")
    delete("a[1]")
    left = {p.name for p in folder().iterdir()}
    assert left >= {"a.b.sqlite", "[a].sqlite", "copy.sqlite"}
    assert not [n for n in left if n.startswith(("a.sqlite", "a.lock", "a.damaged", "a[1]"))]


# --- other versions, damage, full disk ---


def v1_session(name):
    """A session as the first version of the format had it, without `pinned`."""
    path = path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(V1)
        for n in (1, 2):
            db.execute("INSERT INTO exchanges (user, reply, episodic, made, info) VALUES (?, ?, 1, 0, '{}')",
                       (f"u{n}", f"r{n}"))
        db.execute("INSERT INTO rules (place, text, born, made) VALUES (0, 'old rule', 1, 0)")
        db.execute("PRAGMA user_version = 1")
        db.commit()
    path.chmod(0o644)
    return path


def test_an_older_session_is_migrated():
    path = v1_session("s")
    with Store("s") as store:
        store.pin(2)
        assert [(e.user, e.pinned) for e in store.exchanges()] == [("u1", False), ("u2", True)]
        assert store.rules() == ["old rule"]
    assert sorted(p.name for p in path.parent.iterdir()) == ["s.lock", "s.sqlite"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_migration_that_fails_leaves_the_older_session():
    path = v1_session("s")
    before = path.read_bytes()
    path.with_suffix(".v1").write_bytes(b"of a killed process")
    with files_up_to(len(before) // 2), pytest.raises(StoreError, match="s.sqlite can't be opened"):
        Store("s")
    assert path.read_bytes() == before
    with Store("s") as store:
        assert len(store.exchanges()) == 2 and not path.with_suffix(".v1").exists()
    path.with_suffix(".v1").write_bytes(before)
    path.write_bytes(b"no database" * 400)
    with pytest.raises(StoreError, match="is damaged"):
        Store("s")
    assert path.with_suffix(".v1").read_bytes() == before  # it is the last good copy


@pytest.mark.parametrize("script, message", [
    ("PRAGMA user_version = 99", r"s\.sqlite has version 99 of the session format; .* reads up to 2"),
    ("DROP TABLE latents", "database of another program"),
    ("PRAGMA user_version = 0", "database of another program"),
])
def test_a_database_that_is_not_ours_is_refused_and_untouched(script, message):
    with Store("s") as store:
        store.commit("u", "r", [])
    with contextlib.closing(sqlite3.connect(path_of("s"))) as db:
        db.executescript(script)
    before = path_of("s").read_bytes()
    with pytest.raises(StoreError, match=message):
        Store("s")
    assert path_of("s").read_bytes() == before and not copies()


def test_a_session_that_another_program_has_locked_is_not_called_damaged():
    Store("s").close()
    with contextlib.closing(sqlite3.connect(path_of("s"))) as db:
        db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="locked by another program"):
            Store("s")
    assert not copies()
    Store("s").close()


def test_damage_is_told_and_a_copy_kept():
    """Noise or a cut anywhere in the file: an error, or a session that lost nothing of its texts."""
    with Store("whole") as store:
        for n in range(12):
            made = store.commit(f"user {n} " * 50, f"reply {n} " * 600, [f"rule {n}"])
            store.put_latents(made.id, np.zeros((1, 8, 64), np.float32), "f")
        good = state(store)[:3]
    whole, rng, told = path_of("whole").read_bytes(), random.Random(0), 0
    pages = range(0, len(whole), 4096)
    spoiled = [whole[:p] + rng.randbytes(4096) + whole[p + 4096 :] for p in pages]
    spoiled += [whole[:cut] for cut in (100, 5000, len(whole) // 2, len(whole) - 4096, len(whole) - 1)]
    spoiled += [b"no database", b"\0" * 8192, whole.replace(b"user 3", b"user\xff3", 1)]
    for n, content in enumerate(spoiled):
        path_of(f"s{n}").write_bytes(content)
        try:
            with Store(f"s{n}") as store:
                assert state(store)[:3] == good
        except StoreError as error:
            told += 1
            assert "is damaged" in str(error) and "go on with another session name" in str(error)
            assert "\n" not in str(error) and path_of(f"s{n}").read_bytes() == content
            kept = [c for c in copies() if c.name.startswith(f"s{n}.damaged-")]
            assert [c.read_bytes() for c in kept] == [content] and kept[0].stat().st_mode & 0o777 == 0o400
    assert told >= len(spoiled) - 1
    with pytest.raises(StoreError, match="is damaged"):
        Store("s0")
    assert len(copies()) == told  # the same damage is kept once
    assert [name for name, _ in names() if "damaged" in name] == []


def test_a_folder_that_cannot_be(home, monkeypatch):
    monkeypatch.setenv("RHEA_HOME", str(home / "file"))
    (home / "file").write_text("")
    with pytest.raises(StoreError, match="can't be opened"):
        Store("s")
    assert names() == []


def test_a_full_disk_leaves_all_as_before_the_turn(home):
    with Store("s") as store:
        store.commit("u", "r", ["a"])
        before = state(store)
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        acts = (lambda: store.commit("u", "r" * 50_000, ["b"]), lambda: store.set_rules(["x" * 50_000]),
                lambda: store.put_latents(1, np.zeros((1, 8, 4096)), "f"),
                lambda: store.put("system", "s" * 50_000))
        for act in acts:
            with pytest.raises(StoreError, match="database or disk is full.*nothing of this step is stored"):
                act()
            assert state(store) == before
        store._db.execute("PRAGMA max_page_count = 1000000")
        for act in acts:
            with files_up_to(store.path.stat().st_size), pytest.raises(StoreError, match="can't be written"):
                act()
            assert state(store) == before
        store.commit("u2", "r" * 50_000, ["b"])
        assert store.rules() == ["b"] and len(store.exchanges()) == 2
    with Store("s") as store:
        assert store.rules() == ["b"] and len(store.exchanges()) == 2


def test_a_file_that_could_not_be_scrubbed_is_scrubbed_later():
    with Store("s") as store:
        for n in range(4):
            made = store.commit(f"user {n}", "r", [])
            store.put_latents(made.id, np.ones((1, 8, 4096), np.float32), "f")
        with files_up_to(60_000):
            store.purge_rules(["none"])
        assert store.get("unscrubbed") is True
    with Store("s") as store:
        assert store.get("unscrubbed") is None and len(store.latents("f")) == 4


# --- kills ---

def save(store):
    """Copies the session, once."""
    store.copy("other")


X = np.arange(64, dtype=np.float32).reshape(1, 8, 8)
SCRIPT = [
    lambda s: s.commit("u3", "r" * 9000, ["old rule", "new rule"]),
    lambda s: s.put_latents(3, X, "f"),
    lambda s: s.commit("u4", "r4", ["new rule", "newest rule"], info={"n": 1}),
    lambda s: s.undo(),
    lambda s: s.set_rules(["by hand", "new rule"]),
    lambda s: s.pin(2),
    lambda s: s.commit("u5", "r5", ["by hand", "fifth"], episodic=False),
    lambda s: s.put_latents(5, X + 1, "f"),
    lambda s: s.forget(3),
    lambda s: s.put("system", "be terse"),
    save,
    lambda s: s.purge_rules(["by hand"]),
]


def play(home, log=lambda n: None):
    """Opens a session of version 1 under `home` and plays the script; `log` hears how many steps are done."""
    os.environ["RHEA_HOME"] = str(home)
    with Store("s") as store:
        log(1)
        for n, act in enumerate(SCRIPT, 2):
            act(store)
            log(n)


def victim(home, how, number):
    """Plays the script in this process and kills it at a statement or at a step of SQLite's machine."""
    connect, left = sqlite3.connect, [number]

    def tick(*_):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(*args, **kwargs):
        db = connect(*args, **kwargs)
        if how == "statement":
            db.set_trace_callback(tick)
        if how == "step":
            db.set_progress_handler(tick, 10)
        return db

    sqlite3.connect = watched
    file = os.open(home / "log", os.O_WRONLY | os.O_CREAT, 0o600)
    play(home, lambda n: os.pwrite(file, str(n).encode(), 0))
    os.pwrite(file, str(number - left[0]).encode(), 10)


def killer(plan):
    """Forks a victim for each (home, how, number) of the plan: without JAX a fork is fast and safe."""
    for home, how, number in plan:
        child = os.fork()
        if child == 0:
            victim(Path(home), how, number)
            os._exit(0)
        if how == "time":
            time.sleep(number)
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def run_plan(plan):
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    subprocess.run([sys.executable, __file__], input=json.dumps(plan), text=True, check=True, env=environment)


@pytest.fixture
def shelf():
    """A folder in memory, if there is one: a kill asks nothing of a disk, whose syncs take the time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as d:
        yield Path(d)


def homes(shelf, monkeypatch, numbers):
    """Folders with equal copies of a session of version 1, one for each kill."""
    monkeypatch.setenv("RHEA_HOME", str(shelf / "template"))
    v1_session("s")
    made = [shelf / f"{n}" for n in range(numbers)]
    for path in made:
        shutil.copytree(shelf / "template", path)
    return made


def states_of(home, monkeypatch):
    """What is stored after each step of an undisturbed play."""
    monkeypatch.setenv("RHEA_HOME", str(home))
    states = []
    with Store("s") as store:
        states += [state(store)] * 2
        for act in SCRIPT:
            act(store)
            states.append(state(store))
    return states


def check(home, states, monkeypatch):
    """The state is that before or after the step in flight, nothing lies about, the session goes on."""
    monkeypatch.setenv("RHEA_HOME", str(home))
    log = (home / "log").read_bytes() if (home / "log").exists() else b""
    done = int(log.split(b"\0")[0] or 0)
    with Store("s") as store:
        assert state(store) in states[done : done + 2]
        assert store.get("unscrubbed") is None
        forgotten = 3 not in [e.id for e in store.exchanges()]
        store.commit("on", "we go", store.rules())
    assert not (forgotten and b"r" * 400 in bytes_of(home)) and not path_of("s").with_suffix(".v1").exists()
    if path_of("other").exists():
        with Store("other") as store:
            assert state(store) == states[1 + SCRIPT.index(save)]
    return done


def test_a_kill_at_any_statement_leaves_the_state_before_or_after(shelf, monkeypatch):
    whole = homes(shelf / "whole", monkeypatch, 2)
    run_plan([(str(h), how, 10**9) for h, how in zip(whole, ("statement", "step"), strict=True)])
    statements, steps = (int((h / "log").read_bytes()[10:]) for h in whole)
    at = [("statement", n) for n in range(statements)] + [("step", n) for n in range(0, steps, steps // 15)]
    states_home, *made = homes(shelf, monkeypatch, len(at) + 1)
    states = states_of(states_home, monkeypatch)
    run_plan([(str(h), how, n) for h, (how, n) in zip(made, at, strict=True)])
    assert len(at) >= 45 and {check(h, states, monkeypatch) for h in made} == set(range(len(SCRIPT) + 1))


@pytest.mark.long
def test_500_kills_at_random_times(shelf, monkeypatch):
    states_home, timed, *made = homes(shelf, monkeypatch, 502)
    states = states_of(states_home, monkeypatch)
    began = time.perf_counter()
    play(timed)
    seconds, rng = time.perf_counter() - began, random.Random(0)
    run_plan([(str(h), "time", 0.002 + 1.2 * seconds * rng.random()) for h in made])
    assert len({check(h, states, monkeypatch) for h in made}) >= len(SCRIPT) // 2


if __name__ == "__main__":
    killer(json.load(sys.stdin))
