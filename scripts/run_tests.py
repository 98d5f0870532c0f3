"""Run the Python tests: as root, as an ordinary user, and as one with subordinate ids.

An ordinary user runs only the second pass, and is told so. Each pass starts from an empty environment in a
private directory that is removed on every way out. Cargo's tests are not run here, but by the Makefile.

After the whole suite, what this host could not run is put on record for `stockade doctor`.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
RECORD = VENV / "share/stockade/not-applicable.json"  # `stockade doctor` reads it
COPIED = (
    *("tests", "examples", "bench", "docs", "scripts"),
    *("pyproject.toml", "Makefile", "README.md", "README.zh-CN.md", "CHANGELOG.md"),
)
"""What the ordinary user's tests read besides the installed package."""

LINTERS = shutil.ignore_patterns("mypy", "mypyc", "ruff", "grimp", "importlinter", "*.stamp-*")
"""Most of the weight of .venv, and no test imports them."""

CORE = "not soak and not services"
ORDINARY_USER = "stockade-test"
SUBORDINATE_USER = "stockade-test-sub"
SUBORDINATE_COUNT = 65536
NO_TESTS_COLLECTED = 5
RAN_TO_THE_END = (0, 1)  # all passed, or some failed
TEMPORARY = Path("/var/tmp")  # /tmp may be small, or mounted noexec


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of pytest by one user; `user` is None for whoever started this program."""

    name: str
    markers: str
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one pass gave; `status` is pytest's exit status."""

    name: str
    status: int
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    not_applicable: tuple[dict[str, str], ...] = ()


def main() -> int:
    """Run the passes one after the other; 0 only if each of them passed."""
    options = _parse_arguments()
    signal.signal(signal.SIGTERM, _exit_on_signal)
    passes = _passes(options.markers)[: 1 if options.once else None]
    outcomes = [_run(one, options.pytest_arguments) for one in passes]
    _print_summary(outcomes)
    whole_suite = options.markers == CORE and not options.pytest_arguments
    # A selection, or a pass that broke off, knows only a part: the last whole record is worth more.
    if whole_suite and not options.once and all(o.status in RAN_TO_THE_END for o in outcomes):
        _write_record(RECORD, merge_record(outcomes, datetime.now(UTC), os.uname()))
    return _status(outcomes, whole_suite=whole_suite, may_be_empty=options.may_be_empty)


def _status(outcomes: list[Outcome], *, whole_suite: bool, may_be_empty: bool) -> int:
    """Return the worst exit status; of a selection of tests, one pass may have none, but not every pass."""
    if may_be_empty or (not whole_suite and any(o.status == 0 for o in outcomes)):
        return max(0 if o.status == NO_TESTS_COLLECTED else o.status for o in outcomes)
    return max(o.status for o in outcomes)


def merge_record(
    outcomes: Sequence[Outcome], when: datetime, host: os.uname_result
) -> dict[str, Any]:
    """Return what could not be run here, pass by pass."""
    return {
        "when": when.isoformat(timespec="seconds"),
        "host": {"kernel": host.release, "machine": host.machine},
        "tests": [
            {"test": entry["test"], "reason": entry["reason"], "pass": outcome.name}
            for outcome in outcomes
            for entry in outcome.not_applicable
        ],
    }


