"""The plan as the launcher reads it: identity, cgroups, and the steps that build a wall, in order.

`stockade.isolation` makes these from a policy; `stockade-cell launch` applies them. A step's `name` is what an
error or `stockade plan` shows. Paths of sandbox targets are relative to the new root, without a leading slash.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Annotated, ClassVar, TypeAlias

from stockade.errors import ProtocolError
from stockade.wire.codec import (
    U8,
    U16,
    U32,
    U64,
    Bool,
    Bytes,
    ListOf,
    Reader,
    Str,
    Strs,
    StructOf,
    encode_struct,
)
from stockade.wire.frames import Rlimits

#: `Mkdir.owner` and the like: who owns what a step makes.
OWNER_ROOT = 0
OWNER_PAYLOAD = 1

#: Mount attributes, the kernel's own numbers (mount_setattr(2)).
ATTR_RDONLY = 0x1
ATTR_NOSUID = 0x2
ATTR_NODEV = 0x4
ATTR_NOEXEC = 0x8


@dataclasses.dataclass(frozen=True, slots=True)
class Root:
    """A tmpfs that becomes the root directory. Must be the first step."""

    op: ClassVar[int] = 1
    name: Str
    size_bytes: U64
    inodes: U64


@dataclasses.dataclass(frozen=True, slots=True)
class RootTree:
    """A host directory (an image) that becomes the root. Must be the first step.

    With `overlay_bytes` > 0 it is writable through an overlay whose upper layer is a tmpfs of that size.
    `map_uid`, `map_gid`: see `Bind`.
    """

    op: ClassVar[int] = 2
    name: Str
    source: Str
    map_uid: U32
    map_gid: U32
    overlay_bytes: U64
    overlay_inodes: U64


@dataclasses.dataclass(frozen=True, slots=True)
class Mkdir:
    """Make a directory and its parents (an existing one is no error)."""

    op: ClassVar[int] = 3
    name: Str
    path: Str
    mode: U32
    owner: U8


@dataclasses.dataclass(frozen=True, slots=True)
class Symlink:
    """Make a symbolic link."""

    op: ClassVar[int] = 4
    name: Str
    target: Str
    path: Str


@dataclasses.dataclass(frozen=True, slots=True)
class WriteFile:
    """Make a small file with fixed contents (parents are made)."""

    op: ClassVar[int] = 5
    name: Str
    path: Str
    mode: U32
    content: Bytes


#: `Bind.map_uid`: leave ownership as it is.
NO_MAP = 0xFFFFFFFF


@dataclasses.dataclass(frozen=True, slots=True)
class Bind:
    """Attach a host file or tree. Opened by the launcher before it loses its rights.

    The target is made if missing. With `map_uid` (an owner on disk, such as the workspace's owner) that owner is
    seen inside as the payload, and the payload's new files belong to it on disk: an idmapped mount, root only.
    With `optional`, a missing source is skipped.
    """

    op: ClassVar[int] = 6
    name: Str
    source: Str
    path: Str
    attrs: U64
    recursive: Bool
    optional: Bool
    map_uid: U32
    map_gid: U32


@dataclasses.dataclass(frozen=True, slots=True)
class Tmpfs:
    """A tmpfs of limited size."""

    op: ClassVar[int] = 7
    name: Str
    path: Str
    size_bytes: U64
    inodes: U64
    mode: U32
    owner: U8
    attrs: U64


@dataclasses.dataclass(frozen=True, slots=True)
class Overlay:
    """An overlay on a host directory, with its upper layer on a tmpfs of its own."""

    op: ClassVar[int] = 8
    name: Str
    source: Str
    path: Str
    size_bytes: U64
    inodes: U64
    map_uid: U32
    map_gid: U32
    attrs: U64


@dataclasses.dataclass(frozen=True, slots=True)
class Devpts:
    """A devpts instance of its own at dev/pts, with dev/ptmx pointing to it."""

    op: ClassVar[int] = 9
    name: Str
    max: U32


@dataclasses.dataclass(frozen=True, slots=True)
class Proc:
    """The PID namespace's /proc with hidepid=2 (the cell's gid sees all), read-only once the sysctls are set."""

    op: ClassVar[int] = 10
    name: Str
    path: Str
    #: "kernel/shm_rmid_forced=1": paths below /proc/sys; a leading "-" tolerates a missing file
    sysctls: Strs


@dataclasses.dataclass(frozen=True, slots=True)
class Mask:
    """Cover a file with /dev/null, or a directory with an empty read-only tmpfs; a missing one is skipped."""

    op: ClassVar[int] = 11
    name: Str
    path: Str


@dataclasses.dataclass(frozen=True, slots=True)
class Hostname:
    """Set the UTS namespace's host name."""

    op: ClassVar[int] = 12
    name: Str
    value: Str


@dataclasses.dataclass(frozen=True, slots=True)
class Loopback:
    """Bring the loopback interface up."""

    op: ClassVar[int] = 13
    name: Str


@dataclasses.dataclass(frozen=True, slots=True)
class Pivot:
    """Make the new root the root and drop the old one; nothing of the host can be reached after it."""

    op: ClassVar[int] = 14
    name: Str
    read_only: Bool


@dataclasses.dataclass(frozen=True, slots=True)
class Sysfs:
    """A read-only /sys of the network namespace (only when the policy asks for it)."""

    op: ClassVar[int] = 15
    name: Str
    path: Str


