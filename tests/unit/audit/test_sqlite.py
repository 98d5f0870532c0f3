"""The embedded store: schema, rights, queries and pages."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.audit import AuditStore, Cursor, Query, SqliteStore, new_record_id
from stockade.audit.sqlite import MIGRATIONS, SCHEMA_VERSION, migrate
from stockade.errors import AuditError
from tests.unit.audit.samples import make_record, stored


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a database path in a directory that is not made yet."""
    return str(tmp_path / "audit" / "a.sqlite3")


@pytest.fixture
def store(path: str) -> Iterator[AuditStore]:
    """Make an empty store."""
    made = SqliteStore(path)
    yield made
    made.close()


def test_files_are_private(path: str, store: AuditStore) -> None:
    """Nobody but the owner reads the log, its WAL or its directory."""
    store.append([make_record()])
    directory = os.path.dirname(path)
    modes = {
        name: stat.S_IMODE(os.stat(f"{directory}/{name}").st_mode) for name in os.listdir(directory)
    }
    assert set(modes.values()) == {0o600}
    assert {"a.sqlite3", "a.sqlite3-wal"} <= set(modes)
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700


def test_commit_is_durable(store: AuditStore) -> None:
    """The database is in WAL mode and syncs each commit."""
    store.append([make_record()])
    assert isinstance(store, SqliteStore)
    writing = store._writing
    assert writing is not None
    assert writing.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writing.execute("PRAGMA synchronous").fetchone() == (2,)


def test_replayed_records_are_stored_once(store: AuditStore) -> None:
    """Sending a batch again adds only what is new."""
    first = [make_record(1), make_record(2)]
    assert store.append(first) == 2
    assert store.append([*first, make_record(3)]) == 1
    assert len(stored(store)) == 3


def test_all_fields_survive(store: AuditStore) -> None:
    """A record comes back as it was stored."""
    record = make_record(
        params={"a": ["\ud800", 1.5, None, {"b": "\x00"}]},
        agent_id="a",
        call_id="c",
        decision="allow",
        rule="fs:read:/workspace/**",
        isolation="container",
        trace_id="t",
        detail={"phases": {"mount": 3}},
    )
    store.append([record])
    assert stored(store) == [record]


def test_database_without_schema_is_migrated(path: str) -> None:
    """Version 0, an empty file, becomes the current version."""
    os.makedirs(os.path.dirname(path), 0o700)
    sqlite3.connect(path).close()
    store = SqliteStore(path)
    store.append([make_record()])
    store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    connection.close()


def test_migrations_run_once_each_in_order() -> None:
    """A database of an older version gets exactly the steps it lacks, and keeps its records."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, MIGRATIONS)
    connection.execute("CREATE TABLE mark (n)")
    later = (*MIGRATIONS, "INSERT INTO mark VALUES (1)", "INSERT INTO mark VALUES (2)")
    migrate(connection, later)
    migrate(connection, later)
    assert connection.execute("SELECT n FROM mark").fetchall() == [(1,), (2,)]
    connection.close()


def test_failed_migration_changes_nothing() -> None:
    """A step that fails is undone whole, and the version stays."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, ("CREATE TABLE a (n); SELECT nonsense",))
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    assert connection.execute("PRAGMA user_version").fetchone() == (0,)
    connection.close()


def test_newer_schema_is_refused(path: str) -> None:
    """A database of a newer Stockade is not touched, and the error says what to do."""
    os.makedirs(os.path.dirname(path), 0o700)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(AuditError, match=r"version 99.*newer Stockade"):
        SqliteStore(path).append([make_record()])


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_directory_that_others_write_is_refused(path: str, mode: int) -> None:
    """A log that others could replace is not written."""
    os.makedirs(os.path.dirname(path))
    os.chmod(os.path.dirname(path), mode)
    with pytest.raises(AuditError, match="others"):
        SqliteStore(path).append([make_record()])


