"""Conversations out of files of every form, whole or broken off; one clear line for what is no data."""

import gzip
import json
import os
import tracemalloc
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from train import sources
from train.sources import Session, find, read, why_excluded

TEXTS = ["What is rain?", "Water 💧 that falls.", "为什么?", "因为云。"]
WANT = tuple(zip(("user", "assistant") * 2, TEXTS))
TURNS = list(zip(TEXTS[::2], TEXTS[1::2]))


def tagged(role, text, names):
    return [{role: name, text: t} for name, t in zip(names * 2, TEXTS)]


def parts(text):
    return [{"type": "text", "text": text[:3]}, {"type": "image_url"}, {"type": "text", "text": text[3:]}]


RECORDS = {
    "sharegpt": {"id": "abc_13", "conversations": tagged("from", "value", ("human", "gpt"))},
    "items": {"id": "abc_13", "items": tagged("from", "value", ("user", "ChatGPT "))},
    "bing": {"id": "abc_13", "conversation": tagged("from", "value", ("human", "bing"))},
    "pairs": {"conversation_id": "abc_13", "conversation": [{"human": u, "assistant": a} for u, a in TURNS]},
    "pairs, reply first": {"id": "abc_13", "conversation": [{"gpt": a, "human": u} for u, a in TURNS]},
    "messages": {"prompt_id": "abc_13", "n": 1, "messages": tagged("role", "content", ("user", "model"))},
    "parts": {"id": "abc_13", "messages": [{"role": role, "content": parts(text)} for role, text in WANT]},
    "ultrachat": {"id": "abc_13", "data": TEXTS},
    "topiocqa": {"id": "abc_13", "task": "topiocqa",
                 "conv": [{"user": u, "assistant": a, "infer": False, "id": "1"} for u, a in TURNS]},
}
FORMS = {
    "list": lambda rows: json.dumps(rows).encode(),
    "indented": lambda rows: json.dumps(rows, indent=2, ensure_ascii=False).encode("utf-8-sig"),
    "lines": lambda rows: "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode(),
    "lists": lambda rows: b"\n".join(json.dumps([row]).encode() for row in rows),
    "gz": lambda rows: gzip.compress(json.dumps(rows).encode()),
}


def all_of(path, label="test"):
    heard = []
    return list(read(path, label, heard.append)), heard


def write(tmp_path, data):
    path = tmp_path / "some.data"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("record", RECORDS)
def test_every_form_of_a_conversation_is_the_same(tmp_path, record, form):
    sessions, heard = all_of(write(tmp_path, FORMS[form]([RECORDS[record]] * 3)))
    assert sessions == [Session("abc_13", "abc", "test", WANT)] * 3 and not heard


@pytest.mark.parametrize("record", ["ultrachat", "messages", "pairs"])
def test_parquet(tmp_path, record):
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([RECORDS[record] | {"score": 1.0}] * 600), path)
    sessions, _ = all_of(path)
    assert sessions == [Session("abc_13", "abc", "test", WANT)] * 600


def test_topiocqa_as_it_is_published_has_a_turn_a_record(tmp_path):
    rows = [{"Conversation_no": c, "Turn_no": n, "Question": f"q{c}{n}", "Answer": f"a{c}{n}", "Context": []}
            for c in (1, 2) for n in (1, 2)]
    sessions, _ = all_of(write(tmp_path, json.dumps(rows)))
    assert [s.id for s in sessions] == ["some-1", "some-2"]
    assert [text for _, text in sessions[1].messages] == ["q21", "a21", "q22", "a22"]


def test_odd_messages_are_handed_on_for_the_curation_to_judge(tmp_path):
    odd = [{"from": "System", "value": "Be kind."}, {"from": "tool", "value": "42"},
           {"from": "human", "value": None}, {"from": "gpt", "value": "\ud83d cut"}, 7, {},
           {"from": "human"}]
    rows = [{"conversations": odd}, {"id": 5, "conversations": None}]
    sessions, _ = all_of(write(tmp_path, json.dumps(rows)))
    assert sessions[0] == Session("test-1", "test-1", "test", (
        ("system", "Be kind."), ("tool", "42"), ("user", ""), ("assistant", "\ufffd cut"), ("", ""),
        ("", ""), ("user", "")))
    assert sessions[1] == Session("5", "5", "test", ())


@pytest.mark.parametrize("form", ["list", "indented", "lines"])
def test_a_file_that_breaks_off_anywhere_gives_its_whole_records(tmp_path, form):
    odd = {"data": ["ab \\ \"{[,", "é"], "n": -12.5e3, "x": [None, True, {}]}
    data = FORMS[form]([RECORDS["sharegpt"], RECORDS["ultrachat"], odd])
    want = [WANT, WANT, (("user", 'ab \\ "{[,'), ("assistant", "é"))]
    first = data.index(json.dumps(TEXTS[3], ensure_ascii=form == "list").encode())  # its last text
    counts = []
    for cut in range(4, len(data)):
        try:
            sessions, heard = all_of(write(tmp_path, data[:cut]))
        except ValueError as error:
            assert "holds no conversation" in str(error) and cut < first + 60
            sessions, heard = [], ["it breaks off"]
        counts.append(len(sessions))
        assert [s.messages for s in sessions] == want[: len(sessions)]
        assert heard or (form == "lines" and b"\n" in data[cut - 1 : cut + 1])
        assert not sessions or not heard or f"off; its {len(sessions)} whole records are used" in heard[0]
    assert counts == sorted(counts) and {*counts} == ({0, 1, 2} if form == "lines" else {0, 1, 2, 3})


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 64, 300])
def test_records_may_reach_across_blocks(tmp_path, size, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCK", size)
    for form in FORMS:
        sessions, heard = all_of(write(tmp_path, FORMS[form]([RECORDS["sharegpt"]] * 3)))
        assert [s.messages for s in sessions] == [WANT] * 3 and not heard


def test_a_large_file_is_never_in_memory(tmp_path):
    path = tmp_path / "large.json"
    record = json.dumps({"id": "x", "data": ["some words " * 100] * 4})
    with path.open("w") as file:
        file.write("[" + ",\n".join([record] * 5000) + "]")
    assert path.stat().st_size > 20e6
    tracemalloc.start()
    try:
        assert sum(1 for _ in read(path, "x", print)) == 5000
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()


def parquet(table):
    out = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(table), out)
    return out.getvalue().to_pybytes()


