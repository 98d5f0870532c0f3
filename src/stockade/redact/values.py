"""Registered secret values: the rule that finds a known value in each form that texts give it.

Found: the value itself, with any of its characters percent-, JSON- or HTML-escaped; its hexadecimal
form; its base64 and URL-safe base64, also inside longer base64. Not found: reversed, encrypted,
compressed, encoded twice, or with characters put between.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

from stockade.redact.rules import Rule

#: A shorter value would hide half of every text.
MIN_VALUE_BYTES = 4
#: A longer one would hold back too much of a stream: each byte counts six times (``\\u0041``).
MAX_VALUE_BYTES = 4096
#: Inside longer base64, of a value shorter than this too few characters are certain.
_MIN_INNER_BYTES = 6

_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_JSON_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r"}
_HTML = {ord("&"): "amp", ord("<"): "lt", ord(">"): "gt", ord('"'): "quot", ord("'"): "#39"}


def value_rules(values: Iterable[str | bytes]) -> tuple[Rule, ...]:
    """Return one rule for each distinct registered value, longest first.

    Raises ``ValueError``, which does not contain the value, for one too short or too long.
    """
    distinct = {_to_bytes(value) for value in values}
    return tuple(
        _value_rule(value, number)
        for number, value in enumerate(sorted(distinct, key=lambda v: (-len(v), v)))
    )


def _to_bytes(value: str | bytes) -> bytes:
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
    if not MIN_VALUE_BYTES <= len(data) <= MAX_VALUE_BYTES:
        raise ValueError(
            f"a secret value must have {MIN_VALUE_BYTES} to {MAX_VALUE_BYTES} bytes, not {len(data)}"
        )
    return data


def _value_rule(value: bytes, number: int) -> Rule:
    forms = [_escaped(value), f"(?i:{value.hex()})", *_base64_forms(value)]
    regex = "|".join(f"(?:{form})" for form in forms)
    return Rule(id=f"registered-value-{number}", regex=regex, severity="critical")


def _escaped(value: bytes) -> str:
    """Return a pattern for the value with each character as it is or escaped in some way."""
    text = value.decode("utf-8", "replace")
    if text.encode() != value:
        return "".join(_byte_forms(byte) for byte in value)
    return "".join(_character_forms(char) for char in text)


def _byte_forms(byte: int) -> str:
    return f"(?:\\x{byte:02x}|%(?i:{byte:02x}))"


def _character_forms(char: str) -> str:
    code = ord(char)
    raw = "".join(f"\\x{byte:02x}" for byte in char.encode())
    percent = "".join(f"%(?i:{byte:02x})" for byte in char.encode())
    if code in _UNRESERVED:
        return f"(?:{raw}|{percent})"
    units = char.encode("utf-16-be").hex()
    unicode = "".join(f"\\\\{{1,3}}u(?i:{units[i : i + 4]})" for i in range(0, len(units), 4))
    # Up to three backslashes before: JSON inside JSON. A backslash itself is then four.
    forms = [f"\\\\{{0,3}}{raw}", percent, unicode]
    if code in _JSON_SHORT:
        forms.append(f"\\\\{{1,3}}{_JSON_SHORT[code]}")
    if code in _HTML:
        forms.append(f"&{_HTML[code]};")
    if char == " ":
        forms.append("\\+")
    return f"(?:{'|'.join(forms)})"


def _base64_forms(value: bytes) -> list[str]:
    """Return patterns for the value alone in base64, and at each of three places in longer base64."""
    whole = base64.b64encode(value).decode().rstrip("=")
    forms = [f"{_either_alphabet(whole)}={{0,2}}"]
    if len(value) >= _MIN_INNER_BYTES:
        forms += [_either_alphabet(_inner_base64(value, shift)) for shift in range(3)]
    return forms


def _inner_base64(value: bytes, shift: int) -> str:
    """Return the characters that base64 has for ``value`` whatever stands around it."""
    encoded = base64.b64encode(b"\0" * shift + value).decode()
    first = (0, 2, 3)[shift]
    complete = (shift + len(value)) * 8 // 6
    return encoded[first:complete]


def _either_alphabet(text: str) -> str:
    return text.replace("+", "[+\\-]").replace("/", "[/_]")
