"""`AsyncSandbox.files`: read, write, list, watch. The cell resolves every path inside the sandbox."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from stockade.audit import Result, operations
from stockade.errors import FileNotFound, FileTooLarge, SandboxFileError
from stockade.redact import Redactor
from stockade.runtime import file_work
from stockade.runtime.channel import Channel
from stockade.sandbox._door import Tell
from stockade.sandbox.arguments import check_mode, content_of, encoded_path
from stockade.sandbox.results import EntryInfo
from stockade.wire import frames

if TYPE_CHECKING:
    from stockade.sandbox.async_sandbox import AsyncSandbox

T = TypeVar("T")

#: What `read` returns at once; larger files are streamed.
MAX_READ_BYTES = 64 << 20
_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755
#: What leaves a sandbox is searched for keys and for paths of the host.
_EXPORT_RULES = ("secrets", "host-paths")


class AsyncFiles:
    """Files of one sandbox."""

    def __init__(self, owner: AsyncSandbox) -> None:
        """Made by the sandbox."""
        self._owner = owner

    @overload
    async def read(self, path: str, format: Literal["text"] = "text") -> str: ...
    @overload
    async def read(self, path: str, format: Literal["bytes"]) -> bytes: ...

    async def read(self, path: str, format: Literal["text", "bytes"] = "text") -> str | bytes:  # noqa: A002 - E2B's name
        """Return a regular file's content, at most 64 MiB; text is UTF-8 with other bytes escaped."""
        data = await self._call(operations.FILE_READ, path, self._read_all(path), {}, _size_of)
        return data if format == "bytes" else data.decode(errors="backslashreplace")

    async def stream(self, path: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield a regular file's bytes as they arrive, of any size."""
        self._owner.live.check()
        self._owner.door.record(operations.FILE_READ, path, {"offset": offset}, "success", 0)
        async for chunk in file_work.read(self._channel, encoded_path(path), offset=offset):
            yield chunk

    async def write(
        self, path: str, data: str | bytes, *, mode: int = _FILE_MODE, exclusive: bool = False
    ) -> EntryInfo:
        """Write a file, replacing its content and making missing directories."""
        flags = frames.WRITE_CREATE | frames.WRITE_TRUNCATE | frames.WRITE_PARENTS
        flags |= frames.WRITE_EXCLUSIVE if exclusive else 0
        return await self._write(path, data, flags, check_mode(mode))

    async def append(self, path: str, data: str | bytes) -> EntryInfo:
        """Add to the end of a file, making it where it is missing."""
        flags = frames.WRITE_CREATE | frames.WRITE_APPEND | frames.WRITE_PARENTS
        return await self._write(path, data, flags, _FILE_MODE)

    async def list(self, path: str) -> list[EntryInfo]:
        """List a directory, sorted by name."""
        work = file_work.listing(self._channel, encoded_path(path))
        entries = await self._call(operations.FILE_LIST, path, work)
        return sorted((EntryInfo.of(entry, path) for entry in entries), key=lambda info: info.name)

    async def get_info(self, path: str, *, follow: bool = False) -> EntryInfo:
        """Describe a file; a symbolic link itself unless `follow`."""
        work = file_work.stat(self._channel, encoded_path(path), follow=follow)
        entry = await self._call(operations.FILE_STAT, path, work)
        return EntryInfo.of(entry, os.path.dirname(path.rstrip("/")) or "/")

    async def exists(self, path: str) -> bool:
        """Say whether a file is there."""
        try:
            await self.get_info(path)
        except FileNotFound:
            return False
        return True

    async def make_dir(self, path: str) -> bool:
        """Make a directory and those above it; False when it was there."""
        if await self.exists(path):
            return False
        request = frames.FileMkdir(encoded_path(path), _DIRECTORY_MODE, True)  # noqa: FBT003 - a wire struct
        await self._simple(operations.FILE_MAKE_DIR, path, request)
        return True

    async def rename(self, source: str, target: str, *, replace: bool = False) -> None:
        """Move a file or directory; an existing target is an error unless `replace`.

        Between two storages (such as /workspace and /output) a regular file is copied, then removed.
        """
        request = frames.FileMove(encoded_path(source), encoded_path(target), replace)
        await self._call(
            operations.FILE_MOVE, source, self._move(request, source, target), {"to": target}
        )

    async def _move(self, request: frames.FileMove, source: str, target: str) -> None:
        try:
            await file_work.simple(self._channel, request.source, request)
        except SandboxFileError as error:
            if error.errno != errno.EXDEV:
                raise
            await self._move_by_copy(request, source, target)

    async def _move_by_copy(self, request: frames.FileMove, source: str, target: str) -> None:
        info = EntryInfo.of(await file_work.stat(self._channel, request.source, follow=False), "/")
        if info.type != "file":
            raise SandboxFileError(
                source, errno.EXDEV, f"only files move to another storage: {target}"
            )
        content = await self._read_all(source)
        flags = frames.WRITE_CREATE | frames.WRITE_TRUNCATE
        flags |= 0 if request.replace else frames.WRITE_EXCLUSIVE
        await file_work.write(
            self._channel, request.target, content, flags=flags, mode=info.mode & 0o777
        )
        await file_work.simple(
            self._channel, request.source, frames.FileRemove(request.source, recursive=False)
        )

    async def remove(self, path: str, *, recursive: bool = True) -> None:
        """Remove a file, a link or a tree."""
        request = frames.FileRemove(encoded_path(path), recursive)
        await self._simple(operations.FILE_REMOVE, path, request)

    async def watch_dir(
        self, path: str, ready: asyncio.Event | None = None
    ) -> AsyncIterator[frames.Event]:
        """Yield changes of a directory until the caller stops; `ready` is set once the watch stands."""
        self._owner.live.check()
        self._owner.door.record(operations.FILE_WATCH, path, {}, "success", 0)
        async for event in file_work.watch(
            self._channel, encoded_path(path), ready or asyncio.Event()
        ):
            yield event

    async def export(self, path: str, target: str | os.PathLike[str]) -> int:
        """Copy a file out to the host, with keys and host paths redacted; return the number of redactions.

        The target must not exist. The record says how many of which kind were found.
        """
        data = await self._read_all(path)
        redacted = Redactor(rule_sets=_EXPORT_RULES).text(data.decode(errors="surrogateescape"))
        kinds = sorted({hit.rule_id for hit in redacted.hits})
        content = redacted.text.encode(errors="surrogateescape")
        work = asyncio.to_thread(_write_new, Path(target), content)
        params = {"to": str(target), "redactions": len(redacted.hits), "rules": kinds}
        await self._call(operations.FILE_EXPORT, path, work, params)
        return len(redacted.hits)

    @property
    def _channel(self) -> Channel:
        self._owner.live.check()
        return self._owner.live.channel

    async def _read_all(self, path: str) -> bytes:
        data = bytearray()
        async for chunk in file_work.read(
            self._channel, encoded_path(path), length=MAX_READ_BYTES + 1
        ):
            data += chunk
        if len(data) > MAX_READ_BYTES:
            raise FileTooLarge(path=path, detail=f"over {MAX_READ_BYTES} bytes; use stream()")
        return bytes(data)

    async def _write(self, path: str, data: str | bytes, flags: int, mode: int) -> EntryInfo:
        content = content_of(data)
        work = file_work.write(self._channel, encoded_path(path), content, flags=flags, mode=mode)
        await self._call(operations.FILE_WRITE, path, work, {"bytes": len(content)})
        entry = await file_work.stat(self._channel, encoded_path(path), follow=True)
        return EntryInfo.of(entry, os.path.dirname(path))

    async def _simple(
        self,
        operation: str,
        path: str,
        request: frames.ToCell,
        params: dict[str, Any] | None = None,
    ) -> None:
        work = file_work.simple(self._channel, encoded_path(path), request)
        await self._call(operation, path, work, params)

    async def _call(
        self,
        operation: str,
        path: str,
        work: Awaitable[T],
        params: dict[str, Any] | None = None,
        tell: Tell[T] | None = None,
    ) -> T:
        return await self._owner.door.call(operation, path, params or {}, work, tell)


def _size_of(data: bytes) -> tuple[Result, dict[str, Any]]:
    return "success", {"bytes": len(data)}


def _write_new(target: Path, content: bytes) -> None:
    descriptor = os.open(
        target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
    )
    with open(descriptor, "wb") as file:
        file.write(content)
