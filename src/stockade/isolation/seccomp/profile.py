"""A seccomp profile as data: its groups, its rules on arguments, and what a policy changes in it.

The template is a TOML file beside this module; reading it is the only I/O here. Nothing is compiled.
"""

from __future__ import annotations

import errno as errno_names
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, Literal, TypeAlias

from stockade.errors import PolicyError, PolicyProblem
from stockade.isolation.seccomp.bpf import RET_ALLOW, RET_ERRNO, RET_NOTIFY, Condition

ActionKind: TypeAlias = Literal["allow", "refuse", "notify"]

#: What an unknown call, x32 or another architecture answers: as a kernel that does not have it.
ENOSYS = RET_ERRNO | errno_names.ENOSYS


@dataclass(frozen=True, slots=True)
class Action:
    """What happens to a call; `weight` is what one notified attempt counts (0: a probe, only recorded)."""

    kind: ActionKind
    errno: int = errno_names.EPERM
    weight: int = 0

    @property
    def result(self) -> int:
        """The filter's return value."""
        if self.kind == "allow":
            return RET_ALLOW
        return RET_NOTIFY if self.kind == "notify" else RET_ERRNO | self.errno


@dataclass(frozen=True, slots=True)
class Group:
    """Calls with one action and one reason."""

    name: str
    action: Action
    reason: str
    calls: tuple[str, ...]
    locked: bool


@dataclass(frozen=True, slots=True)
class RuleCase:
    """Conditions on the arguments, and what holds when all of them do."""

    conditions: tuple[Condition, ...]
    action: Action


@dataclass(frozen=True, slots=True)
class Rule:
    """The cases of one call, in order; `otherwise` None leaves it to the list."""

    call: str
    reason: str
    cases: tuple[RuleCase, ...]
    otherwise: Action | None


@dataclass(frozen=True, slots=True)
class Profile:
    """A whole profile: the main filter's groups and rules, and the rules of each command's own filter."""

    name: str
    groups: tuple[Group, ...]
    rules: tuple[Rule, ...]
    child: tuple[Rule, ...]
    #: rules that replace or join `child` where cell and command share one id
    single: tuple[Rule, ...]

    def extended(self, allow: tuple[str, ...], deny: tuple[str, ...]) -> Profile:
        """Return the profile with a policy's names moved; raises `PolicyError` for one that can't be.

        A denied call is notified: who denies it wants to know. The order of the groups makes later ones win.
        """
        problems = [*self._allow_problems(allow), *self._deny_problems(deny)]
        if problems:
            raise PolicyError(tuple(problems), f"profile {self.name}")
        moved = {*allow, *deny}
        kept = tuple(
            replace(group, calls=tuple(call for call in group.calls if call not in moved))
            for group in self.groups
        )
        extra = (
            Group(
                "allowed by the policy",
                Action("allow"),
                "The policy names them.",
                allow,
                locked=False,
            ),
            Group(
                "denied by the policy",
                Action("notify", weight=2),
                "The policy names them.",
                deny,
                locked=False,
            ),
        )
        rules = tuple(rule for rule in self.rules if rule.call not in deny)
        return replace(self, groups=kept + extra, rules=rules)

    def _allow_problems(self, names: tuple[str, ...]) -> list[PolicyProblem]:
        known = {call: group for group in self.groups for call in group.calls}
        ruled = {rule.call for rule in self.rules}
        problems = []
        for name in names:
            where = "isolation.allow"
            if name in ruled:
                problems.append(PolicyProblem(where, f"{name} is decided by its arguments already"))
            elif name not in known:
                problems.append(
                    PolicyProblem(where, f"{name} is not a system call that this profile knows")
                )
            elif known[name].locked:
                problems.append(
                    PolicyProblem(where, f"{name} can't be allowed: {known[name].reason}")
                )
        return problems

    def _deny_problems(self, names: tuple[str, ...]) -> list[PolicyProblem]:
        known = {call for group in self.groups for call in group.calls} | {
            rule.call for rule in self.rules
        }
        where = "isolation.deny"
        return [
            PolicyProblem(where, f"{name} is not a system call that this profile knows")
            if name not in known
            else PolicyProblem(where, f"{name} can't be denied: the cell itself needs it")
            for name in names
            if name not in known or name in CELL_CALLS
        ]


