"""What every store of records can do; the contract that the writer and queries rely on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from stockade.audit.query import Page, Query
from stockade.audit.record import Record


class AuditStore(ABC):
    """A place where records are kept. Its methods may be called from any thread."""

    @abstractmethod
    def append(self, records: Sequence[Record]) -> int:
        """Store records, all or none, and return how many were new.

        On return they survive a crash of the host. A record whose ``record_id`` is there already
        is left out, so that a batch may be sent again. Raises ``AuditError``.
        """

    @abstractmethod
    def query(self, query: Query) -> Page:
        """Return a page of records, ordered by (timestamp, record_id); raises ``AuditError``."""

    @abstractmethod
    def close(self) -> None:
        """Give up connections and files; a second call does nothing."""
