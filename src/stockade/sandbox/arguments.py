"""Checks of what callers pass: each wrong value is a TypeError or ValueError before anything is sent."""

from __future__ import annotations

import errno
import math
import signal as signals
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from stockade.errors import StartError, file_error

#: A command's standard input: given whole, or True for one that is written to later.
Input: TypeAlias = str | bytes | bool | None

_MAX_SECONDS = 10**7
_MAX_PATH_BYTES = 4095
_MAX_MODE = 0o7777
_MAX_TERMINAL = 65_535
#: Arguments and environment of one command: the cell's largest frame, less what is beside them. execve(2) itself
#: takes 128 KiB a string and 2 MiB in all, and its E2BIG is reported like this one.
MAX_ARGUMENT_BYTES = 1000 * 1024


def argv_of(cmd: object) -> tuple[str, ...]:
    """Return the words of a command: a text is for /bin/sh, a sequence is taken as it is."""
    if isinstance(cmd, bytes) or not isinstance(cmd, str | Sequence):
        raise TypeError("cmd must be a text, or a non-empty sequence of texts")
    argv: tuple[object, ...] = ("/bin/sh", "-c", cmd) if isinstance(cmd, str) else tuple(cmd)
    words = tuple(word for word in argv if isinstance(word, str))
    if len(words) != len(argv):
        raise TypeError("cmd must be a text, or a non-empty sequence of texts")
    if not words:
        raise ValueError("cmd is empty: name a program")
    if any("\0" in word for word in words):
        raise ValueError("a command can't hold a NUL character")
    return words


def seconds_as_ms(seconds: float) -> int:
    """Return a positive number of seconds in ms."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"timeout must be a number of seconds, not {type(seconds).__name__}")
    if not math.isfinite(seconds) or not 0 < seconds <= _MAX_SECONDS:
        raise ValueError(
            f"timeout must be more than 0 and at most {_MAX_SECONDS} seconds, not {seconds}"
        )
    return max(1, round(seconds * 1000))


def check_signal(number: int) -> int:
    """Return a signal number that kill(2) takes, 0 excepted."""
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError("signal must be a number, such as signal.SIGTERM")
    if number not in signals.valid_signals():
        raise ValueError(f"there is no signal {number}")
    return int(number)


def check_pty(size: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return a terminal's (rows, columns), each 1 to 65535, or None."""
    if size is None:
        return None
    try:
        rows, columns = size
    except (TypeError, ValueError) as error:
        raise TypeError("pty is (rows, columns)") from error
    for value in (rows, columns):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError("pty is (rows, columns), both whole numbers")
        if not 1 <= value <= _MAX_TERMINAL:
            raise ValueError(f"pty is (rows, columns), each 1 to {_MAX_TERMINAL}")
    return rows, columns


def check_stdin(stdin: Input) -> Input:
    """Return what a command's standard input may be."""
    if stdin is None or isinstance(stdin, str | bytes | bool):
        return stdin
    raise TypeError("stdin must be text, bytes, True (written to the handle) or None")


def encoded_environment(envs: Mapping[Any, Any]) -> dict[bytes, bytes]:
    """Return environment variables as bytes."""
    for name, value in envs.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"environment variables are texts: {name!r}")
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise ValueError(f"not a valid environment variable: {name!r}")
    return {encoded(name): encoded(value) for name, value in envs.items()}


def check_size(argv: Sequence[bytes], env: Mapping[bytes, bytes]) -> None:
    """Raise `StartError` (E2BIG) for arguments that no execve(2) takes."""
    size = sum(map(len, argv)) + sum(len(name) + len(value) + 1 for name, value in env.items())
    size += 8 * (len(argv) + len(env))
    if size > MAX_ARGUMENT_BYTES:
        raise StartError(
            "execute the program", errno.E2BIG, f"{size} bytes of arguments and environment"
        )


def encoded(text: str) -> bytes:
    """Return a text as the bytes that it came from."""
    return text.encode(errors="surrogateescape")


def encoded_cwd(cwd: str) -> bytes:
    """Return a working directory as bytes."""
    if not isinstance(cwd, str):
        raise TypeError("cwd must be a text")
    if "\0" in cwd:
        raise ValueError("a path can't hold a NUL character")
    if len(encoded(cwd)) > _MAX_PATH_BYTES:
        raise file_error(cwd[:64] + "...", errno.ENAMETOOLONG, "")
    return encoded(cwd)


def encoded_path(path: str) -> bytes:
    """Return an absolute inside path as bytes."""
    if not isinstance(path, str):
        raise TypeError("a path inside a sandbox is a text")
    if not path.startswith("/"):
        raise ValueError(f"a path inside a sandbox is absolute: {path!r}")
    return encoded_cwd(path)


def check_mode(mode: int) -> int:
    """Return a file mode, 0 to 0o7777."""
    if isinstance(mode, bool) or not isinstance(mode, int):
        raise TypeError("mode must be a number, such as 0o644")
    if not 0 <= mode <= _MAX_MODE:
        raise ValueError(f"mode must be 0 to 0o7777, not {mode:#o}")
    return mode


def content_of(data: str | bytes | bytearray | memoryview) -> bytes:
    """Return a file's content as bytes."""
    if isinstance(data, str):
        return encoded(data)
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"content must be text or bytes, not {type(data).__name__}")
