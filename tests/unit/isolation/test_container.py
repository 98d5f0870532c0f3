"""The container wall's plans: snapshots on recorded hosts, and what must hold for every plan."""

import os
import posixpath
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from stockade.errors import HostUnsupported, ImageError
from stockade.isolation.container import ContainerWall, wall_for
from stockade.isolation.host import Host
from stockade.isolation.seccomp import compile_profile
from stockade.isolation.workspaces import DirectoryFacts, Inspected
from stockade.policy import DEFAULT_POLICY, Policy, policy_from
from stockade.wire import frames
from stockade.wire.codec import decode_struct
from stockade.wire.launch import (
    ATTR_NODEV,
    ATTR_NOSUID,
    ATTR_RDONLY,
    LAUNCH_INNER_USER,
    LAUNCH_LANDLOCK,
    LAUNCH_LANDLOCK_SIGNALS,
    NO_MAP,
    Bind,
    Launch,
    Mask,
    Overlay,
    Pivot,
    Proc,
    Root,
    RootTree,
    Sysfs,
    Tmpfs,
    WriteFile,
    encode_launch,
)
from tests.unit.isolation.recorded import recorded_host

PLANS = Path(__file__).parent / "plans"
PROGRAM = compile_profile(arch="x86_64")
HOSTS = ["root-v1", "root-v2", "rootless-single", "rootless-subuid"]
MODES = ["read-only", "workspace", "independent"]


def _wall(
    host: Host, policy: Policy = DEFAULT_POLICY, inspected: Inspected | None = None
) -> ContainerWall:
    return ContainerWall(policy, host, PROGRAM, inspected or Inspected())


def _launch(
    host: Host, policy: Policy = DEFAULT_POLICY, inspected: Inspected | None = None
) -> Launch:
    return _wall(host, policy, inspected).plan(3, "sb-1").launch


def _policy(**parts: object) -> Policy:
    return policy_from({"version": 1, **parts})


@pytest.mark.parametrize("name", HOSTS)
def test_default_plan_is_the_recorded_one(name: str, tmp_path: Path) -> None:
    """A change to what is built shows in review. STOCKADE_RECORD=1 writes the files anew."""
    text = _wall(recorded_host(name, tmp_path)).plan(3, "sb-1").to_yaml()
    file = PLANS / f"{name}.yaml"
    if os.environ.get("STOCKADE_RECORD"):
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("name", HOSTS)
def test_frame_is_what_the_wire_encodes(name: str, tmp_path: Path) -> None:
    """Encoding the constant parts once changes no byte, and the cell reads back the same plan."""
    plan = _wall(recorded_host(name, tmp_path)).plan(3, "sb-1")
    assert plan.frame == encode_launch(plan.launch)
    assert decode_struct(Launch, plan.frame[frames.HEADER.size :]) == plan.launch


def test_two_sandboxes_of_one_wall_share_nothing_that_is_their_own(tmp_path: Path) -> None:
    """Ids and cgroups differ, everything else is one object."""
    wall = _wall(recorded_host("root-v2", tmp_path))
    one, other = wall.plan(1, "sb-1").launch, wall.plan(2, "sb-2").launch
    assert (one.identity == other.identity, one.cgroups == other.cgroups) == (False, False)
    assert one.steps is other.steps


@pytest.mark.parametrize(
    ("name", "mode"), [*product(HOSTS[:2], MODES), *product(HOSTS[2:], MODES[:2])]
)
def test_no_plan_shows_what_is_the_hosts(name: str, mode: str, tmp_path: Path) -> None:
    """Never /home, /root, /var, /run, /boot, shadow, passwd or private keys (W1)."""
    launch = _launch(recorded_host(name, tmp_path), _policy(filesystem={"mode": mode}))
    sources = [step.source for step in launch.steps if isinstance(step, Bind | RootTree | Overlay)]
    allowed = (
        "/usr",
        "/etc/ld.so.cache",
        "/etc/services",
        "/etc/ssl/certs",
        "/etc/ssl/openssl.cnf",
        "/dev/",
    )
    assert [source for source in sources if not source.startswith(allowed)] == []


@pytest.mark.parametrize(
    ("name", "mode"), [*product(HOSTS[:2], MODES), *product(HOSTS[2:], MODES[:2])]
)
def test_every_mount_is_nosuid(name: str, mode: str, tmp_path: Path) -> None:
    """And nodev, but for the devices themselves; what comes from the host is read-only."""
    launch = _launch(recorded_host(name, tmp_path), _policy(filesystem={"mode": mode}))
    for step in launch.steps:
        if isinstance(step, Bind | Tmpfs | Overlay):
            assert step.attrs & ATTR_NOSUID
            assert step.attrs & ATTR_NODEV or step.path.startswith("dev/")
        if isinstance(step, Bind) and not step.path.startswith("dev/"):
            assert step.attrs & ATTR_RDONLY


