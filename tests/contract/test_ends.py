"""How commands are ended: time limits, cancellation, the sandbox's own end. Nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stockade import AsyncSandbox, Sandbox
from stockade.errors import CommandTimeout, SandboxDied, StateError
from stockade.sandbox.async_sandbox import Level
from tests.contract.conftest import POLICY, MakeSandbox
from tests.e2e.residue import assert_gone, children, running_in, traces_of, wait_until

#: From the time limit to SIGKILL; and what a busy machine may add to any of it.
GRACE_MS = 500
SLACK_MS = 1000

FORKED_TWICE = """\
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
os.wait()
time.sleep(60)
"""

STUBBORN = [
    pytest.param("echo hi; sleep 60 & wait", id="a child"),
    pytest.param("echo hi; setsid sleep 60 & trap '' TERM; sleep 60", id="ignores SIGTERM"),
    pytest.param(f"echo hi; exec python3 -c '{FORKED_TWICE}'", id="forks twice"),
    pytest.param("echo hi; kill -STOP $$", id="is stopped"),
    pytest.param("echo hi; while :; do :; done", id="is busy"),
    pytest.param("echo hi; exec >&- 2>&-; sleep 60", id="closed its output"),
]


@pytest.mark.parametrize("script", STUBBORN)
def test_a_time_limit_ends_the_whole_tree(sandbox: Sandbox, script: str) -> None:
    """The call returns in time with the partial output, says why, and no descendant is alive (cases C52)."""
    begin = time.monotonic()
    result = sandbox.commands.run(script, timeout=0.3)
    assert (time.monotonic() - begin) * 1000 < 300 + GRACE_MS + SLACK_MS
    assert (result.stdout, result.killed_by) == ("hi\n", "timeout")
    assert running_in(sandbox) == []


def test_the_result_of_a_time_limit_is_no_exit_code(sandbox: Sandbox) -> None:
    """A command that exits with 124 or 137 by itself was not ended by a limit."""
    assert [sandbox.commands.run(f"exit {code}").killed_by for code in (124, 137)] == [None, None]


def test_a_command_may_use_the_grace_to_end_well(sandbox: Sandbox) -> None:
    """SIGTERM comes first; its handler's output and exit code are kept, and it is still a time-out."""
    script = "trap 'echo saved; exit 7' TERM; echo on; while :; do sleep 0.01; done"
    result = sandbox.commands.run(script, timeout=0.2)
    assert (result.stdout, result.exit_code, result.killed_by) == ("on\nsaved\n", 7, "timeout")


def test_a_result_can_raise_its_time_limit(sandbox: Sandbox) -> None:
    """`check_time` turns it into `CommandTimeout`, a `TimeoutError` with the partial output."""
    result = sandbox.commands.run("echo part; sleep 60", timeout=0.1)
    with pytest.raises(CommandTimeout) as caught:
        result.check_time(("sh",), 100)
    assert (caught.value.stdout, isinstance(caught.value, TimeoutError)) == ("part\n", True)


@pytest.mark.parametrize(
    "script",
    ["sleep 60 & echo done", "(sleep 60 </dev/null >/dev/null 2>&1 &); echo done"],
    ids=["holds the output", "daemon"],
)
def test_a_child_left_behind_does_not_hold_the_caller(sandbox: Sandbox, script: str) -> None:
    """The call returns with its main process, not with a child that keeps the pipe open (cases C52)."""
    begin = time.monotonic()
    result = sandbox.commands.run(script, timeout=10)
    assert (result.stdout, result.exit_code, result.leftovers) == ("done\n", 0, 1)
    assert (time.monotonic() - begin) * 1000 < GRACE_MS + SLACK_MS
    assert running_in(sandbox) == []


def test_the_policys_time_limit_holds_where_none_is_named(make_sandbox: MakeSandbox) -> None:
    """`timeout=None` is the policy's limit, not none."""
    made = make_sandbox(limits={"timeout": "200ms"})
    assert made.commands.run(["sleep", "60"], timeout=None).killed_by == "timeout"


def test_a_background_command_has_a_limit_only_where_one_is_named(
    make_sandbox: MakeSandbox,
) -> None:
    """A server may run on; with `timeout` it is ended as any command."""
    made = make_sandbox(limits={"timeout": "100ms"})
    free = made.commands.run("sleep 0.4; echo on", background=True)
    bound = made.commands.run(["sleep", "60"], background=True, timeout=0.1)
    assert (free.wait().stdout, bound.wait().killed_by) == ("on\n", "timeout")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), 10**9])
def test_a_time_limit_out_of_range_is_refused(sandbox: Sandbox, timeout: float) -> None:
    """No value means "for ever" by accident (cases C52)."""
    with pytest.raises(ValueError, match="timeout must be more than 0"):
        sandbox.commands.run(["true"], timeout=timeout)


