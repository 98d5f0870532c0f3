"""The profile as data: reasons, the required calls, and what a policy may move."""

import subprocess

import pytest

from stockade.errors import PolicyError
from stockade.isolation.seccomp.profile import CELL_CALLS, Group, parse_profile, read_profile

DEFAULT = read_profile("default")

#: R6's list, and what the field denies beside it; each must be recorded.
HIGH_RISK = (
    "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "mount", "umount2", "pivot_root",
    "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "open_tree_attr",
    "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "settimeofday", "clock_settime", "bpf", "userfaultfd",
    "keyctl", "add_key", "request_key", "io_uring_setup", "io_uring_enter", "io_uring_register", "open_by_handle_at",
    "name_to_handle_at", "perf_event_open", "setns", "reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd",
    "sethostname", "setdomainname", "iopl", "ioperm", "nfsservctl", "lookup_dcookie", "pidfd_getfd", "memfd_secret",
)  # fmt: skip


def _action_of(call: str) -> str | None:
    return next((group.action.kind for group in DEFAULT.groups if call in group.calls), None)


@pytest.mark.parametrize("call", HIGH_RISK)
def test_high_risk_call_is_notified(call: str) -> None:
    """Each attempt is refused and recorded (R6)."""
    assert _action_of(call) == "notify"


@pytest.mark.parametrize("group", DEFAULT.groups, ids=lambda group: group.name)
def test_every_group_says_why(group: Group) -> None:
    """The reason stands in the data, as a sentence (style 18)."""
    assert len(group.reason) > 20
    assert group.reason.endswith(".")


@pytest.mark.parametrize("rules", [DEFAULT.rules, DEFAULT.child, DEFAULT.single])
def test_every_rule_says_why(rules: tuple[object, ...]) -> None:
    """The reason stands in the data (style 18)."""
    assert all(len(getattr(rule, "reason")) > 8 for rule in rules)  # noqa: B009 - three kinds of tuple


def test_no_call_stands_twice() -> None:
    """Which of two actions holds must not depend on the order of groups."""
    calls = [call for group in DEFAULT.groups for call in group.calls]
    calls += [rule.call for rule in DEFAULT.rules]
    assert sorted(calls) == sorted(set(calls))


def test_probes_of_harmless_programs_weigh_nothing() -> None:
    """They are records and never escalate alone (kernel-facts 17)."""
    probes = {
        "io_uring_setup",
        "perf_event_open",
        "chroot",
        "clock_settime",
        "ptrace",
        "get_mempolicy",
    }
    weights = {call: group.action.weight for group in DEFAULT.groups for call in group.calls}
    assert {weights[call] for call in probes} == {0}


def test_what_the_cell_needs_is_allowed() -> None:
    """The main filter holds for the cell too."""
    ruled = {rule.call for rule in DEFAULT.rules}
    assert [call for call in sorted(CELL_CALLS - ruled) if _action_of(call) != "allow"] == []


def test_child_rules_never_silence_a_notified_call() -> None:
    """A refusal by the command's filter would win over the notification (kernel-facts 15)."""
    notified = {
        call for group in DEFAULT.groups if group.action.kind == "notify" for call in group.calls
    }
    assert not notified & {rule.call for rule in (*DEFAULT.child, *DEFAULT.single)}


def test_policy_may_allow_an_unlocked_call() -> None:
    """A debugger's policy may have ptrace."""
    extended = DEFAULT.extended(("ptrace",), ())
    assert [group.action.kind for group in extended.groups if "ptrace" in group.calls] == ["allow"]


@pytest.mark.parametrize(
    "call", ["mount", "bpf", "io_uring_setup", "memfd_secret", "setns", "init_module"]
)
def test_policy_may_not_allow_a_locked_call(call: str) -> None:
    """Some calls end the wall itself."""
    with pytest.raises(PolicyError, match="can't be allowed"):
        DEFAULT.extended((call,), ())


@pytest.mark.parametrize("call", ["clone", "socket", "ioctl", "seccomp", "prctl"])
def test_policy_may_not_replace_a_rule_on_arguments(call: str) -> None:
    """Allowing the whole call would undo the rule."""
    with pytest.raises(PolicyError, match="by its arguments"):
        DEFAULT.extended((call,), ())


def test_denied_call_is_notified() -> None:
    """Who denies a call wants to know who tries."""
    extended = DEFAULT.extended((), ("inotify_init1",))
    assert [group.action.kind for group in extended.groups if "inotify_init1" in group.calls] == [
        "notify"
    ]


def test_ruled_call_can_be_denied_whole() -> None:
    """`deny: [personality]` replaces its rule."""
    extended = DEFAULT.extended((), ("personality",))
    assert "personality" not in {rule.call for rule in extended.rules}


@pytest.mark.parametrize("call", ["execve", "read", "seccomp", "landlock_restrict_self"])
def test_call_of_the_cell_cannot_be_denied(call: str) -> None:
    """It would only break the sandbox."""
    with pytest.raises(PolicyError, match="the cell itself"):
        DEFAULT.extended((), (call,))


def test_unknown_names_are_all_reported() -> None:
    """A misspelt call is an error, for it would protect nothing."""
    with pytest.raises(PolicyError) as caught:
        DEFAULT.extended(("pttrace",), ("moumt",))
    assert [problem.path for problem in caught.value.problems] == [
        "isolation.allow",
        "isolation.deny",
    ]


def test_unknown_profile_is_an_error() -> None:
    """A profile is named, never a path."""
    with pytest.raises(PolicyError):
        read_profile("../default")


@pytest.mark.parametrize(
    "text",
    [
        'name = "x"\ncolour = 1\n[[group]]\nname = "a"\naction = "allow"\nreason = "r"\ncalls = []',
        'name = "x"\n[[group]]\nname = "a"\naction = "allow"\nreason = "r"\ncalls = []\nwieght = 1',
        'name = "x"\n[[group]]\nname = "a"\naction = "permit"\nreason = "r"\ncalls = []',
    ],
)
def test_misspelt_template_is_an_error(text: str) -> None:
    """Templates are read as strictly as policies."""
    with pytest.raises(ValueError, match="unknown"):
        parse_profile(text)


def test_importing_the_wall_does_not_load_libseccomp() -> None:
    """Its binding looks for the library with a compiler; a warm start must not pay for that."""
    code = "import sys, stockade.isolation; sys.exit('pyseccomp' in sys.modules)"
    import sys  # noqa: PLC0415 - next to its only use

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
