"""The short form of tests/soak: a hundred sandboxes in a row, forty at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.soak.rounds import assert_level, at_once, in_a_row

pytestmark = pytest.mark.slow


def test_a_hundred_in_a_row_leave_nothing() -> None:
    """Descriptors, threads, processes, cgroups and memory of the owner are as before."""
    assert_level(asyncio.run(in_a_row(100, warm_up=20)))


def test_forty_at_once_leave_nothing() -> None:
    """All are alive at one time, each answers for itself, and all are gone together."""
    assert_level(asyncio.run(at_once(40)))
