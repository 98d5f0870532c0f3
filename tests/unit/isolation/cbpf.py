"""An interpreter of classic BPF, written from the kernel's documentation and sharing no code with the compiler."""

import struct
from collections.abc import Sequence

ALLOW = 0x7FFF0000
NOTIFY = 0x7FC00000
X86_64 = 0xC000003E
AARCH64 = 0xC00000B7
I386 = 0x40000003


def errno(number: int) -> int:
    """Return SECCOMP_RET_ERRNO with this errno."""
    return 0x00050000 | number


def run(program: bytes, nr: int, args: Sequence[int] = (), arch: int = X86_64) -> int:
    """Return what the filter answers to a call."""
    padded = [*args, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<iIQ6Q", nr if nr < 1 << 31 else nr - (1 << 32), arch, 0, *padded)
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator = index = 0
    while True:
        opcode, jump_true, jump_false, k = code[index]
        index += 1
        match opcode:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, k)
            case 0x54:
                accumulator &= k
            case 0x05:
                index += k
            case 0x06:
                return int(k)
            case _:
                index += jump_true if _holds(opcode, accumulator, k) else jump_false


def _holds(opcode: int, accumulator: int, k: int) -> bool:
    match opcode:
        case 0x15:
            return accumulator == k
        case 0x25:
            return accumulator > k
        case 0x35:
            return accumulator >= k
        case 0x45:
            return bool(accumulator & k)
        case _:
            raise AssertionError(f"opcode {opcode:#x}")
