"""Attacks on the cell by what it serves: signals, limits, priorities, its descriptors (kernel-facts 7, 9)."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stockade.errors import StockadeError
from tests.attack.conftest import MakeInside
from tests.attack.places import Inside, Outside, descendants, is_root

pytestmark = pytest.mark.attack


@pytest.fixture
def victim() -> Iterator[int]:
    """Return another process of this user: the control for what the payload does to process 1."""
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        yield process.pid
        process.kill()


#: Every way in which one process acts on another of the same user; kernel-facts 7 saw most of them work on a cell
#: that shares the payload's id. `TARGET` becomes 1 inside.
ACTS = {
    "signal 0": "os.kill(TARGET, 0)",
    "SIGCONT": "os.kill(TARGET, signal.SIGCONT)",
    "SIGURG by thread": "checked(libc.syscall(200, TARGET, signal.SIGURG))",
    "SIGURG by process and thread": "checked(libc.syscall(234, TARGET, TARGET, signal.SIGURG))",
    "queue a signal": "checked(libc.syscall(129, TARGET, signal.SIGURG, struct.pack('iii116x', signal.SIGURG, 0, -1)))",
    "signal by pidfd": "signal.pidfd_send_signal(os.pidfd_open(TARGET), signal.SIGURG)",
    "limit its CPU time": "resource.prlimit(TARGET, resource.RLIMIT_CPU, (4000, 4000))",
    "limit its descriptors": "resource.prlimit(TARGET, resource.RLIMIT_NOFILE, (8, 8))",
    "make it nice": "os.setpriority(os.PRIO_PROCESS, TARGET, 19)",
    "make it idle": "os.sched_setscheduler(TARGET, os.SCHED_IDLE, os.sched_param(0))",
    "make it a batch job": "os.sched_setscheduler(TARGET, os.SCHED_BATCH, os.sched_param(0))",
    "bind it to one CPU": "os.sched_setaffinity(TARGET, {0})",
    "make its I/O idle": "checked(libc.syscall(251, 1, TARGET, 3 << 13))",
    "join its process group": "os.setpgid(0, TARGET)",
}
HARMLESS_ERRORS = ("EPERM", "ESRCH", "EACCES", "EINVAL")


@pytest.mark.not_applicable_if(
    os.uname().machine != "x86_64", reason="the call numbers are x86_64's"
)
@pytest.mark.parametrize("name", ACTS)
def test_the_payload_does_not_act_on_the_cell(
    name: str, inside: Inside, outside: Outside, victim: int
) -> None:
    """What works outside on another process of the same user fails on process 1."""
    if name != "join its process group":
        assert outside.attempt(ACTS[name].replace("TARGET", str(victim))) == "OK"
    assert inside.attempt(ACTS[name].replace("TARGET", "1")) in HARMLESS_ERRORS
    assert inside.sandbox.is_running()


#: Forms that name the cell without naming process 1: its user, its group, upper bits that the kernel drops.
INDIRECT = {
    "nice for the user": "os.setpriority(os.PRIO_USER, 0, 19)",
    "nice for the cell's user": "os.setpriority(os.PRIO_USER, 65535, 19)",
    "nice for group 1": "os.setpriority(os.PRIO_PGRP, 1, 19)",
    "idle I/O for the user": "checked(libc.syscall(251, 3, os.getuid(), 3 << 13))",
    "upper bits": "checked(libc.syscall(62, ctypes.c_long((1 << 32) + 1), signal.SIGURG))",
    "prlimit with upper bits": "checked(libc.syscall(302, ctypes.c_long(2**32 + 1), 0, struct.pack('QQ', 1, 1), 0))",
    "signal group 1": "os.killpg(1, signal.SIGKILL)",
    "own the descriptors' signals": """
