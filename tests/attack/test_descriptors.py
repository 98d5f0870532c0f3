"""Attacks through what a process is born with: descriptors, directory, terminal, rights (C01)."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.errors import InvalidCwd
from tests.applicability import not_applicable
from tests.attack.conftest import Build, MakeInside
from tests.attack.places import Inside, Outside, is_root, program, records

pytestmark = pytest.mark.attack

LIST_OPEN = """
import os
for name in os.listdir("/proc/self/fd"):
    try:
        print(name, os.readlink(f"/proc/self/fd/{name}"))
    except OSError:
        pass  # the listing's own
"""


@pytest.fixture
def open_root() -> Iterator[int]:
    """Return a descriptor of the host's root that children inherit."""
    descriptor = os.open("/", os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    yield descriptor
    os.close(descriptor)


def test_an_inheritable_descriptor_of_the_host_is_not_inside(
    make_inside: MakeInside, outside: Outside, open_root: int
) -> None:
    """C01 a: a child outside has the host's directory open; a command inside has 0, 1 and 2 and nothing else."""
    leaked = outside.python(LIST_OPEN, close_fds=False)
    assert f"{open_root} /" in leaked.splitlines()
    inside = make_inside()
    lines = [line.split(" ", 1) for line in inside.python(LIST_OPEN).splitlines()]
    assert sorted(int(number) for number, _ in lines) == [0, 1, 2]
    assert all(target == "/dev/null" or target.startswith("pipe:") for _, target in lines)


def test_a_descriptor_opened_later_is_not_inside(inside: Inside, open_root: int) -> None:
    """A descriptor that the host opens while the sandbox lives is not in the next command either."""
    assert os.get_inheritable(open_root)
    numbers = [line.split()[0] for line in inside.python(LIST_OPEN).splitlines()]
    assert sorted(numbers) == ["0", "1", "2"]


@pytest.mark.root
def test_the_cell_inherits_no_descriptor(
    make_inside: MakeInside, outside: Outside, open_root: int
) -> None:
    """C01: a child outside has the host's directory open; the cell, which outlives many commands, does not."""
    number = 200  # not one of those that the launcher replaces
    os.dup2(open_root, number, inheritable=True)
    try:
        assert f"{number} /" in outside.python(LIST_OPEN, close_fds=False).splitlines()
        inside = make_inside()
    finally:
        os.close(number)
    cell = inside.sandbox._sandbox.live.pid
    assert str(number) not in os.listdir(f"/proc/{cell}/fd")


@pytest.mark.parametrize("stdin", [None, True])
@pytest.mark.parametrize("terminal", [None, (24, 80)])
def test_every_way_to_start_a_command_opens_three_descriptors(
    inside: Inside, stdin: bool | None, terminal: tuple[int, int] | None
) -> None:
    """With pipes or a terminal, with or without standard input: 0, 1 and 2."""
    script = "for f in /proc/self/fd/*; do echo ${f##*/}; done"
    handle = inside.sandbox.commands.run(
        ["/bin/sh", "-c", script], stdin=stdin, pty=terminal, background=True
    )
    if stdin:
        handle.close_stdin()
    # The shell's own descriptor for the directory may be among them.
    assert {"0", "1", "2"} <= set(handle.wait().stdout.split()) <= {"0", "1", "2", "3", "255"}


CWDS = [
    "/proc/self/fd/0", "/proc/self/fd/3", "/proc/self/fd/4", "/proc/self/cwd/../..", "/proc/1/cwd", "/proc/1/root",
    "/proc/self/root", "/proc", "/proc/self/task", "/workspace/../proc/self/cwd", "/dev/fd", "/dev/fd/3",
]  # fmt: skip


@pytest.mark.parametrize("cwd", CWDS)
def test_a_working_directory_under_proc_is_refused(cwd: str, inside: Inside) -> None:
    """C01 b: no command starts in /proc or /dev, through whatever spelling."""
    with pytest.raises(InvalidCwd):
        inside.run("/bin/pwd", cwd=cwd)


def test_a_refused_working_directory_is_on_record(make_inside: MakeInside) -> None:
    """C01 b: the attempt is recorded, with the directory that was asked for."""
    inside = make_inside()
    with pytest.raises(InvalidCwd):
        inside.run("/bin/pwd", cwd="/proc/self/cwd/../..")
    (record,) = records("exec", sandbox_id=inside.sandbox.sandbox_id)
    assert (record.params["cwd"], record.detail["error"]) == ("/proc/self/cwd/../..", "cwd_invalid")


def test_a_descriptor_of_the_host_is_no_working_directory(
    make_inside: MakeInside, outside: Outside, open_root: int
) -> None:
    """C01 b: the number of an open host directory works as a working directory outside only."""
    cwd = f"/proc/self/fd/{open_root}"
    assert outside.run("/bin/pwd", cwd=cwd, close_fds=False).status == 0
    with pytest.raises(InvalidCwd):
        make_inside().run("/bin/pwd", cwd=cwd)


@pytest.mark.parametrize("target", ["/proc/self/fd", "/proc/self/root", "/proc/1/cwd"])
def test_a_link_into_proc_is_no_working_directory(target: str, inside: Inside) -> None:
    """A link that the payload made does not lead a later command there."""
    link = "/workspace/link" + target.replace("/", "-")
    assert inside.attempt("os.symlink(sys.argv[1], sys.argv[2])", target, link) == "OK"
    with pytest.raises(InvalidCwd):
        inside.run("/bin/pwd", cwd=link)


def test_the_parent_of_the_working_directory_ends_at_the_sandboxs_root(
    inside: Inside, outside: Outside
) -> None:
    """From any directory `..` leads to a root that is the sandbox's: its entries are not the host's."""
    climb = "os.chdir('../' * 40); print(sorted(os.listdir('.')))"
    above = inside.attempt(climb)
    assert above == inside.attempt("print(sorted(os.listdir('/')))")
    assert above != outside.attempt(climb)


# ---- Rights --------------------------------------------------------------------------------------------


def status_field(inside: Inside, name: str) -> str:
    """Return a line of a command's own /proc/self/status."""
    lines = inside.run("/bin/cat", "/proc/self/status").out.splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(name + ":"))


