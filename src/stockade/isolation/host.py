"""What this host has, as one frozen value that planning reads; `probe_host` is the only I/O of planning.

Nothing here decides anything: `ids`, `cgroups` and `container` do, `checks` words it for `stockade doctor`.
A recorded directory tree stands in for the host in tests; what is not in files comes as `System`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: The calls' rlimits by number, the same on x86_64 and aarch64 (asm-generic/resource.h).
RLIMIT_NAMES = {
    "cpu": 0, "fsize": 1, "data": 2, "stack": 3, "core": 4, "nproc": 6, "nofile": 7, "memlock": 8, "as": 9,
    "sigpending": 11, "msgqueue": 12,
}  # fmt: skip
RLIM_INFINITY = (1 << 64) - 1

#: What the launcher uses as root: owning cgroups, taking ids, detached mounts of any directory.
ROOT_CAPABILITIES = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SYS_ADMIN": 21,
}

#: The newest kernel feature that every sandbox needs: SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (kernel-facts 13).
MINIMUM_KERNEL = (5, 19)


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids of /etc/subuid or /etc/subgid."""

    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Cgroup2:
    """The cgroup2 directory below which ours may be made; `controllers` can be switched on there."""

    mount: str
    base: str
    writable: bool
    controllers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class V1Controller:
    """A cgroup v1 hierarchy; `swap` says that the memory controller limits swap too."""

    name: str
    path: str
    writable: bool
    swap: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the host that an image may show: `kind` is `dir`, `file` or `link` (with its target)."""

    path: str
    kind: str
    target: str = ""


@dataclass(frozen=True)
class Host:
    """The facts; a missing or unreadable one has the value that offers least."""

    euid: int
    egid: int
    user: str
    machine: str
    kernel: tuple[int, int]
    capabilities: int
    #: whether every id of the machine is mapped here: false for root inside a user namespace
    all_ids: bool
    landlock_abi: int
    cgroup2: Cgroup2 | None
    v1: tuple[V1Controller, ...]
    max_user_namespaces: int
    userns_clone: bool
    apparmor_userns: bool
    subuid: tuple[IdRange, ...]
    subgid: tuple[IdRange, ...]
    newuidmap: str
    newgidmap: str
    overlay: bool
    core_pattern: str
    pid_max: int
    cpus: int
    memory_bytes: int
    container: str
    proc_covered: bool
    libseccomp: str
    hard_limits: tuple[tuple[str, int], ...]
    #: entries of / and of the curated /etc
    entries: tuple[Entry, ...]
    #: names of /proc that are masked where they exist
    proc_entries: tuple[str, ...]

    @property
    def lacks(self) -> tuple[str, ...]:
        """Capabilities that root needs to build walls and does not have."""
        return tuple(
            name for name, bit in ROOT_CAPABILITIES.items() if not self.capabilities >> bit & 1
        )

    @property
    def is_root(self) -> bool:
        """Whether sandboxes get ranges of ids of their own."""
        return self.euid == 0

    def controller(self, name: str) -> V1Controller | None:
        """Return a v1 hierarchy of ours to use, or None."""
        return next((entry for entry in self.v1 if entry.name == name and entry.writable), None)

    def hard_limit(self, name: str) -> int:
        """Return the hard rlimit that this process has; a sandbox can't get more without CAP_SYS_RESOURCE."""
        return dict(self.hard_limits).get(name, RLIM_INFINITY)


@dataclass(frozen=True, slots=True)
class System:
    """What is not in files: ids, system calls' answers, and which directories this process may write."""

    euid: int
    egid: int
    release: str
    machine: str
    landlock_abi: int
    libseccomp: str
    hard_limits: tuple[tuple[str, int], ...]
    may_write: Callable[[str], bool] = field(compare=False)


def live_system() -> System:
    """Return what the running kernel says about this process."""
    return System(
        euid=os.geteuid(),
        egid=os.getegid(),
        release=platform.release(),
        machine=platform.machine(),
        landlock_abi=_landlock_abi(),
        libseccomp=_libseccomp_version(),
        hard_limits=tuple(
            (name, _as_u64(resource.getrlimit(number)[1])) for name, number in RLIMIT_NAMES.items()
        ),
        may_write=lambda path: os.access(path, os.W_OK, effective_ids=True),
    )


def _as_u64(limit: int) -> int:
    return RLIM_INFINITY if limit == resource.RLIM_INFINITY else limit


def _landlock_abi() -> int:
    """Ask landlock_create_ruleset(2) for its version; the number is the same on every architecture."""
    libc = ctypes.CDLL(None, use_errno=True)
    answer = int(libc.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))
    return max(answer, 0)


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint), ("minor", ctypes.c_uint), ("micro", ctypes.c_uint))


