"""Who is who in a sandbox: host ids, inside ids, and the map between them; pure.

As root, each slot has 65,536 host ids that no two live sandboxes share. Ranges lie at
2,000,683,008 + 65,536 x slot, for 2,238 slots, which ends at 2,147,352,576. Below it are the ids of
useradd's /etc/subuid (to 600,100,000), of systemd-nspawn (to 1,879,048,191) and of sssd's directory users
(to 2,000,200,000); above it systemd's foreign ids, and 2^31, where programs with signed ids fail.
"""

from __future__ import annotations

from dataclasses import dataclass

from stockade.errors import HostUnsupported
from stockade.isolation.host import Host
from stockade.wire.launch import MAP_HELPER, MAP_SELF, NO_BECOME, Identity, IdMap

RANGE_BASE = 0x7740_0000
RANGE_SIZE = 65_536
#: systemd's FOREIGN_UID_BASE, 0x7FFE0000, is the first id above.
MAX_SLOTS = (0x7FFE_0000 - RANGE_BASE) // RANGE_SIZE

#: The cell's id inside: the top of the range, which no image uses.
CELL_ID = RANGE_SIZE - 1
#: Each command is marked by one supplementary group of its own; 40,000 are reused in turn.
TAG_GID = 20_000
TAG_COUNT = 40_000

#: Subordinate ids that a user needs for a cell of its own: newuidmap hands out 65,536 by default, own id beside it.
_SUB_IDS = RANGE_SIZE - 1


def identity_for(host: Host, payload_uid: int, slot: int) -> Identity:
    """Return the identities of the sandbox in a slot."""
    if host.is_root:
        return root_identity(payload_uid, slot)
    if has_sub_ids(host):
        return _sub_identity(host, payload_uid)
    return _single_identity(host, payload_uid)


def root_identity(payload_uid: int, slot: int) -> Identity:
    """Return the identities of a range: the namespace is made as its first id (kernel-facts 11)."""
    if not 0 <= slot < MAX_SLOTS:
        raise HostUnsupported(f"slot {slot}", f"Only {MAX_SLOTS} sandboxes fit at once.")
    base = RANGE_BASE + slot * RANGE_SIZE
    maps = (IdMap(0, base, RANGE_SIZE),)
    return Identity(
        uid_map=maps,
        gid_map=maps,
        map_writer=MAP_SELF,
        become_uid=base,
        become_gid=base,
        cell_uid=CELL_ID,
        cell_gid=CELL_ID,
        payload_uid=payload_uid,
        payload_gid=payload_uid,
        tag_gid=TAG_GID,
        tag_count=TAG_COUNT,
    )


def has_sub_ids(host: Host) -> bool:
    """Say whether an ordinary user has /etc/subuid and /etc/subgid ranges and the programs that map them."""
    enough = _widest(host.subuid) >= _SUB_IDS and _widest(host.subgid) >= _SUB_IDS
    return bool(enough and host.newuidmap and host.newgidmap)


def is_single(host: Host) -> bool:
    """Say whether cell and payload have to share one id here.

    The outer user namespace then shows it as root, for IPC sysctls belong to inside root, and the wall is built as
    it; an inner one shows it as the payload's (wire.launch.LAUNCH_INNER_USER).
    """
    return not host.is_root and not has_sub_ids(host)


def _widest(ranges: tuple[object, ...]) -> int:
    return max((getattr(entry, "count", 0) for entry in ranges), default=0)


@dataclass(frozen=True, slots=True)
class _Around:
    """A map that puts one own id at `inside` and subordinate ids around it, 65,536 in all."""

    inside: int
    own: int
    start: int

    def maps(self) -> tuple[IdMap, ...]:
        below = (IdMap(0, self.start, self.inside),) if self.inside else ()
        own = IdMap(self.inside, self.own, 1)
        above = IdMap(self.inside + 1, self.start + self.inside, _SUB_IDS - self.inside)
        return (*below, own, above)


def _sub_identity(host: Host, payload_uid: int) -> Identity:
    """Make the payload the user itself, so that its files are the user's, and the cell a subordinate id."""
    uids = next(entry for entry in host.subuid if entry.count >= _SUB_IDS)
    gids = next(entry for entry in host.subgid if entry.count >= _SUB_IDS)
    return Identity(
        uid_map=_Around(payload_uid, host.euid, uids.start).maps(),
        gid_map=_Around(payload_uid, host.egid, gids.start).maps(),
        map_writer=MAP_HELPER,
        become_uid=NO_BECOME,
        become_gid=NO_BECOME,
        cell_uid=CELL_ID,
        cell_gid=CELL_ID,
        payload_uid=payload_uid,
        payload_gid=payload_uid,
        tag_gid=TAG_GID,
        tag_count=TAG_COUNT,
    )


def _single_identity(host: Host, payload_uid: int) -> Identity:
    """One id for both: seccomp and Landlock's signal scope stand between them instead (kernel-facts 7)."""
    return Identity(
        uid_map=(IdMap(0, host.euid, 1),),
        gid_map=(IdMap(0, host.egid, 1),),
        map_writer=MAP_SELF,
        become_uid=NO_BECOME,
        become_gid=NO_BECOME,
        cell_uid=payload_uid,
        cell_gid=payload_uid,
        payload_uid=payload_uid,
        payload_gid=payload_uid,
        tag_gid=0,
        tag_count=0,
    )
