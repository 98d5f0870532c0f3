"""Attacks by one sandbox on another: they share a kernel, and see and reach nothing of each other."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from stockade import Sandbox
from tests.attack.conftest import FAST
from tests.attack.places import Inside, Outside, descendants, is_root

pytestmark = pytest.mark.attack


@pytest.fixture(scope="module")
def other() -> Iterator[Inside]:
    """Return another sandbox, the victim."""
    with Sandbox.create(FAST) as made:
        yield Inside(made)


def test_their_host_ids_are_different(inside: Inside, other: Inside) -> None:
    """As root no two live sandboxes share an id; an ordinary user has but one."""
    maps = [place.sandbox._sandbox.live.plan.launch.identity.uid_map for place in (inside, other)]
    starts = [{range(line.outside, line.outside + line.count) for line in one} for one in maps]
    shared = {r for r in starts[0] for s in starts[1] if set(r) & set(s)} if is_root() else set()
    assert shared == set()


def test_a_file_of_one_is_not_seen_by_another(
    inside: Inside, other: Inside, outside: Outside
) -> None:
    """/workspace, /output, /tmp and /dev/shm are each one's own."""
    for directory in ("/workspace", "/output", "/tmp", "/dev/shm"):
        assert inside.attempt("open(sys.argv[1], 'w').write('mine')", f"{directory}/mine") == "OK"
        assert other.attempt("open(sys.argv[1])", f"{directory}/mine") == "ENOENT"
        assert outside.attempt("open(sys.argv[1])", f"{directory}/mine") == "ENOENT"


def test_a_process_of_one_is_not_seen_or_signalled_by_another(
    inside: Inside, other: Inside, outside: Outside
) -> None:
    """The host sees the victim's process; the attacker knows neither its number inside nor the host's."""
    handle = other.sandbox.commands.run(["/bin/sleep", "60"], background=True)
    (on_host,) = descendants(other.sandbox)
    assert outside.attempt(f"os.kill({on_host}, 0)") == "OK"
    for number in (on_host, other.sandbox._sandbox.live.pid):
        assert inside.attempt(f"os.kill({number}, 0)") == "ESRCH"
    assert not handle.ended
    handle.kill()


def test_shared_memory_of_one_is_not_attached_by_another(
    inside: Inside, other: Inside, outside: Outside
) -> None:
    """SysV keys belong to the IPC namespace: one's segment is found by itself and by nobody else."""
    key = 0x57AC
    handle = inside.sandbox.commands.run(
        [
            "/usr/bin/python3",
            "-c",
            f"""
import ctypes, time
l = ctypes.CDLL(None)
s = l.shmget({key}, 4096, 0o1666)
l.shmat.restype = ctypes.c_void_p
l.shmat(s, None, 0)
open('/workspace/held', 'w').close()
time.sleep(30)
""",
        ],
        background=True,
    )
    while not inside.sandbox.files.exists("/workspace/held"):
        pass
    find = f"checked(libc.shmget({key}, 4096, 0o666))"
    assert inside.attempt(find) == "OK"
    assert other.attempt(find) == "ENOENT"
    assert outside.attempt(find) == "ENOENT"
    handle.kill()


def test_an_abstract_socket_of_one_is_not_reached_by_another(
    inside: Inside, other: Inside, outside: Outside
) -> None:
    """Abstract names belong to the network namespace."""
    serve = """
import socket, time
s = socket.socket(socket.AF_UNIX)
s.bind('\\0stockade-neighbour')
s.listen()
open('/workspace/served', 'w').close()
time.sleep(30)
"""
    handle = inside.sandbox.commands.run(["/usr/bin/python3", "-c", serve], background=True)
    while not inside.sandbox.files.exists("/workspace/served"):
        pass
    connect = "socket.socket(socket.AF_UNIX).connect('\\0stockade-neighbour')"
    assert inside.attempt(connect) == "OK"
    assert other.attempt(connect) == "ECONNREFUSED"
    assert outside.attempt(connect) == "ECONNREFUSED"
    handle.kill()


def test_a_port_of_one_is_not_reached_by_another(
    inside: Inside, other: Inside, outside: Outside
) -> None:
    """Loopback is each one's own."""
    serve = """
import socket, time
s = socket.create_server(('127.0.0.1', 4711))
open('/workspace/port', 'w').close()
time.sleep(30)
"""
    handle = inside.sandbox.commands.run(["/usr/bin/python3", "-c", serve], background=True)
    while not inside.sandbox.files.exists("/workspace/port"):
        pass
    connect = "socket.create_connection(('127.0.0.1', 4711), 2)"
    assert inside.attempt(connect) == "OK"
    assert other.attempt(connect) == "ECONNREFUSED"
    assert outside.attempt(connect) == "ECONNREFUSED"
    handle.kill()


def test_the_death_of_one_leaves_the_other_alive(other: Inside) -> None:
    """Killing a sandbox, and its cell dying, are its own."""
    with Sandbox.create(FAST) as first, Sandbox.create(FAST) as second:
        os.kill(first._sandbox.live.pid, 9)
        second.kill()
    assert other.run("/bin/echo", "alive").out == "alive\n"


@pytest.mark.root
def test_ids_are_not_given_to_the_next_one_while_they_are_used() -> None:
    """Ranges of live sandboxes never overlap, however many there are and in whatever order they end."""
    made = [Sandbox.create(FAST) for _ in range(6)]
    for one in made[::2]:
        one.kill()
    made = [*made[1::2], *(Sandbox.create(FAST) for _ in range(4))]
    starts = [one._sandbox.live.plan.launch.identity.uid_map[0].outside for one in made]
    assert len(set(starts)) == len(starts)
    for one in made:
        one.kill()


@pytest.mark.root
def test_a_file_left_in_a_shared_workspace_gives_no_right(other: Inside, outside: Outside) -> None:
    """Host files stay root's: an id inside is none that a host user has."""
    inside_uid = other.attempt("print(os.getuid())")
    assert inside_uid == "OK 1000"
    base = other.sandbox._sandbox.live.plan.launch.identity.uid_map[0].outside
    assert base > 2_000_000_000
    assert outside.attempt("print(os.getuid())") == "OK 0"
