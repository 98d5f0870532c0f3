"""Attacks on the host by a hostile cell: a peer that speaks garbage ends its sandbox, and nothing else.

The payload has no way to the channel (test_descriptors); here the cell itself has been taken over.
"""

from __future__ import annotations

import array
import asyncio
import os
import resource
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stockade import AsyncSandbox
from stockade.errors import ProtocolError, SandboxDied, StockadeError
from stockade.runtime import file_work
from stockade.runtime.channel import Channel
from stockade.runtime.command import Command, CommandSpec
from stockade.wire import frames

pytestmark = pytest.mark.attack

HEADER = struct.Struct("<IBI")


class Peer:
    """The cell's end of a channel, and what the host's end said at its end."""

    def __init__(self) -> None:
        """Connect both ends on the running loop."""
        ours, self.socket = socket.socketpair()
        ours.setblocking(False)
        self.socket.setblocking(False)
        self.lost: asyncio.Future[StockadeError | None] = asyncio.get_running_loop().create_future()
        self.channel = Channel(ours, self.lost.set_result)

    async def send(self, data: bytes) -> None:
        """Write, as far as the host still reads."""
        try:
            await asyncio.get_running_loop().sock_sendall(self.socket, data)
        except (BrokenPipeError, ConnectionResetError):
            return

    async def end(self) -> StockadeError | None:
        """Wait until the host gives the channel up."""
        return await asyncio.wait_for(self.lost, 5)

    def close(self) -> None:
        """Close both ends."""
        self.channel.close()
        self.socket.close()


def on_loop(dialogue: Callable[[Peer], object]) -> None:
    """Run a dialogue with a peer."""

    async def run() -> None:
        peer = Peer()
        try:
            await dialogue(peer)  # type: ignore[misc]
        finally:
            peer.close()

    asyncio.run(run())


def frame(kind: int, body: bytes, request_id: int = 1) -> bytes:
    """Return a frame of any kind."""
    return HEADER.pack(5 + len(body), kind, request_id) + body


def text(data: bytes) -> bytes:
    """Return bytes as the wire has them."""
    return struct.pack("<I", len(data)) + data