@pytest.mark.parametrize("name", HOSTS)
def test_storage_of_a_plan_is_at_most_the_disk_limit(name: str, tmp_path: Path) -> None:
    """The sum of every tmpfs is at most half of memory (kernel-facts 5)."""
    launch = _launch(recorded_host(name, tmp_path))
    sizes = [step.size_bytes for step in launch.steps if isinstance(step, Root | Tmpfs | Overlay)]
    assert sum(sizes) <= DEFAULT_POLICY.limits.disk_bytes <= DEFAULT_POLICY.limits.memory // 2


@pytest.mark.parametrize(
    ("mode", "read_only"), [("read-only", True), ("workspace", True), ("independent", False)]
)
def test_root_is_read_only_except_in_independent_mode(
    mode: str, read_only: bool, tmp_path: Path
) -> None:
    """R2 and R8."""
    launch = _launch(recorded_host("root-v2", tmp_path), _policy(filesystem={"mode": mode}))
    assert launch.steps[-1] == Pivot("pivot", read_only)


def test_proc_is_made_with_its_sysctls_and_masks_follow_it(tmp_path: Path) -> None:
    """R9: nesting blocked, SysV memory bounded (kernel-facts 5 and 11), dangerous parts covered."""
    steps = _launch(recorded_host("root-v2", tmp_path)).steps
    proc = next(step for step in steps if isinstance(step, Proc))
    assert {"user/max_user_namespaces=0", "kernel/shm_rmid_forced=1", "kernel/shmall=2048"} <= set(
        proc.sysctls
    )
    masks = [step.path for step in steps if isinstance(step, Mask)]
    assert masks == ["proc/irq", "proc/kcore", "proc/keys", "proc/sysrq-trigger", "proc/timer_list"]
    assert steps.index(proc) < min(steps.index(step) for step in steps if isinstance(step, Mask))


def test_single_id_mode_asks_for_the_inner_namespace_and_signal_scope(tmp_path: Path) -> None:
    """And gets the command filter that protects process 1 (kernel-facts 7)."""
    launch = _launch(recorded_host("rootless-single", tmp_path))
    assert launch.flags == LAUNCH_LANDLOCK | LAUNCH_LANDLOCK_SIGNALS | LAUNCH_INNER_USER
    assert launch.seccomp_child == PROGRAM.child_single
    (proc,) = (step for step in launch.steps if isinstance(step, Proc))
    assert "user/max_user_namespaces=1" in proc.sysctls


def test_separate_ids_need_neither(tmp_path: Path) -> None:
    """The uid stands between cell and payload."""
    launch = _launch(recorded_host("rootless-subuid", tmp_path))
    assert (launch.flags, launch.seccomp_child) == (LAUNCH_LANDLOCK, PROGRAM.child)


def test_core_limit_is_one(tmp_path: Path) -> None:
    """A piped core_pattern ignores 0 (kernel-facts 10)."""
    limits = {
        limit.resource: (limit.soft, limit.hard)
        for limit in _launch(recorded_host("root-v2", tmp_path)).rlimits
    }
    assert (limits[4], limits[6], limits[7]) == ((1, 1), (72, 72), (1024, 1024))


def test_rlimits_stay_within_our_own(tmp_path: Path) -> None:
    """Raising a hard limit needs a right that root may lack here."""
    host = replace(recorded_host("root-v2", tmp_path), hard_limits=(("nofile", 100),))
    limits = {limit.resource: limit.hard for limit in _launch(host).rlimits}
    assert limits[7] == 100


def test_limits_of_processes_and_files_follow_the_policy(tmp_path: Path) -> None:
    """CPU time and file size are set when named."""
    policy = _policy(limits={"cpu_seconds": 9, "file_size": "1M"})
    limits = {
        limit.resource: limit.hard
        for limit in _launch(recorded_host("root-v2", tmp_path), policy).rlimits
    }
    assert (limits[0], limits[1]) == (9, 1 << 20)


def test_watch_is_empty_where_the_kernel_holds_the_limits(tmp_path: Path) -> None:
    """The cell measures only what nothing else does."""
    watch = _launch(recorded_host("root-v2", tmp_path)).watch
    assert (watch.memory_bytes, watch.cpu_millicores) == (0, 0)


def test_watch_takes_over_for_an_ordinary_user(tmp_path: Path) -> None:
    """Memory in bytes, CPU in thousandths of a core over a minute."""
    watch = _launch(recorded_host("rootless-single", tmp_path)).watch
    assert (watch.memory_bytes, watch.cpu_millicores, watch.cpu_window_ms) == (
        512 << 20,
        500,
        60_000,
    )