@pytest.mark.parametrize("name", ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])
def test_a_command_has_no_capability(name: str, inside: Inside) -> None:
    """All five sets are empty; outside a process has a bounding set to gain from."""
    own = Path("/proc/self/status").read_text(encoding="ascii")
    assert "CapBnd:\t0000000000000000" not in own
    assert status_field(inside, name) == "0000000000000000"


@pytest.mark.root
def test_root_inside_has_no_capability_either(inside: Inside) -> None:
    """A command as inside root may read what root owns, and has no right of root."""
    found = inside.sandbox.commands.run(
        "id -u; grep CapEff /proc/self/status", user="root"
    ).stdout.split()
    assert found == ["0", "CapEff:", "0000000000000000"]


RAISE = "checked(libc.syscall(126, struct.pack('II', 0x20080522, 0), struct.pack('6I', *[0x200000] * 6)))"


@pytest.mark.not_applicable_if(
    os.uname().machine != "x86_64", reason="the number of capset(2) is x86_64's"
)
def test_capset_raises_nothing(inside: Inside, outside: Outside) -> None:
    """CAP_SYS_ADMIN can be set where it is permitted, and not inside."""
    if is_root():
        # Only these: losing the others is part of the call.
        assert outside.attempt(RAISE) == "OK"
    assert inside.attempt(RAISE) == "EPERM"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param("24, 21", id="drop from the bounding set"),
        pytest.param("47, 2, 21", id="raise an ambient capability"),
        pytest.param("28, 0", id="set securebits"),
        pytest.param("8, 1", id="keep capabilities"),
    ],
)
def test_prctl_gains_no_right(arguments: str, inside: Inside, outside: Outside) -> None:
    """What root may do with prctl(2) outside, a command may not."""
    probe = f"checked(libc.prctl({arguments}, 0, 0))"
    if is_root() and not arguments.startswith("47"):
        assert outside.attempt(probe) == "OK"
    assert inside.attempt(probe) == "EPERM"


def test_no_new_privileges_can_not_be_taken_back(inside: Inside, outside: Outside) -> None:
    """PR_GET_NO_NEW_PRIVS is 0 outside and 1 inside, and nothing sets it back."""
    ask = "print(libc.prctl(39, 0, 0, 0, 0))"
    assert (outside.attempt(ask), inside.attempt(ask)) == ("OK 0", "OK 1")
    assert inside.attempt("checked(libc.prctl(38, 0, 0, 0, 0))") == "EINVAL"


PRIVILEGED = {
    "su": ("/usr/bin/su", "root", "-c", "id -u"),
    "passwd": ("/usr/bin/passwd", "-S", "root"),
    "chroot": ("/usr/sbin/chroot", "/", "/bin/true"),
    "dmesg": ("/usr/bin/dmesg", "--console-on"),
    "setpriv": ("/usr/bin/setpriv", "--reuid=0", "/bin/true"),
    "nice": ("/usr/bin/chrt", "--fifo", "1", "/bin/true"),
    "unshare": ("/usr/bin/unshare", "--user", "--map-root-user", "/bin/true"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "unshare" else pytest.mark.root)
        for name in PRIVILEGED
    ],
)
def test_a_privileged_program_of_the_host_fails(
    name: str, inside: Inside, outside: Outside
) -> None:
    """Programs of the image that need a right, setuid ones among them, do not get it."""
    command = PRIVILEGED[name]
    if not os.path.exists(command[0]):
        not_applicable(f"this host has no {command[0]}")
    assert outside.run(*command).status == 0
    assert inside.run(*command).status != 0


