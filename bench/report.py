"""results.json and the Markdown table. A run replaces the keys that it measured and keeps the others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import machine
from bench.measurement import Measurement

Entry = dict[str, Any]


def entry_of(found: Measurement, facts: Mapping[str, str]) -> Entry:
    """Return a measurement as bench.md lays it down; each entry names its own machine, for keys may differ in age."""
    entry: Entry = {"unit": found.unit, "ours": asdict(found.ours)}
    entry["peers"] = {name: asdict(summary) for name, summary in found.peers.items()}
    if found.floor is not None:
        entry["floor"] = asdict(found.floor)
    if found.variants:
        entry["variants"] = {name: asdict(summary) for name, summary in found.variants.items()}
    entry |= {"absent": dict(found.absent), "note": found.note, "machine": dict(facts)}
    return entry


def merge(path: Path, fresh: Mapping[str, Entry]) -> dict[str, Entry]:
    """Write the file with the fresh keys in place of the old ones, all or nothing; return its content."""
    known: dict[str, Entry] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    merged = {**known, **fresh}
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(merged, indent=2) + "\n", encoding="utf-8")
    os.replace(draft, path)
    return merged


def markdown(entries: Mapping[str, Entry]) -> str:
    """Return all keys as one table, and below it what each round did and on what."""
    return "\n".join(["# Benchmark", "", *_table(entries), "", *_notes(entries), ""])


def _table(entries: Mapping[str, Entry]) -> Iterator[str]:
    yield "| key | what | p50 | p99 | n | ours / it |"
    yield "|---|---|--:|--:|--:|--:|"
    for key, entry in entries.items():
        for number, (name, summary) in enumerate(_rows(entry)):
            label = f"`{key}` ({entry['unit']})" if number == 0 else ""
            yield f"| {label} | {name} | {_figures(summary, entry['ours'], is_ours=number == 0)} |"
        for name, reason in entry.get("absent", {}).items():
            yield f"| | {name} | absent: {reason} | | | |"


def _rows(entry: Entry) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "**ours**", entry["ours"]
    yield from ((f"ours, {name}", summary) for name, summary in entry.get("variants", {}).items())
    yield from entry["peers"].items()
    if "floor" in entry:
        yield "*floor*: posix_spawn", entry["floor"]


def _figures(summary: Mapping[str, Any], ours: Mapping[str, Any], *, is_ours: bool) -> str:
    ratio = "" if is_ours or not summary["p50"] else f"{ours['p50'] / summary['p50']:.2f}"
    return f"{summary['p50']:.2f} | {summary['p99']:.2f} | {summary['n']} | {ratio}"


def _notes(entries: Mapping[str, Entry]) -> Iterator[str]:
    yield "p99 is the nearest rank: of fewer than 100 samples the largest. All run interleaved, started by one process."
    yield ""
    for key, entry in entries.items():
        yield f"- `{key}`: {entry['note']}. Measured on {machine.sentence(entry['machine'])}."
