"""Our descriptors: order, bounds, signals during a wait, and readers that leave."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from stockade.cli.signals import SignalStream
from stockade.cli.streams import HOLD_BYTES, OutputStream, chunks


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Return the read and write end of a pipe."""
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue  # the test closed it


def _never() -> None:
    raise AssertionError("called")


def _read_all(descriptor: int, into: bytearray) -> None:
    while data := os.read(descriptor, 1 << 16):
        into += data


def _with_output(
    descriptor: int,
    body: Callable[[OutputStream], None],
    on_signals: Callable[[SignalStream], None] = lambda _: _never(),
    on_gone: Callable[[], None] = _never,
) -> None:
    async def drive() -> None:
        output = OutputStream(descriptor, signals, lambda: on_signals(signals), on_gone)
        body(output)
        await output.drained()

    with SignalStream() as signals:
        asyncio.run(drive())


def test_more_than_is_held_arrives_in_order(pipe: tuple[int, int]) -> None:
    """Three times the bound goes through a pipe whose reader is slower than we are."""
    source, target = pipe
    data = bytes(range(256)) * (3 * HOLD_BYTES // 256)
    received = bytearray()
    reader = threading.Thread(target=_read_all, args=(source, received))
    reader.start()

    def write(output: OutputStream) -> None:
        for start in range(0, len(data), 100_000):
            output.write(data[start : start + 100_000])

    _with_output(target, write)
    os.close(target)
    reader.join()
    assert bytes(received) == data


def test_a_write_below_the_bound_does_not_wait(pipe: tuple[int, int]) -> None:
    """A reader that has not come yet does not stop the loop."""
    source, target = pipe
    received = bytearray()
    reader = threading.Thread(target=_read_all, args=(source, received))

    def write(output: OutputStream) -> None:
        output.write(bytes(HOLD_BYTES))
        reader.start()

    _with_output(target, write)
    os.close(target)
    reader.join()
    assert len(received) == HOLD_BYTES


def test_a_signal_is_served_while_a_write_waits(pipe: tuple[int, int]) -> None:
    """Nobody reads; the signal's handler gives up the output, and the write returns."""
    _, target = pipe
    served: list[int] = []

    def write(output: OutputStream) -> None:
        given_up.append(output)
        os.kill(os.getpid(), signal.SIGTERM)
        output.write(bytes(HOLD_BYTES + (1 << 20)))

    def serve(signals: SignalStream) -> None:
        served.extend(signals.read())
        given_up[0].discard()

    given_up: list[OutputStream] = []
    _with_output(target, write, serve)
    assert served == [signal.SIGTERM]


def test_a_reader_that_leaves_is_told(pipe: tuple[int, int]) -> None:
    """And told again with each further write, which is dropped."""
    source, target = pipe
    told: list[str] = []
    os.close(source)

    def write(output: OutputStream) -> None:
        output.write(b"lost")
        output.write(b"lost too")

    _with_output(target, write, on_gone=lambda: told.append("gone"))
    assert told == ["gone", "gone"]


def test_chunks_end_with_the_input(pipe: tuple[int, int]) -> None:
    """All bytes, then the end."""
    source, target = pipe
    os.write(target, b"abc")
    os.close(target)

    async def read() -> bytes:
        return b"".join([data async for data in chunks(source)])

    assert asyncio.run(read()) == b"abc"


def test_what_was_ignored_stays_ignored() -> None:
    """Under nohup(1) a hang-up does not reach the command either."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalStream():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_put_back() -> None:
    """Afterwards Ctrl-C is Python's again."""
    before = signal.getsignal(signal.SIGINT)
    with SignalStream():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
