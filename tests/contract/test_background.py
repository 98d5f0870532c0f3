"""Commands that run beside others: handles, signals, and their end with the sandbox."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from stockade import Sandbox
from stockade.errors import StateError
from stockade.sandbox import CommandHandle
from tests.e2e.residue import running_in


def _start(sandbox: Sandbox, script: str, **options: Any) -> CommandHandle:
    """Start a script and wait until it says that it is ready."""
    seen: list[str] = []
    handle = sandbox.commands.run(script, background=True, on_stdout=seen.append, **options)
    while not seen:
        assert not handle.ended
    return handle


def test_a_handle_knows_its_process(sandbox: Sandbox) -> None:
    """The pid is the one that commands see."""
    handle = sandbox.commands.run("echo $$", background=True)
    assert handle.wait().stdout == f"{handle.pid}\n"


def test_the_list_has_those_that_are_alive(sandbox: Sandbox) -> None:
    """A command leaves the list when it ends."""
    first, second = (_start(sandbox, "echo ready; sleep 60") for _ in range(2))
    assert {entry.pid for entry in sandbox.commands.list()} == {first.pid, second.pid}
    first.kill()
    first.wait()
    assert [entry.pid for entry in sandbox.commands.list()] == [second.pid]
    second.kill()
    second.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1])
def test_a_signal_that_ends_a_command_is_named(sandbox: Sandbox, number: signal.Signals) -> None:
    """The result says which signal, and that it was sent on purpose."""
    handle = _start(sandbox, "echo ready; exec sleep 60")
    handle.kill(number)
    result = handle.wait()
    assert (result.exit_code, result.signal, result.killed_by) == (128 + number, number, "signal")


def test_a_signal_that_is_handled_is_no_end(sandbox: Sandbox) -> None:
    """A command that handles the signal ends as it wants."""
    handle = _start(
        sandbox, "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.01; done"
    )
    handle.kill(signal.SIGTERM)
    result = handle.wait()
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (3, "caught")


def test_a_signal_reaches_the_whole_tree(sandbox: Sandbox) -> None:
    """Children in sessions of their own get it too."""
    handle = _start(sandbox, "setsid sleep 61 & setsid sleep 62 & echo ready; wait")
    handle.kill()
    handle.wait()
    assert running_in(sandbox) == []


def test_a_command_can_be_killed_by_its_number(sandbox: Sandbox) -> None:
    """`commands.kill` finds it; for any other number it says False and does nothing."""
    handle = _start(sandbox, "echo ready; exec sleep 60")
    assert sandbox.commands.kill(1) is False
    assert sandbox.commands.kill(handle.pid) is True
    assert handle.wait().signal == signal.SIGKILL
    assert sandbox.commands.kill(handle.pid) is False


def test_a_signal_after_the_end_does_nothing(sandbox: Sandbox) -> None:
    """Being late is no error."""
    handle = sandbox.commands.run(["true"], background=True)
    first = handle.wait()
    handle.kill()
    handle.send_stdin("late")
    handle.close_stdin()
    assert handle.wait() == first


def test_an_end_is_waited_for_more_than_once(sandbox: Sandbox) -> None:
    """A result stays."""
    handle = sandbox.commands.run("echo x; exit 4", background=True)
    assert [handle.wait().exit_code for _ in range(2)] == [4, 4]


def test_a_background_command_outlives_others(sandbox: Sandbox) -> None:
    """Commands that come and go do not end it."""
    handle = _start(sandbox, "echo ready; read x; echo alive")
    handle.kill()
    handle.wait()
    handle = sandbox.commands.run("read x; echo alive", background=True, stdin=True)
    for _ in range(3):
        sandbox.commands.run(["true"])
    handle.send_stdin("\n")
    assert handle.wait().stdout == "alive\n"


def test_what_a_command_leaves_behind_is_ended_and_counted(sandbox: Sandbox) -> None:
    """A daemon does not survive the command that started it; another command's children are not touched."""
    other = _start(sandbox, "sleep 77 & echo ready; wait")
    script = (
        "import os\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.execlp('sleep', 'sleep', '60')\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    result = sandbox.commands.run(["python3", "-c", script])
    assert (result.exit_code, result.leftovers) == (0, 1)
    assert running_in(sandbox) == ["sh", "sleep"]
    other.kill()
    other.wait()


def test_a_background_command_ends_with_its_sandbox(sandbox: Sandbox) -> None:
    """Whoever waits learns that the sandbox is gone; that is no result."""
    with Sandbox.create(level=sandbox.protections.level) as other:
        handle = _start(other, "echo ready; exec sleep 60")
    with pytest.raises(StateError):
        handle.wait()
    assert handle.ended


def test_a_command_after_a_kill_is_not_killed(sandbox: Sandbox) -> None:
    """Ending one command's tree reaches no command that starts right after it."""
    for _ in range(100):
        handle = sandbox.commands.run(["sleep", "60"], background=True)
        handle.kill()
        handle.wait()
        result = sandbox.commands.run("echo on")
        assert (result.stdout, result.exit_code, result.leftovers) == ("on\n", 0, 0)


def test_a_terminal_can_be_resized(sandbox: Sandbox) -> None:
    """The program gets SIGWINCH and sees the new size."""
    script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.01; done"
    handle = _start(sandbox, script, pty=(10, 20))
    handle.resize(55, 66)
    assert handle.wait().stdout.split()[-2:] == ["55", "66"]
