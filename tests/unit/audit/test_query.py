"""Times, cursors and limits of queries."""

from __future__ import annotations

import re

import pytest

from stockade.audit import OPERATIONS, Cursor, Query, parse_time
from stockade.audit import operations as operations_module

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7d", NOW - 7 * 86_400_000),
        (" 1h ", NOW - 3_600_000),
        ("90s", NOW - 90_000),
        ("5ms", NOW - 5),
        ("2w", NOW - 14 * 86_400_000),
        ("99999d", 0),
        ("1970-01-02", 86_400_000),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1970-01-01T00:00:01.250Z", 1250),
    ],
)
def test_times_are_understood(text: str, expected: int) -> None:
    """Durations count back from now, dates are ISO 8601 and UTC by default."""
    assert parse_time(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "7 days", "yesterday", "2026-13-01", "1e3s"])
def test_other_times_are_refused(text: str) -> None:
    """What is no time is an error that names it."""
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_time(text, NOW)


@pytest.mark.parametrize("text", ["", "1", "x:y", "1:a b", "1:a'--"])
def test_bad_cursor_is_refused(text: str) -> None:
    """Only what a page gave out is a cursor."""
    with pytest.raises(ValueError, match="cursor"):
        Cursor.parse(text)


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_limit_is_bounded(limit: int) -> None:
    """A page is never empty by request nor endless."""
    with pytest.raises(ValueError, match="limit"):
        Query(limit=limit)


def test_every_operation_has_a_meaning() -> None:
    """Each name of an operation is explained, and nothing else."""
    names = {
        value
        for name, value in vars(operations_module).items()
        if name.isupper() and isinstance(value, str) and value not in operations_module.RESULTS
    }
    assert set(OPERATIONS) == names
