"""`AsyncSandbox.commands`: run, watch and end commands."""

from __future__ import annotations

import codecs
import signal as signals
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from stockade.audit import Result, new_record_id, operations
from stockade.runtime.command import Command, CommandSpec, Outcome
from stockade.runtime.live import LimitEvents
from stockade.sandbox.arguments import (
    Input,
    argv_of,
    check_pty,
    check_signal,
    check_size,
    check_stdin,
    encoded,
    encoded_cwd,
    encoded_environment,
    seconds_as_ms,
)
from stockade.sandbox.results import CommandResult, KilledBy, Limit
from stockade.wire import frames

if TYPE_CHECKING:
    from stockade.sandbox.async_sandbox import AsyncSandbox

OnText = Callable[[str], None]
OnBytes = Callable[[bytes], None]

#: After a time-out's SIGTERM, how long the tree has before SIGKILL.
GRACE_MS = 500

_REASONS: dict[int, KilledBy] = {
    frames.REASON_TIMEOUT: "timeout",
    frames.REASON_MEMORY: "memory",
    frames.REASON_CPU: "cpu",
    frames.REASON_DISK: "disk",
    frames.REASON_SIGNALLED: "signal",
    frames.REASON_CANCELLED: "cancelled",
}


class RunOptions(TypedDict, total=False):
    """Options of `commands.run`."""

    #: working directory inside; default /workspace, or / where there is none
    cwd: str | None
    #: environment variables besides the policy's
    envs: Mapping[str, str] | None
    #: time limit in seconds; default: the policy's `limits.timeout`, in the background none
    timeout: float | None
    #: standard input given whole, or True to write to the handle; without it /dev/null
    stdin: Input
    #: called with text as it comes, on the event loop; must not block
    on_stdout: OnText | None
    on_stderr: OnText | None
    #: the same with bytes; an empty chunk is the end
    on_stdout_bytes: OnBytes | None
    on_stderr_bytes: OnBytes | None
    #: who the command runs as, both without any capability
    user: Literal["agent", "root"] | None
    #: a pseudo-terminal of (rows, columns)
    pty: tuple[int, int] | None


