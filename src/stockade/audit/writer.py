"""The writer: takes records from any thread, stores them from its own.

``append`` only queues. The thread redacts, encodes and stores when 100 records or 1 MB wait, or
one second after the first. Where the store fails they go to the spill file, and from there to the
store when it works again, in order. A crash of the process loses what was queued and not yet
handed on: at most those 100 records, 1 MB or one second, and what came while they were written.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from stockade.audit import paths
from stockade.audit._fork import fork_guard
from stockade.audit.encode import prepare
from stockade.audit.record import Record
from stockade.audit.spill import Spill
from stockade.audit.sqlite import SqliteStore
from stockade.audit.store import AuditStore
from stockade.errors import AuditError
from stockade.redact import Redactor

#: R31's buffer: a batch is written at so many records, or bytes, or this long after its first.
BATCH_RECORDS = 100
BATCH_BYTES = 1024 * 1024
INTERVAL_S = 1.0
#: What may wait while neither store nor spill file works; beyond it, `append` raises.
MAX_WAITING_RECORDS = 50_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
#: How long the store is left alone after a failure.
RETRY_S = 1.0
#: How long `flush` and `close` wait at most, unless told otherwise.
DEADLINE_S = 10.0
#: What a record weighs beside the texts in its params.
_RECORD_BYTES = 512


@dataclass(frozen=True, slots=True)
class Counters:
    """What became of the records of one writer; ``appended`` is the sum of the next three."""

    appended: int = 0
    stored: int = 0
    spilled: int = 0
    waiting: int = 0
    refused: int = 0
    failures: int = 0
    last_error: str = ""


class AuditWriter:
    """Writes the records of one process to one store. All methods may be called from any thread."""

    _ready: threading.Condition
    _queue: deque[Record]
    _queued_bytes: int
    _first_at: float | None
    _appended: int
    _durable: int
    _failures: int
    _last_error: str
    _waiters: list[tuple[int, Callable[[], object]]]
    _closing: bool
    _thread: threading.Thread | None
    # The thread's own: what was prepared and could be written nowhere, and when to try again.
    _stuck: list[Record]
    _retry_at: float
    _spill: Spill

    def __init__(
        self, store: AuditStore, *, spill_dir: str, redactor: Redactor | None = None
    ) -> None:
        self.store = store
        self._redactor = redactor
        self._spill_dir = spill_dir
        self._refused = 0
        self._reset()
        _writers.add(self)

    @property
    def redactor(self) -> Redactor:
        """Applied to each record when it is written; may be replaced, as when a secret is added.

        Made at its first use, by the writer's thread: reading the rules takes 14 ms.
        """
        if self._redactor is None:
            self._redactor = Redactor()
        return self._redactor

    @redactor.setter
    def redactor(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def append(self, record: Record) -> None:
        """Queue a record, which must not be changed from now on; it never waits for the store.

        Raises ``AuditError`` after ``close``, and where so much waits that memory is at risk.
        """
        size = _weigh(record)
        with self._ready:
            if self._closing or self._is_full():
                self._refused += 1
                raise AuditError("append", self._full_message())
            self._queue.append(record)
            self._appended += 1
            self._queued_bytes += size
            if self._thread is None:
                self._start()
            if len(self._queue) == 1 or self._batch_is_full():
                if self._first_at is None:
                    self._first_at = time.monotonic()
                self._ready.notify()

    def flush(self, timeout_s: float = DEADLINE_S) -> None:
        """Wait until all that was appended is on the disk, in the store or in the spill file.

        Raises ``AuditError`` where that takes longer than ``timeout_s``.
        """
        done = threading.Event()
        self._when_durable(done.set)
        if not done.wait(timeout_s):
            raise self._late(timeout_s)

    async def aflush(self, timeout_s: float = DEADLINE_S) -> None:
        """Do as ``flush`` without blocking the event loop."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._when_durable(lambda: loop.call_soon_threadsafe(_resolve, done))
        try:
            async with asyncio.timeout(timeout_s):
                await done
        except TimeoutError:
            raise self._late(timeout_s) from None

    def close(self, timeout_s: float = DEADLINE_S) -> None:
        """Write what waits and end the thread; a second call does nothing.

        Raises ``AuditError`` where records could be written nowhere, with their number.
        """
        with self._ready:
            thread, self._closing = self._thread, True
            self._ready.notify()
        if thread is not None:
            thread.join(timeout_s)
        self.store.close()
        if waiting := self.counters.waiting:
            raise AuditError("close", f"{waiting} records were not written: {self._last_error}")

    @property
    def counters(self) -> Counters:
        """What became of the records so far."""
        with self._ready:
            return Counters(
                appended=self._appended,
                stored=self._durable - self._spill.count,
                spilled=self._spill.count,
                waiting=self._appended - self._durable,
                refused=self._refused,
                failures=self._failures,
                last_error=self._last_error,
            )

    # --- any thread, with the lock -----------------------------------------------------------

    def _reset(self) -> None:
        """Start with nothing: at first, and in a forked child."""
        self._ready = threading.Condition(threading.Lock())
        self._queue, self._queued_bytes, self._first_at = deque(), 0, None
        self._appended = self._durable = self._failures = 0
        self._last_error = ""
        self._waiters = []
        self._closing = False
        self._thread = None
        self._stuck, self._retry_at = [], 0.0
        self._spill = Spill(self._spill_dir)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="stockade-audit", daemon=True)
        self._thread.start()

    def _batch_is_full(self) -> bool:
        return len(self._queue) >= BATCH_RECORDS or self._queued_bytes >= BATCH_BYTES

    def _is_full(self) -> bool:
        return len(self._queue) >= MAX_WAITING_RECORDS or self._queued_bytes >= MAX_WAITING_BYTES

    def _full_message(self) -> str:
        if self._closing:
            return "the writer is closed"
        return f"{len(self._queue)} records wait and cannot be written: {self._last_error}"

    def _when_durable(self, notify: Callable[[], object]) -> None:
        with self._ready:
            if self._durable < self._appended:
                self._waiters.append((self._appended, notify))
                self._ready.notify()
                return
        notify()

    def _late(self, timeout_s: float) -> AuditError:
        counters = self.counters
        why = counters.last_error or "the store is slow"
        return AuditError("flush", f"{counters.waiting} records wait after {timeout_s} s: {why}")

    # --- the writer's thread --------------------------------------------------------------------

    def _run(self) -> None:
        self._deliver_orphans()
        closing = False
        while not closing:
            with self._ready:
                while (delay := self._delay()) is None or delay > 0:
                    self._ready.wait(delay)
                closing = self._closing
                batch = self._take(len(self._queue) if closing else BATCH_RECORDS)
            with fork_guard:
                self._write(batch)
        self._spill.leave()

    def _delay(self) -> float | None:
        """Return how long the thread has nothing to do; None means until it is notified."""
        if self._closing:
            return 0.0
        now = time.monotonic()
        if self._stuck:
            return self._retry_at - now
        times = [self._retry_at - now] if self._spill.count else []
        if self._queue:
            times.append(self._batch_delay(now))
        return min(times, default=None)

    def _batch_delay(self, now: float) -> float:
        if self._waiters or self._batch_is_full() or self._first_at is None:
            return 0.0
        return self._first_at + INTERVAL_S - now

    def _take(self, count: int) -> list[Record]:
        """Take records from the queue; none while older ones are stuck, unless it is the end."""
        if self._stuck and not self._closing:
            return []
        batch = [self._queue.popleft() for _ in range(min(count, len(self._queue)))]
        self._queued_bytes -= sum(map(_weigh, batch))
        self._first_at = time.monotonic() if self._queue else None
        return batch

    def _write(self, batch: list[Record]) -> None:
        records = self._stuck + [prepare(record, self.redactor) for record in batch]
        try:
            self._store_or_spill(records)
            self._stuck = []
        except AuditError as error:
            self._stuck = records
            self._note_failure(error)
            return
        self._note_durable(len(records))

    def _store_or_spill(self, records: list[Record]) -> None:
        if time.monotonic() >= self._retry_at or self._closing:
            try:
                self._deliver(self._spill)
                if records:
                    self.store.append(records)
            except AuditError as error:
                self._note_failure(error)
            else:
                return
        if records:
            self._spill.append(records)

    def _deliver(self, spill: Spill) -> None:
        """Hand what waits in a spill file to the store, then forget it there."""
        batch: list[Record] = []
        for record in spill.read():
            batch.append(record)
            if len(batch) == BATCH_RECORDS:
                self.store.append(batch)
                batch = []
        if batch:
            self.store.append(batch)
        spill.clear()

    def _deliver_orphans(self) -> None:
        """Hand over what writers of dead processes left; what fails is left for the next start."""
        for orphan in self._spill.adopt():
            try:
                self._deliver(orphan)
            except AuditError as error:
                orphan.leave()
                self._note_failure(error)
                return

    def _note_failure(self, error: AuditError) -> None:
        with self._ready:
            self._failures += 1
            self._last_error = error.detail
            self._retry_at = time.monotonic() + RETRY_S

    def _note_durable(self, count: int) -> None:
        with self._ready:
            self._durable += count
            done = [notify for target, notify in self._waiters if target <= self._durable]
            self._waiters = [waiter for waiter in self._waiters if waiter[0] > self._durable]
        for notify in done:
            try:
                notify()
            except RuntimeError:
                continue  # the event loop that waited is closed


def default_writer(state_dir: str) -> AuditWriter:
    """Return this process's writer to the embedded store of ``state_dir``, made at first use.

    It is flushed and closed when the interpreter exits.
    """
    key = os.path.realpath(state_dir)
    with fork_guard:
        writer = _defaults.get(key)
        if writer is None or writer._closing:  # noqa: SLF001 - the same module
            writer = AuditWriter(SqliteStore.in_state_dir(key), spill_dir=paths.spill_dir(key))
            _defaults[key] = writer
        return writer


_writers: weakref.WeakSet[AuditWriter] = weakref.WeakSet()
_defaults: dict[str, AuditWriter] = {}


def _weigh(record: Record) -> int:
    """Return about how many bytes a record holds; nested values count nothing."""
    size = _RECORD_BYTES
    for value in record.params.values():
        if isinstance(value, str | bytes):
            size += len(value)
    return size


def _resolve(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _close_all() -> None:
    for writer in list(_writers):
        writer.close()


def _after_fork_in_child() -> None:
    """Give the child writers without thread and records: the parent writes those it had."""
    for writer in list(_writers):
        writer._spill.leave()  # noqa: SLF001 - the same module
        writer._reset()  # noqa: SLF001


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
