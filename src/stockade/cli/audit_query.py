"""`stockade audit query`: records as a table or as JSON lines. What agents wrote is shown, never obeyed."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import typer

from stockade.audit import (
    OPERATIONS,
    RESULTS,
    Query,
    Record,
    SqliteStore,
    database_path,
    parse_time,
)
from stockade.audit.query import MAX_LIMIT
from stockade.cli import message, place

#: Columns of a table that goes into a file or a pipe.
FILE_WIDTH = 200
#: Characters of one cell: what a table can show; `--json` has all.
_CELL = 300
_COLOURS = {"success": "green", "denied": "yellow", "error": "red"}


@dataclass(frozen=True, slots=True)
class Filters:
    """What was asked, as it was typed; a `limit` of 0 is none."""

    session: str | None = None
    sandbox: str | None = None
    agent: str | None = None
    operation: str | None = None
    result: str | None = None
    target: str | None = None
    since: str | None = None
    until: str | None = None
    limit: int = 100


def show_records(filters: Filters, *, as_json: bool, width: int | None) -> None:
    """Print the records that fit; `width` of a table is the terminal's where it is None. Raises `AuditError`."""
    query = query_of(filters, time.time_ns() // 1_000_000)
    path = database_path(place.state_dir())
    if not os.path.exists(path):  # asking must not make a state directory
        if not as_json:
            print("No records yet.")
        return
    store = SqliteStore(path)
    try:
        records = select(store, query, filters.limit)
        if as_json:
            for record in records:
                print(record.to_json())
        else:
            _show_table(list(records), width)
    finally:
        store.close()


def query_of(filters: Filters, now_ms: int) -> Query:
    """Return the query; raises typer's `BadParameter` for a word that no record can have."""
    _check_word(filters.operation, OPERATIONS, "--operation")
    _check_word(filters.result, RESULTS, "--result")
    return Query(
        session_id=filters.session,
        sandbox_id=filters.sandbox,
        agent_id=filters.agent,
        operation=filters.operation,
        result=filters.result,
        target_prefix=filters.target,
        since=_time(filters.since, now_ms, "--since"),
        until=_time(filters.until, now_ms, "--until"),
    )


def select(store: SqliteStore, query: Query, limit: int) -> Iterator[Record]:
    """Yield the latest `limit` records, oldest first; all of them for 0, page by page."""
    if limit == 0:
        yield from _pages(store, replace(query, limit=MAX_LIMIT))
        return
    latest: list[Record] = []
    for record in _pages(store, replace(query, limit=min(limit, MAX_LIMIT), newest_first=True)):
        latest.append(record)
        if len(latest) == limit:
            break
    yield from reversed(latest)


def _pages(store: SqliteStore, query: Query) -> Iterator[Record]:
    page = store.query(query)
    yield from page.records
    while page.next is not None:
        page = store.query(replace(query, after=page.next))
        yield from page.records


def _show_table(records: list[Record], width: int | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("time (UTC)", "session", "operation", "target", "result"):
        table.add_column(title, overflow="fold")
    table.add_column("ms", justify="right")
    table.add_column("what", overflow="fold")
    for record in records:
        cells = [Text(message.printable(text)) for text in _cells(record)]
        cells[4].stylize(_COLOURS.get(record.result, ""))
        table.add_row(*cells)
    Console(width=width, highlight=False, markup=False, emoji=False).print(table)
    print(f"{len(records)} records")


def _cells(record: Record) -> tuple[str, ...]:
    moment = dt.datetime.fromtimestamp(record.timestamp / 1000, dt.UTC)
    said = {**_shown(record.params), **_shown(record.detail)}
    words = " ".join(f"{name}={_word(value)}" for name, value in said.items())
    return (
        f"{moment:%m-%d %H:%M:%S}.{moment.microsecond // 1000:03}",
        record.session_id,
        record.operation,
        _cut(record.target),
        record.result,
        str(record.duration_ms),
        _cut(words),
    )


def _shown(values: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Leave out what fills a screen: a creation's protections and phases."""
    return {
        name: value for name, value in values.items() if name not in {"protections", "timings_ms"}
    }


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _cut(text: str) -> str:
    return text if len(text) <= _CELL else f"{text[:_CELL]}…"


def _check_word(word: str | None, known: Any, option: str) -> None:  # noqa: ANN401 - names, as dict or tuple
    if word is not None and word not in known:
        raise typer.BadParameter(f"{word!r}; one of {', '.join(known)}", param_hint=option)


def _time(text: str | None, now_ms: int, option: str) -> int | None:
    if text is None:
        return None
    try:
        return parse_time(text, now_ms)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
