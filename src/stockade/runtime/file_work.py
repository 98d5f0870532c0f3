"""File operations inside a sandbox: the dialogues of stat, list, read, write, mkdir, move, remove and watch.

Every path is resolved by the cell, inside the sandbox's own mounts; the host never resolves one that the agent can
change.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Self

from stockade.errors import FileTooLarge, ProtocolError, StockadeError
from stockade.runtime.channel import Channel
from stockade.runtime.command import WINDOW_BYTES
from stockade.runtime.failure import file_failure
from stockade.wire import frames

#: Entries of one listing that the host keeps: 100,000 of about 400 bytes are 40 MB.
MAX_ENTRIES = 100_000
#: What may wait for its reader: twice the credit that a transfer has, and the objects that one read of the channel
#: makes of a listing (128 KiB hold at most 2,800 entries).
MAX_WAITING_BYTES = 2 * WINDOW_BYTES + 2_800 * 256
#: Changes of one watch that wait for their reader; past it new ones are dropped, and an overflow is told.
MAX_EVENTS = 1_024


class _Operation:
    """One dialogue: messages queue up until the waiter takes them."""

    def __init__(self, channel: Channel, path: bytes) -> None:
        self._channel = channel
        self.path = path
        self.id = channel.open(self)
        self._queue: asyncio.Queue[frames.FromCell | StockadeError] = asyncio.Queue()
        self._finished = False
        self._waiting_bytes = 0
        self._dropped_events = False

    def on_message(self, message: frames.FromCell) -> None:
        if isinstance(message, frames.Event) and self._queue.qsize() >= MAX_EVENTS:
            self._dropped_events = True
            return
        # A cell that ignores credit would fill our memory through a slow reader.
        self._waiting_bytes += _weight(message)
        if self._waiting_bytes > MAX_WAITING_BYTES:
            raise ProtocolError(detail="more answers than were asked for")
        self._queue.put_nowait(message)

    def on_lost(self, error: StockadeError) -> None:
        self._queue.put_nowait(error)

    def send(self, message: frames.ToCell) -> None:
        self._channel.send(self.id, message)

    async def drain(self) -> None:
        await self._channel.drain()

    async def next(self) -> frames.FromCell:
        message = await self._queue.get()
        if isinstance(message, StockadeError):
            raise message
        self._waiting_bytes -= _weight(message)
        if isinstance(message, frames.Event) and self._dropped_events:
            self._dropped_events = False
            message = replace(message, overflow=True)
        if isinstance(message, frames.Error):
            self._finished = True
            raise file_failure(message, self.path)
        if isinstance(message, frames.Ok | frames.End):
            self._finished = True
        return message

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if not self._finished:
            self.send(frames.Cancel())
        self._channel.close_id(self.id)


#: What a message weighs beside its data: the objects that hold it.
_MESSAGE_BYTES = 128
_ENTRY_BYTES = 256


def _weight(message: frames.FromCell) -> int:
    match message:
        case frames.Data(data=data):
            return _MESSAGE_BYTES + len(data)
        case frames.Event(name=name):
            return _MESSAGE_BYTES + len(name)
        case frames.Entries(entries=entries):
            names = sum(len(entry.name) + len(entry.target) for entry in entries)
            return _MESSAGE_BYTES + names + _ENTRY_BYTES * len(entries)
        case _:
            return _MESSAGE_BYTES


def _unexpected(message: frames.FromCell) -> ProtocolError:
    return ProtocolError(detail=f"{type(message).__name__} in a file's dialogue")


def _is_name(name: bytes) -> bool:
    """Say whether a directory can hold it: a caller that joins it to a path of the host stays below that."""
    return name not in (b"", b".", b"..") and b"/" not in name and b"\0" not in name


async def simple(channel: Channel, path: bytes, request: frames.ToCell) -> None:
    """Do an operation that is answered OK: mkdir, move, remove."""
    async with _Operation(channel, path) as operation:
        operation.send(request)
        message = await operation.next()
        if not isinstance(message, frames.Ok):
            raise _unexpected(message)


async def stat(channel: Channel, path: bytes, *, follow: bool) -> frames.Entry:
    """Describe one file."""
    async with _Operation(channel, path) as operation:
        operation.send(frames.FileStat(path, follow))
        message = await operation.next()
        if not isinstance(message, frames.Entries) or len(message.entries) != 1:
            raise _unexpected(message)
        operation._finished = True  # noqa: SLF001 - our own class: a stat's answer has no end frame
        return message.entries[0]


async def listing(channel: Channel, path: bytes) -> list[frames.Entry]:
    """List a directory; raises `FileTooLarge` past `MAX_ENTRIES`."""
    entries: list[frames.Entry] = []
    async with _Operation(channel, path) as operation:
        operation.send(frames.FileList(path))
        while True:
            message = await operation.next()
            if isinstance(message, frames.End):
                return entries
            if not isinstance(message, frames.Entries):
                raise _unexpected(message)
            if any(not _is_name(entry.name) for entry in message.entries):
                raise ProtocolError(detail="a directory's entry with a path for a name")
            entries += message.entries
            if len(entries) > MAX_ENTRIES:
                raise FileTooLarge(
                    path=path.decode(errors="backslashreplace"), detail="too many entries"
                )


async def read(
    channel: Channel, path: bytes, *, offset: int = 0, length: int = 2**63 - 1
) -> AsyncIterator[bytes]:
    """Yield a regular file's bytes as they arrive."""
    async with _Operation(channel, path) as operation:
        operation.send(frames.FileRead(path, offset, length, WINDOW_BYTES))
        while True:
            message = await operation.next()
            if isinstance(message, frames.End):
                return
            if not isinstance(message, frames.Data):
                raise _unexpected(message)
            length -= len(message.data)
            if length < 0:
                raise ProtocolError(detail="more data than was asked for")
            yield message.data
            operation.send(frames.Credit(frames.STREAM_FILE, len(message.data)))
            # A cell that sends without reading would fill our side with what it does not take.
            await operation.drain()


async def write(channel: Channel, path: bytes, data: bytes, *, flags: int, mode: int) -> None:
    """Write `data` to a regular file within the credit that the cell gives."""
    async with _Operation(channel, path) as operation:
        operation.send(frames.FileWrite(path, flags, mode))
        view, credit = memoryview(data), 0
        while True:
            if view and credit:
                count = min(len(view), credit, frames.CHUNK_BYTES)
                operation.send(frames.Data(bytes(view[:count])))
                view, credit = view[count:], credit - count
                await operation.drain()
                continue
            if not view:
                operation.send(frames.End())
                await _committed(operation)
                return
            message = await operation.next()
            if not isinstance(message, frames.Credit):
                raise _unexpected(message)
            credit += message.count


async def _committed(operation: _Operation) -> None:
    while True:
        message = await operation.next()
        if isinstance(message, frames.Ok):
            return
        if not isinstance(message, frames.Credit):
            raise _unexpected(message)


async def watch(channel: Channel, path: bytes, ready: asyncio.Event) -> AsyncIterator[frames.Event]:
    """Yield changes of a directory until the caller stops; `ready` is set once the watch stands."""
    async with _Operation(channel, path) as operation:
        operation.send(frames.FileWatch(path))
        message = await operation.next()
        if not isinstance(message, frames.Ok):
            raise _unexpected(message)
        operation._finished = False  # noqa: SLF001 - OK begins a watch, it does not end it
        ready.set()
        while True:
            message = await operation.next()
            if isinstance(message, frames.End):
                return
            if not isinstance(message, frames.Event):
                raise _unexpected(message)
            yield message
