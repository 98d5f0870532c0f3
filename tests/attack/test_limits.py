"""Attacks on what a sandbox may use: time, processes, memory, disk, descriptors, output (C52, C53)."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stockade.errors import NoSpace, StockadeError
from stockade.isolation import container
from stockade.isolation.container import COUNTED_TASKS, SINGLE_ID_TASKS
from tests.applicability import not_applicable
from tests.attack.conftest import MakeInside
from tests.attack.places import Inside, Outside, descendants, program

pytestmark = pytest.mark.attack

MIB = 1 << 20


def still_serves(inside: Inside) -> bool:
    """Say whether a command still runs, and soon."""
    begin = time.monotonic()
    answered = inside.run("/bin/echo", "alive", timeout=5).out == "alive\n"
    return answered and time.monotonic() - begin < 1.0


# ---- C52: time ------------------------------------------------------------------------------------------


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(30)
    os._exit(0)
time.sleep(30)
"""
OVERRUNS: dict[str, str | list[str]] = {
    "child in the background": "sleep 30 & echo hi; wait",
    "ignores SIGTERM": "setsid sleep 30 & trap '' TERM; echo hi; sleep 30",
    "ignores SIGTERM in a child": "(trap '' TERM INT HUP; sleep 30; sleep 30) & echo hi; wait",
    "double fork": ["/usr/bin/python3", "-c", "print('hi', flush=True)" + DAEMON],
    "stopped": "echo hi; kill -STOP $$",
    "fork chain": "echo hi; f() { sleep 0.1; f & }; f; sleep 30",
    "busy": "echo hi; while :; do :; done",
    "busy children": "echo hi; for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait",
    "closed output": "echo hi; exec >&- 2>&-; sleep 30",
}


@pytest.mark.parametrize("name", OVERRUNS)
def test_a_time_limit_ends_everything(name: str, make_inside: MakeInside) -> None:
    """C52: the call returns within the limit and 1 s with what was printed, and nothing of the command is left."""
    inside = make_inside()
    begin = time.monotonic()
    result = inside.sandbox.commands.run(OVERRUNS[name], timeout=1)
    assert time.monotonic() - begin < 2.5
    assert (result.killed_by, result.stdout) == ("timeout", "hi\n")
    assert descendants(inside.sandbox) == []


def test_the_positive_control_of_time_limits_leaves_a_process() -> None:
    """C52: subprocess's own time-out leaves the grandchild alive, which is what a sandbox must not do."""
    script = "sleep 30 </dev/null >/dev/null 2>&1 & echo $!; sleep 5"
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        subprocess.run(["/bin/sh", "-c", script], timeout=0.5, check=False, capture_output=True)
    grandchild = int(caught.value.stdout or b"")
    os.kill(grandchild, 0)
    os.kill(grandchild, signal.SIGKILL)


QUICK = {
    "child holds the output": ("sleep 30 & echo done", "done\n"),
    "child let go of everything": ("(sleep 30 </dev/null >/dev/null 2>&1 &); echo done", "done\n"),
    "setsid": ("setsid sleep 30 & echo done", "done\n"),
    "nohup": ("nohup sleep 30 >/dev/null 2>&1 & echo done", "done\n"),
    "disowned": ("bash -c 'sleep 30 & disown'; echo done", "done\n"),
}


@pytest.mark.parametrize("name", QUICK)
def test_what_a_command_leaves_behind_dies_with_it(name: str, make_inside: MakeInside) -> None:
    """C52: a quick command with a child in the background returns at once, and the child is killed and counted."""
    inside = make_inside()
    command, out = QUICK[name]
    begin = time.monotonic()
    result = inside.sandbox.commands.run(command, timeout=10)
    assert (result.exit_code, result.stdout, result.leftovers >= 1) == (0, out, True)
    assert time.monotonic() - begin < 3
    assert descendants(inside.sandbox) == []


def test_a_daemon_of_a_quick_command_dies_with_it(make_inside: MakeInside) -> None:
    """C52: two forks and a session of its own hide it from the process group, not from us."""
    inside = make_inside()
    source = DAEMON.replace("\ntime.sleep(30)\n", "\n")
    result = inside.sandbox.commands.run(["/usr/bin/python3", "-c", source], timeout=10)
    assert result.exit_code == 0
    assert descendants(inside.sandbox) == []


