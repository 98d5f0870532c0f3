"""Where this user's state and locks are, from the environment."""

from __future__ import annotations

import os


def state_dir() -> str:
    """Return the directory for state; raises `AuditError` where there is none."""
    from stockade.audit.paths import default_state_dir

    return default_state_dir(os.geteuid(), os.environ)


def run_dir() -> str:
    """Return the directory with the locks of live sandboxes; the same rule as the library's `Owner`."""
    from stockade.isolation.slots import run_dir_for

    environ = os.environ
    return environ.get("STOCKADE_RUN_DIR") or run_dir_for(
        os.geteuid(), environ.get("XDG_RUNTIME_DIR")
    )
