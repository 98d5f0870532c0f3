"""The golden frames: one value for each file of golden/. `golden.rs` of the crate holds the same values.

A name is the message's, with what is special about it after a dash. `python -m tests.wire.samples` writes the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stockade.wire import frames, launch
from stockade.wire.codec import encode_struct

GOLDEN = Path(__file__).parent / "golden"

#: name -> (id, message), in either direction
MESSAGES: dict[str, tuple[int, Any]] = {
    "Start": (
        1,
        frames.Start(
            argv=(b"/bin/sh", b"-c", b"echo \xff"),
            env=(b"PATH=/usr/bin", b"EMPTY="),
            cwd=b"/workspace",
            flags=frames.START_PTY | frames.START_STDIN | frames.START_BACKGROUND,
            rows=24,
            cols=80,
            uid=1000,
            gid=1001,
            rlimits=(frames.Rlimit(7, 1024, 4096), frames.Rlimit(0, 2**64 - 1, 2**64 - 1)),
            timeout_ms=60_000,
            grace_ms=500,
            credit=262_144,
            output_limit=10 << 20,
        ),
    ),
    "Start-empty": (
        0xFFFF_FFFF,
        frames.Start((), (), b"", 0, 0, 0, 0, 0, (), 0, 0, 0, 0),
    ),
    "Stdin": (2, frames.Stdin(b"\x00\xff line\n")),
    "StdinEnd": (2, frames.StdinEnd()),
    "Credit": (3, frames.Credit(frames.STREAM_STDERR, 65_536)),
    "Signal": (4, frames.Signal(15, True)),
    "Resize": (5, frames.Resize(50, 132)),
    "FileStat": (6, frames.FileStat(b"/output/na\nme", False)),
    "FileList": (7, frames.FileList(b"/workspace")),
    "FileRead": (8, frames.FileRead(b"/workspace/\xff", 1 << 40, 2**63 - 1, 262_144)),
    "FileWrite": (
        9,
        frames.FileWrite(b"/tmp/x", frames.WRITE_CREATE | frames.WRITE_PARENTS, 0o644),
    ),
    "FileMkdir": (10, frames.FileMkdir(b"/tmp/a/b", 0o755, True)),
    "FileMove": (11, frames.FileMove(b"/tmp/a", b"/tmp/b", False)),
    "FileRemove": (12, frames.FileRemove(b"/tmp/a", True)),
    "FileWatch": (13, frames.FileWatch(b"/workspace")),
    "Stats": (14, frames.Stats()),
    "Ping": (15, frames.Ping(0x0123_4567_89AB_CDEF)),
    "Cancel": (16, frames.Cancel()),
    "Spawned": (0, frames.Spawned(4_194_303)),
    "Failed": (0, frames.Failed("mount /proc", 1, "Operation not permitted: é")),
    "Ready": (
        0,
        frames.Ready(
            1,
            ("user namespace", "seccomp"),
            (frames.StepTime("clone and map ids", 2300), frames.StepTime("seal", 284)),
            ("seccomp", "/workspace"),
        ),
    ),
    "Started": (1, frames.Started(2)),
    "Output": (1, frames.Output(frames.STREAM_STDOUT, b"\xde\xad\xbe\xef")),
    "Exited": (1, frames.Exited(-1, 9, 1, 15, 1, 2, 3, 4, 5, 6, 7)),
    "Ok": (10, frames.Ok()),
    "Error": (6, frames.Error(frames.ERROR_FILE, 2, "open")),
    "Entries": (
        7,
        frames.Entries(
            (
                frames.Entry(b"a\nb", frames.TYPE_FILE, 0o100644, 1000, 1000, 12, 10**18, 1, b""),
                frames.Entry(b"\xff", frames.TYPE_SYMLINK, 0o120777, 0, 0, 3, 0, 1, b"../"),
            )
        ),
    ),
    "Data": (8, frames.Data(bytes(range(256)))),
    "End": (8, frames.End()),
    "Event": (13, frames.Event(frames.CHANGE_RENAMED, b"new", True)),
    "StatsResult": (14, frames.StatsResult(3, 1, 620, 1_000, 2_000, 9)),
    "Pong": (15, frames.Pong(0x0123_4567_89AB_CDEF)),
}

#: one step of each kind
STEPS: tuple[launch.Step, ...] = (
    launch.Root("root", 1 << 20, 1024),
    launch.RootTree("image", "/srv/image", 1000, launch.NO_MAP, 64 << 20, 4096),
    launch.Mkdir("make /home", "home", 0o755, launch.OWNER_ROOT),
    launch.Symlink("link /bin", "usr/bin", "bin"),
    launch.WriteFile("write /etc/hosts", "etc/hosts", 0o444, b"127.0.0.1 localhost\n"),
    launch.Bind(
        "bind /usr",
        "/usr",
        "usr",
        launch.ATTR_RDONLY | launch.ATTR_NOSUID | launch.ATTR_NODEV,
        True,
        False,
        launch.NO_MAP,
        launch.NO_MAP,
    ),
    launch.Tmpfs("private /tmp", "tmp", 16 << 20, 8192, 0o1777, launch.OWNER_PAYLOAD, 0x6),
    launch.Overlay("overlay", "/srv/é", "workspace", 1 << 20, 64, 54_321, 54_322, 0x6),
    launch.Devpts("terminals", 16),
    launch.Proc("processes", "proc", ("kernel/shm_rmid_forced=1", "-user/max_user_namespaces=0")),
    launch.Mask("mask /proc/kcore", "proc/kcore"),
    launch.Hostname("host name", "stockade"),
    launch.Loopback("loopback"),
    launch.Pivot("pivot", True),
    launch.Sysfs("sysfs", "sys"),
)

#: every field of a plan with a value that no other one has
LAUNCH = launch.Launch(
    version=1,
    sandbox_id="sb-0123456789abcdef0123",
    namespaces=0x7E02_0000,
    flags=launch.LAUNCH_LANDLOCK | launch.LAUNCH_INNER_USER,
    identity=launch.Identity(
        uid_map=(launch.IdMap(0, 2_000_683_008, 65_536),),
        gid_map=(launch.IdMap(0, 100, 1), launch.IdMap(1, 200, 2)),
        map_writer=launch.MAP_HELPER,
        become_uid=2_000_683_008,
        become_gid=launch.NO_BECOME,
        cell_uid=65_535,
        cell_gid=65_534,
        payload_uid=1000,
        payload_gid=1001,
        tag_gid=20_000,
        tag_count=40_000,
    ),
    cgroups=(
        launch.Cgroup("/sys/fs/cgroup/stockade/sb-1", launch.CGROUP_PARENT, ()),
        launch.Cgroup(
            "/sys/fs/cgroup/stockade/sb-1/work",
            launch.CGROUP_WORK,
            (launch.CgroupWrite("pids.max", "64"), launch.CgroupWrite("memory.max", "1")),
        ),
    ),
    steps=STEPS,
    seccomp_main=bytes(range(16)),
    seccomp_child=b"\x06\x00\x00\x00\x00\x00\xff\x7f",
    landlock=(
        launch.LandlockRule("/usr", launch.LANDLOCK_READ),
        launch.LandlockRule("/dev", launch.LANDLOCK_DEVICE),
    ),
    rlimits=(frames.Rlimit(4, 1, 1),),
    roots=(launch.FileRoot("/workspace", True), launch.FileRoot("/usr", False)),
    watch=launch.Watch(1 << 29, 1000, 500, ("/workspace",), 1 << 30, 100_000),
    pass_out=("/workspace", "/output"),
)


def golden_files() -> dict[str, bytes]:
    """Return what each file of golden/ must hold: frames, and for steps the bare encoding."""
    files = {f"{name}.bin": frames.encode(*value) for name, value in MESSAGES.items()}
    files["Launch.bin"] = launch.encode_launch(LAUNCH)
    for step in STEPS:
        files[f"step-{type(step).__name__}.bin"] = bytes([step.op]) + encode_struct(step)
    return files


if __name__ == "__main__":
    for name, content in golden_files().items():
        (GOLDEN / name).write_bytes(content)
