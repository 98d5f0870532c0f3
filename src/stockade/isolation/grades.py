"""How well each limit holds on a host: `enforced` by the kernel, `watched` by the cell, or `missing`; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stockade.errors import HostUnsupported
from stockade.policy import Policy

Grade: TypeAlias = Literal["enforced", "watched", "missing"]


@dataclass(frozen=True, slots=True)
class LimitGrade:
    """A limit's grade, and what holds it or why nothing does."""

    limit: str
    grade: Grade
    by: str


def check_grades(policy: Policy, grades: Sequence[LimitGrade]) -> None:
    """Raise `HostUnsupported` for a grade that the policy does not accept.

    `default` takes watched limits, `strict` only enforced ones; a missing one must be named by the policy.
    """
    for entry in grades:
        if entry.grade == "missing" and entry.limit not in policy.limits.accept_missing:
            raise HostUnsupported(
                f"the limit {entry.limit!r}: {entry.by}",
                f"See `stockade doctor`, or accept it: limits: {{accept_missing: [{entry.limit}]}}.",
            )
        if entry.grade == "watched" and policy.isolation.grades == "strict":
            raise HostUnsupported(
                f"the limit {entry.limit!r} enforced by the kernel: here it is only watched ({entry.by})",
                "See `stockade doctor`, or accept watched limits: isolation: {grades: default}.",
            )
