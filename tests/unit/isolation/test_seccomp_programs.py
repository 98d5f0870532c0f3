"""The compiled programs, call by call, in an interpreter that shares nothing with the compiler."""

import ctypes.util
from itertools import product

import pyseccomp
import pytest

from stockade.isolation.seccomp import Program, compile_profile
from stockade.isolation.seccomp.numbers import NEWER_CALLS
from stockade.isolation.seccomp.profile import read_profile
from tests.unit.isolation import cbpf

PROGRAMS = {name: compile_profile(arch=name) for name in ("x86_64", "aarch64")}
AUDIT = {"x86_64": cbpf.X86_64, "aarch64": cbpf.AARCH64}
DEFAULT = read_profile("default")
EPERM, EINVAL, ENOSYS = cbpf.errno(1), cbpf.errno(22), cbpf.errno(38)
EAFNOSUPPORT, EPROTONOSUPPORT = cbpf.errno(97), cbpf.errno(93)
HIGH = 0xFFFFFFFF << 32


def _number(arch: str, call: str) -> int:
    number = int(pyseccomp.resolve_syscall(getattr(pyseccomp.Arch, arch.upper()), call))
    return NEWER_CALLS.get(call, -1) if number < 0 else number


def _main(arch: str, call: str, *args: int) -> int:
    return cbpf.run(PROGRAMS[arch].main, _number(arch, call), args, AUDIT[arch])


def _child(arch: str, call: str, *args: int) -> int:
    return cbpf.run(PROGRAMS[arch].child, _number(arch, call), args, AUDIT[arch])


def _single(arch: str, call: str, *args: int) -> int:
    return cbpf.run(PROGRAMS[arch].child_single, _number(arch, call), args, AUDIT[arch])


both = pytest.mark.parametrize("arch", list(PROGRAMS))
GROUP_CALLS = [(group, call) for group in DEFAULT.groups for call in group.calls]


@both
@pytest.mark.parametrize(("group", "call"), GROUP_CALLS, ids=[call for _, call in GROUP_CALLS])
def test_listed_call_gets_its_groups_action(arch: str, group: object, call: str) -> None:
    """Every call of every group, on both architectures; those that one lacks are skipped knowingly."""
    action = getattr(group, "action")  # noqa: B009 - typed by the parameter list
    if _number(arch, call) < 0:
        assert call not in {entry.name for entry in PROGRAMS[arch].notified}
    else:
        assert _main(arch, call) == action.result


@both
@pytest.mark.parametrize("number", [*range(335, 424), *range(470, 600), 1000, 0x3FFFFFFF])
def test_unknown_number_is_missing(arch: str, number: int) -> None:
    """ENOSYS makes libraries take their older way."""
    known = {_number(arch, call) for _, call in GROUP_CALLS} | {
        _number(arch, rule.call) for rule in DEFAULT.rules
    }
    if number not in known:
        assert cbpf.run(PROGRAMS[arch].main, number, arch=AUDIT[arch]) == ENOSYS


@both
@pytest.mark.parametrize(
    "call", ["statmount", "listmount", "lsm_get_self_attr", "lsm_list_modules"]
)
def test_newer_call_without_a_use_is_missing(arch: str, call: str) -> None:
    """They show the host's mounts and modules; everything falls back to /proc."""
    assert _main(arch, call) == ENOSYS


@both
@pytest.mark.parametrize("call", ["mseal", "setxattrat", "file_getattr", "futex_wait", "cachestat"])
def test_newer_call_that_libseccomp_cannot_name_is_allowed(arch: str, call: str) -> None:
    """Our own number table serves where libseccomp 2.5.4 is too old."""
    assert _main(arch, call) == cbpf.ALLOW