#: What the cell or the start of any command needs under the main filter; denying one would only break the sandbox.
CELL_CALLS = frozenset({
    "brk", "capget", "capset", "clock_gettime", "clone", "clone3", "close", "close_range", "dup3", "epoll_create1",
    "epoll_ctl", "epoll_pwait", "epoll_wait", "execve", "exit", "exit_group", "fcntl", "fstat", "futex", "getpid",
    "ioctl", "kill", "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "lseek", "mmap",
    "mprotect", "munmap", "newfstatat", "openat", "openat2", "pidfd_open", "pidfd_send_signal", "pipe2", "ppoll",
    "prctl", "prlimit64", "read", "recvmsg", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "seccomp", "sendmsg",
    "setfsgid", "setfsuid", "setgroups", "setresgid", "setresuid", "setsid", "sigaltstack", "signalfd4",
    "timerfd_create", "timerfd_settime", "wait4", "waitid", "write",
})  # fmt: skip


@cache
def profile_text(name: str) -> str:
    """Return a template's text; raises `PolicyError` if there is none of that name."""
    file = resources.files(__package__).joinpath(f"{name}.toml")
    if not name.replace("-", "").replace("_", "").isalnum() or not file.is_file():
        raise PolicyError(
            (PolicyProblem("isolation.profile", f"there is no profile {name!r}"),), "policy"
        )
    return file.read_text(encoding="utf-8")


@cache
def read_profile(name: str) -> Profile:
    """Return a template."""
    return parse_profile(profile_text(name))


def parse_profile(text: str) -> Profile:
    """Read a template's TOML; an unknown key is an error, for a misspelt rule would protect nothing."""
    data = tomllib.loads(text)
    profile = Profile(
        name=data.pop("name"),
        groups=tuple(map(_group, data.pop("group"))),
        rules=tuple(map(_rule, data.pop("rule", ()))),
        child=tuple(map(_rule, data.pop("child", ()))),
        single=tuple(map(_rule, data.pop("single", ()))),
    )
    _nothing_left(data)
    return profile


def _group(data: dict[str, Any]) -> Group:
    name, reason, calls = data.pop("name"), data.pop("reason"), tuple(data.pop("calls"))
    locked = data.pop("locked", False)
    return Group(name, _action(data), reason, calls, locked)


def _rule(data: dict[str, Any]) -> Rule:
    otherwise = data.pop("otherwise", None)
    rule = Rule(
        data.pop("call"),
        data.pop("reason"),
        tuple(
            RuleCase(tuple(map(_condition, case.pop("when"))), _action(case))
            for case in data.pop("cases", ())
        ),
        None if otherwise is None else _action(otherwise),
    )
    _nothing_left(data)
    return rule


def _condition(data: dict[str, Any]) -> Condition:
    arg = data.pop("arg")
    if "any_bit" in data:
        condition = Condition(arg, mask=data.pop("any_bit"), any_bit=True)
    elif data.pop("nonzero", False):
        condition = Condition(arg, nonzero=True)
    elif "not" in data:
        condition = Condition(arg, values=tuple(data.pop("not")), negated=True)
    else:
        condition = Condition(arg, mask=data.pop("mask", 0xFFFFFFFF), values=tuple(data.pop("is")))
    _nothing_left(data)
    return condition


def _action(data: dict[str, Any]) -> Action:
    kind = data.pop("action")
    name = data.pop("errno", "EPERM")
    action = Action(kind, getattr(errno_names, name), data.pop("weight", 0))
    if kind not in ("allow", "refuse", "notify"):
        raise ValueError(f"unknown action {kind!r}")
    _nothing_left(data)
    return action


def _nothing_left(data: dict[str, Any]) -> None:
    if data:
        raise ValueError(f"unknown keys: {', '.join(data)}")
