"""Slots: one live owner each, and what dead owners leave is collected."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from stockade.errors import HostUnsupported
from stockade.isolation.slots import Slots, collect, open_run_dir, run_dir_for

CGROUP2 = (
    Path("/sys/fs/cgroup/unified")
    if Path("/sys/fs/cgroup/unified").exists()
    else Path("/sys/fs/cgroup")
)

#: A process that takes a slot, says so, and waits to be killed.
OWNER = """
import sys
from stockade.isolation.slots import Slots
slot = Slots(sys.argv[1]).take("dead-one", sys.argv[2:])
print(slot.number, flush=True)
sys.stdin.read()
"""


def _owner(run_dir: Path, *cgroups: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(run_dir), *cgroups],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout
    assert process.stdout.readline() == b"0\n"
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_two_live_owners_never_share_a_slot(tmp_path: Path) -> None:
    """Neither in one process nor in two."""
    other = _owner(tmp_path / "run")
    try:
        slots = Slots(str(tmp_path / "run"))
        numbers = [slots.take("sb", ()).number for _ in range(3)]
        assert (len(set(numbers)), 0 in numbers) == (3, False)
    finally:
        _end(other)


def test_two_objects_of_one_process_never_share_a_slot(tmp_path: Path) -> None:
    """Locks belong to open files, not to the process."""
    run_dir = str(tmp_path / "run")
    first, second = Slots(run_dir).take("a", ()), Slots(run_dir).take("b", ())
    assert first.number != second.number


def test_released_slot_is_taken_again(tmp_path: Path) -> None:
    """After a round of all numbers."""
    slots = Slots(str(tmp_path / "run"), count=2)
    first = slots.take("a", ())
    slots.take("b", ())
    first.release()
    assert slots.take("c", ()).number == first.number


def test_full_house_is_an_error(tmp_path: Path) -> None:
    """With the number of what is there."""
    slots = Slots(str(tmp_path / "run"), count=2)
    held = [slots.take("a", ()), slots.take("b", ())]
    with pytest.raises(HostUnsupported, match="more than 2"):
        slots.take("c", ())
    assert len(held) == 2


def test_releasing_twice_is_no_error(tmp_path: Path) -> None:
    """The second call must not close a descriptor that is someone else's by now."""
    slot = Slots(str(tmp_path / "run")).take("a", ())
    slot.release()
    slot.release()


def test_live_owner_is_not_collected(tmp_path: Path) -> None:
    """Its lock is the proof of life."""
    other = _owner(tmp_path / "run")
    try:
        assert collect(str(tmp_path / "run")) == ()
    finally:
        _end(other)


def test_forked_child_does_not_keep_a_dead_owners_slot(tmp_path: Path) -> None:
    """A worker that outlives its parent holds no lock (kernel-facts 2)."""
    slots = Slots(str(tmp_path / "run"), count=1)
    slot = slots.take("a", ())
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    slot.release()
    assert slots.take("b", ()).number == 0
    os.write(write, b"x")
    os.waitpid(pid, 0)


@pytest.mark.root
def test_killed_owners_cgroups_are_collected_with_what_runs_in_them(tmp_path: Path) -> None:
    """The next start removes them, and tells."""
    sandbox = CGROUP2 / "stockade" / "dead-one"
    owner = _owner(tmp_path / "run", str(sandbox), str(sandbox / "work"))
    (sandbox / "work").mkdir(parents=True)
    task = subprocess.Popen(
        ["/bin/sh", "-c", f"echo 0 > {sandbox}/work/cgroup.procs; exec sleep 60"]
    )
    _end(owner)
    (found,) = collect(str(tmp_path / "run"))
    assert (found.sandbox_id, found.left, sandbox.exists()) == ("dead-one", (), False)
    assert task.wait(5) in (-signal.SIGKILL, 0)
    assert collect(str(tmp_path / "run")) == ()


@pytest.mark.root
def test_slot_of_a_killed_owner_is_cleaned_before_it_is_given_out(tmp_path: Path) -> None:
    """Whoever takes it next starts from nothing."""
    sandbox = CGROUP2 / "stockade" / "dead-one"
    owner = _owner(tmp_path / "run", str(sandbox))
    sandbox.mkdir(parents=True)
    _end(owner)
    slot = Slots(str(tmp_path / "run")).take("new", ())
    assert (slot.number, sandbox.exists()) == (0, False)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b"{}\n",
        b"[]\n",
        b'{"sandbox_id": "a", "cgroups": ["/etc"], "pid": 1, "created": 1}\n',
        b'{"sandbox_id": "a", "cgroups": ["/sys/fs/cgroup"], "pid": 1, "created": 1}\n',
        b'{"sandbox_id": "a", "cgroups": "/", "pid": 1, "created": 1}\n',
        b'{"sandbox_id": "a", "cgroups": [], "pid": "x", "created": 1}\n',
        b"\xff\xfe\n",
    ],
)
def test_damaged_lock_file_harms_nothing(content: bytes, tmp_path: Path) -> None:
    """A torn or foreign content is dropped; no path in it is followed unless it is a sandbox's cgroup."""
    slots = Slots(str(tmp_path / "run"))
    (tmp_path / "run" / "slots" / "0.lock").write_bytes(content)
    assert slots.take("a", ()).number == 0


def test_lock_file_says_what_will_be_made(tmp_path: Path) -> None:
    """It is written before the launcher makes anything."""
    Slots(str(tmp_path / "run")).take("sb-1", ("/sys/fs/cgroup/stockade/sb-1",))
    data = json.loads((tmp_path / "run" / "slots" / "0.lock").read_text())
    assert (data["sandbox_id"], data["cgroups"], data["pid"]) == (
        "sb-1",
        ["/sys/fs/cgroup/stockade/sb-1"],
        os.getpid(),
    )


def test_removed_lock_file_is_not_owned(tmp_path: Path) -> None:
    """A cleaner of /tmp may remove it: the next owner locks a file that others can find."""
    slots = Slots(str(tmp_path / "run"), count=1)
    slots.take("a", ()).release()
    (tmp_path / "run" / "slots" / "0.lock").unlink()
    slot = slots.take("b", ())
    with pytest.raises(HostUnsupported):
        Slots(str(tmp_path / "run"), count=1).take("c", ())
    slot.release()


def test_run_directory_is_private(tmp_path: Path) -> None:
    """Mode 0700 from the start."""
    open_run_dir(str(tmp_path / "run"))
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


def test_run_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    """In /tmp anyone may have made it first."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    with pytest.raises(HostUnsupported):
        open_run_dir(str(tmp_path / "run"))


def test_run_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """A link leads where its owner likes."""
    (tmp_path / "there").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "there")
    with pytest.raises(HostUnsupported):
        open_run_dir(str(tmp_path / "run"))


@pytest.mark.root
def test_run_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    """Ownership is checked, not only the mode."""
    (tmp_path / "run").mkdir(mode=0o700)
    os.chown(tmp_path / "run", 12345, 12345)
    with pytest.raises(HostUnsupported):
        open_run_dir(str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("uid", "runtime_dir", "expected"),
    [
        (0, None, "/run/stockade"),
        (0, "/run/user/0", "/run/stockade"),
        (1000, "/run/user/1000", "/run/user/1000/stockade"),
        (1000, None, "/tmp/stockade-1000"),
    ],
)
def test_usual_run_directory(uid: int, runtime_dir: str | None, expected: str) -> None:
    """One place for root, the user's runtime directory otherwise."""
    assert run_dir_for(uid, runtime_dir) == expected