def _libseccomp_version() -> str:
    """Load by its soname: ctypes.util.find_library would start a compiler to look for it."""
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return ""
    library.seccomp_version.restype = ctypes.POINTER(_Version)
    version = library.seccomp_version().contents
    return f"{version.major}.{version.minor}.{version.micro}"


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of /proc/self/mountinfo, as far as we read it."""

    root: str
    point: str
    type: str
    options: frozenset[str]
    super_options: frozenset[str]


def probe_host(root: str | Path = "/", system: System | None = None) -> Host:
    """Read the host's facts; with `root`, from a recorded tree."""
    tree = _Tree(Path(root))
    facts = system or live_system()
    mounts = tuple(_mounts(tree.text("proc/self/mountinfo")))
    user = _user_name(tree, facts.euid)
    release = facts.release.split(".")
    return Host(
        euid=facts.euid,
        egid=facts.egid,
        user=user,
        machine=facts.machine,
        kernel=(int(release[0]), int("".join(char for char in release[1] if char.isdigit()))),
        capabilities=int(tree.field("proc/self/status", "CapEff") or "0", 16),
        all_ids=_all_ids(tree.text("proc/self/uid_map")),
        landlock_abi=facts.landlock_abi,
        cgroup2=_cgroup2(tree, facts, mounts),
        v1=tuple(_v1(tree, facts, mounts)),
        max_user_namespaces=tree.number("proc/sys/user/max_user_namespaces", 0),
        userns_clone=tree.number("proc/sys/kernel/unprivileged_userns_clone", 1) != 0,
        apparmor_userns=tree.number("proc/sys/kernel/apparmor_restrict_unprivileged_userns", 0)
        != 0,
        subuid=_sub_ids(tree, "etc/subuid", user, facts.euid),
        subgid=_sub_ids(tree, "etc/subgid", user, facts.euid),
        newuidmap=tree.program("newuidmap"),
        newgidmap=tree.program("newgidmap"),
        overlay="overlay" in tree.text("proc/filesystems").split(),
        core_pattern=tree.text("proc/sys/kernel/core_pattern").strip(),
        pid_max=tree.number("proc/sys/kernel/pid_max", 32768),
        cpus=max(
            1,
            tree.text("proc/cpuinfo").count("\nprocessor")
            + tree.text("proc/cpuinfo").startswith("processor"),
        ),
        memory_bytes=int((tree.field("proc/meminfo", "MemTotal") or "0 kB").split()[0]) * 1024,
        container=_container(tree),
        proc_covered=any(
            mount.point.startswith("/proc/")
            and not mount.point.startswith("/proc/sys/fs/binfmt_misc")
            for mount in mounts
        ),
        libseccomp=facts.libseccomp,
        hard_limits=facts.hard_limits,
        entries=tuple(tree.entries((*ROOT_ENTRIES, *ETC_ENTRIES))),
        proc_entries=tuple(name for name in PROC_MASKED if tree.exists(f"proc/{name}")),
    )


#: Directories or links of / that image `host` shows.
ROOT_ENTRIES = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
#: What image `host` shows of /etc: how programs find libraries, certificates, names and their own settings.
#: Of ssl and pki only the public parts: private keys lie beside them.
ETC_ENTRIES = tuple(
    f"etc/{name}"
    for name in (
        "alternatives", "ca-certificates", "crypto-policies", "fonts", "java-11-openjdk", "java-17-openjdk",
        "java-21-openjdk", "java-25-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types",
        "os-release", "perl", "pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf", "protocols",
        "python3", "python3.11", "python3.12", "python3.13", "python3.14", "services", "ssl/cert.pem", "ssl/certs",
        "ssl/openssl.cnf", "terminfo",
    )
)  # fmt: skip
#: What shows the kernel or the host through /proc, or acts on them; most is root's only, and masked all the same.
PROC_MASKED = (
    "acpi", "asound", "bus", "cmdline", "config.gz", "diskstats", "driver", "dynamic_debug", "fs", "iomem", "ioports",
    "irq", "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags",
    "latency_stats", "modules", "mtrr", "partitions", "sched_debug", "scsi", "slabinfo", "sysrq-trigger",
    "timer_list", "timer_stats", "tty", "vmallocinfo",
)  # fmt: skip


