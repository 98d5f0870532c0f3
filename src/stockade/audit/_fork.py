"""Keeps a fork away from the moments in which it would copy held locks.

RE2 and SQLite take mutexes of their own with the interpreter's lock released. A fork in that moment
would leave the child with a mutex that nobody gives back. So what calls them holds `fork_guard`, and
`os.fork` waits for it. (`subprocess` does not run these hooks and needs none: it executes at once.)
"""

from __future__ import annotations

import os
import threading

#: Held around redaction and SQLite; reentrant, because stores hold it within the writer.
fork_guard = threading.RLock()

os.register_at_fork(
    before=fork_guard.acquire,
    after_in_parent=fork_guard.release,
    after_in_child=fork_guard.release,
)
