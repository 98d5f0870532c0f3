"""Frames between host and cell, and every message that they carry.

A frame is `u32 length | u8 kind | u32 id | body`; `length` counts what follows it. Ids are chosen by the
host, one per command or file operation, and never reused while that is live; id 0 is the channel itself.
`docs/protocol.md` tells the dialogues. Nothing here does I/O.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Annotated, ClassVar, TypeAlias

from stockade.errors import ProtocolError
from stockade.wire.codec import (
    I32,
    U8,
    U16,
    U32,
    U64,
    Bool,
    Bytes,
    BytesList,
    ErrnoU32,
    ListOf,
    Str,
    Strs,
    StructOf,
    decode_struct,
    encode_struct,
)

PROTOCOL_VERSION = 1

HEADER = struct.Struct("<IBI")
_AFTER_LENGTH = HEADER.size - 4

#: Largest payload of one DATA, OUTPUT or STDIN frame: one pipe buffer (16 pages of 4 KiB).
CHUNK_BYTES = 64 * 1024
#: Largest frame that the host takes from a cell: a chunk, or a page of directory entries
#: (256 names of 255 bytes with 60 bytes of metadata are 79 KiB); 256 KiB leaves room for both.
MAX_FROM_CELL = 256 * 1024
#: Largest frame that a cell takes: the plan with two seccomp programs (8 KiB each) and its files,
#: or a command line at the kernel's own limit for one string (128 KiB) times eight.
MAX_TO_CELL = 1024 * 1024

# Message kinds are numbers in one table on both sides; a kind that is not in it is a ProtocolError.


@dataclasses.dataclass(frozen=True, slots=True)
class Rlimit:
    """One resource limit for setrlimit(2)."""

    resource: U32
    soft: U64
    hard: U64


Rlimits: TypeAlias = Annotated[tuple[Rlimit, ...], ListOf(StructOf(Rlimit))]


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Start a command. `uid` and `gid` are inside ids; time-outs of 0 mean none."""

    kind: ClassVar[int] = 16
    argv: BytesList
    env: BytesList
    cwd: Bytes
    flags: U32
    rows: U16
    cols: U16
    uid: U32
    gid: U32
    rlimits: Rlimits
    timeout_ms: U64
    grace_ms: U32
    credit: U32
    output_limit: U64


#: `Start.flags`: give the command a pseudo-terminal as its controlling terminal.
START_PTY = 1
#: `Start.flags`: standard input is a pipe that STDIN frames fill; without it, /dev/null.
START_STDIN = 2
#: `Start.flags`: the command outlives the start of the next one; what it leaves behind still dies with it.
START_BACKGROUND = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Stdin:
    """Bytes for a command's standard input, within the credit that the cell gave."""

    kind: ClassVar[int] = 17
    data: Bytes


@dataclasses.dataclass(frozen=True, slots=True)
class StdinEnd:
    """Close a command's standard input."""

    kind: ClassVar[int] = 18


@dataclasses.dataclass(frozen=True, slots=True)
class Credit:
    """Allow `count` more bytes on a stream (1 stdout, 2 stderr, 3 file data) of this id."""

    kind: ClassVar[int] = 19
    stream: U8
    count: U32


STREAM_STDIN = 0
STREAM_STDOUT = 1
STREAM_STDERR = 2
STREAM_FILE = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to a command's main process, or to all that descends from it."""

    kind: ClassVar[int] = 20
    number: U8
    tree: Bool


@dataclasses.dataclass(frozen=True, slots=True)
class Resize:
    """Set the size of a command's pseudo-terminal."""

    kind: ClassVar[int] = 21
    rows: U16
    cols: U16


@dataclasses.dataclass(frozen=True, slots=True)
class FileStat:
    """Describe a file; `follow` resolves a symbolic link in the last component."""

    kind: ClassVar[int] = 32
    path: Bytes
    follow: Bool


@dataclasses.dataclass(frozen=True, slots=True)
class FileList:
    """List a directory: ENTRIES frames, then END."""

    kind: ClassVar[int] = 33
    path: Bytes


@dataclasses.dataclass(frozen=True, slots=True)
class FileRead:
    """Read a regular file: DATA frames within `credit`, then END."""

    kind: ClassVar[int] = 34
    path: Bytes
    offset: U64
    length: U64
    credit: U32


