"""One live sandbox: from the launch of its plan to the last thing that it leaves behind.

It owns every descriptor, process and cgroup of the sandbox, and `destroy` ends them on each path out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from stockade.errors import LaunchError, ProtocolError, SandboxDied, StateError, StockadeError
from stockade.isolation import cgroups_io
from stockade.isolation.plan import Plan
from stockade.isolation.slots import Slot
from stockade.runtime.channel import Channel
from stockade.runtime.death import Seen, reason_of
from stockade.runtime.notices import Attempt, Notices
from stockade.runtime.spawn import cell_path, forget_channel, start_launcher
from stockade.wire import frames
from stockade.wire.launch import CGROUP_JOIN, CGROUP_WORK, Cgroup

#: A launch that takes longer is given up. It takes 3 ms; a loaded host with a cold cache was seen at 900 ms.
LAUNCH_DEADLINE_S = 10.0
#: The kernel kills and reaps 64 frozen processes in 2 ms; after this much more, what is left is reported.
DESTROY_DEADLINE_S = 10.0

#: How long the launcher may take to exit after READY.
LAUNCHER_EXIT_S = 1.0
#: No descriptor tells of the end of a child whose number we were never told.
_GROUP_POLL_S = 0.002

_ADVICE = {
    "clone": "user namespaces may be off: see `stockade doctor`",
    "proc": "inside another container /proc may be covered: see `stockade doctor`",
    "cgroups": "the cgroup hierarchy must be writable: see `stockade doctor`",
    "seccomp": "the kernel needs seccomp with user notification (Linux 5.19 or later)",
    "landlock": "the kernel needs Landlock (CONFIG_SECURITY_LANDLOCK and lsm=landlock)",
}


class _Launch:
    """The dialogue of id 0 until READY or FAILED."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[frames.Ready] = loop.create_future()
        self.pid = 0

    def on_message(self, message: frames.FromCell) -> None:
        match message:
            case frames.Spawned(pid=pid) if not self.pid:
                self.pid = pid
            case frames.Ready() if self.pid and not self.ready.done():
                self.ready.set_result(message)
            case frames.Failed(step=step, errno=number, detail=detail):
                self.on_lost(
                    LaunchError(step=step, errno=number, detail=detail, how=_ADVICE.get(step, ""))
                )
            case _:
                raise ProtocolError(detail=f"{type(message).__name__} during the launch")

    def on_lost(self, error: StockadeError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # the launch may have been cancelled: then nobody else looks


@dataclass(frozen=True, slots=True)
class Residue:
    """What was still there after a destroy; empty when all is gone."""

    cgroups: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return True when anything is left."""
        return bool(self.cgroups)


@dataclass(frozen=True, slots=True)
class LimitEvents:
    """Counts since the launch: processes killed for memory, forks refused at the limit of processes."""

    memory_kills: int
    refused_forks: int


class LiveSandbox:
    """A sandbox whose wall stands. Made by `launch`."""

    def __init__(self, plan: Plan, slot: Slot) -> None:
        """Take ownership of `slot`; nothing is started yet."""
        self.plan = plan
        self._slot = slot
        self._loop = asyncio.get_running_loop()
        self._asked = False
        self._owner_pid = os.getpid()
        self._channel_error: StockadeError | None = None
        self._pidfd = -1
        self._notices: Notices | None = None
        self._destroying: asyncio.Task[Residue] | None = None
        self._end: StockadeError | None = None
        self._kills = cgroups_io.EventCounter((), "memory")
        self._forks = cgroups_io.EventCounter((), "pids")
        #: set when the sandbox has ended, for whatever reason
        self.ended = asyncio.Event()
        self.channel: Channel
        self.pid = 0
        self.protections: tuple[str, ...] = ()
        #: phase -> milliseconds, in order
        self.timings: dict[str, float] = {}
        #: O_PATH descriptors of the writable mounts, by inside path
        self.mounts: dict[str, int] = {}

    @classmethod
    async def launch(
        cls, plan: Plan, slot: Slot, on_attempt: Callable[[Attempt], None]
    ) -> LiveSandbox:
        """Build the wall of `plan`; raises `LaunchError`, and then nothing is left of it."""
        live = cls(plan, slot)
        try:
            await live._launch(on_attempt)
        except BaseException:
            await asyncio.shield(live.destroy())
            raise
        return live

    async def _launch(self, on_attempt: Callable[[Attempt], None]) -> None:
        begin = time.perf_counter()
        launcher, left = start_launcher(cell_path(), self.plan.frame)
        self.timings["start the launcher"] = _ms(begin)
        dialogue = _Launch()
        try:
            self.channel = Channel(launcher.channel, self._channel_lost)
            self.channel.listen(dialogue)
            if left:
                self.channel.send_raw(left)
            async with asyncio.timeout(LAUNCH_DEADLINE_S):
                ready = await dialogue.ready
        except BaseException as error:
            self._take_pidfd(dialogue.pid)
            if not hasattr(self, "channel"):
                forget_channel(launcher.channel)
            await asyncio.shield(_end_group(launcher.pid))
            if isinstance(error, TimeoutError):
                detail = f"not ready within {LAUNCH_DEADLINE_S:.0f} s"
                raise LaunchError(step="launch", detail=detail) from error
            raise
        self._take_pidfd(dialogue.pid)
        await self._reap_launcher(launcher.pid)
        self._stand(ready, on_attempt)
        self.timings["total"] = _ms(begin)

    def _take_pidfd(self, pid: int) -> None:
        self.pid = pid
        if pid and self.channel.fds:
            self._pidfd = self.channel.fds.pop(0)

    async def _reap_launcher(self, pid: int) -> None:
        """Wait for the launcher, which has nothing to do after READY but to exit."""
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) != (0, 0):  # noqa: ASYNC222 - does not wait
                return
            descriptor = os.pidfd_open(pid)
            try:
                async with asyncio.timeout(LAUNCHER_EXIT_S):
                    await self._readable(descriptor)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
            finally:
                os.close(descriptor)
            os.waitpid(pid, 0)  # noqa: ASYNC222 - it has ended, or was killed just now

    def _stand(self, ready: frames.Ready, on_attempt: Callable[[Attempt], None]) -> None:
        if ready.version != frames.PROTOCOL_VERSION:
            raise ProtocolError(detail=f"the cell speaks version {ready.version}")
        if len(ready.fds) != len(self.channel.fds):
            raise ProtocolError(detail="descriptors and their names differ in number")
        named = dict(zip(ready.fds, self.channel.fds, strict=True))
        self.channel.fds.clear()
        self._notices = Notices(named.pop("seccomp"), on_attempt)
        self.mounts = named
        self.protections = ready.protections
        for step in ready.timings:
            self.timings[step.name] = self.timings.get(step.name, 0.0) + step.microseconds / 1000
        self._kills = cgroups_io.EventCounter(self.plan.launch.cgroups, "memory")
        self._forks = cgroups_io.EventCounter(self.plan.launch.cgroups, "pids")
        self._loop.add_reader(self._pidfd, self._cell_ended)

    @property
    def end(self) -> StockadeError | None:
        """Why the sandbox ended; None while it lives."""
        return self._end

    @property
    def is_running(self) -> bool:
        """True while commands can be started."""
        return self._end is None and not self._asked

    def check(self) -> None:
        """Raise the reason of the end if the sandbox has ended; in a forked child it is another process's."""
        if os.getpid() != self._owner_pid:
            raise StateError(self.plan.sandbox_id, "owned by another process", "use it")
        if self._end is not None:
            raise self._end
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("an AsyncSandbox belongs to the event loop that created it")

    def limit_events(self) -> LimitEvents:
        """Return what the kernel did at the limits so far; 0 where no controller counts it."""
        return LimitEvents(self._kills.read(), self._forks.read())

    def _channel_lost(self, error: StockadeError | None) -> None:
        self._channel_error = error
        self._destroying = self._start_destroy()

    def _cell_ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._destroying = self._start_destroy()

    def _start_destroy(self) -> asyncio.Task[Residue]:
        if self._destroying is None:
            self._destroying = self._loop.create_task(self._destroy())
        return self._destroying

    async def destroy(self) -> Residue:
        """End everything of the sandbox and return what could not be removed. Idempotent."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("an AsyncSandbox belongs to the event loop that created it")
        self._asked = self._asked or self._destroying is None
        return await asyncio.shield(self._start_destroy())

    async def _destroy(self) -> Residue:
        cgroups = self.plan.launch.cgroups
        oom_kills = self._kills.read() if not self._asked else 0
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            # The end of PID 1 is the end of its whole namespace, frozen or not; `remove` below kills what is left.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        else:
            cgroups_io.kill(cgroups)
        # While the kernel takes the namespaces apart (1 ms): what nobody uses any more.
        self._close_mounts()
        cgroups_io.remove_now(
            cgroup.path for cgroup in reversed(cgroups) if _holds_commands(cgroup)
        )
        status = await self._wait_cell()
        seen = Seen(
            self.plan.launch.sandbox_id, self._asked, self._channel_error, oom_kills, status
        )
        self._end = reason_of(seen)
        self._close_all()
        left = await cgroups_io.remove(cgroups, DESTROY_DEADLINE_S)
        if left:
            # Its ids are not given to another sandbox while something of it may run; the next start collects it.
            self._slot.abandon()
        else:
            self._slot.release()
        self.ended.set()
        return Residue(cgroups=left)

    async def _wait_cell(self) -> int | None:
        if self._pidfd < 0:
            return None
        try:
            async with asyncio.timeout(DESTROY_DEADLINE_S):
                await self._readable(self._pidfd)
        except TimeoutError:
            return None
        with contextlib.suppress(
            ChildProcessError
        ):  # an embedding program may reap all of its children
            result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222 - does not wait
            if result is not None:
                return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        return None

    async def _readable(self, descriptor: int) -> None:
        future = self._loop.create_future()

        def ready() -> None:
            if not future.done():
                future.set_result(None)

        self._loop.add_reader(descriptor, ready)
        try:
            await future
        finally:
            self._loop.remove_reader(descriptor)

    def _close_all(self) -> None:
        if hasattr(self, "channel"):
            self.channel.close()
            self.channel.fail_all(self._end or SandboxDied(self.plan.launch.sandbox_id, "channel"))
            for descriptor in self.channel.fds:
                os.close(descriptor)
            self.channel.fds.clear()
        if self._notices is not None:
            self._notices.close()
        self._close_mounts()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _close_mounts(self) -> None:
        self._kills.close()
        self._forks.close()
        mounts, self.mounts = self.mounts, {}
        for descriptor in mounts.values():
            os.close(descriptor)


def _holds_commands(cgroup: Cgroup) -> bool:
    """Say whether only commands are in it: without one it is empty before the cell is gone."""
    return cgroup.role in (CGROUP_WORK, CGROUP_JOIN)


async def _end_group(leader: int) -> None:
    """Kill and reap a launcher whose launch failed, and the cell that it may have cloned without telling us.

    Both are our children in the launcher's process group (CLONE_PARENT).
    """
    # EPERM: the cell has become another user; it dies of its channel's end.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    deadline = time.monotonic() + DESTROY_DEADLINE_S
    while time.monotonic() < deadline:
        try:
            pid, _status = os.waitpid(-leader, os.WNOHANG)  # noqa: ASYNC222 - does not wait
        except ChildProcessError:
            return
        if pid == 0:
            await asyncio.sleep(_GROUP_POLL_S)


def _ms(begin: float) -> float:
    return (time.perf_counter() - begin) * 1000
