"""The filters in the kernel: loaded into a forked process, with the listener that the supervisor has."""

import ctypes
import errno
import fcntl
import os
import platform
import resource
import socket
import struct
from collections.abc import Callable

import pytest

from stockade.isolation.seccomp import compile_profile

PROGRAM = compile_profile(arch=platform.machine())
_LIBC = ctypes.CDLL(None, use_errno=True)
_SECCOMP = {"x86_64": 317, "aarch64": 277}[platform.machine()]
_NEW_LISTENER, _WAIT_KILLABLE, _SPEC_ALLOW = 8, 32, 4
_NO_NEW_PRIVS = 38


class _Fprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _load(program: bytes, flags: int) -> int:
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = _Fprog(len(program) // 8, ctypes.addressof(buffer))
    result = int(_LIBC.syscall(_SECCOMP, 1, flags, ctypes.byref(fprog)))
    return result if result >= 0 else -ctypes.get_errno()


def _syscall(number: int, *args: int) -> int:
    """Return 0 or the errno of a call."""
    ctypes.set_errno(0)
    result = _LIBC.syscall(number, *(ctypes.c_long(arg) for arg in args))
    return 0 if result >= 0 else ctypes.get_errno()


def _in_sandboxed_process(
    body: Callable[[], int], child: bytes = PROGRAM.child
) -> tuple[int, list[int]]:
    """Run `body` under both filters; return its result and the numbers of the calls that were notified."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            _LIBC.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
            listener = _load(PROGRAM.main, _NEW_LISTENER | _WAIT_KILLABLE)
            socket.send_fds(theirs, [b"l"], [listener])
            os.close(listener)
            code = 254 if _load(child, _SPEC_ALLOW) else body()
        finally:
            os._exit(code)
    theirs.close()
    _, (listener, *_), _, _ = socket.recv_fds(ours, 1, 1)
    seen = _answer_all(listener)
    _, status = os.waitpid(pid, 0)
    ours.close()
    return os.waitstatus_to_exitcode(status), seen


def _answer_all(listener: int) -> list[int]:
    """Answer EPERM to each notification until the process is gone (POLLHUP)."""
    import select  # noqa: PLC0415 - next to its only use

    seen = []
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        ((_, events),) = poll.poll()
        if not events & select.POLLIN:
            break
        request = bytearray(80)
        try:
            fcntl.ioctl(listener, 0xC0502100, request)
        except FileNotFoundError:
            continue
        (identity,) = struct.unpack_from("<Q", request)
        seen.append(struct.unpack_from("<i", request, 16)[0])
        response = bytearray(struct.pack("<QqiI", identity, 0, -errno.EPERM, 0))
        fcntl.ioctl(listener, 0xC0182101, response)
    os.close(listener)
    return seen


def _number(name: str) -> int:
    return next(entry.number for entry in PROGRAM.notified if entry.name == name)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("ptrace", (0, 0, 0, 0)),
        ("mount", (0, 0, 0, 0, 0)),
        ("chroot", (0,)),
        ("unshare", (0x10000000,)),
        ("setns", (-1, 0)),
        ("bpf", (0, 0, 0)),
        ("keyctl", (0, 0, 0)),
        ("io_uring_setup", (1, 0)),
        ("perf_event_open", (0, 0, 0, 0, 0)),
        ("open_by_handle_at", (-1, 0, 0)),
        ("seccomp", (2, 0, 0)),
    ],
)
def test_high_risk_call_is_refused_and_notified(name: str, args: tuple[int, ...]) -> None:
    """The kernel asks the supervisor, which answers EPERM; the call never runs."""
    number = _number(name)
    assert _in_sandboxed_process(lambda: _syscall(number, *args)) == (errno.EPERM, [number])


def test_new_user_namespace_by_clone_is_refused_and_notified() -> None:
    """clone(2) with CLONE_NEWUSER, which fork-like calls don't have."""
    number = _number("clone")
    assert _in_sandboxed_process(lambda: _syscall(number, 0x10000011, 0, 0, 0, 0)) == (
        errno.EPERM,
        [number],
    )


@pytest.mark.parametrize(
    ("family", "kind", "protocol", "expected"),
    [
        (socket.AF_UNIX, socket.SOCK_STREAM, 0, 0),
        (socket.AF_INET, socket.SOCK_DGRAM, 0, 0),
        (socket.AF_NETLINK, socket.SOCK_RAW, 0, 0),
        (socket.AF_INET, socket.SOCK_RAW, 1, errno.EPERM),
        (socket.AF_PACKET, socket.SOCK_RAW, 3, errno.EAFNOSUPPORT),
        (socket.AF_ALG, socket.SOCK_SEQPACKET, 0, errno.EAFNOSUPPORT),
        (socket.AF_INET, socket.SOCK_STREAM, 132, errno.EPROTONOSUPPORT),
    ],
)
def test_socket_families_in_the_kernel(
    family: int, kind: int, protocol: int, expected: int
) -> None:
    """The errors are those of a kernel without the family, protocol or right."""

    def body() -> int:
        try:
            socket.socket(family, kind, protocol)
        except OSError as error:
            return error.errno or 0
        return 0

    assert _in_sandboxed_process(body) == (expected, [])


def test_vsock_is_refused_and_notified() -> None:
    """It reaches the host from inside a network namespace (kernel-facts 18)."""
    result = _in_sandboxed_process(lambda: _syscall(_number("socket"), 40, 1, 0))
    assert result == (errno.EPERM, [_number("socket")])


def test_threads_and_processes_start() -> None:
    """clone3 is missing and every runtime falls back."""

    def body() -> int:
        import subprocess  # noqa: PLC0415 - in the forked process only
        import threading  # noqa: PLC0415

        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        return subprocess.run(["/bin/true"], check=False).returncode

    assert _in_sandboxed_process(body) == (0, [])


def test_core_limit_cannot_be_changed() -> None:
    """EINVAL, and the limit is what it was."""

    def body() -> int:
        before = resource.getrlimit(resource.RLIMIT_CORE)
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, before[1]))
        except ValueError:
            return 0 if resource.getrlimit(resource.RLIMIT_CORE) == before else 3
        return 2

    assert _in_sandboxed_process(body) == (0, [])