class _Tree:
    """Reads a host's files below a root; a missing or unreadable file is empty."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, name: str) -> Path:
        return self._root / name.lstrip("/")

    def text(self, name: str) -> str:
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def exists(self, name: str) -> bool:
        return os.path.lexists(self.path(name))

    def number(self, name: str, default: int) -> int:
        text = self.text(name).strip()
        return int(text) if text.isdigit() else default

    def field(self, name: str, key: str) -> str:
        for line in self.text(name).splitlines():
            label, _, value = line.partition(":")
            if label == key:
                return value.strip()
        return ""

    def program(self, name: str) -> str:
        places = (f"/usr/bin/{name}", f"/bin/{name}", f"/usr/local/bin/{name}")
        return next((place for place in places if self.exists(place)), "")

    def entries(self, names: tuple[str, ...]) -> Iterator[Entry]:
        for name in names:
            path = self.path(name)
            if path.is_symlink():
                yield Entry(name, "link", os.readlink(path))
            elif path.is_dir() and any(path.iterdir()):
                yield Entry(name, "dir")
            elif path.is_file():
                yield Entry(name, "file")


def _mounts(text: str) -> Iterator[Mount]:
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if separator and len(left) > 5 and len(right) > 1:  # noqa: PLR2004 - proc_pid_mountinfo(5)
            point = left[4].encode().decode("unicode_escape")
            super_options = right[2] if len(right) > 2 else ""  # noqa: PLR2004 - the options are the third field
            yield Mount(
                left[3],
                point,
                right[0],
                frozenset(left[5].split(",")),
                frozenset(super_options.split(",")),
            )


def _cgroup2(tree: _Tree, facts: System, mounts: tuple[Mount, ...]) -> Cgroup2 | None:
    mount = next((entry for entry in mounts if entry.type == "cgroup2"), None)
    if mount is None:
        return None
    base = mount.point if facts.euid == 0 else _delegated(tree, facts, mount.point)
    return Cgroup2(mount.point, base, _may_use(facts, base), _usable_controllers(tree, base))


def _may_use(facts: System, directory: str) -> bool:
    return facts.may_write(directory) and facts.may_write(f"{directory}/cgroup.procs")


def _delegated(tree: _Tree, facts: System, mount: str) -> str:
    """Return the topmost writable directory around this process's own cgroup: what was delegated to the user.

    A process may only be placed where the common ancestor is writable too (cgroups(7), delegation).
    """
    own = next(
        (line[3:] for line in tree.text("proc/self/cgroup").splitlines() if line.startswith("0::")),
        "/",
    )
    directory = mount + own.rstrip("/")
    best = directory
    while directory != mount and _may_use(facts, directory):
        best = directory
        directory = directory.rpartition("/")[0]
    return best


def _usable_controllers(tree: _Tree, base: str) -> tuple[str, ...]:
    """Return the controllers that can be switched on below `base`.

    A cgroup that holds processes can't switch any on, except the root of all ("no internal processes",
    cgroups(7)); then only those that are on already count. `cgroup.type` is missing in the root of all.
    """
    available = tree.text(f"{base}/cgroup.controllers").split()
    is_top = not tree.exists(f"{base}/cgroup.type")
    if not is_top and tree.text(f"{base}/cgroup.procs").strip():
        available = tree.text(f"{base}/cgroup.subtree_control").split()
    return tuple(name for name in ("cpu", "memory", "pids") if name in available)


def _v1(tree: _Tree, facts: System, mounts: tuple[Mount, ...]) -> Iterator[V1Controller]:
    for mount in mounts:
        if mount.type != "cgroup":
            continue
        writable = _may_use(facts, mount.point)
        for name in ("cpu", "memory", "pids"):
            if name in mount.super_options:
                swap = tree.exists(f"{mount.point}/memory.memsw.limit_in_bytes")
                yield V1Controller(name, mount.point, writable, swap)


def _all_ids(uid_map: str) -> bool:
    """Say whether a uid_map is the initial one, which maps all 2^32-1 ids to themselves."""
    numbers = uid_map.split()
    return numbers == ["0", "0", "4294967295"]


def _user_name(tree: _Tree, uid: int) -> str:
    for line in tree.text("etc/passwd").splitlines():
        parts = line.split(":")
        if len(parts) > 2 and parts[2] == str(uid):  # noqa: PLR2004 - passwd(5)
            return parts[0]
    return str(uid)


def _sub_ids(tree: _Tree, name: str, user: str, uid: int) -> tuple[IdRange, ...]:
    ranges = []
    for line in tree.text(name).splitlines():
        owner, _, numbers = line.strip().partition(":")
        start, _, count = numbers.partition(":")
        if owner in (user, str(uid)) and start.isdigit() and count.isdigit():
            ranges.append(IdRange(int(start), int(count)))
    return tuple(ranges)


def _container(tree: _Tree) -> str:
    """Return a word for the container that we run in, or nothing."""
    if tree.exists("run/.containerenv"):
        return "podman"
    if tree.exists(".dockerenv"):
        return "docker"
    environment = tree.text("run/systemd/container").strip()
    return environment or ("kubernetes" if tree.exists("var/run/secrets/kubernetes.io") else "")