def test_a_background_command_survives_another_ones_end(make_inside: MakeInside) -> None:
    """The other side: ending what one command left spares what another one is still doing."""
    inside = make_inside()
    handle = inside.sandbox.commands.run(["/bin/sleep", "60"], background=True)
    inside.sandbox.commands.run("setsid sleep 60 & echo done")
    assert len(descendants(inside.sandbox)) == 1
    assert not handle.ended
    handle.kill()


@pytest.mark.parametrize("code", [124, 137])
def test_an_exit_code_does_not_pass_for_a_time_limit(code: int, inside: Inside) -> None:
    """C52: 124 and 137 are the codes of timeout(1) and of SIGKILL; neither is our reason."""
    result = inside.sandbox.commands.run(f"exit {code}")
    assert (result.exit_code, result.killed_by, result.limits_hit) == (code, None, ())


@pytest.mark.parametrize("value", [0, -1, "5", True, float("nan"), float("inf"), 10**9, [1]])
def test_a_time_limit_that_is_none_is_refused(value: object, inside: Inside) -> None:
    """C52: 0, negative numbers, texts and the like are an error before anything runs."""
    with pytest.raises((ValueError, TypeError)):
        inside.sandbox.commands.run("touch /workspace/ran", timeout=value)  # type: ignore[call-overload]
    assert inside.run("/bin/ls", "-A", "/workspace").out == ""


def test_no_time_limit_named_is_the_policys(make_inside: MakeInside) -> None:
    """C52: `timeout=None` is not for ever."""
    inside = make_inside(limits={"timeout": "1s"})
    begin = time.monotonic()
    assert inside.sandbox.commands.run("sleep 30").killed_by == "timeout"
    assert time.monotonic() - begin < 3


def test_fifty_overruns_leave_nothing(make_inside: MakeInside) -> None:
    """C52: 50 commands that meet their limits at once leave 0 processes."""
    inside = make_inside(limits={"processes": 200})

    def overrun(_: int) -> bool:
        try:
            return inside.sandbox.commands.run("sleep 30 & wait", timeout=1).killed_by == "timeout"
        except StockadeError as error:
            return error.code == "limit_reached"

    with ThreadPoolExecutor(50) as pool:
        assert all(pool.map(overrun, range(50)))
    assert descendants(inside.sandbox) == []


