"""Which cgroups a sandbox gets, what is written to them, and how well its limits hold; pure.

A cgroup2 hierarchy carries life, death and freezing, which need no controller (kernel-facts 1): `ID` holds
`ID/cell` and `ID/work`. Limits go to `ID/work` where the controllers are on v2, else to one directory for each
v1 controller. `cgroups_io` makes the directories above these and cleans up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stockade.errors import HostUnsupported
from stockade.isolation.grades import LimitGrade
from stockade.isolation.host import Host, V1Controller
from stockade.policy import Limits
from stockade.wire.launch import (
    CGROUP_CELL,
    CGROUP_JOIN,
    CGROUP_PARENT,
    CGROUP_WORK,
    Cgroup,
    CgroupWrite,
)

#: Our directory in each hierarchy; nothing outside one is ever killed or removed.
DIRECTORY = "stockade"

#: R7: 0.5 core is "50000 100000".
CPU_PERIOD_US = 100_000
#: The kernel's smallest quota (kernel/sched/core.c, min_cfs_quota_period).
CPU_QUOTA_FLOOR_US = 1_000
#: Memory of the cell beside its payload: 300 KiB resident, page tables, and file data that it copies.
CELL_MEMORY = 16 << 20
#: Tasks of the cell beside its payload.
CELL_TASKS = 8

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CgroupPlan:
    """Directories to make, in order, with `{id}` where the sandbox's id goes; and the limits' grades."""

    template: tuple[Cgroup, ...]
    grades: tuple[LimitGrade, ...]

    def for_sandbox(self, sandbox_id: str) -> tuple[Cgroup, ...]:
        """Return the directories of one sandbox."""
        check_id(sandbox_id)
        return tuple(
            Cgroup(cgroup.path.replace("{id}", sandbox_id, 1), cgroup.role, cgroup.writes)
            for cgroup in self.template
        )


def check_id(sandbox_id: str) -> None:
    """Refuse an id that could be another path: it becomes the name of directories."""
    if _ID.fullmatch(sandbox_id) is None:
        raise ValueError(f"not a sandbox id: {sandbox_id!r}")


def base_directories(host: Host) -> tuple[str, ...]:
    """Return the `stockade` directory of each hierarchy that plans use."""
    unified = [f"{host.cgroup2.base}/{DIRECTORY}"] if host.cgroup2 and host.cgroup2.writable else []
    return (*unified, *(f"{entry.path}/{DIRECTORY}" for entry in _v1_used(host)))


def plan_cgroups(limits: Limits, host: Host) -> CgroupPlan:
    """Return the cgroups of a sandbox with these limits; raises `HostUnsupported` where root has no cgroup2.

    An ordinary user without a delegated cgroup2 gets none: the PID namespace's end is its kill.
    """
    unified = host.cgroup2 if host.cgroup2 and host.cgroup2.writable else None
    if unified is None and host.is_root:
        raise HostUnsupported(
            "a cgroup2 hierarchy to kill and freeze sandboxes by",
            "Mount one: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified.",
        )
    on_v2 = frozenset(unified.controllers) if unified else frozenset[str]()
    on_v1 = {entry.name for entry in _v1_used(host)} - on_v2
    template = (
        *(_unified(unified.base, limits, on_v2) if unified else ()),
        *_v1(host, limits, on_v1),
    )
    return CgroupPlan(template, _grades(on_v2, on_v1))


def _unified(base: str, limits: Limits, on: frozenset[str]) -> tuple[Cgroup, ...]:
    parent = f"{base}/{DIRECTORY}/{{id}}"
    above = []
    if on:
        above.append(
            CgroupWrite("cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(on)))
        )
    if "memory" in on:
        above.append(CgroupWrite("memory.max", str(limits.memory + CELL_MEMORY)))
    if "pids" in on:
        above.append(CgroupWrite("pids.max", str(limits.processes + CELL_TASKS)))
    return (
        Cgroup(parent, CGROUP_PARENT, tuple(above)),
        Cgroup(f"{parent}/cell", CGROUP_CELL, ()),
        Cgroup(f"{parent}/work", CGROUP_WORK, _v2_writes(limits, on)),
    )


def _v2_writes(limits: Limits, on: frozenset[str]) -> tuple[CgroupWrite, ...]:
    writes = []
    if "cpu" in on:
        writes.append(CgroupWrite("cpu.max", f"{cpu_quota_us(limits)} {CPU_PERIOD_US}"))
    if "memory" in on:
        writes += [
            CgroupWrite("memory.max", str(limits.memory)),
            CgroupWrite("memory.high", str(memory_high(limits))),
            CgroupWrite("memory.swap.max", "0"),
        ]
    if "pids" in on:
        writes.append(CgroupWrite("pids.max", str(limits.processes)))
    return tuple(writes)


def _v1(host: Host, limits: Limits, on: set[str]) -> tuple[Cgroup, ...]:
    """One directory for each hierarchy; controllers that are mounted together share it."""
    writes: dict[str, list[CgroupWrite]] = {}
    for entry in _v1_used(host):
        if entry.name in on:
            path = f"{entry.path}/{DIRECTORY}/{{id}}"
            writes.setdefault(path, []).extend(_v1_writes(entry.name, limits, swap=entry.swap))
    return tuple(Cgroup(path, CGROUP_JOIN, tuple(values)) for path, values in writes.items())


def _v1_writes(name: str, limits: Limits, *, swap: bool) -> list[CgroupWrite]:
    if name == "cpu":
        return [
            CgroupWrite("cpu.cfs_period_us", str(CPU_PERIOD_US)),
            CgroupWrite("cpu.cfs_quota_us", str(cpu_quota_us(limits))),
        ]
    if name == "pids":
        return [CgroupWrite("pids.max", str(limits.processes))]
    # The plain limit first: the one with swap may not be below it.
    memory = [CgroupWrite("memory.limit_in_bytes", str(limits.memory))]
    if swap:
        memory.append(CgroupWrite("memory.memsw.limit_in_bytes", str(limits.memory)))
    return [*memory, CgroupWrite("memory.soft_limit_in_bytes", str(memory_high(limits)))]


def _v1_used(host: Host) -> tuple[V1Controller, ...]:
    found = (host.controller(name) for name in ("cpu", "memory", "pids"))
    return tuple(entry for entry in found if entry is not None)


def cpu_quota_us(limits: Limits) -> int:
    """Return the share of each period."""
    return max(CPU_QUOTA_FLOOR_US, round(limits.cpu * CPU_PERIOD_US))


def memory_high(limits: Limits) -> int:
    """R7: reclaim starts at 80 % of the limit."""
    return limits.memory * 4 // 5


def _grades(on_v2: frozenset[str], on_v1: set[str]) -> tuple[LimitGrade, ...]:
    def grade(
        limit: str, controller: str, v2_file: str, v1_file: str, otherwise: LimitGrade
    ) -> LimitGrade:
        if controller in on_v2:
            return LimitGrade(limit, "enforced", f"cgroup2 {v2_file}")
        return (
            LimitGrade(limit, "enforced", f"cgroup v1 {v1_file}")
            if controller in on_v1
            else otherwise
        )

    return (
        grade(
            "cpu", "cpu", "cpu.max", "cpu.cfs_quota_us", LimitGrade("cpu", "watched", _CPU_WATCHED)
        ),
        grade("memory", "memory", "memory.max", "memory.limit_in_bytes", _MEMORY_WATCHED),
        grade("processes", "pids", "pids.max", "pids.max", _PROCESSES_BY_RLIMIT),
    )


_CPU_WATCHED = "the cell measures CPU time, and stops for a while what uses more"
_MEMORY_WATCHED = LimitGrade(
    "memory",
    "watched",
    "the cell sums resident memory, unmapped shared memory aside; tmpfs sizes hold",
)
# Counted for a user namespace since 5.14, so it is the sandbox's own (kernel-facts 11).
_PROCESSES_BY_RLIMIT = LimitGrade("processes", "enforced", "RLIMIT_NPROC of the user namespace")