class CommandHandle:
    """A command that runs in the background of its sandbox. It ends with the sandbox."""

    def __init__(self, owner: AsyncSandbox, command: Command, argv: tuple[str, ...]) -> None:
        """Made by `commands.run(..., background=True)`."""
        self._owner = owner
        self._command = command
        self._before = owner.live.limit_events()
        #: the words that were run
        self.argv = argv

    @property
    def pid(self) -> int:
        """The process id inside the sandbox."""
        return self._command.pid

    @property
    def ended(self) -> bool:
        """True once the command and all that it started are gone."""
        return self._command.ended

    def when_ended(self, callback: Callable[[frames.Exited | None], None]) -> None:
        """Call back at the end, on the event loop; None when the sandbox ended first."""
        self._command.when_ended(callback)

    async def wait(self) -> CommandResult:
        """Wait for the end; raises `SandboxDied` when the sandbox ended first."""
        return result_of(self._owner, await self._command.wait(), self._before)

    async def kill(self, signal: int = signals.SIGKILL) -> None:
        """Send a signal to the command and all that it started."""
        self._command.signal(check_signal(signal))

    async def send_stdin(self, data: str | bytes) -> None:
        """Write to its standard input."""
        await self._command.write_stdin(data.encode() if isinstance(data, str) else data)

    async def close_stdin(self) -> None:
        """End its standard input."""
        self._command.close_stdin()

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of its terminal."""
        check_pty((rows, cols))
        self._command.resize(rows, cols)


class AsyncCommands:
    """Commands of one sandbox."""

    def __init__(self, owner: AsyncSandbox) -> None:
        """Made by the sandbox."""
        self._owner = owner
        self._running: dict[int, CommandHandle] = {}

    @overload
    async def run(
        self, cmd: str | Sequence[str], *, background: Literal[True], **options: Unpack[RunOptions]
    ) -> CommandHandle: ...
    @overload
    async def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> CommandResult: ...

    async def run(
        self, cmd: str | Sequence[str], *, background: bool = False, **options: Unpack[RunOptions]
    ) -> CommandResult | CommandHandle:
        """Run a command: a text through /bin/sh, a sequence of words as it is.

        At the time limit the command and all that it started get SIGTERM and 0.5 s later SIGKILL. Raises
        `CommandNotFound`, `InvalidCwd`, `StartError`, `SandboxDied`, and TypeError or ValueError for a wrong option;
        a non-zero exit code is a result.
        """
        if unknown := options.keys() - RunOptions.__annotations__.keys():
            raise TypeError(f"run() has no option {min(unknown)!r}")
        argv = argv_of(cmd)
        stdin = check_stdin(options.get("stdin"))
        spec = self._spec(argv, options, background=background)
        params: dict[str, Any] = {
            "argv": list(argv),
            "cwd": spec.cwd.decode(errors="backslashreplace"),
            "timeout_ms": spec.timeout_ms,
        }
        if envs := options.get("envs"):
            params["envs"] = dict(envs)
        if background:
            return await self._background(spec, argv, params, stdin)
        return await self._owner.door.call(
            operations.EXEC, argv[0], params, self._run(spec, stdin), _told
        )

    def _spec(self, argv: tuple[str, ...], options: RunOptions, *, background: bool) -> CommandSpec:
        """Check the options and put the policy's values where there is none."""
        plan, limits = self._owner.plan, self._owner.policy.limits
        timeout, cwd = options.get("timeout"), options.get("cwd")
        default_ms = 0 if background else limits.timeout
        uid, gid = self._ids(options.get("user"))
        spec = CommandSpec(
            argv=[encoded(word) for word in argv],
            env=encoded_environment({**plan.env, **(options.get("envs") or {})}),
            cwd=encoded_cwd(plan.cwd if cwd is None else cwd),
            uid=uid,
            gid=gid,
            keep_bytes=limits.output,
            timeout_ms=default_ms if timeout is None else seconds_as_ms(timeout),
            grace_ms=GRACE_MS,
            stdin=check_stdin(options.get("stdin")) not in (None, False),
            pty=check_pty(options.get("pty")),
            background=background,
            on_stdout=options.get("on_stdout_bytes") or _Decoded.of(options.get("on_stdout")),
            on_stderr=options.get("on_stderr_bytes") or _Decoded.of(options.get("on_stderr")),
        )
        check_size(spec.argv, spec.env)
        return spec

    async def list(self) -> list[CommandHandle]:
        """Return the background commands that are still alive."""
        return [handle for handle in self._running.values() if not handle.ended]

    async def kill(self, pid: int, signal: int = signals.SIGKILL) -> bool:
        """Send a signal to a background command's tree; False when there is none of that `pid`."""
        handle = self._running.get(pid)
        if handle is None or handle.ended:
            return False
        await handle.kill(signal)
        return True

    def _ids(self, user: str | None) -> tuple[int, int]:
        if user == "root":
            return 0, 0
        if user in (None, "agent"):
            return self._owner.plan.uid, self._owner.plan.gid
        raise ValueError(f"user must be 'agent' or 'root', not {user!r}")

    async def _run(self, spec: CommandSpec, stdin: Input) -> CommandResult:
        live = self._owner.live
        live.check()
        before = live.limit_events()
        command = Command(live.channel, spec)
        try:
            command.send_start()
            await _feed(command, stdin)
            return result_of(self._owner, await command.wait(), before)
        except BaseException:
            command.cancel()
            raise

    async def _background(
        self,
        spec: CommandSpec,
        argv: tuple[str, ...],
        params: dict[str, Any],
        stdin: Input,
    ) -> CommandHandle:
        """Start, and record the start now and the end when it comes, both with one call id."""
        door, call_id = self._owner.door, new_record_id()
        work = self._start(spec, argv, stdin)
        handle = await door.call(
            operations.EXEC,
            argv[0],
            params,
            work,
            lambda made: ("success", {"pid": made.pid}),
            call_id,
        )

        def ended(exited: frames.Exited | None) -> None:
            result, detail, duration_ms = _ended(exited)
            door.record(
                operations.EXEC_END,
                argv[0],
                {"pid": handle.pid},
                result,
                duration_ms,
                detail,
                call_id,
            )

        handle.when_ended(ended)
        return handle

    async def _start(self, spec: CommandSpec, argv: tuple[str, ...], stdin: Input) -> CommandHandle:
        live = self._owner.live
        live.check()
        command = await Command.start(live.channel, spec)
        handle = CommandHandle(self._owner, command, argv)
        self._running[command.pid] = handle
        # Its kept output goes with it, unless the caller holds the handle.
        command.when_ended(lambda _exited: self._forget(handle))
        try:
            await _feed(command, stdin)
        except BaseException:
            command.cancel()
            raise
        return handle

    def _forget(self, handle: CommandHandle) -> None:
        # The pid may be a later command's by now.
        if self._running.get(handle.pid) is handle:
            del self._running[handle.pid]


