"""The embedded store: one SQLite file in WAL mode, shared by the processes of one user.

Each commit is on the disk when ``append`` returns (``synchronous=FULL``). The file is only ever
read and written through SQLite.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence

from stockade.audit._fork import fork_guard, released_at_fork
from stockade.audit.encode import escape
from stockade.audit.paths import database_path, make_private_dir, prepare_state_dir
from stockade.audit.query import Cursor, Page, Query
from stockade.audit.record import FIELDS, Record
from stockade.audit.store import AuditStore
from stockade.errors import AuditError

#: Scripts that bring a database from version N (its place here) to N + 1. Only ever added to.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE records (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        record_id TEXT NOT NULL UNIQUE,
        timestamp INTEGER NOT NULL,
        session_id TEXT NOT NULL,
        sandbox_id TEXT NOT NULL,
        operation TEXT NOT NULL,
        target TEXT NOT NULL,
        params TEXT NOT NULL,
        result TEXT NOT NULL,
        duration_ms INTEGER NOT NULL,
        agent_id TEXT,
        call_id TEXT,
        decision TEXT,
        rule TEXT,
        isolation TEXT,
        trace_id TEXT,
        detail TEXT NOT NULL
    );
    CREATE INDEX records_by_time ON records (timestamp, record_id);
    CREATE INDEX records_by_session ON records (session_id, timestamp, record_id);
    CREATE INDEX records_by_operation ON records (operation, timestamp, record_id);
    """,
)
SCHEMA_VERSION = len(MIGRATIONS)

#: How long one statement waits for another process's transaction, which takes about 10 ms.
BUSY_TIMEOUT_MS = 2000

_JSON_COLUMNS = frozenset({"params", "detail"})
_COLUMNS = ", ".join(FIELDS)
_INSERT = f"INSERT OR IGNORE INTO records ({_COLUMNS}) VALUES ({', '.join('?' * len(FIELDS))})"  # noqa: S608 - constants


class SqliteStore(AuditStore):
    """Records in the SQLite file ``path``; its directory is made where it is missing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._writing: sqlite3.Connection | None = None
        self._reading: sqlite3.Connection | None = None
        self._use_lock = -1
        self._closed = False
        released_at_fork.add(self)

    @classmethod
    def in_state_dir(cls, state_dir: str) -> SqliteStore:
        """Return the store of a state directory, which is made where it is missing."""
        prepare_state_dir(state_dir)
        return cls(database_path(state_dir))

    def append(self, records: Sequence[Record]) -> int:
        rows = [_row(record) for record in records]
        with fork_guard, _translated("write"):
            connection = self._writer()
            connection.execute("BEGIN IMMEDIATE")
            try:
                before = connection.total_changes
                connection.executemany(_INSERT, rows)
                added = connection.total_changes - before
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return added

    def query(self, query: Query) -> Page:
        statement, values = _select(query)
        with fork_guard, _translated("query"):
            rows = self._reader().execute(statement, values).fetchall()
        records = tuple(_record(row) for row in rows[: query.limit])
        more = len(rows) > query.limit
        last = records[-1] if records else None
        return Page(records, Cursor(last.timestamp, last.record_id) if more and last else None)

    def close(self) -> None:
        with fork_guard, _translated("close"):
            self._closed = True
            self.release()

    def release(self) -> None:
        """Close connections and lock; the next use opens them again. Called before a fork."""
        connections, handle = (self._reading, self._writing), self._use_lock
        self._reading = self._writing = None
        self._use_lock = -1
        for connection in connections:
            if connection is not None:
                connection.close()
        if handle >= 0:
            os.close(handle)

    def _writer(self) -> sqlite3.Connection:
        if self._closed:
            raise AuditError("open", f"{self._path!r} was closed")
        if self._writing is None:
            self._writing = self._open()
        return self._writing

    def _reader(self) -> sqlite3.Connection:
        self._writer()
        if self._reading is None:
            self._reading = _connect(self._path)
            self._reading.execute("PRAGMA query_only = 1")
        return self._reading

    def _open(self) -> sqlite3.Connection:
        directory = os.path.dirname(self._path) or "."
        make_private_dir(directory)
        with _directory_lock(directory), contextlib.ExitStack() as undo:
            use_lock = _hold_use_lock(directory)
            undo.callback(os.close, use_lock)
            _create_private(self._path)
            connection = _connect(self._path)
            undo.callback(connection.close)
            connection.execute("PRAGMA journal_mode = WAL")
            migrate(connection, MIGRATIONS)
            undo.pop_all()
        self._use_lock = use_lock
        return connection


def migrate(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Bring a database to the newest version, each step in a transaction of its own.

    Raises ``AuditError`` for one that a newer Stockade wrote: it is not touched.
    """
    version = _version(connection)
    if version > len(migrations):
        raise AuditError(
            "open",
            f"the database has schema version {version}, this Stockade knows up to {len(migrations)};"
            " use the newer Stockade that wrote it",
        )
    for number in range(version, len(migrations)):
        # executescript commits what is open and stops at the first error, before COMMIT.
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE; {migrations[number]}; PRAGMA user_version = {number + 1}; COMMIT;"
            )
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA trusted_schema = 0")
    except BaseException:  # the first statement reads the file, which may be no database
        connection.close()
        raise
    return connection


