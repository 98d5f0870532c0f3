"""Attacks by one system call: each is refused inside, and reaches the kernel outside.

The control runs in namespaces of its own, in which an ordinary user has every capability that a namespace gives; so
what a row shows is the wall, not a lack of rights. Where only root of the host can do it, the row is root's.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.applicability import not_applicable
from tests.attack.places import Inside, Outside

pytestmark = pytest.mark.attack

ROOT = pytest.mark.root
AT_FDCWD = -100


@dataclass(frozen=True, slots=True)
class Call:
    """A call, what it may answer outside, what it must answer inside, and whether that is recorded."""

    name: str
    arguments: tuple[str | int, ...]
    outside: tuple[str, ...] = ("OK",)
    inside: str = "EPERM"
    recorded: bool = True
    forks: bool = False


def row(
    name: str, *arguments: str | int, label: str = "", root: bool = False, **how: object
) -> object:
    """Return a row of the table."""
    call = Call(name, arguments, **how)  # type: ignore[arg-type]
    marks = (ROOT,) if root else ()
    return pytest.param(call, id=label or name, marks=marks)


CLONE = {
    "user": 0x10000000, "mount": 0x00020000, "pid": 0x20000000, "network": 0x40000000, "ipc": 0x08000000,
    "uts": 0x04000000, "cgroup": 0x02000000,
}  # fmt: skip
CLONE_NEWTIME = 0x80
SIGCHLD = 17

MOUNTS = [
    row("mount", "s:none", "s:/tmp", "s:tmpfs", 0, 0),
    row("mount", "s:/etc", "s:/tmp", 0, 0x1000, 0, label="bind mount"),
    row(
        "mount",
        "s:none",
        "s:/",
        0,
        0x1000 | 0x20,
        0,
        label="remount writable",
        outside=("OK", "EINVAL"),
    ),
    row(
        "mount",
        "s:proc",
        "s:/tmp",
        "s:proc",
        0,
        0,
        label="mount proc",
        outside=("OK", "EPERM"),
        root=True,
    ),
    row(
        "mount",
        "s:/",
        "s:/tmp",
        0,
        0x5000,
        0,
        label="recursive bind of the root",
        outside=("OK", "EINVAL"),
    ),
    row("umount2", "s:/proc", 2, outside=("OK", "EINVAL")),
    row("pivot_root", "s:/", "s:/", outside=("EBUSY", "EINVAL")),
    row("chroot", "s:/tmp"),
    row("fsopen", "s:tmpfs", 0),
    row("fsconfig", -1, 6, 0, 0, 0, outside=("EINVAL",)),
    row("fsmount", -1, 0, 0, outside=("EBADF",)),
    row("fspick", AT_FDCWD, "s:/", 0),
    row("open_tree", AT_FDCWD, "s:/usr/bin", 1),
    row("open_tree_attr", AT_FDCWD, "s:/usr/bin", 1, 0, 0),
    row("move_mount", -1, "s:", -1, "s:", 0x44, outside=("EBADF",)),
    row("mount_setattr", AT_FDCWD, "s:/", 0, "b:32", 32),
]
NAMESPACES = [
    *(row("unshare", flag, label=f"unshare {name}") for name, flag in CLONE.items()),
    row("unshare", CLONE_NEWTIME, label="unshare time"),
    *(row("clone", flag | SIGCHLD, 0, 0, 0, 0, label=f"clone {name}", forks=True) for name, flag in CLONE.items()),
    row("unshare", (1 << 32) | CLONE["user"], label="unshare with upper bits", outside=("OK", "EINVAL")),
    row("clone", (1 << 40) | CLONE["user"] | SIGCHLD, 0, 0, 0, 0, label="clone with upper bits", forks=True),
    # Its flags are in memory, where a filter can't look, so the call as a whole is missing.
    row(
        "clone3", "h:" + (CLONE["user"]).to_bytes(8, "little").hex() + "00" * 24 + "11" + "00" * 31, 64,
        label="clone3 user", inside="ENOSYS", recorded=False, forks=True,
    ),
    row("setns", "fd:/proc/self/ns/net", CLONE["network"]),
    row("setns", "fd:/proc/self/ns/user", CLONE["user"], label="setns user", outside=("EINVAL",)),
    row("setns", "pidfd", CLONE["mount"], label="setns by pidfd", outside=("OK", "EPERM", "EINVAL"), root=True),
]  # fmt: skip
TRACING = [
    row("ptrace", 0, 0, 0, 0, label="ptrace traceme"),
    row("ptrace", 16, "child", 0, 0, label="ptrace attach"),
    row("ptrace", 0x4206, "child", 0, 0, label="ptrace seize"),
    row("process_vm_readv", "child", "iov", 1, "iov", 1, 0, outside=("OK", "EFAULT")),
    row("process_vm_writev", "child", "iov", 1, "iov", 1, 0, outside=("OK", "EFAULT")),
    row("pidfd_getfd", "pidfd", 0, 0),
    row("kcmp", "child", "child", 0, 0, 0),
    row("process_madvise", -1, "iov", 1, 20, 0, outside=("EBADF",), recorded=False),
    row("process_mrelease", -1, 0, outside=("EBADF",), recorded=False),
    row("perf_event_open", 0, 0, -1, -1, 0, outside=("EFAULT", "EACCES")),
    row("userfaultfd", 1),
    row("memfd_secret", 0),
    row("move_pages", "child", 0, 0, 0, 0, 2, outside=("OK", "ENODEV", "EPERM"), root=True),
    row("set_mempolicy", 0, 0, 0),
    row("migrate_pages", "child", 0, 0, 0, outside=("OK", "EINVAL", "EFAULT")),
]
IO_URING = [
    row("io_uring_setup", 1, 0, outside=("EFAULT",)),
    row("io_uring_setup", 1, "b:120", label="io_uring_setup with parameters"),
    row("io_uring_enter", 1, 0, 0, 0, 0, 0, outside=("ENOTSUP", "EBADF")),
    row("io_uring_register", 1, 0, 0, 0, outside=("ENOTSUP", "EBADF", "EINVAL")),
    row("io_setup", 1, "b:8", label="kernel AIO", inside="ENOSYS", recorded=False),
]
KEYS = [
    row("keyctl", 0, -2, 1, label="keyctl"),
    row("keyctl", 1, 0, label="join a session keyring", outside=("OK",)),
    row("add_key", "s:user", "s:stockade", "s:x", 1, -2),
    row("request_key", "s:user", "s:stockade", 0, 0, outside=("ENOKEY",)),
]
ADMINISTRATION = [
    row("bpf", 0, 0, 0, outside=("EINVAL", "E2BIG"), root=True),
    row("open_by_handle_at", -1, "b:16", 0, outside=("EINVAL", "EBADF", "ESTALE"), root=True),
    row(
        "name_to_handle_at",
        AT_FDCWD,
        "s:/usr",
        "b:8",
        "b:4",
        0,
        outside=("OK", "EOVERFLOW", "ENOTSUP"),
    ),
    row("kexec_load", 0, 0, 0, 0xFF, outside=("EINVAL",), root=True),
    row("kexec_file_load", -1, -1, 0, 0, 0x80, outside=("EINVAL",), root=True),
    row("init_module", 0, 0, "s:", outside=("EFAULT", "ENOEXEC"), root=True),
    row("finit_module", -1, "s:", 0, outside=("EBADF",), root=True),
    row("delete_module", "s:stockade_none", 0, outside=("ENOENT",), root=True),
    # A wrong magic number: refused after the check of rights.
    row("reboot", 1, 2, 3, 0, outside=("EINVAL",), root=True),
    row("clock_settime", 0, "h:" + "00" * 8 + "ff" * 8, outside=("EINVAL",)),
    row("settimeofday", "h:" + "00" * 8 + "ff" * 8, 0, outside=("EINVAL",)),
    row("adjtimex", "b:208", outside=("OK",), recorded=False),
    row("clock_adjtime", 0, "b:208", outside=("OK",), recorded=False),
    row("swapon", "s:/nonexistent", 0, outside=("ENOENT",), root=True),
    row("swapoff", "s:/nonexistent", outside=("ENOENT",), root=True),
    row("acct", "s:/nonexistent", outside=("ENOENT",), root=True),
    row(
        "quotactl",
        0x80000700,
        "s:/nonexistent",
        0,
        "b:64",
        outside=("ENOENT", "ENOSYS", "ENOTBLK", "EINVAL"),
    ),
    row("sethostname", "s:x", 1),
    row("setdomainname", "s:x", 1),
    row("iopl", 3, root=True),
    row("ioperm", 0x80, 1, 1, root=True),
    row("syslog", 10, 0, 0, recorded=False, root=True),
    row("vhangup", outside=("OK",), recorded=False, root=True),
    row("fanotify_init", 0x200, 0, recorded=False),
    row("modify_ldt", 0, "b:64", 64, inside="ENOSYS", recorded=False),
    row("personality", 0x0040000, label="personality without address randomisation"),
    row("personality", 0x0400000, label="personality READ_IMPLIES_EXEC"),
    row("seccomp", 1, 0, 0, label="seccomp filter", outside=("EFAULT",)),
    row("seccomp", 1, 8, 0, label="seccomp listener", outside=("EFAULT",)),
    # What the cell itself installs a command's filter with.
    row("seccomp", 1, 4, 0, label="seccomp as the cell", outside=("EFAULT",), recorded=False),
    row("seccomp", 0, 1, 0, label="seccomp strict", outside=("EINVAL",)),
    row("prctl", 22, 2, 0, 0, 0, label="prctl seccomp", outside=("EFAULT",)),
]
#: Calls that the kernel has and the profile does not name: a new one is refused before anyone has heard of it.
UNLISTED = [
    row("listmount", 0, 0, 0, 0, inside="ENOSYS", outside=("EFAULT",), recorded=False),
    row("statmount", 0, 0, 0, 0, inside="ENOSYS", outside=("EFAULT",), recorded=False),
    row(
        "lsm_list_modules",
        0,
        "b:4",
        0,
        inside="ENOSYS",
        outside=("E2BIG", "EFAULT", "OK"),
        recorded=False,
    ),
    row(
        "lsm_get_self_attr",
        100,
        0,
        "b:4",
        0,
        inside="ENOSYS",
        outside=("E2BIG", "ENOTSUP"),
        recorded=False,
    ),
]


@pytest.mark.parametrize(
    "call",
    [*MOUNTS, *NAMESPACES, *TRACING, *IO_URING, *KEYS, *ADMINISTRATION, *UNLISTED],
)
def test_a_dangerous_call_is_refused(call: Call, inside: Inside, outside: Outside) -> None:
    """The call fails with the profile's errno, and where the profile says so its attempt is on record."""
    flags = ["--fork"] if call.forks else []
    reached = outside.call(call.name, *call.arguments, flags=["--apart", *flags])
    if reached == "ENOSYS":
        not_applicable(f"this kernel has no {call.name}")
    assert reached in call.outside
    assert inside.call(call.name, *call.arguments, flags=flags) == call.inside
    recorded = {refusal.call for refusal in inside.sandbox.refused}
    assert (call.name in recorded) or not call.recorded