def test_terminal_input_cannot_be_forged() -> None:
    """TIOCSTI is refused whatever the upper half of the request holds."""
    ioctl = {"x86_64": 16, "aarch64": 29}[platform.machine()]

    def body() -> int:
        _, terminal = os.openpty()
        results = {_syscall(ioctl, terminal, high << 32 | 0x5412, 0) for high in (0, 1, 0x7FFFFFFF)}
        return 0 if results == {errno.EPERM} else 2

    assert _in_sandboxed_process(body) == (0, [])


@pytest.mark.not_applicable_if(platform.machine() != "x86_64", reason="x32 is x86_64's")
def test_x32_call_is_missing() -> None:
    """Getpid through x32 answers ENOSYS, as on a kernel without x32."""
    assert _in_sandboxed_process(lambda: _syscall(0x40000000 | 39)) == (errno.ENOSYS, [])


def test_filter_of_a_command_cannot_be_replaced() -> None:
    """The cell's way is closed for the command, silently: only the cell knows of it."""
    seccomp = _number("seccomp")
    assert _in_sandboxed_process(lambda: _syscall(seccomp, 1, _SPEC_ALLOW, 0)) == (errno.EPERM, [])


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("kill", (1, 0)),
        ("setpriority", (0, 1, 0)),
        ("prlimit64", (1, 0, 0, 0)),
        ("pidfd_open", (1, 0)),
    ],
)
def test_single_id_filter_protects_process_one(name: str, args: tuple[int, ...]) -> None:
    """Refused by the filter, not by the kernel's own rules: root outside may do each of these."""
    import pyseccomp  # noqa: PLC0415 - slow to import, and only here

    number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
    assert _in_sandboxed_process(lambda: _syscall(number, *args), PROGRAM.child_single) == (
        errno.EPERM,
        [],
    )
