"""Frames from a peer that we do not trust: every shape that is not exactly right is a `ProtocolError`."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.errors import ProtocolError
from stockade.wire import codec, frames, launch
from stockade.wire.codec import decode_struct, encode_struct, fields_of
from tests.wire.samples import LAUNCH, MESSAGES

MESSAGE_TYPES = [*{**frames.TO_CELL, **frames.FROM_CELL}.values()]
HEADER = frames.HEADER


def _values(of: codec.Codec) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of one codec."""
    match of:
        case codec._Errno():
            return st.integers(0, codec.MAX_ERRNO)
        case codec._Int(layout=layout):
            return _integers(layout)
        case codec.ListOf(item=item):
            return st.lists(_values(item), max_size=4).map(tuple)
        case codec.StructOf(type=struct_type):
            return _structs(struct_type)
        case launch.StepCodec():
            return st.one_of(*map(_structs, launch.STEPS.values()))
        case _:
            return _SCALARS[type(of)]


_SCALARS: dict[type, st.SearchStrategy[Any]] = {
    codec._Bool: st.booleans(),
    codec._Bytes: st.binary(max_size=64),
    codec._Str: st.text(st.characters(exclude_categories=["Cs"]), max_size=16),
}


def _integers(layout: struct.Struct) -> st.SearchStrategy[int]:
    bits = 8 * layout.size
    low = -(1 << (bits - 1)) if layout.format.lstrip("<").islower() else 0
    return st.integers(low, low + (1 << bits) - 1)


def _structs(struct_type: type) -> st.SearchStrategy[Any]:
    return st.builds(struct_type, **{name: _values(of) for name, of in fields_of(struct_type)})


def _decoder(limit_bytes: int = frames.MAX_TO_CELL) -> frames.Decoder:
    return frames.Decoder({**frames.TO_CELL, **frames.FROM_CELL}, limit_bytes)


