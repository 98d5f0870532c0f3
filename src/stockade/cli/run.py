"""`stockade run`: one command in a sandbox of its own, as if it ran here.

It ends as the command ended: with its exit code, or by the signal that ended it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import typer

from stockade.cli import message, terminal
from stockade.cli.ending import Ending
from stockade.cli.policy_options import PolicyOptions, policy_from_options
from stockade.cli.signals import ENDING, FORWARDED, SignalStream
from stockade.cli.streams import OutputStream, chunks
from stockade.errors import CommandNotFound, StartError, StockadeError
from stockade.policy import Policy
from stockade.sandbox import AsyncSandbox
from stockade.sandbox.commands import CommandHandle
from stockade.sandbox.results import CommandResult

#: Our own failure: nothing is known about the command (env(1), docker).
OWN_FAILURE = 125
#: The program is there and can't be executed; there is no such program (POSIX shells).
NOT_EXECUTABLE = 126
NOT_FOUND = 127
#: The time limit ended it (timeout(1)).
TIMED_OUT = 124

#: How long a command may go on writing to a closed pipe after SIGPIPE, before it is killed.
_PIPE_GRACE_S = 1.0

_LIMIT_WORDS = {
    "timeout": ("its time limit ended it", "Give it longer: --timeout SECONDS."),
    "memory": ("the memory limit ended it", "Raise limits.memory in the policy."),
    "cpu": ("the CPU limit ended it", "Raise limits.cpu or limits.cpu_seconds in the policy."),
    "disk": ("a disk limit ended it", "Raise limits.disk or the workspace's limit in the policy."),
}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a command line asks for."""

    argv: Sequence[str]
    policy: PolicyOptions
    envs: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    timeout_s: float | None = None
    user: Literal["agent", "root"] = "agent"
    as_json: bool = False
    session_id: str | None = None
    agent_id: str | None = None


def run(options: RunOptions) -> Ending:
    """Run it; raises `StockadeError` for what happened before there was a command."""
    policy = policy_from_options(options.policy)
    with SignalStream() as signals:
        return asyncio.run(_Run(options, policy, signals).ending())


def run_to_status(options: RunOptions) -> int:
    """Run it and end as the command ended; returns the exit status of a failure that was told."""
    try:
        run(options).take()  # the sandbox's end has waited until its records were on the disk
    except StockadeError as error:
        if options.as_json:
            message.write_json({"error": error.to_dict()})
        message.show_error(error)
        return status_of(error)


