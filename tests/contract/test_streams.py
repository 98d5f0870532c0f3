"""Output while it arrives, and input while it is wanted: order, back-pressure, ends."""

from __future__ import annotations

import time

import pytest

from stockade import Sandbox
from tests.e2e.residue import running_in, wait_until

MIB = 1 << 20


def test_output_arrives_before_the_end(sandbox: Sandbox) -> None:
    """A callback has the first line while the command still waits for its input."""
    seen: list[str] = []
    handle = sandbox.commands.run(
        "echo first; read line; echo got $line", background=True, stdin=True, on_stdout=seen.append
    )
    while not seen:
        assert not handle.ended
    handle.send_stdin("x\n")
    assert handle.wait().exit_code == 0
    assert "".join(seen) == "first\ngot x\n"


def test_callbacks_get_all_of_each_stream_in_order(sandbox: Sandbox) -> None:
    """What is handed on is what was written, and it is in the result too."""
    out, err = bytearray(), bytearray()
    result = sandbox.commands.run(
        "i=0; while [ $i -lt 2000 ]; do echo out $i; echo err $i >&2; i=$((i + 1)); done",
        on_stdout_bytes=out.extend,
        on_stderr_bytes=err.extend,
    )
    assert out.split(b"\n")[:-1] == [b"out %d" % i for i in range(2000)]
    assert err.split(b"\n")[:-1] == [b"err %d" % i for i in range(2000)]
    assert (result.stdout_bytes, result.stderr_bytes) == (bytes(out), bytes(err))


def test_a_character_cut_between_chunks_is_whole_in_a_text_callback(sandbox: Sandbox) -> None:
    """Text is decoded across chunks: no half of a character becomes an escape."""
    seen: list[str] = []
    sandbox.commands.run(r"printf '\303'; sleep 0.05; printf '\251'", on_stdout=seen.append)
    assert "".join(seen) == "é"


def test_a_last_byte_that_is_half_a_character_reaches_the_callback(sandbox: Sandbox) -> None:
    """What is left at the end is escaped, not dropped."""
    seen: list[str] = []
    sandbox.commands.run(r"printf 'a\303'", on_stdout=seen.append)
    assert "".join(seen) == "a\\xc3"


def test_a_callback_gets_more_than_a_result_keeps(sandbox: Sandbox) -> None:
    """Streams have no limit of their own: 64 MiB pass, of which the result keeps the policy's 1 MiB."""
    sizes: list[int] = []
    result = sandbox.commands.run(
        "head -c 67108864 /dev/zero", on_stdout_bytes=lambda data: sizes.append(len(data))
    )
    assert sum(sizes) == 64 * MIB
    assert (len(result.stdout_bytes), result.truncated) == (MIB, True)


def test_a_slow_reader_stops_the_writer(sandbox: Sandbox) -> None:
    """While a callback takes its time, the command can write no more than the windows between them hold."""
    pauses: list[tuple[float, float]] = []

    def read_slowly(_data: bytes) -> None:
        if not pauses:
            begin = time.monotonic()
            time.sleep(0.4)  # what is measured: a reader that is busy
            pauses.append((begin, time.monotonic()))

    script = (
        "import os, sys, time\n"
        "for _ in range(256):\n"
        "    os.write(1, bytes(65536))\n"
        "    print(time.monotonic(), file=sys.stderr)\n"
    )
    stderr = sandbox.commands.run(["python3", "-c", script], on_stdout_bytes=read_slowly).stderr
    (begin, end), written = pauses[0], [float(line) for line in stderr.split()]
    assert len([moment for moment in written if begin + 0.1 < moment < end]) * 65_536 <= MIB


@pytest.mark.parametrize("script", ["echo x; sleep 60", "echo x >&2; sleep 60"], ids=["out", "err"])
def test_a_callback_that_raises_ends_the_command(sandbox: Sandbox, script: str) -> None:
    """Its own error comes out of `run`, and the command is not left running."""

    def fail(_text: str) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        sandbox.commands.run(script, on_stdout=fail, on_stderr=fail)
    assert wait_until(lambda: running_in(sandbox) == [])


def test_input_is_what_was_given(sandbox: Sandbox) -> None:
    """1 MiB of any bytes goes in and comes back, both at once."""
    data = bytes(range(256)) * 4096
    assert sandbox.commands.run(["cat"], stdin=data).stdout_bytes == data


def test_text_input_is_utf_8(sandbox: Sandbox) -> None:
    """A text is encoded, and its end is the input's end."""
    assert sandbox.commands.run("wc -c", stdin="é").stdout.strip() == "2"


def test_empty_input_is_an_end(sandbox: Sandbox) -> None:
    """An empty text is input, and it is over at once."""
    assert sandbox.commands.run("cat; echo end", stdin="").stdout == "end\n"


def test_input_that_nobody_reads_does_not_hold_the_caller(sandbox: Sandbox) -> None:
    """A command that ends early takes its unread input with it."""
    assert sandbox.commands.run(["true"], stdin=bytes(8 * MIB)).exit_code == 0


def test_input_that_is_closed_early_is_dropped(sandbox: Sandbox) -> None:
    """A command that closes its input goes on; the caller is not blocked."""
    result = sandbox.commands.run("exec <&-; echo on", stdin=bytes(8 * MIB))
    assert (result.exit_code, result.stdout) == (0, "on\n")


def test_input_of_a_terminal_ends_with_its_end(sandbox: Sandbox) -> None:
    """On a terminal the end of input is its end-of-file character."""
    result = sandbox.commands.run("cat >/tmp/in; cat /tmp/in | wc -c", stdin="line\n", pty=(24, 80))
    assert result.stdout.split()[-1] == "5"


@pytest.mark.parametrize("count", [1, 1024])
def test_a_gigabyte_of_output_costs_the_host_no_memory(sandbox: Sandbox, count: int) -> None:
    """Output that nobody streams is cut inside; the kept MiB is all that is held."""
    before = _resident_kib()
    result = sandbox.commands.run(f"head -c {count}M /dev/zero")
    assert (result.ok, len(result.stdout_bytes), result.truncated) == (True, MIB, count > 1)
    assert _resident_kib() - before < 16 << 10


def _resident_kib() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
