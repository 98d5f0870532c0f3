"""The `container` wall: from policy, host, slot and id to a plan; pure.

What does not depend on the sandbox is planned once for a policy and a host; a sandbox adds its id, its range of ids
and its cgroups.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from stockade.errors import HostUnsupported
from stockade.isolation import filesystem, images
from stockade.isolation.cgroups import plan_cgroups
from stockade.isolation.grades import LimitGrade, check_grades
from stockade.isolation.host import MINIMUM_KERNEL, RLIM_INFINITY, RLIMIT_NAMES, Host
from stockade.isolation.ids import identity_for, is_single
from stockade.isolation.plan import Plan, Template, with_own
from stockade.isolation.seccomp import Program
from stockade.isolation.workspaces import Inspected
from stockade.policy import IMAGE_HOST, Policy
from stockade.wire.frames import PROTOCOL_VERSION, Rlimit
from stockade.wire.launch import (
    ATTR_NODEV,
    ATTR_NOEXEC,
    ATTR_NOSUID,
    ATTR_RDONLY,
    LAUNCH_INNER_USER,
    LAUNCH_LANDLOCK,
    LAUNCH_LANDLOCK_SIGNALS,
    OWNER_ROOT,
    Devpts,
    Hostname,
    Launch,
    Loopback,
    Mask,
    Mkdir,
    Pivot,
    Proc,
    Step,
    Symlink,
    Sysfs,
    Tmpfs,
    Watch,
)

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
#: The cgroup namespace is not among them: the cell makes it, from within its cgroup.
NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS

#: Landlock keeps signals within its domain since this version.
LANDLOCK_SIGNALS_ABI = 6

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
#: Pseudo-terminals at once: one for each command with a terminal, and some for tmux and script(1).
PTYS = 32

#: Signals queued for the payload: sixteen for each of R7's 64 processes.
SIGPENDING = 1024
#: Bytes of POSIX message queues: the kernel's own default for a user.
MSGQUEUE_BYTES = 819_200
#: Locked memory: the kernel's own default since 5.16.
MEMLOCK_BYTES = 8 << 20
#: Tasks of the cell that count with the payload's where both have one id.
SINGLE_ID_TASKS = 4

#: Where a pids controller holds the limit, the rlimit stands behind it: only the controller counts what it refuses.
COUNTED_TASKS = 8

#: Over this time the CPU watch takes its average: a command of the slow tier (R25, 60 s) may use a whole core.
CPU_WATCH_MS = 60_000

PAGE_BYTES = 4096

#: Values of the user namespace. Nothing makes these kinds after /proc is mounted; mount and cgroup namespaces are
#: left alone.
_USER_SYSCTLS = (
    "user/max_pid_namespaces=0",
    # the one that a helper makes while /proc is mounted
    "user/max_net_namespaces=1",
    "user/max_ipc_namespaces=0",
    "user/max_uts_namespaces=0",
    "-user/max_time_namespaces=0",
    "-user/max_inotify_instances=128",
    "-user/max_inotify_watches=16384",
    "-user/max_fanotify_groups=0",
    "-user/max_fanotify_marks=0",
)
#: Values of the IPC namespace: its objects are kernel memory that no file system's size bounds (kernel-facts 5).
_IPC_SYSCTLS = (
    "kernel/shm_rmid_forced=1",
    "kernel/msgmni=64",
    "kernel/sem=250 32000 100 128",
)


class ContainerWall:
    """All that one policy means on one host; `plan` adds what is a sandbox's own."""

    def __init__(self, policy: Policy, host: Host, program: Program, inspected: Inspected) -> None:
        """Plan the constant part; raises `HostUnsupported` or `ImageError` for what can't be had here."""
        check_host(policy, host)
        images.check_mount_points(policy.isolation.image, inspected.image_lacks)
        self._policy = policy
        self._host = host
        self._cgroups = plan_cgroups(policy.limits, host)
        self.grades = (*self._cgroups.grades, *filesystem.disk_grades(policy))
        check_grades(policy, self.grades)
        self.env = environment(policy)
        self._program = program
        self._template = Template(self._launch(inspected))

    def cgroup_paths(self, sandbox_id: str) -> tuple[str, ...]:
        """Return the cgroup directories of one sandbox: what a slot's owner must write down before they exist."""
        return tuple(cgroup.path for cgroup in self._cgroups.for_sandbox(sandbox_id))

    def plan(self, slot: int, sandbox_id: str) -> Plan:
        """Return the plan of one sandbox."""
        identity = identity_for(self._host, self._policy.isolation.uid, slot)
        cgroups = self._cgroups.for_sandbox(sandbox_id)
        launch = with_own(self._template.launch, sandbox_id, identity, cgroups)
        digests = (self._policy.digest, self._program.digest)
        return Plan(launch, self.grades, self.env, *digests, self._template)

    def _launch(self, inspected: Inspected) -> Launch:
        policy, host, program = self._policy, self._host, self._program
        single = is_single(host)
        writable = filesystem.writable_paths(policy)
        return Launch(
            version=PROTOCOL_VERSION,
            sandbox_id="",
            namespaces=NAMESPACES,
            flags=_flags(policy, host),
            identity=identity_for(host, policy.isolation.uid, 0),
            cgroups=(),
            steps=tuple(steps(policy, host, inspected)),
            seccomp_main=program.main,
            seccomp_child=program.child_single if single else program.child,
            landlock=filesystem.landlock_rules(policy) if policy.isolation.landlock else (),
            rlimits=rlimits(policy, host, self.grades),
            roots=filesystem.file_roots(policy),
            watch=_watch(policy, self.grades),
            pass_out=("/", *writable, "/dev/shm"),
        )


