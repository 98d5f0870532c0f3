"""Build hook: compile `stockade-cell` and put it into the wheel.

It runs cargo, refuses a binary that is not static or not small, and names the wheel after the machine.
It does not choose compiler flags: those are in `crates/stockade-cell` (Cargo.toml and .cargo/config.toml),
so that cargo by hand and cargo from here build the same program.
"""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CELL_LIMIT_BYTES = 2 * 1024 * 1024
"""A static glibc hello is 1.2 MB; every sandbox maps this file, so it has to stay small."""

PT_INTERP = 3
"""Program header that names a dynamic loader; a static program, PIE or not, has none."""


class CellBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds `stockade/_bin/stockade-cell` to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the cell, check it, and register it with the wheel."""
        if sys.platform != "linux":
            raise SystemExit("stockade: builds on Linux only; the walls are Linux kernel features.")
        root = Path(self.root)
        cell = compile_cell(root / "crates" / "stockade-cell")
        check_cell(cell)
        if version == "editable":
            # The .pth file makes src/ the package, so the program has to be there too (git ignores it).
            cell = install_beside_source(cell, root / "src" / "stockade" / "_bin")
        else:
            build_data["force_include"][str(cell)] = "stockade/_bin/stockade-cell"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"


def compile_cell(crate: Path) -> Path:
    """Run cargo in the crate and return the path of the release binary."""
    cargo = find_cargo()
    triple = f"{platform.machine()}-unknown-linux-gnu"
    target_dir = crate / "target"
    # Flags from the environment would replace those of .cargo/config.toml, and with them `crt-static`.
    environment = {
        k: v for k, v in os.environ.items() if k not in {"RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"}
    }
    command = [
        cargo,
        "build",
        "--release",
        "--locked",
        "--target",
        triple,
        "--target-dir",
        str(target_dir),
    ]
    # The working directory matters: cargo reads .cargo/config.toml from there.
    finished = subprocess.run(command, cwd=crate, env=environment, check=False)
    if finished.returncode != 0:
        raise SystemExit(
            f"stockade: cargo could not build {crate} (exit {finished.returncode}); its output is above."
        )
    return target_dir / triple / "release" / "stockade-cell"


def find_cargo() -> str:
    """Path of cargo, also where rustup put it without touching PATH."""
    cargo = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo" / "bin"))
    if cargo is None:
        raise SystemExit(
            "stockade: building from source needs Rust, and no `cargo` was found. Install it"
            " (Debian 12: `apt install cargo-web`; anywhere: https://rustup.rs), or install a wheel made by"
            " `make wheel`, which needs no Rust."
        )
    return cargo


def check_cell(cell: Path) -> None:
    """Refuse a binary that needs the host's loader or libraries, or that has grown too large."""
    image = cell.read_bytes()
    if has_interpreter(image):
        raise SystemExit(
            f"stockade: {cell} is not static; it could not start inside an image with another libc."
        )
    if len(image) >= CELL_LIMIT_BYTES:
        raise SystemExit(
            f"stockade: {cell} has {len(image)} bytes; the limit is {CELL_LIMIT_BYTES}."
        )


def has_interpreter(image: bytes) -> bool:
    """Whether a 64-bit little-endian ELF image asks for a dynamic loader."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise SystemExit("stockade: cargo's output is not a 64-bit little-endian ELF file.")
    (table,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    return any(
        struct.unpack_from("<I", image, table + i * size)[0] == PT_INTERP for i in range(count)
    )


def install_beside_source(cell: Path, directory: Path) -> Path:
    """Copy the cell next to the sources; the rename keeps a running cell's file intact."""
    directory.mkdir(exist_ok=True)
    fresh = directory / "stockade-cell.new"
    shutil.copy2(cell, fresh)
    return fresh.rename(directory / "stockade-cell")
