"""Starting a program as cheaply as this host can (posix_spawn(3)), waiting for it, and reading memory of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bench.samples import ms_of

#: Peers get this and nothing of the caller's; nsjail and crun look for no programs but the ones that are named.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
#: Where a hybrid host mounts the v2 hierarchy beside v1; crun 1.8 refuses to start there.
UNIFIED = "/sys/fs/cgroup/unified"
#: Put before a command, it hides that hierarchy from it.
WITHOUT_UNIFIED = (
    *("/usr/bin/unshare", "--mount", "/bin/sh", "-c"),
    f'umount {UNIFIED} && exec "$0" "$@"',
)
_NULL = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
_STDIO = [(os.POSIX_SPAWN_DUP2, _NULL, number) for number in range(3)]


def run(argv: Sequence[str]) -> None:
    """Run a program to its end, stdio on /dev/null; raises `RuntimeError` unless it exits with 0."""
    pid = os.posix_spawn(argv[0], list(argv), ENVIRONMENT, file_actions=_STDIO)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        raise RuntimeError(f"exit status {status}: {' '.join(argv)}")


class Spawner(Protocol):
    """Runs a program and returns how long that took in ms."""

    def run(self, argv: Sequence[str]) -> float:
        """Run a program to its end; raises `RuntimeError` unless it exits with 0."""

    def close(self) -> None:
        """End what the spawner started for itself."""


class Here:
    """Runs programs as children of this process."""

    def run(self, argv: Sequence[str]) -> float:
        return ms_of(lambda: run(argv))

    def close(self) -> None:
        return


class WithoutUnified:
    """Runs programs as children of a helper that does not see cgroup2, and takes the time there."""

    def __init__(self) -> None:
        """Start the helper in a mount namespace of its own."""
        helper = [sys.executable, "-m", "bench.processes"]
        self._helper = subprocess.Popen(
            [*WITHOUT_UNIFIED, *helper],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parent.parent,
        )

    def run(self, argv: Sequence[str]) -> float:
        if self._helper.stdin is None or self._helper.stdout is None:
            raise RuntimeError("the helper has no pipes")
        self._helper.stdin.write("\0".join(argv) + "\n")
        self._helper.stdin.flush()
        answer = self._helper.stdout.readline().strip()
        if not answer or answer.startswith("error"):
            raise RuntimeError(answer or "the helper ended")
        return float(answer)

    def close(self) -> None:
        self._helper.communicate()


def pss_kib(pid: int) -> int:
    """Return a process's proportional set size: pages shared by N processes count 1/N to each."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise RuntimeError(f"no Pss in smaps_rollup of {pid}")


def with_descendants(pid: int) -> list[int]:
    """Return a process and all that descends from it."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text(encoding="ascii").split()
    ]
    return [pid, *(one for child in children for one in with_descendants(child))]


def name_of(pid: int) -> str:
    """Return the name of the program that a process runs."""
    return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()


def _serve() -> None:
    """Be the helper of `WithoutUnified`: a command a line in, its time or an error a line out."""
    for line in sys.stdin:
        try:
            answer = str(Here().run(line.rstrip("\n").split("\0")))
        except (OSError, RuntimeError) as error:
            answer = f"error: {error}"
        print(answer, flush=True)


if __name__ == "__main__":
    _serve()
