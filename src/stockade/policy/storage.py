"""How `limits.disk` is divided among the file systems that Stockade provides; pure arithmetic.

Each is a tmpfs with a fixed size, so their sum is the limit; SysV shared memory is kernel memory of the same kind
and takes its share too.
"""

from __future__ import annotations

from dataclasses import dataclass

from stockade.policy.filesystem import Filesystem
from stockade.policy.limits import Limits

#: The root: directories, links and the synthetic /etc, about 20 files of one page.
ROOT_BYTES = 1 << 20
ROOT_INODES = 1024
#: Smallest useful file system of its own.
SHARE_FLOOR = 64 << 10
#: Inodes of /dev/shm: a name per segment.
SHM_INODES = 1024


@dataclass(frozen=True, slots=True)
class Share:
    """Size of one file system."""

    size_bytes: int
    inodes: int


@dataclass(frozen=True, slots=True)
class Storage:
    """Who gets how much; `dirs` follows `Filesystem.private_dirs`."""

    root: Share
    shm: Share
    tmp: Share
    #: the overlay of mode `independent`, else nothing
    overlay: Share
    dirs: tuple[Share, ...]
    sysv_bytes: int

    @property
    def total_bytes(self) -> int:
        """All bytes together; never more than `limits.disk`."""
        parts = (self.root, self.shm, self.tmp, self.overlay, *self.dirs)
        return sum(part.size_bytes for part in parts) + self.sysv_bytes


def divide(limits: Limits, files: Filesystem) -> Storage:
    """Divide the limit; raises `ValueError` where the named sizes are more than it.

    Fixed: the root. By default: shm an eighth, SysV a quarter of that, /tmp a quarter. What is left goes in equal
    parts to the private directories that name no size, and to the overlay.
    """
    disk = limits.disk_bytes
    sysv = limits.shm_bytes // 4
    tmp = disk // 4 if files.tmp is None else files.tmp
    named = [directory.size for directory in files.private_dirs]
    independent = files.mode == "independent"
    sharers = named.count(None) + independent
    left = disk - ROOT_BYTES - limits.shm_bytes - sysv - tmp - sum(size or 0 for size in named)
    share = left // sharers if sharers else 0
    if left < 0 or (sharers and share < SHARE_FLOOR):
        raise ValueError(
            f"disk: {disk} bytes are too few for /tmp, /dev/shm and the writable directories"
        )
    inodes = max(
        SHARE_FLOOR >> 10,
        (limits.inodes - ROOT_INODES - SHM_INODES) // (len(named) + 1 + independent),
    )
    return Storage(
        root=Share(ROOT_BYTES, ROOT_INODES),
        shm=Share(limits.shm_bytes, SHM_INODES),
        tmp=Share(tmp, inodes),
        overlay=Share(share, inodes) if independent else Share(0, 0),
        dirs=tuple(Share(share if size is None else size, inodes) for size in named),
        sysv_bytes=sysv,
    )