@pytest.mark.rootless
@pytest.mark.slow
def test_a_stop_for_cpu_time_stops_no_later_command(
    make_inside: MakeInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watched limit stops all at once, the process made ahead too: the command that gets it must not stand still."""
    monkeypatch.setattr(container, "CPU_WATCH_MS", 500)
    inside = make_inside(limits={"cpu": 0.19})
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    inside.sandbox.commands.run(["/bin/true"], timeout=5)
    busy = inside.sandbox.commands.run(["/usr/bin/python3", "-c", burn], timeout=8)
    after = inside.sandbox.commands.run(["/bin/true"], timeout=3)
    assert (busy.killed_by, after.killed_by) == (None, None)
    assert busy.duration_ms > 900


# ---- C53: output ----------------------------------------------------------------------------------------

FLOODS = {
    "lines": "while :; do echo 1234567890; done",
    "yes": "yes",
    "no newlines": "yes | tr -d '\\n'",
    "on stderr": "yes >&2",
    "both": "yes & yes >&2",
    "zeros": "cat /dev/zero",
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_of_output_is_cut(name: str, make_inside: MakeInside) -> None:
    """C53: of endless output 1 MiB is kept, the rest is dropped and said so, and the host does not grow with it."""
    inside = make_inside()
    before = _resident()
    result = inside.sandbox.commands.run(FLOODS[name], timeout=1)
    assert result.truncated
    assert max(len(result.stdout_bytes), len(result.stderr_bytes)) <= MIB
    assert _resident() - before < 16 * MIB
    assert still_serves(inside)


def test_a_gigabyte_of_output_is_cut(make_inside: MakeInside) -> None:
    """C53: 1 GB passes through the pipe and not through the host's memory."""
    inside = make_inside()
    before = _resident()
    result = inside.sandbox.commands.run(
        ["/usr/bin/head", "-c", "1000000000", "/dev/zero"], timeout=15
    )
    assert (result.exit_code, result.truncated, len(result.stdout_bytes)) == (0, True, MIB)
    assert _resident() - before < 16 * MIB


def _resident() -> int:
    return (
        int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        * resource.getpagesize()
    )


# ---- C53: processes -------------------------------------------------------------------------------------

FORK = """
import os, time
made = 0
try:
    while made < 20000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError as error:
    print(made, error.errno)
"""


def test_a_fork_loop_meets_the_limit(make_inside: MakeInside, outside: Outside) -> None:
    """C53: outside 100 children are no trouble; inside there are 64 processes and then EAGAIN."""
    control = FORK.replace("20000", "100").replace("sleep(60)", "sleep(0.2)") + "print(made)"
    assert outside.python(control).split()[-1] == "100"
    inside = make_inside()
    made, number = map(int, inside.python(FORK).split())
    assert number == 11
    assert 50 <= made <= 64 + SINGLE_ID_TASKS
    assert descendants(inside.sandbox) == []


@pytest.mark.parametrize(
    "bomb", [":(){ :|:& };:; sleep 60", "f() { f & f & wait; }; f", "while :; do sleep 60 & done"]
)
def test_a_fork_bomb_is_held_and_ended(bomb: str, make_inside: MakeInside) -> None:
    """The limit holds, the sandbox answers while it goes off, and afterwards nothing of it is left."""
    inside = make_inside()
    handle = inside.sandbox.commands.run(["/bin/bash", "-c", bomb], background=True)
    most = max(len(descendants(inside.sandbox)) for _ in range(20))
    assert 10 < most <= 70
    assert inside.sandbox.files.list("/workspace") == []
    handle.kill()
    handle.wait()
    assert still_serves(inside)
    assert descendants(inside.sandbox) == []


def test_a_fork_bomb_does_not_disturb_another_sandbox(make_inside: MakeInside) -> None:
    """C53: its neighbour still answers within a second."""
    inside, neighbour = make_inside(limits={"cpu": 0.5}), make_inside()
    handle = inside.sandbox.commands.run(["/bin/bash", "-c", ":(){ :|:& };:"], background=True)
    assert still_serves(neighbour)
    handle.kill()
    handle.wait()


def test_threads_count_as_processes(make_inside: MakeInside) -> None:
    """A process of a thousand threads is a thousand tasks."""
    source = """
import threading, time
made = 0
try:
    for _ in range(1000):
        threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
        made += 1
except RuntimeError:
    pass
print(made, flush=True)
import os; os._exit(0)
"""
    assert int(make_inside().python(source)) <= 64 + SINGLE_ID_TASKS


def test_the_process_limit_can_not_be_raised(inside: Inside, outside: Outside) -> None:
    """A hard limit is raised by root outside, where it has the capability, and never inside."""
    for name in (
        "RLIMIT_NPROC",
        "RLIMIT_NOFILE",
        "RLIMIT_SIGPENDING",
        "RLIMIT_MEMLOCK",
        "RLIMIT_MSGQUEUE",
    ):
        soft_hard = f"s, h = resource.getrlimit(resource.{name})\n"
        assert outside.attempt(soft_hard + f"resource.setrlimit(resource.{name}, (s, h))") == "OK"
        answer = inside.attempt(
            soft_hard + f"checked(libc.setrlimit(resource.{name}, struct.pack('QQ', h + 1, h + 1)))"
        )
        assert answer == "EPERM"


# ---- C53: memory ----------------------------------------------------------------------------------------

EAT = "b = []\nwhile True:\n    b.append(bytearray(4 << 20))\n"


def test_a_memory_eater_is_killed_for_memory(make_inside: MakeInside) -> None:
    """C53: it ends for the reason `memory`, which is not guessed from 137, and the sandbox lives on."""
    inside = make_inside(limits={"memory": "128MiB"})
    result = inside.sandbox.commands.run(["/usr/bin/python3", "-c", EAT], timeout=15)
    assert (result.killed_by, "memory" in result.limits_hit) == ("memory", True)
    assert still_serves(inside)


def test_many_small_memory_eaters_meet_one_limit(make_inside: MakeInside) -> None:
    """The limit is the sandbox's, not a process's: twenty processes of 20 MiB do not fit into 128."""
    inside = make_inside(limits={"memory": "128MiB"})
    source = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        b = bytearray(os.urandom(1) * (20 << 20))
        time.sleep(2)
        os._exit(0)
for _ in range(20):
    print(os.wait()[1])
"""
    result = inside.sandbox.commands.run(["/usr/bin/python3", "-c", source], timeout=15)
    assert "memory" in result.limits_hit or result.killed_by == "memory"
    assert still_serves(inside)


def test_a_death_by_own_signal_is_not_called_memory(inside: Inside) -> None:
    """C53: a command that kills itself with SIGKILL exits 137 and has met no limit."""
    result = inside.sandbox.commands.run("kill -KILL $$")
    assert (result.exit_code, result.limits_hit) == (137, ())
    assert result.killed_by in (None, "signal")


FILLS = {
    "/dev/shm": "cat /dev/zero > /dev/shm/f",
    "/tmp": "cat /dev/zero > /tmp/f",
    "/workspace": "cat /dev/zero > /workspace/f",
    "/output": "cat /dev/zero > /output/f",
    "all of them": "for d in /dev/shm /tmp /workspace /output; do cat /dev/zero > $d/f; done; false",
}


@pytest.mark.parametrize("name", FILLS)
def test_a_full_disk_is_an_error_and_kills_nobody(name: str, make_inside: MakeInside) -> None:
    """kernel-facts 5: filling every tmpfs ends with ENOSPC and `disk`, for their sum is half of the memory."""
    inside = make_inside(limits={"memory": "128MiB"})
    result = inside.sandbox.commands.run(FILLS[name], timeout=15)
    assert "No space left" in result.stderr
    assert result.exit_code == 1
    assert "disk" in result.limits_hit
    assert still_serves(inside)


def test_shared_memory_is_bounded_too(make_inside: MakeInside, outside: Outside) -> None:
    """kernel-facts 5: SysV segments end with ENOSPC or EINVAL before the memory does, and go with their users."""
    fill = """
made = 0
while made < int(sys.argv[1]):
    segment = checked(libc.shmget(0, 1 << 20, 0o1600))
    address = libc.shmat(segment, None, 0)
    checked(libc.shmctl(segment, 0, None)) if len(sys.argv) > 2 else None
    made += 1
"""
    assert outside.attempt(fill, "4", "remove") == "OK"
    inside = make_inside(limits={"memory": "128MiB"})
    assert inside.attempt(fill, "200") in ("ENOSPC", "ENOMEM", "EINVAL")
    assert inside.run("/bin/cat", "/proc/sysvipc/shm").out.count("\n") == 1
    assert still_serves(inside)


def test_shared_memory_and_disk_together_spare_the_cell(make_inside: MakeInside) -> None:
    """All that is memory without being a process's, filled at once: the cell survives."""
    inside = make_inside(limits={"memory": "64MiB"})
    source = """
import ctypes, os
libc = ctypes.CDLL(None)
while libc.shmget(0, 1 << 20, 0o1600) >= 0:
    pass
for d in ("/tmp", "/dev/shm", "/workspace", "/output"):
    try:
        with open(d + "/f", "wb", buffering=0) as f:
            while True:
                f.write(bytes(1 << 16))
    except OSError:
        pass
b = []
while True:
    b.append(bytearray(1 << 20))
"""
    result = inside.sandbox.commands.run(["/usr/bin/python3", "-c", source], timeout=15)
    assert result.exit_code != 0
    assert still_serves(inside)


UNMAPPED = {
    "files without a name": "f = os.memfd_create('x')\nfor _ in range(400):\n    os.write(f, bytes(1 << 20))",
    "maps that were given back": """
import mmap
m = mmap.mmap(-1, 400 << 20)
for i in range(400):
    m[i << 20 : (i + 1) << 20] = bytes(1 << 20)
    m.madvise(mmap.MADV_DONTNEED, i << 20, 1 << 20)
""",
}


@pytest.mark.parametrize("name", UNMAPPED)
def test_memory_in_no_process_counts_too(
    name: str, make_inside: MakeInside, outside: Outside
) -> None:
    """400 MiB that no process has mapped fit outside, and not into 128 MiB."""
    inside = make_inside(limits={"memory": "128MiB"})
    grades = {entry.limit: entry.grade for entry in inside.sandbox.protections.limits}
    if grades["memory"] != "enforced":
        not_applicable("there is no memory controller, and what is only watched is resident memory")
    assert outside.attempt(UNMAPPED[name]) == "OK"
    result = inside.sandbox.commands.run(
        ["/usr/bin/python3", "-c", "import os\n" + UNMAPPED[name]], timeout=15
    )
    assert result.killed_by == "memory"
    assert still_serves(inside)


BUFFERS = {
    "sockets": """
k = []
for _ in range(480):
    a, b = socket.socketpair()
    a.setblocking(False)
    k += [a, b]
    try:
        while True:
            a.send(bytes(65536))
    except BlockingIOError:
        pass
""",
    "pipes": """
for _ in range(480):
    r, w = os.pipe()
    os.set_blocking(w, False)
    try:
        fcntl.fcntl(w, 1031, 1 << 20)
    except OSError:
        pass
    try:
        while True:
            os.write(w, bytes(65536))
    except BlockingIOError:
        pass
""",
}


@pytest.mark.root
@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_of_the_kernel_count_too(name: str, make_inside: MakeInside) -> None:
    """What a payload parks in pipes and sockets is its own memory: it is killed, not the host."""
    inside = make_inside(limits={"memory": "32MiB"})
    result = inside.sandbox.commands.run(
        ["/usr/bin/python3", "-c", program("attempt.py"), BUFFERS[name]], timeout=15
    )
    assert result.killed_by == "memory" or result.stdout in ("ENOMEM", "ENOBUFS")
    assert still_serves(inside)


def test_little_memory_can_be_locked(inside: Inside) -> None:
    """Locked memory can't be reclaimed: 64 MiB are refused, 1 MiB is not."""
    lock = "import mmap\nm = mmap.mmap(-1, int(sys.argv[1]))\na = ctypes.addressof(ctypes.c_char.from_buffer(m))\n"
    lock += "checked(libc.mlock(ctypes.c_void_p(a), ctypes.c_size_t(int(sys.argv[1]))))"
    assert inside.attempt(lock, str(1 << 20)) == "OK"
    assert inside.attempt(lock, str(64 << 20)) in ("ENOMEM", "EAGAIN", "EPERM")


def test_orphans_of_a_subreaper_die_too(make_inside: MakeInside) -> None:
    """A payload that adopts its own orphans (PR_SET_CHILD_SUBREAPER) keeps none of them past its command."""
    inside = make_inside()
    source = """
import ctypes, os, time
if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(36, 1)
    for _ in range(3):
        if os.fork() == 0:
            if os.fork():
                os._exit(0)
            time.sleep(30)
    time.sleep(30)
time.sleep(0.3)
"""
    result = inside.sandbox.commands.run(["/usr/bin/python3", "-c", source], timeout=10)
    assert (result.exit_code, result.leftovers >= 3) == (0, True)
    assert descendants(inside.sandbox) == []


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("NPROC", 64),
        ("NOFILE", 1024),
        ("SIGPENDING", 1024),
        ("MSGQUEUE", 819_200),
        ("MEMLOCK", 8 * MIB),
        ("CORE", 1),
    ],
)
def test_a_limit_of_a_process_reads_back(name: str, limit: int, inside: Inside) -> None:
    """kernel-facts 11: each command has the limits that bound what the kernel keeps for a user."""
    soft, hard = map(
        int, inside.attempt(f"print(*resource.getrlimit(resource.RLIMIT_{name}))").split()[1:]
    )
    extra = max(SINGLE_ID_TASKS, COUNTED_TASKS) if name == "NPROC" else 0
    assert soft == hard
    assert 0 < soft <= limit + extra


