"""What this host can and cannot enforce, in words, for `stockade doctor`; pure.

Every finding has a grade: `ok`, `degraded` (works, with less than the best mechanism), `missing` (a sandbox that asks
for it fails) or `warning` (nothing of ours, but it will bite). `how` says how to get it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stockade.errors import HostUnsupported
from stockade.isolation.cgroups import plan_cgroups
from stockade.isolation.container import LANDLOCK_SIGNALS_ABI
from stockade.isolation.host import MINIMUM_KERNEL, Host
from stockade.isolation.ids import MAX_SLOTS, RANGE_BASE, RANGE_SIZE, has_sub_ids
from stockade.isolation.images import OVERLAY_KERNEL
from stockade.policy import DEFAULT_POLICY, Policy

FindingGrade: TypeAlias = Literal["ok", "degraded", "missing", "warning"]

#: 1,000 sandboxes of R7's 64 processes (kernel-facts 27).
WANTED_PIDS = 64_000
#: A sandbox's channel, pidfd, listener and mounts are 8 descriptors (kernel-facts 27); for 1,000 of them.
WANTED_FILES = 8_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    ok: bool
    grade: FindingGrade
    detail: str
    how: str = ""


def check_all(host: Host, policy: Policy = DEFAULT_POLICY) -> tuple[Finding, ...]:
    """Return a finding for each thing that walls need, in the order in which they would fail."""
    return (
        _kernel(host),
        _user_namespaces(host),
        _ids(host),
        _landlock(host),
        _seccomp(host),
        _proc(host),
        _cgroup2(host),
        *_limits(host, policy),
        _overlay(host),
        _core(host),
        *_numbers(host),
    )


def _ok(name: str, detail: str) -> Finding:
    return Finding(name, ok=True, grade="ok", detail=detail)


def _missing(name: str, detail: str, how: str) -> Finding:
    return Finding(name, ok=False, grade="missing", detail=detail, how=how)


def _kernel(host: Host) -> Finding:
    have, need = (".".join(map(str, version)) for version in (host.kernel, MINIMUM_KERNEL))
    if host.kernel >= MINIMUM_KERNEL:
        return _ok("kernel", have)
    return _missing("kernel", f"{have}, {need} is needed", f"Boot kernel {need} or newer.")


def _user_namespaces(host: Host) -> Finding:
    name = "user namespaces"
    if host.max_user_namespaces == 0:
        return _missing(name, "switched off", "sysctl -w user.max_user_namespaces=15000")
    if host.is_root and (host.lacks or not host.all_ids):
        lacks = ", ".join(host.lacks) or "ids of its own: it is inside a user namespace"
        return _missing(
            name, f"this root lacks {lacks}", "Run as the machine's root, or as an ordinary user."
        )
    if host.is_root:
        return _ok(name, f"as root, {host.max_user_namespaces} at once")
    if not host.userns_clone:
        return _missing(
            name, "switched off for ordinary users", "sysctl -w kernel.unprivileged_userns_clone=1"
        )
    if host.apparmor_userns:
        how = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or run as root"
        return _missing(name, "AppArmor restricts them for ordinary users", how)
    return _ok(name, "as an ordinary user")


def _ids(host: Host) -> Finding:
    name = "ids"
    if host.is_root:
        clash = [
            entry for entry in (*host.subuid, *host.subgid) if _overlaps(entry.start, entry.count)
        ]
        if clash:
            how = f"Move the ranges of /etc/subuid and /etc/subgid that lie above {RANGE_BASE}."
            return Finding(
                name, ok=False, grade="warning", detail=f"our ranges overlap {clash[0]}", how=how
            )
        return _ok(name, f"{MAX_SLOTS} ranges of {RANGE_SIZE} ids from {RANGE_BASE}")
    if has_sub_ids(host):
        return _ok(name, "own id for the payload, a subordinate id for the cell")
    how = f"Install uidmap and run: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {host.user}"
    detail = "a single id: seccomp and Landlock stand between cell and payload instead of the uid"
    return Finding(name, ok=True, grade="degraded", detail=detail, how=how)


def _overlaps(start: int, count: int) -> bool:
    return start < RANGE_BASE + MAX_SLOTS * RANGE_SIZE and start + count > RANGE_BASE


def _landlock(host: Host) -> Finding:
    name = "landlock"
    if host.landlock_abi == 0:
        return _missing(
            name, "not in this kernel, or not switched on", "Boot with lsm=landlock,yama,..."
        )
    if host.landlock_abi < LANDLOCK_SIGNALS_ABI:
        detail = f"ABI {host.landlock_abi}: files only, no scope for signals"
        return Finding(name, ok=True, grade="degraded", detail=detail, how="Kernel 6.12 has ABI 6.")
    return _ok(name, f"ABI {host.landlock_abi}")


def _seccomp(host: Host) -> Finding:
    if host.libseccomp:
        return _ok("libseccomp", host.libseccomp)
    return _missing(
        "libseccomp", "can't be loaded", "Install libseccomp2 (Debian, Ubuntu) or libseccomp."
    )


def _proc(host: Host) -> Finding:
    if host.proc_covered:
        where = f" ({host.container})" if host.container else ""
        how = "docker run --security-opt systempaths=unconfined, or run outside of the container"
        return _missing("proc", f"parts of /proc are covered: inside a container{where}", how)
    return _ok("proc", f"inside {host.container}, not covered" if host.container else "not covered")


def _cgroup2(host: Host) -> Finding:
    name = "cgroup2"
    unified = host.cgroup2
    if unified is not None and unified.writable:
        return _ok(name, f"{unified.base}; controllers: {', '.join(unified.controllers) or 'none'}")
    if host.is_root:
        how = "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified"
        return _missing(name, "no writable cgroup2 hierarchy", how)
    how = "Run in a systemd user service, or: systemd-run --user --scope -p Delegate=yes ..."
    detail = "not delegated to this user: freezing is by signals, killing by the PID namespace"
    return Finding(name, ok=True, grade="degraded", detail=detail, how=how)


def _limits(host: Host, policy: Policy) -> Iterator[Finding]:
    try:
        grades = plan_cgroups(policy.limits, host).grades
    except HostUnsupported as error:
        yield _missing("limits", error.message, error.how)
        return
    for entry in grades:
        how = (
            ""
            if entry.grade == "enforced"
            else "Run as root, or with the cgroup2 controller delegated."
        )
        grade: FindingGrade = "ok" if entry.grade == "enforced" else "degraded"
        ok = entry.grade != "missing"
        yield Finding(
            f"limit {entry.limit}",
            ok,
            grade if ok else "missing",
            f"{entry.grade}: {entry.by}",
            how,
        )


def _overlay(host: Host) -> Finding:
    name = "mode independent"
    if not host.is_root:
        return _missing(
            name, "needs idmapped mounts, which an ordinary user does not have", "Run as root."
        )
    if not host.overlay:
        return _missing(name, "overlayfs is missing", "modprobe overlay")
    if host.kernel < OVERLAY_KERNEL:
        need = ".".join(map(str, OVERLAY_KERNEL))
        return _missing(
            name, "removing image directories fails on this kernel", f"Boot kernel {need} or newer."
        )
    return _ok(name, "overlayfs on a tmpfs")


def _core(host: Host) -> Finding:
    if host.core_pattern.startswith("|"):
        # RLIMIT_CORE of 1 keeps the handler from starting (kernel-facts 10).
        return _ok(
            "core dumps", "piped to a program of the host; RLIMIT_CORE=1 keeps sandboxes out of it"
        )
    return _ok("core dumps", "to a file; RLIMIT_CORE=1 keeps them out")


def _numbers(host: Host) -> Iterator[Finding]:
    if host.pid_max < WANTED_PIDS:
        how = f"sysctl -w kernel.pid_max={4_194_304}"
        detail = f"{host.pid_max}; 1,000 sandboxes of 64 processes need {WANTED_PIDS}"
        yield Finding("pid_max", ok=True, grade="warning", detail=detail, how=how)
    files = host.hard_limit("nofile")
    if files < WANTED_FILES:
        detail = f"at most {files} for this process; 1,000 sandboxes need {WANTED_FILES}"
        yield Finding(
            "open files",
            ok=True,
            grade="warning",
            detail=detail,
            how="ulimit -Hn 65536, or LimitNOFILE=",
        )
