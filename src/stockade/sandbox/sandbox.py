"""`Sandbox`: the same surface for callers without an event loop. Each method runs its twin on a shared loop thread."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from stockade.runtime.attempts import Refusal
from stockade.runtime.loop_thread import LoopThread
from stockade.sandbox.async_sandbox import AsyncSandbox, Level, PolicyLike, Protections
from stockade.sandbox.commands import CommandHandle as AsyncCommandHandle
from stockade.sandbox.commands import RunOptions
from stockade.sandbox.results import CommandResult, EntryInfo

T = TypeVar("T")


class CommandHandle:
    """A command that runs in the background of its sandbox."""

    def __init__(self, handle: AsyncCommandHandle) -> None:
        """Made by `commands.run(..., background=True)`."""
        self._handle = handle

    @property
    def pid(self) -> int:
        """The process id inside the sandbox."""
        return self._handle.pid

    @property
    def ended(self) -> bool:
        """True once the command and all that it started are gone."""
        return self._handle.ended

    def wait(self) -> CommandResult:
        """Wait for the end."""
        return _run(self._handle.wait())

    def kill(self, signal: int = 9) -> None:
        """Send a signal to the command and all that it started."""
        _run(self._handle.kill(signal))

    def send_stdin(self, data: str | bytes) -> None:
        """Write to its standard input."""
        _run(self._handle.send_stdin(data))

    def close_stdin(self) -> None:
        """End its standard input."""
        _run(self._handle.close_stdin())

    @property
    def argv(self) -> tuple[str, ...]:
        """The words that were run."""
        return self._handle.argv

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of its terminal."""
        LoopThread.shared().call(self._handle.resize, rows, cols)


class Commands:
    """Commands of one sandbox; see `AsyncCommands`."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        """Made by the sandbox."""
        self._commands = sandbox.commands

    @overload
    def run(
        self, cmd: str | Sequence[str], *, background: Literal[True], **options: Unpack[RunOptions]
    ) -> CommandHandle: ...
    @overload
    def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> CommandResult: ...

    def run(
        self, cmd: str | Sequence[str], *, background: bool = False, **options: Unpack[RunOptions]
    ) -> CommandResult | CommandHandle:
        """Run a command; the options are those of `AsyncCommands.run`."""
        if background:
            return CommandHandle(_run(self._commands.run(cmd, background=True, **options)))
        return _run(self._commands.run(cmd, background=False, **options))

    def list(self) -> list[CommandHandle]:
        """Return the background commands that are still alive."""
        return [CommandHandle(handle) for handle in _run(self._commands.list())]

    def kill(self, pid: int, signal: int = 9) -> bool:
        """Send a signal to a background command's tree; False when there is none of that `pid`."""
        return _run(self._commands.kill(pid, signal))


class Files:
    """Files of one sandbox; see `AsyncFiles`."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        """Made by the sandbox."""
        self._files = sandbox.files

    @overload
    def read(self, path: str, format: Literal["text"] = "text") -> str: ...
    @overload
    def read(self, path: str, format: Literal["bytes"]) -> bytes: ...

    def read(self, path: str, format: Literal["text", "bytes"] = "text") -> str | bytes:  # noqa: A002 - E2B's name
        """Return a regular file's content, at most 64 MiB."""
        if format == "bytes":
            return _run(self._files.read(path, "bytes"))
        return _run(self._files.read(path))

    def stream(self, path: str, *, offset: int = 0) -> Iterator[bytes]:
        """Yield a regular file's bytes as they arrive, of any size."""
        chunks = self._files.stream(path, offset=offset)

        async def next_chunk() -> bytes | None:
            return await anext(chunks, None)

        async def close() -> None:
            await chunks.aclose()

        try:
            while (chunk := _run(next_chunk())) is not None:
                yield chunk
        finally:
            _run(close())

    def write(
        self, path: str, data: str | bytes, *, mode: int = 0o644, exclusive: bool = False
    ) -> EntryInfo:
        """Write a file, replacing its content and making missing directories."""
        return _run(self._files.write(path, data, mode=mode, exclusive=exclusive))

    def append(self, path: str, data: str | bytes) -> EntryInfo:
        """Add to the end of a file, making it where it is missing."""
        return _run(self._files.append(path, data))

    def list(self, path: str) -> list[EntryInfo]:
        """List a directory, sorted by name."""
        return _run(self._files.list(path))

    def get_info(self, path: str, *, follow: bool = False) -> EntryInfo:
        """Describe a file; a symbolic link itself unless `follow`."""
        return _run(self._files.get_info(path, follow=follow))

    def exists(self, path: str) -> bool:
        """Say whether a file is there."""
        return _run(self._files.exists(path))

    def make_dir(self, path: str) -> bool:
        """Make a directory and those above it; False when it was there."""
        return _run(self._files.make_dir(path))

    def rename(self, source: str, target: str, *, replace: bool = False) -> None:
        """Move a file or directory; an existing target is an error unless `replace`."""
        _run(self._files.rename(source, target, replace=replace))

    def remove(self, path: str, *, recursive: bool = True) -> None:
        """Remove a file, a link or a tree."""
        _run(self._files.remove(path, recursive=recursive))

    def export(self, path: str, target: str | os.PathLike[str]) -> int:
        """Copy a file out to the host, with keys and host paths redacted; return the number of redactions."""
        return _run(self._files.export(path, target))


class Sandbox:
    """One sandbox. Made by `create`; use it as a context manager, or call `kill` at the end."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        """Use `create`."""
        self._sandbox = sandbox
        self.commands = Commands(sandbox)
        self.files = Files(sandbox)

    @classmethod
    def create(
        cls,
        policy: PolicyLike = None,
        *,
        image: str | None = None,
        level: Level | None = None,
        timeout: float | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        state_dir: str | None = None,
    ) -> Self:
        """Build a sandbox and wait until it is ready; see `AsyncSandbox.create`."""
        made = AsyncSandbox.create(
            policy,
            image=image,
            level=level,
            timeout=timeout,
            session_id=session_id,
            agent_id=agent_id,
            state_dir=state_dir,
        )
        return cls(_run(made))

    @property
    def sandbox_id(self) -> str:
        """The sandbox's id."""
        return self._sandbox.sandbox_id

    @property
    def session_id(self) -> str:
        """The session that it belongs to."""
        return self._sandbox.session_id

    @property
    def protections(self) -> Protections:
        """What was really put up, and each limit's grade on this host."""
        return self._sandbox.protections

    @property
    def timings(self) -> Mapping[str, float]:
        """Each phase of the creation in ms."""
        return self._sandbox.timings

    @property
    def refused(self) -> list[Refusal]:
        """The latest refused system calls, oldest first."""
        return self._sandbox.refused

    def is_running(self) -> bool:
        """Say whether commands can be started."""
        return _run(self._sandbox.is_running())

    def kill(self) -> None:
        """End the sandbox and all in it, and wait until its records are on the disk. Idempotent."""
        _run(self._sandbox.kill())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    return LoopThread.shared().run(coroutine)
