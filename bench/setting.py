"""What every key is measured in: the view, ours, the peers that are here, and how many rounds."""

from __future__ import annotations

from dataclasses import dataclass

from bench.ours import Ours
from bench.peers import Present
from bench.view import View


@dataclass(frozen=True, slots=True)
class Setting:
    """One run of the benchmark."""

    view: View
    ours: Ours
    present: Present
    #: None: each key's own number
    rounds: int | None = None

    def rounds_or(self, default: int) -> int:
        """Return the number of counted rounds."""
        return self.rounds or default