INODES = """
import os
try:
    for n in range(200000):
        os.mknod(f'{sys.argv[1]}/f{n}')
except OSError as e:
    print(e.errno, n)
"""


@pytest.mark.parametrize("directory", ["/workspace", "/output", "/tmp", "/dev/shm"])
def test_inodes_run_out_before_the_memory(directory: str, make_inside: MakeInside) -> None:
    """Empty files take kernel memory that no size counts; each file system has a number of them."""
    inside = make_inside(limits={"inodes": 4096})
    number, made = map(int, inside.python("import sys\n" + INODES, directory).split())
    assert (number, made < 4096) == (28, True)
    assert still_serves(inside)


def test_the_sum_of_all_storage_is_at_most_the_disk_limit(make_inside: MakeInside) -> None:
    """What /tmp, /dev/shm, /workspace, /output and / can hold together is no more than the limit."""
    inside = make_inside(limits={"memory": "128MiB", "disk": "64MiB"})
    total = """
import os
places = map(os.statvfs, ("/", "/tmp", "/dev/shm", "/workspace", "/output"))
print(sum(place.f_blocks * place.f_frsize for place in places))
"""
    assert int(inside.python(total)) <= 64 * MIB


def test_a_full_disk_is_a_typed_error_of_the_file_interface(make_inside: MakeInside) -> None:
    """`files.write` says NoSpace, and what else the sandbox does goes on."""
    inside = make_inside(limits={"memory": "64MiB"})
    with pytest.raises(NoSpace):
        inside.sandbox.files.write("/workspace/f", bytes(40 * MIB))
    assert still_serves(inside)


