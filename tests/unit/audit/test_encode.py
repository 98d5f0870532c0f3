"""What reaches a store: redacted, bounded, and plain, whatever was appended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stockade.audit import AuditWriter, Record, SqliteStore, spill_dir
from stockade.audit.encode import MAX_JSON_BYTES, MAX_TEXT, prepare
from stockade.audit.spill import Spill
from stockade.redact import Redactor
from tests.unit.audit.samples import make_record, stored

SECRETS = Redactor()
TOKEN = "ghp_" + "d2" * 18


class _Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")


def _cycle() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"a": "\ud800 \x00"}, {"a": "\ud800 \x00"}),
        ({"a": b"\xff\x00x"}, {"a": "\\xff\x00x"}),
        ({"a": float("nan"), "b": float("-inf")}, {"a": "nan", "b": "-inf"}),
        ({1: (1, None), None: {2}}, {"1": [1, None], "None": [2]}),
        ({"a": 10**400}, {"a": hex(10**400)}),
        (["x"], {"value": ["x"]}),
        ({"a": _Hostile()}, {"unreadable": "RuntimeError"}),
        ({"password": "hunter2", "n": 1}, {"password": "[REDACTED]", "n": 1}),
    ],
)
def test_any_params_become_json(params: Any, expected: Any) -> None:
    """Odd values are shown as plain JSON, and none stops the writer."""
    record = prepare(make_record(params=params), SECRETS)
    assert record.params == expected
    assert json.loads(record.to_json())["params"] == expected


def test_cycles_end() -> None:
    """A value that contains itself is cut at the depth cap."""
    assert "[TRUNCATED]" in prepare(make_record(params=_cycle()), SECRETS).to_json()


def test_huge_list_is_cut() -> None:
    """A list of a million items costs what the budget of nodes allows."""
    record = prepare(make_record(params={"a": [0] * 1_000_000}), SECRETS)
    assert len(record.to_json()) < MAX_JSON_BYTES


def test_long_text_is_cut_after_redaction() -> None:
    """A secret that the cut would split does not show its first half."""
    record = prepare(make_record(params={"a": "x" * (MAX_TEXT - 10) + " " + TOKEN}), SECRETS)
    assert "ghp_" not in record.params["a"]
    assert record.params["a"].endswith("characters]")


def test_large_params_become_a_digest() -> None:
    """Params beyond the cap leave their size, digest and beginning."""
    record = prepare(make_record(params={str(n): "é" * 16_000 for n in range(40)}), SECRETS)
    assert set(record.params) == {"truncated_bytes", "sha256", "preview"}


def test_target_is_one_redacted_line() -> None:
    """Control characters in a name are escaped, so that one record stays one line (C12)."""
    target = f"https://u:pw12@a.test/\r\nx\x00\ud800?token={TOKEN}"
    record = prepare(make_record(target=target), SECRETS)
    assert record.target == "https://u:[REDACTED]@a.test/\\x0d\\x0ax\\x00\\ud800?token=[REDACTED]"


@pytest.mark.parametrize("number", [2**70, -(2**70), 1.5, None])
def test_any_number_fits_the_store(number: Any) -> None:
    """A timestamp or duration out of range is clamped, not a write that fails for ever."""
    record = prepare(make_record(timestamp=number, duration_ms=number), SECRETS)
    assert abs(record.timestamp) < 2**63
    assert abs(record.duration_ms) < 2**63


def test_record_survives_json() -> None:
    """A record is the same after its line was written and read."""
    record = make_record(params={"a": ["\ud800", 1.5, None]}, rule="r", detail={"b": True})
    assert Record.from_dict(json.loads(record.to_json())) == record


def test_c39_no_secret_is_in_any_file(tmp_path: Path) -> None:
    """Read as raw bytes, neither database, WAL nor spill file holds a secret of the arguments."""
    state = str(tmp_path / "state")
    secret = "S3cret-" + "K9" * 12
    writer = AuditWriter(
        SqliteStore.in_state_dir(state),
        spill_dir=spill_dir(state),
        redactor=Redactor(extra_values=[secret]),
    )
    arguments = {
        "cfg": {
            "headers": [{"Authorization": "Bearer " + "tok_" * 8}],
            "cookie": "sid=" + "9f" * 16,
        },
        "argv": ["docker", "run", "-e", "JIRA_TOKEN=" + "q7" * 16, "--with-token", "w9" * 16],
        "url": "https://user:pa55word@api.test/cb?access_token=" + "z1" * 16,
        "tok_as_key_" + "ab" * 16: 1,
    }
    writer.append(make_record(params=arguments, result="denied", detail={"e": f"401 for {secret}"}))
    writer.flush()
    Spill(spill_dir(state)).append([prepare(make_record(params=arguments), writer.redactor)])
    raw = b"".join(path.read_bytes() for path in Path(state).rglob("*") if path.is_file())
    assert len(stored(writer.store)) == 1
    writer.close()
    leaks = [b"tok_tok_", b"9f9f", b"q7q7", b"w9w9", b"pa55word", b"z1z1", b"abab", secret.encode()]
    assert [leak for leak in leaks if leak in raw] == []
