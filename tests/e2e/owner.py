"""A process that owns sandboxes and is killed: the program that the crash tests start. Not a test.

`python -m tests.e2e.owner PHASE` prints a line of JSON for each moment that it has reached and then stands still.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from stockade import AsyncSandbox

POLICY = {"version": 1, "limits": {"cpu": 4, "processes": 100}}

Phase = Callable[[AsyncSandbox], Awaitable[None]]


def tell(moment: str, **facts: Any) -> None:
    """Say that a moment is reached."""
    os.write(1, json.dumps({"moment": moment, **facts}).encode() + b"\n")


async def stand_still() -> None:
    """Wait for SIGKILL."""
    await asyncio.Event().wait()


async def idle(_made: AsyncSandbox) -> None:
    """After the launch."""
    tell("idle")
    await stand_still()


async def command(made: AsyncSandbox) -> None:
    """During a command that has children in sessions of their own and ignores SIGTERM."""
    script = "trap '' TERM HUP INT; setsid sleep 600 & (setsid sleep 600 &) & echo on; sleep 600"
    await made.commands.run(script, on_stdout=lambda _: tell("command"))


async def flood(made: AsyncSandbox) -> None:
    """During output that never ends; the owner reads it."""
    seen = [0]

    def count(data: bytes) -> None:
        seen[0] += len(data)
        if seen[0] >= 1 << 20 > seen[0] - len(data):
            tell("flood")

    await made.commands.run(["yes"], on_stdout_bytes=count)


async def write(made: AsyncSandbox) -> None:
    """During writes of a large file, one after the other."""
    data = bytes(8 << 20)
    await made.files.write("/workspace/large", data)
    tell("write")
    while True:
        await made.files.write("/workspace/large", data)


async def many(made: AsyncSandbox) -> None:
    """While 64 processes run, as a tree that keeps forking."""
    script = (
        "import os, time\n"
        "for _ in range(6): os.fork()\n"
        "if os.getppid() == 1: pass\n"
        "while True: time.sleep(600)\n"
    )
    run = made.commands.run(
        ["python3", "-c", "print('on', flush=True)\n" + script], on_stdout=_many
    )
    await run


def _many(_text: str) -> None:
    tell("many")


async def frozen(made: AsyncSandbox) -> None:
    """While the payload is stopped."""
    await made.commands.run("echo on; kill -STOP $$", on_stdout=lambda _: tell("frozen"))


async def terminal(made: AsyncSandbox) -> None:
    """During an interactive shell on a terminal."""
    await made.commands.run(
        "stty raw; echo on; exec sleep 600", pty=(24, 80), on_stdout=lambda _: tell("terminal")
    )


async def killing(made: AsyncSandbox) -> None:
    """During `kill`: the owner is killed at a time of the test's choice after this moment."""
    await made.commands.run(["sleep", "600"], background=True)
    tell("killing")
    await made.kill()
    await stand_still()


async def forked(made: AsyncSandbox) -> None:
    """While a multiprocessing child, which inherited every descriptor, lives on (kernel-facts 2)."""
    await made.commands.run(["sleep", "600"], background=True)
    child = multiprocessing.get_context("fork").Process(target=signal.pause)
    child.start()
    tell("forked", child=child.pid)
    await stand_still()


PHASES: dict[str, Phase] = {
    phase.__name__: phase
    for phase in (idle, command, flood, write, many, frozen, terminal, killing, forked)
}


async def main(name: str) -> None:
    """Create a sandbox and go to the phase."""
    tell("started")
    made = await AsyncSandbox.create(POLICY)
    cgroups = [cgroup.path for cgroup in made.live.plan.launch.cgroups]
    tell("created", sandbox_id=made.sandbox_id, cell=made.live.pid, cgroups=cgroups)
    await PHASES[name](made)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
