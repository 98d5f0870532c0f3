"""An owner that dies at any moment leaves no running sandbox, and nothing at all after the next start."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.orphans import Owner, Place, send, subreaper
from tests.e2e.owner import PHASES
from tests.e2e.residue import GONE_WITHIN_S, wait_until


@pytest.fixture(autouse=True)
def _orphans_come_here() -> Iterator[None]:
    with subreaper():
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State of these tests' owners alone: what one of them leaves is there for the next one to find."""
    return tmp_path_factory.mktemp("owners")


@pytest.fixture
def place(directory: Path) -> Iterator[Place]:
    """Where owners start; whatever happened, they end with the test."""
    made = Place(directory)
    yield made
    for owner in made.owners:
        owner.kill()


def _mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()


def _assert_nothing_after_the_next_start(place: Place, owner: Owner) -> None:
    place.collect()
    assert [path for path in owner.facts.get("cgroups", ()) if os.path.exists(path)] == []
    assert place.left() == []


@pytest.mark.parametrize("phase", [name for name in PHASES if name not in {"killing", "forked"}])
def test_an_owner_killed_in_a_phase_leaves_nothing(place: Place, phase: str) -> None:
    """All processes are gone within 2 s of SIGKILL; cgroups, locks, mounts and files at the next start."""
    mounts = _mounts()
    owner = place.start(phase)
    owner.wait_for(phase)
    owner.kill()
    owner.assert_alone()
    _assert_nothing_after_the_next_start(place, owner)
    assert _mounts() == mounts


@pytest.mark.parametrize("delay_us", [0, 200, 500, 1000, 2000, 4000])
def test_an_owner_killed_while_it_kills_leaves_nothing(place: Place, delay_us: int) -> None:
    """A destroy that is cut short is finished at the next start."""
    owner = place.start("killing")
    owner.wait_for("killing")
    _pass(delay_us)
    owner.kill()
    owner.assert_alone()
    _assert_nothing_after_the_next_start(place, owner)


def test_a_stopped_owner_keeps_its_sandbox_until_it_is_killed(place: Place) -> None:
    """SIGSTOP is no end; SIGKILL of the stopped owner is one."""
    owner = place.start("command")
    owner.wait_for("command")
    owner.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, owner.process.pid, os.WSTOPPED | os.WNOWAIT)
    assert owner.facts["cell"] in owner.left()
    owner.kill()
    owner.assert_alone()
    _assert_nothing_after_the_next_start(place, owner)


def test_a_forked_child_of_the_owner_does_not_keep_the_sandbox(place: Place) -> None:
    """A multiprocessing worker that lives on holds no end of the channel and no lock (kernel-facts 2)."""
    owner = place.start("forked")
    owner.wait_for("forked")
    child = owner.facts["child"]
    owner.kill()
    owner.assert_alone(but=frozenset({child}))
    _assert_nothing_after_the_next_start(place, owner)
    assert send(child, signal.SIGKILL)
    owner.assert_alone()


def test_a_killed_cell_takes_its_sandbox_with_it(place: Place) -> None:
    """The owner lives; of the sandbox nothing does, not even its cgroups."""
    owner = place.start("command")
    owner.wait_for("command")
    assert send(owner.facts["cell"], signal.SIGKILL)
    assert wait_until(lambda: owner.left() == [owner.process.pid], GONE_WITHIN_S)
    gone = lambda: not any(map(os.path.exists, owner.facts["cgroups"]))  # noqa: E731 - read twice
    assert wait_until(gone, GONE_WITHIN_S)
    owner.kill()
    owner.assert_alone()
    _assert_nothing_after_the_next_start(place, owner)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_an_owner_ended_by_another_signal_leaves_nothing(
    place: Place, number: signal.Signals
) -> None:
    """No handler of ours is needed for the end of what it owned."""
    owner = place.start("command")
    owner.wait_for("command")
    owner.process.send_signal(number)
    owner.wait()
    owner.assert_alone()
    _assert_nothing_after_the_next_start(place, owner)


def _pass(delay_us: int) -> None:
    """Let some time pass: a moment of another process that gives no event."""
    import time  # noqa: PLC0415

    end = time.perf_counter_ns() + delay_us * 1000
    while time.perf_counter_ns() < end:
        pass
