"""Refused system calls: reads seccomp_unotify(2) notifications, reports each attempt, answers EPERM.

A caller waits, killable, until we answer; so not reading is the brake on a flood, and each sandbox may be read only
so many times a second. The attempt is refused whether or not anyone reads: only the notice depends on us.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import struct
from collections.abc import Callable
from dataclasses import dataclass

# struct seccomp_notif: id, pid, flags, then seccomp_data: nr, arch, instruction pointer, args[6].
_NOTIF = struct.Struct("=QIIiIQ6Q")
# struct seccomp_notif_resp: id, val, error, flags.
_RESPONSE = struct.Struct("=QqiI")


def _iowr(number: int, size: int) -> int:
    return (3 << 30) | (size << 16) | (ord("!") << 8) | number


_RECEIVE = _iowr(0, _NOTIF.size)
_SEND = _iowr(1, _RESPONSE.size)
# Linux's _IOW; the kernel also takes the _IOR form that it first published.
_ID_VALID = (1 << 30) | (8 << 16) | (ord("!") << 8) | 2

#: Notifications read a second: at 40 us each a sandbox can cost us 4 % of a core.
RECEIVES_PER_SECOND = 1_000
_WINDOW_S = 0.1
_PER_WINDOW = int(RECEIVES_PER_SECOND * _WINDOW_S)
_COMM_BYTES = 64


@dataclass(frozen=True, slots=True)
class Attempt:
    """One refused call. `pid` is the host's; `program` is empty when the caller was gone before we could look."""

    number: int
    arch: int
    args: tuple[int, ...]
    pid: int
    program: str


class Notices:
    """Watches one sandbox's listener on the running event loop."""

    def __init__(self, listener: int, on_attempt: Callable[[Attempt], None]) -> None:
        """Take ownership of `listener`; `on_attempt` must not block."""
        self._listener = listener
        self._on_attempt = on_attempt
        self._loop = asyncio.get_running_loop()
        self._left = _PER_WINDOW
        self._window_ends = 0.0
        self._pause: asyncio.TimerHandle | None = None
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._loop.add_reader(listener, self._readable)

    def close(self) -> None:
        """Stop; from now on the kernel answers ENOSYS to what would have been notified."""
        if self._listener < 0:
            return
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
        os.close(self._listener)
        self._listener = -1

    def _readable(self) -> None:
        events = dict(self._poll.poll(0)).get(self._listener, 0)
        if not events & select.POLLIN:
            if events & (select.POLLHUP | select.POLLERR):
                # All callers are dead: it stays readable for ever, and a reader that only tries again spins.
                self._loop.remove_reader(self._listener)
            return
        if not self._within_budget():
            return
        buffer = bytearray(_NOTIF.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, buffer)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):  # the caller was killed in between
                raise
            return
        self._refuse(buffer)

    def _within_budget(self) -> bool:
        now = self._loop.time()
        if now >= self._window_ends:
            self._window_ends = now + _WINDOW_S
            self._left = _PER_WINDOW
        if self._left > 0:
            self._left -= 1
            return True
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_at(self._window_ends, self._resume)
        return False

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._readable)

    def _refuse(self, buffer: bytearray) -> None:
        notice_id, pid, _flags, number, arch, _address, *args = _NOTIF.unpack(buffer)
        program = _program_of(pid)
        if not self._is_valid(notice_id):
            program = ""  # the pid may be another process by now
        self._on_attempt(Attempt(number, arch, tuple(args), pid, program))
        try:
            fcntl.ioctl(self._listener, _SEND, _RESPONSE.pack(notice_id, 0, -errno.EPERM, 0))
        except OSError as error:
            if error.errno != errno.ENOENT:  # gone meanwhile
                raise

    def _is_valid(self, notice_id: int) -> bool:
        try:
            fcntl.ioctl(self._listener, _ID_VALID, struct.pack("=Q", notice_id))
        except OSError:
            return False
        return True


def _program_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb", buffering=0) as file:
            return file.read(_COMM_BYTES).rstrip(b"\n").decode(errors="backslashreplace")
    except OSError:
        return ""