@dataclasses.dataclass(frozen=True, slots=True)
class FileWrite:
    """Write a regular file: the cell grants CREDIT, DATA frames follow, END commits and is answered OK."""

    kind: ClassVar[int] = 35
    path: Bytes
    flags: U32
    mode: U32


WRITE_CREATE = 1
WRITE_TRUNCATE = 2
WRITE_APPEND = 4
WRITE_EXCLUSIVE = 8
#: `FileWrite.flags` and `FileMkdir.parents`: make missing parent directories.
WRITE_PARENTS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class FileMkdir:
    """Make a directory, and with `parents` those above it (an existing one is then no error)."""

    kind: ClassVar[int] = 36
    path: Bytes
    mode: U32
    parents: Bool


@dataclasses.dataclass(frozen=True, slots=True)
class FileMove:
    """Rename, replacing the target only with `replace`."""

    kind: ClassVar[int] = 37
    source: Bytes
    target: Bytes
    replace: Bool


@dataclasses.dataclass(frozen=True, slots=True)
class FileRemove:
    """Remove a file, a link or (with `recursive`) a tree."""

    kind: ClassVar[int] = 38
    path: Bytes
    recursive: Bool


@dataclasses.dataclass(frozen=True, slots=True)
class FileWatch:
    """Watch a directory with inotify(7): OK, then EVENT frames until CANCEL."""

    kind: ClassVar[int] = 39
    path: Bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """Ask for STATS_RESULT."""

    kind: ClassVar[int] = 48


@dataclasses.dataclass(frozen=True, slots=True)
class Ping:
    """Ask for PONG with the same number."""

    kind: ClassVar[int] = 49
    number: U64


@dataclasses.dataclass(frozen=True, slots=True)
class Cancel:
    """Give up the operation of this id: a command's tree is killed, a transfer or watch ends."""

    kind: ClassVar[int] = 50


@dataclasses.dataclass(frozen=True, slots=True)
class Spawned:
    """From the launcher: the cell's process id as the host sees it, with its pidfd attached."""

    kind: ClassVar[int] = 128
    pid: U32


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """A step of the plan failed; nothing of the agent's ran and the launcher cleaned up."""

    kind: ClassVar[int] = 129
    step: Str
    errno: ErrnoU32
    detail: Str


@dataclasses.dataclass(frozen=True, slots=True)
class StepTime:
    """How long a named phase of the launch took."""

    name: Str
    microseconds: U32


@dataclasses.dataclass(frozen=True, slots=True)
class Ready:
    """The wall stands. Attached descriptors are named in order by `fds`."""

    kind: ClassVar[int] = 130
    version: U16
    protections: Strs
    timings: Annotated[tuple[StepTime, ...], ListOf(StructOf(StepTime))]
    fds: Strs


@dataclasses.dataclass(frozen=True, slots=True)
class Started:
    """The command was executed; `pid` is its id inside."""

    kind: ClassVar[int] = 144
    pid: U32


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """Bytes of a command's standard output (1) or error (2)."""

    kind: ClassVar[int] = 145
    stream: U8
    data: Bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Exited:
    """A command ended, its output is complete, and nothing that it started is alive."""

    kind: ClassVar[int] = 146
    code: I32
    signal: U8
    reason: U8
    last_signal: U8
    duration_us: U64
    user_us: U64
    system_us: U64
    max_rss_kib: U64
    stdout_dropped: U64
    stderr_dropped: U64
    leftovers: U32


#: `Exited.reason`
REASON_EXIT = 0
REASON_TIMEOUT = 1
REASON_MEMORY = 2
REASON_CPU = 3
REASON_DISK = 4
REASON_SIGNALLED = 5
REASON_CANCELLED = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Ok:
    """The operation succeeded and has no result."""

    kind: ClassVar[int] = 160


@dataclasses.dataclass(frozen=True, slots=True)
class Error:
    """The operation failed; `code` is one of the table below."""

    kind: ClassVar[int] = 161
    code: U16
    errno: ErrnoU32
    detail: Str


