"""Owners that are killed, and all that they started: orphans come to the test process, so none is overlooked.

The test process is a child subreaper (prctl(2)) while owners live: a cell whose owner is gone becomes its child.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.residue import GONE_WITHIN_S, children, descendants, wait_until

_PR_SET_CHILD_SUBREAPER = 36
#: What a state directory holds after an owner that ended well.
_STATE = re.compile(
    r"\.stockade-state|audit(/audit\.sqlite3|/use\.lock)?|seccomp(/seccomp-[0-9a-f]{64}\.json)?"
)
_LOG = r"audit/audit\.sqlite3-(wal|shm)"
ROOT = Path(__file__).parent.parent.parent


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Make orphans of this process's children its own children."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@dataclass(slots=True)
class Owner:
    """A started owner."""

    process: subprocess.Popen[bytes]
    before: frozenset[int]
    facts: dict[str, Any] = field(default_factory=dict)

    def wait_for(self, moment: str) -> None:
        """Read what it tells until it has reached `moment`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            self.facts |= told
            if told["moment"] == moment:
                return
        raise AssertionError(f"the owner ended before it reached {moment!r}")

    def kill(self) -> None:
        """Send SIGKILL and reap it."""
        self.process.kill()
        self.wait()

    def wait(self) -> None:
        """Wait for its end."""
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    @staticmethod
    def own_children() -> list[int]:
        """Return all that descends from this process."""
        return descendants(os.getpid())

    def left(self) -> list[int]:
        """Return all that descends from it and is alive, and reap the rest."""
        for pid in set(children(os.getpid())) - self.before:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return sorted(set(descendants(os.getpid())) - self.before)

    def assert_alone(self, but: frozenset[int] = frozenset()) -> None:
        """Fail unless nothing of it is alive within the bound."""
        assert wait_until(lambda: not set(self.left()) - but, GONE_WITHIN_S), _told(self.left())


def _told(pids: list[int]) -> list[str]:
    """Return pids with what they run, for the failure's text."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found.append(f"{pid} {words}")
    return found


@dataclass(frozen=True, slots=True)
class Place:
    """Directories of their own for a test's owners, so that what they leave can be told apart."""

    directory: Path
    owners: list[Owner] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of an owner here."""
        own = {
            "STOCKADE_STATE_DIR": str(self.directory / "state"),
            "STOCKADE_RUN_DIR": str(self.directory / "run"),
            "TMPDIR": str(self.directory / "tmp"),
        }
        return {**os.environ, **own}

    def start(self, phase: str) -> Owner:
        """Start an owner; it goes to `phase`."""
        for name in ("run", "tmp"):
            (self.directory / name).mkdir(mode=0o700, exist_ok=True)
        before = frozenset(descendants(os.getpid()))
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.owner", phase],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
        )
        self.owners.append(Owner(process, before))
        return self.owners[-1]

    def collect(self) -> None:
        """Do the next start: an owner that creates a sandbox, and ends well."""
        program = (
            "from stockade import Sandbox\n"
            "with Sandbox.create() as made: assert made.commands.run(['true']).ok\n"
        )
        subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=self.environment, check=True, timeout=15
        )

    def left(self, *, after_start: bool = True) -> list[str]:
        """Return what the locks still name, and files that are not meant to stay.

        SQLite's log of a killed owner is no residue before the next start reads it.
        """
        run, state = self.directory / "run", self.directory / "state"
        locks = list((run / "slots").iterdir()) if (run / "slots").is_dir() else []
        named = [f"{lock.name} names a sandbox" for lock in locks if lock.read_bytes().strip()]
        extra = [str(path) for path in run.iterdir() if path.name != "slots"]
        temporary = [str(path) for path in (self.directory / "tmp").iterdir()]
        known = _STATE if after_start else re.compile(f"{_STATE.pattern}|{_LOG}")
        unknown = [
            str(p) for p in state.rglob("*") if not known.fullmatch(str(p.relative_to(state)))
        ]
        return named + extra + temporary + unknown


def sweep(directory: Path, *words: str, timeout_s: int = 19) -> Any:
    """Run a sweep in a process of its own and return what it printed."""
    for name in ("run", "tmp"):
        (directory / name).mkdir(mode=0o700)
    command = [sys.executable, "-m", "tests.e2e.sweeps", *words]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=Place(directory).environment,
        stdout=subprocess.PIPE,
        timeout=timeout_s,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False when the process is gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