def test_link_in_place_of_the_database_is_refused(path: str, tmp_path: Path) -> None:
    """A symbolic link does not lead the log elsewhere."""
    os.makedirs(os.path.dirname(path), 0o700)
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(AuditError):
        SqliteStore(path).append([make_record()])
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        (Query(), [0, 1, 2, 3]),
        (Query(session_id="s-2"), [1, 3]),
        (Query(sandbox_id="sb-9"), []),
        (Query(operation="file_read"), [2, 3]),
        (Query(session_id="s-2", operation="file_read"), [3]),
        (Query(result="denied"), [3]),
        (Query(since=1_000_001, until=1_000_003), [1, 2]),
        (Query(target_prefix="/w/%"), [3]),
        (Query(target_prefix="/w"), [2, 3]),
        (Query(newest_first=True, limit=2), [3, 2]),
        (Query(session_id="' OR 1=1 --"), []),
    ],
)
def test_filters_select(store: AuditStore, query: Query, numbers: list[int]) -> None:
    """Each filter narrows the result, several together, and none is SQL."""
    store.append(
        [
            make_record(0),
            make_record(1, session_id="s-2"),
            make_record(2, operation="file_read", target="/w/a"),
            make_record(
                3, operation="file_read", target="/w/%b", session_id="s-2", result="denied"
            ),
        ]
    )
    assert [record.timestamp - 1_000_000 for record in store.query(query).records] == numbers


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_are_stable(store: AuditStore, newest_first: bool) -> None:
    """Records of one millisecond are paged without a gap, while others are added."""
    store.append([make_record(0, target=str(n)) for n in range(25)])
    seen: list[str] = []
    after: Cursor | None = None
    while True:
        page = store.query(Query(limit=7, after=after, newest_first=newest_first, until=1_000_001))
        seen += [record.target for record in page.records]
        store.append([make_record(5)])
        if page.next is None:
            break
        after = Cursor.parse(str(page.next))
    assert sorted(seen, key=int) == [str(n) for n in range(25)]


@pytest.mark.parametrize("column", ["session_id", "operation", "timestamp"])
def test_common_queries_use_an_index(path: str, store: AuditStore, column: str) -> None:
    """Queries by session, operation and time (R30) do not read the whole table."""
    store.append([make_record()])
    connection = sqlite3.connect(path)
    plan = connection.execute(
        f"EXPLAIN QUERY PLAN SELECT * FROM records WHERE {column} = 1 ORDER BY timestamp, record_id"
    ).fetchall()
    connection.close()
    assert "USING INDEX" in plan[0][3]
    assert len(plan) == 1


def test_failed_opens_leak_no_descriptor(path: str) -> None:
    """A writer may try a broken database for days."""
    os.makedirs(os.path.dirname(path), 0o700)
    Path(path).write_bytes(b"not a database, " * 100)
    store = SqliteStore(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(AuditError, match="not a database"):
            store.append([make_record()])
    assert len(os.listdir("/proc/self/fd")) == before


def test_closed_store_is_an_error(store: AuditStore) -> None:
    """A store that was closed says so instead of opening again."""
    store.close()
    with pytest.raises(AuditError, match="closed"):
        store.append([make_record()])


def test_record_ids_sort_by_order() -> None:
    """Ids of one process sort as they were made, and are distinct."""
    ids = [new_record_id() for _ in range(2000)]
    assert ids == sorted(set(ids))
    assert {len(record_id) for record_id in ids} == {32}


_OPEN_AND_CLOSE = """
import sys
from stockade.audit import Query, SqliteStore
store = SqliteStore(sys.argv[1])
store.query(Query())
store.close()
"""


def test_a_second_store_of_the_process_keeps_the_firsts_locks(path: str, store: AuditStore) -> None:
    """Another process that comes and goes does not take the write-ahead log from a store that is open.

    POSIX locks are the process's: closing one more descriptor of the file would drop them.
    """
    store.append([make_record(0)])
    second = SqliteStore(path)
    second.query(Query())
    for number in range(1, 4):
        done = subprocess.run([sys.executable, "-c", _OPEN_AND_CLOSE, path], check=True, timeout=15)
        assert done.returncode == 0
        store.append([make_record(number)])
    second.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert len(stored(store)) == 4