async def _feed(command: Command, stdin: Input) -> None:
    if isinstance(stdin, str | bytes):
        await command.write_stdin(stdin.encode() if isinstance(stdin, str) else stdin)
        command.close_stdin()


class _Decoded:
    """Hands text to a callback; a character that two chunks share waits for its second half."""

    def __init__(self, callback: OnText) -> None:
        self._callback = callback
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    @classmethod
    def of(cls, callback: OnText | None) -> _Decoded | None:
        return None if callback is None else cls(callback)

    def __call__(self, data: bytes) -> None:
        """Take a chunk; an empty one is the end."""
        if text := self._decoder.decode(data, final=not data):
            self._callback(text)


def result_of(owner: AsyncSandbox, outcome: Outcome, before: LimitEvents) -> CommandResult:
    """Turn what the cell and the kernel said into one result."""
    exited = outcome.exited
    killed_by = _REASONS.get(exited.reason)
    code = exited.code if not exited.signal else 128 + exited.signal
    limits: list[Limit] = []
    now = owner.live.limit_events()
    if now.memory_kills > before.memory_kills:
        limits.append("memory")
        # The counter says that the controller killed; 137 alone would not.
        if killed_by is None and code != 0:
            killed_by = "memory"
    elif killed_by == "memory":
        limits.append("memory")
    if now.refused_forks > before.refused_forks:
        limits.append("processes")
    if code != 0:
        limits += owner.limits_met()
    return CommandResult(
        exit_code=code,
        stdout_bytes=outcome.stdout,
        stderr_bytes=outcome.stderr,
        duration_ms=exited.duration_us // 1000,
        truncated=outcome.truncated,
        killed_by=killed_by,
        signal=exited.signal or None,
        limits_hit=tuple(limits),
        leftovers=exited.leftovers,
        cpu_ms=(exited.user_us + exited.system_us) // 1000,
        max_rss_kib=exited.max_rss_kib,
    )


def _ended(exited: frames.Exited | None) -> tuple[Result, dict[str, Any], int]:
    if exited is None:
        return "error", {"error": "sandbox_died"}, 0
    detail: dict[str, Any] = {"exit_code": exited.code}
    if exited.reason in _REASONS:
        detail["killed_by"] = _REASONS[exited.reason]
    return ("success" if exited.code == 0 else "error"), detail, exited.duration_us // 1000


def _told(result: CommandResult) -> tuple[Result, dict[str, Any]]:
    detail: dict[str, Any] = {"exit_code": result.exit_code}
    if result.killed_by:
        detail["killed_by"] = result.killed_by
    if result.limits_hit:
        detail["limits_hit"] = list(result.limits_hit)
    if result.truncated:
        detail["truncated"] = True
    if result.leftovers:
        detail["leftovers"] = result.leftovers
    return ("success" if result.ok else "error"), detail