@pytest.mark.parametrize("timeout", ["5", True, b"5", [5]])
def test_a_time_limit_of_another_type_is_refused(sandbox: Sandbox, timeout: Any) -> None:
    """A text or a truth value is no number of seconds (cases C52)."""
    with pytest.raises(TypeError, match="timeout must be a number"):
        sandbox.commands.run(["true"], timeout=timeout)


@pytest.mark.parametrize("script", STUBBORN)
def test_a_cancelled_command_is_ended_with_its_tree(level: Level, script: str) -> None:
    """Cancelling the task that waits leaves nothing running, and the sandbox usable."""

    async def main() -> None:
        async with await AsyncSandbox.create(POLICY, level=level) as made:
            started = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                run = made.commands.run(script, on_stdout=lambda _: started.set())
                task = group.create_task(run)
                await started.wait()
                task.cancel()
            assert await asyncio.to_thread(wait_until, lambda: running_in(made) == [])
            assert (await made.commands.run(["true"])).ok

    asyncio.run(main())


def test_a_command_that_reads_no_input_is_ended_by_cancelling(level: Level) -> None:
    """Cancelling while the input is still being written ends the command too."""

    async def main() -> None:
        async with await AsyncSandbox.create(POLICY, level=level) as made:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await made.commands.run(["sleep", "60"], stdin=bytes(8 << 20))
            assert await asyncio.to_thread(wait_until, lambda: running_in(made) == [])

    asyncio.run(main())


def test_fifty_cancelled_commands_leave_none(level: Level) -> None:
    """The other side learns of each cancellation (cases C52)."""

    async def run_fifty(made: AsyncSandbox) -> None:
        async with asyncio.timeout(0.5), asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(made.commands.run(["sleep", "60"]))

    async def main() -> None:
        async with await AsyncSandbox.create(POLICY, level=level) as made:
            with pytest.raises(TimeoutError):
                await run_fifty(made)
            assert await asyncio.to_thread(wait_until, lambda: running_in(made) == [])

    asyncio.run(main())


async def _while_a_command_runs(
    made: AsyncSandbox, act: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    started = asyncio.Event()
    run = made.commands.run("echo on; sleep 60", on_stdout=lambda _: started.set())
    async with asyncio.TaskGroup() as group:
        group.create_task(run)
        await started.wait()
        await act()


def test_killing_the_sandbox_ends_a_command_that_runs(level: Level) -> None:
    """Who waits gets the sandbox's end, never a result that looks like the command's own."""

    async def main() -> None:
        made = await AsyncSandbox.create(POLICY, level=level)
        traces = traces_of(made)
        with pytest.raises(ExceptionGroup) as caught:
            await _while_a_command_runs(made, made.kill)
        assert caught.group_contains(StateError)
        assert_gone(traces)

    asyncio.run(main())


def test_a_cell_that_dies_is_an_error_of_the_command(level: Level) -> None:
    """A dead sandbox is an exception that says so; what was in it is gone."""

    async def main() -> None:
        made = await AsyncSandbox.create(POLICY, level=level)
        traces = traces_of(made)

        async def kill_the_cell() -> None:
            os.kill(made.live.pid, signal.SIGKILL)

        with pytest.raises(ExceptionGroup) as caught:
            await _while_a_command_runs(made, kill_the_cell)
        assert caught.group_contains(SandboxDied)
        assert not await made.is_running()
        await made.kill()
        assert_gone(traces)

    asyncio.run(main())


def test_a_killed_sandbox_refuses_everything(level: Level) -> None:
    """Operations say that it is gone; killing it again does nothing."""
    made = Sandbox.create(POLICY, level=level)
    made.kill()
    for use in (lambda: made.commands.run(["true"]), lambda: made.files.read("/etc/hosts")):
        with pytest.raises(StateError, match="destroyed"):
            use()
    assert not made.is_running()
    made.kill()


def test_a_sandbox_ends_after_its_life_time(make_sandbox: MakeSandbox) -> None:
    """`timeout=` of `create` bounds the sandbox itself, and a command that runs then."""
    made = make_sandbox(timeout=0.3)
    traces = traces_of(made)
    with pytest.raises(StateError):
        made.commands.run(["sleep", "60"])
    assert not made.is_running()
    made.kill()
    assert_gone(traces)


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_life_time_out_of_range_leaves_nothing(level: Level, timeout: float) -> None:
    """A bad `timeout=` of `create` is refused before anything is started, or its sandbox is ended."""
    before = children(os.getpid())
    with pytest.raises(ValueError, match="timeout"):
        Sandbox.create(POLICY, level=level, timeout=timeout)
    assert children(os.getpid()) == before
