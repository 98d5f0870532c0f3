"""A command's streams on our descriptors: bytes as they are, in order, and no more of them held than a bound.

Descriptors are never made non-blocking: that flag belongs to the open file, which the shell and others share.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
from collections.abc import AsyncIterator, Callable

from stockade.cli.signals import SignalStream

#: Output that waits for its reader; beyond it the command waits. Below it the other stream is not held up.
HOLD_BYTES = 4 * 1024 * 1024
#: A pipe that is writable has room for a page (pipe(7)); larger writes could block the loop.
_PIECE_BYTES = 4096
_CHUNK_BYTES = 64 * 1024
#: What a terminal or its other end may say when it is gone.
_GONE = (errno.EPIPE, errno.EIO, errno.ECONNRESET)


class OutputStream:
    """One output descriptor. `write` takes all it is given, and waits where HOLD_BYTES are not enough."""

    def __init__(
        self,
        descriptor: int,
        signals: SignalStream,
        on_signals: Callable[[], None],
        on_gone: Callable[[], None],
    ) -> None:
        """`on_signals` is called when signals came during a wait, `on_gone` when nobody reads any more."""
        self._fd = descriptor
        self._signals = signals
        self._on_signals = on_signals
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._waiting = bytearray()
        self._empty = asyncio.Event()
        self._empty.set()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._never_waits = not is_pollable(self._loop, descriptor)
        self._discards = False
        self._is_gone = False

    def write(self, data: bytes) -> None:
        """Write, hold, or wait. Made to be a command's callback: while it waits, the loop stands."""
        if self._is_gone:
            self._on_gone()
        if self._discards:
            return
        self._waiting += data
        self._push()
        if self._waiting and self._empty.is_set():
            self._empty.clear()
            self._loop.add_writer(self._fd, self._push)
        if len(self._waiting) > HOLD_BYTES:
            self._wait()

    def discard(self) -> None:
        """Drop what waits and what will come."""
        self._discards = True
        self._waiting.clear()
        self._settle()

    async def drained(self) -> None:
        """Wait until all was written or given up."""
        await self._empty.wait()

    def _push(self) -> None:
        try:
            self._write_some()
        except OSError as error:
            if error.errno not in _GONE:
                raise
            self._is_gone = True
            self.discard()
            self._on_gone()
        self._settle()

    def _write_some(self) -> None:
        sent = 0
        with memoryview(self._waiting) as view:
            while sent < len(view) and (self._never_waits or self._is_writable()):
                piece = len(view) if self._never_waits else _PIECE_BYTES
                try:
                    sent += os.write(self._fd, view[sent : sent + piece])
                except BlockingIOError:  # whoever opened it made it non-blocking
                    break
        del self._waiting[:sent]

    def _is_writable(self) -> bool:
        return bool(self._poll.poll(0))

    def _settle(self) -> None:
        if not self._waiting and not self._empty.is_set():
            self._loop.remove_writer(self._fd)
            self._empty.set()

    def _wait(self) -> None:
        """Block until half is gone. Signals are served: Ctrl-C must reach a command whose reader has stopped."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        poll.register(self._signals.fd, select.POLLIN)
        while len(self._waiting) > HOLD_BYTES // 2:
            for descriptor, _ in poll.poll():
                if descriptor == self._fd:
                    self._push()
                else:
                    self._on_signals()


async def chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yield what can be read, as it comes, until its end; a terminal that hung up has ended."""
    loop = asyncio.get_running_loop()
    pollable = is_pollable(loop, descriptor)
    while True:
        if pollable:
            await _readable(loop, descriptor)
        try:
            data = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return
        if not data:
            return
        yield data


def is_pollable(loop: asyncio.AbstractEventLoop, descriptor: int) -> bool:
    """Say whether epoll(7) takes a descriptor; it refuses regular files and /dev/null, which are always ready."""
    try:
        loop.add_reader(descriptor, lambda: None)
    except PermissionError:
        return False
    loop.remove_reader(descriptor)
    return True


async def _readable(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    ready = loop.create_future()
    loop.add_reader(descriptor, _resolve, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
