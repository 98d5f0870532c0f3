"""A creation explains itself: its phases are in the record, and a slow one says what it was made of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stockade import Sandbox
from stockade.audit import Query, Record, SqliteStore, operations
from stockade.sandbox import async_sandbox


def _creation(state_dir: Path) -> Record:
    with Sandbox.create(state_dir=str(state_dir)) as sandbox:
        session_id = sandbox.session_id
    store = SqliteStore.in_state_dir(os.path.realpath(state_dir))
    try:
        query = Query(session_id=session_id, operation=operations.SANDBOX_CREATE)
        (record,) = store.query(query).records
    finally:
        store.close()
    return record


def test_the_first_record_holds_phases_and_protections(tmp_path: Path) -> None:
    """R19 and decision 1: what the sandbox got, and how long each phase took."""
    detail = _creation(tmp_path).detail
    assert {"total", "seal", "build the root file system"} <= set(detail["timings_ms"])
    assert "seccomp" in detail["protections"]["walls"]
    assert "shared with the host" in detail["kernel"]
    assert "slow" not in detail or detail["timings_ms"]["total"] > async_sandbox.SLOW_CREATE_MS


def test_a_slow_creation_says_what_it_was_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R19: rules, cgroup depth and what was left over are in the record of a creation past the limit."""
    monkeypatch.setattr(async_sandbox, "SLOW_CREATE_MS", 0)
    slow = _creation(tmp_path).detail["slow"]
    assert slow["seccomp_instructions"] > 100
    assert slow["steps"] > 20
    assert slow["left_by_dead_owners"] == []