GARBAGE = {
    "a length over the limit": HEADER.pack(0xFFFFFFFF, 145, 1),
    "a length just over the limit": HEADER.pack(frames.MAX_FROM_CELL + 1, 145, 1),
    "a length under the head's": HEADER.pack(4, 145, 1),
    "a length of nothing": HEADER.pack(0, 145, 1),
    "an unknown kind": frame(255, b""),
    "a kind of the other direction": frames.encode(1, frames.Cancel()),
    "a launch": frame(1, b"x" * 100),
    "text": b"HTTP/1.1 200 OK\r\n\r\n",
    "random bytes": bytes(range(256)) * 8,
    "zeros": bytes(4096),
    "a body that is too short": frame(145, b"\x01"),
    "a body that is too long": frame(160, b"x"),
    "a length inside that lies": frame(145, b"\x01" + struct.pack("<I", 0xFFFFFF) + b"x"),
    "a negative length inside": frame(145, b"\x01" + struct.pack("<i", -1) + b"x"),
    "a count inside that lies": frame(162, struct.pack("<I", 0xFFFFFFFF)),
    "a text that is not UTF-8": frame(129, text(b"\xff\xfe") + struct.pack("<I", 0) + text(b"")),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_malformed_frame_ends_the_channel(name: str) -> None:
    """The first frame that is none is a ProtocolError, and nothing of its size is allocated."""

    async def dialogue(peer: Peer) -> None:
        await peer.send(GARBAGE[name])
        assert isinstance(await peer.end(), ProtocolError)

    on_loop(dialogue)


def test_a_good_frame_does_not_end_the_channel() -> None:
    """The positive control: a frame of the protocol, in pieces, is taken, whoever it is for."""

    async def dialogue(peer: Peer) -> None:
        for byte in frames.encode(7, frames.Ok()):
            await peer.send(bytes([byte]))
        await asyncio.sleep(0)
        assert not peer.lost.done()

    on_loop(dialogue)


def test_a_truncated_frame_ends_with_the_channel() -> None:
    """A frame that never comes whole is no message: the channel's end is all that the host sees."""

    async def dialogue(peer: Peer) -> None:
        await peer.send(frames.encode(1, frames.Output(1, b"x" * 100))[:-1])
        peer.socket.close()
        assert await peer.end() is None

    on_loop(dialogue)


def command_on(peer: Peer, keep_bytes: int = 1024) -> Command:
    """Start a command's dialogue without waiting."""
    spec = CommandSpec([b"x"], {}, b"/", 1000, 1000, keep_bytes)
    command = Command(peer.channel, spec)
    command.send_start()
    return command


WRONG_ANSWERS: dict[str, frames.FromCell] = {
    "entries for a command": frames.Entries(()),
    "an event for a command": frames.Event(1, b"x", False),
    "output on a strange stream": frames.Output(9, b"x"),
    "output on standard input": frames.Output(0, b"x"),
    "output over the chunk size": frames.Output(1, bytes(frames.CHUNK_BYTES + 1)),
    "statistics for a command": frames.StatsResult(0, 0, 0, 0, 0, 0),
    "credit on a strange stream": frames.Credit(9, 1),
}


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_a_message_out_of_its_dialogue_ends_the_channel(name: str) -> None:
    """What a command's dialogue does not hold is a ProtocolError, not a surprise in the caller."""

    async def dialogue(peer: Peer) -> None:
        command = command_on(peer)
        await peer.send(frames.encode(command.id, WRONG_ANSWERS[name]))
        assert isinstance(await peer.end(), ProtocolError)

    on_loop(dialogue)


def test_endless_output_does_not_fill_the_host() -> None:
    """A cell that sends on without credit: 64 MiB pass, 1 KiB is kept."""

    async def dialogue(peer: Peer) -> None:
        command = command_on(peer)
        before = _resident()
        piece = frames.encode(command.id, frames.Output(1, bytes(frames.CHUNK_BYTES)))
        for _ in range(1024):
            await peer.send(piece)
            await _drain(peer)
        assert _resident() - before < 24 << 20
        await peer.send(frames.encode(command.id, frames.Exited(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)))
        outcome = await command.wait()
        assert (len(outcome.stdout), outcome.truncated) == (1024, True)

    on_loop(dialogue)


async def _drain(peer: Peer) -> None:
    """Take what the host sent: its credit."""
    while True:
        try:
            peer.socket.recv(65536)
        except BlockingIOError:
            return


def _resident() -> int:
    return (
        int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        * resource.getpagesize()
    )


def test_endless_entries_are_an_error() -> None:
    """A listing without end stops at 100,000 entries."""

    async def dialogue(peer: Peer) -> None:
        entry = frames.Entry(b"n" * 8, 1, 0o644, 0, 0, 0, 0, 1, b"")
        piece = frames.Entries((entry,) * 256)
        task = asyncio.get_running_loop().create_task(file_work.listing(peer.channel, b"/"))
        await asyncio.sleep(0)
        for _ in range(500):
            await peer.send(frames.encode(1, piece))
            if task.done():
                break
            await asyncio.sleep(0)
        with pytest.raises(StockadeError):
            await task

    on_loop(dialogue)


def test_an_honest_listing_in_one_burst_is_taken() -> None:
    """The other side of the bound: 10,000 entries with the shortest names arrive as fast as a socket takes them."""

    async def dialogue(peer: Peer) -> None:
        entry = frames.Entry(b"n", 1, 0o644, 0, 0, 0, 0, 1, b"")
        page = frames.encode(1, frames.Entries((entry,) * 250))
        task = asyncio.get_running_loop().create_task(file_work.listing(peer.channel, b"/"))
        await asyncio.sleep(0)
        await peer.send(page * 40 + frames.encode(1, frames.End()))
        first = asyncio.FIRST_COMPLETED
        either: set[asyncio.Future[Any]] = {task, peer.lost}
        done, _ = await asyncio.wait(either, timeout=5, return_when=first)
        assert (task in done, peer.lost.done()) == (True, False)
        assert len(task.result()) == 10_000

    on_loop(dialogue)


def test_more_data_than_asked_for_is_bounded() -> None:
    """A transfer whose reader is slow does not queue what a cell sends without credit for ever."""

    async def dialogue(peer: Peer) -> None:
        transfer = file_work.read(peer.channel, b"/workspace/f")

        async def first_chunk() -> bytes:
            return await anext(transfer)

        task = asyncio.get_running_loop().create_task(first_chunk())
        await asyncio.sleep(0)
        before = _resident()
        piece = frames.encode(1, frames.Data(bytes(frames.CHUNK_BYTES)))
        for _ in range(2000):  # 128 MiB
            await peer.send(piece)
            await _drain(peer)
            if peer.lost.done():
                break
        assert _resident() - before < 48 << 20
        await task
        await transfer.aclose()  # type: ignore[attr-defined]

    on_loop(dialogue)


def test_more_data_than_was_asked_for_is_an_error() -> None:
    """The length of a read holds the cell too: what is asked for is taken, one byte more is not."""

    async def dialogue(peer: Peer) -> None:
        for size in (16, 17):
            task = asyncio.get_running_loop().create_task(_all_of(peer, 16))
            await asyncio.sleep(0)
            number = 1 if size == 16 else 2
            await peer.send(frames.encode(number, frames.Data(bytes(size))))
            await peer.send(frames.encode(number, frames.End()))
            if size == 16:
                assert await task == bytes(16)
                continue
            with pytest.raises(ProtocolError):
                await task

    on_loop(dialogue)


async def _all_of(peer: Peer, length: int) -> bytes:
    return b"".join([chunk async for chunk in file_work.read(peer.channel, b"/f", length=length)])


@pytest.mark.parametrize("name", [b"", b".", b"..", b"/etc/passwd", b"../up", b"a/b", b"a\0b"])
def test_a_name_that_no_directory_holds_is_an_error(name: bytes) -> None:
    """A caller joins names to a path of its own: one that leads elsewhere does not reach it."""

    async def dialogue(peer: Peer) -> None:
        entry = frames.Entry(name, 1, 0o644, 0, 0, 0, 0, 1, b"")
        task = asyncio.get_running_loop().create_task(file_work.listing(peer.channel, b"/"))
        await asyncio.sleep(0)
        await peer.send(frames.encode(1, frames.Entries((entry,))))
        await peer.send(frames.encode(1, frames.End()))
        with pytest.raises(ProtocolError):
            await task

    on_loop(dialogue)


@pytest.mark.parametrize("number", [4096, 2**31, 2**32 - 1])
def test_an_errno_that_is_none_ends_the_channel(number: int) -> None:
    """strerror(3) takes an int: a number beyond it was an exception that nobody saw, and the caller waited for ever."""

    async def dialogue(peer: Peer) -> None:
        command = command_on(peer)
        refusal = frames.Error(frames.ERROR_START, number, "clone")
        await peer.send(frames.encode(command.id, refusal))
        assert isinstance(await peer.end(), ProtocolError)

    on_loop(dialogue)


def test_descriptors_sent_without_end_are_closed() -> None:
    """A cell that passes descriptors with every byte does not fill the host's table."""

    async def dialogue(peer: Peer) -> None:
        before = len(os.listdir("/proc/self/fd"))
        null = os.open("/dev/null", os.O_RDONLY)
        rights = array.array("i", [null] * 16)
        piece = frames.encode(7, frames.Ok())
        for _ in range(100):
            while True:
                try:
                    peer.socket.sendmsg([piece], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                    break
                except BlockingIOError:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        os.close(null)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(os.listdir("/proc/self/fd")) - before <= 16
        for descriptor in peer.channel.fds:
            os.close(descriptor)
        peer.channel.fds.clear()

    on_loop(dialogue)


HOSTILE_CELL = """#!{python}
import os, socket, struct, sys, time
channel = socket.socket(fileno=3)
channel.recv(1 << 20)
exec({script!r})
"""


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Put a program of ours in the launcher's place."""

    def install(script: str) -> None:
        program = tmp_path / "stockade-cell"
        program.write_text(HOSTILE_CELL.format(python=sys.executable, script=script))
        program.chmod(0o755)
        monkeypatch.setattr("stockade.runtime.live.cell_path", lambda: program)

    return install


LAUNCHERS = {
    "exits at once": "sys.exit(0)",
    "exits with an error": "sys.exit(3)",
    "is killed": "os.kill(os.getpid(), 9)",
    "speaks garbage": "channel.send(b'\\xff' * 64)",
    "is ready too early": "channel.send(struct.pack('<IBI', 5 + 14, 130, 0) + struct.pack('<HIII', 1, 0, 0, 0))",
    "claims to be process 1": "channel.send(struct.pack('<IBII', 9, 128, 0, 1)); channel.close()",
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_that_lies_is_a_launch_that_failed(
    name: str, hostile: Callable[[str], None]
) -> None:
    """Whatever comes instead of a sandbox is a typed error within the deadline, and leaves nothing."""
    hostile(LAUNCHERS[name])

    async def create() -> None:
        with pytest.raises(StockadeError):
            await asyncio.wait_for(AsyncSandbox.create(), 15)

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(create())
    assert len(os.listdir("/proc/self/fd")) <= before + 8


def test_a_cell_that_is_killed_is_a_dead_sandbox() -> None:
    """A running command raises SandboxDied, never a result, and the next one does too."""

    async def kill() -> None:
        sandbox = await AsyncSandbox.create()
        handle = await sandbox.commands.run(["/bin/sleep", "60"], background=True)
        os.kill(sandbox.live.pid, 9)
        with pytest.raises(SandboxDied):
            await handle.wait()
        with pytest.raises(SandboxDied):
            await sandbox.commands.run("true")
        assert not await sandbox.is_running()
        await sandbox.kill()

    asyncio.run(kill())
