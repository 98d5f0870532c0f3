"""Recorded hosts: directory trees and system call answers that stand in for a machine."""

import tomllib
from pathlib import Path

from stockade.isolation.host import RLIM_INFINITY, RLIMIT_NAMES, Host, System, probe_host

HOSTS = Path(__file__).parent / "hosts"
NAMES = sorted(path.stem for path in HOSTS.glob("*.toml") if path.stem != "common")


def recorded_host(name: str, directory: Path) -> Host:
    """Make the tree of a recorded host in `directory`, and probe it."""
    common = tomllib.loads((HOSTS / "common.toml").read_text())
    own = tomllib.loads((HOSTS / f"{name}.toml").read_text())
    for path, content in {**common["files"], **own["files"]}.items():
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    for path, target in common["links"].items():
        (directory / path).symlink_to(target)
    return probe_host(directory, _system(own))


def _system(own: dict[str, object]) -> System:
    writable = own["writable"]
    assert isinstance(writable, list)
    return System(
        euid=int(str(own["euid"])),
        egid=int(str(own["euid"])),
        release=str(own["release"]),
        machine="x86_64",
        landlock_abi=int(str(own["landlock_abi"])),
        libseccomp="2.5.4",
        hard_limits=tuple((limit, RLIM_INFINITY) for limit in RLIMIT_NAMES),
        may_write=lambda path: any(
            path == place or path.startswith(f"{place}/") for place in writable
        ),
    )