r, w = os.pipe()
fcntl.fcntl(r, fcntl.F_SETOWN, 1)
fcntl.fcntl(r, 10, signal.SIGKILL)
fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
os.write(w, b'x')
""",
}


@pytest.mark.not_applicable_if(
    os.uname().machine != "x86_64", reason="the call numbers are x86_64's"
)
@pytest.mark.parametrize("landlock", [True, False])
@pytest.mark.parametrize("name", INDIRECT)
def test_the_cell_is_not_reached_by_another_name(
    name: str, landlock: bool, make_inside: MakeInside
) -> None:
    """Whatever such a call answers, the cell keeps its priority, its limits and its life, without Landlock too."""
    inside = make_inside(isolation={"landlock": landlock})
    cell = inside.sandbox._sandbox.live.pid
    before = state_of(cell)
    inside.attempt(INDIRECT[name])
    assert state_of(cell) == before
    assert inside.run("/bin/echo", "alive").out == "alive\n"


def state_of(pid: int) -> tuple[object, ...]:
    """Return what the payload might change of a process: priority, scheduler, processors, and its limits where seen."""
    limits = Path(f"/proc/{pid}/limits").read_text(encoding="ascii") if is_root() else ""
    priority = os.getpriority(os.PRIO_PROCESS, pid)
    return (priority, os.sched_getscheduler(pid), os.sched_getaffinity(pid), limits)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGTERM,
        signal.SIGCHLD,
        signal.SIGHUP,
        signal.SIGRTMIN,
        signal.SIGSEGV,
    ],
)
def test_a_signal_to_process_1_does_not_end_the_sandbox(
    number: int, make_inside: MakeInside, outside: Outside, victim: int
) -> None:
    """The control's process ends or stops; the cell goes on serving."""
    assert outside.attempt(f"os.kill({victim}, {int(number)})") == "OK"
    inside = make_inside()
    inside.attempt(f"os.kill(1, {int(number)})")
    assert inside.run("/bin/echo", "alive").out == "alive\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_everybody_does_not_end_the_sandbox(
    number: int, make_inside: MakeInside
) -> None:
    """kill(-1) hits all that the payload may signal, its own child for a control, and not the cell."""
    inside = make_inside()
    probe = f"""
child = subprocess.Popen(["/bin/sleep", "60"])
signal.signal({int(number)}, signal.SIG_IGN) if {int(number)} != 9 else None
os.kill(-1, {int(number)})
print(child.wait())
"""
    assert inside.attempt(probe) == f"OK {-number}"
    assert inside.run("/bin/echo", "alive").out == "alive\n"


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_inside_root_does_not_end_the_cell(number: int, make_inside: MakeInside) -> None:
    """A command as inside root has no capability, so the cell's other id is out of its reach."""
    inside = make_inside()
    source = f"import os; os.kill(1, {int(number)})"
    result = inside.sandbox.commands.run(["/usr/bin/python3", "-c", source], user="root")
    assert "PermissionError" in result.stderr
    assert inside.sandbox.is_running()


@pytest.mark.root
def test_the_cell_has_an_id_of_its_own(inside: Inside) -> None:
    """Seen from the host, cell and payload run under different ids, neither of them root's."""
    cell = int(
        Path(f"/proc/{inside.sandbox._sandbox.live.pid}/status")
        .read_text()
        .split("Uid:")[1]
        .split()[0]
    )
    handle = inside.sandbox.commands.run(["/bin/sleep", "60"], background=True)
    payload = {os.stat(f"/proc/{pid}").st_uid for pid in descendants(inside.sandbox)}
    handle.kill()
    assert len(payload) == 1
    assert len({cell, 0} | payload) == 3


@pytest.mark.root
def test_the_cell_is_sealed(inside: Inside) -> None:
    """The cell itself: three capabilities, no new privileges, filters, an empty bounding set, not dumpable."""
    pid = inside.sandbox._sandbox.live.pid
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    assert (status["CapEff"], status["CapBnd"]) == ("00000000000000e0", "0000000000000000")
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    # An undumpable process's files belong to the namespace's root.
    assert os.stat(f"/proc/{pid}/mem").st_uid != int(status["Uid"].split()[0])


@pytest.mark.root
def test_the_cells_descriptors_are_few_and_its_own(inside: Inside) -> None:
    """The cell holds no directory of the host's: sockets, pidfds, and the sandbox's own mounts."""
    pid = inside.sandbox._sandbox.live.pid
    targets = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    own = inside.sandbox.sandbox_id
    allowed = ("socket:", "anon_inode:", "pipe:", "/dev/null", "/proc", "pidfd:")
    strange = [t for t in targets if not t.startswith(allowed) and own not in t and t != "/"]
    assert strange == []
    assert len(targets) < 24


