"""One command inside a sandbox: its dialogue on the channel, its output, its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from stockade.errors import ProtocolError, StockadeError
from stockade.runtime.channel import Channel
from stockade.runtime.failure import start_failure
from stockade.wire import frames

#: Bytes of one stream that may be under way: four chunks keep a pipe busy.
WINDOW_BYTES = 4 * frames.CHUNK_BYTES

#: Takes each chunk of a stream; an empty one is the end.
OutputCallback = Callable[[bytes], None]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """What to start. Ids are inside ids, times in milliseconds (0: none), `keep_bytes` is per stream."""

    argv: Sequence[bytes]
    env: Mapping[bytes, bytes]
    cwd: bytes
    uid: int
    gid: int
    keep_bytes: int
    timeout_ms: int = 0
    grace_ms: int = 500
    stdin: bool = False
    pty: tuple[int, int] | None = None
    background: bool = False
    rlimits: tuple[frames.Rlimit, ...] = ()
    on_stdout: OutputCallback | None = None
    on_stderr: OutputCallback | None = None

    def message(self) -> frames.Start:
        """Return the START message."""
        rows, cols = self.pty or (0, 0)
        flags = (
            (frames.START_PTY if self.pty else 0)
            | (frames.START_STDIN if self.stdin else 0)
            | (frames.START_BACKGROUND if self.background else 0)
        )
        streaming = self.on_stdout is not None or self.on_stderr is not None
        return frames.Start(
            argv=tuple(self.argv),
            env=tuple(name + b"=" + value for name, value in self.env.items()),
            cwd=self.cwd,
            flags=flags,
            rows=rows,
            cols=cols,
            uid=self.uid,
            gid=self.gid,
            rlimits=self.rlimits,
            timeout_ms=self.timeout_ms,
            grace_ms=self.grace_ms,
            credit=WINDOW_BYTES,
            # What nobody streams is cut in the cell: dropped output never crosses the channel.
            output_limit=0 if streaming else self.keep_bytes,
        )


@dataclass(slots=True)
class _Stream:
    """One output stream on the host: what is kept, what was dropped, what was handed on."""

    number: int
    keep_bytes: int
    callback: OutputCallback | None
    kept: bytearray = field(default_factory=bytearray)
    dropped: int = 0
    uncredited: int = 0

    def take(self, data: bytes) -> int:
        """Store and hand on `data`; return the credit to give back now."""
        room = self.keep_bytes - len(self.kept)
        self.kept += data[:room] if room > 0 else b""
        self.dropped += max(0, len(data) - max(0, room))
        if self.callback is not None:
            self.callback(data)
        self.uncredited += len(data)
        if self.uncredited < WINDOW_BYTES // 2:
            return 0
        credit, self.uncredited = self.uncredited, 0
        return credit


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended, with the bytes that were kept."""

    exited: frames.Exited
    stdout: bytes
    stderr: bytes
    truncated: bool


