"""An OCI bundle with ours' namespaces and mounts, for crun."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.view import View

#: Ids of the container: 65,536 that ours gives to none (its ranges end below 2**31).
_IDS = {"containerID": 0, "hostID": 3_000_000_000, "size": 65_536}
_NAMESPACES = ("user", "pid", "network", "ipc", "uts", "cgroup", "mount")
#: Ours' default limits, so that crun too makes and fills its cgroups.
_RESOURCES = {
    "devices": [{"allow": False, "access": "rwm"}],
    "memory": {"limit": 512 << 20},
    "pids": {"limit": 64},
    "cpu": {"quota": 50_000, "period": 100_000},
}


def make_bundle(directory: Path, view: View, argv: Sequence[str]) -> None:
    """Write config.json and the directory that the mounts are made in."""
    rootfs = directory / "rootfs"
    rootfs.mkdir(parents=True)
    directory.chmod(0o755)
    for path in ("/proc", "/dev", *view.private):
        (rootfs / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for target, path in view.links:
        link = rootfs / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    for path in view.binds:
        _make_mount_point(rootfs / path.lstrip("/"), Path(path))
    config = json.dumps(_config(view, view.root or str(rootfs), argv), indent=1)
    (directory / "config.json").write_text(config, encoding="utf-8")


def _make_mount_point(point: Path, source: Path) -> None:
    if source.is_dir():
        point.mkdir(parents=True, exist_ok=True)
    else:
        point.parent.mkdir(parents=True, exist_ok=True)
        point.touch()


def _config(view: View, root: str, argv: Sequence[str]) -> dict[str, Any]:
    return {
        "ociVersion": "1.0.0",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": list(argv),
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": root, "readonly": True},
        "hostname": "sandbox",
        "mounts": list(_mounts(view)),
        "linux": {
            "namespaces": [{"type": name} for name in _NAMESPACES],
            "uidMappings": [_IDS],
            "gidMappings": [_IDS],
            "resources": _RESOURCES,
        },
    }


def _mounts(view: View) -> Iterator[dict[str, Any]]:
    yield _mount("/proc", "proc", "proc", [])
    yield _mount("/dev", "tmpfs", "tmpfs", ["nosuid", "mode=755"])
    yield _mount(
        "/dev/pts", "devpts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666"]
    )
    yield _mount("/dev/shm", "tmpfs", "tmpfs", ["nosuid", "nodev", "mode=1777"])
    for path in view.binds:
        yield _mount(path, "bind", path, ["rbind", "ro", "nosuid", "nodev"])
    for path in view.private:
        yield _mount(path, "tmpfs", "tmpfs", ["nosuid", "nodev", "mode=1777"])


def _mount(destination: str, kind: str, source: str, options: list[str]) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": source, "options": options}
