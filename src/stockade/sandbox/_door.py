"""The one function through which every command and file operation goes; W3's gateway takes its place.

It measures and records; it decides nothing yet.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from stockade.audit import Record, Result, new_record_id
from stockade.errors import Denied, NotPermitted, StockadeError, WorkspaceRefused

T = TypeVar("T")
#: Turns a call's value into its record's result and detail.
Tell: TypeAlias = Callable[[T], tuple[Result, Mapping[str, Any]]]

_REFUSED = (Denied, NotPermitted, WorkspaceRefused)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose sandbox it is: fields of every record."""

    sandbox_id: str
    session_id: str
    agent_id: str
    isolation: str


class Door:
    """Records every operation of one sandbox."""

    def __init__(self, identity: Identity, append: Callable[[Record], None]) -> None:
        """`append` takes a record without blocking."""
        self.identity = identity
        self._append = append

    async def call(
        self,
        operation: str,
        target: str,
        params: Mapping[str, Any],
        work: Awaitable[T],
        tell: Tell[T] | None = None,
        call_id: str | None = None,
    ) -> T:
        """Await `work` and record it; `tell` turns its value into the record's result and detail."""
        begin = time.monotonic()
        try:
            value = await work
        except BaseException as error:
            result: Result = "denied" if isinstance(error, _REFUSED) else "error"
            self.record(operation, target, params, result, _ms(begin), _describe(error), call_id)
            raise
        result, detail = tell(value) if tell else ("success", {})
        self.record(operation, target, params, result, _ms(begin), detail, call_id)
        return value

    def record(
        self,
        operation: str,
        target: str,
        params: Mapping[str, Any],
        result: Result,
        duration_ms: int,
        detail: Mapping[str, Any] | None = None,
        call_id: str | None = None,
    ) -> str:
        """Append one record; return its call id (a new one, unless it belongs to a call that has one)."""
        call_id = call_id or new_record_id()
        who = self.identity
        self._append(
            Record(
                timestamp=time.time_ns() // 1_000_000 - duration_ms,
                session_id=who.session_id,
                sandbox_id=who.sandbox_id,
                operation=operation,
                target=target,
                params=params,
                result=result,
                duration_ms=duration_ms,
                agent_id=who.agent_id,
                call_id=call_id,
                isolation=who.isolation,
                detail=detail or {},
            )
        )
        return call_id


def _describe(error: BaseException) -> dict[str, Any]:
    if isinstance(error, StockadeError):
        return {"error": error.code, "message": error.message}
    return {"error": type(error).__name__}


def _ms(begin: float) -> int:
    return int((time.monotonic() - begin) * 1000)
