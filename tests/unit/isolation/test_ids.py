"""Ids: disjoint ranges for root, the user's own ids otherwise."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.errors import HostUnsupported
from stockade.isolation.host import IdRange
from stockade.isolation.ids import (
    CELL_ID,
    MAX_SLOTS,
    RANGE_BASE,
    RANGE_SIZE,
    has_sub_ids,
    identity_for,
    is_single,
    root_identity,
)
from stockade.wire.launch import MAP_HELPER, MAP_SELF, NO_BECOME, IdMap
from tests.unit.isolation.recorded import recorded_host

slots = st.integers(0, MAX_SLOTS - 1)


@given(slots, slots)
def test_ranges_of_two_slots_never_overlap(one: int, other: int) -> None:
    """No id of one sandbox is another's, cell included."""
    (first,), (second,) = root_identity(1000, one).uid_map, root_identity(1000, other).uid_map
    apart = abs(first.outside - second.outside) >= RANGE_SIZE
    assert apart or one == other


@given(slots)
def test_range_lies_between_the_known_ones(slot: int) -> None:
    """Above useradd's, nspawn's and sssd's ranges, below systemd's foreign ids and 2^31."""
    (line,) = root_identity(1000, slot).uid_map
    assert line.outside > 2_000_200_000
    assert line.outside + line.count <= 0x7FFE0000


def test_slots_are_enough_for_a_thousand() -> None:
    """R17's pool and the load of a thousand sandboxes fit."""
    assert (MAX_SLOTS, RANGE_BASE) == (2238, 2_000_683_008)


@pytest.mark.parametrize("slot", [-1, MAX_SLOTS, 1 << 20])
def test_slot_out_of_range_is_an_error(slot: int) -> None:
    """The arithmetic never leaves the range."""
    with pytest.raises(HostUnsupported):
        root_identity(1000, slot)


@pytest.mark.parametrize("payload", [0, 1000])
def test_root_becomes_the_base_of_the_range(payload: int) -> None:
    """Per-user kernel limits are then the sandbox's own (kernel-facts 11); cell and payload differ."""
    identity = root_identity(payload, 7)
    base = RANGE_BASE + 7 * RANGE_SIZE
    assert (identity.become_uid, identity.become_gid, identity.map_writer) == (base, base, MAP_SELF)
    assert (identity.cell_uid, identity.payload_uid) == (CELL_ID, payload)


def test_tags_are_within_the_map() -> None:
    """Each command is marked by a group id that nothing else uses."""
    identity = root_identity(1000, 0)
    assert (identity.tag_gid, identity.tag_gid + identity.tag_count) == (20_000, 60_000)


@pytest.mark.parametrize("payload", [0, 1000])
def test_payload_of_a_user_with_sub_ids_is_the_user(payload: int, tmp_path: Path) -> None:
    """Files in workspaces are the user's; every other inside id is a subordinate one, each mapped once."""
    host = recorded_host("rootless-subuid", tmp_path)
    identity = identity_for(host, payload, 0)
    lines = identity.uid_map
    own = next(line for line in lines if line.inside <= payload < line.inside + line.count)
    assert (own, identity.map_writer) == (IdMap(payload, 1000, 1), MAP_HELPER)
    inside = [line.inside + n for line in lines for n in (0, line.count - 1)]
    assert (min(inside), max(inside), sum(line.count for line in lines)) == (0, CELL_ID, RANGE_SIZE)


def test_sub_ids_are_never_mapped_beyond_their_range(tmp_path: Path) -> None:
    """Newuidmap would refuse, and it should not come to that."""
    host = recorded_host("rootless-subuid", tmp_path)
    outside = [line for line in identity_for(host, 1000, 0).uid_map if line.outside != 1000]
    assert all(line.outside >= 100_000 and line.outside + line.count <= 165_536 for line in outside)


def test_single_id_is_shared_and_marked_by_nothing(tmp_path: Path) -> None:
    """The outer namespace shows it as root, an inner one as the payload (kernel-facts 7)."""
    host = recorded_host("rootless-single", tmp_path)
    identity = identity_for(host, 1000, 0)
    assert (identity.uid_map, identity.become_uid) == ((IdMap(0, 1000, 1),), NO_BECOME)
    assert (identity.cell_uid, identity.payload_uid, identity.tag_gid, identity.tag_count) == (
        1000,
        1000,
        0,
        0,
    )
    assert is_single(host)


@pytest.mark.parametrize(
    "change",
    [{"newuidmap": ""}, {"newgidmap": ""}, {"subuid": ()}, {"subgid": (IdRange(100000, 1000),)}],
)
def test_incomplete_sub_ids_count_as_none(change: dict[str, object], tmp_path: Path) -> None:
    """Both files, both programs and a whole range are needed."""
    host = replace(recorded_host("rootless-subuid", tmp_path), **change)  # type: ignore[arg-type]
    assert not has_sub_ids(host)
