"""Attacks that are recorded: what a refused call leaves behind, and what a flood of them costs (kernel-facts 13-15)."""

from __future__ import annotations

import os
import resource
import signal
import time

import pytest

from tests.attack.conftest import MakeInside
from tests.attack.places import Inside, Outside, descendants, records

pytestmark = pytest.mark.attack

ATTEMPT = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(15, b"attacker", 0, 0, 0)
libc.unshare(0x10000000)
print(ctypes.get_errno())
"""


def test_an_attempt_is_recorded_with_pid_program_and_call(make_inside: MakeInside) -> None:
    """A refused call is one record: which call, by what program, under which process id of the host."""
    inside = make_inside()
    assert inside.python(ATTEMPT) == "1"
    (record,) = records("syscall_refused", sandbox_id=inside.sandbox.sandbox_id)
    assert (record.target, record.result) == ("unshare", "denied")
    assert (record.params["program"], record.params["args"][0]) == ("attacker", "0x10000000")
    assert record.params["pid"] > 1
    assert record.session_id == inside.sandbox.session_id


def test_the_recorded_process_id_is_the_hosts(make_inside: MakeInside) -> None:
    """The id names a process that the host can act on: the one below the cell that made the call."""
    inside = make_inside()
    handle = inside.sandbox.commands.run(
        [
            "/usr/bin/python3",
            "-c",
            ATTEMPT + "import time; print('done', flush=True); time.sleep(30)",
        ],
        background=True,
    )
    wait_for(lambda: bool(inside.sandbox.refused))
    assert inside.sandbox.refused[0].pid in descendants(inside.sandbox)
    handle.kill()


def wait_for(condition: object, seconds: float = 5) -> None:
    """Wait until something is true, which an event loop in another thread makes so."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_a_hostile_program_name_is_escaped(make_inside: MakeInside) -> None:
    """A name of control characters or bytes that are no text is stored as text that can be shown."""
    inside = make_inside()
    inside.python(ATTEMPT.replace('b"attacker"', r'b"\x1b[2J\xff\n\x07"'))
    (record,) = records("syscall_refused", sandbox_id=inside.sandbox.sandbox_id)
    assert "\xff" not in record.params["program"]
    assert "\x1b" not in repr(record.params["program"])


FLOOD = """
import ctypes, os
libc = ctypes.CDLL(None)
for _ in range(3):
    os.fork()
while True:
    libc.unshare(0x10000000)
"""


def flood(inside: Inside) -> object:
    """Start eight processes that make notified calls without a pause."""
    handle = inside.sandbox.commands.run(["/usr/bin/python3", "-c", FLOOD], background=True)
    wait_for(lambda: bool(inside.sandbox.refused))
    return handle


def test_a_flood_of_attempts_is_counted_not_stored(make_inside: MakeInside) -> None:
    """Thousands of attempts are a few records with counts, and are read no faster than the cap."""
    inside = make_inside()
    begin = time.monotonic()
    handle = flood(inside)
    wait_for(lambda: sum(refusal.count for refusal in inside.sandbox.refused) > 1000)
    took = time.monotonic() - begin
    handle.kill()  # type: ignore[attr-defined]
    counted = sum(refusal.count for refusal in inside.sandbox.refused)
    assert counted < 1100 * (took + 1)
    found = records("syscall_refused", sandbox_id=inside.sandbox.sandbox_id)
    assert len(found) <= 2 * (took + 2)


def test_the_host_works_on_during_a_flood(make_inside: MakeInside) -> None:
    """The host spends a small part of a core on it, and another sandbox answers at once."""
    inside, neighbour = make_inside(limits={"cpu": 0.5}), make_inside()
    handle = flood(inside)
    before, begin = _cpu_seconds(), time.monotonic()
    while time.monotonic() - begin < 1:
        assert neighbour.run("/bin/echo", "alive", timeout=2).out == "alive\n"
    share = (_cpu_seconds() - before) / (time.monotonic() - begin)
    handle.kill()  # type: ignore[attr-defined]
    assert share < 0.8


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def test_the_flooding_sandbox_itself_answers(make_inside: MakeInside) -> None:
    """The cell makes no notified call, so it does not wait in the queue of those who do."""
    inside = make_inside()
    handle = flood(inside)
    assert inside.run("/bin/echo", "alive", timeout=5).out == "alive\n"
    assert inside.sandbox.files.list("/workspace") == []
    handle.kill()  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_caller_that_waits_for_an_answer_can_be_killed(
    number: int, make_inside: MakeInside
) -> None:
    """kernel-facts 13, 14: a process held in a refused call ends by SIGKILL at once, and by SIGTERM soon."""
    inside = make_inside()
    handle = flood(inside)
    begin = time.monotonic()
    handle.kill(number)  # type: ignore[attr-defined]
    assert handle.wait().signal == number  # type: ignore[attr-defined]
    assert time.monotonic() - begin < 2
    assert descendants(inside.sandbox) == []