Step: TypeAlias = (
    Root
    | RootTree
    | Mkdir
    | Symlink
    | WriteFile
    | Bind
    | Tmpfs
    | Overlay
    | Devpts
    | Proc
    | Mask
    | Hostname
    | Loopback
    | Pivot
    | Sysfs
)
STEPS: dict[int, type] = {step.op: step for step in Step.__args__}

_OP = struct.Struct("<B")


class StepCodec:
    """A step: its op number, then its fields."""

    def write(self, out: bytearray, value: Step) -> None:
        """Append op and fields."""
        out += _OP.pack(value.op)
        StructOf(type(value)).write(out, value)

    def read(self, reader: Reader) -> Step:
        """Read a step of a known op."""
        op = reader.unpack(_OP)
        step_type = STEPS.get(op)
        if step_type is None:
            raise ProtocolError(detail=f"unknown step op {op}")
        return StructOf(step_type).read(reader)  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True, slots=True)
class IdMap:
    """One line of uid_map or gid_map."""

    inside: U32
    outside: U32
    count: U32


IdMaps: TypeAlias = Annotated[tuple[IdMap, ...], ListOf(StructOf(IdMap))]

#: `Identity.map_writer`: the launcher writes the maps itself (root, or a single own id).
MAP_SELF = 0
#: `Identity.map_writer`: newuidmap(1) and newgidmap(1) write them (/etc/subuid).
MAP_HELPER = 1
#: `Identity.become_uid`: stay who we are.
NO_BECOME = 0xFFFFFFFF


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Who is who. `become_*` is the host id taken before the user namespace is made (root only)."""

    uid_map: IdMaps
    gid_map: IdMaps
    map_writer: U8
    become_uid: U32
    become_gid: U32
    cell_uid: U32
    cell_gid: U32
    payload_uid: U32
    payload_gid: U32
    #: the first of the group ids that mark commands (one each), 0 where there is a single id
    tag_gid: U32
    tag_count: U32


@dataclasses.dataclass(frozen=True, slots=True)
class CgroupWrite:
    """A value for a file of a cgroup directory."""

    file: Str
    value: Str


#: `Cgroup.role`: holds the others, no process joins it.
CGROUP_PARENT = 0
#: `Cgroup.role`: cgroup2, the cell is cloned into it.
CGROUP_CELL = 1
#: `Cgroup.role`: cgroup2, commands are cloned into it.
CGROUP_WORK = 2
#: `Cgroup.role`: a v1 hierarchy, commands join it by writing "0".
CGROUP_JOIN = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Cgroup:
    """A cgroup directory that the launcher makes (it must not exist) and limits."""

    path: Str
    role: U8
    writes: Annotated[tuple[CgroupWrite, ...], ListOf(StructOf(CgroupWrite))]


#: `LandlockRule.access`
LANDLOCK_READ = 0  # read and execute
LANDLOCK_WRITE = 1  # everything
LANDLOCK_DEVICE = 2  # read, write and ioctl, no making of nodes


@dataclasses.dataclass(frozen=True, slots=True)
class LandlockRule:
    """What commands may do beneath a directory, as the second wall for files."""

    path: Str
    access: U8


@dataclasses.dataclass(frozen=True, slots=True)
class FileRoot:
    """A directory (absolute inside path) beneath which the cell does file operations."""

    path: Str
    writable: Bool


@dataclasses.dataclass(frozen=True, slots=True)
class Watch:
    """Limits that the cell measures itself because the kernel does not hold them here; 0 means not watched."""

    memory_bytes: U64
    #: CPU time in thousandths of a core, averaged over `cpu_window_ms`
    cpu_millicores: U32
    cpu_window_ms: U32
    disk_paths: Strs
    disk_bytes: U64
    disk_inodes: U64


#: `Launch.flags`: apply Landlock to each command; a kernel without it is an error.
LAUNCH_LANDLOCK = 1
#: `Launch.flags`: Landlock also scopes signals (single-id mode).
LAUNCH_LANDLOCK_SIGNALS = 2
#: `Launch.flags`: the outer user namespace maps only inside root (IPC sysctls belong to it); after the build a
#: second one shows that id as `payload_uid`. Rootless with a single id. It needs user/max_user_namespaces=1.
LAUNCH_INNER_USER = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """All that `stockade-cell launch` needs; kind 1, id 0, the first frame on the channel."""

    kind: ClassVar[int] = 1
    version: U16
    sandbox_id: Str
    #: CLONE_NEW* flags of clone(2)
    namespaces: U64
    flags: U32
    identity: Annotated[Identity, StructOf(Identity)]
    cgroups: Annotated[tuple[Cgroup, ...], ListOf(StructOf(Cgroup))]
    steps: Annotated[tuple[Step, ...], ListOf(StepCodec())]
    #: struct sock_filter[] in native byte order, for the cell and all below it
    seccomp_main: Bytes
    #: struct sock_filter[], added by each command
    seccomp_child: Bytes
    landlock: Annotated[tuple[LandlockRule, ...], ListOf(StructOf(LandlockRule))]
    rlimits: Rlimits
    roots: Annotated[tuple[FileRoot, ...], ListOf(StructOf(FileRoot))]
    watch: Annotated[Watch, StructOf(Watch)]
    #: mount points of which O_PATH descriptors are passed out with READY
    pass_out: Strs


def encode_launch(launch: Launch) -> bytes:
    """Return the LAUNCH frame."""
    body = encode_struct(launch)
    return struct.pack("<IBI", 5 + len(body), launch.kind, 0) + body
