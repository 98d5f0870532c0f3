"""The base of every model of the policy file, and how its texts become values; no I/O.

A size is written `512M` (binary units) or as a number of bytes; a duration `60s`, `500ms`, `5m` or as seconds.
"""

from __future__ import annotations

import posixpath
import re
from typing import Annotated, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    Strict,
)

T = TypeVar("T")

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)(?:i?B)?", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h)", re.ASCII)
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}

# A path of this length is the kernel's own limit (PATH_MAX, with its final NUL).
_PATH_MAX = 4095


class Model(BaseModel):
    """A part of the policy: frozen, strict about types, and it refuses keys that it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True
    )


def _to_bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError("a size is a number of bytes, or a number with K, M, G or T, such as 512M")
    return int(match[1]) * _UNITS[match[2]]


def _to_ms(value: object) -> object:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return round(value * 1000)
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError("a duration is a number of seconds, or a number with ms, s, m or h")
    return round(float(match[1]) * _DURATION_MS[match[2]])


def check_int(value: object) -> object:
    """Refuse `true` and `1.0` for 1: a literal compares by value alone."""
    if type(value) is not int:
        raise ValueError("must be a whole number")
    return value


def _to_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def check_text(value: str) -> str:
    """Refuse control characters, invisible ones that change how text reads, and lone surrogates."""
    if any(not char.isprintable() for char in value):
        raise ValueError("must not contain control or invisible characters")
    return value


def check_path(value: str) -> str:
    """Refuse a path that is not absolute or that another reader could spell differently."""
    check_text(value)
    if not value.startswith("/"):
        raise ValueError("must be an absolute path")
    if len(value.encode()) > _PATH_MAX:
        raise ValueError(f"is longer than {_PATH_MAX} bytes")
    # normpath keeps a leading "//", which POSIX lets a system read as it likes.
    if value.startswith("//") or posixpath.normpath(value) != value:
        raise ValueError("must be written without '.', '..', doubled or trailing slashes")
    return value


#: A number of bytes; written `512M` or as an integer.
Size = Annotated[int, BeforeValidator(_to_bytes), Field(gt=0, lt=1 << 50)]
#: A number of milliseconds; written `60s` or as seconds. It is dumped with its unit, so that it can be read again.
Duration = Annotated[
    int,
    BeforeValidator(_to_ms),
    Field(gt=0, le=7 * 24 * 3_600_000),
    PlainSerializer(lambda value: f"{value}ms", return_type=str),
]
#: An absolute, normalised path.
Path = Annotated[str, AfterValidator(check_path)]
#: A text without control characters.
Text = Annotated[str, AfterValidator(check_text)]
#: A list of the file, kept as a tuple; an empty one is an error, for it says nothing.
Listed = Annotated[
    tuple[T, ...], Strict(strict=False), BeforeValidator(_to_tuple), Field(min_length=1)
]
