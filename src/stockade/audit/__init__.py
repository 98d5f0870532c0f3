"""Records of what happened, kept apart from application logs.

The sandbox layer makes them, never the agent. One writer per process redacts them and hands them to a
store; queries read the store.
"""

from __future__ import annotations

from stockade.audit.operations import OPERATIONS, RESULTS, Result
from stockade.audit.paths import database_path, default_state_dir, prepare_state_dir, spill_dir
from stockade.audit.purge import purge
from stockade.audit.query import Cursor, Page, Query, parse_time
from stockade.audit.record import Record, new_record_id
from stockade.audit.sqlite import SqliteStore
from stockade.audit.store import AuditStore
from stockade.audit.writer import AuditWriter, Counters, default_writer

__all__ = [
    "OPERATIONS",
    "RESULTS",
    "AuditStore",
    "AuditWriter",
    "Counters",
    "Cursor",
    "Page",
    "Query",
    "Record",
    "Result",
    "SqliteStore",
    "database_path",
    "default_state_dir",
    "default_writer",
    "new_record_id",
    "parse_time",
    "prepare_state_dir",
    "purge",
    "spill_dir",
]
