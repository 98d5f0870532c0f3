"""Owners killed at every point of a sandbox's life, one after the other: the program that test_sweeps.py starts.

`python -m tests.e2e.sweeps boundaries PART PARTS FILES` kills an owner when it enters or leaves a function of ours for
the first time, for each such function in files that match a pattern (of the given part). `delays`, `launcher` and
`cell` kill the owner, its launcher or its cell some microseconds after the creation began. Owners are forks of this
process, which is made their subreaper, so that whatever an owner leaves becomes its child. The last line of output is
JSON: how many, and each failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import stockade
from stockade import AsyncSandbox
from stockade.errors import LaunchError, SandboxDied
from stockade.isolation.slots import Slots
from stockade.sandbox.owner import Owner
from tests.e2e.orphans import Place, subreaper
from tests.e2e.owner import POLICY
from tests.e2e.residue import children, descendants, name_of, wait_until

PACKAGE = os.path.dirname(stockade.__file__)
PLACE = Place(Path(os.environ["STOCKADE_RUN_DIR"]).parent)

Boundary = tuple[str, str]


async def life() -> None:
    """Do what a sandbox is for, from its creation to its end."""
    async with await AsyncSandbox.create(POLICY) as made:
        assert (await made.commands.run("echo on; sleep 60 &")).ok
        handle = await made.commands.run(["cat"], background=True, stdin=True)
        await made.files.write("/workspace/a", bytes(1 << 20))
        assert len(await made.files.read("/workspace/a", "bytes")) == 1 << 20
        await handle.send_stdin("x")
        await handle.kill()
        await handle.wait()
        await made.commands.run(["sleep", "60"], background=True)


# ---- Killing an owner where it enters or leaves a function -----------------------------------------------


def _watch(on_boundary: Callable[[Boundary], None]) -> None:
    """Call `on_boundary` when a function of ours is entered or left for the first time, in any thread."""
    seen: set[tuple[CodeType, str]] = set()

    def profile(frame: FrameType, event: str, _arg: Any) -> None:
        key = (frame.f_code, event)
        if event in {"call", "return"} and key not in seen:
            seen.add(key)
            if frame.f_code.co_filename.startswith(PACKAGE):
                name = os.path.relpath(frame.f_code.co_filename, PACKAGE)
                on_boundary((f"{name}:{frame.f_code.co_qualname}", event))

    threading.setprofile(profile)
    sys.setprofile(profile)


def record_boundaries() -> list[Boundary]:
    """Return all boundaries of one life, in order."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        found: list[Boundary] = []
        _watch(found.append)
        asyncio.run(life())
        sys.setprofile(None)
        with open(write, "w", encoding="utf-8") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as pipe:
        result = [(str(name), str(event)) for name, event in json.load(pipe)]
    os.waitpid(pid, 0)
    return result


def boundaries(part: str, parts: str, *patterns: str) -> Iterator[tuple[str, list[str]]]:
    """Kill an owner at each boundary of this part in files that match."""
    chosen = [b for b in record_boundaries() if any(fnmatch(b[0], f"{p}:*") for p in patterns)]
    for target in chosen[int(part) :: int(parts)]:
        pid = os.fork()
        if pid == 0:
            _die_at(target)
        _, status = os.waitpid(pid, 0)
        # Threads differ from life to life: a boundary that was not met this time is no case.
        if os.WIFSIGNALED(status):
            yield f"{target[1]} of {target[0]}", what_is_left()


def _die_at(target: Boundary) -> None:
    def on_boundary(boundary: Boundary) -> None:
        if boundary == target:
            os.kill(os.getpid(), signal.SIGKILL)

    _watch(on_boundary)
    with contextlib.suppress(BaseException):
        asyncio.run(life())
    os._exit(0)


# ---- Killing by the clock --------------------------------------------------------------------------------


def delays(step_us: str, end_us: str) -> Iterator[tuple[str, list[str]]]:
    """Kill an owner some time after its creation of a sandbox began."""
    for delay_us in range(0, int(end_us) + 1, int(step_us)):
        pid, channel = _start_creating()
        with channel:
            channel.recv(1)
            pass_time(delay_us)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        yield f"owner after {delay_us} us", what_is_left()