def test_workspace_is_mapped_to_the_payload_as_root(tmp_path: Path) -> None:
    """Its owner on disk is the payload inside (kernel-facts 21)."""
    policy = _policy(filesystem={"workspaces": [{"source": "/srv/p", "limit": {"bytes": "1G"}}]})
    inspected = Inspected((DirectoryFacts("/srv/p", 1234, 1235),))
    launch = _launch(recorded_host("root-v2", tmp_path), policy, inspected)
    (bind,) = (step for step in launch.steps if isinstance(step, Bind) and step.path == "workspace")
    assert (bind.map_uid, bind.map_gid, bind.attrs) == (1234, 1235, ATTR_NOSUID | ATTR_NODEV)
    assert (launch.watch.disk_paths, launch.watch.disk_bytes) == (("/workspace",), 1 << 30)


def test_workspace_is_left_as_it_is_for_an_ordinary_user(tmp_path: Path) -> None:
    """Idmapped mounts are root's; read-only is kept."""
    policy = _policy(filesystem={"workspaces": [{"source": "/srv/p", "access": "ro"}]})
    inspected = Inspected((DirectoryFacts("/srv/p", 1000, 1000),))
    launch = _launch(recorded_host("rootless-single", tmp_path), policy, inspected)
    (bind,) = (step for step in launch.steps if isinstance(step, Bind) and step.path == "workspace")
    assert (bind.map_uid, bind.attrs & ATTR_RDONLY) == (NO_MAP, ATTR_RDONLY)


def test_writable_workspace_without_a_limit_is_missing_one(tmp_path: Path) -> None:
    """It is an error until the policy says so."""
    workspaces = [{"source": "/srv/p", "limit": None}]
    inspected = Inspected((DirectoryFacts("/srv/p", 1000, 1000),))
    host = recorded_host("root-v2", tmp_path)
    with pytest.raises(HostUnsupported, match="workspace_disk"):
        _wall(host, _policy(filesystem={"workspaces": workspaces}), inspected)
    limits = {"accept_missing": ["workspace_disk"]}
    accepted = _wall(host, _policy(filesystem={"workspaces": workspaces}, limits=limits), inspected)
    assert "missing" in {entry.grade for entry in accepted.grades}


def test_strict_policy_is_refused_where_limits_are_watched(tmp_path: Path) -> None:
    """Never a weaker wall than was asked for."""
    with pytest.raises(HostUnsupported, match="only watched"):
        _wall(recorded_host("rootless-single", tmp_path), _policy(isolation={"grades": "strict"}))


def test_environment_is_the_sandboxs_own(tmp_path: Path) -> None:
    """R9: PATH, HOME, LANG and what the policy adds; toolchains come first on PATH."""
    policy = _policy(
        isolation={"env": {"LANG": "de_DE.UTF-8", "X": "1"}}, filesystem={"toolchains": ["/opt/py"]}
    )
    env = dict(_wall(recorded_host("root-v2", tmp_path), policy).env)
    assert (env["HOME"], env["LANG"], env["X"]) == ("/workspace", "de_DE.UTF-8", "1")
    assert env["PATH"].startswith("/opt/py/bin:/usr/local/sbin")
    assert set(env) == {"PATH", "HOME", "LANG", "X"}


def test_home_is_tmp_where_the_workspace_cannot_be_written(tmp_path: Path) -> None:
    """Programs need a writable HOME."""
    wall = _wall(recorded_host("root-v2", tmp_path), _policy(filesystem={"mode": "read-only"}))
    assert dict(wall.env)["HOME"] == "/tmp"


def test_names_of_the_sandbox_are_synthetic(tmp_path: Path) -> None:
    """passwd, hosts, resolv.conf and hostname say nothing of the host."""
    policy = _policy(isolation={"hostname": "box"})
    steps = _launch(recorded_host("root-v2", tmp_path), policy).steps
    files = {step.path: step.content for step in steps if isinstance(step, WriteFile)}
    assert b"alice" not in files["etc/passwd"]
    assert files["etc/hosts"].startswith(b"127.0.0.1 localhost box")
    assert files["etc/resolv.conf"].startswith(b"nameserver 127.0.0.1")


def test_sys_is_mounted_only_when_asked_for(tmp_path: Path) -> None:
    """W1: no /sys unless asked."""
    host = recorded_host("root-v2", tmp_path)
    assert not any(isinstance(step, Sysfs) for step in _launch(host).steps)
    assert any(
        isinstance(step, Sysfs) for step in _launch(host, _policy(isolation={"sys": True})).steps
    )


