"""Cgroup directories on the host: made once, read, killed and removed; I/O.

Only directories named `stockade/ID`, and `cell` and `work` below them, are ever killed or removed; `check_ours` stands
before both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stockade.errors import LaunchError
from stockade.isolation.cgroups import DIRECTORY, base_directories
from stockade.isolation.host import Host
from stockade.wire.launch import CGROUP_JOIN, CGROUP_PARENT, CGROUP_WORK, Cgroup

#: While waiting for a killed cgroup to empty: first look after, and then at most this long apart.
_FIRST_WAIT_S = 0.0002
_LONGEST_WAIT_S = 0.02
#: Rounds of killing a v1 cgroup's tasks in one call; a fork bomb under pids.max dies in two or three.
_V1_ROUNDS = 8

_OURS = re.compile(rf"/(?:[^/]+/)*{DIRECTORY}/[a-z0-9][a-z0-9-]{{0,62}}(?:/cell|/work)?", re.ASCII)

#: `memory`: processes that the kernel killed for memory. `pids`: forks that it refused.
LimitEvent: TypeAlias = Literal["memory", "pids"]
_EVENT_KEYS: dict[LimitEvent, bytes] = {"memory": b"oom_kill ", "pids": b"max "}
_EVENT_FILES: dict[tuple[LimitEvent, int], str] = {
    ("memory", CGROUP_WORK): "memory.events",
    ("memory", CGROUP_JOIN): "memory.oom_control",
    ("pids", CGROUP_WORK): "pids.events",
    ("pids", CGROUP_JOIN): "pids.events",
}

_prepared: set[str] = set()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox uses now; None where the host has no controller for it."""

    cpu_us: int | None
    memory_bytes: int | None
    tasks: int | None


def prepare(host: Host) -> None:
    """Make our directory in each hierarchy and switch the controllers on there; once for a process.

    Raises `LaunchError` if a directory can't be made.
    """
    for directory in base_directories(host):
        if directory not in _prepared:
            _make_base(directory, host)
            _prepared.add(directory)


def _make_base(directory: str, host: Host) -> None:
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        if host.cgroup2 and host.cgroup2.controllers and directory.startswith(host.cgroup2.base):
            wanted = " ".join(f"+{name}" for name in host.cgroup2.controllers)
            for place in (host.cgroup2.base, directory):
                _write(f"{place}/cgroup.subtree_control", wanted)
    except OSError as error:
        how = "Run as root, or with a delegated cgroup; see `stockade doctor`."
        raise LaunchError("cgroups", error.errno or 0, directory, how) from error


def check_ours(path: str) -> None:
    """Raise `ValueError` for a path that is not one of ours."""
    if _OURS.fullmatch(path) is None or any(part in (".", "..") for part in path.split("/")):
        raise ValueError(f"not a sandbox's cgroup: {path!r}")


def kill(cgroups: Sequence[Cgroup]) -> None:
    """Kill all that runs in a sandbox's cgroups; a frozen tree dies too (kernel-facts 1)."""
    kill_paths([cgroup.path for cgroup in cgroups])


def kill_paths(paths: Sequence[str]) -> None:
    """Kill all that runs in these directories and below; a missing one is no error."""
    for path in paths:
        check_ours(path)
        if not _try_write(f"{path}/cgroup.kill", "1"):
            _kill_tasks(path)


def _kill_tasks(path: str) -> None:
    """Kill a v1 cgroup's tasks until none is left; a task may fork while we read."""
    for _ in range(_V1_ROUNDS):
        tasks = _tasks(path)
        if not tasks:
            return
        for pid in tasks:
            _kill_member(path, pid)


