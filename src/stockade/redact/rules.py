"""Redaction rules as data: what a rule is, and how rule sets are read and checked.

The shipped sets are the TOML files beside this module. Nothing here searches a text.

A rule finds a secret by a *head* of bounded length (``regex``), so that a stream knows how long to
wait, and may go on over any number of ``tail`` units and one ``finish``. A tail's units must be
told apart by their first byte, so that where chunks end makes no difference.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import re2

from stockade.redact._width import max_width

#: The longest head of a rule from data. A stream holds back as much; JWT headers need 420 bytes.
MAX_HEAD_BYTES = 1024
#: The longest ``tail`` unit and ``finish``: the END line of a private key needs 62 bytes.
MAX_TAIL_BYTES = 64

#: Names of the shipped sets, and their files.
RULE_SETS = {"secrets": "secrets.toml", "host-paths": "host_paths.toml"}

_FIELDS = frozenset(
    ["id", "regex", "keywords", "tail", "finish", "severity", "entropy", "allow", "description"]
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of secret. Patterns are RE2 syntax over bytes.

    The first group that took part (else the whole head) is replaced, with the tail after it.
    ``keywords``: one of them, in any case, is in each head; none means that the rule always runs.
    ``allow``: a head of which one of these matches the whole group is no secret.
    """

    id: str
    regex: str
    keywords: tuple[str, ...] = ()
    tail: str | None = None
    finish: str | None = None
    severity: str = "high"
    entropy: float = 0.0
    allow: tuple[str, ...] = ()
    description: str = ""
    head: Any = field(init=False, repr=False, compare=False)
    tails: Any = field(init=False, repr=False, compare=False)
    ending: Any = field(init=False, repr=False, compare=False)
    allowed: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the patterns; raises ``ValueError`` for one that cannot be used."""
        put = functools.partial(object.__setattr__, self)
        put("head", compile_pattern(self.regex))
        put("tails", compile_pattern(f"(?:{self.tail})*") if self.tail else None)
        put("ending", compile_pattern(self.finish) if self.finish else None)
        put("allowed", compile_pattern("|".join(self.allow)) if self.allow else None)

    def accepts(self, secret: bytes) -> bool:
        """Say whether what the head found is a secret, by allow-list and entropy."""
        if self.allowed is not None and self.allowed.fullmatch(secret):
            return False
        return not self.entropy or shannon_entropy(secret) >= self.entropy


def compile_pattern(pattern: str) -> Any:  # noqa: ANN401 - re2 has no types
    """Return the compiled pattern over bytes; raises ``ValueError`` where RE2 refuses it."""
    options = re2.Options()
    # Latin-1 means bytes: lone surrogates, NUL and broken UTF-8 are text like any other.
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    # As much as the program and its automaton may take; the default of 8 MiB fits 100 long values.
    options.max_mem = 32 << 20
    try:
        return re2.compile(pattern.encode("latin-1"), options)
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"pattern {pattern!r} cannot be used: {error}") from error


def load_rule_set(name: str) -> tuple[Rule, ...]:
    """Return a shipped rule set; raises ``ValueError`` for a name that is not in RULE_SETS."""
    if name not in RULE_SETS:
        raise ValueError(f"unknown redaction rule set {name!r}; there are: {', '.join(RULE_SETS)}")
    return _shipped(name)


@functools.cache
def _shipped(name: str) -> tuple[Rule, ...]:
    return parse_rules((resources.files("stockade.redact") / RULE_SETS[name]).read_text("utf-8"))


def parse_rules(toml: str) -> tuple[Rule, ...]:
    """Return the rules of a TOML text: ``[macros]`` (name = pattern) and ``[[rule]]`` tables.

    ``<<name>>`` in a pattern stands for a macro. Raises ``ValueError`` that names the rule.
    """
    data = tomllib.loads(toml)
    unknown = set(data) - {"macros", "rule"}
    if unknown:
        raise ValueError(f"unknown keys in rules: {sorted(unknown)}")
    macros: dict[str, str] = data.get("macros", {})
    rules = tuple(_parse_rule(table, macros) for table in data.get("rule", []))
    _refuse_repeated(rules)
    return rules


def _parse_rule(table: Mapping[str, Any], macros: Mapping[str, str]) -> Rule:
    name = table.get("id")
    unknown = set(table) - _FIELDS
    if unknown or not isinstance(name, str):
        raise ValueError(f"redaction rule {name!r}: needs an id, knows no {sorted(unknown)}")
    values: dict[str, Any] = {
        key: tuple(_expand(item, macros) for item in value)
        if isinstance(value, list)
        else _expand(value, macros)
        for key, value in table.items()
    }
    try:
        check_width(values["regex"], MAX_HEAD_BYTES)
        check_width(values.get("tail", ""), MAX_TAIL_BYTES)
        check_width(values.get("finish", ""), MAX_TAIL_BYTES)
        return Rule(**values)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"redaction rule {name!r}: {error}") from error


def check_width(pattern: str, limit_bytes: int) -> None:
    """Raise ``ValueError`` for a pattern that can match more than ``limit_bytes``."""
    width = max_width(pattern)
    if width > limit_bytes:
        raise ValueError(f"pattern must match at most {limit_bytes} bytes: {pattern!r}")


def _expand(value: object, macros: Mapping[str, str]) -> object:
    if not isinstance(value, str):
        return value
    for name, pattern in macros.items():
        value = value.replace(f"<<{name}>>", pattern)
    return value


def _refuse_repeated(rules: Iterable[Rule]) -> None:
    repeated = [name for name, count in Counter(rule.id for rule in rules).items() if count > 1]
    if repeated:
        raise ValueError(f"repeated redaction rule ids: {repeated}")


def shannon_entropy(data: bytes) -> float:
    """Return the entropy of ``data`` in bits per byte."""
    total = len(data)
    return -sum(n / total * math.log2(n / total) for n in Counter(data).values())
