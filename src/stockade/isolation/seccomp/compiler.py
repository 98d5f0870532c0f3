"""From a profile to BPF programs, through libseccomp; no files but the memory that it exports into.

`bpf.py` says which part libseccomp compiles and which is put before it. Both architectures compile on either host.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import cast

from stockade.errors import HostUnsupported, PolicyError, PolicyProblem
from stockade.isolation.seccomp.bpf import (
    INSTRUCTION,
    MAX_INSTRUCTIONS,
    RET_ALLOW,
    CallRule,
    Case,
    assemble,
)
from stockade.isolation.seccomp.numbers import NEWER_CALLS, Architecture
from stockade.isolation.seccomp.profile import ENOSYS, Action, Profile, Rule

#: Part of every cached program's name: raise it when the compiler's output changes.
COMPILER_VERSION = 1

_ATTR_BAD_ARCH = 2
_ATTR_OPTIMIZE = 8
_BINARY_TREE = 2


@dataclass(frozen=True, slots=True)
class Notified:
    """A call whose attempts are recorded: how the supervisor names and weighs it."""

    number: int
    name: str
    weight: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """The programs as struct sock_filter[], and the calls that are notified."""

    main: bytes
    child: bytes
    child_single: bytes
    notified: tuple[Notified, ...]


def compile_programs(profile: Profile, arch: Architecture) -> Compiled:
    """Compile the main filter and both filters for commands; raises `HostUnsupported` without libseccomp."""
    numbers = _Numbers(arch)
    main = _main(profile, arch, numbers)
    single_calls = {rule.call for rule in profile.single}
    common = tuple(rule for rule in profile.child if rule.call not in single_calls)
    return Compiled(
        main=main,
        child=_child(profile.child, arch, numbers),
        child_single=_child(common + profile.single, arch, numbers),
        notified=_notified(profile, numbers),
    )


class _Numbers:
    """Numbers of one architecture, and whether libseccomp knows the name."""

    def __init__(self, arch: Architecture) -> None:
        self.library = _library()
        self.token = getattr(self.library.Arch, arch.name.upper())

    def by_library(self, name: str) -> int | None:
        """Return libseccomp's number; a negative one is a call that the architecture lacks."""
        number = int(self.library.resolve_syscall(self.token, name))
        return number if number >= 0 else None

    def number(self, name: str) -> int | None:
        """Return the number by libseccomp or by our own table; None where the architecture has no such call."""
        known = self.by_library(name)
        return NEWER_CALLS.get(name) if known is None else known


def _library() -> ModuleType:
    try:
        import pyseccomp  # noqa: PLC0415 - 17 ms (it looks for the library), and not needed when the cache holds
    except (ImportError, RuntimeError, OSError) as error:
        raise HostUnsupported(
            "system call filters: libseccomp cannot be loaded",
            "Install libseccomp2 (Debian) or libseccomp.",
        ) from error
    return cast("ModuleType", pyseccomp)


def _main(profile: Profile, arch: Architecture, numbers: _Numbers) -> bytes:
    ruled = {rule.call for rule in profile.rules}
    listed = [
        (call, group.action)
        for group in profile.groups
        for call in group.calls
        if call not in ruled
    ]
    ours = [(call, action) for call, action in listed if numbers.by_library(call) is None]
    rules = _call_rules(profile.rules, numbers) + _constant_rules(ours, numbers)
    theirs = [(call, action) for call, action in listed if numbers.by_library(call) is not None]
    return _join(rules, _list_program(theirs, ENOSYS, numbers), arch)


def _child(rules: Sequence[Rule], arch: Architecture, numbers: _Numbers) -> bytes:
    constant = [(rule.call, rule.otherwise) for rule in rules if not rule.cases and rule.otherwise]
    by_argument = [rule for rule in rules if rule.cases]
    return _join(
        _call_rules(by_argument, numbers), _list_program(constant, RET_ALLOW, numbers), arch
    )


def _call_rules(rules: Sequence[Rule], numbers: _Numbers) -> list[CallRule]:
    compiled = []
    for rule in rules:
        number = numbers.number(rule.call)
        if number is None:
            continue
        cases = tuple(Case(case.conditions, case.action.result) for case in rule.cases)
        compiled.append(CallRule(number, cases, rule.otherwise.result if rule.otherwise else None))
    return compiled


def _constant_rules(calls: Sequence[tuple[str, Action]], numbers: _Numbers) -> list[CallRule]:
    found = [(numbers.number(call), action) for call, action in calls]
    return [CallRule(number, (), action.result) for number, action in found if number is not None]


def _list_program(calls: Sequence[tuple[str, Action]], default: int, numbers: _Numbers) -> bytes:
    """Compile a list of calls with libseccomp, as a binary tree (half the cost of a chain, kernel-facts 16)."""
    library = numbers.library
    table = library.SyscallFilter(default)
    native = library.system_arch()
    if numbers.token != native:
        table.add_arch(numbers.token)
        table.remove_arch(native)
    # ERRNO instead of the library's KILL: a 32-bit program is told that the call is missing, and can say so.
    table.set_attr(_ATTR_BAD_ARCH, ENOSYS)
    table.set_attr(_ATTR_OPTIMIZE, _BINARY_TREE)
    for call, action in calls:
        if action.result != default:
            table.add_rule(action.result, library.resolve_syscall(library.Arch.NATIVE, call))
    return _export(table)


def _export(table: object) -> bytes:
    descriptor = os.memfd_create("stockade-seccomp", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "w+b") as file:
        table.export_bpf(file)  # type: ignore[attr-defined]
        file.seek(0)
        return file.read()


def _join(rules: Sequence[CallRule], program: bytes, arch: Architecture) -> bytes:
    head = assemble(rules, arch.audit, refuse_x32=arch.has_x32, enosys=ENOSYS)
    joined = head + program
    if len(joined) // INSTRUCTION.size > MAX_INSTRUCTIONS:
        problem = PolicyProblem(
            "isolation.profile", "compiles to more instructions than the kernel takes"
        )
        raise PolicyError((problem,), "profile")
    return joined


def _notified(profile: Profile, numbers: _Numbers) -> tuple[Notified, ...]:
    found = [
        (call, group.action)
        for group in profile.groups
        for call in group.calls
        if group.action.kind == "notify"
    ]
    for rule in profile.rules:
        actions = [case.action for case in rule.cases] + [rule.otherwise or Action("allow")]
        found += [(rule.call, action) for action in actions if action.kind == "notify"]
    known = [(numbers.number(call), call, action.weight) for call, action in found]
    return tuple(
        sorted(
            (Notified(nr, call, weight) for nr, call, weight in known if nr is not None),
            key=_by_number,
        )
    )


def _by_number(notified: Notified) -> int:
    return notified.number
