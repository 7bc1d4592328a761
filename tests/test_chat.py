"""The program itself, in a process of its own: lines, JSON, a terminal, kill -9, bad input."""

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time

import pexpect
import pytest

READY = r"\?25h"  # the prompt shows the cursor when it waits
SMALL = ["--config.chat.context=1024", "--config.chat.chunk=64", "--config.chat.max_new=8", "--config.chat.block=4"]


@pytest.fixture
def env(tmp_path):
    return {**os.environ, "RHEA_HOME": str(tmp_path / "home"), "JAX_PLATFORMS": "cpu", "NO_COLOR": "1",
            "RHEA_CACHE": os.environ.get("RHEA_TEST_CACHE", "/tmp/rhea_jax-test-cache")}


def run(env, *args, stdin="", model=None):
    args = [sys.executable, "-m", "infer.chat", *(["--model", str(model), *SMALL] if model else []), *args]
    stdin = stdin if isinstance(stdin, bytes) else stdin.encode()
    done = subprocess.run(args, input=stdin, capture_output=True, env=env, timeout=240)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_lines_in_records_out(env, model_folder):
    lines = b"From now on, answer in German.\nbroken \xff\xfe utf-8\n\n//slash\n   \nWhat is new?\n"
    code, out, err = run(env, "--json", stdin=lines, model=model_folder)
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [r["user"] for r in records] == ["From now on, answer in German.", "broken \ufffd\ufffd utf-8", "/slash", "What is new?"]
    assert records[-1]["instructions"] == ["From now on, answer in German."]
    assert [r["level"] for r in records[-1]["recall"]] == ["omitted", "omitted", "raw"]
    assert err.count("no trained adapters") <= 1 and not (os.path.exists(f"{env['RHEA_HOME']}/sessions") and os.listdir(f"{env['RHEA_HOME']}/sessions"))


def test_a_session_goes_on_with_adapters(env, model_folder, adapter_folder):
    one = run(env, "--session", "x", "--adapters", str(adapter_folder), "--prompt", "hello", "--json", model=model_folder)
    two = run(env, "--session", "x", "--adapters", str(adapter_folder), "--prompt", "again", "--json", model=model_folder)
    assert one[0] == two[0] == 0 and [r["exchange"] for r in json.loads(two[1])["recall"]] == [1]
    file = f"{env['RHEA_HOME']}/sessions/x.sqlite"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600


@pytest.mark.parametrize("args, said", [
    (["--config.memory.tau_low=3"], "memory.tau_low is 3.0; allowed: -1 to 1"),
    (["--config.memory.taulow=3"], "tau_low"),
    (["--config.memory.score=fast"], "memory.score is 'fast'; allowed: auto, max"),
    (["--config", "missing.py"], "missing.py"),
    (["--model", "no-such-model"], "no-such-model is no file, no folder and no hub id"),
    (["--model", "org/name", "--offline"], "org/name: not in the local cache and --offline is set"),
    (["--flag-that-is-none"], "flag-that-is-none"),
    (["hello"], "'hello' is no flag"),
    (["--config.chat.nosuch=1"], "--config.chat.nosuch is not a field; allowed for 'nosuch': context, chunk"),
])
def test_a_wrong_flag_is_one_line_and_exit_2(env, args, said):
    code, out, err = run(env, *args)
    assert code == 2 and out == "" and said in err and len(err.splitlines()) == 1


def test_wrong_files_are_one_line_and_exit_2(env, model_folder, tmp_path):
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03")
    (tmp_path / "empty").mkdir()
    (tmp_path / "import.json").write_text('[{"role": "robot", "content": "x"}]')
    for args, said in ((["--model", f"{tmp_path}/cut.gguf"], "no whole GGUF file"), (["--model", f"{tmp_path}/empty"], "config.json is missing"),
                       (["--model", str(model_folder), "--adapters", f"{tmp_path}/empty"], "card.json is missing"),
                       (["--model", str(model_folder), "--import", f"{tmp_path}/import.json"], "role 'robot'"),
                       (["--model", str(model_folder), "--session", "a/b"], "session 'a/b'")):
        code, _, err = run(env, *args)
        assert code == 2 and said in err, err
        assert len(err.splitlines()) <= 2


