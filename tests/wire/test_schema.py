"""The wire as text: any change of a message, step, number or limit fails here, so that someone decides on its version.

`python -m tests.wire.test_schema` writes schema.txt anew.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType

from stockade.wire import codec, frames, launch
from stockade.wire.codec import fields_of

SCHEMA = Path(__file__).parent / "schema.txt"


def schema() -> str:
    """Return every message, step, struct and constant of the wire."""
    lines = [
        f"protocol version {frames.PROTOCOL_VERSION}",
        f"header {frames.HEADER.format}",
        "",
        *_messages("to the cell", frames.TO_CELL),
        *_messages("from the cell", frames.FROM_CELL),
        *_messages("steps", launch.STEPS),
        *_messages("launch", {launch.Launch.kind: launch.Launch}),
        "structs",
        *sorted(f"  {_fields(kind)}" for kind in _structs()),
        "",
        "constants",
        *sorted(f"  {name} = {value}" for name, value in _constants(frames, launch)),
    ]
    return "\n".join(lines) + "\n"


def _messages(title: str, table: dict[int, type]) -> list[str]:
    return [title, *(f"  {number} {_fields(table[number])}" for number in sorted(table)), ""]


def _fields(struct_type: type) -> str:
    fields = ", ".join(f"{name}: {_name(of)}" for name, of in fields_of(struct_type))
    return f"{struct_type.__name__}({fields})"


def _name(of: codec.Codec) -> str:
    match of:
        case codec._Int(layout=layout):
            return f"{'i' if layout.format.lstrip('<').islower() else 'u'}{8 * layout.size}"
        case codec.ListOf(item=item):
            return f"[{_name(item)}]"
        case codec.StructOf(type=struct_type):
            return str(struct_type.__name__)
        case _:
            return type(of).__name__.lstrip("_").lower()


def _structs() -> Iterator[type]:
    """Yield what has no number: the parts of messages and plans."""
    numbered = {*frames.TO_CELL.values(), *frames.FROM_CELL.values(), *launch.STEPS.values()}
    for module in (frames, launch):
        for _, member in inspect.getmembers(module, inspect.isclass):
            ours = member.__module__ == module.__name__ and is_dataclass(member)
            if ours and member not in numbered | {launch.Launch, frames.Frame}:
                yield member


def _constants(*modules: ModuleType) -> Iterator[tuple[str, int]]:
    for module in modules:
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, int) and not name.startswith("_"):
                yield name, value


def test_the_wire_is_as_recorded() -> None:
    """A change here needs a decision: raise PROTOCOL_VERSION or not, golden frames, Rust, docs/protocol.md."""
    assert schema() == SCHEMA.read_text(encoding="utf-8")


if __name__ == "__main__":
    SCHEMA.write_text(schema(), encoding="utf-8")
