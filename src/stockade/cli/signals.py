"""Signals to this process as a stream of numbers, readable from the event loop and from a write that waits."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

#: What is handed on to the command: whatever a parent, a terminal or a supervisor may send to it.
FORWARDED = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
#: Of those, what ends us while there is no command yet.
ENDING = FORWARDED - {signal.SIGUSR1, signal.SIGUSR2}
_CAUGHT = FORWARDED | {signal.SIGWINCH, signal.SIGCONT}


class SignalStream:
    """Catches signals from `__enter__` to `__exit__`; those that were ignored (nohup, `&` in a script) stay so.

    Not `loop.add_signal_handler`: its callbacks wait while a callback of the loop waits for a slow reader.
    """

    def __enter__(self) -> Self:
        self.fd, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._old: dict[signal.Signals, Any] = {}
        for number in _CAUGHT:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._old[number] = signal.signal(number, _noted)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._writer)
        os.close(self.fd)

    def read(self) -> list[int]:
        """Return the numbers that came, oldest first."""
        with contextlib.suppress(BlockingIOError):
            return list(os.read(self.fd, 4096))
        return []


def _noted(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the interpreter wrote the number to the wakeup descriptor before it called us."""
