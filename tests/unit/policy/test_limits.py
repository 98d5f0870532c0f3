"""Limits: sizes, durations, and what can't be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.errors import PolicyError
from stockade.policy import Limits, Policy, load_policy, policy_from


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512M", 512 << 20),
        ("1G", 1 << 30),
        ("1GiB", 1 << 30),
        ("64MB", 64 << 20),
        ("33554432", 1 << 25),
    ],
)
def test_size_is_read(text: str, expected: int) -> None:
    """Units are binary, and a plain number is bytes."""
    assert load_policy(f"version: 1\nlimits: {{memory: {text}}}").limits.memory == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90_000), ("1500ms", 1500), ("2m", 120_000), ("1.5", 1500), ("10", 10_000)],
)
def test_duration_is_read(text: str, expected: int) -> None:
    """A plain number is seconds."""
    assert load_policy(f"version: 1\nlimits: {{timeout: {text}}}").limits.timeout == expected


@pytest.mark.parametrize(
    "limits",
    [
        "memory: 0",
        "memory: -1",
        "memory: 1M",
        "memory: 15M",
        "memory: 5E",
        "memory: 1.5G",
        "memory: 512 M B",
        "memory: \u0665M",
        "memory: 9999999999999999999",
        "disk: 0",
        "disk: 1M",
        "disk: 257M",
        "shm: 200M",
        "cpu: 0",
        "cpu: -1",
        "cpu: 0.001",
        "cpu: 5000",
        "processes: 0",
        "processes: -5",
        "inodes: 1",
        "open_files: 3",
        "output: 0",
        "output: 2G",
        "timeout: 0",
        "timeout: -1",
        "timeout: 5 parsecs",
        "timeout: true",
        "cpu_seconds: 0",
        "file_size: 0",
        "accept_missing: [everything]",
    ],
)
def test_impossible_limit_is_an_error(limits: str) -> None:
    """Zero, negative, too small, too large and unreadable values are refused, not corrected."""
    with pytest.raises(PolicyError):
        load_policy(f"version: 1\nlimits: {{{limits}}}")


def test_disk_defaults_to_half_of_memory() -> None:
    """Pages of a tmpfs count as memory, so more would let a full disk kill the sandbox (kernel-facts 5)."""
    assert Limits().disk_bytes == 256 << 20


@given(st.integers(16 << 20, 1 << 44), st.integers(1, 1 << 44))
def test_disk_is_never_more_than_half_of_memory(memory: int, disk: int) -> None:
    """For all limits, those that are taken are within it and those beyond it are refused."""
    try:
        policy = policy_from({"limits": {"memory": memory, "disk": disk}})
    except PolicyError:
        assert disk * 2 > memory or disk < 4 << 20
    else:
        assert policy.limits.disk_bytes * 2 <= memory


@given(
    memory=st.integers(16 << 20, 1 << 40),
    mode=st.sampled_from(["read-only", "workspace", "independent"]),
    tmp=st.one_of(st.none(), st.integers(1 << 16, 1 << 30)),
    sizes=st.lists(st.one_of(st.none(), st.integers(1 << 16, 1 << 28)), min_size=1, max_size=6),
)
def test_storage_is_never_more_than_disk(
    memory: int, mode: str, tmp: int | None, sizes: list[int | None]
) -> None:
    """The sum of everything that Stockade provides is at most the disk limit, whatever is named."""
    files: dict[str, object] = {"mode": mode, "tmp": tmp}
    if mode != "read-only":
        files["writable"] = [{"path": f"/d{n}", "size": size} for n, size in enumerate(sizes)]
    try:
        policy: Policy = policy_from({"limits": {"memory": memory}, "filesystem": files})
    except PolicyError:
        return
    assert policy.storage.total_bytes <= policy.limits.disk_bytes
    assert all(share.size_bytes and share.inodes for share in policy.storage.dirs)
