"""Real cgroup directories of this host: made, killed, read and removed."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.errors import LaunchError
from stockade.isolation import cgroups_io
from stockade.isolation.cgroups import plan_cgroups
from stockade.isolation.host import probe_host
from stockade.policy import DEFAULT_POLICY
from stockade.wire.launch import CGROUP_JOIN, CGROUP_WORK, Cgroup
from tests.unit.isolation.recorded import recorded_host

HOST = probe_host()
pytestmark = pytest.mark.root


@pytest.fixture
def cgroups() -> Iterator[tuple[Cgroup, ...]]:
    """Make the directories of a sandbox as the launcher does, and remove them."""
    cgroups_io.prepare(HOST)
    made = plan_cgroups(DEFAULT_POLICY.limits, HOST).for_sandbox(f"unit-{os.getpid()}")
    try:
        for cgroup in made:
            Path(cgroup.path).mkdir()
            for write in cgroup.writes:
                (Path(cgroup.path) / write.file).write_text(write.value)
        yield made
    finally:
        cgroups_io.remove_paths([cgroup.path for cgroup in made], 5)


@contextlib.contextmanager
def _task(cgroups: tuple[Cgroup, ...]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that has joined `work` and every v1 directory."""
    places = [cgroup.path for cgroup in cgroups if cgroup.role in (CGROUP_WORK, CGROUP_JOIN)]
    script = (
        "".join(f"echo 0 > {place}/cgroup.procs; " for place in places) + "echo in; exec sleep 60"
    )
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"in\n"
        try:
            yield process
        finally:
            process.kill()


def test_limits_are_read_back_as_written(cgroups: tuple[Cgroup, ...]) -> None:
    """The kernel took every value, whichever version holds the controller."""
    for cgroup in cgroups:
        for write in (entry for entry in cgroup.writes if entry.file != "cgroup.subtree_control"):
            found = (Path(cgroup.path) / write.file).read_text().strip()
            # memory is held in pages
            assert found == write.value or abs(int(found) - int(write.value)) < 4096


def test_kill_ends_what_runs_in_the_cgroups(cgroups: tuple[Cgroup, ...]) -> None:
    """SIGKILL for every task, and the cgroups are empty."""
    with _task(cgroups) as process:
        assert not cgroups_io.is_empty(cgroups)
        cgroups_io.kill(cgroups)
        assert process.wait(5) == -signal.SIGKILL
        assert cgroups_io.is_empty(cgroups)


def test_frozen_task_is_killed(cgroups: tuple[Cgroup, ...]) -> None:
    """cgroup.kill needs no thaw (kernel-facts 1)."""
    work = next(cgroup.path for cgroup in cgroups if cgroup.role == CGROUP_WORK)
    with _task(cgroups) as process:
        (Path(work) / "cgroup.freeze").write_text("1")
        cgroups_io.kill(cgroups)
        assert process.wait(5) == -signal.SIGKILL


def test_v1_cgroup_alone_is_killed_task_by_task(cgroups: tuple[Cgroup, ...]) -> None:
    """Where only a v1 directory is left, its tasks are killed one by one."""
    joined = [cgroup for cgroup in cgroups if cgroup.role == CGROUP_JOIN]
    if not joined:
        return
    with _task(cgroups) as process:
        cgroups_io.kill_paths([joined[0].path])
        assert process.wait(5) == -signal.SIGKILL


def test_remove_kills_waits_and_leaves_nothing(cgroups: tuple[Cgroup, ...]) -> None:
    """Populated directories are emptied first; children go before parents."""
    with _task(cgroups):
        assert asyncio.run(cgroups_io.remove(cgroups, 5)) == ()
    assert not any(Path(cgroup.path).exists() for cgroup in cgroups)


def test_removing_twice_is_no_error(cgroups: tuple[Cgroup, ...]) -> None:
    """The collector may come after the owner."""
    paths = [cgroup.path for cgroup in cgroups]
    assert (cgroups_io.remove_paths(paths, 1), cgroups_io.remove_paths(paths, 1)) == ((), ())


def test_usage_counts_the_commands(cgroups: tuple[Cgroup, ...]) -> None:
    """One task, some memory, some CPU time, from whichever version has the controller."""
    with _task(cgroups):
        usage = cgroups_io.usage(cgroups)
        assert (usage.tasks, (usage.memory_bytes or 0) > 0, (usage.cpu_us or 0) > 0) == (
            1,
            True,
            True,
        )


def test_oom_kill_is_counted(cgroups: tuple[Cgroup, ...]) -> None:
    """What the kernel killed for memory is known afterwards."""
    counter = cgroups_io.EventCounter(cgroups, "memory")
    memory = next(
        cgroup.path for cgroup in cgroups if any(write.file.startswith("memory.") for write in cgroup.writes)
        and cgroup.role in (CGROUP_WORK, CGROUP_JOIN)
    )  # fmt: skip
    script = f"echo 0 > {memory}/cgroup.procs; exec python3 -c 'bytearray(600 << 20)'"
    assert subprocess.run(["/bin/sh", "-c", script], check=False).returncode == -signal.SIGKILL
    assert counter.read() == 1
    counter.close()
    assert counter.read() == 0


@pytest.mark.parametrize(
    "path",
    [
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/unified/stockade",
        "/sys/fs/cgroup/unified/stockade/",
        "/sys/fs/cgroup/unified/stockade/..",
        "/sys/fs/cgroup/unified/stockade/a/../..",
        "/sys/fs/cgroup/unified/stockade/a/cell/x",
        "/sys/fs/cgroup/unified/stockade/a/b",
        "/sys/fs/cgroup/unified/other/a",
        "stockade/a",
        "/",
    ],
)
def test_nothing_but_ours_is_killed_or_removed(path: str) -> None:
    """A damaged lock file must not lead to another cgroup."""
    with pytest.raises(ValueError, match="not a sandbox's cgroup"):
        cgroups_io.kill_paths([path])
    with pytest.raises(ValueError, match="not a sandbox's cgroup"):
        cgroups_io.remove_now([path])


def test_base_that_cannot_be_made_is_a_launch_error(tmp_path: Path) -> None:
    """The error names the directory and says what to do."""
    from dataclasses import replace  # noqa: PLC0415 - next to its only use

    host = recorded_host("root-v2", tmp_path)
    assert host.cgroup2
    lost = replace(host, cgroup2=replace(host.cgroup2, base="/proc/nowhere"))
    with pytest.raises(LaunchError, match="/proc/nowhere/stockade"):
        cgroups_io.prepare(lost)
