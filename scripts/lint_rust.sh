#!/usr/bin/env bash
# rustfmt and clippy over the cell. Which lints are on, and why some are off, is in its Cargo.toml.
set -euo pipefail
cd "$(dirname "$0")/../crates/stockade-cell"

for tool in fmt clippy; do
    cargo "$tool" --version >/dev/null 2>&1 || {
        echo "lint: cargo $tool is missing: rustup component add rustfmt clippy" >&2
        exit 1
    }
done
cargo fmt --check
cargo clippy --quiet --locked --all-targets -- -D warnings
