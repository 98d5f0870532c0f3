"""The command line as a program of its own: started, spoken to, and always ended."""

import contextlib
import os
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MAIN = "import sys; from stockade.cli import main; sys.exit(main())"
#: Takes descriptor 0 as the controlling terminal first, as a login does.
_MAIN_ON_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); " + _MAIN
TIMEOUT_S = 15


def command(*words: str) -> list[str]:
    """Return the words that start `stockade` with this interpreter."""
    return [sys.executable, "-c", _MAIN, *words]


def stockade(
    *words: str, stdin: bytes = b"", envs: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `stockade` to its end."""
    environment = {**os.environ, **(envs or {})}
    return subprocess.run(
        command(*words),
        input=stdin,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment,
    )


@contextlib.contextmanager
def started(*words: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start `stockade` with pipes; it is killed at the end, whatever happened."""
    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process: subprocess.Popen[bytes] = subprocess.Popen(command(*words), **{**streams, **options})
    with process:
        try:
            yield process
        finally:
            process.kill()


class OnTerminal:
    """`stockade` on a pseudo-terminal of its own; `master` is the side of who types and reads."""

    def __init__(self, *words: str, size: tuple[int, int] = (33, 101)) -> None:
        """Start it."""
        self.master, self.slave = os.openpty()
        termios.tcsetwinsize(self.slave, size)
        self.modes = termios.tcgetattr(self.slave)
        self._seen = b""
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-c", _MAIN_ON_TERMINAL, *words],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
        )

    def read_until(self, text: bytes) -> bytes:
        """Return what was printed up to and with `text`."""
        while text not in self._seen:
            self._seen += os.read(self.master, 65536)
        found, separator, self._seen = self._seen.partition(text)
        return found + separator

    def type(self, data: bytes) -> None:
        """Press keys."""
        os.write(self.master, data)

    def status(self) -> int:
        """Return the exit status, negative for a signal."""
        return self.process.wait(TIMEOUT_S)

    def is_restored(self) -> bool:
        """Say whether the terminal has the modes that it had before."""
        return termios.tcgetattr(self.slave) == self.modes

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@contextlib.contextmanager
def on_terminal(*words: Any, size: tuple[int, int] = (33, 101)) -> Iterator[OnTerminal]:
    """Start `stockade` on a terminal and end it on every path out."""
    session = OnTerminal(*words, size=size)
    try:
        yield session
    finally:
        session.close()


def shell(script: str) -> Sequence[str]:
    """Return the words of `stockade run` for a shell script."""
    return ("run", "--", "sh", "-c", script)
