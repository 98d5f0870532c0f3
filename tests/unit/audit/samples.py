"""Records and writers for the tests of this directory."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from stockade.audit import AuditStore, Query, Record


def make_record(number: int = 0, **changes: Any) -> Record:
    """Return a record whose timestamp and target tell its number."""
    fields: dict[str, Any] = {
        "timestamp": 1_000_000 + number,
        "session_id": "s-1",
        "sandbox_id": "sb-1",
        "operation": "exec",
        "target": f"cmd-{number}",
        "params": {"n": number},
        "result": "success",
        "duration_ms": 1,
    }
    return Record(**{**fields, **changes})


def stored(store: AuditStore, **filters: Any) -> list[Record]:
    """Return all records of a store, page by page."""
    records: list[Record] = []
    after = None
    while True:
        page = store.query(Query(limit=1000, after=after, **filters))
        records += page.records
        if (after := page.next) is None:
            return records


def start_python(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Start another interpreter that runs ``program`` with our packages."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