@both
def test_filters_refuse_every_other_architecture(arch: str) -> None:
    """i386, x32's own value, and the other of the two: all calls are missing."""
    others = {cbpf.I386, 0x4000003E, 0, *AUDIT.values()} - {AUDIT[arch]}
    program = PROGRAMS[arch]
    results = {
        cbpf.run(code, number, arch=other)
        for code, number, other in product((program.main, program.child), range(0, 460, 7), others)
    }
    assert results == {ENOSYS}


@pytest.mark.parametrize("number", [0, 1, 39, 59, 101, 512, 520, 546])
def test_x32_call_is_missing(number: int) -> None:
    """x32 shares x86_64's architecture value and is told apart by a bit of the number."""
    numbers = (0x40000000 | number, 0xC0000000 | number)
    results = {
        cbpf.run(code, nr)
        for nr in numbers
        for code in (PROGRAMS["x86_64"].main, PROGRAMS["x86_64"].child)
    }
    assert results == {ENOSYS}


@both
@pytest.mark.parametrize("flag", [1 << bit for bit in (17, 25, 26, 27, 28, 29, 30)])
def test_clone_into_a_new_namespace_is_notified(arch: str, flag: int) -> None:
    """Each CLONE_NEW flag, alone or with others, with anything in the upper half."""
    assert {_main(arch, "clone", high | flag | 17) for high in (0, HIGH)} == {cbpf.NOTIFY}


@both
@pytest.mark.parametrize("flags", [17, 0x01200011, 0x003D0F00, 0x4111, HIGH | 17])
def test_clone_of_processes_and_threads_is_allowed(arch: str, flags: int) -> None:
    """fork, posix_spawn and pthread_create pass."""
    assert _main(arch, "clone", flags) == cbpf.ALLOW


@both
@pytest.mark.parametrize("flag", [0x80, *(1 << bit for bit in (17, 25, 26, 27, 28, 29, 30))])
def test_unshare_of_a_namespace_is_notified(arch: str, flag: int) -> None:
    """The time namespace too, which clone(2) can't name."""
    assert {_main(arch, "unshare", high | flag) for high in (0, HIGH)} == {cbpf.NOTIFY}


@both
def test_unshare_of_descriptors_is_allowed(arch: str) -> None:
    """CLONE_FILES and CLONE_FS concern the caller alone."""
    assert _main(arch, "unshare", 0x600) == cbpf.ALLOW


@both
@pytest.mark.parametrize("command", [0x5412, 0x541C, 0x5423])
def test_typing_into_a_terminal_is_refused(arch: str, command: int) -> None:
    """The kernel reads 32 bits, so the upper half must not matter (CVE-2019-10063 was this)."""
    assert {_main(arch, "ioctl", 0, high | command) for high in (0, 1 << 32, HIGH)} == {EPERM}


@both
@pytest.mark.parametrize(
    "command", [0, 0x5401, 0x5411, 0x5413, 0x541B, 0x80045430, HIGH | 0x80045430]
)
def test_other_ioctls_are_allowed(arch: str, command: int) -> None:
    """Terminals and files need them, with musl's sign-extended numbers too."""
    assert _main(arch, "ioctl", 0, command) == cbpf.ALLOW


