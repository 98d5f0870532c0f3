"""Refused calls as records: the first of a kind at once, its repeats counted and told once a second."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from stockade.runtime.notices import Attempt

#: How long repeats of one call by one program are only counted.
WINDOW_S = 1.0
#: Kinds (call and program) that are told apart in one window; a program can rename itself without end.
MAX_KINDS = 64
#: Refusals that a sandbox remembers for its owner.
MAX_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that was refused, and how often since the last time it was told."""

    call: str
    program: str
    pid: int
    args: tuple[int, ...]
    count: int = 1


class Attempts:
    """Folds attempts of one sandbox into refusals."""

    def __init__(self, name_of: Callable[[int, int], str], tell: Callable[[Refusal], None]) -> None:
        """`name_of` names a call by number and arch; `tell` gets each refusal, on the event loop."""
        self._name_of = name_of
        self._tell = tell
        self._counted: dict[tuple[str, str], Refusal] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: the latest refusals, oldest first
        self.refused: deque[Refusal] = deque(maxlen=MAX_REMEMBERED)

    def add(self, attempt: Attempt) -> None:
        """Take one attempt."""
        call = self._name_of(attempt.number, attempt.arch)
        refusal = Refusal(call, attempt.program, attempt.pid, attempt.args)
        kind = (call, attempt.program)
        if kind not in self._counted and len(self._counted) >= MAX_KINDS:
            kind = (call, "")
        counted = self._counted.get(kind)
        if counted is not None:
            self._counted[kind] = replace(counted, count=counted.count + 1, pid=attempt.pid)
            return
        self._counted[kind] = replace(refusal, count=0)
        self.refused.append(refusal)
        self._tell(refusal)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self.flush)

    def flush(self) -> None:
        """Tell what was only counted, and begin a new window."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counted, self._counted = self._counted, {}
        for refusal in counted.values():
            if refusal.count:
                self.refused.append(refusal)
                self._tell(refusal)
