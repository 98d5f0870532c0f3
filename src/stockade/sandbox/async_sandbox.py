"""`AsyncSandbox`: the public surface on asyncio; `Sandbox` is a thin bridge over it."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from stockade.audit import operations
from stockade.errors import StockadeError
from stockade.isolation.grades import LimitGrade
from stockade.policy import DEFAULT_POLICY, Policy, load_policy, policy_from, with_isolation
from stockade.runtime.attempts import Attempts, Refusal
from stockade.runtime.live import LiveSandbox, Residue
from stockade.sandbox._door import Door, Identity
from stockade.sandbox.arguments import seconds_as_ms
from stockade.sandbox.commands import AsyncCommands
from stockade.sandbox.files import AsyncFiles
from stockade.sandbox.owner import Owner, Planned, prepared
from stockade.sandbox.results import Limit

Level = Literal["process", "container", "microvm"]
PolicyLike = Policy | str | os.PathLike[str] | Mapping[str, Any] | None

#: A creation that takes longer is a fault, and its record says what it was made of (R11, R19).
SLOW_CREATE_MS = 1_000
#: A policy file is text that a person writes; the largest starter has 4 KiB.
MAX_POLICY_BYTES = 1 << 20


def new_id(prefix: str) -> str:
    """Return an id of 20 hexadecimal digits: two of them meet in none of 2**40 sandboxes."""
    return f"{prefix}-{secrets.token_hex(10)}"


def policy_of(policy: PolicyLike, **overrides: object) -> Policy:
    """Return the policy that is named: None is the built-in default, a path is read, a mapping is checked.

    `overrides` replace single keys of `isolation`. Raises `PolicyError`.
    """
    if policy is None:
        chosen = DEFAULT_POLICY
    elif isinstance(policy, Policy):
        chosen = policy
    elif isinstance(policy, Mapping):
        chosen = policy_from(dict(policy))
    else:
        chosen = _read_policy(Path(policy))
    changed = {name: value for name, value in overrides.items() if value is not None}
    return with_isolation(chosen, changed) if changed else chosen


def _read_policy(path: Path) -> Policy:
    with path.open("rb") as file:
        return load_policy(file.read(MAX_POLICY_BYTES + 1), str(path))


@dataclass(frozen=True, slots=True)
class Protections:
    """What a sandbox really got: the walls that the cell reported, and how well each limit holds here."""

    level: Level
    walls: tuple[str, ...]
    limits: tuple[LimitGrade, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        limits = {entry.limit: {"grade": entry.grade, "by": entry.by} for entry in self.limits}
        return {"level": self.level, "walls": list(self.walls), "limits": limits}


class AsyncSandbox:
    """One sandbox. Made by `create`; use it as an async context manager, or call `kill` at the end."""

    def __init__(self, owner: Owner, policy: Policy, identity: Identity) -> None:
        """Use `create`."""
        self._owner = owner
        self._attempts = Attempts(self._name_of_call, self._refused)
        self._lifetime: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._killed: asyncio.Task[Residue] | None = None
        self.policy = policy
        #: the policy's plan, with the sandbox's own ids
        self.plan: SandboxPlan
        #: the runtime's side of the sandbox
        self.live: LiveSandbox
        #: the one function through which every operation goes
        self.door = Door(identity, owner.writer.append)
        self.commands = AsyncCommands(self)
        self.files = AsyncFiles(self)

    @classmethod
    async def create(
        cls,
        policy: PolicyLike = None,
        *,
        image: str | None = None,
        level: Level | None = None,
        timeout: float | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
        state_dir: str | None = None,
    ) -> Self:
        """Build a sandbox and wait until it is ready (some 4 ms).

        `policy` is a `Policy`, a file's path, a mapping, or None for the built-in one; `image` and `level` replace
        what it says. After `timeout` seconds the sandbox is ended. Raises `PolicyError`, `HostUnsupported`,
        `ImageError`, `WorkspaceRefused` or `LaunchError`; then nothing is left behind.
        """
        chosen = policy_of(policy, image=image, level=level)
        lifetime_ms = None if timeout is None else seconds_as_ms(timeout)
        owner = await _owner(state_dir)
        sandbox_id = new_id("sb")
        identity = Identity(
            sandbox_id,
            session_id or new_id("se"),
            agent_id or "",
            chosen.isolation.level,
        )
        sandbox = cls(owner, chosen, identity)
        await sandbox.door.call(
            operations.SANDBOX_CREATE,
            chosen.isolation.image,
            {"policy": chosen.digest, "level": chosen.isolation.level},
            sandbox._launch(sandbox_id),
            lambda _: ("success", sandbox._creation_detail()),
        )
        if lifetime_ms is not None:
            sandbox.set_timeout(lifetime_ms / 1000)
        return sandbox

    async def _launch(self, sandbox_id: str) -> None:
        made = await prepared(self._owner, self.policy, sandbox_id)
        self.plan = SandboxPlan(made)
        self.live = await LiveSandbox.launch(made.plan, made.slot, self._attempts.add)
        self._watcher = asyncio.get_running_loop().create_task(self._watch_end())

    @property
    def sandbox_id(self) -> str:
        """The sandbox's id."""
        return self.door.identity.sandbox_id

    @property
    def session_id(self) -> str:
        """The session that it belongs to."""
        return self.door.identity.session_id

    @property
    def protections(self) -> Protections:
        """What was really put up, and each limit's grade on this host."""
        return Protections(self.policy.isolation.level, self.live.protections, self.plan.grades)

    @property
    def timings(self) -> dict[str, float]:
        """Each phase of the creation in ms."""
        return dict(self.live.timings)

    @property
    def refused(self) -> list[Refusal]:
        """The latest refused system calls, oldest first."""
        return list(self._attempts.refused)

    async def is_running(self) -> bool:
        """Say whether commands can be started."""
        return self.live.is_running

    def set_timeout(self, timeout: float) -> None:
        """End the sandbox in `timeout` seconds from now."""
        seconds = seconds_as_ms(timeout) / 1000
        if self._lifetime is not None:
            self._lifetime.cancel()
        self._lifetime = asyncio.get_running_loop().call_later(seconds, self._start_kill, "timeout")

    async def kill(self) -> None:
        """End the sandbox and all in it, remove what it had, and wait until its records are on the disk. Idempotent."""
        await asyncio.shield(self._start_kill("kill"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.kill()

    def limits_met(self) -> list[Limit]:
        """Say which storage of the sandbox is full."""
        for descriptor in self.live.mounts.values():
            space = os.statvfs(f"/proc/self/fd/{descriptor}")
            if space.f_blocks and (space.f_bavail == 0 or (space.f_files and space.f_favail == 0)):
                return ["disk"]
        return []

    def _start_kill(self, reason: str) -> asyncio.Task[Residue]:
        if self._killed is None:
            self._killed = asyncio.get_running_loop().create_task(self._kill(reason))
        return self._killed

    async def _kill(self, reason: str) -> Residue:
        if self._lifetime is not None:
            self._lifetime.cancel()
        if not self.live.ended.is_set():
            self._record_end(operations.SANDBOX_DESTROY, {"reason": reason})
        self._attempts.flush()
        # The records reach the disk while the kernel takes the sandbox apart: each takes about 1 ms.
        async with asyncio.TaskGroup() as group:
            destroying = group.create_task(self.live.destroy())
            group.create_task(self._owner.writer.aflush())
        residue = destroying.result()
        if residue:
            self._record_residue(residue)
            await self._owner.writer.aflush()
        return residue

    async def _watch_end(self) -> None:
        """Record an end that nobody asked for."""
        await self.live.ended.wait()
        if self._killed is None:
            self._attempts.flush()
            error = self.live.end
            detail = error.to_dict() if isinstance(error, StockadeError) else {}
            self._record_end(operations.SANDBOX_DIED, detail)

    def _record_end(self, operation: str, detail: Mapping[str, Any]) -> None:
        result: Literal["success", "error"] = (
            "success" if operation == operations.SANDBOX_DESTROY else "error"
        )
        self.door.record(operation, self.sandbox_id, {}, result, 0, detail)

    def _record_residue(self, residue: Residue) -> None:
        detail = {"left": list(residue.cgroups)}
        self.door.record(operations.RESIDUE, self.sandbox_id, {}, "error", 0, detail)

    def _refused(self, refusal: Refusal) -> None:
        args = [hex(argument) for argument in refusal.args]
        params = {
            "pid": refusal.pid,
            "program": refusal.program,
            "args": args,
            "count": refusal.count,
        }
        self.door.record(operations.SYSCALL_REFUSED, refusal.call, params, "denied", 0)

    def _name_of_call(self, number: int, _arch: int) -> str:
        known = self.plan.calls.get(number)
        return f"syscall {number}" if known is None else known.name

    def _creation_detail(self) -> dict[str, Any]:
        timings = {name: round(ms, 3) for name, ms in self.timings.items()}
        detail = {
            "protections": self.protections.to_dict(),
            "timings_ms": timings,
            # R1: said in the record of each sandbox, not hidden.
            "kernel": "shared with the host: for code that nobody has read, use a microvm",
        }
        if self.timings["total"] > SLOW_CREATE_MS:
            detail["slow"] = self._slowness()
        return detail

    def _slowness(self) -> dict[str, Any]:
        """Return what a slow creation is traced with: see R19."""
        launch = self.live.plan.launch
        return {
            "limit_ms": SLOW_CREATE_MS,
            "seccomp_instructions": (len(launch.seccomp_main) + len(launch.seccomp_child)) // 8,
            "cgroup_depth": max((cgroup.path.count("/") for cgroup in launch.cgroups), default=0),
            "steps": len(launch.steps),
            "left_by_dead_owners": list(self._owner.left_over),
        }


class SandboxPlan:
    """What the public surface needs of a plan."""

    def __init__(self, made: Planned) -> None:
        """Read it once."""
        plan = made.plan
        identity = plan.launch.identity
        self.uid = identity.payload_uid
        self.gid = identity.payload_gid
        self.env = dict(plan.env)
        self.grades = plan.grades
        self.calls = made.calls
        self.cwd = (
            "/workspace" if any(root.path == "/workspace" for root in plan.launch.roots) else "/"
        )


async def _owner(state_dir: str | None) -> Owner:
    known = Owner.known(state_dir)
    return await asyncio.to_thread(Owner.of_this_process, state_dir) if known is None else known
