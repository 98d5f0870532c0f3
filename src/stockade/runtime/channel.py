"""The control channel: frames in and out of one socket, each handed to the operation that its id names.

The peer is hostile: frames are capped before they are stored, every handler gets a bounded amount, and the first
malformed frame ends the sandbox. The module knows no operation.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import Callable
from typing import Protocol

from stockade.errors import ProtocolError, StockadeError
from stockade.runtime import spawn
from stockade.wire import frames

_READ_BYTES = 128 * 1024
# READY carries the listener and a few mounts; more than the launcher ever sends is dropped by the kernel.
_MAX_FDS = 16
_FD_SPACE = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)


class Handler(Protocol):
    """An operation that waits for frames of its id."""

    def on_message(self, message: frames.FromCell) -> None:
        """Take one message; raises `ProtocolError` for one that does not belong to the dialogue."""

    def on_lost(self, error: StockadeError) -> None:
        """End the dialogue: the channel is gone."""


class Channel:
    """One sandbox's control channel on the running event loop."""

    def __init__(
        self, sock: socket.socket, on_lost: Callable[[StockadeError | None], None]
    ) -> None:
        """Start reading; `on_lost` is called once, with the error, or None when the cell closed its end."""
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._decoder = frames.Decoder(frames.FROM_CELL, frames.MAX_FROM_CELL)
        self._handlers: dict[int, Handler] = {}
        self._out = bytearray()
        self._drained: list[asyncio.Future[None]] = []
        self._last_id = 0
        self._on_lost: Callable[[StockadeError | None], None] | None = on_lost
        #: descriptors that came with READY and its predecessors, in order
        self.fds: list[int] = []
        self.closed = False
        self._loop.add_reader(sock.fileno(), self._readable)

    def open(self, handler: Handler) -> int:
        """Give `handler` an id of its own."""
        while True:
            self._last_id = self._last_id % 0xFFFFFFFF + 1
            if self._last_id not in self._handlers:
                break
        self._handlers[self._last_id] = handler
        return self._last_id

    def listen(self, handler: Handler) -> None:
        """Let `handler` have the frames of id 0: the launch."""
        self._handlers[0] = handler

    def close_id(self, request_id: int) -> None:
        """Forget an id whose dialogue is over."""
        self._handlers.pop(request_id, None)

    def send(self, request_id: int, message: frames.ToCell) -> None:
        """Queue one frame; what the socket does not take now goes out as it drains."""
        self.send_raw(frames.encode(request_id, message))

    def send_raw(self, data: bytes) -> None:
        """Queue encoded frames."""
        if self.closed:
            return
        if self._out:
            self._out += data
            return
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lost(None)
            return
        if sent < len(data):
            self._out += memoryview(data)[sent:]
            self._loop.add_writer(self._socket.fileno(), self._writable)

    async def drain(self) -> None:
        """Wait until everything queued has left."""
        if self._out and not self.closed:
            future = self._loop.create_future()
            self._drained.append(future)
            await future

    def close(self) -> None:
        """Close our end and everything received with it; the cell dies of it."""
        if self.closed:
            return
        self.closed = True
        self._on_lost = None
        self._detach()
        spawn.forget_channel(self._socket)
        for future in self._drained:
            if not future.done():
                future.set_result(None)

    def fail_all(self, error: StockadeError) -> None:
        """Tell every open operation that the sandbox is gone."""
        handlers, self._handlers = self._handlers, {}
        for handler in handlers.values():
            handler.on_lost(error)

    def _detach(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        try:
            data = self._receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost(None)
            return
        try:
            for frame in self._decoder.feed(data):
                self._dispatch(frame)
        except ProtocolError as error:
            self._lost(error)

    def _receive(self) -> bytes:
        data, control, _flags, _address = self._socket.recvmsg(
            _READ_BYTES, _FD_SPACE, socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, payload in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._take_fds(payload)
        return data

    def _take_fds(self, payload: bytes) -> None:
        numbers = array.array("i")
        numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
        self.fds.extend(numbers)
        # After the launch the cell has no reason to send any: a hostile one could fill our table.
        while len(self.fds) > _MAX_FDS:
            os.close(self.fds.pop())

    def _dispatch(self, frame: frames.Frame) -> None:
        handler = self._handlers.get(frame.id)
        # A frame for an id that was just given up (cancelled) is late, not wrong.
        if handler is not None:
            handler.on_message(frame.message)  # type: ignore[arg-type]

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._out)
        except BlockingIOError:
            return
        except OSError:
            self._lost(None)
            return
        del self._out[:sent]
        if not self._out:
            self._loop.remove_writer(self._socket.fileno())
            waiting, self._drained = self._drained, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def _lost(self, error: StockadeError | None) -> None:
        on_lost, self._on_lost = self._on_lost, None
        self._detach()
        if on_lost is not None:
            on_lost(error)
