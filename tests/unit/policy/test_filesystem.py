"""The filesystem part: modes, targets and what would hide what."""

import pytest

from stockade.errors import PolicyError
from stockade.policy import Policy, load_policy


def _load(filesystem: str) -> Policy:
    return load_policy(f"version: 1\nfilesystem: {filesystem}")


@pytest.mark.parametrize(
    "filesystem",
    [
        "{workspaces: [{source: /}]}",
        "{workspaces: [{source: /a/}]}",
        "{workspaces: [{source: //a}]}",
        "{workspaces: [{source: /a/../../b}]}",
        '{workspaces: [{source: "/a\\nb"}]}',
        "{workspaces: [{source: /a, target: /}]}",
        "{workspaces: [{source: /a, target: /proc/x}]}",
        "{workspaces: [{source: /a, target: /dev/shm}]}",
        "{workspaces: [{source: /a, target: /usr/bin}]}",
        "{workspaces: [{source: /a, target: /etc}]}",
        "{workspaces: [{source: /a, target: /lib64}]}",
        "{workspaces: [{source: /a, target: /tmp}]}",
        "{workspaces: [{source: /a, target: /tmp/x}]}",
        "{workspaces: [{source: /a}, {source: /b}]}",
        "{workspaces: [{source: /a, target: /w}, {source: /b, target: /w/x}]}",
        "{writable: [/w, /w/x]}",
        "{writable: [/sys]}",
        "{writable: [{path: /w, size: 0}]}",
        "{writable: [{path: /w, size: 1T}]}",
        "{toolchains: [/home]}",
        "{toolchains: [/home/alice]}",
        "{toolchains: [/root]}",
        "{toolchains: [/etc/x]}",
        "{mode: read-only, writable: [/w]}",
        "{mode: read-only, workspaces: [{source: /a, access: rw}]}",
        "{mode: everything}",
        "{tmp: 300M}",
    ],
)
def test_unfit_directory_is_an_error(filesystem: str) -> None:
    """What would show the host, hide the system, or depend on the order of mounts is refused."""
    with pytest.raises(PolicyError):
        _load(filesystem)


def test_workspace_takes_the_place_of_the_private_one() -> None:
    """A user's directory at /workspace leaves /output private."""
    policy = _load("{workspaces: [{source: /srv/project}]}")
    assert [entry.path for entry in policy.filesystem.private_dirs] == ["/output"]


def test_read_only_mode_has_no_writable_directories() -> None:
    """R8: only /tmp is left."""
    assert _load("{mode: read-only}").filesystem.private_dirs == ()


def test_directories_that_share_a_prefix_are_apart() -> None:
    """/work is not above /workspace."""
    policy = _load("{writable: [/work, /workspace]}")
    assert len(policy.filesystem.private_dirs) == 2


def test_named_size_is_taken_from_the_others() -> None:
    """A directory with a size of its own leaves the rest to be shared."""
    policy = _load("{writable: [{path: /big, size: 100M}, /small]}")
    big, small = policy.storage.dirs
    assert (big.size_bytes, small.size_bytes < 100 << 20) == (100 << 20, True)
