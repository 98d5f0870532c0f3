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
# PATH without cargo, HOME without .cargo: the hook would find it in either.
clean=(env -u CARGO_HOME HOME="$trial" PATH=/usr/bin:/bin)
if "${clean[@]}" sh -c 'command -v cargo' >/dev/null; then
    echo "wheel: note: cargo is in /usr/bin here; the trial can't show that none is needed" >&2
fi
"${clean[@]}" "$python3" -m venv "$trial/venv"
"${clean[@]}" "$trial/venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: "$wheel"
cell=$("$trial/venv/bin/python" -c 'import stockade, pathlib; print(pathlib.Path(stockade.__file__).parent / "_bin/stockade-cell")')
[ "$(stat -c %a "$cell")" = 755 ] || { echo "wheel: $cell is not executable by all" >&2; exit 1; }
[ -x "$trial/venv/bin/stockade" ] || { echo "wheel: no console script" >&2; exit 1; }
echo "$wheel: $(stat -c %s "$wheel") bytes, stockade-cell $(stat -c %s "$cell") bytes; installed and checked without Rust"
