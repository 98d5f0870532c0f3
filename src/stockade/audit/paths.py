"""Where state lives, and that it is ours: the directory, its marker and its rights.

The environment is not read here: callers (command line, server) pass it in.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from stockade.errors import AuditError

#: Names a directory as Stockade's; `purge` removes nothing without it.
MARKER = ".stockade-state"
_MARKER_TEXT = b"State of Stockade. `stockade purge` removes this directory.\n"
_AUDIT = "audit"
_DATABASE = "audit.sqlite3"


def default_state_dir(uid: int, environ: Mapping[str, str]) -> str:
    """Return the absolute directory for state: ``STOCKADE_STATE_DIR``, else by user.

    Root's is /var/lib/stockade; another user's is stockade below ``XDG_STATE_HOME`` or
    ~/.local/state. Raises ``AuditError`` where neither it nor ``HOME`` is absolute.
    """
    chosen = environ.get("STOCKADE_STATE_DIR", "")
    if chosen:
        return _absolute("STOCKADE_STATE_DIR", chosen)
    if uid == 0:
        return "/var/lib/stockade"
    # The XDG specification: a relative path in XDG_STATE_HOME is to be ignored.
    base = environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = os.path.join(_absolute("HOME", environ.get("HOME", "")), ".local", "state")
    return os.path.join(base, "stockade")


def database_path(state_dir: str) -> str:
    """Return the path of the audit database below ``state_dir``."""
    return os.path.join(state_dir, _AUDIT, _DATABASE)


def spill_dir(state_dir: str) -> str:
    """Return the directory for records that the store could not take."""
    return os.path.join(state_dir, _AUDIT)


def prepare_state_dir(state_dir: str) -> None:
    """Make the directory (mode 0700) with its marker and audit directory, or check an existing one.

    Raises ``AuditError`` where it is not a directory of this user's, or others may write to it.
    """
    try:
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        make_private_dir(state_dir)
        _write_marker(state_dir)
        make_private_dir(spill_dir(state_dir))
    except OSError as error:
        raise AuditError("open", f"state directory {state_dir!r}: {error.strerror}") from error


def make_private_dir(path: str) -> None:
    """Make ``path`` with mode 0700 where it is missing, and refuse one that others own or may write.

    Raises ``AuditError`` and ``OSError``.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            raise AuditError("open", f"{path!r} is not a directory") from None
        if status.st_uid != os.geteuid():
            raise AuditError("open", f"{path!r} belongs to user {status.st_uid}") from None
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise AuditError("open", f"{path!r} can be written by others") from None


def _write_marker(state_dir: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        marker = os.open(os.path.join(state_dir, MARKER), flags, 0o600)
    except FileExistsError:
        return
    with os.fdopen(marker, "wb") as file:
        file.write(_MARKER_TEXT)


def _absolute(name: str, path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise AuditError("open", f"{name} must be an absolute path, not {path!r}")
    return os.path.normpath(path)
