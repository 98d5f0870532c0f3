"""`AsyncSandbox.commands`: run, watch and end commands."""

from __future__ import annotations

import signal as signals
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from stockade.audit import operations
from stockade.runtime.command import Command, CommandSpec, Outcome
from stockade.sandbox.results import CommandResult, KilledBy, Limit
from stockade.wire import frames

if TYPE_CHECKING:
    from stockade.sandbox.async_sandbox import AsyncSandbox

OnText = Callable[[str], None]
OnBytes = Callable[[bytes], None]

#: After a time-out's SIGTERM, how long the tree has before SIGKILL.
GRACE_MS = 500
_MAX_SECONDS = 10**7

_REASONS: dict[int, KilledBy] = {
    frames.REASON_TIMEOUT: "timeout",
    frames.REASON_MEMORY: "memory",
    frames.REASON_CPU: "cpu",
    frames.REASON_DISK: "disk",
    frames.REASON_SIGNALLED: "signal",
    frames.REASON_CANCELLED: "cancelled",
}


def argv_of(cmd: str | Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command: a text is for /bin/sh, a sequence is taken as it is."""
    argv = ("/bin/sh", "-c", cmd) if isinstance(cmd, str) else tuple(cmd)
    if not argv or not all(isinstance(word, str) for word in argv):
        raise TypeError("cmd must be a text, or a non-empty sequence of texts")
    if any("\0" in word for word in argv):
        raise ValueError("a command can't hold a NUL character")
    return argv


def milliseconds(timeout: float | None, default_ms: int) -> int:
    """Return a time limit in ms; None is the policy's default. Raises ValueError for one that is not positive."""
    if timeout is None:
        return default_ms
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be a number of seconds, not {type(timeout).__name__}")
    if not 0 < timeout <= _MAX_SECONDS:
        raise ValueError(f"timeout must be more than 0 and at most {_MAX_SECONDS} seconds, not {timeout}")
    return max(1, round(timeout * 1000))


class CommandHandle:
    """A command that runs in the background of its sandbox. It ends with the sandbox."""

    def __init__(self, owner: AsyncSandbox, command: Command, argv: tuple[str, ...]) -> None:
        """Made by `commands.run(..., background=True)`."""
        self._owner = owner
        self._command = command
        self._oom_before = owner.live.oom_kills()
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

    async def wait(self) -> CommandResult:
        """Wait for the end; raises `SandboxDied` when the sandbox ended first."""
        return result_of(self._owner, await self._command.wait(), self._oom_before)

    async def kill(self, signal: int = signals.SIGKILL) -> None:
        """Send a signal to the command and all that it started."""
        self._command.signal(signal)

    async def send_stdin(self, data: str | bytes) -> None:
        """Write to its standard input."""
        await self._command.write_stdin(data.encode() if isinstance(data, str) else data)

    async def close_stdin(self) -> None:
        """End its standard input."""
        self._command.close_stdin()

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of its terminal."""
        self._command.resize(rows, cols)


class AsyncCommands:
    """Commands of one sandbox."""

    def __init__(self, owner: AsyncSandbox) -> None:
        """Made by the sandbox."""
        self._owner = owner
        self._running: dict[int, CommandHandle] = {}

    @overload
    async def run(
        self, cmd: str | Sequence[str], *, background: Literal[True], **options: Any
    ) -> CommandHandle: ...
    @overload
    async def run(
        self, cmd: str | Sequence[str], *, background: Literal[False] = False, **options: Any
    ) -> CommandResult: ...

    async def run(  # noqa: PLR0913 - E2B's signature
        self,
        cmd: str | Sequence[str],
        *,
        background: bool = False,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - E2B's name; the cell enforces it
        stdin: str | bytes | bool | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_stdout_bytes: OnBytes | None = None,
        on_stderr_bytes: OnBytes | None = None,
        user: Literal["agent", "root"] | None = None,
        pty: tuple[int, int] | None = None,
    ) -> CommandResult | CommandHandle:
        """Run a command: a text through /bin/sh, a sequence of words as it is.

        `timeout` is in seconds (default: the policy's); at its end the command and all that it started get SIGTERM
        and 0.5 s later SIGKILL. `stdin` is given whole, or True to write to the handle. `pty` is (rows, columns).
        Callbacks run on the event loop and must not block. Raises `CommandNotFound`, `InvalidCwd`, `StartError`,
        `SandboxDied`; a non-zero exit code is a result.
        """
        argv = argv_of(cmd)
        limit_ms = milliseconds(timeout, 0 if background else self._owner.policy.limits.timeout)
        spec = CommandSpec(
            argv=[word.encode(errors="surrogateescape") for word in argv],
            env=self._environment(envs),
            cwd=(cwd or self._owner.plan.cwd).encode(errors="surrogateescape"),
            uid=0 if user == "root" else self._owner.plan.uid,
            gid=0 if user == "root" else self._owner.plan.gid,
            keep_bytes=self._owner.policy.limits.output,
            timeout_ms=limit_ms,
            grace_ms=GRACE_MS,
            stdin=stdin is not None and stdin is not False,
            pty=pty,
            background=background,
            on_stdout=on_stdout_bytes or _decoded(on_stdout),
            on_stderr=on_stderr_bytes or _decoded(on_stderr),
        )
        params = {"argv": list(argv), "cwd": spec.cwd.decode(errors="backslashreplace"), "timeout_ms": limit_ms}
        if envs:
            params["envs"] = dict(envs)
        if background:
            return await self._owner.door.call(
                operations.EXEC, argv[0], params, self._start(spec, argv, stdin)
            )
        return await self._owner.door.call(
            operations.EXEC, argv[0], params, self._run(spec, stdin), _told
        )

    async def list(self) -> list[CommandHandle]:
        """Return the background commands that are still alive."""
        self._running = {pid: handle for pid, handle in self._running.items() if not handle.ended}
        return list(self._running.values())

    async def kill(self, pid: int, signal: int = signals.SIGKILL) -> bool:
        """Send a signal to a background command's tree; False when there is none of that `pid`."""
        handle = self._running.get(pid)
        if handle is None or handle.ended:
            return False
        await handle.kill(signal)
        return True

    def _environment(self, envs: Mapping[str, str] | None) -> dict[bytes, bytes]:
        merged = {**self._owner.plan.env, **(envs or {})}
        for name, value in merged.items():
            if not name or "=" in name or "\0" in name or "\0" in value:
                raise ValueError(f"not a valid environment variable: {name!r}")
        return {
            name.encode(errors="surrogateescape"): value.encode(errors="surrogateescape")
            for name, value in merged.items()
        }

    async def _run(self, spec: CommandSpec, stdin: str | bytes | bool | None) -> CommandResult:
        live = self._owner.live
        live.check()
        oom_before = live.oom_kills()
        command = Command(live.channel, spec)
        command.send_start()
        await _feed(command, stdin)
        return result_of(self._owner, await command.wait(), oom_before)

    async def _start(
        self, spec: CommandSpec, argv: tuple[str, ...], stdin: str | bytes | bool | None
    ) -> CommandHandle:
        live = self._owner.live
        live.check()
        command = await Command.start(live.channel, spec)
        handle = CommandHandle(self._owner, command, argv)
        self._running[command.pid] = handle
        await _feed(command, stdin)
        return handle


async def _feed(command: Command, stdin: str | bytes | bool | None) -> None:
    if isinstance(stdin, str | bytes):
        await command.write_stdin(stdin.encode() if isinstance(stdin, str) else stdin)
        command.close_stdin()


def _decoded(callback: OnText | None) -> OnBytes | None:
    if callback is None:
        return None
    import codecs  # noqa: PLC0415 - only streams with text callbacks need it

    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def on_bytes(data: bytes) -> None:
        if text := decoder.decode(data):
            callback(text)

    return on_bytes


def result_of(owner: AsyncSandbox, outcome: Outcome, oom_before: int) -> CommandResult:
    """Turn what the cell and the kernel said into one result."""
    exited = outcome.exited
    killed_by = _REASONS.get(exited.reason)
    code = exited.code if not exited.signal else 128 + exited.signal
    limits: list[Limit] = []
    if owner.live.oom_kills() > oom_before:
        limits.append("memory")
        # The counter says that the controller killed; 137 alone would not.
        if killed_by is None and code != 0:
            killed_by = "memory"
    elif killed_by == "memory":
        limits.append("memory")
    if code != 0:
        limits += owner.limits_met()
    return CommandResult(
        exit_code=code,
        stdout_bytes=outcome.stdout,
        stderr_bytes=outcome.stderr,
        duration_ms=exited.duration_us // 1000,
        truncated=outcome.truncated,
        killed_by=killed_by,
        signal=exited.signal or exited.last_signal or None,
        limits_hit=tuple(limits),
        leftovers=exited.leftovers,
        cpu_ms=(exited.user_us + exited.system_us) // 1000,
        max_rss_kib=exited.max_rss_kib,
    )


def _told(result: CommandResult) -> tuple[str, dict[str, Any]]:
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
