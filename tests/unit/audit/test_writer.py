"""The writer: what was acknowledged is there, what fails is kept, and nobody waits for the disk."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.audit import AuditWriter, Query, SqliteStore, database_path, default_writer, spill_dir
from stockade.audit.spill import Spill
from stockade.errors import AuditError
from tests.unit.audit.samples import make_record, start_python, stored


@pytest.fixture
def state(tmp_path: Path) -> str:
    """Return a state directory that is not made yet."""
    return str(tmp_path / "state")


@pytest.fixture
def writer(state: str) -> Iterator[AuditWriter]:
    """Make a writer to an embedded store."""
    made = AuditWriter(SqliteStore.in_state_dir(state), spill_dir=spill_dir(state))
    yield made
    made.close()


def test_flushed_records_are_stored_in_order(writer: AuditWriter) -> None:
    """After `flush`, every record is in the store once, in the order of its timestamp."""
    for number in range(250):
        writer.append(make_record(number))
    writer.flush()
    assert [record.params["n"] for record in stored(writer.store)] == list(range(250))


def test_threads_lose_and_double_nothing(writer: AuditWriter) -> None:
    """C42: eight threads that append 100 records each leave 800."""

    def append(thread: int) -> None:
        for number in range(100):
            writer.append(make_record(number, session_id=f"s-{thread}"))

    threads = [threading.Thread(target=append, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.flush()
    found = {(record.session_id, record.params["n"]) for record in stored(writer.store)}
    assert len(found) == len(stored(writer.store)) == 800


def test_full_batch_is_written_at_once(writer: AuditWriter) -> None:
    """100 records do not wait for the second to pass."""
    started = time.monotonic()
    for number in range(100):
        writer.append(make_record(number))
    while writer.counters.stored < 100:
        os.sched_yield()
    assert time.monotonic() - started < 0.9


def test_one_record_is_written_within_a_second(writer: AuditWriter) -> None:
    """A lone record is stored by itself after the interval."""
    writer.append(make_record())
    deadline = time.monotonic() + 5
    event = threading.Event()
    while not writer.counters.stored and time.monotonic() < deadline:
        event.wait(0.02)
    assert writer.counters.stored == 1


def test_many_bytes_are_written_at_once(writer: AuditWriter) -> None:
    """1 MB of params fills the buffer although the records are few."""
    for number in range(3):
        writer.append(make_record(number, params={"text": "x" * 400_000}))
    started = time.monotonic()
    while writer.counters.stored < 3:
        os.sched_yield()
    assert time.monotonic() - started < 0.9


def test_aflush_lets_the_event_loop_run(writer: AuditWriter) -> None:
    """While `aflush` waits for the disk, other tasks go on."""

    async def append_and_flush() -> int:
        writer.append(make_record())
        turns = 0
        async with asyncio.TaskGroup() as tasks:
            flushed = tasks.create_task(writer.aflush())
            while not flushed.done():
                turns += 1
                await asyncio.sleep(0)
        return turns

    assert asyncio.run(append_and_flush()) > 0
    assert len(stored(writer.store)) == 1


def test_append_after_close_is_an_error(state: str) -> None:
    """A closed writer takes nothing that it would lose."""
    writer = AuditWriter(SqliteStore.in_state_dir(state), spill_dir=spill_dir(state))
    writer.append(make_record())
    writer.close()
    with pytest.raises(AuditError, match="closed"):
        writer.append(make_record())
    assert writer.counters.refused == 1


def test_locked_store_spills_and_delivers(state: str, writer: AuditWriter) -> None:
    """While another holds the database, records are durable in the spill file, and move in order."""
    writer.append(make_record(0))
    writer.flush()
    other = sqlite3.connect(database_path(state), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for number in range(1, 150):
        writer.append(make_record(number))
    writer.flush()
    spilled = writer.counters.spilled
    other.execute("ROLLBACK")
    other.close()
    _wait_until_delivered(writer)
    assert spilled > 0
    assert [record.params["n"] for record in stored(writer.store)] == list(range(150))
    assert [name for name in os.listdir(spill_dir(state)) if name.startswith("spill-")] == []


def test_broken_database_loses_nothing(state: str) -> None:
    """With a broken database, records wait in the spill file until a writer finds a sound one."""
    store = SqliteStore.in_state_dir(state)
    Path(database_path(state)).write_bytes(b"not a database, " * 100)
    writer = AuditWriter(store, spill_dir=spill_dir(state))
    writer.append(make_record(1))
    writer.flush()
    assert (writer.counters.spilled, writer.counters.failures) == (1, 1)
    writer.close()
    os.unlink(database_path(state))
    next_writer = AuditWriter(SqliteStore.in_state_dir(state), spill_dir=spill_dir(state))
    next_writer.append(make_record(2))
    next_writer.flush()
    assert [record.params["n"] for record in stored(next_writer.store)] == [1, 2]
    next_writer.close()


def test_torn_spill_line_is_left_out(state: str) -> None:
    """A crash in the middle of a spilled line costs that line, not those before it."""
    SqliteStore.in_state_dir(state).close()
    spill = Spill(spill_dir(state))
    spill.append([make_record(1), make_record(2)])
    path = next(Path(spill_dir(state)).glob("spill-*"))
    path.write_bytes(path.read_bytes()[:-10])
    spill.leave()
    orphans = list(Spill(spill_dir(state)).adopt())
    assert [record.params["n"] for record in orphans[0].read()] == [1]
    orphans[0].leave()


def test_spill_of_a_living_writer_is_not_adopted(state: str) -> None:
    """A spill file belongs to its writer as long as that lives."""
    SqliteStore.in_state_dir(state).close()
    spill = Spill(spill_dir(state))
    spill.append([make_record(1)])
    assert list(Spill(spill_dir(state)).adopt()) == []
    spill.clear()


@pytest.mark.root
def test_full_disk_keeps_records_until_there_is_room(tmp_path: Path) -> None:
    """On a full disk neither store nor spill can grow: `flush` says so, and nothing is lost."""
    state = str(tmp_path / "small")
    os.mkdir(state, 0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "none", state], check=True)
    try:
        writer = AuditWriter(SqliteStore.in_state_dir(state), spill_dir=spill_dir(state))
        for number in range(100):
            writer.append(make_record(number, params={"n": number, "text": "x" * 16_000}))
        with pytest.raises(AuditError, match="records wait"):
            writer.flush(timeout_s=1)
        subprocess.run(["mount", "-o", "remount,size=64m", state], check=True)
        writer.flush()
        _wait_until_delivered(writer)
        assert [record.params["n"] for record in stored(writer.store)] == list(range(100))
        writer.close()
    finally:
        subprocess.run(["umount", "--lazy", state], check=True)


def test_killed_process_keeps_what_was_flushed(state: str) -> None:
    """C42: after SIGKILL in the middle of appending, every acknowledged record is there, once."""
    child = start_python(_APPEND_FOREVER, state)
    assert child.stdout is not None
    acknowledged = 0
    for line in child.stdout:
        acknowledged = int(line)
        if acknowledged >= 700:
            child.send_signal(signal.SIGKILL)
            break
    child.communicate()
    store = SqliteStore.in_state_dir(state)
    numbers = [record.params["n"] for record in stored(store)]
    store.close()
    assert numbers[:acknowledged] == list(range(acknowledged))
    assert len(set(numbers)) == len(numbers)


def test_killed_process_leaves_a_spill_that_is_delivered(state: str) -> None:
    """What a killed process had spilled is delivered by the next writer."""
    SqliteStore.in_state_dir(state).close()
    Path(database_path(state)).write_bytes(b"not a database, " * 100)
    child = start_python(_APPEND_FOREVER, state)
    assert child.stdout is not None
    acknowledged = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.communicate()
    os.unlink(database_path(state))
    writer = default_writer(state)
    writer.append(make_record(-1))
    writer.flush()
    numbers = {record.params["n"] for record in stored(writer.store)}
    writer.close()
    assert numbers >= set(range(acknowledged))


def test_normal_exit_flushes(state: str) -> None:
    """A program that ends without a word about audit leaves its records in the store."""
    program = (
        "import sys; from stockade.audit import default_writer;"
        "from tests.unit.audit.samples import make_record;"
        "default_writer(sys.argv[1]).append(make_record(7))"
    )
    child = start_python(program, state)
    child.communicate()
    assert child.returncode == 0
    store = SqliteStore.in_state_dir(state)
    assert [record.params["n"] for record in stored(store)] == [7]
    store.close()


def test_fork_doubles_and_loses_nothing(state: str) -> None:
    """Parent and child each write their own records, and the child has no copy of the parent's."""
    child = start_python(_FORK, state)
    out, _ = child.communicate()
    assert (child.returncode, out.split()) == (0, ["0"])
    store = SqliteStore.in_state_dir(state)
    assert sorted(record.params["n"] for record in stored(store)) == [
        *range(300),
        *range(1000, 1300),
    ]
    store.close()


