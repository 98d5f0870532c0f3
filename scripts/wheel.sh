#!/usr/bin/env bash
# Builds a wheel into dist/ and shows that it installs and starts where no Rust toolchain is to be found.
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf dist
.venv/bin/python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w dist .
wheel=$(echo dist/*.whl)

trial=$(mktemp -d /var/tmp/stockade-wheel-XXXXXX)
trap 'rm -rf "$trial"' EXIT
python3=$(readlink -f .venv/bin/python)
# An empty PATH and a HOME without .cargo: whatever the installation needs beyond Python is missing.
clean=(env -u CARGO_HOME HOME="$trial" PATH="$trial")
"${clean[@]}" "$python3" -m venv "$trial/venv"
"${clean[@]}" "$trial/venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: "$wheel"
cell=$("${clean[@]}" "$trial/venv/bin/python" -c 'import stockade, pathlib; print(pathlib.Path(stockade.__file__).parent / "_bin/stockade-cell")')
[ "$(stat -c %a "$cell")" = 755 ] || { echo "wheel: $cell is not executable by all" >&2; exit 1; }
[ -x "$trial/venv/bin/stockade" ] || { echo "wheel: no console script" >&2; exit 1; }
"$cell" --version >/dev/null 2>&1 || [ $? -lt 126 ] || { echo "wheel: $cell does not start" >&2; exit 1; }
echo "$wheel: $(stat -c %s "$wheel") bytes, stockade-cell $(stat -c %s "$cell") bytes; installed and checked without Rust"
