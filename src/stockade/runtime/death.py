"""Why a sandbox ended: one pure function over what was seen."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from stockade.errors import ProtocolError, SandboxDied, StateError, StockadeError


@dataclass(frozen=True, slots=True)
class Seen:
    """What the host saw of an end."""

    sandbox_id: str
    #: `destroy` was called
    asked: bool
    #: the error on the channel that made us give the sandbox up
    channel_error: StockadeError | None
    #: kills by the memory controller since the launch
    oom_kills: int
    #: wait status of the cell: exit code, or minus the signal; None when another process reaped it
    status: int | None


def reason_of(seen: Seen) -> StockadeError:
    """Return the error that operations on the ended sandbox raise."""
    if seen.asked:
        return StateError(sandbox_id=seen.sandbox_id, state="destroyed", operation="use it")
    if isinstance(seen.channel_error, ProtocolError):
        return SandboxDied(seen.sandbox_id, "protocol", seen.channel_error.detail)
    if seen.oom_kills and seen.status == -signal.SIGKILL:
        return SandboxDied(seen.sandbox_id, "memory", "the cell was killed by the memory limit")
    if seen.status is None:
        return SandboxDied(seen.sandbox_id, "channel", "the control channel ended")
    if seen.status < 0:
        return SandboxDied(
            seen.sandbox_id, "signal", f"the cell was killed by signal {-seen.status}"
        )
    return SandboxDied(seen.sandbox_id, "exit", f"the cell exited with {seen.status}")
