"""Make one raw system call and print OK, or the errno's name.

It runs inside a sandbox and outside of one, so it uses the standard library alone.

    call.py [--apart] [--fork] NUMBER [ARGUMENT...]

An argument is a number, `s:TEXT` (a string), `b:COUNT` (zeroed bytes), `h:HEX` (these bytes), `fd:PATH` (an open
file), `child` (the process id of a child that waits), `pidfd` (its pidfd) or `iov` (a struct iovec over 8 bytes).
`--apart` first goes into namespaces of its own, so that a call which succeeds harms nobody; `--fork` says that the
call returns twice.
"""

import ctypes
import errno
import os
import signal
import struct
import sys
from collections.abc import Callable

MS_PRIVATE_REC = 0x44000
#: CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET
NAMESPACES = 0x4C020000
CLONE_NEWUSER = 0x10000000

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
kept: list[object] = []
children: list[int] = []


def child() -> int:
    """Start a process that waits, and return its id."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    children.append(pid)
    return pid


def buffer(content: bytes) -> int:
    """Return the address of a copy of `content`."""
    made = ctypes.create_string_buffer(content, max(len(content), 1))
    kept.append(made)
    return ctypes.addressof(made)


def value(word: str) -> int:
    """Turn a word of the command line into an argument."""
    kind, _, text = word.partition(":")
    makers: dict[str, Callable[[], int]] = {
        "s": lambda: buffer(text.encode() + b"\0"),
        "b": lambda: buffer(bytes(int(text))),
        "h": lambda: buffer(bytes.fromhex(text)),
        "fd": lambda: os.open(text, os.O_RDONLY),
        "child": child,
        "pidfd": lambda: os.pidfd_open(child()),
        "iov": lambda: buffer(struct.pack("QQ", buffer(b"8 bytes."), 8)),
    }
    return makers[kind]() if kind in makers else int(word, 0)


def go_apart() -> None:
    """Enter new namespaces; as an ordinary user they come with every capability over them, and no other."""
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(NAMESPACES | (CLONE_NEWUSER if uid else 0)):
        raise OSError(ctypes.get_errno(), "unshare")
    if uid:
        # Without a map of its own no further user namespace can be made in it.
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {uid} 1"),
            ("gid_map", f"0 {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    if libc.mount(None, b"/", None, MS_PRIVATE_REC, None):
        raise OSError(ctypes.get_errno(), "make mounts private")


def main() -> None:
    """Do what the command line says."""
    words = sys.argv[1:]
    if "--apart" in words:
        words.remove("--apart")
        go_apart()
    forks = "--fork" in words
    if forks:
        words.remove("--fork")
    number, *arguments = [value(word) for word in words]
    ctypes.set_errno(0)
    result = libc.syscall(number, *map(ctypes.c_long, arguments))
    if forks and result == 0:
        os._exit(0)
    found = "OK" if result != -1 else errno.errorcode[ctypes.get_errno()]
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    sys.stdout.write(found)


main()
