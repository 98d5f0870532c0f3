"""`parallel_50`: 50 sandboxes, each created, used for /bin/true and destroyed, by 8 workers; the time of all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from queue import SimpleQueue

from bench.measurement import Measurement, measurement
from bench.ours import Ours
from bench.peers import TRUE, Peer
from bench.processes import Here, Spawner
from bench.samples import Round, interleave, ms_of, now_ms
from bench.setting import Setting

ROUNDS = 20
SANDBOXES = 50
WORKERS = 8


def measure(setting: Setting) -> Measurement:
    """Ours is `AsyncSandbox` in 8 tasks, as a program with many sandboxes at once has them.

    The variant `threads` is `Sandbox` in 8 threads. Peers are started and awaited by 8 threads.
    """
    with ExitStack() as stack:
        stack.enter_context(setting.ours.audited())
        runner = stack.enter_context(asyncio.Runner())
        threads = stack.enter_context(ThreadPoolExecutor(WORKERS))
        contenders: dict[str, Round] = {
            "floor": _by_threads(threads, [Here()] * WORKERS, None),
            "ours": lambda: [runner.run(_by_tasks(setting.ours))],
            "threads": lambda: [ms_of(lambda: _cold_by_threads(threads, setting.ours))],
        }
        for peer in setting.present.peers:
            spawners = [stack.enter_context(closing(peer.spawner())) for _ in range(WORKERS)]
            contenders[peer.name] = _by_threads(threads, spawners, peer)
        summaries = interleave(contenders, setting.rounds_or(ROUNDS), warmups=1)
    note = (
        f"{SANDBOXES} times create, /bin/true, destroy by {WORKERS} workers, all together; ours: `AsyncSandbox` in "
        f"tasks of one loop; peers: threads that spawn and wait; on {setting.view}"
    )
    return measurement("ms", summaries, setting.present, note)


def _by_threads(threads: ThreadPoolExecutor, spawners: list[Spawner], peer: Peer | None) -> Round:
    """Return a round of a peer, or of the bare program. A spawner serves one thread at a time."""
    free: SimpleQueue[Spawner] = SimpleQueue()
    for spawner in spawners:
        free.put(spawner)

    def one(_number: int) -> None:
        spawner = free.get()
        spawner.run(peer.cold(TRUE) if peer else TRUE)
        free.put(spawner)

    return lambda: [ms_of(lambda: list(threads.map(one, range(SANDBOXES))))]


def _cold_by_threads(threads: ThreadPoolExecutor, ours: Ours) -> None:
    for _ in threads.map(lambda _number: ours.cold(), range(SANDBOXES)):
        continue


async def _by_tasks(ours: Ours) -> float:
    begin = now_ms()
    numbers = iter(range(SANDBOXES))
    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(_work(ours, numbers))
    return now_ms() - begin


async def _work(ours: Ours, numbers: Iterator[int]) -> None:
    for _ in numbers:
        await ours.cold_async()
