"""Frames between host and cell: pure data, no I/O. The Rust side is `crates/stockade-cell/src/wire`."""
