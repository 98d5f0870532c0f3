"""Which cgroups a sandbox gets on each layout, and how its limits are graded."""

from pathlib import Path

import pytest

from stockade.errors import HostUnsupported
from stockade.isolation.cgroups import base_directories, plan_cgroups
from stockade.isolation.grades import LimitGrade, check_grades
from stockade.policy import DEFAULT_POLICY, Limits, policy_from
from stockade.wire.launch import CGROUP_CELL, CGROUP_JOIN, CGROUP_PARENT, CGROUP_WORK, Cgroup
from tests.unit.isolation.recorded import recorded_host

LIMITS = DEFAULT_POLICY.limits


def _made(name: str, directory: Path, limits: Limits = LIMITS) -> tuple[Cgroup, ...]:
    return plan_cgroups(limits, recorded_host(name, directory)).for_sandbox("sb-1")


def _writes(cgroup: Cgroup) -> dict[str, str]:
    return {write.file: write.value for write in cgroup.writes}


def _grades(name: str, directory: Path) -> dict[str, str]:
    plan = plan_cgroups(LIMITS, recorded_host(name, directory))
    return {entry.limit: entry.grade for entry in plan.grades}


def test_v2_limits_are_those_of_the_specification(tmp_path: Path) -> None:
    """R7: half a core, 512 MB, 80 % of it as memory.high, 64 processes; no swap."""
    work = next(cgroup for cgroup in _made("root-v2", tmp_path) if cgroup.role == CGROUP_WORK)
    assert _writes(work) == {
        "cpu.max": "50000 100000",
        "memory.max": "536870912",
        "memory.high": "429496729",
        "memory.swap.max": "0",
        "pids.max": "64",
    }


def test_v2_parent_switches_controllers_on_before_its_children_are_made(tmp_path: Path) -> None:
    """A child's files exist only then."""
    made = _made("root-v2", tmp_path)
    assert [cgroup.role for cgroup in made] == [CGROUP_PARENT, CGROUP_CELL, CGROUP_WORK]
    assert made[0].writes[0].value == "+cpu +memory +pids"


def test_v2_cell_has_room_beside_its_commands(tmp_path: Path) -> None:
    """Commands at their limit leave the cell its own."""
    parent = _writes(_made("root-v2", tmp_path)[0])
    assert int(parent["memory.max"]) > LIMITS.memory
    assert int(parent["pids.max"]) > LIMITS.processes


def test_v1_limits_are_joined_and_life_stays_on_v2(tmp_path: Path) -> None:
    """One directory for each v1 controller; no v1 freezer (kernel-facts 1)."""
    made = _made("root-v1", tmp_path)
    assert [cgroup.role for cgroup in made[:3]] == [CGROUP_PARENT, CGROUP_CELL, CGROUP_WORK]
    joined = {cgroup.path: list(_writes(cgroup)) for cgroup in made if cgroup.role == CGROUP_JOIN}
    assert joined == {
        "/sys/fs/cgroup/cpu,cpuacct/stockade/sb-1": ["cpu.cfs_period_us", "cpu.cfs_quota_us"],
        "/sys/fs/cgroup/memory/stockade/sb-1": [
            "memory.limit_in_bytes",
            "memory.memsw.limit_in_bytes",
            "memory.soft_limit_in_bytes",
        ],
        "/sys/fs/cgroup/pids/stockade/sb-1": ["pids.max"],
    }


def test_hybrid_host_uses_each_controller_where_it_is(tmp_path: Path) -> None:
    """Pids on v2, cpu and memory on v1."""
    made = _made("root-hybrid", tmp_path)
    work = next(cgroup for cgroup in made if cgroup.role == CGROUP_WORK)
    assert (list(_writes(work)), len([c for c in made if c.role == CGROUP_JOIN])) == (
        ["pids.max"],
        2,
    )


@pytest.mark.parametrize(
    ("cores", "quota"), [(0.01, "1000"), (0.5, "50000"), (1, "100000"), (2.5, "250000")]
)
def test_cpu_quota_is_a_share_of_the_period(cores: float, quota: str, tmp_path: Path) -> None:
    """Never below the kernel's smallest quota."""
    limits = policy_from({"limits": {"cpu": cores}}).limits
    cpu = next(cgroup for cgroup in _made("root-v1", tmp_path, limits) if "/cpu" in cgroup.path)
    assert _writes(cpu)["cpu.cfs_quota_us"] == quota


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("root-v1", ("enforced", "enforced", "enforced")),
        ("root-v2", ("enforced", "enforced", "enforced")),
        ("root-hybrid", ("enforced", "enforced", "enforced")),
        ("root-container-v2", ("watched", "watched", "enforced")),
        ("rootless-delegated", ("watched", "enforced", "enforced")),
        ("rootless-single", ("watched", "watched", "enforced")),
        ("rootless-subuid", ("watched", "watched", "enforced")),
    ],
)
def test_grades_of_each_layout(name: str, expected: tuple[str, ...], tmp_path: Path) -> None:
    """What the kernel does not hold, the cell watches; RLIMIT_NPROC is real in a user namespace."""
    grades = _grades(name, tmp_path)
    assert (grades["cpu"], grades["memory"], grades["processes"]) == expected


def test_ordinary_user_without_delegation_gets_no_cgroup(tmp_path: Path) -> None:
    """Nothing is planned that could not be made."""
    assert _made("rootless-single", tmp_path) == ()


def test_root_without_cgroup2_is_refused(tmp_path: Path) -> None:
    """Nothing else kills and freezes a whole tree (kernel-facts 1)."""
    with pytest.raises(HostUnsupported, match="cgroup2"):
        _made("root-no-cgroup2", tmp_path)


def test_only_our_own_directories_are_planned(tmp_path: Path) -> None:
    """Everything lies in a directory named stockade of a hierarchy."""
    host = recorded_host("root-v1", tmp_path)
    bases = base_directories(host)
    paths = [cgroup.path for cgroup in plan_cgroups(LIMITS, host).for_sandbox("sb-1")]
    assert all(path.startswith(tuple(f"{base}/sb-1" for base in bases)) for path in paths)


@pytest.mark.parametrize("sandbox_id", ["", "..", "a/b", "A", "-a", "a" * 64, "a\n", "a.b", "ä"])
def test_id_that_could_be_a_path_is_an_error(sandbox_id: str, tmp_path: Path) -> None:
    """The id becomes the name of directories."""
    plan = plan_cgroups(LIMITS, recorded_host("root-v2", tmp_path))
    with pytest.raises(ValueError, match="not a sandbox id"):
        plan.for_sandbox(sandbox_id)


WATCHED = (LimitGrade("cpu", "watched", "the cell"),)
MISSING = (LimitGrade("workspace_disk", "missing", "no quota"),)


def test_strict_policy_refuses_a_watched_limit() -> None:
    """`strict` accepts what the kernel holds, nothing else."""
    with pytest.raises(HostUnsupported, match="only watched"):
        check_grades(policy_from({"isolation": {"grades": "strict"}}), WATCHED)


def test_default_policy_accepts_a_watched_limit() -> None:
    """It is said, not refused."""
    check_grades(DEFAULT_POLICY, WATCHED)


def test_missing_limit_is_refused_until_it_is_named() -> None:
    """Doing without a limit is a decision that the policy states."""
    with pytest.raises(HostUnsupported, match="workspace_disk"):
        check_grades(DEFAULT_POLICY, MISSING)
    check_grades(policy_from({"limits": {"accept_missing": ["workspace_disk"]}}), MISSING)