def test_a_sandbox_is_destroyed_during_a_flood(make_inside: MakeInside) -> None:
    """`kill` does not wait for the queue."""
    inside = make_inside()
    flood(inside)
    begin = time.monotonic()
    inside.sandbox.kill()
    assert time.monotonic() - begin < 2


def test_a_storm_of_signals_does_not_multiply_attempts(make_inside: MakeInside) -> None:
    """kernel-facts 13: without WAIT_KILLABLE_RECV one call under a timer storm made 724 notifications and no answer."""
    inside = make_inside()
    source = """
import ctypes, signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
libc = ctypes.CDLL(None, use_errno=True)
number = tries = 0
while number != 1:
    # EINTR: the signal came before the host had taken the notification.
    tries += 1
    libc.unshare(0x10000000)
    number = ctypes.get_errno()
    assert number in (1, 4)
signal.setitimer(signal.ITIMER_REAL, 0)
print(tries)
"""
    tries = int(inside.python(source))
    assert 1 <= sum(refusal.count for refusal in inside.sandbox.refused) <= tries


OWN_FILTER = r"""
import ctypes, errno, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
# "unshare is ERRNO 1, everything else is allowed" by the payload's own filter.
steps = ((0x20, 0, 0, 0), (0x15, 0, 1, 272), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000))
program = b"".join(struct.pack("HBBI", *step) for step in steps)
code = ctypes.create_string_buffer(program)
fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(code)))
libc.prctl(38, 1, 0, 0, 0)
way, flags = sys.argv[1], int(sys.argv[2])
result = libc.syscall(317, 1, flags, fprog) if way == "seccomp" else libc.prctl(22, 2, fprog, 0, 0)
print("OK" if result >= 0 else errno.errorcode[ctypes.get_errno()])
"""


@pytest.mark.not_applicable_if(
    os.uname().machine != "x86_64", reason="the call numbers are x86_64's"
)
@pytest.mark.parametrize(
    ("way", "flags", "recorded"),
    [
        ("seccomp", 0, "seccomp"),
        ("seccomp", 1, "seccomp"),
        ("seccomp", 8, "seccomp"),
        ("seccomp", 4, ""),
        ("seccomp", 2, "seccomp"),
        ("prctl", 0, "prctl"),
    ],
)
def test_a_filter_of_the_payloads_own_is_refused(
    way: str, flags: int, recorded: str, make_inside: MakeInside, outside: Outside
) -> None:
    """kernel-facts 15: it would silence the record; outside any process may have one."""
    assert outside.python(OWN_FILTER, way, str(flags)) == "OK"
    inside = make_inside()
    assert inside.python(OWN_FILTER, way, str(flags)) == "EPERM"
    assert {refusal.call for refusal in inside.sandbox.refused} == (
        {recorded} if recorded else set()
    )


def test_an_attempt_of_every_thread_is_refused(make_inside: MakeInside) -> None:
    """The filter covers threads that a program starts after exec, and programs that it executes."""
    inside = make_inside()
    source = """
import ctypes, os, threading
libc = ctypes.CDLL(None, use_errno=True)
found = []
def try_it():
    libc.unshare(0x10000000)
    found.append(ctypes.get_errno())
threads = [threading.Thread(target=try_it) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(set(found), flush=True)
again = "import ctypes; l = ctypes.CDLL(None, use_errno=True); l.unshare(0x10000000); print(ctypes.get_errno())"
os.execv("/usr/bin/python3", ["python3", "-c", again])
"""
    assert inside.python(source) == "{1}\n1"


def test_nesting_a_sandbox_fails_with_a_reason(make_inside: MakeInside) -> None:
    """A wall inside the wall is refused by the outer one, not half built: the namespaces are the first to fail."""
    inside = make_inside()
    found = inside.run("/usr/bin/unshare", "--user", "--mount", "--pid", "--fork", "/bin/true")
    assert found.status != 0
    assert "Operation not permitted" in found.err