def test_descriptors_run_out_for_the_payload_alone(
    make_inside: MakeInside, outside: Outside
) -> None:
    """C53: 200,000 opens end at the limit with EMFILE, in every process anew, and the cell serves on."""
    source = """
made = 0
try:
    for _ in range(int(sys.argv[1])):
        os.open('/dev/null', 0)
        made += 1
except OSError as e:
    print(e.errno, made)
"""
    assert outside.attempt(source, "500") == "OK"
    inside = make_inside()
    number, made = map(int, inside.attempt(source, "200000").split()[1:])
    assert (number, 900 < made < 1024) == (24, True)
    assert still_serves(inside)


def test_a_file_larger_than_the_limit_is_not_written(make_inside: MakeInside) -> None:
    """RLIMIT_FSIZE bounds one file where the policy says so."""
    inside = make_inside(limits={"file_size": "1MiB"})
    result = inside.sandbox.commands.run(
        "head -c 2000000 /dev/zero > /workspace/f; stat -c %s /workspace/f"
    )
    assert result.stdout == f"{MIB}\n"


def test_processor_time_of_a_process_is_bounded(make_inside: MakeInside) -> None:
    """RLIMIT_CPU ends a busy process where the policy says so, and nothing else."""
    inside = make_inside(limits={"cpu_seconds": 1})
    result = inside.sandbox.commands.run("while :; do :; done", timeout=10)
    assert result.signal in (24, 9)
    assert result.killed_by != "timeout"
    assert still_serves(inside)


