"""How many bytes a pattern can match at most; needed because a stream may only wait for so much.

It reads the part of RE2's syntax that rules use and refuses the rest; it does not match anything.
"""

from __future__ import annotations

UNBOUNDED = 1 << 30

_ZERO_WIDTH_ESCAPES = frozenset("bBAz")


def max_width(pattern: str) -> int:
    """Return the longest match of ``pattern`` in bytes, ``UNBOUNDED`` where there is no end.

    Raises ``ValueError`` for syntax it does not know.
    """
    reader = _Reader(pattern)
    width = _alternation(reader)
    if reader.peek():
        raise ValueError(f"unbalanced ')' in pattern {pattern!r}")
    return min(width, UNBOUNDED)


class _Reader:
    """A pattern and how far it has been read."""

    __slots__ = ("at", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        char = self.peek()
        if not char:
            raise ValueError(f"pattern ends too early: {self.text!r}")
        self.at += 1
        return char

    def until(self, end: str) -> str:
        start = self.at
        while self.take() != end:
            pass
        return self.text[start : self.at - 1]


def _alternation(reader: _Reader) -> int:
    width = _sequence(reader)
    while reader.peek() == "|":
        reader.take()
        width = max(width, _sequence(reader))
    return width


def _sequence(reader: _Reader) -> int:
    width = 0
    while reader.peek() not in ("", "|", ")"):
        width += _atom(reader) * _repeats(reader)
    return width


def _atom(reader: _Reader) -> int:
    char = reader.take()
    if char == "(":
        return _group(reader)
    if char == "[":
        _skip_class(reader)
        return 1
    if char == "\\":
        return _escape(reader)
    if char in "^$":
        return 0
    if char in "*+?":
        raise ValueError(f"nothing to repeat in {reader.text!r}")
    return len(char.encode())


def _group(reader: _Reader) -> int:
    if reader.peek() == "?":
        reader.take()
        flags = ""
        while reader.peek() not in (":", ")"):
            flags += reader.take()
        if flags.strip("ims-"):
            raise ValueError(f"group (?{flags} is not for rules: {reader.text!r}")
        if reader.take() == ")":
            return 0
    width = _alternation(reader)
    if reader.take() != ")":
        raise ValueError(f"missing ')' in {reader.text!r}")
    return width


def _escape(reader: _Reader) -> int:
    char = reader.take()
    if char in _ZERO_WIDTH_ESCAPES:
        return 0
    if char == "x":
        if reader.peek() == "{":
            reader.until("}")
        else:
            reader.take()
            reader.take()
    elif char in "pPQ":
        raise ValueError(f"escape \\{char} is not for rules: {reader.text!r}")
    return 1


def _skip_class(reader: _Reader) -> None:
    if reader.peek() == "^":
        reader.take()
    if reader.peek() == "]":
        reader.take()
    while (char := reader.take()) != "]":
        if char == "\\":
            reader.take()


def _repeats(reader: _Reader) -> int:
    """Return how often the atom before may occur, having read its quantifier."""
    times = 1
    while (char := reader.peek()) and char in "*+?{":
        reader.take()
        if char == "{":
            times *= _braces(reader.until("}"), reader.text)
        elif char != "?":
            times = UNBOUNDED
    return times


def _braces(text: str, pattern: str) -> int:
    low, comma, high = text.partition(",")
    bound = high if comma else low
    if not low.isdigit() or (bound and not bound.isdigit()):
        raise ValueError(f"{{{text}}} is not a repeat in {pattern!r}")
    return int(bound) if bound else UNBOUNDED
