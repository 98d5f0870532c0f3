"""What doctor says of the tests that this host can't run."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stockade.cli.doctor import (
    SuiteRecord,
    UnreadableRecord,
    _read_suite_record,
    _suite_lines,
)

HERE = os.uname()
WHEN = "2026-11-02T10:00:00+00:00"
HEADING = f"Tests not applicable on this host (last `make test`, {WHEN}):"


def _written(directory: Path, *tests: tuple[str, str, str], **changed: Any) -> Path:
    path = directory / "not-applicable.json"
    record = {
        "when": WHEN,
        "host": {"kernel": HERE.release, "machine": HERE.machine},
        "tests": [{"test": test, "reason": reason, "pass": name} for test, reason, name in tests],
    }
    path.write_text(json.dumps(record | changed))
    return path


def _lines(path: Path) -> list[str]:
    return _suite_lines(_read_suite_record(path), HERE)


def test_without_a_record_doctor_says_so(tmp_path: Path) -> None:
    """An installed Stockade has no tests: that is no fault, and not the same as no gaps."""
    (line,) = _lines(tmp_path / "none")
    assert "no test run is on record here" in line


def test_tests_are_grouped_by_reason(tmp_path: Path) -> None:
    """A test that two passes left out counts once, and the passes are named."""
    path = _written(
        tmp_path,
        ("t::a", "no KVM", "root"),
        ("t::b", "no KVM", "root"),
        ("t::c", "no IPv6", "root"),
        ("t::a", "no KVM", "ordinary user"),
    )
    assert _lines(path) == [HEADING, "  1: no IPv6 (root)", "  2: no KVM (root, ordinary user)"]


def test_programs_get_each_test(tmp_path: Path) -> None:
    """In JSON, every test is listed below its reason, with its pass."""
    record = _read_suite_record(_written(tmp_path, ("t::a", "no KVM", "root")))
    assert isinstance(record, SuiteRecord)
    assert record.to_dict() == {
        "when": WHEN,
        "host": {"kernel": HERE.release, "machine": HERE.machine},
        "reasons": [
            {"reason": "no KVM", "count": 1, "tests": [{"test": "t::a", "pass": "root"}]},
        ],
    }


def test_a_run_without_gaps_is_told(tmp_path: Path) -> None:
    """Nothing left out is said in a word, not by silence."""
    assert _lines(_written(tmp_path)) == [HEADING, "  none"]


def test_a_record_of_another_kernel_is_told(tmp_path: Path) -> None:
    """After an upgrade, the reasons may no longer hold."""
    path = _written(tmp_path, host={"kernel": "5.1", "machine": HERE.machine})
    assert _lines(path)[1] == f"  it ran on another kernel: {HERE.machine}, Linux 5.1"


def test_a_reason_can_not_drive_the_terminal(tmp_path: Path) -> None:
    """Reasons quote the host, which may say anything."""
    assert _lines(_written(tmp_path, ("t", "\x1b[2J", "root")))[1] == "  1: \\x1b[2J (root)"


@pytest.mark.parametrize("text", [b"", b"[]", b'{"when": 1}', b"\xff"])
def test_a_broken_record_is_told(tmp_path: Path, text: bytes) -> None:
    """The rest of the examination is still shown."""
    path = tmp_path / "not-applicable.json"
    path.write_bytes(text)
    record = _read_suite_record(path)
    assert isinstance(record, UnreadableRecord)
    assert record.problem.startswith(f"{path}: ")
