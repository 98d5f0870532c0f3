"""How the benchmark sums up and interleaves."""

from functools import partial

import pytest

from bench.samples import Round, Summary, interleave


@pytest.mark.parametrize(
    ("count", "p50", "p99"),
    [(1, 1, 1), (2, 1.5, 2), (99, 50, 99), (100, 50.5, 99), (1000, 500.5, 990)],
)
def test_p99_is_the_nearest_rank(count: int, p50: float, p99: float) -> None:
    """The percentile is a value that was measured; of fewer than 100 it is the largest."""
    assert Summary.of(range(1, count + 1)) == Summary(p50, p99, count)


class Recorder:
    """Contenders that write down their turns."""

    def __init__(self, *names: str) -> None:
        self.turns: list[str] = []
        self.contenders: dict[str, Round] = {name: partial(self._take, name) for name in names}

    def _take(self, name: str) -> list[float]:
        self.turns.append(name)
        return [1.0]


def test_every_round_runs_every_contender_once() -> None:
    """No contender gets its rounds together, while the machine is quiet or busy."""
    recorder = Recorder("a", "b", "c")
    interleave(recorder.contenders, rounds=4, warmups=2)
    turns = recorder.turns
    assert [sorted(turns[i : i + 3]) for i in range(0, 18, 3)] == [["a", "b", "c"]] * 6


def test_the_order_of_a_round_changes() -> None:
    """What one contender leaves to the kernel falls on different ones."""
    recorder = Recorder("a", "b")
    interleave(recorder.contenders, rounds=20)
    turns = recorder.turns
    assert {tuple(turns[i : i + 2]) for i in range(0, 46, 2)} == {("a", "b"), ("b", "a")}


def test_warmups_are_not_counted() -> None:
    """Values of warm-ups are thrown away."""
    values = iter([100.0, 100.0, 1.0, 1.0])
    assert interleave({"one": lambda: [next(values)]}, rounds=2, warmups=2)["one"] == Summary(
        1, 1, 2
    )
