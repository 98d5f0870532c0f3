"""What can be asked of the records: filters, pages, and times as people write them. No I/O."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

from stockade.audit.record import Record

#: A page holds at most so many records: 1,000 of 2 KiB are 2 MB.
MAX_LIMIT = 1000

_AGO = re.compile(r"(\d{1,9})(ms|s|m|h|d|w)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_CURSOR = re.compile(r"(-?\d{1,16}):([0-9A-Za-z_-]{1,64})")


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place after a record, in the order of (timestamp, record_id)."""

    timestamp: int
    record_id: str

    def __str__(self) -> str:
        return f"{self.timestamp}:{self.record_id}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Return the cursor that ``str`` made; raises ``ValueError``."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise ValueError(f"not a cursor: {text!r}")
        return cls(int(found[1]), found[2])


@dataclass(frozen=True, slots=True)
class Query:
    """Which records: each filter that is not None must hold. Times in ms; ``until`` is exclusive.

    Raises ``ValueError`` for a limit outside 1 to MAX_LIMIT.
    """

    session_id: str | None = None
    sandbox_id: str | None = None
    agent_id: str | None = None
    call_id: str | None = None
    operation: str | None = None
    result: str | None = None
    since: int | None = None
    until: int | None = None
    target_prefix: str | None = None
    limit: int = 100
    after: Cursor | None = None
    newest_first: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MAX_LIMIT:
            raise ValueError(f"limit must be 1 to {MAX_LIMIT}, not {self.limit}")


@dataclass(frozen=True, slots=True)
class Page:
    """Some records, and where the next page begins; None where there is none."""

    records: tuple[Record, ...]
    next: Cursor | None


def parse_time(text: str, now_ms: int) -> int:
    """Return the ms since 1970 that ``text`` means.

    ``7d``, ``1h``, ``90s`` (w, d, h, m, s, ms) are that long before ``now_ms``; else an ISO 8601
    date or time, in UTC where it names no zone. Raises ``ValueError``.
    """
    text = text.strip()
    if (ago := _AGO.fullmatch(text)) is not None:
        return max(0, now_ms - int(ago[1]) * _UNIT_MS[ago[2]])
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"not a time: {text!r}; use 7d, 1h, 30m or 2026-01-31T12:00") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return int(moment.timestamp() * 1000)
