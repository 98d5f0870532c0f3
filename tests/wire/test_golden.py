"""Golden frames: bytes on disk that Python and Rust both read, so that neither changes the wire alone.

The Rust half is `crates/stockade-cell/src/wire/golden.rs`.
"""

from __future__ import annotations

import pytest

from stockade.wire import frames, launch
from stockade.wire.codec import Reader, decode_struct
from tests.wire.samples import GOLDEN, LAUNCH, MESSAGES, STEPS, golden_files

KINDS = {**frames.TO_CELL, **frames.FROM_CELL}


def test_each_message_and_step_has_a_golden_frame() -> None:
    """A message or step that is added without a golden frame fails here."""
    covered = {type(message) for _, message in MESSAGES.values()} | {type(step) for step in STEPS}
    assert covered == {*KINDS.values(), *launch.STEPS.values()}


def test_golden_holds_these_files_and_no_other() -> None:
    """A file that no side reads proves nothing."""
    assert {path.name for path in GOLDEN.iterdir()} == set(golden_files())


@pytest.mark.parametrize("name", sorted(golden_files()))
def test_a_value_is_encoded_as_its_golden_frame(name: str) -> None:
    """What Python sends is byte for byte what is on disk."""
    assert golden_files()[name].hex(" ") == (GOLDEN / name).read_bytes().hex(" ")


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_golden_frame_is_decoded_as_its_value(name: str) -> None:
    """What Python reads of the bytes on disk is the value they were made from, with its id."""
    decoder = frames.Decoder(KINDS, frames.MAX_TO_CELL)
    assert decoder.feed((GOLDEN / f"{name}.bin").read_bytes()) == [frames.Frame(*MESSAGES[name])]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_a_golden_step_is_decoded_as_its_value(step: launch.Step) -> None:
    """Each step's op and fields are read back."""
    reader = Reader((GOLDEN / f"step-{type(step).__name__}.bin").read_bytes())
    assert launch.StepCodec().read(reader) == step
    reader.finish()


def test_the_golden_plan_is_decoded_as_its_value() -> None:
    """A whole plan is read back; its frame has kind 1 and id 0."""
    content = (GOLDEN / "Launch.bin").read_bytes()
    assert frames.HEADER.unpack_from(content) == (len(content) - 4, launch.Launch.kind, 0)
    assert decode_struct(launch.Launch, content[frames.HEADER.size :]) == LAUNCH
