"""Ours, as a user calls it, and the proof that nothing was switched off to be quicker."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.peers import TRUE
from bench.view import View
from stockade import AsyncSandbox, CommandResult, Sandbox
from stockade.audit import default_writer
from stockade.audit.paths import database_path
from stockade.sandbox import Protections

_WALLS = (
    *("user namespace", "mount namespace", "pid namespace", "network namespace", "ipc namespace"),
    *(
        "uts namespace",
        "cgroup namespace",
        "seccomp",
        "landlock",
        "no capabilities",
        "no new privileges",
    ),
)


class Ours:
    """Makes sandboxes with the built-in policy; their records go to a store of the benchmark's own."""

    def __init__(self, view: View, state: Path) -> None:
        """`state` must lie on a real disk: a record counts as written when the disk has it."""
        # None, as most users have it: naming an image makes a policy of its own each time.
        self._image = view.root
        self._state = str(state)

    def close(self) -> None:
        """Write what waits; the state directory is not needed from now on."""
        default_writer(self._state).close()

    def create(self) -> Sandbox:
        """Create one with the blocking API."""
        return Sandbox.create(image=self._image, state_dir=self._state)

    async def create_async(self) -> AsyncSandbox:
        """Create one on the running loop."""
        return await AsyncSandbox.create(image=self._image, state_dir=self._state)

    def cold(self) -> None:
        """Create, run /bin/true, destroy."""
        with self.create() as sandbox:
            check_success(sandbox.commands.run(TRUE))

    async def cold_async(self) -> None:
        """Do the same on the running loop."""
        async with await self.create_async() as sandbox:
            check_success(await sandbox.commands.run(TRUE))

    def records(self) -> int:
        """Return how many records the store holds."""
        path = database_path(self._state)
        if not os.path.exists(path):
            return 0
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM records").fetchone()[0])

    @contextmanager
    def audited(self) -> Iterator[None]:
        """Assert that all walls stand, and that what happens meanwhile leaves records."""
        with self.create() as sandbox:
            check_walls(sandbox.protections)
        before = self.records()
        yield
        assert self.records() > before, "nothing was recorded: the audit store did not grow"


def check_success(result: CommandResult) -> None:
    """Assert that a command ran as it should."""
    assert result.exit_code == 0, result


def check_walls(protections: Protections) -> None:
    """Assert that every default wall stands and every limit holds as well as this user can have it."""
    for wall in _WALLS:
        assert any(found.startswith(wall) for found in protections.walls), f"no {wall}"
    wanted = {"enforced"} if os.geteuid() == 0 else {"enforced", "watched"}
    for limit in protections.limits:
        assert limit.grade in wanted, limit