def _kill_member(path: str, pid: int) -> None:
    """Kill one process, unless its number was given to another one since it was read."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        descriptor = os.pidfd_open(pid)
        try:
            if pid in _tasks(path):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _tasks(path: str) -> list[int]:
    return [int(line) for line in _read(f"{path}/cgroup.procs").split()]


def remove_now(paths: Iterable[str]) -> tuple[str, ...]:
    """Remove the directories, children first; returns those that are still there."""
    left = []
    for path in sorted(paths, reverse=True):
        check_ours(path)
        try:
            os.rmdir(path)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(path)
    return tuple(left)


async def remove(cgroups: Sequence[Cgroup], timeout_s: float) -> tuple[str, ...]:
    """Kill what is left, and remove a sandbox's directories; returns those that outlived the timeout."""
    left = remove_now(cgroup.path for cgroup in cgroups)
    for wait_s in _waits(timeout_s):
        if not left:
            break
        kill_paths(left)
        await asyncio.sleep(wait_s)
        left = remove_now(left)
    return left


def remove_paths(paths: Sequence[str], timeout_s: float) -> tuple[str, ...]:
    """Do the same without an event loop: for the collector."""
    left = remove_now(paths)
    for wait_s in _waits(timeout_s):
        if not left:
            break
        kill_paths(left)
        time.sleep(wait_s)
        left = remove_now(left)
    return left


def _waits(timeout_s: float) -> Iterable[float]:
    end = time.monotonic() + timeout_s
    wait_s = _FIRST_WAIT_S
    while time.monotonic() < end:
        yield wait_s
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


def is_empty(cgroups: Sequence[Cgroup]) -> bool:
    """Say whether no process is left in any of a sandbox's cgroups."""
    parents = [cgroup.path for cgroup in cgroups if cgroup.role == CGROUP_PARENT]
    joined = [cgroup.path for cgroup in cgroups if cgroup.role == CGROUP_JOIN]
    return not any(_populated(path) for path in parents) and not any(
        _tasks(path) for path in joined
    )


def _populated(path: str) -> bool:
    return _field(f"{path}/cgroup.events", "populated") == 1


class EventCounter:
    """Counts what the kernel did to a sandbox at a limit, from one open file: a read takes 4 us."""

    def __init__(self, cgroups: Sequence[Cgroup], event: LimitEvent) -> None:
        """Open the controller's file; without one the count stays 0."""
        self._descriptor = -1
        self._key = _EVENT_KEYS[event]
        for cgroup in cgroups:
            file = _EVENT_FILES.get((event, cgroup.role))
            if file and any(write.file.startswith(f"{event}.") for write in cgroup.writes):
                self._descriptor = os.open(f"{cgroup.path}/{file}", os.O_RDONLY | os.O_CLOEXEC)
                return

    def read(self) -> int:
        """Return the count so far."""
        if self._descriptor < 0:
            return 0
        try:
            text = os.pread(self._descriptor, 4096, 0)
        except OSError:  # ENODEV: the cgroup was removed
            return 0
        _, _, rest = text.partition(self._key)
        number = rest.partition(b"\n")[0]
        return int(number) if number.isdigit() else 0

    def close(self) -> None:
        """Close the file; the count is 0 from then on."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def usage(cgroups: Sequence[Cgroup]) -> Usage:
    """Return what a sandbox's commands use now."""
    cpu = memory = tasks = None
    for cgroup in cgroups:
        path, files = cgroup.path, {write.file for write in cgroup.writes}
        if cgroup.role == CGROUP_WORK:
            # The v2 hierarchy counts CPU time without any controller.
            cpu = _field(f"{path}/cpu.stat", "usage_usec")
        if "memory.max" in files:
            memory = _number(f"{path}/memory.current")
        elif "memory.limit_in_bytes" in files:
            memory = _number(f"{path}/memory.usage_in_bytes")
        if "pids.max" in files and cgroup.role != CGROUP_PARENT:
            tasks = _number(f"{path}/pids.current")
    return Usage(cpu, memory, tasks)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _field(path: str, name: str) -> int | None:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return None


def _write(path: str, value: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(value)


def _try_write(path: str, value: str) -> bool:
    """Write to an existing file; False where there is none (a v1 cgroup has no cgroup.kill)."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, value.encode())
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
