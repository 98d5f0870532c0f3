"""`stockade purge`: remove this user's state, after asking, and never under a live sandbox."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator

from stockade.audit.purge import purge
from stockade.cli import message, place


def purge_state(*, asks: bool) -> int:
    """Remove the state directory; returns the exit status. Raises `AuditError` where that is refused."""
    directory = place.state_dir()
    if not os.path.lexists(directory):
        print(f"No state in {message.printable(directory)}.")
        return 0
    live = len(list(_live_slots()))
    if live:
        message.show(f"live sandboxes: {live}", "End the programs that own them, then try again.")
        return 1
    if asks and not _confirmed(directory):
        return 1
    removed = purge(directory)
    print(f"Removed {removed} files and directories.")
    return 0


def _confirmed(directory: str) -> bool:
    if not sys.stdin.isatty():
        message.show("purge asks before it removes anything, and nobody can answer", "Add --yes.")
        return False
    print(f"This removes the audit log and caches in {message.printable(directory)} for good.")
    try:
        answer = input("Type 'yes' to go on: ")
    except EOFError:
        answer = ""
    return answer.strip().lower() == "yes"


def _live_slots() -> Iterator[str]:
    """Yield the lock files of slots whose owner lives: those that can't be locked (`isolation.slots`)."""
    try:
        entries = list(os.scandir(os.path.join(place.run_dir(), "slots")))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.endswith(".lock") and _is_locked(entry.path):
            yield entry.name


def _is_locked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
