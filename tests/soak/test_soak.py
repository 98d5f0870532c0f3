"""Thousands of sandboxes, and hundreds at once: nothing grows, nothing is left, nothing fails. `make soak`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.orphans import sweep
from tests.soak.conftest import Tell
from tests.soak.rounds import assert_level, at_once, in_a_row

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

IN_A_ROW = 2000
AT_ONCE = 200
PARTS = 8


def test_two_thousand_in_a_row(tell: Tell) -> None:
    """Each is created, used and killed with a command running; the owner stays as it was."""
    report = asyncio.run(in_a_row(IN_A_ROW, warm_up=100))
    tell(f"in a row: {report}")
    assert_level(report)


def test_two_hundred_at_once(tell: Tell) -> None:
    """All live at one time and answer; three times over, to see what the first time only warmed."""
    reports = [asyncio.run(at_once(AT_ONCE)) for _ in range(3)]
    for report in reports:
        tell(f"at once: {report}")
    assert_level(reports[-1])


@pytest.mark.parametrize("part", range(PARTS))
def test_an_owner_killed_at_any_function_leaves_nothing(
    tmp_path: Path, part: int, tell: Tell
) -> None:
    """Every function of the package that a sandbox's life enters or leaves is a moment to die at."""
    result = sweep(tmp_path, "boundaries", str(part), str(PARTS), "*", timeout_s=1800)
    tell(f"killed at a function: {result['count']} in {result['seconds']} s")
    assert result["failures"] == {}
    assert result["count"] >= 100


@pytest.mark.parametrize("victim", ["delays", "launcher", "cell"])
def test_a_creation_cut_short_at_any_time_leaves_nothing(
    tmp_path: Path, victim: str, tell: Tell
) -> None:
    """As in the short form, in steps of 20 microseconds."""
    result = sweep(tmp_path, victim, "20", "10000", timeout_s=1800)
    tell(f"{victim}: {result['count']} in {result['seconds']} s")
    assert result["failures"] == {}
