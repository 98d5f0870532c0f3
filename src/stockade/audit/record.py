"""One line of the audit log, and its form as JSON. Nothing here stores or redacts it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stockade.audit.operations import Result

_sequence = itertools.count()
_SEQUENCE_MASK = 0xFFFFF


def new_record_id() -> str:
    """Return a new id of 32 hexadecimal digits that sorts by time and, within a process, by order.

    Milliseconds (12 digits), a counter (5), random bits (15): two processes never make the same.
    """
    count = next(_sequence) & _SEQUENCE_MASK
    return f"{time.time_ns() // 1_000_000:012x}{count:05x}{os.urandom(8).hex()[1:]}"


@dataclass(frozen=True, slots=True)
class Record:
    """What happened, once. ``timestamp`` is in ms since 1970, when the operation began.

    ``params`` and ``detail`` are JSON-like and must not be changed after the record was appended:
    they are redacted and encoded later, by the writer's thread.
    """

    timestamp: int
    session_id: str
    sandbox_id: str
    operation: str
    target: str
    params: Mapping[str, Any]
    result: Result
    duration_ms: int
    record_id: str = field(default_factory=new_record_id)
    agent_id: str | None = None
    call_id: str | None = None
    decision: str | None = None
    rule: str | None = None
    isolation: str | None = None
    trace_id: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, without copying what is in them."""
        return {name: getattr(self, name) for name in FIELDS}

    def to_json(self) -> str:
        """Return one line of ASCII JSON; lone surrogates are escaped like other characters."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """Return the record of a dictionary; keys that it does not know are left out."""
        return cls(**{name: data[name] for name in FIELDS if name in data})


FIELDS = tuple(item.name for item in dataclasses.fields(Record))
