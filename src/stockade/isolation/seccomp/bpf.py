"""A small assembler of classic BPF for rules on arguments; pure.

libseccomp compiles the list of calls. It can't say "else" for a rule on arguments (an unconditional rule replaces the
conditional ones, and its negations compare 64 bits where the kernel reads 32), so those rules are assembled here and
put before its program: what they don't decide falls through into it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

#: struct sock_filter: code, jump if true, jump if false, operand. Both architectures are little-endian.
INSTRUCTION = struct.Struct("<HBBI")

LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
JUMP = 0x05  # BPF_JMP | BPF_JA
JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
JUMP_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
JUMP_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K

# Offsets in struct seccomp_data.
_NR = 0
_ARCH = 4
_ARGS = 16

RET_ALLOW = 0x7FFF0000
RET_NOTIFY = 0x7FC00000
RET_ERRNO = 0x00050000

#: x86_64 calls with this bit are x32's.
X32_BIT = 0x40000000
_FULL = 0xFFFFFFFF
#: The kernel's limit of instructions for one filter (BPF_MAXINSNS).
MAX_INSTRUCTIONS = 4096


@dataclass(frozen=True, slots=True)
class Condition:
    """A test of one argument: its low 32 bits under `mask` are (or, negated, are not) among `values`.

    With `any_bit` one of the mask's bits is set; with `nonzero` the whole 64 bits are not 0.
    """

    arg: int
    mask: int = _FULL
    values: tuple[int, ...] = ()
    negated: bool = False
    any_bit: bool = False
    nonzero: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """All conditions hold: return `result`."""

    conditions: tuple[Condition, ...]
    result: int


@dataclass(frozen=True, slots=True)
class CallRule:
    """The cases for one system call, in order; `otherwise` None leaves it to the program behind."""

    number: int
    cases: tuple[Case, ...]
    otherwise: int | None


def assemble(rules: Sequence[CallRule], audit_arch: int, *, refuse_x32: bool, enosys: int) -> bytes:
    """Return instructions that decide `rules` and fall through for everything else.

    A call of another architecture, or of x32, returns `enosys` at once: numbers mean other calls there.
    """
    blocks = [_block(rule) for rule in rules]
    head = [
        (LOAD, 0, 0, _ARCH),
        (JUMP_EQUAL, 1, 0, audit_arch),
        (RETURN, 0, 0, enosys),
        (LOAD, 0, 0, _NR),
    ]
    if refuse_x32:
        head += [(JUMP_AT_LEAST, 0, 1, X32_BIT), (RETURN, 0, 0, enosys)]
    program = head + _dispatch([rule.number for rule in rules], [len(block) for block in blocks])
    for index, block in enumerate(blocks):
        behind = sum(len(later) for later in blocks[index + 1 :])
        program += _link(block, behind)
    return b"".join(INSTRUCTION.pack(*instruction) for instruction in program)


#: Target of a jump to the program behind; replaced by `_link`.
_TO_END = -1


def _dispatch(numbers: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Compare the call's number with each; a table of long jumps follows, for short ones reach 255 at most."""
    count = len(numbers)
    tests = [(JUMP_EQUAL, count, 0, number) for number in numbers]
    pass_by = [(JUMP, 0, 0, count + sum(lengths))]
    table = [(JUMP, 0, 0, count - index - 1 + sum(lengths[:index])) for index in range(count)]
    return tests + pass_by + table


def _block(rule: CallRule) -> list[tuple[int, int, int, int]]:
    block: list[tuple[int, int, int, int]] = []
    for case in rule.cases:
        tests = _tests(case.conditions)
        block += tests
        block.append((RETURN, 0, 0, case.result))
    block.append(
        (JUMP, 0, 0, _TO_END) if rule.otherwise is None else (RETURN, 0, 0, rule.otherwise)
    )
    return block


def _tests(conditions: Sequence[Condition]) -> list[tuple[int, int, int, int]]:
    """Return tests that run into what follows when all hold, and jump over one RETURN when one fails."""
    parts = [_condition(condition) for condition in conditions]
    tests: list[tuple[int, int, int, int]] = []
    for index, part in enumerate(parts):
        # Each part ends with "JUMP fail"; its distance is the later parts and the RETURN.
        rest = sum(len(later) for later in parts[index + 1 :])
        tests += part[:-1]
        tests.append((JUMP, 0, 0, rest + 1))
    return tests


def _condition(condition: Condition) -> list[tuple[int, int, int, int]]:
    """Return loads and tests that jump over their last instruction (the jump to "fails") when it holds."""
    low = _ARGS + 8 * condition.arg
    if condition.nonzero:
        return [
            (LOAD, 0, 0, low),
            (JUMP_EQUAL, 0, 3, 0),
            (LOAD, 0, 0, low + 4),
            (JUMP_EQUAL, 0, 1, 0),
            (JUMP, 0, 0, 0),
        ]
    load = [(LOAD, 0, 0, low)]
    if condition.any_bit:
        return [*load, (JUMP_ANY_BIT, 1, 0, condition.mask), (JUMP, 0, 0, 0)]
    if condition.mask != _FULL:
        load.append((AND, 0, 0, condition.mask))
    count = len(condition.values)
    if condition.negated:
        tests = [
            (JUMP_EQUAL, count - index, 0, value) for index, value in enumerate(condition.values)
        ]
        return [*load, *tests, (JUMP, 0, 0, 1), (JUMP, 0, 0, 0)]
    tests = [(JUMP_EQUAL, count - index, 0, value) for index, value in enumerate(condition.values)]
    return [*load, *tests, (JUMP, 0, 0, 0)]


def _link(block: list[tuple[int, int, int, int]], behind: int) -> list[tuple[int, int, int, int]]:
    last = len(block) - 1
    return [
        (code, jt, jf, behind + last - index)
        if code == JUMP and k == _TO_END
        else (code, jt, jf, k)
        for index, (code, jt, jf, k) in enumerate(block)
    ]