SOCKETS = [
    ((1, 1, 0), cbpf.ALLOW),
    ((1, 2 | 0o2000000, 0), cbpf.ALLOW),
    ((1, 5 | 0o4000, 0), cbpf.ALLOW),
    ((2, 1 | 0o2004000, 6), cbpf.ALLOW),
    ((2, 2, 17), cbpf.ALLOW),
    ((10, 1, 0), cbpf.ALLOW),
    ((16, 3 | 0o2000000, 0), cbpf.ALLOW),
    ((16, 2, 0), cbpf.ALLOW),
    ((HIGH | 2, HIGH | 1, HIGH), cbpf.ALLOW),
    ((2, 3, 1), EPERM),
    ((10, 3, 58), EPERM),
    ((HIGH | 2, 3 | 0o2000000, 255), EPERM),
    ((2, 2, 1), EPROTONOSUPPORT),
    ((2, 1, 132), EPROTONOSUPPORT),
    ((2, 1, 262), EPROTONOSUPPORT),
    ((2, 6, 33), EPROTONOSUPPORT),
    ((1, 3, 0), EPROTONOSUPPORT),
    ((16, 3, 4), EPROTONOSUPPORT),
    ((16, 3, 15), EPROTONOSUPPORT),
    ((16, 1, 0), EPROTONOSUPPORT),
    ((17, 3, 768), EAFNOSUPPORT),
    ((38, 5, 0), EAFNOSUPPORT),
    ((31, 3, 1), EAFNOSUPPORT),
    ((44, 3, 0), EAFNOSUPPORT),
    ((0, 1, 0), EAFNOSUPPORT),
    ((40, 1, 0), cbpf.NOTIFY),
    ((HIGH | 40, 1, 0), cbpf.NOTIFY),
]


@both
@pytest.mark.parametrize(("args", "expected"), SOCKETS)
def test_socket_is_decided_by_family_type_and_protocol(
    arch: str, args: tuple[int, int, int], expected: int
) -> None:
    """UNIX, INET, INET6 and NETLINK_ROUTE; AF_VSOCK is recorded (kernel-facts 18)."""
    assert _main(arch, "socket", *args) == expected


@both
@pytest.mark.parametrize(
    ("family", "expected"), [(1, cbpf.ALLOW), (30, EAFNOSUPPORT), (2, EAFNOSUPPORT)]
)
def test_socketpair_is_unix_only(arch: str, family: int, expected: int) -> None:
    """TIPC would load a kernel module."""
    assert _main(arch, "socketpair", family, 1, 0) == expected


@both
@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((1, 2), cbpf.NOTIFY),
        ((1, 4), cbpf.ALLOW),
        ((1, 0), cbpf.NOTIFY),
        ((1, 8), cbpf.NOTIFY),
        ((1, 2 | 8), cbpf.NOTIFY),
        ((0, 0), cbpf.NOTIFY),
        ((2, 0), cbpf.NOTIFY),
        ((0, 2), cbpf.NOTIFY),
    ],
)
def test_filter_of_a_payload_is_notified(arch: str, args: tuple[int, int], expected: int) -> None:
    """Only the cell's own way passes the main filter (kernel-facts 15)."""
    assert _main(arch, "seccomp", *args) == expected


@both
@pytest.mark.parametrize("flags", [4, HIGH | 4])
def test_command_cannot_use_the_cells_way_to_install_a_filter(arch: str, flags: int) -> None:
    """The command's own filter closes it."""
    assert (_child(arch, "seccomp", 1, flags), _child(arch, "seccomp", 1, 0)) == (EPERM, cbpf.ALLOW)


@both
@pytest.mark.parametrize(
    ("option", "expected"),
    [(22, cbpf.NOTIFY), (HIGH | 22, cbpf.NOTIFY), (15, cbpf.ALLOW), (38, cbpf.ALLOW)],
)
def test_prctl_is_allowed_but_for_filters(arch: str, option: int, expected: int) -> None:
    """PR_SET_SECCOMP is recorded."""
    assert _main(arch, "prctl", option) == expected


@both
@pytest.mark.parametrize(
    ("persona", "expected"),
    [
        (0, cbpf.ALLOW),
        (8, cbpf.ALLOW),
        (0x20000, cbpf.ALLOW),
        (0x20008, cbpf.ALLOW),
        (0xFFFFFFFF, cbpf.ALLOW),
        (HIGH | 0xFFFFFFFF, cbpf.ALLOW),
        (0x40000, cbpf.NOTIFY),
        (0x400000, cbpf.NOTIFY),
        (6, cbpf.NOTIFY),
    ],
)
def test_personality_keeps_address_randomisation(arch: str, persona: int, expected: int) -> None:
    """Asking and Linux's own personas pass."""
    assert _main(arch, "personality", persona) == expected


