"""From what was appended to what is stored: redacted, bounded, plain.

Params come from agents and tools, so they may hold anything: secrets, cycles, megabytes, NaN,
objects whose `repr` fails. None of it may stop the writer or reach a store unredacted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from stockade.audit.record import Record
from stockade.redact import Redactor

#: A longer string is cut, after redaction; enough for a script that a model writes.
MAX_TEXT = 16 * 1024
#: Larger params or detail are replaced by a digest and a preview: 16 full texts.
MAX_JSON_BYTES = 256 * 1024
#: Containers and scalars in one value; a listing of 1,000 files with 10 fields is half of it.
MAX_NODES = 20_000
MAX_DEPTH = 32
#: Text columns (names, paths, URLs): PATH_MAX.
MAX_COLUMN = 4096
#: Texts are cut to this before redaction. What is cut there is not looked at, and never stored.
_MAX_SEARCHED = 1024 * 1024
_PREVIEW = 2048
_MAX_INT_BITS = 1024
_CUT = "…"

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def prepare(record: Record, redactor: Redactor) -> Record:
    """Return the record as it may be stored; never raises for what its values are."""
    try:
        return _prepare(record, redactor)
    except Exception as error:  # noqa: BLE001 - whatever an object does, its record must not be lost
        return _unreadable(record, error)


def _prepare(record: Any, redactor: Redactor) -> Record:  # noqa: ANN401 - types are not relied on
    columns = {name: _column(getattr(record, name)) for name in _NAMES}
    optional = {name: _optional_column(getattr(record, name)) for name in _OPTIONAL}
    target = redactor.text(_searched(str(record.target))).text
    return Record.from_dict(
        {
            **columns,
            **optional,
            "timestamp": _int64(record.timestamp),
            "duration_ms": _int64(record.duration_ms),
            "target": _column(target),
            "params": _bounded(_object(redactor.value(to_plain(record.params)).value)),
            "detail": _bounded(_object(redactor.value(to_plain(record.detail)).value)),
        }
    )


_NAMES = ("session_id", "sandbox_id", "operation", "result", "record_id")
_OPTIONAL = ("agent_id", "call_id", "decision", "rule", "isolation", "trace_id")
_MAX_INT64 = 2**63 - 1


def escape(text: str) -> str:
    r"""Return ``text`` on one line: control characters and lone surrogates as ``\x00``, ``\ud800``."""
    return _UNPRINTABLE.sub(lambda found: _escaped(ord(found[0])), text)


def to_plain(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Return JSON-ready data for any value: bounded in depth and nodes, without cycles or NaN."""
    return _Plain().convert(value, MAX_DEPTH)


class _Plain:
    """One conversion, with what is left of its budget of nodes."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_NODES

    def convert(self, value: object, depth: int) -> object:
        self._left -= 1
        if self._left < 0 or depth < 0:
            return "[TRUNCATED]"
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return _searched(str(value))
        if isinstance(value, int | float):
            return _number(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return _searched(bytes(value)[:_MAX_SEARCHED].decode("utf-8", "backslashreplace"))
        return self._container(value, depth - 1)

    def _container(self, value: object, depth: int) -> object:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [item.name for item in dataclasses.fields(value)]
            return {name: self.convert(getattr(value, name), depth) for name in names}
        if isinstance(value, Mapping):
            return {
                self._key(key): self.convert(item, depth) for key, item in self._some(value.items())
            }
        if isinstance(value, list | tuple | set | frozenset):
            return [self.convert(item, depth) for item in self._some(value)]
        return _searched(str(value))

    def _some(self, items: Iterable[Any]) -> Iterable[Any]:
        """Yield items while there is budget, so that a huge container costs no more than it may."""
        for item in items:
            if self._left < 0:
                return
            yield item

    def _key(self, key: object) -> str:
        return _searched(key if isinstance(key, str) else str(self.convert(key, 0)))


def _number(value: float) -> object:
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_INT_BITS else hex(value)[:MAX_COLUMN]
    return float(value) if math.isfinite(value) else repr(float(value))


def _searched(text: str) -> str:
    return text if len(text) <= _MAX_SEARCHED else text[:_MAX_SEARCHED]


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"value": value}


def _bounded(value: dict[str, Any]) -> dict[str, Any]:
    """Return ``value`` with long texts cut, or a digest of it where it is still too large."""
    shortened: dict[str, Any] = _shorten(value)
    encoded = json.dumps(shortened, separators=(",", ":"), allow_nan=False)
    if len(encoded) <= MAX_JSON_BYTES:
        return shortened
    digest = hashlib.sha256(encoded.encode()).hexdigest()
    return {"truncated_bytes": len(encoded), "sha256": digest, "preview": encoded[:_PREVIEW]}


def _shorten(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, str):
        return _cut(value, MAX_TEXT)
    if isinstance(value, dict):
        return {_cut(key, MAX_COLUMN): _shorten(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shorten(item) for item in value]
    return value


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}{_CUT}[+{len(text) - limit} characters]"


def _column(text: object) -> str:
    return escape(_cut(str(text), MAX_COLUMN))


def _optional_column(text: object) -> str | None:
    return None if text is None else _column(text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"  # noqa: PLR2004 - one byte


def _int64(value: object) -> int:
    """Return what SQLite and others can hold; 0 for what is no number."""
    number = int(value) if isinstance(value, int | float) else 0
    return max(-_MAX_INT64, min(_MAX_INT64, number))


def _unreadable(record: Any, error: Exception) -> Record:  # noqa: ANN401 - types are not relied on
    """Return a record that says what is known without touching the values that failed."""
    known = {name: getattr(record, name) for name in _NAMES}
    return Record.from_dict(
        {
            **{
                name: _column(value) if isinstance(value, str) else ""
                for name, value in known.items()
            },
            "timestamp": _int64(record.timestamp),
            "duration_ms": _int64(record.duration_ms),
            "target": "[UNREADABLE]",
            "params": {"unreadable": type(error).__name__},
        }
    )