def _create_private(path: str) -> None:
    """Create the file with mode 0600; SQLite gives its -wal and -shm files the same.

    One that exists is not opened: closing any descriptor of it drops the locks that this process holds through
    another store, and the next process to close takes the write-ahead log away (sqlite.org/howtocorrupt.html, 2.2).
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(path, flags, 0o600))
    except FileExistsError:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise AuditError("open", f"{path!r} is not a regular file") from None


@contextlib.contextmanager
def _directory_lock(directory: str) -> Iterator[None]:
    """Let one process at a time create and migrate: switching to WAL ignores busy time-outs."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _hold_use_lock(directory: str) -> int:
    """Hold a shared lock while the store is open, so that `purge` knows."""
    path = os.path.join(directory, "use.lock")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


@contextlib.contextmanager
def _translated(operation: str) -> Iterator[None]:
    """Turn what SQLite and the file system raise into ``AuditError``, here and nowhere else."""
    try:
        yield
    except sqlite3.Error as error:
        raise AuditError(operation, f"SQLite: {error}") from error
    except OSError as error:
        raise AuditError(operation, f"{error.strerror}: {error.filename!r}") from error
    except OverflowError as error:  # a number beyond 64 bits; the writer never sends one
        raise AuditError(operation, f"SQLite: {error}") from error


def _row(record: Record) -> list[object]:
    values = record.to_dict()
    return [
        json.dumps(value, separators=(",", ":")) if name in _JSON_COLUMNS else value
        for name, value in values.items()
    ]


def _record(row: Sequence[object]) -> Record:
    return Record.from_dict(
        {
            name: json.loads(str(value)) if name in _JSON_COLUMNS else value
            for name, value in zip(FIELDS, row, strict=True)
        }
    )


def _select(query: Query) -> tuple[str, list[object]]:
    """Return the statement, whose text is made of constants only, and its values."""
    where = ["1"]
    values: list[object] = []
    for name in ("session_id", "sandbox_id", "agent_id", "call_id", "operation", "result"):
        if (wanted := getattr(query, name)) is not None:
            where.append(f"{name} = ?")
            values.append(escape(wanted))
    for condition, limit in (("timestamp >= ?", query.since), ("timestamp < ?", query.until)):
        if limit is not None:
            where.append(condition)
            values.append(limit)
    if query.target_prefix is not None:
        prefix = escape(query.target_prefix)
        where.append("substr(target, 1, ?) = ?")
        values += [len(prefix), prefix]
    if query.after is not None:
        where.append(f"(timestamp, record_id) {'<' if query.newest_first else '>'} (?, ?)")
        values += [query.after.timestamp, query.after.record_id]
    order = "DESC" if query.newest_first else "ASC"
    # One row more than asked for tells whether there is a next page.
    statement = (
        f"SELECT {_COLUMNS} FROM records WHERE {' AND '.join(where)}"  # noqa: S608 - constants
        f" ORDER BY timestamp {order}, record_id {order} LIMIT ?"
    )
    return statement, [*values, query.limit + 1]
