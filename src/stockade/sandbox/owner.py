"""This process as the owner of sandboxes: the host's facts, the audit writer, the slots, and what dead owners left.

Made once, at the first sandbox. It is the only place of the library that reads the environment: where state lives.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stockade.audit import AuditWriter, default_state_dir, default_writer
from stockade.isolation import cgroups_io, seccomp
from stockade.isolation.container import wall_for
from stockade.isolation.host import Host, probe_host
from stockade.isolation.plan import Plan
from stockade.isolation.seccomp import Notified
from stockade.isolation.slots import Slot, Slots, run_dir_for
from stockade.isolation.workspaces import inspect_directories
from stockade.policy import Policy


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with the slot that it is for, and the names of the calls whose attempts are recorded."""

    plan: Plan
    slot: Slot
    calls: Mapping[int, Notified]


@dataclass(frozen=True, slots=True)
class Owner:
    """What every sandbox of this process shares."""

    host: Host
    run_dir: str
    state_dir: str
    writer: AuditWriter
    slots: Slots
    #: cgroups of dead owners that could not be removed at the start
    left_over: tuple[str, ...] = ()
    #: digests of policies that were planned before
    planned: set[str] = field(default_factory=set)

    @classmethod
    def of_this_process(cls, state_dir: str | None = None) -> Owner:
        """Return the owner for a state directory (default: by user), made at the first call."""
        chosen = state_dir or default_state_dir(os.geteuid(), os.environ)
        with _lock:
            owner = _owners.get(chosen)
            if owner is None:
                owner = _owners[chosen] = cls._make(chosen)
            return owner

    @classmethod
    def known(cls, state_dir: str | None = None) -> Owner | None:
        """Return the owner if it was made already."""
        return _owners.get(state_dir or default_state_dir(os.geteuid(), os.environ))

    @classmethod
    def _make(cls, state_dir: str) -> Owner:
        host = probe_host()
        environ = os.environ
        where = environ.get("STOCKADE_RUN_DIR") or run_dir_for(
            os.geteuid(), environ.get("XDG_RUNTIME_DIR")
        )
        slots = Slots(where)
        left_over = tuple(path for found in slots.collect() for path in found.left)
        cgroups_io.prepare(host)
        return cls(host, where, state_dir, default_writer(state_dir), slots, left_over)

    def prepare(self, policy: Policy, sandbox_id: str) -> Planned:
        """Take a slot and plan one sandbox of `policy`; may block on a first use and on workspaces."""
        isolation = policy.isolation
        program = seccomp.compile_profile(
            isolation.profile,
            isolation.allow,
            isolation.deny,
            self.host.machine,
            Path(self.state_dir) / "seccomp",
        )
        inspected = inspect_directories(policy, self.host, (self.state_dir, self.run_dir))
        wall = wall_for(policy, self.host, program, inspected)
        slot = self.slots.take(sandbox_id, wall.cgroup_paths(sandbox_id))
        try:
            plan = wall.plan(slot.number, sandbox_id)
        except BaseException:
            slot.release()
            raise
        self.planned.add(policy.digest)
        return Planned(plan, slot, program.names)


_owners: dict[str, Owner] = {}
_lock = threading.Lock()


def _forget() -> None:
    global _lock  # noqa: PLW0603 - a lock that the parent held at the fork is never released here
    _owners.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


async def prepared(owner: Owner, policy: Policy, sandbox_id: str) -> Planned:
    """Do `Owner.prepare` on the event loop where it is known to be quick (0.2 ms), else in a thread."""
    if policy.digest in owner.planned and not policy.filesystem.workspaces:
        return owner.prepare(policy, sandbox_id)
    return await asyncio.to_thread(owner.prepare, policy, sandbox_id)
