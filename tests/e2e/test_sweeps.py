"""SIGKILL of the owner at every phase of creation and use, of its launcher and of its cell: nothing is left.

The phases are enumerated, not guessed: each function of the package that is entered or left during a sandbox's life
is one, and so is each fraction of a millisecond of a creation.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.orphans import sweep

PARTS = 2
OWNING = (
    "runtime/live.py",
    "runtime/spawn.py",
    "isolation/slots.py",
    "isolation/cgroups_io.py",
    "sandbox/owner.py",
)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_an_owner_killed_at_a_function_leaves_nothing(tmp_path: Path, part: int) -> None:
    """Wherever Python's side is when it dies: processes go within 2 s, all else at the next start.

    Here the files that start, own and end things; `make soak` has all of the package.
    """
    result = sweep(tmp_path, "boundaries", str(part), str(PARTS), *OWNING)
    assert result["failures"] == {}
    assert result["count"] >= 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "end_us", "count"),
    [("delays", 8000, 41), ("launcher", 4000, 21), ("cell", 4000, 21)],
    ids=["owner", "launcher", "cell"],
)
def test_a_creation_that_is_cut_short_leaves_nothing(
    tmp_path: Path, victim: str, end_us: int, count: int
) -> None:
    """The owner, its launcher or its cell dies at any fifth of a millisecond of a creation.

    An owner that lives gets a typed error, and its next sandbox works.
    """
    result = sweep(tmp_path, victim, "200", str(end_us))
    assert (result["failures"], result["count"]) == ({}, count)