ZIPPED = gzip.compress(os.urandom(4000).hex().encode())
BAD = {
    "empty": (b"", "is empty; allowed: a JSON list"),
    "blank": (b" \n ", "holds no conversation"),
    "empty list": (b"[]", "holds no conversation"),
    "page": (b"\n<!DOCTYPE html><html>", "is HTML or XML and begins with '<!DOCTYPE html><html>'"),
    "text": (b"Not found", "begins with 'Not found'"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid 1", "begins with 'version https://git"),
    "cut gz": (ZIPPED[:-9], "is a damaged gzip file"),
    "cut gz, records": (FORMS["gz"]([RECORDS["sharegpt"]] * 9)[:-20], "is a damaged gzip file"),
    "spoiled gz": (ZIPPED[:50] + b"\0\0\0" + ZIPPED[53:], "is a damaged gzip file"),
    "latin": ('{"data": ["é"]}'.encode("latin-1"), "is no UTF-8"),
    "other fields": (b'[{"question": "a", "answer": "b"}]', "record 1 has the fields question, answer; a"),
    "later fields": (b'{"data": ["a"]}\n{"question": "a"}', "record 2 has the fields question"),
    "numbers": (b"[1, 2]", "record 1 is '1'; allowed: an object with"),
    "no JSON": (b'[{"data": ["a"]}, {"data": ["b" "c"]}, {"data": ["long"]}]', "record 2 is no JSON: Expec"),
    "broken line": (b'{"data": ["a\n{"data": ["this is long"]}', "record 1 is no JSON: Invalid control"),
    "deep": (b"[" * 100_000, "is nested too deep"),
    "cut parquet": (parquet({"data": [["a", "b"]] * 9})[:-20], "is a damaged parquet file"),
    "other columns": (parquet({"question": ["a"], "answer": ["b"]}), "has the columns question, answer; a"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_data_is_said_in_one_line(tmp_path, name):
    data, said = BAD[name]
    with pytest.raises(ValueError) as caught:
        all_of(write(tmp_path, data))
    assert said in str(caught.value) and "some.data" in str(caught.value) and "\n" not in str(caught.value)


def test_sources_are_files_folders_and_names(tmp_path, monkeypatch):
    (tmp_path / "b.jsonl.gz").touch()
    (tmp_path / "a.parquet").touch()
    (tmp_path / "README.md").touch()
    label = tmp_path.name.split(".")[0]
    assert find(str(tmp_path)) == (label, [tmp_path / "a.parquet", tmp_path / "b.jsonl.gz"])
    assert find(str(tmp_path / "b.jsonl.gz")) == ("b", [tmp_path / "b.jsonl.gz"])
    assert find(f"share={tmp_path / 'a.parquet'}") == ("share", [tmp_path / "a.parquet"])
    (tmp_path / "x=y.json").touch()
    monkeypatch.chdir(tmp_path)
    assert find("x=y.json") == ("x=y", [Path("x=y.json")])
    (tmp_path / "none").mkdir()
    for source, said in (("none", "source none has no data file; allowed: names that end in .json, "),
                         ("", "source '' is no file and no folder"),
                         ("no.json", "'no.json' is no file and no folder; allowed besides these: sharegpt")):
        with pytest.raises(ValueError, match=said):
            find(source)


def test_pieces_of_an_excluded_chat_are_excluded():
    bases = {sources.hash_base("QWJhYvA"): "one", sources.hash_base("a_1"): "two"}
    assert {why_excluded(i, bases) for i in ("QWJhYvA", "QWJhYvA_0", "QWJhYvA_13_2")} == {"one"}
    assert {why_excluded(i, bases) for i in ("a_1", "a_1_0")} == {"two"}
    assert not any(why_excluded(i, bases) for i in ("QWJhYv", "QWJhYvA_x", "QWJhYvA-1", "a_2", "a", ""))
    assert sources.base_of("QWJhYvA_13") == "QWJhYvA" and sources.base_of("topic-8293") == "topic-8293"


def test_the_lists_that_ship():
    listed = sources.excluded_bases()
    assert Counter(listed.values()) == {"held back": 464, "copy of a chat held back": 47}
    assert all(len(h) == 16 and int(h, 16) >= 0 for h in listed)


@pytest.mark.skipif("RHEA_DATA" not in os.environ, reason="needs RHEA_DATA")
def test_the_split_that_is_held_back():
    folder, listed = Path(os.environ["RHEA_DATA"]) / "sharegpt", sources.excluded_bases()
    held, _ = all_of(folder / "valid.jsonl.gz")
    assert len(held) == 300 and all(why_excluded(s.id, listed) == "held back" for s in held)
    broken, heard = all_of(folder / "broken.json")
    assert len(broken) == 27 and heard[0].endswith("breaks off; its 27 whole records are used")
