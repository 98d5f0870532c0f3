"""Keeps a fork away from the moments in which it would copy held locks or open databases.

RE2 and SQLite take mutexes of their own with the interpreter's lock released; a fork in that moment
would leave the child with a mutex that nobody gives back. And SQLite keeps its view of a file's locks in
the process: a child that inherits an open database believes it holds locks that it does not, and its
commits are lost when the parent closes (sqlite.org/howtocorrupt.html, 2.6; seen here). So what calls them
holds `fork_guard`, and `os.fork` waits for it and closes what is open; both sides open it again when they
need it. `subprocess` does not run these hooks and needs none: it executes at once.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

#: Held around redaction and SQLite; reentrant, because stores hold it within the writer.
fork_guard = threading.RLock()


class Releasable(Protocol):
    """What must not be open during a fork."""

    def release(self) -> None:
        """Close what is open; it is opened again at the next use."""


#: All that is released before a fork, with `fork_guard` held.
released_at_fork: weakref.WeakSet[Releasable] = weakref.WeakSet()


def _before_fork() -> None:
    fork_guard.acquire()
    for releasable in list(released_at_fork):
        releasable.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=fork_guard.release,
    after_in_child=fork_guard.release,
)
