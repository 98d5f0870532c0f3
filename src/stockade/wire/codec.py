"""Encoding of single values: fixed-width integers, byte strings, lists, structs.

Everything is little-endian. A value has one encoding, and a decoder takes no other: a flag is 0 or 1,
a text is UTF-8, nothing may follow the last field. This module knows no message and does no I/O.
"""

from __future__ import annotations

import dataclasses
import struct
import typing
from typing import Annotated, Any, Protocol, TypeVar

from stockade.errors import ProtocolError

T = TypeVar("T")

# A list's count is checked against the bytes that are left (each item takes at least one), so a
# hostile count can't make us allocate more than the frame that carried it.
_MIN_ITEM_BYTES = 1

#: The kernel's own bound (include/linux/err.h). strerror(3) takes an int: a larger number is no errno but an attack.
MAX_ERRNO = 4095


class Reader:
    """Reads values from one received body; raises `ProtocolError` on the first that does not fit."""

    __slots__ = ("_buffer", "_offset")

    def __init__(self, buffer: bytes) -> None:
        """Start at the first byte of `buffer`."""
        self._buffer = buffer
        self._offset = 0

    @property
    def left(self) -> int:
        """Bytes that have not been read."""
        return len(self._buffer) - self._offset

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if count > self.left:
            raise ProtocolError(detail=f"truncated: wanted {count} bytes, {self.left} left")
        start = self._offset
        self._offset = start + count
        return self._buffer[start : self._offset]

    def unpack(self, layout: struct.Struct) -> Any:  # noqa: ANN401 - the caller knows the layout's type
        """Return the single value that `layout` describes."""
        return layout.unpack(self.take(layout.size))[0]

    def finish(self) -> None:
        """Raise unless every byte was read: trailing bytes mean that the two sides disagree."""
        if self.left:
            raise ProtocolError(detail=f"{self.left} trailing bytes")


class Codec(Protocol):
    """How one value is written to and read from a body."""

    def write(self, out: bytearray, value: Any) -> None:  # noqa: ANN401
        """Append the encoding of `value`."""

    def read(self, reader: Reader) -> Any:  # noqa: ANN401
        """Read one value."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Int:
    layout: struct.Struct

    def write(self, out: bytearray, value: int) -> None:
        try:
            out += self.layout.pack(value)
        except struct.error as error:
            # Our caller's mistake: a ProtocolError would blame the peer.
            raise ValueError(f"not a number that the wire can carry: {value!r}") from error

    def read(self, reader: Reader) -> int:
        return int(reader.unpack(self.layout))


class _Errno(_Int):
    def read(self, reader: Reader) -> int:
        number = super().read(reader)
        if number > MAX_ERRNO:
            raise ProtocolError(detail=f"errno {number}")
        return number


class _Bool:
    def write(self, out: bytearray, value: bool) -> None:  # noqa: FBT001
        out.append(1 if value else 0)

    def read(self, reader: Reader) -> bool:
        byte = reader.take(1)[0]
        if byte > 1:
            raise ProtocolError(detail=f"flag is {byte}, not 0 or 1")
        return byte == 1


_LENGTH = struct.Struct("<I")


class _Bytes:
    def write(self, out: bytearray, value: bytes) -> None:
        out += _LENGTH.pack(len(value))
        out += value

    def read(self, reader: Reader) -> bytes:
        return reader.take(reader.unpack(_LENGTH))


class _Str:
    def write(self, out: bytearray, value: str) -> None:
        _BYTES.write(out, value.encode())

    def read(self, reader: Reader) -> str:
        try:
            return _BYTES.read(reader).decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(detail="text is not UTF-8") from error


_BYTES = _Bytes()


@dataclasses.dataclass(frozen=True, slots=True)
class ListOf:
    """A count and that many items; the Python value is a tuple."""

    item: Codec

    def write(self, out: bytearray, value: tuple[Any, ...]) -> None:
        """Append the count and the items."""
        out += _LENGTH.pack(len(value))
        for entry in value:
            self.item.write(out, entry)

    def read(self, reader: Reader) -> tuple[Any, ...]:
        """Read the count, check it against what is left, then read the items."""
        count = reader.unpack(_LENGTH)
        if count * _MIN_ITEM_BYTES > reader.left:
            raise ProtocolError(detail=f"list of {count} items in {reader.left} bytes")
        return tuple(self.item.read(reader) for _ in range(count))


@dataclasses.dataclass(frozen=True, slots=True)
class StructOf:
    """The fields of a dataclass in their order, without names."""

    type: type

    def write(self, out: bytearray, value: object) -> None:
        """Append each field."""
        for name, codec in fields_of(self.type):
            codec.write(out, getattr(value, name))

    def read(self, reader: Reader) -> object:
        """Read each field and build the dataclass."""
        return self.type(**{name: codec.read(reader) for name, codec in fields_of(self.type)})


U8 = Annotated[int, _Int(struct.Struct("<B"))]
U16 = Annotated[int, _Int(struct.Struct("<H"))]
U32 = Annotated[int, _Int(struct.Struct("<I"))]
U64 = Annotated[int, _Int(struct.Struct("<Q"))]
I32 = Annotated[int, _Int(struct.Struct("<i"))]
#: A u32 on the wire.
ErrnoU32 = Annotated[int, _Errno(struct.Struct("<I"))]
Bool = Annotated[bool, _Bool()]
Bytes = Annotated[bytes, _BYTES]
Str = Annotated[str, _Str()]
Strs = Annotated[tuple[str, ...], ListOf(_Str())]
BytesList = Annotated[tuple[bytes, ...], ListOf(_BYTES)]

_fields_cache: dict[type, tuple[tuple[str, Codec], ...]] = {}


def fields_of(struct_type: type) -> tuple[tuple[str, Codec], ...]:
    """Return the (name, codec) pairs of a message or struct, in wire order."""
    cached = _fields_cache.get(struct_type)
    if cached is None:
        hints = typing.get_type_hints(struct_type, include_extras=True)
        names = [field.name for field in dataclasses.fields(struct_type)]
        cached = tuple((name, hints[name].__metadata__[0]) for name in names)
        _fields_cache[struct_type] = cached
    return cached


def encode_struct(value: object) -> bytes:
    """Return the encoding of a message's or struct's fields."""
    out = bytearray()
    StructOf(type(value)).write(out, value)
    return bytes(out)


def decode_struct(struct_type: type[T], body: bytes) -> T:
    """Decode exactly one struct from `body`; raises `ProtocolError` if anything is left or missing."""
    reader = Reader(body)
    value = StructOf(struct_type).read(reader)
    reader.finish()
    return typing.cast("T", value)
