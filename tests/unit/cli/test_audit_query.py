"""Filters, pages and order of `stockade audit query`, on a real store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.audit import Query, Record, SqliteStore
from stockade.cli.audit_query import Filters, query_of, select


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """Return a store with 2,500 records, more than two pages."""
    made = SqliteStore.in_state_dir(str(tmp_path / "state"))
    made.append(
        [
            Record(number, "se", "sb", "exec", f"/{number}", {}, "success", 0)
            for number in range(2500)
        ]
    )
    yield made
    made.close()


@pytest.mark.parametrize(
    ("limit", "first", "count"), [(0, 0, 2500), (3, 2497, 3), (1500, 1000, 1500)]
)
def test_a_limit_counts_from_the_latest(
    store: SqliteStore, limit: int, first: int, count: int
) -> None:
    """Whatever the number of pages, the order is that of time."""
    found = [record.timestamp for record in select(store, Query(), limit)]
    assert found == list(range(first, first + count))


def test_times_are_relative_to_now() -> None:
    """`--since 1s` is one second before it."""
    assert query_of(Filters(since="1s"), 5000).since == 4000
