"""Where a probe runs: inside a sandbox, or outside of any as its positive control.

Both run the same programs by the same interpreter, /usr/bin/python3, and answer in the same form.
"""

from __future__ import annotations

import abc
import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyseccomp

from stockade import Sandbox
from stockade.audit import Query, Record, SqliteStore
from stockade.isolation.seccomp.numbers import NEWER_CALLS
from stockade.sandbox.owner import Owner
from tests.applicability import not_applicable

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = ("/usr/bin/python3", "-I", "-S")


@dataclass(frozen=True, slots=True)
class Reply:
    """What a probe said; `status` is 128 plus the signal where one ended it."""

    status: int
    out: str
    err: str


class Place(abc.ABC):
    """Somewhere to run probes."""

    @abc.abstractmethod
    def run(self, *argv: str, timeout: float = 10, **options: Any) -> Reply:
        """Run a command to its end."""

    def python(self, source: str, *arguments: str, timeout: float = 10, **options: Any) -> str:
        """Run Python source and return what it printed, without white space around it."""
        reply = self.run(*PYTHON, "-c", source, *arguments, timeout=timeout, **options)
        assert reply.status == 0, f"the probe itself failed: {reply}"
        return reply.out.strip()

    def attempt(self, source: str, *arguments: str, **options: Any) -> str:
        """Run Python source; return OK and what it printed, or the name of its OSError's errno."""
        return self.python(program("attempt.py"), source, *arguments, **options)

    def call(self, name: str, *arguments: str | int, flags: Sequence[str] = ()) -> str:
        """Make one raw system call; see programs/call.py."""
        words = [*flags, number_of(name), *arguments]
        return self.python(program("call.py"), *map(str, words))


class Inside(Place):
    """In a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Run probes in `sandbox`."""
        self.sandbox = sandbox

    def run(self, *argv: str, timeout: float = 10, **options: Any) -> Reply:
        result = self.sandbox.commands.run(argv, timeout=timeout, **options)
        return Reply(result.exit_code, result.stdout, result.stderr)

    def install(self, built: Path, path: str = "/workspace/probe") -> str:
        """Copy a program in."""
        script = 'cat > "$0" && chmod 755 "$0"'
        done = self.sandbox.commands.run(["/bin/sh", "-c", script, path], stdin=built.read_bytes())
        assert done.ok, done
        return path


class Outside(Place):
    """On the host, as the user who runs the tests."""

    def run(
        self,
        *argv: str,
        timeout: float = 10,
        envs: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Reply:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=timeout,
            check=False,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **(envs or {})},
            **options,
        )
        status = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return Reply(status, done.stdout, done.stderr)


def descendants(sandbox: Sandbox) -> list[int]:
    """Return the host's ids of all commands' processes: below the cell, zombies and the cell's own left out.

    The view from outside: inside, hidepid and Landlock hide one command from another. The cell keeps a process ahead
    of the next command, which still has the cell's own arguments.
    """
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = (
                    Path(f"/proc/{name}/stat")
                    .read_text(errors="replace")
                    .rpartition(")")[2]
                    .split()
                )
                if fields[0] not in "ZX":
                    parents[int(name)] = int(fields[1])
    cell = sandbox._sandbox.live.pid
    below = [pid for pid in parents if _is_below(pid, cell, parents)]
    return [pid for pid in below if _arguments(pid) not in (b"", b"stockade-cell\0launch\0")]


def _arguments(pid: int) -> bytes:
    """Return a process's command line; nothing for one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _is_below(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while pid := parents.get(pid, 0):
        if pid == ancestor:
            return True
    return False


def records(operation: str, **filters: Any) -> tuple[Record, ...]:
    """Return the records of an operation from this run's store, all that is under way written first."""
    owner = Owner.of_this_process()
    owner.writer.flush()
    store = SqliteStore.in_state_dir(owner.state_dir)
    try:
        return store.query(Query(operation=operation, limit=1000, **filters)).records
    finally:
        store.close()


def program(name: str) -> str:
    """Return the text of a file in programs/."""
    return (PROGRAMS / name).read_text(encoding="utf-8")


def number_of(name: str) -> int:
    """Return a system call's number on this machine."""
    known = int(pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name))
    if known < 0 and name not in NEWER_CALLS:
        not_applicable(f"this architecture has no {name}")
    return known if known >= 0 else NEWER_CALLS[name]


def has_own_id(sandbox: Sandbox) -> bool:
    """Say whether the cell has another id than the payload, as it has everywhere but rootless without /etc/subuid."""
    return "cell under its own uid" in sandbox.protections.walls


def is_root() -> bool:
    """Say whether this is root's pass."""
    return os.geteuid() == 0