#: `Error.code`
ERROR_FILE = 1  # a file operation's system call failed
ERROR_OUTSIDE = 2  # the path leaves the allowed directories, or meets a forbidden file system
ERROR_NOT_REGULAR = 3  # the operation wants a regular file
ERROR_HARD_LINK = 4  # the file has another name, which may lie outside what is allowed
ERROR_START = 5  # `detail` names the step at which a command's start failed
ERROR_EXEC = 6  # execve(2) failed: no such program, or not executable
ERROR_CWD = 7  # the working directory is missing or not allowed
ERROR_REFUSED = 8  # the request is not allowed (unknown user id, read-only directory, ...)
ERROR_LIMIT = 9  # a limit of the cell was reached (commands, watches, transfers)
ERROR_GONE = 10  # no operation with this id


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One file's metadata; `name` is its last component, `target` a symbolic link's text."""

    name: Bytes
    type: U8
    mode: U32
    uid: U32
    gid: U32
    size: U64
    mtime_ns: U64
    nlink: U32
    target: Bytes


#: `Entry.type`
TYPE_OTHER = 0
TYPE_FILE = 1
TYPE_DIRECTORY = 2
TYPE_SYMLINK = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Entries:
    """Some entries of a listing, at most 256 a frame."""

    kind: ClassVar[int] = 162
    entries: Annotated[tuple[Entry, ...], ListOf(StructOf(Entry))]


@dataclasses.dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a file, in either direction."""

    kind: ClassVar[int] = 163
    data: Bytes


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """The last frame of a transfer, in either direction."""

    kind: ClassVar[int] = 164


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """A change in a watched directory; `overflow` says that some were lost."""

    kind: ClassVar[int] = 165
    change: U8
    name: Bytes
    overflow: Bool


#: `Event.change`
CHANGE_CREATED = 1
CHANGE_MODIFIED = 2
CHANGE_REMOVED = 3
CHANGE_RENAMED = 4
CHANGE_ATTRIBUTES = 5


@dataclasses.dataclass(frozen=True, slots=True)
class StatsResult:
    """What the cell counts itself."""

    kind: ClassVar[int] = 176
    processes: U32
    commands: U32
    rss_kib: U64
    user_us: U64
    system_us: U64
    open_fds: U32


@dataclasses.dataclass(frozen=True, slots=True)
class Pong:
    """The answer to PING."""

    kind: ClassVar[int] = 177
    number: U64


ToCell: TypeAlias = (
    Start
    | Stdin
    | StdinEnd
    | Credit
    | Signal
    | Resize
    | FileStat
    | FileList
    | FileRead
    | FileWrite
    | FileMkdir
    | FileMove
    | FileRemove
    | FileWatch
    | Stats
    | Ping
    | Cancel
    | Data
    | End
)
FromCell: TypeAlias = (
    Spawned
    | Failed
    | Ready
    | Started
    | Output
    | Exited
    | Credit
    | Ok
    | Error
    | Entries
    | Data
    | End
    | Event
    | StatsResult
    | Pong
)

TO_CELL: dict[int, type] = {message.kind: message for message in ToCell.__args__}
FROM_CELL: dict[int, type] = {message.kind: message for message in FromCell.__args__}


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """A message with the id that it belongs to."""

    id: int
    message: FromCell | ToCell


def encode(request_id: int, message: ToCell | FromCell) -> bytes:
    """Return the whole frame of a message."""
    body = encode_struct(message)
    return HEADER.pack(_AFTER_LENGTH + len(body), message.kind, request_id) + body


class Decoder:
    """Cuts a byte stream into frames; `kinds` is the table of what this side accepts.

    A length over `limit_bytes` is an error before anything of that size is allocated.
    """

    __slots__ = ("_buffer", "_kinds", "_limit")

    def __init__(self, kinds: dict[int, type], limit_bytes: int) -> None:
        """Start with an empty buffer."""
        self._buffer = bytearray()
        self._kinds = kinds
        self._limit = limit_bytes

    def feed(self, data: bytes) -> list[Frame]:
        """Take received bytes and return the frames that are complete; raises `ProtocolError`."""
        self._buffer += data
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        if len(self._buffer) < HEADER.size:
            return None
        length, kind, request_id = HEADER.unpack_from(self._buffer)
        if not _AFTER_LENGTH <= length <= self._limit:
            raise ProtocolError(detail=f"frame of {length} bytes")
        end = 4 + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[HEADER.size : end])
        del self._buffer[:end]
        message_type = self._kinds.get(kind)
        if message_type is None:
            raise ProtocolError(detail=f"unknown message kind {kind}")
        return Frame(request_id, decode_struct(message_type, body))