def launcher(step_us: str, end_us: str) -> Iterator[tuple[str, list[str]]]:
    """Kill the launcher, some time after it was started."""
    yield from _kill_below("launcher", step_us, end_us, lambda below: below[:1])


def cell(step_us: str, end_us: str) -> Iterator[tuple[str, list[str]]]:
    """Kill the cell, some time after it was cloned."""
    yield from _kill_below("cell", step_us, end_us, lambda below: below[1:2])


def _kill_below(
    name: str, step_us: str, end_us: str, choose: Callable[[list[int]], list[int]]
) -> Iterator[tuple[str, list[str]]]:
    for delay_us in range(0, int(end_us) + 1, int(step_us)):
        pid, channel = _start_creating()
        with channel:
            channel.recv(1)
            below: list[int] = []
            while not choose(below) and not _is_readable(channel):
                new = [child for child in descendants(pid) if child not in below]
                below += [child for child in new if name_of(child) == "stockade-cell"]
            pass_time(delay_us)
            for victim in choose(below):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            said = [channel.recv(1000).decode()]
            channel.send(b"!")
            said.append(channel.recv(1000).decode())
            os.waitpid(pid, 0)
        expected = said[0] in {"ran", "LaunchError", "SandboxDied"} and said[1] == "ran"
        wrong = [] if expected else [f"the owner's two sandboxes: {said}"]
        yield f"{name} after {delay_us} us", wrong + what_is_left()


def _is_readable(channel: socket.socket) -> bool:
    return bool(select.select([channel], [], [], 0)[0])


def _start_creating() -> tuple[int, socket.socket]:
    """Fork an owner that says when it begins, what its sandbox came to, and, asked to go on, another one."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    ours.close()
    try:
        Owner.of_this_process()
        theirs.send(b"!")
        theirs.send(_create().encode())
        theirs.recv(1)
        theirs.send(_create().encode())
    finally:
        os._exit(0)


def _create() -> str:
    """Return how a sandbox failed, or that it ran."""

    async def create() -> None:
        async with await AsyncSandbox.create(POLICY) as made:
            await made.commands.run(["true"])

    try:
        asyncio.run(create())
    except (LaunchError, SandboxDied) as error:
        return type(error).__name__
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent reads it
        return f"{type(error).__name__}: {error}"
    return "ran"


def pass_time(duration_us: int) -> None:
    """Let some time pass: a moment of another process that gives no event."""
    end = time.perf_counter_ns() + duration_us * 1000
    while time.perf_counter_ns() < end:
        pass


# ---- What is left ----------------------------------------------------------------------------------------


def what_is_left() -> list[str]:
    """Return the processes that outlived the bound, and what a collection left of the rest."""
    alive = [] if wait_until(lambda: not _orphans()) else [f"process {pid}" for pid in _orphans()]
    run = Path(os.environ["STOCKADE_RUN_DIR"])
    named = [json.loads(text) for lock in run.glob("slots/*") if (text := lock.read_text().strip())]
    Slots(str(run)).collect()
    cgroups = [path for entry in named for path in entry["cgroups"] if os.path.exists(path)]
    return alive + cgroups + PLACE.left(after_start=False)


def _orphans() -> list[int]:
    for pid in children(os.getpid()):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return descendants(os.getpid())


SWEEPS: dict[str, Callable[..., Iterator[tuple[str, list[str]]]]] = {
    "boundaries": boundaries,
    "delays": delays,
    "launcher": launcher,
    "cell": cell,
}


def main() -> None:
    """Run one sweep."""
    sweep = SWEEPS[sys.argv[1]](*sys.argv[2:])
    begin = time.monotonic()
    with subreaper():
        results = dict(sweep)
    PLACE.collect()
    results["the next start"] = PLACE.left()
    failures = {name: left for name, left in results.items() if left}
    seconds = round(time.monotonic() - begin, 1)
    report = {"count": len(results) - 1, "seconds": seconds, "failures": failures}
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
