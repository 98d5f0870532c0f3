"""Probing: recorded hosts of every layout, and this machine."""

from pathlib import Path

import pytest

from stockade.isolation.host import Cgroup2, IdRange, probe_host
from tests.unit.isolation.recorded import NAMES, recorded_host


def test_v1_host_has_a_cgroup2_hierarchy_without_controllers(tmp_path: Path) -> None:
    """What this project's CI has: limits on v1, life and death on v2 (kernel-facts 1)."""
    host = recorded_host("root-v1", tmp_path)
    assert host.cgroup2 == Cgroup2(
        "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified", writable=True, controllers=()
    )
    assert [(entry.name, entry.swap) for entry in host.v1] == [
        ("cpu", False),
        ("memory", True),
        ("pids", False),
    ]


def test_v1_controllers_that_share_a_mount_are_found(tmp_path: Path) -> None:
    """Cpu and cpuacct are usually one hierarchy."""
    entry = recorded_host("root-v1", tmp_path).controller("cpu")
    assert entry is not None
    assert entry.path == "/sys/fs/cgroup/cpu,cpuacct"


def test_v2_root_may_switch_controllers_on_beside_processes(tmp_path: Path) -> None:
    """The root of all is exempt from "no internal processes"."""
    host = recorded_host("root-v2", tmp_path)
    assert host.cgroup2
    assert (host.cgroup2.controllers, host.v1) == (("cpu", "memory", "pids"), ())


def test_container_root_cgroup_with_processes_offers_no_new_controller(tmp_path: Path) -> None:
    """A cgroup namespace's root is no root: with processes in it only what is on already counts."""
    host = recorded_host("root-container-v2", tmp_path)
    assert host.cgroup2
    assert host.cgroup2.controllers == ()


def test_delegated_directory_is_the_topmost_writable_one(tmp_path: Path) -> None:
    """Systemd delegates user@UID.service; its child slices are ours too."""
    host = recorded_host("rootless-delegated", tmp_path)
    assert host.cgroup2
    assert host.cgroup2.base.endswith("/user@1000.service")
    assert (host.cgroup2.writable, host.cgroup2.controllers) == (True, ("memory", "pids"))


def test_ordinary_user_in_a_session_has_no_cgroup(tmp_path: Path) -> None:
    """A login session's scope is root's."""
    host = recorded_host("rootless-single", tmp_path)
    assert host.cgroup2
    assert not host.cgroup2.writable


def test_subordinate_ids_are_the_users_own(tmp_path: Path) -> None:
    """By name, from both files."""
    host = recorded_host("rootless-subuid", tmp_path)
    assert (host.user, host.subuid, host.subgid) == (
        "alice",
        (IdRange(100000, 65536),),
        (IdRange(100000, 65536),),
    )


def test_covered_proc_and_docker_are_seen(tmp_path: Path) -> None:
    """Inside Docker /proc can't be mounted again (kernel-facts 21)."""
    host = recorded_host("in-docker", tmp_path)
    assert (host.proc_covered, host.container) == (True, "docker")


def test_private_parts_of_etc_are_never_entries(tmp_path: Path) -> None:
    """Only named entries are looked at: no keys, no shadow, no passwd, no home."""
    paths = {entry.path for entry in recorded_host("root-v1", tmp_path).entries}
    assert paths == {
        "usr", "bin", "sbin", "lib", "lib64", "etc/ld.so.cache", "etc/localtime", "etc/services", "etc/ssl/certs",
        "etc/ssl/openssl.cnf",
    }  # fmt: skip


def test_kernel_version_is_read_from_any_release(tmp_path: Path) -> None:
    """Distributions append what they like."""
    assert recorded_host("old-kernel", tmp_path).kernel == (5, 15)


def test_empty_tree_offers_nothing(tmp_path: Path) -> None:
    """A missing file has the value that offers least; nothing raises."""
    full = recorded_host("root-v2", tmp_path / "full")
    (tmp_path / "empty").mkdir()
    system_host = probe_host(tmp_path / "empty")
    assert (system_host.cgroup2, system_host.v1, system_host.overlay, system_host.all_ids) == (
        None,
        (),
        False,
        False,
    )
    assert full.all_ids


@pytest.mark.parametrize("name", NAMES)
def test_host_is_a_key(name: str, tmp_path: Path) -> None:
    """Walls are kept by host and policy, so equal facts are one key."""
    first, second = recorded_host(name, tmp_path / "a"), recorded_host(name, tmp_path / "b")
    assert hash(first) == hash(second)


def test_this_machine_is_probed() -> None:
    """The live probe agrees with what the kernel says of itself."""
    host = probe_host()
    assert host.kernel >= (5, 19)
    assert host.entries[0].path == "usr"
    assert host.pid_max == int(Path("/proc/sys/kernel/pid_max").read_text())
