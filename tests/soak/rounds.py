"""Many sandboxes one after the other, and many at once, with what the owner holds before and after. Not a test."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from stockade import AsyncSandbox
from tests.e2e.residue import Traces, children, traces_of

POLICY = {"version": 1, "limits": {"cpu": 4}}
#: Creations under way at one time: a launch is work for one core.
CREATING = 8
#: What the owner may grow by: SQLite's page cache is 2 MiB, and pymalloc's arenas are 1 MiB each.
GROWTH_KIB = 8 << 10


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds."""

    descriptors: int
    threads: int
    processes: int
    mounts: int
    resident_kib: int

    @classmethod
    def now(cls) -> Held:
        """Count, after a collection of garbage."""
        gc.collect()
        return cls(
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            processes=len(children(os.getpid())),
            mounts=_lines("/proc/self/mountinfo"),
            resident_kib=_resident_kib(),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What a soak came to."""

    count: int
    seconds: float
    milliseconds: list[float]
    before: Held
    after: Held
    left: list[str]

    def __str__(self) -> str:
        """Say it in one line."""
        cuts = statistics.quantiles(self.milliseconds, n=100)
        grown = self.after.resident_kib - self.before.resident_kib
        return (
            f"{self.count} sandboxes in {self.seconds:.1f} s; each p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, "
            f"max {max(self.milliseconds):.1f} ms; descriptors {self.before.descriptors} -> {self.after.descriptors}, "
            f"threads {self.before.threads} -> {self.after.threads}, "
            f"processes {self.before.processes} -> {self.after.processes}, RSS +{grown} KiB; left: {len(self.left)}"
        )


def assert_level(report: Report) -> None:
    """Fail if the owner holds more than before, or anything of a sandbox is left."""
    before, after = report.before, report.after
    assert report.left == []
    assert (after.descriptors, after.processes) == (before.descriptors, before.processes)
    assert after.mounts == before.mounts
    assert after.threads <= before.threads + 1
    assert after.resident_kib - before.resident_kib < GROWTH_KIB


async def in_a_row(count: int, warm_up: int) -> Report:
    """Create, use and kill `count` sandboxes, after some that are not counted."""
    for _ in range(warm_up):
        await _one()
    before, begin = Held.now(), time.monotonic()
    milliseconds, left = [], []
    for _ in range(count):
        start = time.perf_counter()
        traces = await _one()
        milliseconds.append((time.perf_counter() - start) * 1000)
        left += traces.left()
    return Report(count, time.monotonic() - begin, milliseconds, before, Held.now(), left)


async def _one() -> Traces:
    async with await AsyncSandbox.create(POLICY) as made:
        traces = traces_of(made)
        result = await made.commands.run("cat; echo x >&2; exit 3", stdin="in")
        assert (result.exit_code, result.stdout, result.stderr) == (3, "in", "x\n")
        await made.files.write("/workspace/x", bytes(100_000))
        await made.commands.run(["sleep", "600"], background=True)
    return traces


async def at_once(count: int) -> Report:
    """Have `count` sandboxes alive at one time, use each, and kill them all."""
    with _all_descriptors():
        await _one()
        before, begin = Held.now(), time.monotonic()
        milliseconds: list[float] = []
        made = await _create_all(count, milliseconds)
        traces = [traces_of(sandbox) for sandbox in made]
        await asyncio.wait_for(_use_all(made), 120)
        async with asyncio.TaskGroup() as group:
            for sandbox in made:
                group.create_task(sandbox.kill())
        left = [entry for trace in traces for entry in trace.left()]
        return Report(count, time.monotonic() - begin, milliseconds, before, Held.now(), left)


async def _create_all(count: int, milliseconds: list[float]) -> list[AsyncSandbox]:
    turn = asyncio.Semaphore(CREATING)

    async def create() -> AsyncSandbox:
        async with turn:
            start = time.perf_counter()
            made = await AsyncSandbox.create(POLICY)
            milliseconds.append((time.perf_counter() - start) * 1000)
            return made

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(create()) for _ in range(count)]
    return [task.result() for task in tasks]


async def _use_all(made: list[AsyncSandbox]) -> None:
    async def use(sandbox: AsyncSandbox) -> None:
        assert (await sandbox.commands.run(f"echo {sandbox.sandbox_id}")).stdout == (
            f"{sandbox.sandbox_id}\n"
        )

    async with asyncio.TaskGroup() as group:
        for sandbox in made:
            group.create_task(use(sandbox))


@contextlib.contextmanager
def _all_descriptors() -> Iterator[None]:
    """Take the hard limit of descriptors: a sandbox needs about 8 of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _lines(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        return sum(1 for _ in file)


def _resident_kib() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
