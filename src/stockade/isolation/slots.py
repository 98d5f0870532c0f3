"""Slots: the numbers behind id ranges, each owned by one live process at a time, and what dead owners left; I/O.

A slot is a lock file with an flock(2) that ends with its owner, however that dies. Its content names the cgroups of
the sandbox in it, so that whoever takes the slot, or collects at the next start, removes them first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stockade.errors import HostUnsupported
from stockade.isolation import cgroups_io
from stockade.isolation.cgroups import check_id
from stockade.isolation.ids import MAX_SLOTS

#: How long a dead owner's processes may take to die; cgroup.kill takes 1.4 ms (kernel-facts 1).
COLLECT_TIMEOUT_S = 5.0
#: Content of a lock file: an id and at most 8 paths. Always of this size, so that writing it again allocates nothing:
#: on ext4 a new file for each sandbox took 0.16 ms.
CONTENT_BYTES = 2048
_BLANK = b"\n".rjust(CONTENT_BYTES)


@dataclass(frozen=True, slots=True)
class Owned:
    """What a slot's lock file says about its sandbox."""

    sandbox_id: str
    cgroups: tuple[str, ...]
    pid: int
    created: float


@dataclass(frozen=True, slots=True)
class Collected:
    """What a dead owner left, and what of it could not be removed."""

    slot: int
    sandbox_id: str
    left: tuple[str, ...]


class Slot:
    """A slot that this process owns until `release`."""

    def __init__(self, number: int, descriptor: int, free: list[int]) -> None:
        self.number = number
        self._descriptor = descriptor
        self._free = free
        _held.add(self)

    def release(self) -> None:
        """Give the slot back; call it when its cgroups are gone. A second call does nothing."""
        descriptor = self._forget()
        if descriptor >= 0:
            os.pwrite(descriptor, _BLANK, 0)
            _unlock(descriptor)
            self._free.append(self.number)

    def abandon(self) -> None:
        """Unlock the slot but leave its content: what is left of the sandbox is collected later."""
        descriptor = self._forget()
        if descriptor >= 0:
            _unlock(descriptor)

    def close_copy(self) -> None:
        """Close a forked child's copy; the lock stays its parent's."""
        descriptor = self._forget()
        if descriptor >= 0:
            os.close(descriptor)

    def _forget(self) -> int:
        descriptor, self._descriptor = self._descriptor, -1
        _held.discard(self)
        return descriptor


def _unlock(descriptor: int) -> None:
    """Unlock by name: a child that was just forked may still hold a copy of the descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


# A forked child holds the lock too: without this, a worker that outlives its parent keeps a dead sandbox's slot.
_held: weakref.WeakSet[Slot] = weakref.WeakSet()


def _close_in_child() -> None:
    for slot in list(_held):
        slot.close_copy()


os.register_at_fork(after_in_child=_close_in_child)


class Slots:
    """The slots of one run directory."""

    def __init__(self, run_dir: str, count: int = MAX_SLOTS) -> None:
        """Make `run_dir` (mode 0700) where it is missing; raises `HostUnsupported` if it is someone else's."""
        self._count = count
        self._next = 0
        #: given back by this process: taken again first, so that files do not pile up
        self._free: list[int] = []
        open_run_dir(run_dir)
        self._directory = os.path.join(run_dir, "slots")
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)

    def take(self, sandbox_id: str, cgroups: Sequence[str]) -> Slot:
        """Own a free slot; `cgroups` are the directories that will be made for it.

        What a dead owner left in it is removed first. Raises `HostUnsupported` if all are taken.
        """
        check_id(sandbox_id)
        content = _content(Owned(sandbox_id, tuple(cgroups), os.getpid(), time.time()))
        for number in self._candidates():
            descriptor = self._lock(number)
            if descriptor is None:
                continue
            if _clean(descriptor, number).left:
                os.close(descriptor)
                continue
            os.pwrite(descriptor, content, 0)
            return Slot(number, descriptor, self._free)
        raise HostUnsupported(
            f"more than {self._count} sandboxes at once", "Destroy some, or wait for them to end."
        )

    def _candidates(self) -> Iterator[int]:
        while self._free:
            yield self._free.pop()
        for _ in range(self._count):
            number, self._next = self._next, (self._next + 1) % self._count
            yield number

    def collect(self) -> tuple[Collected, ...]:
        """Remove what dead owners left; call it once at start."""
        found = []
        for number in self._numbers():
            descriptor = self._lock(number)
            if descriptor is None:
                continue
            try:
                collected = _clean(descriptor, number)
                if collected.sandbox_id:
                    found.append(collected)
                if not collected.left:
                    _unlink(self._path(number))
            finally:
                os.close(descriptor)
        return tuple(found)

    def _numbers(self) -> Iterator[int]:
        for name in sorted(os.listdir(self._directory)):
            stem, _, suffix = name.partition(".")
            if suffix == "lock" and stem.isdigit():
                yield int(stem)

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"{number}.lock")

    def _lock(self, number: int) -> int | None:
        """Return a locked descriptor, or None if the slot has a live owner."""
        path = self._path(number)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Someone may have removed the file: then another owner could lock a new one of the same name.
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BlockingIOError:
            pass
        os.close(descriptor)
        return None


def collect(run_dir: str) -> tuple[Collected, ...]:
    """Remove what dead owners left in a run directory."""
    return Slots(run_dir).collect()


def open_run_dir(path: str) -> None:
    """Make a directory for our locks, or check that it is ours alone; raises `HostUnsupported`."""
    with contextlib.suppress(FileExistsError):
        os.makedirs(path, mode=0o700)
    facts = os.lstat(path)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise HostUnsupported(
            f"a run directory of its own: {path} is not a directory that only this user can write",
            "Remove it, or name another one.",
        )


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def run_dir_for(uid: int, runtime_dir: str | None) -> str:
    """Return the usual run directory; `runtime_dir` is XDG_RUNTIME_DIR, which only the program's edge reads."""
    if uid == 0:
        return "/run/stockade"
    return f"{runtime_dir}/stockade" if runtime_dir else f"/tmp/stockade-{uid}"


def _clean(descriptor: int, number: int) -> Collected:
    """Remove what the slot's content names, then the content."""
    owned = _owned(descriptor)
    if owned is None:
        return Collected(number, "", ())
    left = cgroups_io.remove_paths(owned.cgroups, COLLECT_TIMEOUT_S)
    if not left:
        os.pwrite(descriptor, _BLANK, 0)
    return Collected(number, owned.sandbox_id, left)


def _content(owned: Owned) -> bytes:
    data = {
        "sandbox_id": owned.sandbox_id,
        "cgroups": owned.cgroups,
        "pid": owned.pid,
        "created": round(owned.created, 3),
    }
    text = json.dumps(data).encode()
    if len(text) >= CONTENT_BYTES:
        raise ValueError(f"a slot's content of {len(text)} bytes")
    return text.ljust(CONTENT_BYTES - 1) + b"\n"


def _owned(descriptor: int) -> Owned | None:
    """Return the content; None if it is empty or torn (its owner died before it could make anything)."""
    content = os.pread(descriptor, CONTENT_BYTES, 0)
    if not content.endswith(b"\n"):
        return None
    try:
        data = json.loads(content)
        paths = tuple(map(str, data["cgroups"]))
        for path in paths:
            cgroups_io.check_ours(path)
        return Owned(str(data["sandbox_id"]), paths, int(data["pid"]), float(data["created"]))
    except (ValueError, KeyError, TypeError):
        return None
