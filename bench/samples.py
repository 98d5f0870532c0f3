"""Samples and how they are summed up; which contender runs when. No contender is known here."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: One round of one contender: it returns its own values, so that what it has to prepare is not counted.
Round = Callable[[], Sequence[float]]

#: The pause of `after_quiet`; grace periods that others asked for are over by then.
QUIET_S = 0.1


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and 99th percentile (nearest rank: with fewer than 100 samples, the largest)."""

    p50: float
    p99: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Sum up samples; there must be at least one."""
        rank = math.ceil(0.99 * len(values)) - 1
        return cls(round(statistics.median(values), 4), round(sorted(values)[rank], 4), len(values))


def now_ms() -> float:
    """Return the time of a clock that only ever goes forward, in ms."""
    return time.perf_counter() * 1000


def ms_of(work: Callable[[], object]) -> float:
    """Return how long a call took in ms."""
    begin = now_ms()
    work()
    return now_ms() - begin


def after_quiet(one: Round) -> Round:
    """Return the round after a pause without cgroup changes, as an agent makes while its model thinks.

    The first process that enters a v1 cgroup then waits for an RCU grace period (peers.md), which a tight loop hides.
    """

    def waited() -> Sequence[float]:
        time.sleep(QUIET_S)
        return one()

    return waited


def in_a_row(one: Round, count: int) -> Round:
    """Return a round that is `count` of `one`'s."""
    return lambda: [value for _ in range(count) for value in one()]


def interleave(
    contenders: Mapping[str, Round], rounds: int, warmups: int = 3
) -> dict[str, Summary]:
    """Run every contender once in each round, and return their summaries.

    The order within a round is shuffled, the same way in each run: what one leaves to the kernel (a network namespace
    is torn down after its last process is gone) falls on whoever comes next, which must not always be the same one.
    """
    values: dict[str, list[float]] = {name: [] for name in contenders}
    order = random.Random(0)  # noqa: S311 - a schedule, not a secret
    for number in range(warmups + rounds):
        for name in order.sample(list(contenders), len(contenders)):
            taken = contenders[name]()
            if number >= warmups:
                values[name].extend(taken)
    return {name: Summary.of(found) for name, found in values.items()}