class _Run:
    """One run, from the creation of its sandbox to its end."""

    def __init__(self, options: RunOptions, policy: Policy, signals: SignalStream) -> None:
        self._options = options
        self._policy = policy
        self._signals = signals
        self._handle: CommandHandle | None = None
        self._terminal: terminal.RawTerminal | None = None
        self._outputs: list[OutputStream] = []
        # From the request to start it on, a command may run and speak before we have its handle.
        self._is_starting = False
        self._early: list[int] = []
        self._interrupts = 0
        self._ended_by = 0
        self._pipe_broke_at: float | None = None

    async def ending(self) -> Ending:
        """Create, run, destroy, and say how it ended."""
        loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        loop.add_reader(self._signals.fd, self._on_signals)
        try:
            return await self._whole()
        except asyncio.CancelledError:
            if not self._ended_by:
                raise
            return Ending(128 + self._ended_by, self._ended_by)
        finally:
            loop.remove_reader(self._signals.fd)

    async def _whole(self) -> Ending:
        options = self._options
        sandbox = await AsyncSandbox.create(
            self._policy, session_id=options.session_id, agent_id=options.agent_id
        )
        try:
            result = await self._command(sandbox)
        except (CommandNotFound, StartError) as error:
            return self._not_started(error)
        finally:
            await sandbox.kill()
        if options.as_json:
            message.write_json(_to_dict(sandbox, result))
        return self._ending_of(result)

    async def _command(self, sandbox: AsyncSandbox) -> CommandResult:
        if not self._options.as_json and terminal.is_whole():
            return await self._on_terminal(sandbox)
        # In the background of a terminal, reading it would stop us although the command may never read.
        reads = terminal.is_foreground() or not os.isatty(0)
        streams: dict[str, Any] = {"stdin": reads}
        if not self._options.as_json:
            self._outputs = [self._output(1), self._output(2)]
            out, err = self._outputs
            streams |= {"on_stdout_bytes": out.write, "on_stderr_bytes": err.write}
        handle = await self._start(sandbox, streams, {})
        return await self._finish(handle, reads=reads)

    async def _on_terminal(self, sandbox: AsyncSandbox) -> CommandResult:
        self._outputs = [self._output(1)]
        streams = {
            "stdin": True,
            "pty": terminal.size(),
            "on_stdout_bytes": self._outputs[0].write,
        }
        kind = os.environ.get("TERM")
        with terminal.RawTerminal() as raw:
            handle = await self._start(sandbox, streams, {"TERM": kind} if kind else {})
            self._terminal = raw
            handle.resize(*terminal.size())  # it may have changed since the request to start
            try:
                return await self._finish(handle, reads=True)
            finally:
                self._terminal = None

    async def _start(
        self, sandbox: AsyncSandbox, streams: Mapping[str, Any], envs: Mapping[str, str]
    ) -> CommandHandle:
        options = self._options
        self._is_starting = True
        try:
            self._handle = handle = await sandbox.commands.run(
                list(options.argv),
                background=True,
                cwd=options.cwd or _default_cwd(self._policy),
                envs={**envs, **options.envs},
                timeout=options.timeout_s or _time_limit_s(self._policy),
                user=options.user,
                **streams,
            )
        except (TypeError, ValueError) as error:  # an argument's form; its words name the argument
            if isinstance(error, StockadeError):
                raise
            raise typer.BadParameter(str(error)) from error
        for number in self._early:
            _now(handle.kill(number))
        return handle

    async def _finish(self, handle: CommandHandle, *, reads: bool) -> CommandResult:
        """Forward input until the command ends, and wait until its output is out."""
        async with asyncio.TaskGroup() as group:
            feeding = group.create_task(_feed(handle)) if reads else None
            # As a value: an exception would leave the group as a part of another one.
            result = await _settled(handle.wait())
            if feeding is not None:
                feeding.cancel()
        for output in self._outputs:
            await output.drained()
        if isinstance(result, StockadeError):
            raise result
        return result

    def _output(self, descriptor: int) -> OutputStream:
        return OutputStream(descriptor, self._signals, self._on_signals, self._on_gone)

    def _on_signals(self) -> None:
        for number in self._signals.read():
            if number in FORWARDED:
                self._on_signal(number)
            elif self._terminal is not None and self._handle is not None:
                if number == signal.SIGCONT:
                    self._terminal.make_raw()
                self._handle.resize(*terminal.size())

    def _on_signal(self, number: int) -> None:
        self._interrupts += number == signal.SIGINT
        has_command = self._is_starting and not (self._handle and self._handle.ended)
        if self._interrupts > 1 or (number in ENDING and not has_command):
            self._give_up(number)
        elif has_command:
            self._send(number)

    def _send(self, number: int) -> None:
        if self._handle is None:
            self._early.append(number)
        else:
            _now(self._handle.kill(number))

    def _give_up(self, number: int) -> None:
        """End by a signal without asking the command: its sandbox is killed on the way out."""
        if self._ended_by:
            return
        self._ended_by = number
        for output in self._outputs:
            output.discard()
        if self._main is not None:
            self._main.cancel()

    def _on_gone(self) -> None:
        """Nobody reads the output any more: the command gets the signal that its own pipe would have given."""
        now = time.monotonic()
        if self._pipe_broke_at is None:
            self._pipe_broke_at = now
            self._send(signal.SIGPIPE)
        elif now - self._pipe_broke_at > _PIPE_GRACE_S:
            self._send(signal.SIGKILL)

    def _not_started(self, error: CommandNotFound | StartError) -> Ending:
        if self._options.as_json:
            raise error
        message.show_error(error)
        return Ending(status_of(error))

    def _ending_of(self, result: CommandResult) -> Ending:
        words = _LIMIT_WORDS.get(result.killed_by or "")
        if words and not self._options.as_json:
            name = os.path.basename(self._options.argv[0])
            message.show(f"{name} ran {result.duration_ms} ms, then {words[0]}", words[1])
        if result.killed_by == "timeout":
            return Ending(TIMED_OUT)
        if self._pipe_broke_at is not None and result.signal == signal.SIGKILL:
            return Ending(128 + signal.SIGPIPE, signal.SIGPIPE)
        by_signal = result.signal and result.exit_code == 128 + result.signal
        if by_signal and not self._options.as_json:
            return Ending(result.exit_code, result.signal or 0)
        return Ending(result.exit_code)


def status_of(error: StockadeError) -> int:
    """Return the exit status of an error: 126 and 127 are about the program, all else is ours."""
    if isinstance(error, CommandNotFound):
        return NOT_FOUND
    if isinstance(error, StartError) and error.step in _EXECUTE_STEPS:
        return NOT_EXECUTABLE
    return OWN_FAILURE


#: How a failed execve(2) is named.
_EXECUTE_STEPS = ("execute the program", "execve")


def _default_cwd(policy: Policy) -> str | None:
    """Return /workspace where something is mounted there, read-only too; else the library's choice."""
    filesystem = policy.filesystem
    targets = [entry.target for entry in filesystem.workspaces]
    targets += [entry.path for entry in filesystem.private_dirs]
    return "/workspace" if "/workspace" in targets else None


def _time_limit_s(policy: Policy) -> float | None:
    """Return the limit that a policy states; the built-in one is for tool calls, not for who can press Ctrl-C."""
    stated = "limits" in policy.model_fields_set and "timeout" in policy.limits.model_fields_set
    return policy.limits.timeout / 1000 if stated else None


async def _feed(handle: CommandHandle) -> None:
    async for data in chunks(0):
        await handle.send_stdin(data)
    await handle.close_stdin()


async def _settled(waited: Coroutine[Any, Any, CommandResult]) -> CommandResult | StockadeError:
    try:
        return await waited
    except StockadeError as error:
        return error


def _now(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run what only queues a frame to its end here: a signal can't wait for the loop while a write blocks it."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()


def _to_dict(sandbox: AsyncSandbox, result: CommandResult) -> dict[str, Any]:
    return {
        "exit_code": result.exit_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "duration_ms": result.duration_ms,
        "truncated": result.truncated,
        "killed_by": result.killed_by,
        "signal": result.signal,
        "limits_hit": list(result.limits_hit),
        "sandbox_id": sandbox.sandbox_id,
        "session_id": sandbox.session_id,
        "protections": sandbox.protections.to_dict(),
        "timings": {name: round(ms, 3) for name, ms in sandbox.timings.items()},
        "refused": [asdict(refusal) for refusal in sandbox.refused],
    }
