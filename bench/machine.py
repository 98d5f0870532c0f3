"""The facts of the machine and of the programs without which a figure means nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import stockade
from bench.peers import Present

ROOT = Path(__file__).resolve().parent.parent


def facts(present: Present) -> dict[str, str]:
    """Return them as words, in the order in which they are shown."""
    load = os.getloadavg()[0]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "kernel": platform.release(),
        "cpu": f"{_field('/proc/cpuinfo', 'model name')}, {os.cpu_count()} cores",
        "memory": f"{int(_field('/proc/meminfo', 'MemTotal').split()[0]) >> 20} GiB",
        "cgroups": _cgroups(),
        "python": platform.python_version(),
        "stockade": f"{stockade.__version__} {_commit()}".strip(),
        "load before": f"{load:.2f}",
        **{peer.name: peer.version() for peer in present.peers},
    }


def sentence(found: Mapping[str, str]) -> str:
    """Return the facts on one line."""
    return "; ".join(f"{name}: {value}" for name, value in found.items())


def _field(path: str, key: str) -> str:
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "0" if path == "/proc/meminfo" else platform.machine()


def _cgroups() -> str:
    kinds = {
        line.split()[2] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    }
    versions = {"cgroup": "v1", "cgroup2": "v2"}
    return " and ".join(version for kind, version in versions.items() if kind in kinds) or "none"


def _commit() -> str:
    """Return the commit; a `+` says that the sources or the cell have changed since."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    if head.returncode != 0:
        return ""
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--", "src", "crates"],
        capture_output=True,
        text=True,
        check=False,
    )
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
