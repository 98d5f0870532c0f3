"""What one key of the benchmark gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.peers import Present
from bench.samples import Summary


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one key gave. `variants` are other ways to use ours; `absent` maps a missing peer to the reason."""

    unit: str
    ours: Summary
    peers: Mapping[str, Summary] = field(default_factory=dict)
    floor: Summary | None = None
    variants: Mapping[str, Summary] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    #: what one round does, and on what
    note: str = ""


def measurement(
    unit: str, summaries: Mapping[str, Summary], present: Present, note: str
) -> Measurement:
    """Sort summaries by role: `ours`, `floor`, the peers; every other one is a variant of ours."""
    peers = {name: found for name, found in summaries.items() if present.named(name)}
    rest = {name: found for name, found in summaries.items() if name not in peers}
    ours, floor = rest.pop("ours"), rest.pop("floor", None)
    return Measurement(unit, ours, peers, floor, rest, present.absent, note)