@both
def test_clone3_is_the_cells_alone(arch: str) -> None:
    """Allowed for the cell, missing for commands: every runtime falls back (kernel-facts 16)."""
    assert (_main(arch, "clone3"), _child(arch, "clone3"), _single(arch, "clone3")) == (
        cbpf.ALLOW,
        ENOSYS,
        ENOSYS,
    )


@both
@pytest.mark.parametrize("run", [_child, _single])
def test_core_limit_can_be_read_but_not_changed(arch: str, run: object) -> None:
    """RLIMIT_CORE stays 1 (kernel-facts 10); EINVAL lets gpg go on."""
    assert callable(run)
    changed = (run(arch, "prlimit64", 0, 4, 0x7FFF), run(arch, "prlimit64", 0, HIGH | 4, 1 << 40))
    assert (changed, run(arch, "prlimit64", 0, 4, 0)) == ((EINVAL, EINVAL), cbpf.ALLOW)
    assert run(arch, "prlimit64", 0, 7, 0x7FFF) == cbpf.ALLOW


ON_THE_CELL = [
    ("prlimit64", (1, 0, 0x7FFF)),
    ("prlimit64", (1, 0, 0)),
    ("prlimit64", (77, 7, 0x7FFF)),
    ("sched_setaffinity", (1,)),
    ("sched_setparam", (1,)),
    ("sched_setscheduler", (1,)),
    ("sched_setattr", (1,)),
    ("setpriority", (0, 1)),
    ("setpriority", (1, 0)),
    ("setpriority", (2, 0)),
    ("ioprio_set", (1, 1)),
    ("ioprio_set", (2, 0)),
    ("ioprio_set", (3, 0)),
    ("kill", (1, 15)),
    ("tkill", (1, 15)),
    ("tgkill", (1, 1, 15)),
    ("rt_sigqueueinfo", (1, 15)),
    ("rt_tgsigqueueinfo", (1, 1, 15)),
    ("pidfd_open", (1,)),
    ("kill", (HIGH | 1, 15)),
]


@both
@pytest.mark.parametrize(("call", "args"), ON_THE_CELL)
def test_single_id_filter_refuses_what_acts_on_the_cell(
    arch: str, call: str, args: tuple[int, ...]
) -> None:
    """With one uid the kernel would allow it (kernel-facts 7)."""
    assert (_single(arch, call, *args), _child(arch, call, *args)) == (EPERM, cbpf.ALLOW)


@both
@pytest.mark.parametrize(
    ("call", "args"),
    [
        ("setpriority", (0, 0)),
        ("kill", (0, 15)),
        ("kill", (57, 9)),
        ("sched_setaffinity", (0,)),
        ("prlimit64", (0, 7, 9)),
    ],
)
def test_single_id_filter_leaves_what_acts_on_the_caller(
    arch: str, call: str, args: tuple[int, ...]
) -> None:
    """Programs set their own priority and end their own children."""
    assert _single(arch, call, *args) == cbpf.ALLOW


@both
def test_every_notified_call_has_a_name_and_a_weight(arch: str) -> None:
    """The supervisor names an attempt by its number."""
    names = {entry.name for entry in PROGRAMS[arch].notified}
    assert {"mount", "seccomp", "prctl", "clone", "unshare", "socket", "open_tree_attr"} <= names


@both
def test_programs_stay_small(arch: str) -> None:
    """The main filter loads in about 0.15 ms, a command's adds itself to each start."""
    program: Program = PROGRAMS[arch]
    sizes = [len(code) // 8 for code in (program.main, program.child, program.child_single)]
    assert (sizes[0] < 700, sizes[1] < 60, sizes[2] < 200) == (True, True, True)


def test_libseccomp_is_really_used() -> None:
    """The founding article asks for it; this host has it."""
    assert ctypes.util.find_library("seccomp")
