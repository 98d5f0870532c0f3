"""What commands and file operations return."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from stockade.errors import CommandTimeout
from stockade.wire import frames

KilledBy = Literal["timeout", "memory", "cpu", "disk", "signal", "cancelled"]
Limit = Literal["memory", "processes", "disk"]


@dataclass(frozen=True, slots=True)
class CommandResult:
    r"""How a command ended. A non-zero exit code is a result; a dead sandbox is an exception.

    `exit_code` is 128 plus the signal for a command that a signal ended. Text is decoded as UTF-8 with other bytes
    escaped as `\\xNN`; `stdout_bytes` and `stderr_bytes` are what was written.
    """

    exit_code: int
    stdout_bytes: bytes
    stderr_bytes: bytes
    duration_ms: int
    #: output beyond the limit was dropped
    truncated: bool = False
    #: who ended it, where it did not end by itself
    killed_by: KilledBy | None = None
    #: the signal that ended its main process
    signal: int | None = None
    #: limits that were met while it ran
    limits_hit: tuple[Limit, ...] = ()
    #: processes that it left behind, which were killed
    leftovers: int = 0
    #: CPU time in ms, user and system
    cpu_ms: int = 0
    #: largest resident size of its main process in KiB
    max_rss_kib: int = 0

    @property
    def stdout(self) -> str:
        """Standard output as text."""
        return self.stdout_bytes.decode(errors="backslashreplace")

    @property
    def stderr(self) -> str:
        """Standard error as text."""
        return self.stderr_bytes.decode(errors="backslashreplace")

    @property
    def ok(self) -> bool:
        """True for exit code 0."""
        return self.exit_code == 0

    def check_time(self, argv: tuple[str, ...], limit_ms: int) -> CommandResult:
        """Raise `CommandTimeout` if the time limit ended it; else return the result."""
        if self.killed_by == "timeout":
            raise CommandTimeout(
                argv, self.duration_ms, limit_ms, self.stdout, self.stderr, self.signal
            )
        return self


_TYPES: dict[int, Literal["file", "dir", "symlink", "other"]] = {
    frames.TYPE_FILE: "file",
    frames.TYPE_DIRECTORY: "dir",
    frames.TYPE_SYMLINK: "symlink",
}


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """One file of the sandbox. Ids are inside ids, `size` is in bytes."""

    name: str
    path: str
    type: Literal["file", "dir", "symlink", "other"]
    size: int
    mode: int
    uid: int
    gid: int
    modified_time: datetime
    symlink_target: str | None = None

    @classmethod
    def of(cls, entry: frames.Entry, directory: str) -> EntryInfo:
        """Build it from the cell's answer."""
        name = entry.name.decode(errors="surrogateescape")
        kind = _TYPES.get(entry.type, "other")
        target = entry.target.decode(errors="surrogateescape") if kind == "symlink" else None
        return cls(
            name=name,
            path=f"{directory.rstrip('/')}/{name}",
            type=kind,
            size=entry.size,
            mode=entry.mode & 0o7777,
            uid=entry.uid,
            gid=entry.gid,
            # A hostile mtime is 64 bits wide and datetime ends with the year 9999.
            modified_time=datetime.fromtimestamp(
                min(entry.mtime_ns // 10**9, 253_402_300_799), UTC
            ),
            symlink_target=target,
        )
