"""Directories that a policy names, looked at on a real file system."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from stockade.errors import ImageError, WorkspaceRefused
from stockade.isolation import workspaces
from stockade.isolation.host import Host, probe_host
from stockade.isolation.workspaces import DirectoryFacts, inspect_directories
from stockade.policy import Policy, policy_from

HOST = probe_host()


def _policy(source: Path, **more: str) -> Policy:
    return policy_from({"filesystem": {"workspaces": [{"source": str(source), **more}]}})


def _refusal(source: Path, host: Host = HOST, state_dirs: tuple[str, ...] = (), **more: str) -> str:
    with pytest.raises(WorkspaceRefused) as caught:
        inspect_directories(_policy(source, **more), host, state_dirs)
    return caught.value.why


def _bind(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    here = os.open(path.parent, os.O_PATH)
    server.bind(f"/proc/self/fd/{here}/{path.name}")  # the path may be longer than sun_path takes
    os.close(here)
    return server


def test_plain_directory_is_described_by_its_owner(tmp_path: Path) -> None:
    """The owner on disk is who the payload will be."""
    (facts,) = inspect_directories(_policy(tmp_path), HOST).workspaces
    assert facts == DirectoryFacts(str(tmp_path), os.geteuid(), os.getegid(), scanned_all=True)


def test_missing_directory_is_refused(tmp_path: Path) -> None:
    """Nothing is made on the host."""
    assert _refusal(tmp_path / "absent") == "No such file or directory"


def test_file_is_refused(tmp_path: Path) -> None:
    """A workspace is a directory."""
    (tmp_path / "file").write_text("")
    assert _refusal(tmp_path / "file") == "it is not a directory"


def test_link_is_refused(tmp_path: Path) -> None:
    """It could lead elsewhere by the time it is mounted."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert "symbolic link" in _refusal(tmp_path / "link")


def test_path_through_a_link_is_refused(tmp_path: Path) -> None:
    """In any component."""
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    assert "symbolic link" in _refusal(tmp_path / "link" / "below")


def test_socket_is_refused_by_its_path(tmp_path: Path) -> None:
    """A host service's socket answers from inside all namespaces (kernel-facts 19)."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    with _bind(tmp_path / "a" / "b" / "docker.sock"):
        assert "a/b/docker.sock" in _refusal(tmp_path)


def test_named_socket_is_accepted(tmp_path: Path) -> None:
    """The policy may say that it knows."""
    with _bind(tmp_path / "s"):
        assert inspect_directories(_policy(tmp_path, sockets="allow"), HOST).workspaces


def test_other_special_files_are_no_sockets(tmp_path: Path) -> None:
    """FIFOs and dangling links pass."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert inspect_directories(_policy(tmp_path), HOST).workspaces[0].scanned_all


def test_link_to_a_directory_with_a_socket_is_not_followed(tmp_path: Path) -> None:
    """Inside, the link leads into the sandbox's own files."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to("../outside")
    with _bind(tmp_path / "outside" / "s"):
        assert inspect_directories(_policy(tmp_path / "inside"), HOST).workspaces


def test_scan_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A huge workspace must not hold up the start."""
    for number in range(20):
        (tmp_path / str(number)).write_text("")
    monkeypatch.setattr(workspaces, "SCAN_ENTRIES", 10)
    assert not inspect_directories(_policy(tmp_path), HOST).workspaces[0].scanned_all


@pytest.mark.parametrize(
    ("workspace", "state"), [("", "state"), ("state", ""), ("state/x", "state"), ("a", "a")]
)
def test_our_own_state_is_never_mounted(workspace: str, state: str, tmp_path: Path) -> None:
    """Neither a directory that holds it nor one within it."""
    place = tmp_path / workspace
    place.mkdir(parents=True, exist_ok=True)
    assert "its own state" in _refusal(place, HOST, (str(tmp_path / state).rstrip("/"),))


def test_writable_directory_of_another_user_is_refused_to_an_ordinary_user(tmp_path: Path) -> None:
    """Without idmapped mounts its files could not be the user's."""
    other = replace(HOST, euid=os.geteuid() + 1)
    assert "another user" in _refusal(tmp_path, other)


def test_image_must_be_a_directory_with_programs(tmp_path: Path) -> None:
    """A missing or empty image is an error before anything starts (C03)."""
    absent = policy_from({"isolation": {"image": str(tmp_path / "absent")}})
    empty = policy_from({"isolation": {"image": str(tmp_path)}})
    with pytest.raises(ImageError, match="not a directory"):
        inspect_directories(absent, HOST)
    with pytest.raises(ImageError, match="neither /usr nor /bin"):
        inspect_directories(empty, HOST)


def test_image_without_mount_points_is_described(tmp_path: Path) -> None:
    """What can't be made in a read-only image is known by name."""
    for name in ("usr", "proc", "dev", "workspace"):
        (tmp_path / name).mkdir()
    policy = policy_from({"isolation": {"image": str(tmp_path)}})
    assert inspect_directories(policy, HOST).image_lacks == ("tmp", "output")


def test_writable_image_needs_no_mount_points(tmp_path: Path) -> None:
    """An overlay can hold new ones."""
    (tmp_path / "usr").mkdir()
    policy = policy_from(
        {"isolation": {"image": str(tmp_path)}, "filesystem": {"mode": "independent"}}
    )
    assert inspect_directories(policy, HOST).image_lacks == ()


def test_missing_toolchain_is_refused(tmp_path: Path) -> None:
    """A policy that names one needs it."""
    policy = policy_from({"filesystem": {"toolchains": [str(tmp_path / "absent")]}})
    with pytest.raises(WorkspaceRefused):
        inspect_directories(policy, HOST)
