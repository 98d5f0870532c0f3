"""Redaction of text that arrives in chunks: no part of a secret leaves before the whole is known.

What comes out, joined, is the redaction of the whole text. The engine's ``hold_bytes`` (about
500 bytes; more only for longer registered values) stay inside until more text or ``flush`` comes.
"""

from __future__ import annotations

from stockade.redact.engine import PLACEHOLDER, Engine, Frontier, Span

_PLACEHOLDER_BYTES = PLACEHOLDER.encode()


class ByteStreamRedactor:
    """Redacts one stream of bytes; not for use by two threads."""

    __slots__ = ("_buffer", "_covered", "_emitted", "_engine", "_frontier", "_pending", "hits")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: How many placeholders were written so far.
        self.hits = 0
        self._start()

    def feed(self, chunk: bytes) -> bytes:
        """Take a chunk and return what can be shown now; it may be empty."""
        self._buffer += chunk
        return self._advance(final=False)

    def flush(self) -> bytes:
        """Return the rest, and start anew: what is fed next is another text."""
        rest = self._advance(final=True)
        self._start()
        return rest

    def _start(self) -> None:
        self._buffer = bytearray()
        self._frontier = Frontier()
        self._pending: list[Span] = []
        self._emitted = 0
        self._covered = 0

    def _advance(self, *, final: bool) -> bytes:
        data = bytes(self._buffer)
        self._pending += self._engine.advance(data, self._frontier, final=final)
        self._pending.sort(key=lambda span: (span.start, not span.continues))
        limit = min(self._frontier.at, len(data))
        out = bytearray()
        while self._pending and (self._pending[0].start < limit or final):
            self._emit_span(self._pending.pop(0), data, out)
        out += self._plain(data, limit)
        self._drop_shown()
        return bytes(out)

    def _emit_span(self, span: Span, data: bytes, out: bytearray) -> None:
        if not span.continues and span.start >= self._covered:
            out += self._plain(data, span.start)
            out += _PLACEHOLDER_BYTES
            self.hits += 1
        self._covered = max(self._covered, span.end)

    def _plain(self, data: bytes, end: int) -> bytes:
        """Return the text up to ``end`` that is neither shown nor covered."""
        start = max(self._emitted, self._covered)
        self._emitted = max(self._emitted, end)
        return data[start:end]

    def _drop_shown(self) -> None:
        """Forget what was shown, but for one byte: patterns look at the character before."""
        count = max(0, self._emitted - 1)
        del self._buffer[:count]
        self._frontier.drop(count)
        self._emitted -= count
        self._covered -= count
        self._pending = [
            Span(span.rule_id, span.start - count, span.end - count, span.continues)
            for span in self._pending
        ]


class StreamRedactor:
    """Redacts one stream of text; not for use by two threads."""

    __slots__ = ("_bytes",)

    def __init__(self, engine: Engine) -> None:
        self._bytes = ByteStreamRedactor(engine)

    @property
    def hits(self) -> int:
        """How many placeholders were written so far."""
        return self._bytes.hits

    def feed(self, chunk: str) -> str:
        """Take a chunk and return what can be shown now; it may be empty."""
        return self._bytes.feed(chunk.encode("utf-8", "surrogatepass")).decode(
            "utf-8", "surrogatepass"
        )

    def flush(self) -> str:
        """Return the rest, and start anew: what is fed next is another text."""
        return self._bytes.flush().decode("utf-8", "surrogatepass")
