"""What a command's result says: exit code, output, limits of output, who ran it and where."""

from __future__ import annotations

import os

import pytest

from stockade import Sandbox
from stockade.errors import Denied, StartError
from tests.contract.conftest import MakeSandbox

EVERY_BYTE = bytes(range(256))


@pytest.mark.parametrize("code", [0, 1, 2, 77, 126, 127, 255])
def test_an_exit_code_is_a_result(sandbox: Sandbox, code: int) -> None:
    """A non-zero exit raises nothing."""
    result = sandbox.commands.run(f"exit {code}")
    assert (result.exit_code, result.ok, result.killed_by) == (code, code == 0, None)


@pytest.mark.parametrize("number", [1, 6, 9, 11, 15])
def test_a_command_that_a_signal_ended_says_which(sandbox: Sandbox, number: int) -> None:
    """The exit code is 128 plus the signal, as a shell's; nobody of ours sent it."""
    result = sandbox.commands.run(f"kill -{number} $$")
    assert (result.exit_code, result.signal, result.killed_by) == (128 + number, number, None)


def test_output_and_error_are_apart(sandbox: Sandbox) -> None:
    """Each stream arrives where it was written to."""
    result = sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr) == ("out\n", "err\n")


def test_output_arrives_byte_for_byte(sandbox: Sandbox) -> None:
    """No byte is changed, dropped or taken for the end."""
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000)"
    result = sandbox.commands.run(["python3", "-c", script])
    assert result.stdout_bytes == EVERY_BYTE * 1000


def test_output_that_is_not_utf_8_is_escaped_in_the_text(sandbox: Sandbox) -> None:
    """Text never raises, and the bytes are kept beside it."""
    result = sandbox.commands.run(r"printf 'caf\351 \303\251\n'")
    assert (result.stdout, result.stdout_bytes) == ("caf\\xe9 é\n", b"caf\xe9 \xc3\xa9\n")


def test_words_reach_the_program_as_they_are(sandbox: Sandbox) -> None:
    """No shell reads a sequence: spaces, quotes, newlines, empty and non-UTF-8 words pass."""
    words = ["", " a  b ", "'\"$HOME`id`", "line\nbreak", "-n", "*", "é", "\udcff"]
    result = sandbox.commands.run(["printf", "%s\\0", *words])
    assert result.stdout_bytes == b"".join(os.fsencode(word) + b"\0" for word in words)


def test_a_text_is_read_by_the_shell(sandbox: Sandbox) -> None:
    """Pipes, substitutions and variables work."""
    assert sandbox.commands.run("echo $(echo a | tr a b) $((1 + 1))").stdout == "b 2\n"


def test_a_command_begins_in_the_workspace(sandbox: Sandbox) -> None:
    """Without `cwd`, the directory is the one that work is kept in."""
    assert sandbox.commands.run("pwd").stdout == "/workspace\n"


@pytest.mark.parametrize("cwd", ["/", "/tmp", "/usr/bin", "/output"])
def test_cwd_is_where_it_begins(sandbox: Sandbox, cwd: str) -> None:
    """`cwd` is a directory inside."""
    assert sandbox.commands.run(["pwd"], cwd=cwd).stdout == cwd + "\n"


def test_the_environment_is_the_policys_and_the_calls(
    make_sandbox: MakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the caller's own environment is inside."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-the-inside")
    made = make_sandbox(isolation={"env": {"A": "policy", "B": "policy"}})
    lines = made.commands.run(["env"], envs={"B": "call", "C": "two words=x"}).stdout.splitlines()
    values = dict(line.split("=", 1) for line in lines)
    assert {name: values.pop(name) for name in "ABC"} == {
        "A": "policy",
        "B": "call",
        "C": "two words=x",
    }
    assert set(values) <= {"PATH", "HOME", "LANG", "USER", "SHELL", "TMPDIR", "PWD", "TERM"}


def test_the_payload_is_no_root(sandbox: Sandbox) -> None:
    """A command runs as uid 1000 without any capability."""
    assert sandbox.commands.run("id -u; grep CapEff /proc/self/status").stdout == (
        "1000\nCapEff:\t0000000000000000\n"
    )


def test_a_root_payload_has_no_capability(make_sandbox: MakeSandbox) -> None:
    """Where the policy makes the payload uid 0, that is a name and no power."""
    made = make_sandbox(isolation={"uid": 0})
    status = made.commands.run("id -u; grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status").stdout
    assert status.splitlines() == [
        "0",
        *(f"Cap{name}:\t0000000000000000" for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")),
    ]


def test_user_root_is_a_name_and_no_power(sandbox: Sandbox) -> None:
    """`user="root"` is uid 0 inside, for programs that ask, without any capability; or it is refused."""
    try:
        result = sandbox.commands.run("id -u; grep CapEff /proc/self/status", user="root")
    except (StartError, Denied):
        assert os.geteuid() != 0, "only a user with a single id can't have both"
    else:
        assert result.stdout == "0\nCapEff:\t0000000000000000\n"


def test_a_terminal_is_one(sandbox: Sandbox) -> None:
    """`pty` gives a controlling terminal of that size, and both streams on it."""
    result = sandbox.commands.run("tty; stty size; echo err >&2; : </dev/tty", pty=(33, 101))
    assert result.stdout.replace("\r\n", "\n") == "/dev/pts/0\n33 101\nerr\n"


def test_without_a_terminal_there_is_none(sandbox: Sandbox) -> None:
    """A program that asks for a terminal learns that there is none."""
    result = sandbox.commands.run("tty; (: </dev/tty) 2>/dev/null && echo opened")
    assert result.stdout == "not a tty\n"


def test_without_stdin_the_input_is_empty(sandbox: Sandbox) -> None:
    """A program that reads its input ends instead of waiting."""
    assert sandbox.commands.run("cat; echo end").stdout == "end\n"


def test_output_beyond_the_limit_is_dropped_and_said(make_sandbox: MakeSandbox) -> None:
    """The first bytes are kept, each stream on its own."""
    made = make_sandbox(limits={"output": 1000})
    result = made.commands.run("head -c 1001 /dev/zero; printf err >&2")
    assert (result.stdout_bytes, result.stderr, result.truncated) == (bytes(1000), "err", True)


def test_output_at_the_limit_is_complete(make_sandbox: MakeSandbox) -> None:
    """The limit itself is allowed."""
    result = make_sandbox(limits={"output": 1000}).commands.run("head -c 1000 /dev/zero")
    assert (len(result.stdout_bytes), result.truncated) == (1000, False)


def test_a_result_says_what_the_command_used(sandbox: Sandbox) -> None:
    """Time, CPU and memory are the command's own."""
    script = "import time\nb = bytearray(64 << 20)\nwhile time.process_time() < 0.1: pass"
    result = sandbox.commands.run(["python3", "-c", script])
    assert result.duration_ms >= result.cpu_ms * 0.5
    assert result.cpu_ms >= 100
    assert 64 << 10 <= result.max_rss_kib <= 128 << 10


_FORKS = """
import os, time
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
except OSError:
    pass
"""


@pytest.mark.not_applicable_if(
    os.geteuid() != 0, reason="only a pids controller counts the forks that it refuses"
)
def test_a_fork_that_the_limit_refused_is_named(make_sandbox: MakeSandbox) -> None:
    """C53: the result says which limit was met, whatever the program made of it."""
    result = make_sandbox().commands.run(["/usr/bin/python3", "-c", _FORKS])
    assert (result.limits_hit, result.exit_code, result.killed_by) == (("processes",), 0, None)