class Command:
    """A started command. Made by `Command.start`; wait for it with `wait`."""

    def __init__(self, channel: Channel, spec: CommandSpec) -> None:
        """Prepare the dialogue; nothing is sent yet."""
        self._channel = channel
        self._spec = spec
        loop = asyncio.get_running_loop()
        self._started: asyncio.Future[int] = loop.create_future()
        self._ended: asyncio.Future[frames.Exited] = loop.create_future()
        self._stdin_credit = 0
        self._stdin_waiter: asyncio.Future[None] | None = None
        self._streams = {
            frames.STREAM_STDOUT: _Stream(frames.STREAM_STDOUT, spec.keep_bytes, spec.on_stdout),
            frames.STREAM_STDERR: _Stream(frames.STREAM_STDERR, spec.keep_bytes, spec.on_stderr),
        }
        self._callback_error: BaseException | None = None
        self.id = channel.open(self)
        #: the process id inside the sandbox, once started
        self.pid = 0

    @classmethod
    async def start(cls, channel: Channel, spec: CommandSpec) -> Command:
        """Start a command and wait until it was executed; raises the error of the step that failed."""
        command = cls(channel, spec)
        command.send_start()
        await command.wait_started()
        return command

    def send_start(self) -> None:
        """Send START without waiting: `wait` tells of a failed start too. Raises ValueError for what no frame holds."""
        try:
            self._channel.send(self.id, self._spec.message())
        except ValueError as error:
            self._channel.close_id(self.id)
            self._ended.cancel()
            raise error from None

    async def wait_started(self) -> None:
        """Wait until the program was executed."""
        try:
            self.pid = await asyncio.shield(self._started)
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def wait(self) -> Outcome:
        """Wait for the end. Cancelling the waiter ends the command with all that it started."""
        try:
            exited = await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._callback_error is not None:
            raise self._callback_error
        out, err = self._streams[frames.STREAM_STDOUT], self._streams[frames.STREAM_STDERR]
        dropped = out.dropped + err.dropped + exited.stdout_dropped + exited.stderr_dropped
        return Outcome(exited, bytes(out.kept), bytes(err.kept), dropped > 0)

    async def write_stdin(self, data: bytes) -> None:
        """Send standard input within the credit that the cell gives; what the command no longer reads is dropped."""
        view = memoryview(data)
        while view and not self._ended.done():
            if self._stdin_credit == 0:
                await self._wait_for_credit()
                continue
            count = min(len(view), self._stdin_credit, frames.CHUNK_BYTES)
            self._stdin_credit -= count
            self._channel.send(self.id, frames.Stdin(bytes(view[:count])))
            view = view[count:]
            await self._channel.drain()

    def close_stdin(self) -> None:
        """End standard input."""
        self._channel.send(self.id, frames.StdinEnd())

    def signal(self, number: int, *, tree: bool = True) -> None:
        """Send a signal to the command's main process, or to all that descends from it."""
        self._channel.send(self.id, frames.Signal(number, tree))

    def resize(self, rows: int, cols: int) -> None:
        """Set the pseudo-terminal's size."""
        self._channel.send(self.id, frames.Resize(rows, cols))

    def cancel(self) -> None:
        """Kill the command with all that it started, without waiting."""
        if not self._ended.done():
            self._channel.send(self.id, frames.Cancel())

    def when_ended(self, callback: Callable[[frames.Exited | None], None]) -> None:
        """Call back with how it ended; None when the sandbox ended first."""

        def ended(future: asyncio.Future[frames.Exited]) -> None:
            failed = future.cancelled() or future.exception() is not None
            callback(None if failed else future.result())

        self._ended.add_done_callback(ended)

    @property
    def ended(self) -> bool:
        """True once the command and all that it started are gone."""
        return self._ended.done()

    def on_message(self, message: frames.FromCell) -> None:
        """Take one message of this command's dialogue."""
        match message:
            case frames.Output(stream=number, data=data):
                self._on_output(number, data)
            case frames.Started(pid=pid):
                _resolve(self._started, pid)
            case frames.Exited():
                self._finish(message)
            case frames.Credit(stream=frames.STREAM_STDIN, count=count):
                self._stdin_credit = min(self._stdin_credit + count, 1 << 30)
                self._wake_stdin()
            case frames.Error() if not self._started.done():
                self._fail(start_failure(message, self._spec.argv, self._spec.cwd))
            case frames.Error():
                pass  # a late answer to a signal or resize: the command had ended
            case _:
                raise ProtocolError(detail=f"{type(message).__name__} in a command's dialogue")

    def on_lost(self, error: StockadeError) -> None:
        """End the dialogue: the sandbox is gone."""
        self._fail(error)

    def _on_output(self, number: int, data: bytes) -> None:
        stream = self._streams.get(number)
        if stream is None or len(data) > frames.CHUNK_BYTES:
            raise ProtocolError(detail=f"output on stream {number}")
        try:
            credit = stream.take(data)
        except BaseException as error:  # noqa: BLE001 - the caller's own callback: handed back by wait()
            self._callback_error = self._callback_error or error
            stream.callback = None
            self.cancel()
            return
        if credit:
            self._channel.send(self.id, frames.Credit(number, credit))

    def _finish(self, exited: frames.Exited) -> None:
        self._channel.close_id(self.id)
        for stream in self._streams.values():
            self._end_stream(stream)
        _resolve(self._started, 0)
        _resolve(self._ended, exited)
        self._wake_stdin()

    def _end_stream(self, stream: _Stream) -> None:
        try:
            if stream.callback is not None:
                stream.callback(b"")
        except BaseException as error:  # noqa: BLE001 - the caller's own callback: handed back by wait()
            self._callback_error = self._callback_error or error

    def _fail(self, error: StockadeError) -> None:
        self._channel.close_id(self.id)
        for future in (self._started, self._ended):
            if not future.done():
                future.set_exception(error)
                future.exception()  # a waiter may have left; the error is not lost by that
        self._wake_stdin()

    async def _wait_for_credit(self) -> None:
        self._stdin_waiter = asyncio.get_running_loop().create_future()
        await self._stdin_waiter

    def _wake_stdin(self) -> None:
        waiter, self._stdin_waiter = self._stdin_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _resolve(future: asyncio.Future[_T], value: _T) -> None:
    if not future.done():
        future.set_result(value)