@pytest.mark.parametrize("struct_type", MESSAGE_TYPES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_message_survives_its_encoding(struct_type: type, data: st.DataObject) -> None:
    """Decoding what was encoded gives the same message and the same id."""
    message = data.draw(_structs(struct_type))
    request_id = data.draw(st.integers(0, 2**32 - 1))
    assert _decoder().feed(frames.encode(request_id, message)) == [
        frames.Frame(request_id, message)
    ]


@given(plan=_structs(launch.Launch))
def test_a_plan_survives_its_encoding(plan: launch.Launch) -> None:
    """Decoding an encoded plan gives the same plan, with every kind of step."""
    assert decode_struct(launch.Launch, encode_struct(plan)) == plan


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_body_cut_at_any_byte_is_an_error(name: str) -> None:
    """No shorter body of the same kind is taken for a message."""
    message = MESSAGES[name][1]
    body = encode_struct(message)
    assert not [cut for cut in range(len(body)) if not _is_refused(type(message), body[:cut])]


def test_a_plan_cut_at_any_byte_is_an_error() -> None:
    """No shorter body is taken for a plan."""
    body = encode_struct(LAUNCH)
    assert not [cut for cut in range(len(body)) if not _is_refused(launch.Launch, body[:cut])]


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_trailing_byte_is_an_error(name: str) -> None:
    """A longer body means that the two sides disagree."""
    message = MESSAGES[name][1]
    assert _is_refused(type(message), encode_struct(message) + b"\0")


def _is_refused(struct_type: type[Any], body: bytes) -> bool:
    frame = HEADER.pack(5 + len(body), getattr(struct_type, "kind", 0), 1) + body
    try:
        if struct_type is launch.Launch:
            decode_struct(struct_type, body)
        else:
            _decoder().feed(frame)
    except ProtocolError:
        return True
    return False


@given(st.binary(max_size=256))
def test_garbage_is_a_frame_or_a_protocol_error(data: bytes) -> None:
    """Bytes of any kind raise nothing but `ProtocolError`, and what is taken encodes back to the same bytes."""
    try:
        found = _decoder(512).feed(data)
    except ProtocolError:
        return
    encoded = b"".join(frames.encode(frame.id, frame.message) for frame in found)
    assert data.startswith(encoded)


@pytest.mark.parametrize("struct_type", MESSAGE_TYPES, ids=lambda kind: kind.__name__)
@given(body=st.binary(max_size=128))
def test_a_body_of_garbage_is_refused_or_canonical(struct_type: type[Any], body: bytes) -> None:
    """A value has one encoding: a body that is taken is the one that we would have sent."""
    try:
        message = decode_struct(struct_type, body)
    except ProtocolError:
        return
    assert encode_struct(message) == body


@given(cuts=st.lists(st.integers(1, 40), min_size=1))
def test_frames_arrive_whole_however_the_stream_is_cut(cuts: list[int]) -> None:
    """The kernel may hand over any part of the stream at a time."""
    stream = b"".join(frames.encode(*value) for value in MESSAGES.values())
    decoder, found, start = _decoder(), [], 0
    while start < len(stream):
        size = cuts[start % len(cuts)]
        found += decoder.feed(stream[start : start + size])
        start += size
    assert [(frame.id, frame.message) for frame in found] == list(MESSAGES.values())


@pytest.mark.parametrize("length", [0, 4, frames.MAX_FROM_CELL + 1, 2**32 - 1])
def test_a_frame_of_impossible_length_is_an_error_at_its_header(length: int) -> None:
    """A length is refused before any of its bytes arrived, so nothing of that size is kept."""
    with pytest.raises(ProtocolError, match=f"frame of {length} bytes"):
        _decoder(frames.MAX_FROM_CELL).feed(HEADER.pack(length, frames.Ok.kind, 1))


def test_the_longest_frame_is_taken() -> None:
    """The cap is the last length that is allowed, not the first that is refused."""
    data = bytes(frames.MAX_FROM_CELL - 5 - 4)
    assert _decoder(frames.MAX_FROM_CELL).feed(frames.encode(1, frames.Data(data))) == [
        frames.Frame(1, frames.Data(data))
    ]


def test_an_unknown_kind_is_an_error() -> None:
    """Kinds are a closed table."""
    with pytest.raises(ProtocolError, match="unknown message kind 255"):
        _decoder().feed(HEADER.pack(5, 255, 1))


@pytest.mark.parametrize("kind", sorted(set(frames.TO_CELL) - set(frames.FROM_CELL)))
def test_a_request_from_the_cell_is_an_error(kind: int) -> None:
    """The host takes answers only: a cell that sends requests is broken or hostile."""
    with pytest.raises(ProtocolError, match=f"unknown message kind {kind}"):
        frames.Decoder(frames.FROM_CELL, frames.MAX_FROM_CELL).feed(HEADER.pack(5, kind, 1))


def test_an_unknown_step_is_an_error() -> None:
    """Ops of steps are a closed table."""
    with pytest.raises(ProtocolError, match="unknown step op 200"):
        launch.StepCodec().read(codec.Reader(bytes([200])))


@pytest.mark.parametrize("count", [2, 1 << 16, 2**32 - 1])
def test_a_list_longer_than_its_frame_is_an_error(count: int) -> None:
    """A hostile count allocates nothing."""
    with pytest.raises(ProtocolError, match=f"list of {count} items"):
        decode_struct(frames.Entries, struct.pack("<IB", count, 0))


def test_a_flag_other_than_0_or_1_is_an_error() -> None:
    """A value has one encoding."""
    with pytest.raises(ProtocolError, match="flag is 2"):
        decode_struct(frames.Signal, bytes([15, 2]))


def test_text_that_is_not_utf_8_is_an_error() -> None:
    """Texts are UTF-8; what may be any bytes has the type Bytes."""
    with pytest.raises(ProtocolError, match="not UTF-8"):
        decode_struct(frames.Error, struct.pack("<HII", 1, 2, 1) + b"\xff")


@pytest.mark.parametrize("value", [-1, 256])
def test_an_integer_that_does_not_fit_is_an_error(value: int) -> None:
    """Our own mistakes do not wrap around on the wire."""
    with pytest.raises(ValueError, match="not a number that the wire can carry"):
        encode_struct(frames.Signal(value, False))


def test_messages_are_frozen() -> None:
    """A message that was checked can't change before it is used."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        frames.Ping(1).number = 2  # type: ignore[misc]
