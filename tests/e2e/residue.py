"""What a sandbox has on the host, and whether it is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stockade import AsyncSandbox, Sandbox

#: The issue's own bound: whatever ended the owner, the sandbox is gone within it.
GONE_WITHIN_S = 2.0
_STEP_S = 0.005


@dataclass(frozen=True, slots=True)
class Process:
    """A process that can't be taken for a later one of the same number."""

    pid: int
    started: str

    @property
    def is_alive(self) -> bool:
        """True while it runs or stands; a zombie is gone."""
        fields = _stat(self.pid)
        return bool(fields) and fields[19] == self.started and fields[0] not in "ZX"


@dataclass(frozen=True, slots=True)
class Traces:
    """What the host shows of one sandbox."""

    sandbox_id: str
    cgroups: tuple[str, ...]
    processes: tuple[Process, ...]

    def left(self) -> list[str]:
        """Return what is still there, in words."""
        cgroups = [path for path in self.cgroups if os.path.isdir(path)]
        return cgroups + [f"process {entry.pid}" for entry in self.processes if entry.is_alive]


def traces_of(sandbox: Sandbox | AsyncSandbox) -> Traces:
    """Look at a live sandbox: its cgroups, its cell and all below that."""
    inner = sandbox._sandbox if isinstance(sandbox, Sandbox) else sandbox
    cgroups = tuple(cgroup.path for cgroup in inner.live.plan.launch.cgroups)
    pids = [inner.live.pid, *descendants(inner.live.pid)]
    return Traces(inner.sandbox_id, cgroups, tuple(filter(None, map(process_of, pids))))


def running_in(sandbox: Sandbox | AsyncSandbox) -> list[str]:
    """Return the names of all processes but the cell and the one that it makes ahead, as the host sees them.

    Commands can't tell: each sees its own processes only.
    """
    inner = sandbox._sandbox if isinstance(sandbox, Sandbox) else sandbox
    return sorted(set(map(name_of, descendants(inner.live.pid))) - {"", "stockade-cell"})


def assert_gone(traces: Traces) -> None:
    """Fail unless everything is gone already: `kill` waits for it."""
    assert traces.left() == []


def wait_until(condition: Callable[[], bool], within_s: float = GONE_WITHIN_S) -> bool:
    """Look until the condition holds; False when it did not in time. For states that give no event."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_STEP_S)
    return True


def process_of(pid: int) -> Process | None:
    """Return a process that exists."""
    fields = _stat(pid)
    return Process(pid, fields[19]) if fields else None


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process, zombies too."""
    found: list[int] = []
    for task in _listed(f"/proc/{pid}/task"):
        try:
            text = Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii")
        except OSError:
            continue
        found += map(int, text.split())
    return found


def descendants(pid: int) -> list[int]:
    """Return all that descends from a process."""
    found = children(pid)
    for child in found:
        found += children(child)
    return found


def name_of(pid: int) -> str:
    """Return the name of a process's program; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