#: Walls kept by what they were planned from; a policy for each workspace is usual, so the oldest goes first.
_walls: OrderedDict[tuple[str, str, Host, Inspected], ContainerWall] = OrderedDict()
_MAX_WALLS = 64


def wall_for(policy: Policy, host: Host, program: Program, inspected: Inspected) -> ContainerWall:
    """Return the wall of a policy, planned once and kept; raises `HostUnsupported` for a level that can't be built.

    A level is never replaced by another one (C03).
    """
    level = policy.isolation.level
    if level != "container":
        raise HostUnsupported(
            f"isolation level {level!r}", "Use level 'container'; others come with a later version."
        )
    key = (policy.digest, program.digest, host, inspected)
    wall = _walls.get(key)
    if wall is None:
        wall = _walls[key] = ContainerWall(policy, host, program, inspected)
        if len(_walls) > _MAX_WALLS:
            _walls.popitem(last=False)
    return wall


def check_host(policy: Policy, host: Host) -> None:
    """Raise `HostUnsupported` for the first thing that every container needs and this host lacks."""
    need = ".".join(map(str, MINIMUM_KERNEL))
    if host.kernel < MINIMUM_KERNEL:
        have = ".".join(map(str, host.kernel))
        raise HostUnsupported(
            f"killable system call notifications: kernel {have} is too old", f"Use {need} or newer."
        )
    if host.max_user_namespaces == 0 or (not host.is_root and not host.userns_clone):
        raise HostUnsupported(
            "user namespaces",
            "Run: sysctl -w user.max_user_namespaces=15000 kernel.unprivileged_userns_clone=1",
        )
    if host.is_root and (host.lacks or not host.all_ids):
        lacks = ", ".join(host.lacks) or "ids of its own: it is inside a user namespace"
        raise HostUnsupported(
            f"sandboxes as this root, which lacks {lacks}",
            "Run as the machine's root with these rights, or as an ordinary user.",
        )
    if not host.is_root and host.apparmor_userns:
        raise HostUnsupported(
            "user namespaces for an ordinary user: AppArmor restricts them",
            "Run: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or run as root.",
        )
    if host.proc_covered:
        raise HostUnsupported(
            "a /proc of the sandbox's own: parts of the host's are covered, as inside a container",
            "Start the outer container with its /proc unmasked (docker: --security-opt systempaths=unconfined).",
        )
    if policy.isolation.landlock and host.landlock_abi < 1:
        raise HostUnsupported(
            "Landlock", "Boot with lsm=landlock,..., or do without: isolation: {landlock: false}."
        )


def _flags(policy: Policy, host: Host) -> int:
    inner = LAUNCH_INNER_USER if is_single(host) else 0
    if not policy.isolation.landlock:
        return inner
    signals = is_single(host) and host.landlock_abi >= LANDLOCK_SIGNALS_ABI
    return inner | LAUNCH_LANDLOCK | (LAUNCH_LANDLOCK_SIGNALS if signals else 0)


def steps(policy: Policy, host: Host, inspected: Inspected) -> Iterator[Step]:
    """Yield the steps in their order: what a later one covers or needs stands before it."""
    yield from images.image_steps(policy, host)
    yield from _device_steps(policy)
    yield Proc("proc", "proc", sysctls(policy, host))
    yield from (Mask(f"mask {name}", f"proc/{name}") for name in host.proc_entries)
    if policy.isolation.sys:
        yield Sysfs("sys", "sys")
    yield from filesystem.storage_steps(policy)
    yield from filesystem.workspace_steps(policy, host, inspected)
    yield Hostname("hostname", policy.isolation.hostname)
    yield Loopback("loopback")
    yield Pivot("pivot", read_only=policy.filesystem.mode != "independent")


