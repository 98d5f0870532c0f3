"""Starting `stockade-cell launch`: one process, two descriptors, no environment.

The launcher clones the cell as our own child and exits, so what stays alive for a sandbox is the cell alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from stockade.errors import HostUnsupported

# The numbers on which the launcher finds its two descriptors.
_CHANNEL_FD = 3
_OWNER_FD = 4


@dataclass(slots=True)
class Launcher:
    """A started launcher: its process id, and our end of the control channel."""

    pid: int
    channel: socket.socket


@lru_cache(maxsize=1)
def cell_path() -> Path:
    """Return the cell's program; raises `HostUnsupported` when the package was installed without it."""
    path = Path(str(resources.files("stockade") / "_bin" / "stockade-cell"))
    if not os.access(path, os.X_OK):
        raise HostUnsupported(
            what="stockade-cell",
            how=f"{path} is missing: install a wheel, or run `make setup` in a checkout",
        )
    return path


_open_channels: set[socket.socket] = set()


def _close_in_child() -> None:
    """Close our ends in a forked child: a copy there would keep a sandbox alive after its owner."""
    for channel in list(_open_channels):
        with contextlib.suppress(OSError):
            channel.close()
    _open_channels.clear()


os.register_at_fork(after_in_child=_close_in_child)


def start_launcher(program: Path, plan: bytes) -> tuple[Launcher, bytes]:
    """Start the launcher of one sandbox; return what of its plan the socket did not take yet. Raises `OSError`.

    The plan is there before the launcher is: it does not wait for it while we set up our side.
    """
    ours, theirs = socket.socketpair()
    owner = os.pidfd_open(os.getpid())
    _open_channels.add(ours)
    try:
        ours.setblocking(False)  # noqa: FBT003 - the standard library has no other form
        left = plan[ours.send(plan) :]
        actions = [
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), _CHANNEL_FD),
            (os.POSIX_SPAWN_DUP2, owner, _OWNER_FD),
        ]
        # A process group of its own: a failed launch is ended and reaped as a whole, and Ctrl-C in a terminal is ours.
        pid = os.posix_spawn(
            program, ["stockade-cell", "launch"], {}, file_actions=actions, setpgroup=0
        )
    except BaseException:
        forget_channel(ours)
        raise
    finally:
        theirs.close()
        os.close(owner)
    return Launcher(pid, ours), left


def forget_channel(channel: socket.socket) -> None:
    """Close our end; the cell dies of it."""
    _open_channels.discard(channel)
    channel.close()
