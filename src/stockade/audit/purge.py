"""Removing all state: the whole directory, and nothing that is not in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat

from stockade.audit.paths import MARKER
from stockade.errors import AuditError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


def purge(state_dir: str) -> int:
    """Remove ``state_dir`` with all in it and return how many files and directories that were.

    A directory that is not there is 0. Refused, with ``AuditError`` and nothing removed: one
    without our marker, or with a `*.lock` file that a running process holds.
    """
    try:
        top = os.open(state_dir, _DIRECTORY)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise AuditError("purge", f"{state_dir!r}: {error.strerror}") from error
    try:
        with contextlib.ExitStack() as held:
            _check_marker(top, state_dir)
            _take_locks(top, held)
            return _empty(top) + _remove_top(top, state_dir)
    except OSError as error:
        raise AuditError("purge", f"{state_dir!r}: {error.strerror} ({error.filename})") from error
    finally:
        os.close(top)


def _check_marker(top: int, state_dir: str) -> None:
    try:
        marker = os.stat(MARKER, dir_fd=top, follow_symlinks=False)
    except FileNotFoundError:
        raise AuditError("purge", f"{state_dir!r} is not a state directory of Stockade") from None
    if not stat.S_ISREG(marker.st_mode) or marker.st_uid != os.geteuid():
        raise AuditError("purge", f"the marker in {state_dir!r} is not ours")


def _take_locks(top: int, held: contextlib.ExitStack) -> None:
    """Hold the lock files in the top two levels, where those of running processes are."""
    for directory in (".", *(entry for entry in os.listdir(top) if _is_directory(top, entry))):
        below = os.open(directory, _DIRECTORY, dir_fd=top)
        try:
            for name in os.listdir(below):
                if name.endswith(".lock"):
                    _take_lock(below, name, held)
        finally:
            os.close(below)


def _take_lock(directory: int, name: str, held: contextlib.ExitStack) -> None:
    if not stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        return
    lock = os.open(name, _LOCK, dir_fd=directory)
    held.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AuditError("purge", f"in use by a running process ({name} is locked)") from None


def _empty(top: int) -> int:
    """Remove all below ``top``, the marker last, so that an interrupted purge can go on.

    Directories in directories are first moved up to ``top``: any depth needs two descriptors, and
    what is taken apart can't be swapped by a process that still has access further down.
    """
    removed = 0
    device = os.fstat(top).st_dev
    waiting = [name for name in os.listdir(top) if name != MARKER]
    while waiting:
        name = waiting.pop()
        removed += 1
        if not _is_directory(top, name):
            os.unlink(name, dir_fd=top)
            continue
        if os.stat(name, dir_fd=top, follow_symlinks=False).st_dev != device:
            raise AuditError("purge", f"a file system is mounted at {name!r}; unmount it first")
        removed += _flatten(top, name, waiting)
        os.rmdir(name, dir_fd=top)
    return removed


def _flatten(top: int, name: str, waiting: list[str]) -> int:
    """Empty one directory in ``top``, moving its directories up; return how many files went."""
    removed = 0
    directory = _open_writable(top, name)
    try:
        for child in os.listdir(directory):
            if _is_directory(directory, child):
                flat = f".purge-{os.urandom(8).hex()}"
                os.close(_open_writable(directory, child))
                os.rename(child, flat, src_dir_fd=directory, dst_dir_fd=top)
                waiting.append(flat)
            else:
                os.unlink(child, dir_fd=directory)
                removed += 1
    finally:
        os.close(directory)
    return removed


def _open_writable(parent: int, name: str) -> int:
    """Open a directory after making it ours to change: a sandbox may have left it with mode 0."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        # fchmod(2) refuses O_PATH descriptors; the magic link reaches the same file, no other.
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(".", _DIRECTORY, dir_fd=handle)
    finally:
        os.close(handle)


def _remove_top(top: int, state_dir: str) -> int:
    os.unlink(MARKER, dir_fd=top)
    os.rmdir(state_dir)
    return 2


def _is_directory(directory: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