@pytest.mark.root
def test_processor_time_is_held_to_the_quota(make_inside: MakeInside) -> None:
    """Four busy processes with half a core use about half a core."""
    inside = make_inside(limits={"cpu": 0.5})
    result = inside.sandbox.commands.run(
        "for i in 1 2 3 4; do (while :; do :; done) & done; wait", timeout=2
    )
    assert result.cpu_ms < 2600 * 0.75


# ---- Kernel limits that the host shares -----------------------------------------------------------------


@pytest.mark.root
def test_inotify_instances_of_the_host_are_not_used_up(
    make_inside: MakeInside, outside: Outside
) -> None:
    """kernel-facts 11: a sandbox that takes all of its inotify instances takes none of root's."""
    take = """
made = 0
try:
    while made < 5000:
        checked(libc.inotify_init())
        made += 1
except OSError as e:
    print(e.errno, made)
import time
time.sleep(float(sys.argv[1]))
"""
    inside = make_inside()
    number, made = map(int, inside.attempt(take, "0").split()[1:])
    assert (number, made <= 128) == (24, True)
    handle = inside.sandbox.commands.run(
        [
            "/usr/bin/python3",
            "-c",
            """
import ctypes, time
l = ctypes.CDLL(None)
while l.inotify_init() >= 0: pass
print('full', flush=True)
time.sleep(30)
""",
        ],
        background=True,
    )
    assert outside.attempt("for _ in range(100): checked(libc.inotify_init())") == "OK"
    handle.kill()


@pytest.mark.root
def test_queued_signals_of_the_host_are_not_used_up(
    make_inside: MakeInside, outside: Outside
) -> None:
    """kernel-facts 11: nor does it queue root's signals away."""
    queue = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
made = 0
try:
    while made < 100000:
        checked(libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), 0)); made += 1
except OSError as error:
    print(error.errno, made)
"""
    number, made = map(int, make_inside().attempt(queue).split()[1:])
    assert (number, made <= 1024) == (11, True)
    assert outside.attempt(queue.replace("100000", "2000")) == "OK"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            "while True: checked(libc.semget(0, 100, 0o1600)); made += 1", id="semaphores"
        ),
        pytest.param("while True: checked(libc.msgget(0, 0o1600)); made += 1", id="message queues"),
        pytest.param(
            "while True: checked(libc.mq_open(b'/q%d' % made, 0o102, 0o600, None)); made += 1",
            id="POSIX queues",
        ),
    ],
)
def test_queues_and_semaphores_are_few(source: str, make_inside: MakeInside) -> None:
    """Kernel objects without a size of their own are bounded by number, in the sandbox's own namespace."""
    inside = make_inside()
    probe = f"made = 0\ntry:\n    {source}\nexcept OSError as e:\n    print(e.errno, made)"
    number, made = map(int, inside.attempt(probe).split()[1:])
    # EACCES: Landlock knows no path for a POSIX queue, so there is none at all.
    assert number in (28, 24, 12, 13)
    assert made <= 512
    assert still_serves(inside)