def test_paths_of_steps_stay_below_the_new_root(tmp_path: Path) -> None:
    """Relative, normalised, without a way up."""
    policy = _policy(filesystem={"writable": ["/data/out"], "toolchains": ["/opt/x y"]})
    for step in _launch(recorded_host("root-v2", tmp_path), policy).steps:
        path = getattr(step, "path", "x")
        assert path == posixpath.normpath(path)
        assert not path.startswith(("/", ".."))


def test_independent_mode_lays_an_overlay_on_usr(tmp_path: Path) -> None:
    """Root-owned files of the image are the payload's, so that all of it can be changed (R8)."""
    policy = _policy(filesystem={"mode": "independent"})
    (overlay,) = (
        step
        for step in _launch(recorded_host("root-v2", tmp_path), policy).steps
        if isinstance(step, Overlay)
    )
    assert (overlay.source, overlay.map_uid, overlay.size_bytes > 0) == ("/usr", 0, True)


@pytest.mark.parametrize(
    ("name", "why"), [("kernel-6.1", "kernel 6.1"), ("rootless-subuid", "ordinary user")]
)
def test_independent_mode_is_refused_where_overlays_fail(
    name: str, why: str, tmp_path: Path
) -> None:
    """An error, never another mode (kernel-facts 20)."""
    with pytest.raises(HostUnsupported, match=why):
        _wall(recorded_host(name, tmp_path), _policy(filesystem={"mode": "independent"}))


def test_directory_image_becomes_the_root(tmp_path: Path) -> None:
    """Its root-owned files belong to the payload inside; /dev is covered by our own."""
    policy = _policy(isolation={"image": "/srv/image"})
    steps = _launch(recorded_host("root-v2", tmp_path), policy).steps
    assert steps[0] == RootTree("root", "/srv/image", 0, 0, 0, 0)
    assert any(isinstance(step, Tmpfs) and step.path == "dev" for step in steps)


def test_read_only_image_without_mount_points_is_an_error(tmp_path: Path) -> None:
    """The error names what is missing."""
    policy = _policy(isolation={"image": "/srv/image"})
    with pytest.raises(ImageError, match="/output"):
        _wall(recorded_host("root-v2", tmp_path), policy, Inspected(image_lacks=("output",)))


@pytest.mark.parametrize("level", ["process", "microvm"])
def test_other_level_is_an_error_never_a_weaker_wall(level: str, tmp_path: Path) -> None:
    """C03: what was asked for is missing, so nothing runs."""
    with pytest.raises(HostUnsupported, match=level):
        wall_for(
            _policy(isolation={"level": level}),
            recorded_host("root-v2", tmp_path),
            PROGRAM,
            Inspected(),
        )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("old-kernel", "kernel 5.15 is too old"),
        ("in-docker", "/proc"),
        ("apparmor", "AppArmor"),
        ("root-no-cgroup2", "cgroup2"),
    ],
)
def test_host_that_lacks_a_mechanism_is_refused_by_name(
    name: str, why: str, tmp_path: Path
) -> None:
    """Each with what to do about it."""
    with pytest.raises(HostUnsupported, match=why) as caught:
        _wall(recorded_host(name, tmp_path))
    assert caught.value.how


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"landlock_abi": 0}, "Landlock"),
        ({"max_user_namespaces": 0}, "user namespaces"),
        ({"capabilities": 0xFF}, "CAP_SYS_ADMIN"),
        ({"all_ids": False}, "inside a user namespace"),
    ],
)
def test_root_that_lacks_a_right_is_refused_by_name(
    change: dict[str, object], why: str, tmp_path: Path
) -> None:
    """Inside containers root is not always root."""
    host = replace(recorded_host("root-v2", tmp_path), **change)  # type: ignore[arg-type]
    with pytest.raises(HostUnsupported, match=why):
        _wall(host)


def test_policy_may_do_without_landlock(tmp_path: Path) -> None:
    """It is the second wall for files; a policy can say that one is enough."""
    host = replace(recorded_host("root-v2", tmp_path), landlock_abi=0)
    launch = _launch(host, _policy(isolation={"landlock": False}))
    assert (launch.flags, launch.landlock) == (0, ())


def test_wall_is_planned_once(tmp_path: Path) -> None:
    """Equal policy, host and directories give the same wall."""
    host = recorded_host("root-v2", tmp_path)
    again = policy_from({"version": 1})
    assert wall_for(DEFAULT_POLICY, host, PROGRAM, Inspected()) is wall_for(
        again, host, PROGRAM, Inspected()
    )


def test_cgroups_are_known_before_the_slot(tmp_path: Path) -> None:
    """They are written into the slot's lock file first."""
    wall = _wall(recorded_host("root-v1", tmp_path))
    made = wall.plan(0, "sb-1").launch.cgroups
    assert wall.cgroup_paths("sb-1") == tuple(cgroup.path for cgroup in made)