def test_default_writer_is_one_per_directory(state: str) -> None:
    """All sandboxes of a process share one writer."""
    writer = default_writer(state)
    assert default_writer(f"{state}/../state") is writer
    writer.close()
    again = default_writer(state)
    assert again is not writer
    again.close()


def test_readers_work_while_records_arrive(state: str, writer: AuditWriter) -> None:
    """A second connection sees a growing, never a torn, log."""
    reader = SqliteStore.in_state_dir(state)
    counts = []
    for number in range(400):
        writer.append(make_record(number))
        if number % 20 == 0:
            counts.append(len(reader.query(Query(limit=1000)).records))
    writer.flush()
    counts.append(len(reader.query(Query(limit=1000)).records))
    reader.close()
    assert counts == sorted(counts)
    assert counts[-1] == 400


def _wait_until_delivered(writer: AuditWriter) -> None:
    deadline = time.monotonic() + 10
    pause = threading.Event()
    while writer.counters.spilled and time.monotonic() < deadline:
        pause.wait(0.02)
    assert writer.counters.spilled == 0


_APPEND_FOREVER = """
import itertools, sys
from stockade.audit import default_writer
from tests.unit.audit.samples import make_record
writer = default_writer(sys.argv[1])
for number in itertools.count():
    writer.append(make_record(number))
    if number % 7 == 6:
        writer.flush()
        print(number + 1, flush=True)
"""

_FORK = """
import os, sys
from stockade.audit import default_writer
from tests.unit.audit.samples import make_record
writer = default_writer(sys.argv[1])
for number in range(300):
    writer.append(make_record(number))
child = os.fork()
if not child:
    print(writer.counters.waiting, flush=True)
for number in range(300):
    if not child:
        writer.append(make_record(1000 + number))
writer.close()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