def _device_steps(policy: Policy) -> Iterator[Step]:
    """Yield a minimal /dev. An image directory brings its own, which may hold anything: it is covered."""
    attrs = ATTR_NOSUID | ATTR_NOEXEC
    if policy.isolation.image == IMAGE_HOST:
        yield Mkdir("dev", "dev", 0o755, OWNER_ROOT)
    else:
        yield Tmpfs("dev", "dev", 64 << 10, 64, 0o755, OWNER_ROOT, attrs)
    # Read-only: a device is written to all the same, but the host's inode keeps its times and mode.
    for name in DEVICES:
        yield images.bind(f"device {name}", f"/dev/{name}", f"dev/{name}", attrs | ATTR_RDONLY)
    links = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    for name, target in links.items():
        yield Symlink(
            f"link dev/{name}", target if name == "fd" else f"/proc/self/{target}", f"dev/{name}"
        )
    yield Devpts("pts", PTYS)
    shm = policy.storage.shm
    shm_attrs = attrs | ATTR_NODEV
    yield Tmpfs("shm", "dev/shm", shm.size_bytes, shm.inodes, 0o1777, OWNER_ROOT, shm_attrs)


def sysctls(policy: Policy, host: Host) -> tuple[str, ...]:
    """Return the values written to the sandbox's own /proc/sys before it becomes read-only."""
    pages = max(1, policy.storage.sysv_bytes // PAGE_BYTES)
    shared = (f"kernel/shmall={pages}", f"kernel/shmmax={pages * PAGE_BYTES}")
    # Nesting is blocked (kernel-facts 11), but for the namespace that the launcher itself still makes.
    nested = int(is_single(host))
    return (f"user/max_user_namespaces={nested}", *_USER_SYSCTLS, *_IPC_SYSCTLS, *shared)


def rlimits(policy: Policy, host: Host, grades: Sequence[LimitGrade] = ()) -> tuple[Rlimit, ...]:
    """Return each command's rlimits, never above this process's own hard ones.

    RLIMIT_CORE is 1, not 0: a piped core_pattern ignores 0 (kernel-facts 10).
    """
    limits = policy.limits
    extra_tasks = SINGLE_ID_TASKS if is_single(host) else 0
    if any(entry.limit == "processes" and entry.by.startswith("cgroup") for entry in grades):
        extra_tasks += COUNTED_TASKS
    wanted = {
        "core": 1,
        "nofile": limits.open_files,
        "nproc": limits.processes + extra_tasks,
        "sigpending": SIGPENDING,
        "msgqueue": MSGQUEUE_BYTES,
        "memlock": MEMLOCK_BYTES,
        "cpu": limits.cpu_seconds,
        "fsize": limits.file_size,
    }
    found = []
    for name, value in wanted.items():
        if value is not None:
            allowed = min(value, host.hard_limit(name), RLIM_INFINITY)
            found.append(Rlimit(RLIMIT_NAMES[name], allowed, allowed))
    return tuple(found)


def environment(policy: Policy) -> tuple[tuple[str, str], ...]:
    """Return the variables that every command gets; nothing of the host's is among them (R9)."""
    toolchains = [f"{path}/bin" for path in policy.filesystem.toolchains]
    own = {
        "PATH": ":".join(
            [*toolchains, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        ),
        "HOME": images.home_of(policy),
        "LANG": "C.UTF-8",
    }
    return tuple({**own, **policy.isolation.env}.items())


def _watch(policy: Policy, grades: tuple[LimitGrade, ...]) -> Watch:
    watched = {entry.limit for entry in grades if entry.grade == "watched"}
    limited = [
        workspace
        for workspace in policy.filesystem.workspaces
        if workspace.access == "rw" and workspace.limit
    ]
    sizes = [workspace.limit.bytes or 0 for workspace in limited if workspace.limit]
    inodes = [workspace.limit.inodes or 0 for workspace in limited if workspace.limit]
    cpu = "cpu" in watched
    return Watch(
        memory_bytes=policy.limits.memory if "memory" in watched else 0,
        cpu_millicores=round(policy.limits.cpu * 1000) if cpu else 0,
        cpu_window_ms=CPU_WATCH_MS if cpu else 0,
        disk_paths=tuple(workspace.target for workspace in limited),
        disk_bytes=sum(sizes),
        disk_inodes=sum(inodes),
    )
