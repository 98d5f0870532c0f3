"""Where records wait that the store could not take: one file per writer, a JSON line each.

A record is on the disk when ``append`` returns. Files of writers that died are found by their
lock, which nobody holds, and adopted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator, Sequence

from stockade.audit.paths import make_private_dir
from stockade.audit.record import Record
from stockade.errors import AuditError

_PREFIX, _SUFFIX = "spill-", ".ndjson"
_OPEN = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
#: Read at once: a record is at most two bounded values of 256 KiB, escaped, so a line is below it.
_READ_BYTES = 4 * 1024 * 1024


class Spill:
    """One writer's file in ``directory``, made when it is first needed. For one thread."""

    __slots__ = ("_directory", "_handle", "_path", "count")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(
            directory, f"{_PREFIX}{os.getpid()}-{os.urandom(6).hex()}{_SUFFIX}"
        )
        self._handle = -1
        #: How many records wait in it.
        self.count = 0

    def append(self, records: Sequence[Record]) -> None:
        """Write records to the disk, all or none; raises ``AuditError``."""
        data = "".join(f"{record.to_json()}\n" for record in records).encode("ascii")
        try:
            handle = self._open()
            length = os.fstat(handle).st_size
            try:
                _write_all(handle, data)
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, length)
                raise
        except OSError as error:
            raise AuditError("spill", f"{self._path!r}: {error.strerror}") from error
        self.count += len(records)

    def read(self) -> Iterator[Record]:
        """Yield the waiting records in order."""
        if self._handle >= 0:
            yield from _read_records(self._handle)

    def clear(self) -> None:
        """Forget all records, which the store has now."""
        if self._handle >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self.leave()
        self.count = 0

    def leave(self) -> None:
        """Give the file up without removing it; a later writer adopts it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def adopt(self) -> Iterator[Spill]:
        """Yield the files that dead writers left, each held by its lock; the caller clears them."""
        try:
            names = sorted(os.listdir(self._directory))
        except FileNotFoundError:
            return
        for name in names:
            path = os.path.join(self._directory, name)
            theirs = name.startswith(_PREFIX) and name.endswith(_SUFFIX) and path != self._path
            if theirs and (orphan := _take(self._directory, path)) is not None:
                yield orphan

    def _open(self) -> int:
        if self._handle < 0:
            make_private_dir(self._directory)
            handle = os.open(self._path, _OPEN | os.O_CREAT, 0o600)
            # The name is new, so nobody else has it open, but a purge or an adopter may be quick.
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._handle = handle
            _sync_directory(self._directory)
        return self._handle


def _take(directory: str, path: str) -> Spill | None:
    """Return the file of a dead writer, or None where its writer lives."""
    try:
        handle = os.open(path, _OPEN)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    orphan = Spill(directory)
    orphan._path, orphan._handle = path, handle  # noqa: SLF001 - the same class
    orphan.count = sum(1 for _ in _read_records(handle))
    return orphan


def _read_records(handle: int) -> Iterator[Record]:
    """Yield the records of whole lines; a torn last line was never acknowledged and is left out."""
    at, rest = 0, b""
    while chunk := os.pread(handle, _READ_BYTES, at):
        at += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            try:
                yield Record.from_dict(json.loads(line))
            except (ValueError, TypeError):
                continue


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.write(handle, view)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view = view[written:]


def _sync_directory(directory: str) -> None:
    """Make a new file's name durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
