"""What `stockade doctor` says on each recorded host."""

from pathlib import Path

import pytest

from stockade.errors import HostUnsupported
from stockade.isolation.checks import Finding, check_all
from stockade.isolation.container import ContainerWall
from stockade.isolation.host import probe_host
from stockade.isolation.seccomp import compile_profile
from stockade.isolation.workspaces import Inspected
from stockade.policy import DEFAULT_POLICY
from tests.unit.isolation.recorded import NAMES, recorded_host


def _findings(name: str, directory: Path) -> dict[str, Finding]:
    return {finding.name: finding for finding in check_all(recorded_host(name, directory))}


@pytest.mark.parametrize("name", NAMES)
def test_doctor_and_planning_agree(name: str, tmp_path: Path) -> None:
    """A host passes if and only if the default policy can be planned on it."""
    host = recorded_host(name, tmp_path)
    optional = {"mode independent"}
    missing = [
        entry
        for entry in check_all(host)
        if entry.grade == "missing" and entry.name not in optional
    ]
    try:
        ContainerWall(DEFAULT_POLICY, host, compile_profile(), Inspected())
    except HostUnsupported:
        assert missing
    else:
        assert not missing


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_not_well_says_how_to_get_it(name: str, tmp_path: Path) -> None:
    """A finding without a way out helps no one."""
    assert all(
        entry.how for entry in check_all(recorded_host(name, tmp_path)) if entry.grade != "ok"
    )


@pytest.mark.parametrize(
    ("name", "finding", "grade"),
    [
        ("root-v1", "limit memory", "ok"),
        ("rootless-single", "limit memory", "degraded"),
        ("rootless-single", "ids", "degraded"),
        ("rootless-subuid", "ids", "ok"),
        ("rootless-single", "cgroup2", "degraded"),
        ("rootless-delegated", "cgroup2", "ok"),
        ("root-no-cgroup2", "cgroup2", "missing"),
        ("in-docker", "proc", "missing"),
        ("apparmor", "user namespaces", "missing"),
        ("old-kernel", "kernel", "missing"),
        ("kernel-6.1", "mode independent", "missing"),
        ("kernel-6.1", "landlock", "degraded"),
    ],
)
def test_finding_of_a_host(name: str, finding: str, grade: str, tmp_path: Path) -> None:
    """Each layout's own fault is named."""
    assert _findings(name, tmp_path)[finding].grade == grade


def test_this_machine_is_checked() -> None:
    """The findings of the host that runs the tests have names and details."""
    assert all(entry.name and entry.detail for entry in check_all(probe_host()))
