"""The public side of redaction: texts, bytes, JSON-like values and streams.

A secret is replaced by ``[REDACTED]``; the rule's id is in the hit, not in the text, so that one
form is known to people, programs and the redactor itself, which leaves it alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stockade.redact import names
from stockade.redact.engine import PLACEHOLDER, Engine, Span, merge
from stockade.redact.rules import Rule, compile_pattern, load_rule_set
from stockade.redact.stream import ByteStreamRedactor, StreamRedactor
from stockade.redact.values import value_rules

#: Containers in containers deeper than this are replaced whole: JSON of tools has under 20.
MAX_DEPTH = 64
#: What stands in the place of what is deeper.
TOO_DEEP = "[TRUNCATED: too deep]"

#: Texts up to this length are remembered as clean, and so many of them: 0.5 MB.
_SHORT = 64
_MOST_CLEAN = 4096

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hit:
    """What was at ``start`` to ``end`` of the *original* (characters of a text, else bytes)."""

    rule_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Redacted(Generic[T]):
    """A redacted text, bytes or value, and what was found; positions are within each string."""

    value: T
    hits: tuple[Hit, ...]

    @property
    def text(self) -> T:
        """The redacted text; another name of ``value``."""
        return self.value


class Redactor:
    """Finds and hides secrets. Immutable; one can serve all threads.

    Redacting twice changes nothing more, but for text that touches a registered value: the
    placeholder gives it a word boundary, so that a token there is found only the second time.
    """

    __slots__ = ("_clean", "_engine")

    def __init__(
        self,
        rule_sets: Sequence[str] = ("secrets",),
        *,
        extra_values: Iterable[str | bytes] = (),
        host_roots: Sequence[str] | None = None,
        rules: Sequence[Rule] = (),
    ) -> None:
        """Compile the named sets, registered values and further ``rules``.

        ``host_roots`` replaces the roots of `host-paths` (absolute, such as `/home`); raises
        ``ValueError`` for unknown sets, unusable patterns and values too short to look for.
        """
        chosen = [rule for name in rule_sets for rule in load_rule_set(name)]
        if host_roots is not None:
            chosen = [
                rule if rule.id != "host-path" else _host_rule(rule, host_roots) for rule in chosen
            ]
        self._clean: set[str] = set()
        self._engine = Engine([*value_rules(extra_values), *chosen, *rules])

    @property
    def hold_bytes(self) -> int:
        """How much a stream holds back at most, beside the chunk it was given last."""
        return self._engine.hold_bytes

    def bytes(self, data: bytes) -> Redacted[bytes]:
        """Redact bytes of any encoding that keeps ASCII."""
        spans = merge(self._engine.scan(data))
        if not spans:
            return Redacted(data, ())
        return Redacted(_replace(data, spans), tuple(Hit(s.rule_id, s.start, s.end) for s in spans))

    def text(self, text: str) -> Redacted[str]:
        """Redact a text; lone surrogates and NUL are kept."""
        if text in self._clean:
            return Redacted(text, ())
        data = text.encode("utf-8", "surrogatepass")
        spans = merge(self._engine.scan(data))
        if not spans:
            self._remember(text)
            return Redacted(text, ())
        redacted = _replace(data, spans).decode("utf-8", "surrogatepass")
        if len(data) != len(text):
            spans = _in_characters(data, spans)
        return Redacted(redacted, tuple(Hit(s.rule_id, s.start, s.end) for s in spans))

    def _remember(self, text: str) -> None:
        """Keep a short text that has nothing to hide: names of fields and fixed words come in every record."""
        if len(text) <= _SHORT:
            if len(self._clean) >= _MOST_CLEAN:
                self._clean.clear()
            self._clean.add(text)

    def value(self, value: object) -> Redacted[Any]:
        """Redact a JSON-like value; a new one is returned, of lists, tuples and dicts.

        Beside the text rules, values under telling keys are replaced whole, and so are the
        arguments after options such as `--with-token`.
        """
        hits: list[Hit] = []
        return Redacted(self._value(value, hits, MAX_DEPTH), tuple(hits))

    def stream(self) -> StreamRedactor:
        """Return a redactor for one text that arrives in chunks."""
        return StreamRedactor(self._engine)

    def byte_stream(self) -> ByteStreamRedactor:
        """Return a redactor for bytes that arrive in chunks."""
        return ByteStreamRedactor(self._engine)

    def _value(self, value: object, hits: list[Hit], depth: int) -> object:
        if isinstance(value, str):
            return _collect(self.text(value), hits)
        if isinstance(value, bytes | bytearray):
            return _collect(self.bytes(bytes(value)), hits)
        if not isinstance(value, Mapping | list | tuple):
            return value
        if not depth:
            return TOO_DEEP
        if isinstance(value, Mapping):
            return self._mapping(value, hits, depth - 1)
        items = self._items(value, hits, depth - 1)
        return tuple(items) if isinstance(value, tuple) else items

    def _mapping(self, value: Mapping[object, object], hits: list[Hit], depth: int) -> object:
        result: dict[object, object] = {}
        for key, item in value.items():
            shown = _collect(self.text(key), hits) if isinstance(key, str) else key
            if isinstance(key, str) and names.names_secret(key) and _can_be_secret(key, item):
                result[_free_key(result, shown)] = _hide(item, hits)
            else:
                result[_free_key(result, shown)] = self._value(item, hits, depth)
        return result

    def _items(self, value: Sequence[object], hits: list[Hit], depth: int) -> list[object]:
        secret = names.secret_arguments(value)
        return [
            _hide(item, hits) if at in secret else self._value(item, hits, depth)
            for at, item in enumerate(value)
        ]


def _replace(data: bytes, spans: Sequence[Span]) -> bytes:
    parts: list[bytes] = []
    at = 0
    for span in spans:
        parts += (data[at : span.start], PLACEHOLDER.encode())
        at = span.end
    return b"".join([*parts, data[at:]])


def _in_characters(data: bytes, spans: Sequence[Span]) -> list[Span]:
    """Return the spans with positions in characters; one pass over the text."""
    result = []
    at = characters = 0
    for span in spans:
        start = characters + _count_characters(data[at : span.start])
        characters = start + _count_characters(data[span.start : span.end])
        at = span.end
        result.append(Span(span.rule_id, start, characters))
    return result


def _count_characters(data: bytes) -> int:
    return len(data.decode("utf-8", "surrogatepass"))


def _collect(redacted: Redacted[T], hits: list[Hit]) -> T:
    hits.extend(redacted.hits)
    return redacted.value


def _can_be_secret(key: str, item: object) -> bool:
    if item is None or isinstance(item, bool) or item in ("", b""):
        return False
    return not (isinstance(item, int | float) and names.names_count(key))


def _hide(item: object, hits: list[Hit]) -> str:
    if item != PLACEHOLDER:
        hits.append(Hit("secret-name", 0, len(item) if isinstance(item, str | bytes) else 0))
    return PLACEHOLDER


def _free_key(taken: Mapping[object, object], key: object) -> object:
    """Return ``key``, with a number where redaction made two keys the same."""
    number = 2
    free = key
    while free in taken:
        free = f"{key}#{number}"
        number += 1
    return free


def _host_rule(rule: Rule, roots: Sequence[str]) -> Rule:
    """Return the host path rule for other roots."""
    for root in roots:
        if not root.startswith("/") or not root.strip("/"):
            raise ValueError(f"a host root must be an absolute directory below /: {root!r}")
    shipped = rule.regex.partition("(?:/private)?/(?:")[2].partition(")/")[0]
    ours = "|".join(_quote(root.strip("/")) for root in roots)
    regex = rule.regex.replace(f"(?:{shipped})/", f"(?:{ours})/")
    compile_pattern(regex)
    return dataclasses.replace(rule, regex=regex)


def _quote(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode())
