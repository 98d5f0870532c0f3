"""The local terminal: raw while a command has a terminal of its own inside, as it was on every path out."""

from __future__ import annotations

import os
import signal
import termios
import tty
from types import TracebackType
from typing import Any, Self


def is_whole() -> bool:
    """Say whether 0, 1 and 2 are a terminal in whose foreground we are.

    With one of the three redirected there is no terminal inside either: it would carry both output streams as one.
    """
    return all(map(os.isatty, range(3))) and is_foreground()


def is_foreground() -> bool:
    """Say whether reading the terminal at 0 would not stop us (SIGTTIN)."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def size() -> tuple[int, int]:
    """Return the terminal's rows and columns; 24 and 80 where it does not know (a serial line)."""
    columns, rows = os.get_terminal_size(0)
    return rows or 24, columns or 80


class RawTerminal:
    """The terminal at 0 without line editing, echo and signals of its own, from `__enter__` to `__exit__`."""

    def __enter__(self) -> Self:
        self._saved: list[Any] = termios.tcgetattr(0)
        # Put back from the background (the shell took the terminal): else the kernel would stop us for it.
        self._old_ttou = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        self.make_raw()
        return self

    def make_raw(self) -> None:
        """Switch; again after a stop, for the shell that we were stopped to has changed it."""
        tty.setraw(0, termios.TCSADRAIN)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        try:
            termios.tcsetattr(0, termios.TCSADRAIN, self._saved)
        except termios.error:
            return  # hung up: nothing is left to restore
        finally:
            signal.signal(signal.SIGTTOU, self._old_ttou)
