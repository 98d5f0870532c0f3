"""Where the time of create, exec and kill goes: `python bench/profile_create.py [--rounds N]`.

Three tables: wall time as a caller sees it, the stages inside (measured without a profiler), and cProfile of the event
loop's thread. The profiler makes short Python calls look several times as dear as they are: trust the stages.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import functools
import inspect
import os
import pkgutil
import pstats
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)  # instead of bench/ itself

from bench.ours import Ours, check_success  # noqa: E402 - needs the path
from bench.peers import TRUE  # noqa: E402
from bench.samples import Summary, now_ms  # noqa: E402
from bench.view import view_of  # noqa: E402

Samples = dict[str, list[float]]

#: What is timed from call to return. Nested ones count in the outer ones too; one that is gone is named and left out.
STAGES = (
    "stockade.sandbox.owner:Owner.prepare",
    "stockade.isolation.seccomp:compile_profile",
    "stockade.isolation.slots:Slots.take",
    "stockade.runtime.live:LiveSandbox.launch",
    "stockade.runtime.live:start_launcher",
    "stockade.runtime.live:LiveSandbox._reap_launcher",
    "stockade.runtime.live:LiveSandbox._stand",
    "stockade.sandbox._door:Door.record",
    "stockade.sandbox.commands:AsyncCommands._run",
    "stockade.runtime.command:Command.wait",
    "stockade.runtime.live:LiveSandbox.oom_kills",
    "stockade.runtime.channel:Channel.send_raw",
    "stockade.runtime.channel:Channel._readable",
    "stockade.runtime.live:LiveSandbox.destroy",
    "stockade.isolation.cgroups_io:kill",
    "stockade.runtime.live:LiveSandbox._wait_cell",
    "stockade.runtime.live:LiveSandbox._close_all",
    "stockade.isolation.cgroups_io:remove",
    "stockade.isolation.slots:Slot.release",
    "stockade.audit.writer:AuditWriter.aflush",
    "stockade.audit.writer:prepare",
    "stockade.audit.sqlite:SqliteStore.append",
)


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument(
        "--top", type=int, default=45, help="functions of the profile that are shown"
    )
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="stockade-profile-", dir="/var/tmp"))
    try:
        with closing(Ours(view_of("host"), scratch / "state")) as ours:
            print(f"load before: {os.getloadavg()[0]:.2f}, {options.rounds} rounds, times in ms")
            _print_walls(ours, options.rounds)
            _print_stages(ours, options.rounds)
            _print_profile(ours, options.rounds, options.top)
    finally:
        shutil.rmtree(scratch)


def _print_walls(ours: Ours, rounds: int) -> None:
    samples: Samples = defaultdict(list)
    for _ in range(rounds):
        _blocking_round(ours, samples)
    asyncio.run(_async_rounds(ours, rounds, samples))
    _print_table("wall time, blocking and async", samples, 1)


def _blocking_round(ours: Ours, samples: Samples) -> None:
    begin = now_ms()
    sandbox = ours.create()
    created = now_ms()
    check_success(sandbox.commands.run(TRUE))
    first = now_ms()
    check_success(sandbox.commands.run(TRUE))
    second = now_ms()
    sandbox.kill()
    samples["blocking: create"].append(created - begin)
    samples["blocking: exec, first"].append(first - created)
    samples["blocking: exec, second"].append(second - first)
    samples["blocking: kill"].append(now_ms() - second)
    for phase, taken in sandbox.timings.items():
        samples[f"  phase of create: {phase}"].append(taken)


async def _async_rounds(ours: Ours, rounds: int, samples: Samples) -> None:
    for _ in range(rounds):
        begin, cpu_before = now_ms(), time.process_time()
        sandbox = await ours.create_async()
        created = now_ms()
        check_success(await sandbox.commands.run(TRUE))
        executed = now_ms()
        await sandbox.kill()
        samples["async: create"].append(created - begin)
        samples["async: exec, first"].append(executed - created)
        samples["async: kill"].append(now_ms() - executed)
        cpu_ms = (time.process_time() - cpu_before) * 1000
        samples["async: CPU of this process, all three"].append(cpu_ms)


def _print_stages(ours: Ours, rounds: int) -> None:
    samples: Samples = defaultdict(list)
    with _timed(samples):
        asyncio.run(_cold_rounds(ours, rounds))
    _print_table("stages of create + exec + kill, async, per call", samples, rounds)


async def _cold_rounds(ours: Ours, rounds: int) -> None:
    for _ in range(rounds):
        await ours.cold_async()


@contextmanager
def _timed(samples: Samples) -> Iterator[None]:
    """Take the time of every stage while the block runs."""
    originals = []
    for stage in STAGES:
        module, _, path = stage.partition(":")
        owner, _, name = path.rpartition(".")
        place = pkgutil.resolve_name(f"{module}:{owner}" if owner else module)
        original = vars(place).get(name)
        if original is None:
            print(f"not found: {stage}")
            continue
        originals.append((place, name, original))
        label = stage.removeprefix("stockade.")
        setattr(place, name, _wrapped(original, samples[label]))
    try:
        yield
    finally:
        for place, name, original in originals:
            setattr(place, name, original)


def _wrapped(original: Any, taken: list[float]) -> Any:  # noqa: ANN401 - a function or a class method
    if isinstance(original, classmethod):
        return classmethod(_wrap(original.__func__, taken))
    return _wrap(original, taken)


def _wrap(function: Callable[..., Any], taken: list[float]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def timed_async(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any stage's
            begin = now_ms()
            try:
                return await function(*args, **kwargs)
            finally:
                taken.append(now_ms() - begin)

        return timed_async

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any stage's
        begin = now_ms()
        try:
            return function(*args, **kwargs)
        finally:
            taken.append(now_ms() - begin)

    return timed


def _print_profile(ours: Ours, rounds: int, top: int) -> None:
    profile = cProfile.Profile()
    asyncio.run(_cold_rounds(ours, 5))
    profile.enable()
    asyncio.run(_cold_rounds(ours, rounds))
    profile.disable()
    print(f"\n## cProfile of the loop's thread: sums of {rounds} rounds in s; `poll` is waiting")
    stats = pstats.Stats(profile, stream=sys.stdout)
    stats.sort_stats("tottime").print_stats(top)
    stats.sort_stats("cumulative").print_stats("stockade", top)


def _print_table(title: str, samples: Samples, per: int) -> None:
    print(f"\n## {title}\n{'':48} {'calls':>7} {'p50':>8} {'mean':>8} {'p99':>8}")
    for label, values in samples.items():
        if values:
            summary = Summary.of(values)
            calls = f"{len(values) / per:.1f}" if per > 1 else str(len(values))
            mean = statistics.fmean(values)
            print(f"{label:48} {calls:>7} {summary.p50:8.3f} {mean:8.3f} {summary.p99:8.3f}")


if __name__ == "__main__":
    main()
