"""`stockade run` behaves as if the command ran here: exit status, streams and signals."""

import json
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.cli_program import command, shell, started, stockade

pytestmark = pytest.mark.slow
MB = 1_000_000
LOOP = "while :; do sleep 0.05; done"


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_the_commands(code: int) -> None:
    """Whatever a command exits with is what we exit with."""
    assert stockade(*shell(f"exit {code}")).returncode == code


def test_streams_stay_apart() -> None:
    """Standard output and error end where they would have ended, with no byte of ours between."""
    result = stockade(*shell("echo out; echo err >&2"))
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")


def test_a_megabyte_of_random_bytes_comes_back_unchanged() -> None:
    """Streams carry bytes, not text."""
    data = random.Random(1).randbytes(MB)
    assert stockade("run", "cat", stdin=data).stdout == data


def test_a_file_as_standard_input_and_output(tmp_path: Path) -> None:
    """Regular files can't be polled; they are read and written all the same."""
    data = random.Random(2).randbytes(MB)
    (tmp_path / "in").write_bytes(data)
    with (
        (tmp_path / "in").open("rb") as source,
        (tmp_path / "out").open("wb") as target,
        started("run", "cat", stdin=source, stdout=target) as process,
    ):
        assert process.wait() == 0
    assert (tmp_path / "out").read_bytes() == data


def test_output_beyond_every_buffer_is_complete() -> None:
    """16 MB pass although the pipe, the window and what is held are smaller."""
    assert len(stockade("run", "head", "-c", "16M", "/dev/zero").stdout) == 16 << 20


def test_the_end_of_input_reaches_the_command() -> None:
    """A command that reads to the end gets one."""
    assert stockade("run", "wc", "-c", stdin=b"").stdout.strip() == b"0"


def test_input_is_forwarded_as_it_comes() -> None:
    """An answer can be had before the input ends."""
    with started("run", "cat") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"first\n"


def test_options_after_the_command_are_the_commands() -> None:
    """`--` is not needed where the first word is no option."""
    assert stockade("run", "echo", "--json").stdout == b"--json\n"


def test_a_missing_program_is_127() -> None:
    """As shells say it, with our message on standard error."""
    result = stockade("run", "no-such-program")
    assert (result.returncode, result.stdout) == (127, b"")
    assert b"no-such-program" in result.stderr
    assert b"next: " in result.stderr


def test_a_program_that_is_not_executable_is_126() -> None:
    """As shells say it."""
    assert stockade("run", "/etc/passwd").returncode == 126


def test_a_missing_working_directory_is_our_failure() -> None:
    """125: nothing is known about the command."""
    assert stockade("run", "--cwd", "/nowhere", "true").returncode == 125


@pytest.mark.parametrize(
    "words",
    [
        ("--no-such-option", "true"),
        (),
        ("--env", "=x", "true"),
        ("--timeout", "nan", "true"),
        ("",),
    ],
)
def test_words_that_mean_nothing_are_our_failure(words: tuple[str, ...]) -> None:
    """125 and not 2, which may be the command's own."""
    result = stockade("run", *words)
    assert result.returncode == 125
    assert result.stderr.startswith(b"stockade: ")


def test_a_level_that_is_not_there_is_an_error() -> None:
    """It is never replaced by a weaker one, and the command does not run."""
    result = stockade("run", "--level", "microvm", "echo", "ran")
    assert (result.returncode, result.stdout) == (125, b"")


def test_a_fault_in_the_policy_is_told_with_its_line(tmp_path: Path) -> None:
    """The file's name and the line are what an editor needs."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nlimits:\n  memroy: 1G\n")
    result = stockade("run", "--policy", str(policy), "true")
    assert result.returncode == 125
    assert b"line 3: limits.memroy: unknown key" in result.stderr
    assert str(policy).encode() in result.stderr


def test_a_missing_policy_is_an_error() -> None:
    """No policy at all is never run in its place."""
    assert stockade("run", "--policy", "/nowhere.yaml", "true").returncode == 125


def test_the_time_limit_ends_the_command() -> None:
    """124, as timeout(1) says it."""
    result = stockade("run", "--timeout", "0.2", "sleep", "30")
    assert result.returncode == 124
    assert b"--timeout" in result.stderr


def test_a_time_limit_of_the_policy_holds(tmp_path: Path) -> None:
    """A limit that a policy states holds where the command line names none."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nlimits: {timeout: 200ms}\n")
    assert stockade("run", "--policy", str(policy), "sleep", "30").returncode == 124