@pytest.mark.root
def test_a_setuid_program_in_a_workspace_has_no_effect(
    make_inside: MakeInside, build: Build, outside: Outside, tmp_path: Path
) -> None:
    """Outside it runs as its owner; inside, on a nosuid mount and with no new privileges, as its caller."""
    program_of_another = tmp_path / "project" / "ids"
    program_of_another.parent.mkdir()
    program_of_another.write_bytes(build("ids.c").read_bytes())
    os.chown(program_of_another, 12345, 12345)
    program_of_another.chmod(0o6755)
    assert outside.run(str(program_of_another)).out == "0 12345 0\n"
    workspace = {"source": str(program_of_another.parent.resolve()), "access": "ro"}
    inside = make_inside(filesystem={"workspaces": [workspace]})
    assert inside.run("/workspace/ids").out == "1000 1000 1\n"


def test_the_payloads_own_setuid_program_has_no_effect(
    make_inside: MakeInside, build: Build
) -> None:
    """A file that the payload makes setuid gives nobody its id: not even inside root, where there is one."""
    inside = make_inside()
    path = inside.install(build("ids.c"))
    assert inside.attempt("os.chmod(sys.argv[1], 0o6755)", path) == "OK"
    uid = 0 if is_root() else 1000
    result = inside.sandbox.commands.run([path], user="root" if is_root() else "agent")
    assert result.stdout == f"{uid} {uid} 1\n"


@pytest.mark.root
def test_a_file_capability_can_not_be_set(inside: Inside, outside: Outside, tmp_path: Path) -> None:
    """Root outside gives a file a capability; inside setting the attribute is refused."""
    give = """
path = sys.argv[1]
open(path, "w").close()
os.setxattr(path, "security.capability", struct.pack("<5I", 0x02000001, 0x200000, 0, 0, 0))
"""
    assert outside.attempt(give, str(tmp_path / "file")) == "OK"
    assert inside.attempt(give, "/workspace/capable") in ("EPERM", "ENOTSUP")


@pytest.mark.parametrize("call", ["setuid", "setgid", "seteuid"])
@pytest.mark.parametrize("target", [0, 65535, 1])
def test_a_command_can_not_become_another(
    call: str, target: int, inside: Inside, outside: Outside
) -> None:
    """Ids that root may take outside, the cell's among them, can not be taken inside."""
    change = f"os.{call}({target})"
    if is_root():
        assert outside.attempt(change) == "OK"
    assert inside.attempt(change) in ("EPERM", "EINVAL")


def test_supplementary_groups_can_not_be_changed(inside: Inside, outside: Outside) -> None:
    """The group that marks a command's processes stays: with it they are found and ended."""
    drop = "os.setgroups([])"
    if is_root():
        assert outside.attempt(drop) == "OK"
    assert inside.attempt(drop) == "EPERM"


# ---- The terminal --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0x5412, 0xFFFFFFFF00005412], ids=["plain", "with upper bits"])
def test_nothing_is_typed_into_a_terminal(code: int, inside: Inside, outside: Outside) -> None:
    """TIOCSTI puts a character into a terminal's input outside, where the host still has it."""
    probe = """
os.setsid() if os.getsid(0) != os.getpid() else None
master, slave = os.openpty()
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p)
checked(libc.ioctl(slave, int(sys.argv[1]), b"x"))
"""
    assert outside.attempt(probe, str(code)) in ("OK", "EIO")
    assert inside.attempt(probe, str(code)) == "EPERM"


def test_nothing_is_typed_into_the_commands_own_terminal(inside: Inside) -> None:
    """With a terminal of the host's making, too, TIOCSTI is refused."""
    done = inside.sandbox.commands.run(
        ["/usr/bin/python3", "-c", program("attempt.py"), "fcntl.ioctl(0, termios.TIOCSTI, b'x')"],
        pty=(24, 80),
    )
    assert done.stdout.strip() == "EPERM"


@pytest.mark.parametrize("code", [0x541C, 0x5423], ids=["TIOCLINUX", "TIOCSETD"])
def test_no_terminal_is_pasted_into_or_given_a_driver(
    code: int, inside: Inside, outside: Outside
) -> None:
    """The calls reach a terminal's driver outside."""
    probe = """
master, slave = os.openpty()
fcntl.ioctl(slave, int(sys.argv[1]), struct.pack("I", 0))
"""
    assert outside.attempt(probe, str(code)) in ("OK", "ENOTTY", "EINVAL", "EIO")
    assert inside.attempt(probe, str(code)) == "EPERM"


def test_the_hosts_terminal_is_not_the_commands() -> None:
    """A process with a terminal opens /dev/tty; a command of a sandbox that it made does not."""
    source = """
import os, sys
from stockade import Sandbox
os.close(os.open("/dev/tty", os.O_RDWR))
with Sandbox.create() as sandbox:
    result = sandbox.commands.run("exec 3<>/dev/tty", timeout=5)
print("inside", result.exit_code)
"""
    pid, master = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", source])
    text = b""
    while chunk := _read(master):
        text += chunk
    os.waitpid(pid, 0)
    os.close(master)
    assert b"inside 0" not in text
    assert b"inside " in text


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # EIO: the other end is closed
        return b""


def test_a_command_has_a_session_of_its_own(inside: Inside) -> None:
    """Its session and process group are its own: a signal to the host's group does not name it, nor the reverse."""
    found = inside.attempt("print(os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid())")
    assert found == "OK True True"