def test_help_closed_streams_and_a_full_output(env, model_folder):
    code, out, err = run(env, "--help")
    assert code == 0 and "--adapters" in out and err == ""
    command = [sys.executable, "-m", "infer.chat", "--model", str(model_folder), *SMALL, "--prompt", "hello"]
    for redirect, code in ((">&-", 0), ("2>&-", 0), ("<&-", 0), (">/dev/full", 2)):
        done = subprocess.run(["bash", "-c", f'"$@" {redirect}', "bash", *command], env=env, capture_output=True, timeout=240)
        assert done.returncode == code and b"Traceback" not in done.stderr, (redirect, done.stderr.decode())
    assert b"the output can't be written" in done.stderr


def test_a_prompt_is_read_like_a_line(env, model_folder):
    assert run(env, "--prompt", "/memory", model=model_folder)[1] == "no exchanges yet\n"
    assert json.loads(run(env, "--prompt", "//x\ty", "--json", model=model_folder)[1])["user"] == "/x\ty"
    code, out, err = run(env, "--prompt", "", "--json", model=model_folder)
    assert code == 2 and json.loads(out)["error"].startswith("the message is empty")


def test_an_interrupt_ends_a_run_without_a_terminal(env, model_folder):
    chat = subprocess.Popen([sys.executable, "-m", "infer.chat", "--model", str(model_folder), *SMALL], env=env, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    chat.stdin.write("/memory\n")
    chat.stdin.flush()
    chat.stdout.readline()
    chat.send_signal(signal.SIGINT)
    assert chat.wait(60) == 130 and "Traceback" not in chat.stderr.read()


def test_a_bad_message_is_reported_and_the_rest_goes_on(env, model_folder):
    code, out, err = run(env, "--json", stdin="y" * 5000 + "\n/nonsense\nhello\n", model=model_folder)
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 2 and ["error" in r for r in records] == [True, True, False] and err.count("error:") == 2


def test_commands_of_a_whole_conversation(env, model_folder, tmp_path):
    export = tmp_path / "out.jsonl"
    lines = ["/help", "Always answer in rhyme.", "My cat is called Tom.", "What is my cat called?", "/why", "/why prompt", "/memory", "/memory show 2",
             "/memory pin 2", "/instructions", "/instructions add Be brief.", "/instructions edit 2 Be very brief.", "/instructions history",
             "/instructions remove 2", "/system You are a poet.", "/system", "/stats", f"/export {export}", "/sessions", "/save copy", "/load copy",
             "/retry", "/undo", "/forget 1", "/memory", "/quit", "never said"]
    code, out, _ = run(env, "--session", "s", stdin="\n".join(lines), model=model_folder)
    assert code == 0 and "exchanges and rules written" in out and "never said" not in out
    for said in ("/retry", "score: bm25", "<|im_start|>user\nMy cat is called Tom.<|im_end|>", "always recalled whole", "1  Always answer in rhyme.",
                 "rule 2 changed", "Be very brief.", "system message: You are a poet.", "* s", "session 'copy': 3 exchanges, 1 rule", "its rule stays"):
        assert said in out, said
    written = [json.loads(line) for line in export.read_text().splitlines()]
    assert [w.get("user") for w in written[1:4]] == lines[1:4] and written[2]["pinned"] and {w["rule"]: w["gone"] is None for w in written[4:]} == {lines[1]: True, "Be brief.": False, "Be very brief.": False}
    code, out, _ = run(env, "--import", str(export), "--session", "back", stdin="/memory\n/instructions\n/export " + str(export) + "2\n", model=model_folder)
    assert code == 0 and export.read_text() == (tmp_path / "out.jsonl2").read_text()
    held = b"".join(p.read_bytes() for p in (tmp_path / "home/sessions").iterdir() if p.name.startswith("copy"))
    assert b"Always answer in rhyme." in held  # as a rule; the exchange it came with is gone
    assert held.count(b"Always answer in rhyme.") == 1


def test_a_terminal(env, model_folder):
    args = ["-m", "infer.chat", "--model", str(model_folder), "--session", "t", *SMALL, "--config.chat.max_new=1500", "--config.chat.context=2048", "--config.chat.block=1"]
    chat = pexpect.spawn(sys.executable, args, env={**env, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}, encoding="utf-8", timeout=120, dimensions=(40, 120))
    chat.expect("/help")
    chat.expect(READY)
    chat.send("\x03")  # at the prompt Ctrl-C clears the line and nothing else
    chat.expect(READY)
    chat.send("\x1b[200~first line\nsecond line\x1b[201~\r")  # a paste of two lines is one message
    chat.expect("…")  # at work
    time.sleep(1)
    chat.send("\x03")
    chat.expect("stopped")  # with or without a first word
    chat.expect(READY)
    chat.send("second message\r")
    chat.expect(r"recalled: \d raw, 0 left out")
    chat.expect(READY)
    chat.send("/memory\r")
    chat.expect(r"(\d) +second message")
    number = chat.match[1]
    chat.send(f"/forget {number}\r")
    chat.expect(f"exchange {number} is deleted")
    chat.expect(READY)
    chat.send("\x04")
    chat.expect(pexpect.EOF)
    chat.close()
    assert chat.exitstatus == 0
    home = env["RHEA_HOME"]
    held = b"".join(open(os.path.join(d, f), "rb").read() for d, _, files in os.walk(home) for f in files)
    assert b"second message" not in held and stat.S_IMODE(os.stat(f"{home}/history").st_mode) == 0o600


def kill_and_compare(env, model_folder, seed, kills):
    """kill -9 at a random moment of a chat: what was answered is stored, in order, and at most the turn in flight is missing."""
    rng = random.Random(seed)
    for n in range(kills):
        name = f"k{n}"
        chat = subprocess.Popen([sys.executable, "-m", "infer.chat", "--model", str(model_folder), "--session", name, "--json", *SMALL], env=env,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for i in range(60):
            chat.stdin.write(f"message {i}\n")
        chat.stdin.flush()
        answered = [json.loads(chat.stdout.readline())["user"] for _ in range(rng.randint(1, 8))]
        time.sleep(rng.random() * 0.2)
        chat.send_signal(signal.SIGKILL)
        answered += [json.loads(line)["user"] for line in chat.stdout.read().splitlines() if line.endswith("}")]
        chat.wait()
        code, out, err = run(env, "--session", name, "--json", stdin="/memory\n", model=model_folder)
        stored = [line.split(maxsplit=1)[1].split("  ->")[0].strip() for line in err.splitlines() if "  ->" in line]
        assert code == 0 and stored[: len(answered)] == answered and len(stored) <= len(answered) + 1, err
        assert stored == [f"message {i}" for i in range(len(stored))]


def test_kill_9_loses_at_most_the_turn_in_flight(env, model_folder):
    kill_and_compare(env, model_folder, 0, 5)


@pytest.mark.long
def test_kill_9_many_times(env, model_folder):
    kill_and_compare(env, model_folder, 1, 100)


def test_two_processes_never_share_a_session(env, model_folder):
    first = subprocess.Popen([sys.executable, "-m", "infer.chat", "--model", str(model_folder), "--session", "one", *SMALL], env=env,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    first.stdin.write("/memory\n")
    first.stdin.flush()
    first.stdout.readline()
    code, _, err = run(env, "--session", "one", "--prompt", "hello", model=model_folder)
    first.stdin.close()
    first.wait()
    assert code == 2 and "in use by another process" in err
    assert run(env, "--session", "one", "--prompt", "hello", model=model_folder)[0] == 0


def test_lines_break_between_words_and_lose_nothing():
    from infer.chat import Lines

    lines = Lines(10)
    shown = "".join(lines.feed(p) for p in ("one tw", "o thr", "ee four\nfi", "ve 你好你好你好 x", "yz")) + lines.rest()
    assert shown == "one two \nthree four\nfive 你好\n你好你好 \nxyz"
    plain = Lines(None)
    assert plain.feed("any thing") == "any thing" and plain.rest() == ""
