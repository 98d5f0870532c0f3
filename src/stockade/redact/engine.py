"""The search: from rules and bytes to the spans that must not be seen. Linear in the text.

The same code serves a whole text and a stream. Findings depend on the text alone, never on where
its chunks end: a match counts once all that could change it is visible (``hold_bytes`` behind its
start), and a tail that goes on is carried over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import re2

from stockade.redact._width import UNBOUNDED, max_width
from stockade.redact.rules import MAX_TAIL_BYTES, Rule

#: What a reader sees in the place of a secret.
PLACEHOLDER = "[REDACTED]"
_PLACEHOLDER_BYTES = PLACEHOLDER.encode()

#: Bytes beyond a tail that must be visible before it is known to end: one unit and one finish.
_TAIL_SLACK = 2 * MAX_TAIL_BYTES

#: The longest UTF-8 character, which a finding takes whole.
_CHARACTER_BYTES = 4
_CONTINUATION_MASK, _CONTINUATION = 0xC0, 0x80


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes ``start`` to ``end`` are secret by ``rule_id``; ``continues`` the span before it."""

    rule_id: str
    start: int
    end: int
    continues: bool = False


@dataclass(slots=True)
class Frontier:
    """How far a stream's search is, in positions of its present buffer."""

    at: int = 0
    resume: dict[int, int] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)

    def drop(self, count: int) -> None:
        """Forget the first ``count`` bytes of the buffer."""
        self.resume = {rule: at - count for rule, at in self.resume.items() if at > self.at}
        self.at -= count
        self.open = {rule: at - count for rule, at in self.open.items()}


class Engine:
    """Compiled rules. Immutable after construction, so that threads can share one."""

    __slots__ = ("_always", "_by_keyword", "_keywords", "_rules", "hold_bytes")

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        widths = [max_width(rule.regex) for rule in self._rules]
        if any(width >= UNBOUNDED for width in widths):
            raise ValueError("a redaction rule's head must have a longest match")
        #: How much of a stream is held back: the longest head, or what decides that a tail ended.
        self.hold_bytes = max([_TAIL_SLACK, *widths]) + _CHARACTER_BYTES
        self._always = tuple(i for i, rule in enumerate(self._rules) if not rule.keywords)
        self._keywords, self._by_keyword = _compile_keywords(self._rules)

    def scan(self, data: bytes) -> list[Span]:
        """Return all findings in a whole text, by start; they may overlap."""
        return self.advance(data, Frontier(), final=True)

    def advance(self, data: bytes, frontier: Frontier, *, final: bool) -> list[Span]:
        """Return the findings that are certain now, and move ``frontier`` to where search goes on.

        ``data`` is all that the stream still holds; with ``final`` nothing will follow it.
        """
        limit = len(data) + 1
        if not final:
            limit = max(frontier.at, _back_to_boundary(data, len(data) - self.hold_bytes))
        spans: list[Span] = []
        for index in sorted({*self._candidates(data), *frontier.open}):
            self._search(index, data, frontier, limit, spans)
        frontier.at = limit
        return sorted(spans, key=lambda span: (span.start, not span.continues))

    def _candidates(self, data: bytes) -> set[int]:
        found = set(self._always)
        if self._keywords is not None:
            for keyword in self._keywords.Match(data) or ():
                found.update(self._by_keyword[keyword])
        return found

    def _search(
        self, index: int, data: bytes, frontier: Frontier, limit: int, spans: list[Span]
    ) -> None:
        """Add the findings of one rule that start before ``limit``."""
        rule, final = self._rules[index], limit > len(data)
        at = max(frontier.at, frontier.resume.pop(index, 0))
        if index in frontier.open:
            start = frontier.open.pop(index)
            at, done = _follow_tail(rule, data, start, final=final)
            if at > start:
                spans.append(Span(rule.id, start, at, continues=True))
            if not done:
                frontier.open[index] = at
                return
        while (match := rule.head.search(data, at)) is not None and match.start() < limit:
            start, end = _secret_span(match)
            at = max(start, match.start() + 1)
            if _is_hidden(data, start, end) or not rule.accepts(data[start:end]):
                continue
            at, done = _follow_tail(rule, data, end, final=final)
            spans.append(Span(rule.id, _back_to_boundary(data, start), at))
            if not done:
                frontier.open[index] = at
                return
        if at > limit:
            frontier.resume[index] = at


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return the spans of a whole text without overlaps, named by the first; touching ones stay apart."""
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        if last is not None and span.start < last.end:
            merged[-1] = Span(last.rule_id, last.start, max(last.end, span.end))
        else:
            merged.append(span)
    return merged


def _compile_keywords(rules: Sequence[Rule]) -> tuple[Any, list[set[int]]]:
    """Return one automaton of all keywords, and for each of its patterns the rules behind it."""
    users: dict[str, set[int]] = {}
    for index, rule in enumerate(rules):
        for keyword in rule.keywords:
            users.setdefault(keyword.lower(), set()).add(index)
    if not users:
        return None, []
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.case_sensitive = False
    options.literal = True
    keywords = re2.Set.SearchSet(options)
    for keyword in users:
        keywords.Add(keyword.encode())
    keywords.Compile()
    return keywords, list(users.values())


def _secret_span(match: Any) -> tuple[int, int]:  # noqa: ANN401 - re2 has no types
    """Return the first group that took part, else the whole match."""
    for group in range(1, match.re.groups + 1):
        start, end = match.span(group)
        if start >= 0:
            return start, end
    span: tuple[int, int] = match.span()
    return span


def _follow_tail(rule: Rule, data: bytes, start: int, *, final: bool) -> tuple[int, bool]:
    """Return where the secret ends as far as seen, and whether that is certain."""
    if rule.tails is None:
        return _forward_to_boundary(data, start), True
    end: int = rule.tails.match(data, start).end()
    if not final and len(data) - end < _TAIL_SLACK:
        return end, False
    if rule.ending is not None and (match := rule.ending.match(data, end)) is not None:
        end = match.end()
    return _forward_to_boundary(data, end), True


def _is_hidden(data: bytes, start: int, end: int) -> bool:
    """Say whether nothing, or a former redaction, stands here; hiding it again changes the text."""
    return start == end or data.startswith(_PLACEHOLDER_BYTES, start)


def _back_to_boundary(data: bytes, at: int) -> int:
    """Return ``at`` or up to three bytes less, so that it does not cut a UTF-8 character."""
    for step in range(_CHARACTER_BYTES):
        if not _cuts_character(data, at - step):
            return at - step
    return at


def _forward_to_boundary(data: bytes, at: int) -> int:
    for step in range(_CHARACTER_BYTES):
        if not _cuts_character(data, at + step):
            return at + step
    return at


def _cuts_character(data: bytes, at: int) -> bool:
    return 0 < at < len(data) and data[at] & _CONTINUATION_MASK == _CONTINUATION