def test_many_commands_at_once_do_not_exhaust_the_cell(make_inside: MakeInside) -> None:
    """200 commands asked for at once run or are refused with a typed error; then the cell still serves."""
    inside = make_inside()

    def start(_: int) -> str:
        try:
            return inside.sandbox.commands.run(["/bin/sleep", "0.1"], timeout=10).stdout
        except StockadeError as error:
            return error.code

    with ThreadPoolExecutor(50) as pool:
        answers = set(pool.map(start, range(200)))
    assert answers <= {"", "limit_reached", "start_failed"}
    assert inside.run("/bin/echo", "alive").out == "alive\n"


def test_many_background_commands_meet_a_limit(make_inside: MakeInside) -> None:
    """Commands that never end are refused past a limit, and ending them gives the places back."""
    inside = make_inside(limits={"processes": 400})
    started, refused = [], None
    for _ in range(400):
        try:
            started.append(inside.sandbox.commands.run(["/bin/sleep", "60"], background=True))
        except StockadeError as error:
            refused = error
            break
    assert refused is not None
    assert refused.sandbox_usable
    for handle in started:
        handle.kill()
    for handle in started:
        handle.wait()
    assert inside.run("/bin/echo", "alive").out == "alive\n"


def test_closed_descriptors_of_a_command_do_not_hang_the_cell(make_inside: MakeInside) -> None:
    """A command that closes its output and lives on ends at its time limit; the cell answers others meanwhile."""
    inside = make_inside()
    handle = inside.sandbox.commands.run("exec >&- 2>&- <&-; sleep 60", background=True)
    assert inside.run("/bin/echo", "alive").out == "alive\n"
    handle.kill()
    assert handle.wait().signal == signal.SIGKILL


@pytest.mark.parametrize("name", ["stockade-cell", "x) R 1 1 1 1", "\n\n\n", "\x1b[2J"])
def test_a_name_that_lies_confuses_nobody(name: str, make_inside: MakeInside) -> None:
    """A payload chooses its name; the cell finds and ends it all the same."""
    inside = make_inside()
    source = """
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(15, sys.argv[1].encode())
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
"""
    result = inside.sandbox.commands.run(["/usr/bin/python3", "-c", source, name], timeout=5)
    assert result.leftovers >= 1
    assert descendants(inside.sandbox) == []


def test_pid_reuse_does_not_hit_the_wrong_process(make_inside: MakeInside) -> None:
    """A handle of an ended command signals nobody, whatever has its number by now."""
    inside = make_inside()
    handle = inside.sandbox.commands.run(["/bin/true"], background=True)
    handle.wait()
    other = inside.sandbox.commands.run(["/bin/sleep", "60"], background=True)
    handle.kill()
    assert inside.sandbox.commands.kill(handle.pid) is False
    assert not other.ended
    other.kill()
    assert other.wait().signal == signal.SIGKILL


def test_ptrace_of_the_cell_is_refused(inside: Inside, outside: Outside, victim: int) -> None:
    """Outside a process of the same user is attached to; inside process 1 is not, nor read."""
    attach = "checked(libc.ptrace(0x4206, int(sys.argv[1]), 0, 0))"
    assert outside.attempt(attach, str(victim)) == "OK"
    assert inside.attempt(attach, "1") == "EPERM"


def test_the_cell_answers_while_the_payload_burns_every_processor(make_inside: MakeInside) -> None:
    """32 busy processes do not keep a health request waiting for a second."""
    inside = make_inside(limits={"cpu": 0.5})
    handle = inside.sandbox.commands.run(
        "for i in $(seq 32); do (while :; do :; done) & done; wait", background=True
    )
    worst = 0.0
    for _ in range(5):
        begin = time.monotonic()
        inside.run("/bin/true")
        worst = max(worst, time.monotonic() - begin)
    handle.kill()
    assert worst < 1.0


