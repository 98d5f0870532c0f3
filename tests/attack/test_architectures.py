"""Attacks by another architecture's numbers: a filter by number sees other calls there."""

from __future__ import annotations

import os

import pytest

from tests.applicability import not_applicable
from tests.attack.conftest import Build, MakeInside
from tests.attack.places import Outside

X86 = os.uname().machine == "x86_64"
pytestmark = [
    pytest.mark.attack,
    pytest.mark.not_applicable_if(
        not X86, reason="only x86_64 has other architectures' calls here"
    ),
]

X32 = 0x40000000


@pytest.mark.parametrize(
    ("program", "reached"), [("int80.c", ("OK",)), ("mount32.c", ("1", "14", "22"))]
)
def test_the_32_bit_gate_is_closed(
    program: str, reached: tuple[str, ...], make_inside: MakeInside, build: Build, outside: Outside
) -> None:
    """`int 0x80` from a 64-bit program reaches the kernel outside and is a missing call inside."""
    built = build(program)
    found = outside.run(str(built))
    if found.status or found.out.strip() in ("38", "ENOSYS"):
        not_applicable("this kernel runs no 32-bit calls")
    assert found.out.strip() in reached
    inside = make_inside()
    assert inside.run(inside.install(built)).out.strip() in ("38", "ENOSYS")


def test_a_32_bit_program_does_nothing(
    make_inside: MakeInside, build: Build, outside: Outside
) -> None:
    """A whole 32-bit program runs outside; inside each of its calls is missing, and it ends by a signal."""
    built = build("elf32.S", "-m32", "-nostdlib", "-static", "-no-pie")
    found = outside.run(str(built))
    if found.out != "OK":
        not_applicable("this kernel runs no 32-bit programs")
    inside = make_inside()
    reply = inside.run(inside.install(built))
    assert (reply.out, reply.status) == ("", 128 + 11)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(39, id="getpid"),
        pytest.param(521, id="ptrace"),
        pytest.param(520, id="execve"),
        pytest.param(165, id="mount"),
        pytest.param(425, id="io_uring_setup"),
        pytest.param(41, id="socket"),
    ],
)
def test_an_x32_call_is_missing(number: int, make_inside: MakeInside) -> None:
    """With the x32 bit a call answers ENOSYS, whether or not the kernel was built with x32.

    The control is the same call without the bit, which is not missing outside.
    """
    inside = make_inside()
    probe = f"""
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.syscall(ctypes.c_long({number | X32}), 0, 0, 0, 0, 0, 0)
print(errno.errorcode[ctypes.get_errno()])
"""
    assert inside.python(probe) == "ENOSYS"


def test_a_number_with_upper_bits_is_the_same_call(
    make_inside: MakeInside, outside: Outside
) -> None:
    """The kernel looks at 32 bits of the number; so does the filter: mount(2) with upper bits is refused."""
    probe = """
number = ctypes.c_long((1 << 32) + 165)
checked(libc.syscall(number, 0, 0, 0, 0, 0))
"""
    assert outside.attempt(probe) in ("EFAULT", "EPERM", "EINVAL")
    assert make_inside().attempt(probe) in ("EPERM", "ENOSYS")
