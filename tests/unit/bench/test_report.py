"""What becomes of results: the file, the table, the ceilings."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import ceilings, report
from bench.measurement import Measurement
from bench.samples import Summary


def entry(ours: float, peer: float = 4.0, floor: float = 0.5) -> dict[str, Any]:
    """Return an entry of results.json with one peer."""
    found = Measurement(
        "ms",
        Summary(ours, 9.0, 3),
        peers={"bwrap": Summary(peer, 5.0, 3)},
        floor=Summary(floor, 1.0, 3),
        absent={"crun": "not installed"},
    )
    return report.entry_of(found, {"kernel": "6.1"})


def test_an_entry_has_the_agreed_shape() -> None:
    """bench.md: unit, ours, peers by name, floor; absent peers with their reason."""
    assert entry(5.0) == {
        "unit": "ms",
        "ours": {"p50": 5.0, "p99": 9.0, "n": 3},
        "peers": {"bwrap": {"p50": 4.0, "p99": 5.0, "n": 3}},
        "floor": {"p50": 0.5, "p99": 1.0, "n": 3},
        "absent": {"crun": "not installed"},
        "note": "",
        "machine": {"kernel": "6.1"},
    }


def test_a_run_replaces_only_its_keys(tmp_path: Path) -> None:
    """`ONLY=key` keeps what other runs measured."""
    path = tmp_path / "results.json"
    report.merge(path, {"cold_true": entry(1.0), "exec_true": entry(2.0)})
    report.merge(path, {"exec_true": entry(3.0)})
    p50s = {key: found["ours"]["p50"] for key, found in json.loads(path.read_text()).items()}
    assert p50s == {"cold_true": 1.0, "exec_true": 3.0}


def test_the_table_shows_ratios_and_absent_peers() -> None:
    """Each peer's row says how many times it ours costs."""
    lines = report.markdown({"cold_true": entry(5.0)}).splitlines()
    assert "|  | bwrap | 4.00 | 5.00 | 3 | 1.25 |" in lines
    assert "| | crun | absent: not installed | | | |" in lines


@pytest.mark.parametrize(
    ("key", "ours", "holds"),
    [
        ("cold_true", 5.2, True),
        ("cold_true", 5.3, False),
        ("parallel_50", 5.3, False),
        ("exec_true", 0.9, True),
        ("exec_true", 0.91, False),
        ("idle_pss_kib", 600.0, True),
        ("idle_pss_kib", 601.0, False),
    ],
)
def test_ceilings_are_w1s(key: str, ours: float, holds: bool) -> None:
    """1.3 x bwrap, 0.9 ms, 600 KiB."""
    (verdict,) = ceilings.judge({key: entry(ours)})
    assert verdict.holds is holds


def test_exec_on_a_slower_machine_is_judged_by_its_floor() -> None:
    """Where posix_spawn takes 1 ms, a command may take 1.7."""
    (verdict,) = ceilings.judge({"exec_true": entry(1.7, floor=1.0)})
    assert verdict.holds


def test_a_missing_peer_fails_the_check() -> None:
    """A ceiling that can't be judged does not hold."""
    alone = {**entry(1.0), "peers": {}}
    (verdict,) = ceilings.judge({"cold_true": alone})
    assert not verdict.holds
    assert str(verdict) == "FAIL cold_true: can't be judged without 1.30 x bwrap"