def _write_record(path: Path, record: dict[str, Any]) -> None:
    """Replace the file, all or nothing; any user's doctor may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(record, indent=2) + "\n")
            os.fchmod(file.fileno(), 0o644)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", dest="markers", default=CORE, help="pytest's marker expression")
    parser.add_argument("--once", action="store_true", help="only the first pass")
    parser.add_argument(
        "--may-be-empty", action="store_true", help="a pass without tests is no failure"
    )
    parser.add_argument("pytest_arguments", nargs="*", help="passed on to pytest (after --)")
    return parser.parse_args()


def _passes(markers: str) -> list[Pass]:
    if os.geteuid() != 0:
        print("run_tests: not root, so only the ordinary user's pass runs", flush=True)
        return [Pass("ordinary user", markers)]
    return [
        Pass("root", markers),
        Pass("ordinary user", markers, _ensure_user(ORDINARY_USER, subordinate=False)),
        Pass(
            "user with subordinate ids",
            f"rootless and ({markers})",
            _ensure_user(SUBORDINATE_USER, subordinate=True),
        ),
    ]


def _run(one: Pass, arguments: list[str]) -> Outcome:
    print(f"\n=== {one.name}: pytest -m '{one.markers}' {' '.join(arguments)}", flush=True)
    private = Path(tempfile.mkdtemp(prefix="stockade-", dir=TEMPORARY))
    try:
        return _run_in(private, one, arguments)
    finally:
        # Not shutil.rmtree: trees that a payload made can be deeper than Python recurses.
        subprocess.run(["/bin/rm", "-rf", "--one-file-system", private], check=True)


def _run_in(private: Path, one: Pass, arguments: list[str]) -> Outcome:
    for name in ("home", "run", "tmp"):
        (private / name).mkdir(mode=0o700)
    directory, venv = (ROOT, VENV) if one.user is None else _copy_checkout(private)
    report, record = private / "report.xml", private / "not-applicable.jsonl"
    command = [f"{venv}/bin/python", "-m", "pytest", "-p", "no:cacheprovider", "-m", one.markers]
    # Not below TMPDIR: a Unix socket's path ends at 108 bytes, and pytest's own default takes 60 of them.
    command += [f"--junit-xml={report}", f"--basetemp={private}/t", *arguments]
    environment = _environment(private, venv, one.user)
    environment["STOCKADE_NOT_APPLICABLE"] = str(record)
    account: dict[str, Any] = {}
    if one.user is not None:
        entry = pwd.getpwnam(one.user)
        _give_away(private, entry)
        account = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    process: subprocess.Popen[bytes] = subprocess.Popen(
        command, cwd=directory, env=environment, umask=0o022, **account
    )
    status = _wait(process)
    return _read_outcome(one.name, status, report, record)


def _copy_checkout(private: Path) -> tuple[Path, Path]:
    """Copy what tests need: an ordinary user may not read a checkout below /root."""
    directory, venv = private / "stockade", private / "stockade" / ".venv"
    shutil.copytree(VENV, venv, symlinks=True, ignore=LINTERS)
    for script in (venv / "bin").iterdir():
        # Entry points name the interpreter of the venv that pip wrote them into.
        if not script.is_symlink() and script.read_bytes()[:2] == b"#!":
            script.write_bytes(script.read_bytes().replace(bytes(VENV), bytes(venv), 1))
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, directory / name, symlinks=True)
        elif source.exists():
            shutil.copy2(source, directory / name)
    return directory, venv


def _environment(private: Path, venv: Path, user: str | None) -> dict[str, str]:
    """Return a whole environment: nothing of the caller's reaches a test, so no key of theirs can leak."""
    name = user or pwd.getpwuid(os.geteuid()).pw_name
    return {
        "HOME": f"{private}/home",
        "TMPDIR": f"{private}/tmp",
        "XDG_RUNTIME_DIR": f"{private}/run",
        "PATH": f"{venv}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "SHELL": "/bin/sh",
        "TERM": os.environ.get("TERM", "dumb"),
        "USER": name,
        "LOGNAME": name,
        "HYPOTHESIS_STORAGE_DIRECTORY": f"{private}/hypothesis",
    }


def _give_away(directory: Path, owner: pwd.struct_passwd) -> None:
    subprocess.run(["/bin/chown", "-RhP", f"{owner.pw_uid}:{owner.pw_gid}", directory], check=True)


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait()
    except KeyboardInterrupt:
        # The terminal sent it to pytest too, which now tears its sandboxes down: let it.
        process.wait()
        raise
    except SystemExit:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise


def _exit_on_signal(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _read_outcome(name: str, status: int, report: Path, record: Path) -> Outcome:
    if not report.exists():  # pytest died, or refused its arguments
        return Outcome(name, status or 1)
    suite = next(ET.parse(report).getroot().iter("testsuite")).attrib  # noqa: S314 - written by our own pytest
    total, skipped = int(suite["tests"]), int(suite["skipped"])
    failed = int(suite["failures"]) + int(suite["errors"])
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    left_out = tuple(json.loads(line) for line in lines)
    return Outcome(name, status, total - failed - skipped, failed, skipped, left_out)


def _print_summary(outcomes: list[Outcome]) -> None:
    print()
    for o in outcomes:
        print(
            f"{o.name}: {o.passed} passed, {o.failed} failed, {o.skipped} skipped (exit {o.status})"
        )
    passed, failed, skipped = (
        sum(getattr(o, field) for o in outcomes) for field in ("passed", "failed", "skipped")
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)


# ---- The two users ------------------------------------------------------------------------------------


def _ensure_user(name: str, *, subordinate: bool) -> str:
    """Create the system user if it does not exist, with or without ranges in /etc/subuid and /etc/subgid."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        command = [
            "/usr/sbin/useradd",
            "--system",
            "--user-group",
            "--no-create-home",
            "--home-dir",
            "/nonexistent",
        ]
        subprocess.run([*command, "--shell", "/usr/sbin/nologin", name], check=True)
    has_range = any(owner == name for owner, _ in _subordinate_ranges())
    if has_range and not subordinate:
        sys.exit(
            f"run_tests: remove {name} from /etc/subuid and /etc/subgid: it stands for users with one id"
        )
    if subordinate and not has_range:
        start = max([524288, *(end for _, end in _subordinate_ranges())])
        ids = f"{start}-{start + SUBORDINATE_COUNT - 1}"
        subprocess.run(
            ["/usr/sbin/usermod", "--add-subuids", ids, "--add-subgids", ids, name], check=True
        )
    return name


def _subordinate_ranges() -> list[tuple[str, int]]:
    """Owner and end of each range in /etc/subuid and /etc/subgid."""
    ranges = []
    for path in (Path("/etc/subuid"), Path("/etc/subgid")):
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            owner, start, count = line.split(":")
            ranges.append((owner, int(start) + int(count)))
    return ranges


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