def test_options_do_not_change_other_values_of_the_policy(tmp_path: Path) -> None:
    """A limit keeps its unit when an option makes a new policy of the file."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nlimits: {timeout: 200ms}\n")
    words = ("run", "--policy", str(policy), "--level", "container", "sleep", "30")
    assert stockade(*words).returncode == 124


def test_only_named_variables_go_in() -> None:
    """A key of the caller's environment is not there unless --env names it."""
    envs = {"GIVEN": "from here", "STOCKADE_TEST_KEY": "hidden"}
    result = stockade("run", "-e", "GIVEN", "-e", "OWN=a=b", "env", envs=envs)
    assert {b"GIVEN=from here", b"OWN=a=b"} <= set(result.stdout.splitlines())
    assert b"hidden" not in result.stdout


def test_a_workspace_is_read_and_results_are_written(tmp_path: Path) -> None:
    """The README's example: data read-only at /workspace, which is the working directory, results in /output."""
    data, report = tmp_path / "data", tmp_path / "report"
    data.mkdir()
    report.mkdir()
    (data / "in.txt").write_text("7\n")
    script = "cp in.txt /output/copy && ! touch new"
    mounts = ("--workspace", f"{data}:ro", "--write", str(report))
    result = stockade("run", *mounts, "sh", "-c", script)
    assert result.returncode == 0, result.stderr
    copy = report / "copy"
    assert (copy.read_text(), copy.stat().st_uid) == ("7\n", os.getuid())
    assert not (data / "new").exists()


def test_json_has_the_result_and_what_was_put_up() -> None:
    """One object on standard output; the exit status is the command's."""
    result = stockade("run", "--json", "sh", "-c", "cat; echo err >&2; exit 4", stdin=b"in")
    told = json.loads(result.stdout)
    assert result.returncode == 4
    assert (told["exit_code"], told["stdout"], told["stderr"]) == (4, "in", "err\n")
    assert (told["truncated"], told["killed_by"], told["refused"]) == (False, None, [])
    assert told["protections"]["level"] == "container"
    assert told["timings"]["total"] > 0
    assert told["sandbox_id"].startswith("sb-")
    assert told["session_id"].startswith("se-")


def test_json_tells_refused_calls() -> None:
    """What the wall refused is in the result."""
    told = json.loads(stockade("run", "--json", "mount", "-t", "tmpfs", "none", "/mnt").stdout)
    assert told["exit_code"] != 0
    assert "mount" in {entry["call"] for entry in told["refused"]}


def test_json_tells_errors_too() -> None:
    """A program that reads us gets an object on every path."""
    result = stockade("run", "--json", "no-such-program")
    assert result.returncode == 127
    assert json.loads(result.stdout)["error"]["code"] == "command_not_found"


def test_a_signal_reaches_the_command() -> None:
    """A command that handles SIGTERM ends in its own way."""
    with started(*shell(f"trap 'echo got; exit 5' TERM; echo ready; {LOOP}")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == b"got\n"
        assert process.wait() == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_ends_the_command_ends_us(number: signal.Signals) -> None:
    """Our parent sees the same signal, so that a shell's script stops at Ctrl-C."""
    with started(*shell(f"echo ready; {LOOP}")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait() == -number


def test_a_command_that_kills_itself_ends_us_the_same_way() -> None:
    """SIGKILL is not turned into a number either."""
    assert stockade(*shell("kill -KILL $$")).returncode == -signal.SIGKILL


def test_the_second_interrupt_kills_the_sandbox() -> None:
    """Ctrl-C twice ends what ignores it once."""
    with started(*shell(f"trap 'echo one' INT; echo ready; {LOOP}")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"one\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == -signal.SIGINT


def test_an_interrupt_reaches_a_command_whose_reader_stopped() -> None:
    """`stockade run -- yes | less` ends at Ctrl-C although nobody reads its output."""
    with started(
        *shell("trap 'exit 6' TERM; while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done")
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"y"
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait() == 6


def test_a_reader_that_leaves_ends_the_command_by_sigpipe() -> None:
    """`stockade run -- yes | head -1` ends."""
    with started("run", "yes") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.wait() == -signal.SIGPIPE


def test_closed_descriptors_are_not_ours_to_reuse() -> None:
    """With standard output closed, the command's output goes nowhere, and not into our sockets."""
    script = '"$@" >&- 2>&- <&-; echo $?'
    result = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *command("run", "echo", "hi")],
        capture_output=True,
        check=True,
    )
    assert result.stdout == b"0\n"
