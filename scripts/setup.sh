#!/usr/bin/env bash
# Makes .venv ready: system packages, a virtual environment, dependencies, and Stockade itself, built as a
# wheel so that tests run what users install. Each part is skipped when nothing it depends on has changed.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
MINIMUM='(3, 11)'

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# Two `make test` at once must not install into one .venv at the same time.
if [ "${STOCKADE_SETUP_LOCKED:-}" != 1 ]; then
    exec env STOCKADE_SETUP_LOCKED=1 flock .setup.lock "$0" "$@"
fi

# ---- System packages: name, what tells that it is there --------------------------------------------

has_program() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null; }
has_library() { [[ "$(PATH="$PATH:/usr/sbin:/sbin" ldconfig -p)" == *"$1"* ]]; }
has_static_libc() { [ -e "$(gcc -print-file-name=libc.a 2>/dev/null || echo /none)" ]; }
# A cargo that is new enough for the crate (its rust-version); Debian 12's plain `cargo` package is not.
has_cargo() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' crates/stockade-cell/Cargo.toml)
    found=$(PATH="$PATH:$HOME/.cargo/bin" cargo --version 2>/dev/null | cut -d' ' -f2)
    [ -n "$found" ] && printf '%s\n' "$wanted" "$found" | sort -VC
}

# A python that an ordinary user can read too, and that starts in 7 ms: never one below a home directory.
find_python() {
    local candidate real
    for candidate in /usr/bin/python3 /usr/bin/python3.1[1-9] /usr/local/bin/python3 /usr/local/bin/python3.1[1-9]; do
        real=$(realpath "$candidate" 2>/dev/null) || continue
        case "$real" in /root/* | /home/*) continue ;; esac
        if "$candidate" -c "import sys; sys.exit(sys.version_info < $MINIMUM)" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

missing_packages() {
    local python
    python=$(find_python)
    [ -n "$python" ] || echo python3
    { [ -n "$python" ] && "$python" -c 'import venv, ensurepip' 2>/dev/null; } || echo python3-venv
    has_library libseccomp.so.2 || echo libseccomp2
    has_program gcc || echo gcc
    has_static_libc || echo libc6-dev
    has_program newuidmap || echo uidmap
    has_program bwrap || echo bubblewrap # the peer of the short benchmark in the tests
    has_program mkfs.ext4 || echo e2fsprogs
    has_program losetup || echo mount
    has_cargo || rust_package
}

# `cargo-web` is Debian 12's current cargo; newer releases have it as `cargo`.
rust_package() {
    if apt-cache show cargo-web >/dev/null 2>&1; then echo cargo-web; else echo cargo; fi
}

install_system_packages() {
    local missing
    missing=$(missing_packages | tr '\n' ' ')
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing system packages: $missing"
        apt-get update -qq
        # shellcheck disable=SC2086  # a list of words on purpose
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends $missing >/dev/null
        missing=$(missing_packages | tr '\n' ' ')
        [ -z "$missing" ] || die "these packages are installed but do not give what they should: $missing"
    else
        die "these system packages are missing (Debian's names): $missing
       Install them as root, then run this again."
    fi
}

# ---- The virtual environment -------------------------------------------------------------------------

# Prints a digest of the files given on stdin, names and contents: unlike times it survives a checkout.
digest() { sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1; }

sources() {
    find src crates -type d \( -name target -o -name __pycache__ -o -name _bin \) -prune -o -type f -print0
    printf '%s\0' pyproject.toml hatch_build.py README.md LICENSE
}

is_current() { [ "$(cat "$VENV/$1" 2>/dev/null)" = "$2" ]; }

create_venv() {
    # An interpreter that an upgrade took away leaves a .venv that looks whole and starts nothing.
    if ! "$VENV/bin/python" -c '' 2>/dev/null; then
        local python
        python=$(find_python)
        [ -n "$python" ] || die "no Python >= 3.11 outside home directories was found"
        say "creating $VENV with $python"
        rm -rf "$VENV"
        "$python" -m venv "$VENV"
    fi
}

install_dependencies() {
    local want
    want=$(printf 'pyproject.toml\0' | digest)
    is_current .stamp-dependencies "$want" && return 0
    say "installing dependencies"
    "$VENV/bin/python" scripts/dependencies.py test dev >"$VENV/requirements.txt"
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check -r "$VENV/requirements.txt"
    echo "$want" >"$VENV/.stamp-dependencies"
}

# Real input for the tests: source distributions of others, whose own suites run inside a sandbox.
fetch_sdists() {
    local want
    want=$(printf 'tests/e2e/sdists.txt\0' | digest)
    is_current .stamp-sdists "$want" && return 0
    say "fetching the source distributions that tests run"
    "$VENV/bin/python" -m pip download -q --disable-pip-version-check --no-deps --no-binary :all: \
        -r tests/e2e/sdists.txt -d "$VENV/share/stockade-sdists"
    echo "$want" >"$VENV/.stamp-sdists"
}

install_stockade() {
    local want
    want=$(sources | digest)
    is_current .stamp-build "$want" && return 0
    say "building and installing stockade"
    "$VENV/bin/python" -m pip install -q --disable-pip-version-check \
        --no-deps --no-build-isolation --force-reinstall . || die "stockade was not built; see above"
    echo "$want" >"$VENV/.stamp-build"
}

install_system_packages
create_venv
install_dependencies
fetch_sdists
install_stockade
