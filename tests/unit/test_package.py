"""What the installed package holds: its public names and the program it ships."""

import stat
import struct
from pathlib import Path

import stockade

CELL = Path(stockade.__file__).parent / "_bin" / "stockade-cell"
PT_INTERP = 3


def _segment_types(image: bytes) -> set[int]:
    (table,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    return {struct.unpack_from("<I", image, table + i * size)[0] for i in range(count)}


def test_public_names_are_sorted_and_exist() -> None:
    """Whatever `__all__` promises can be imported, and is found by eye."""
    assert stockade.__all__ == sorted(stockade.__all__)
    assert all(hasattr(stockade, name) for name in stockade.__all__)


def test_the_shipped_cell_is_static() -> None:
    """The cell needs no loader: it starts inside an image with another libc, or none."""
    assert PT_INTERP not in _segment_types(CELL.read_bytes())


def test_the_check_for_static_sees_a_dynamic_program() -> None:
    """Positive control of the test above."""
    assert PT_INTERP in _segment_types(Path("/bin/sh").read_bytes())


def test_the_shipped_cell_is_executable_by_all_and_small() -> None:
    """Mode 0755, and under the 2 MB that the design allows."""
    status = CELL.stat()
    assert stat.S_IMODE(status.st_mode) == 0o755
    assert status.st_size < 2 * 1024 * 1024


def test_the_package_is_typed() -> None:
    """Type checkers of users read our annotations only with this file."""
    assert (Path(stockade.__file__).parent / "py.typed").exists()
