"""Redacting what arrives in chunks: no part of a secret leaves early, and none is missed (C37)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.redact import PLACEHOLDER, Redactor
from tests.unit.redact.test_redactor import REGISTERED, TEXTS

BOTH = Redactor(("secrets", "host-paths"), extra_values=[REGISTERED])
KEY = "sk-ant-" + "api03-" + "abcdef1234567890" * 2


def _send(chunks: Iterable[str], redactor: Redactor = BOTH) -> str:
    stream = redactor.stream()
    return "".join([*(stream.feed(chunk) for chunk in chunks), stream.flush()])


@pytest.mark.parametrize("cut", range(1, len(KEY)))
def test_c37_key_cut_anywhere_is_hidden(cut: int) -> None:
    """A key split over two chunks at any place does not show."""
    assert _send(["Here is the key: " + KEY[:cut], KEY[cut:] + " done"]) == (
        f"Here is the key: {PLACEHOLDER} done"
    )


def test_c37_assignment_cut_in_name_and_value() -> None:
    """A secret that only its name tells is hidden, although the name came in pieces."""
    sent = _send(["A" * 495 + " MY_AP", "I_KEY", "=supersecretvalue123456789"])
    assert sent == "A" * 495 + f" MY_API_KEY={PLACEHOLDER}"


def test_c37_private_key_cut_in_its_header() -> None:
    """A PEM key in pieces is hidden."""
    chunks = ["-----BEGIN PRIV", "ATE KEY-----\nQUJD", "REVG\n-----END PRIV" + "ATE KEY-----"]
    assert _send(chunks) == PLACEHOLDER


def test_c37_key_by_single_characters_is_hidden() -> None:
    """One character a chunk makes no difference."""
    assert _send(KEY) == PLACEHOLDER


@given(TEXTS, st.lists(st.integers(1, 400), min_size=1, max_size=30))
def test_stream_equals_whole_text(text: str, sizes: list[int]) -> None:
    """However a text is cut, what comes out is the redaction of the whole."""
    padded = ("lorem ipsum " * 60) + text + ("dolor sit amet " * 60) + text
    chunks: list[str] = []
    at = 0
    while at < len(padded):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(padded[at : at + size])
        at += size
    assert _send(chunks) == BOTH.text(padded).text


@given(st.binary(max_size=3000), st.integers(1, 700))
def test_byte_stream_keeps_bytes_without_secrets(data: bytes, size: int) -> None:
    """Binary data passes a stream unchanged where nothing is hidden."""
    stream = Redactor(()).byte_stream()
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert b"".join([*map(stream.feed, chunks), stream.flush()]) == data


def test_ordinary_text_is_held_back_by_a_bounded_amount() -> None:
    """Of text without secrets, at most `hold_bytes` are waiting at any time."""
    stream, sent = BOTH.stream(), 0
    for count in range(1, 400):
        sent += len(stream.feed("plain text "))
        assert count * 11 - sent <= BOTH.hold_bytes
    assert Redactor().hold_bytes < 4096


def test_endless_secret_uses_no_memory() -> None:
    """A secret of 8 MB passes as one placeholder, and the buffer stays small."""
    stream = BOTH.stream()
    sent = stream.feed("x " + KEY)
    for _ in range(128):
        sent += stream.feed("A" * 65_536)
        assert len(stream._bytes._buffer) < 2 * 65_536
    assert sent + stream.feed(" end") + stream.flush() == f"x {PLACEHOLDER} end"


def test_stream_can_be_used_again_after_flush() -> None:
    """After a flush the next text starts afresh."""
    stream = BOTH.stream()
    first = stream.feed(KEY) + stream.flush()
    second = stream.feed("plain") + stream.flush()
    assert (first, second, stream.hits) == (PLACEHOLDER, "plain", 1)


def test_characters_are_never_cut() -> None:
    """Text of characters of several bytes comes out whole at any chunk size."""
    text = "é€😀" * 500
    assert _send([text[at : at + 7] for at in range(0, len(text), 7)]) == text
