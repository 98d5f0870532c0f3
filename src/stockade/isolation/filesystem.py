"""The steps for what is writable and for the user's directories: R8's modes; pure.

Sizes come from `policy.storage`, whose sum is the disk limit. What was looked at on disk comes from `workspaces`.
"""

from __future__ import annotations

from collections.abc import Iterator

from stockade.isolation.grades import LimitGrade
from stockade.isolation.host import Host
from stockade.isolation.images import READ_ONLY, bind
from stockade.isolation.workspaces import Inspected
from stockade.policy import Policy
from stockade.wire.launch import (
    ATTR_NODEV,
    ATTR_NOSUID,
    LANDLOCK_DEVICE,
    LANDLOCK_READ,
    LANDLOCK_WRITE,
    NO_MAP,
    OWNER_PAYLOAD,
    OWNER_ROOT,
    FileRoot,
    LandlockRule,
    Step,
    Tmpfs,
)

_WRITABLE = ATTR_NOSUID | ATTR_NODEV
TMP = "/tmp"


def storage_steps(policy: Policy) -> Iterator[Step]:
    """Return the private file systems: /tmp and the writable directories."""
    storage = policy.storage
    yield Tmpfs(
        "tmp", "tmp", storage.tmp.size_bytes, storage.tmp.inodes, 0o1777, OWNER_ROOT, _WRITABLE
    )
    for directory, share in zip(policy.filesystem.private_dirs, storage.dirs, strict=True):
        path = directory.path.lstrip("/")
        yield Tmpfs(
            f"writable {path}",
            path,
            share.size_bytes,
            share.inodes,
            0o755,
            OWNER_PAYLOAD,
            _WRITABLE,
        )


def workspace_steps(policy: Policy, host: Host, inspected: Inspected) -> Iterator[Step]:
    """Return the user's directories and toolchains.

    As root a workspace is mapped: its owner on disk is the payload inside. An ordinary user is the payload anyway.
    """
    for path in policy.filesystem.toolchains:
        yield bind(f"toolchain {path}", path, path.lstrip("/"), READ_ONLY)
    for workspace, facts in zip(policy.filesystem.workspaces, inspected.workspaces, strict=True):
        attrs = _WRITABLE if workspace.access == "rw" else READ_ONLY
        owner = (facts.uid, facts.gid) if host.is_root else (NO_MAP, NO_MAP)
        target = workspace.target.lstrip("/")
        yield bind(f"workspace {target}", facts.source, target, attrs, owner=owner)


def writable_paths(policy: Policy) -> tuple[str, ...]:
    """Return the mount points that commands can write, /dev/shm aside."""
    files = policy.filesystem
    private = tuple(directory.path for directory in files.private_dirs)
    mounted = tuple(workspace.target for workspace in files.workspaces if workspace.access == "rw")
    return (TMP, *private, *mounted)


def file_roots(policy: Policy) -> tuple[FileRoot, ...]:
    """Return where the cell does file operations: never /proc or /dev."""
    files = policy.filesystem
    if files.mode == "independent":
        return (
            FileRoot("/", writable=True),
            *(FileRoot(path, writable=False) for path in _read_only_targets(policy)),
        )
    writable = writable_paths(policy)
    read_only = [*_read_only_targets(policy), *files.toolchains, "/usr", "/etc"]
    roots = [FileRoot(path, writable=True) for path in writable]
    return (*roots, *(FileRoot(path, writable=False) for path in read_only if path not in writable))


def _read_only_targets(policy: Policy) -> tuple[str, ...]:
    return tuple(
        workspace.target for workspace in policy.filesystem.workspaces if workspace.access == "ro"
    )


def landlock_rules(policy: Policy) -> tuple[LandlockRule, ...]:
    """Return the second wall for files: read everything that is mounted, write where the mounts allow it."""
    if policy.filesystem.mode == "independent":
        return (LandlockRule("/", LANDLOCK_WRITE), LandlockRule("/dev", LANDLOCK_DEVICE))
    writable = (*writable_paths(policy), "/dev/shm")
    return (
        LandlockRule("/", LANDLOCK_READ),
        LandlockRule("/dev", LANDLOCK_DEVICE),
        *(LandlockRule(path, LANDLOCK_WRITE) for path in writable),
    )


def disk_grades(policy: Policy) -> tuple[LimitGrade, ...]:
    """Return the grades of storage: tmpfs sizes hold, a user's own directory is watched where it has a limit."""
    grades = [LimitGrade("disk", "enforced", "sizes and inodes of tmpfs")]
    for workspace in policy.filesystem.workspaces:
        if workspace.access == "rw":
            known = workspace.limit is not None
            why = "no quota for a user's own directory" + (
                "; the cell measures" if known else " and no limit named"
            )
            grades.append(LimitGrade("workspace_disk", "watched" if known else "missing", why))
    return tuple(grades)
