"""W1's ceilings, asked of one run: ours beside its peer or floor, both measured on the same machine and minute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.report import Entry

#: A sandbox is to cost at most this many times bwrap with the same namespaces and mounts.
BWRAP_RATIO = 1.3
#: /bin/true in a live sandbox: absolute on the machine of peers.md, where the floor is 0.53 ms ...
EXEC_MS = 0.9
#: ... and on a slower one the same multiple of its floor.
EXEC_FLOOR_RATIO = 1.7
IDLE_KIB = 600.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One ceiling: what was measured, what is allowed; None where nothing stands to compare with."""

    key: str
    measured: float
    allowed: float | None
    of: str

    @property
    def holds(self) -> bool:
        """Whether ours is at most what is allowed."""
        return self.allowed is not None and self.measured <= self.allowed

    def __str__(self) -> str:
        if self.allowed is None:
            return f"FAIL {self.key}: can't be judged without {self.of}"
        word = "ok  " if self.holds else "FAIL"
        return f"{word} {self.key}: {self.measured:.2f}, allowed {self.allowed:.2f} ({self.of})"


def judge(entries: Mapping[str, Entry], slack: float = 1.0) -> list[Verdict]:
    """Judge the keys that have a ceiling; `slack` widens each, for a machine that is busy with other tests."""
    return [_JUDGES[key](key, entry, slack) for key, entry in entries.items() if key in _JUDGES]


def _beside_bwrap(key: str, entry: Entry, slack: float) -> Verdict:
    peer = entry["peers"].get("bwrap")
    allowed = peer["p50"] * BWRAP_RATIO * slack if peer else None
    return Verdict(key, entry["ours"]["p50"], allowed, f"{BWRAP_RATIO * slack:.2f} x bwrap")


def _exec(key: str, entry: Entry, slack: float) -> Verdict:
    allowed = max(EXEC_MS, EXEC_FLOOR_RATIO * entry["floor"]["p50"]) * slack
    of = f"{EXEC_MS} ms or {EXEC_FLOOR_RATIO} x floor, slack {slack}"
    return Verdict(key, entry["ours"]["p50"], allowed, of)


def _idle(key: str, entry: Entry, _slack: float) -> Verdict:
    return Verdict(key, entry["ours"]["p50"], IDLE_KIB, "KiB")


_JUDGES: dict[str, Callable[[str, Entry, float], Verdict]] = {
    "cold_true": _beside_bwrap,
    "exec_true": _exec,
    "parallel_50": _beside_bwrap,
    "idle_pss_kib": _idle,
}
