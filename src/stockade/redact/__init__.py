"""Hiding secrets and host paths: rules as data and an engine that is linear in the text.

Pure: nothing is read but the shipped rules, and what is found is not written anywhere.
"""

from __future__ import annotations

from stockade.redact.engine import PLACEHOLDER
from stockade.redact.redactor import Hit, Redacted, Redactor
from stockade.redact.rules import RULE_SETS, Rule, load_rule_set, parse_rules
from stockade.redact.stream import ByteStreamRedactor, StreamRedactor

__all__ = [
    "PLACEHOLDER",
    "RULE_SETS",
    "ByteStreamRedactor",
    "Hit",
    "Redacted",
    "Redactor",
    "Rule",
    "StreamRedactor",
    "load_rule_set",
    "parse_rules",
]
