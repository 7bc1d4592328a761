"""Curation: exact counts on oddities, the same bytes from any number of processes, errors in one line."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rhea_jax.tokenizer import load_tokenizer
from train import copies, overlap, sources
from train.curate import curate, main, report
from train.filters import Rules, dense, exchanges, special

HELD_BACK = "d0xswNI"
PROSE = "The rain falls because the air is cold up there, number {}, and water is heavy."
CODE = "\n".join(f"    total += step({n})" for n in range(12))
TABLE = "\n".join(f"| row {n} | some words |" for n in range(6))


def talk(turns=3, text=PROSE, first=0):
    return [m for n in range(turns) for m in (["human", f"Why does it rain, for the {first + n}th time?"],
                                               ["gpt", text.replace("{}", str(first + n))])]


def row(name, messages):
    return {"id": name, "conversations": [{"from": r, "value": t} for r, t in messages]}


def save(path, rows):
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    return str(path)


def lines(folder):
    return [json.loads(line) for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]


ODD = {
    "whole": talk(),
    "system": [["system", "Be brief."], ["system", " "], *talk()],
    "leading": [["gpt", "And so on."], ["gpt", "More."], *talk()],
    "open end": [*talk(), ["human", "And now?"]],
    "acknowledged": [*talk(), ["human", "ok"], ["gpt", "Bye."]],
    "empty user": [["human", " "], ["gpt", "I go on as before."], *talk()],
    "empty reply": [*talk(), ["human", "Are you still there?"], ["gpt", ""]],
    "fifteen": talk(15),
    "chinese": [["human", "为什么会下雨?"], ["gpt", "因为云里的水滴太重了。"]] * 3,
    "small code": [*talk(5), ["human", "How do I print?"], ["gpt", "So:\n```\nprint(1)\n```\nThat is all."]],
    "address": [*talk(), ["human", "Where?"], ["gpt", "See https://example.org/" + "a/" * 100 + " or ask."]],
    # left out
    "nothing": [],
    "tool": [*talk(), ["tool", "42"]],
    "twice": [["human", "Are you there?"], *talk()],
    "system inside": [*talk(2), ["system", "Be brief."], *talk(2)],
    "only reply": [["gpt", "Hello, I am here to help."]],
    "code": [*talk(), ["human", "Write code."], ["gpt", f"Here:\n```python\n{CODE}\n```"]],
    "open code": [*talk(), ["human", "Write code."], ["gpt", f"Here:\n```\n{CODE}"]],
    "much code": [*talk(3, "Short.\n```\n" + "a b c d e f g h\n" * 5 + "```")],
    "bare code": [*talk(), ["human", "What is wrong?\n" + CODE.replace("    ", "")], ["gpt", "Nothing."]],
    "table": [*talk(), ["human", "As a table, please."], ["gpt", TABLE]],
    "html": [*talk(3, "<div><p>It is {} times.</p></div><br/>")],
    "formulas": [*talk(), ["human", "Prove it."], ["gpt", r"\begin{align} \alpha + \beta \end{align} " * 3]],
    "base64": [*talk(), ["human", "What is this? " + "aGVsbG8g" * 20], ["gpt", "I can't tell."]],
    "numbers": [["human", "Next?"], ["gpt", "1,234 5,678 9,012 3,456 7,890 " * 5]] * 3,
    "nods": [["human", "ok"], ["gpt", "Fine."]] * 3,
    "short": talk(2),
    "short after density": [*talk(2), ["human", "ok"], ["gpt", "Bye."]],
    "sixteen": talk(16),
}
KEPT = list(ODD)[: list(ODD).index("nothing")]
WHY = {
    "selection": {"no messages": 1, "unknown role": 1, "roles do not alternate": 2, "no exchange": 1},
    "classifier": {"large code block": 2, "much code": 1, "code outside of a block": 1, "table": 1,
                   "markup": 1, "formulas or escapes": 1, "text without blanks": 1, "few letters": 1},
    "density": {"no exchange left": 1},
    "horizon": {"under 3 turns": 2, "over 15 turns": 1},
    "overlap": {},
    "limit": {},
}


def test_every_oddity_is_counted_under_its_reason(tmp_path, model_folder):
    path = save(tmp_path / "odd.jsonl", [row(name, messages) for name, messages in ODD.items()])
    manifest = curate([path], tmp_path / "out", Rules(), str(model_folder))
    kept = {s["id"]: s["messages"] for s in lines(tmp_path / "out")}
    assert list(kept) == KEPT
    assert {stage: counts["left_out"] for stage, counts in manifest["stages"].items()} == WHY
    left = len(ODD)
    for counts in manifest["stages"].values():
        assert counts["in"] == left and counts["out"] == (left := left - sum(counts["left_out"].values()))
    assert left == len(KEPT) == manifest["kept"]["sessions"] == manifest["kept"]["by_source"]["odd"]
    assert manifest["parts_left_out"] == {"exchange under 10 tokens": 5, "exchange with an empty message": 2,
                                          "last message without a reply": 1, "leading reply": 3}
    assert manifest["kept"]["exchanges"] == sum(len(m) for m in kept.values()) // 2
    plain = [{"role": ("user", "assistant")[i % 2], "content": text} for i, (_, text) in enumerate(talk())]
    same = ("whole", "leading", "open end", "acknowledged", "empty user", "empty reply")
    assert all(kept[name] == plain for name in same)
    assert kept["system"] == [{"role": "system", "content": "Be brief."}, *plain]
    assert kept["chinese"][0]["content"] == "为什么会下雨?"
    digest = lambda path: hashlib.sha256(Path(path).read_bytes()).hexdigest()  # noqa: E731
    assert manifest["output"]["sha256"] == digest(tmp_path / "out/train.jsonl")
    assert manifest["sources"][0]["sha256"] == digest(path)
    assert json.loads((tmp_path / "out/manifest.json").read_text()) == manifest
    assert "horizon           14 ->        11   2 under 3 turns, 1 over 15 turns" in [*report(manifest)]


def test_limits_are_met_exactly(model_folder):
    tokenizer, rules = load_tokenizer(model_folder), Rules()
    pairs = [("1234", "12345"), ("1234", "123456"), ("好", "好好好"), ("好", "好好")]
    kept, tokens, parts = dense(pairs, tokenizer, 10)
    assert kept == pairs[1:3] and tokens == 10 + 12 and parts == {"exchange under 10 tokens": 2}
    for n, why in ((9, None), (10, "large code block")):
        assert special(["x " * 900, "```\n" + "a b c\n" * n + "```"], rules) == why
    for n, why in ((4, None), (5, "table")):
        assert special(["| words | more words |\n" * n], rules) == why
    for n, why in ((149, None), (150, "text without blanks")):
        assert special(["a" * n], rules) == special(["因为" * 80 + "a" * n], rules) == why
    assert special(["", ""], rules) is None
    prose = ["Return to sender.", "from the sea", "import taxes rise", "- a list (of things)", "a < b",
             "let me know;", "class is over"]
    assert special(["\n".join(prose * 9)], rules) is None


def test_nested_lists_are_no_tables():
    assert special(["\t\t+ an item of a list\n" * 30], Rules()) is None
    assert special(["a\tb\tc\n" * 30], Rules()) == "table"


def test_exchanges_of_messages():
    assert exchanges([("user", "a"), ("assistant", "b")]) == (None, None, [("a", "b")], {})
    assert exchanges([("assistant", "a"), ("user", "b")])[0] == "no exchange"
    assert exchanges([("system", "a"), ("system", "b"), ("user", "c"), ("assistant", "d")])[1] == "a\n\nb"
    assert exchanges([("user", "a"), ("assistant", "b"), ("assistant", "c")])[0] == "roles do not alternate"


def many(n):
    """Sessions of which every fourth is left out, alike to none."""
    rows = []
    for i in range(n):
        words = np.random.default_rng(i).integers(0, 5000, (3, 40))
        texts = [" ".join(chr(97 + w // 676) + chr(97 + w // 26 % 26) + chr(97 + w % 26) for w in line)
                 for line in words]
        replies = texts if i % 4 else [f"```\n{CODE}"] * 3
        rows.append(row(f"s{i}_0", [m for text, reply in zip(texts, replies)
                                    for m in (["human", f"Tell me of {text[:9]}."], ["gpt", reply])]))
    return rows


def run(*args, **kwargs):
    command = [sys.executable, "-m", "train.curate", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **kwargs)


def test_the_same_bytes_from_any_number_of_processes(tmp_path, model_folder):
    path = save(tmp_path / "many.jsonl", many(230) + many(5))
    one = curate([path], tmp_path / "1", Rules(dedup=True, seed=7), str(model_folder), limit=100)
    assert one["stages"]["overlap"]["left_out"] == {"near-duplicate": 3} and one["benchmarks"] is None
    done = run("--out", str(tmp_path / "2"), "--source", path, "--model", str(model_folder),
               "--processes", "2", "--dedup", "--limit", "100", "--seed", "7",
               env={k: v for k, v in os.environ.items() if k != "RHEA_DATA"})
    assert done.returncode == 0 and done.stdout.startswith("\n".join(report(one))), done.stderr
    assert done.stderr.endswith("overlap with benchmarks is not looked for\n")
    assert sorted(p.name for p in (tmp_path / "2").iterdir()) == ["manifest.json", "train.jsonl"]
    for name in ("train.jsonl", "manifest.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    ids = [s["id"] for s in lines(tmp_path / "1")]
    assert len(ids) == 100 and ids == sorted(ids, key=lambda i: int(i[1:-2]))
    curate([path], tmp_path / "3", Rules(dedup=True, seed=8), str(model_folder), limit=100)
    assert [s["id"] for s in lines(tmp_path / "3")] != ids


def test_an_excluded_chat_is_left_out_whatever_file_it_comes_from(tmp_path, model_folder):
    rows = [row(name, talk()) for name in (HELD_BACK, f"{HELD_BACK}_0", f"{HELD_BACK}_13_4", "mine_0")]
    other = [{"id": f"{HELD_BACK}_7", "data": [text for _, text in talk()]},
             {"conversation_id": HELD_BACK, "messages": []}]
    paths = [save(tmp_path / "a.json", rows), save(tmp_path / "b.json", other)]
    manifest = curate(paths, tmp_path / "out", Rules(), str(model_folder))
    assert manifest["stages"]["selection"]["left_out"] == {"held back": 5}
    listed = {"held back": 464, "copy of a chat held back": 47}
    assert manifest["kept"]["excluded_bases"] == {"listed": listed, "overlap": 0}
    assert [s["id"] for s in lines(tmp_path / "out")] == ["mine_0"]


def test_near_duplicates_and_benchmark_texts(tmp_path, model_folder):
    asked = "Describe in your own words how the tides of the sea follow the moon around the earth."
    (tmp_path / "data/mt_bench").mkdir(parents=True)
    turns = [{"user": asked}, {"user": "Now as a short poem."}, {"user": "Why?"}]
    save(tmp_path / "data/mt_bench/mt_bench.jsonl", [{"conv": turns}])
    save(tmp_path / "data/mt_bench/x_single.jsonl", [{"conv": [{"user": PROSE.replace("{}", "0")}]}])
    first, second, third, fourth = ([[m["from"], m["value"]] for m in many(8)[n]["conversations"]]
                                    for n in (1, 2, 3, 5))
    rows = [row("first", first), row("again", first),
            row("nearly", [*first[:5], ["gpt", first[5][1] + " and so on"]]),
            row("pasted", [*second, ["human", f"Hi! {asked.upper()} Please."], ["gpt", "The moon pulls."]]),
            row("whole", [*second, ["human", "now, as a short poem"], ["gpt", "The moon pulls."]]),
            row("part", [*third, ["human", "Write it now as a short poem."], ["gpt", "The moon pulls."]]),
            row("brief", [*fourth[:4], ["human", "Why?"], ["gpt", "Because I say so, that is all."]]),
            row("prose", talk())]
    path = save(tmp_path / "x.jsonl", rows)
    manifest = curate([path], tmp_path / "out", Rules(dedup=True), str(model_folder), data=tmp_path / "data")
    assert manifest["stages"]["overlap"]["left_out"] == {"benchmark text": 2, "near-duplicate": 2}
    assert [s["id"] for s in lines(tmp_path / "out")] == ["first", "part", "brief", "prose"]
    assert manifest["benchmarks"]["marks"] == 6
    manifest = curate([path], tmp_path / "plain", Rules(), str(model_folder), data=tmp_path / "data")
    assert manifest["kept"]["sessions"] == 8 and manifest["benchmarks"] is None


def test_the_sketch_estimates_the_share_of_common_runs():
    words = [f"w{n}" for n in range(2000)]
    a, b = " ".join(words[:1500]), " ".join(words[500:])
    runs = lambda text: {*overlap.grams(overlap.words(text), 5).tolist()}  # noqa: E731
    exact = len(runs(a) & runs(b)) / len(runs(a) | runs(b))
    assert len(runs(a)) == 1496 and abs((overlap.sketch(a, 1) == overlap.sketch(b, 1)).mean() - exact) < 0.15
    assert (overlap.words("Es ist, ES IST 因为a") == overlap.words("es ist es ist 因 为 a")).all()
    assert len(overlap.grams(overlap.words("a b c"), 5)) == 0 and overlap.sketch("", 0).shape == (128,)


DEDUP = Rules(dedup=True)
ERRORS = [
    (["missing.json"], {}, "source 'missing.json' is no file and no folder"),
    (["x.jsonl", "./x.jsonl"], {}, "x.jsonl is given 2 times; allowed: once"),
    (["page.json"], {}, "page.json is HTML or XML"),
    (["short.jsonl"], {}, "nothing is left of 3 sessions: 2 under 3 turns, 1 no messages"),
    (["x.jsonl"], {"model": "./nowhere"}, "model ./nowhere is no file"),
    (["x.jsonl"], {"out": "x.jsonl"}, "x.jsonl can't be written: File exists"),
    (["x.jsonl"], {"out": "x.jsonl/out"}, "x.jsonl/out can't be written: Not a directory"),
    (["x.jsonl"], {"rules": DEDUP, "data": "empty"}, "data empty holds no benchmark; allowed: a folder with"),
    (["x.jsonl"], {"rules": DEDUP, "data": "odd"}, "line 1 is '{\"text\": 1}'; allowed: an object with"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, with files to curate."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "x.jsonl", [row("x", talk())])
    save(tmp_path / "short.jsonl", [row("x", talk(2)), row("y", talk(1)), row("z", [])])
    (tmp_path / "page.json").write_text("<html>")
    (tmp_path / "odd/ifeval").mkdir(parents=True)
    save(tmp_path / "odd/ifeval/x.jsonl", [{"text": 1}])
    return tmp_path


@pytest.mark.parametrize("given, args, said", ERRORS, ids=[said[:30] for *_, said in ERRORS])
def test_what_can_not_be_done_is_said_in_one_line(folder, model_folder, given, args, said):
    args = {"out": "out", "rules": Rules(), "model": str(model_folder)} | args
    with pytest.raises(ValueError) as caught:
        curate(given, Path(args.pop("out")), args.pop("rules"), **args)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not list(folder.glob("**/*.part")) and not list(folder.glob("**/train.jsonl"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("name", ["train.jsonl.part", "train.jsonl.drawn", "manifest.json.part"])
def test_a_full_disk_keeps_what_was_there(folder, model_folder, name):
    curate(["x.jsonl"], folder / "out", Rules(), str(model_folder))
    before = {p.name: p.read_bytes() for p in (folder / "out").iterdir()}
    save(folder / "two.jsonl", [row("x", talk()), row("y", talk(first=9))])
    (folder / "out" / name).symlink_to("/dev/full")
    with pytest.raises(ValueError, match=f"{name} can't be written: No space left on device"):
        curate(["two.jsonl"], folder / "out", Rules(), str(model_folder), limit=1)
    assert {p.name: p.read_bytes() for p in (folder / "out").iterdir()} == before


def test_an_error_is_one_line_and_code_2(folder, model_folder):
    done = run("--out", "out", "--source", "short.jsonl", "--model", str(model_folder), "--processes", "1")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: nothing is left of 3 sessions: 2 under 3 turns, 1 no messages\n"


def test_numbers_out_of_range_are_refused(monkeypatch, capsys):
    for flag, value in (("--limit", "0"), ("--seed", "-1"), ("--processes", "many")):
        monkeypatch.setattr(sys, "argv", ["train.curate", "--out", "x", f"{flag}={value}"])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert f"argument {flag}: {value!r}; allowed: " in capsys.readouterr().err


def test_a_broken_file_is_used_and_said(folder, model_folder, capsys):
    data = json.dumps([row("a", talk()), row("b", talk(first=7)), row("c", talk(first=20))])
    (folder / "cut.json").write_text(data[:-100])
    manifest = curate(["mine=cut.json"], folder / "out", Rules(), str(model_folder))
    assert capsys.readouterr().err == "warning: cut.json breaks off; its 2 whole records are used\n"
    assert manifest["sources"][0]["breaks_off"] and manifest["kept"]["by_source"] == {"mine": 2}


def test_ctrl_c_leaves_nothing_half_done(folder, model_folder):
    save(folder / "long.jsonl", [row(f"s{n}", talk(15, PROSE * 40, n)) for n in range(1500)])
    command = [sys.executable, "-m", "train.curate", "--out", "out", "--source", "long.jsonl",
               "--processes", "2", "--model", str(model_folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (folder / "out/train.jsonl.part").exists():
            time.sleep(0.05)
            assert process.poll() is None, process.stderr.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "") and list((folder / "out").iterdir()) == []


def test_chats_that_repeat_one_that_is_held_back(tmp_path):
    first, other = ([[m["from"], m["value"]] for m in many(3)[n]["conversations"]] for n in (1, 2))
    thanked = [*first, ["human", "Thanks!"], ["gpt", "You are welcome."]]
    rows = [row("again_0", other), row("again_9", thanked), row("mine_0", other), row(HELD_BACK, first)]
    assert copies.copies(save(tmp_path / "x.jsonl", rows)) == [sources.hash_base("again")]


@pytest.mark.skipif("RHEA_DATA" not in os.environ, reason="needs RHEA_DATA")
def test_all_of_the_held_back_split_is_left_out(tmp_path, model_folder):
    folder = Path(os.environ["RHEA_DATA"]) / "sharegpt"
    with pytest.raises(ValueError, match="^nothing is left of 300 sessions: 300 held back$"):
        curate([str(folder / "valid.jsonl.gz")], tmp_path, Rules(), str(model_folder))