TRACE = ["ptrace", "process_vm_readv", "process_vm_writev", "kcmp"]
LOOK = {
    "attach": "checked(libc.ptrace(16, 1, 0, 0))",
    "seize": "checked(libc.ptrace(0x4206, 1, 0, 0))",
    "read": "b = ctypes.create_string_buffer(8)\nchecked(libc.process_vm_readv(1, struct.pack('QQ', "
    "ctypes.addressof(b), 8), 1, struct.pack('QQ', 0x400000, 8), 1, 0))",
    "memory file": "os.open('/proc/1/mem', os.O_RDWR)",
    "environment": "print(open('/proc/1/environ').read())",
    "descriptors": "print(os.listdir('/proc/1/fd'))",
}


@pytest.mark.parametrize("name", LOOK)
def test_a_policy_that_allows_tracing_does_not_open_the_cell(
    name: str, make_inside: MakeInside
) -> None:
    """Where a policy lifts the filter for debuggers, the cell is still undumpable; a child can be traced."""
    inside = make_inside(isolation={"allow": TRACE, "landlock": False})
    own = (
        "p = subprocess.Popen(['/bin/sleep', '9'])\nchecked(libc.ptrace(16, p.pid, 0, 0))\np.kill()"
    )
    assert inside.attempt(own) == "OK"
    assert inside.attempt(LOOK[name]) in ("EPERM", "ENOENT", "EACCES", "ESRCH")


@pytest.mark.root
def test_cell_and_payload_are_in_cgroups_of_their_own(inside: Inside) -> None:
    """kernel-facts 3: only the payload's is frozen or limited, so the cell still answers."""
    handle = inside.sandbox.commands.run(["/bin/sleep", "60"], background=True)
    (payload,) = descendants(inside.sandbox)
    own = inside.sandbox.sandbox_id
    paths = [
        Path(f"/proc/{pid}/cgroup").read_text()
        for pid in (inside.sandbox._sandbox.live.pid, payload)
    ]
    handle.kill()
    assert f"0::/stockade/{own}/cell\n" in paths[0]
    assert f"0::/stockade/{own}/work\n" in paths[1]


OWNER = """
import os, sys, time
from stockade import Sandbox
sandbox = Sandbox.create()
sandbox.commands.run(["/bin/sleep", "60"], background=True)
# Not executed: it has every descriptor of its parent that no fork hook closes.
if os.fork() == 0:
    time.sleep(30)
    os._exit(0)
print(sandbox._sandbox.live.pid, flush=True)
time.sleep(30)
"""


def test_a_forked_child_of_the_owner_does_not_keep_a_sandbox(tmp_path: Path) -> None:
    """kernel-facts 2: when the owner is killed the sandbox dies at once, though its child lives on."""
    environment = {
        **os.environ,
        "STOCKADE_STATE_DIR": str(tmp_path / "state"),
        "PYTHONPATH": ":".join(sys.path),
    }
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert owner.stdout is not None
    cell = os.pidfd_open(int(owner.stdout.readline()))
    owner.kill()
    with select.epoll() as poll:
        poll.register(cell, select.EPOLLIN)
        died = poll.poll(2)
    os.killpg(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    os.close(cell)
    assert died


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_guess_at_process_ids_hits_nothing_of_the_cells(
    number: int, make_inside: MakeInside
) -> None:
    """The cell keeps a process ahead of the next command; a payload that signals every number does not meet it."""
    inside = make_inside()
    shoot = f"""
for pid in range(2, 400):
    if pid != os.getpid():
        try:
            os.kill(pid, {int(number)})
        except OSError:
            pass
"""
    assert inside.attempt(shoot) == "OK"
    for _ in range(3):
        assert inside.run("/bin/echo", "alive", timeout=5).out == "alive\n"


def test_the_process_kept_ahead_takes_no_orders(make_inside: MakeInside) -> None:
    """Nor does it take a priority, a processor or a scheduler from the payload: the next command has its own."""
    inside = make_inside()
    spoil = """
for pid in range(2, 400):
    if pid != os.getpid():
        for act in (
            lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
            lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
            lambda: os.sched_setaffinity(pid, {0}),
            lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (4, 4)),
        ):
            try:
                act()
            except OSError:
                pass
"""
    state = "print(os.getpriority(0, 0), os.sched_getscheduler(0), os.sched_getaffinity(0), resource.getrlimit(7))"
    before = inside.attempt(state)
    assert inside.attempt(spoil) == "OK"
    assert inside.attempt(state) == before
