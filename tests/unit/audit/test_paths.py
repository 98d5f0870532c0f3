"""Where state lives, and that `purge` removes all of it and nothing else."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from stockade.audit import SqliteStore, default_state_dir, prepare_state_dir, purge
from stockade.errors import AuditError
from tests.unit.audit.samples import make_record


@pytest.mark.parametrize(
    ("uid", "environ", "expected"),
    [
        (0, {"HOME": "/root"}, "/var/lib/stockade"),
        (1000, {"HOME": "/home/a"}, "/home/a/.local/state/stockade"),
        (1000, {"HOME": "/home/a", "XDG_STATE_HOME": "/x"}, "/x/stockade"),
        (1000, {"HOME": "/home/a", "XDG_STATE_HOME": "x"}, "/home/a/.local/state/stockade"),
        (0, {"STOCKADE_STATE_DIR": "/s/../t"}, "/t"),
        (1000, {"STOCKADE_STATE_DIR": "/s"}, "/s"),
    ],
)
def test_state_directory_is_chosen(uid: int, environ: dict[str, str], expected: str) -> None:
    """The variable comes first, then root's place, then XDG's."""
    assert default_state_dir(uid, environ) == expected


@pytest.mark.parametrize("environ", [{}, {"HOME": "a"}, {"STOCKADE_STATE_DIR": "s", "HOME": "/a"}])
def test_relative_state_directory_is_refused(environ: dict[str, str]) -> None:
    """State never depends on the working directory."""
    with pytest.raises(AuditError, match="absolute"):
        default_state_dir(1000, environ)


@pytest.fixture
def state(tmp_path: Path) -> str:
    """Return a prepared state directory."""
    path = str(tmp_path / "a" / "state")
    prepare_state_dir(path)
    return path


def test_state_directory_is_private(state: str) -> None:
    """Only the owner may enter it."""
    assert stat.S_IMODE(os.stat(state).st_mode) == 0o700


def test_state_directory_of_others_is_refused(tmp_path: Path) -> None:
    """A directory that others may write to is not used."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s").chmod(0o777)
    with pytest.raises(AuditError, match="others"):
        prepare_state_dir(str(tmp_path / "s"))


def test_purge_removes_everything(state: str) -> None:
    """Files, links, devices' stand-ins and directories without rights are gone, the parent stays."""
    store = SqliteStore.in_state_dir(state)
    store.append([make_record()])
    store.close()
    os.makedirs(f"{state}/work/a/b")
    Path(f"{state}/work/a/b/file").write_text("x")
    os.mkfifo(f"{state}/work/pipe")
    os.chmod(f"{state}/work/a/b", 0)
    os.chmod(f"{state}/work/a", 0)
    removed = purge(state)
    assert removed >= 9
    assert os.listdir(os.path.dirname(state)) == []


def test_purge_follows_no_link(state: str, tmp_path: Path) -> None:
    """What a link in the state points to stays."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "keep").write_text("x")
    os.symlink(tmp_path / "outside", f"{state}/link")
    os.makedirs(f"{state}/d")
    os.symlink(tmp_path / "outside" / "keep", f"{state}/d/link")
    purge(state)
    assert (tmp_path / "outside" / "keep").read_text() == "x"


def test_purge_takes_any_depth(state: str) -> None:
    """A tree deeper than descriptors or the stack allow is removed."""
    handle = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=handle)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)
    assert purge(state) == 3000 + 3
    assert not os.path.exists(state)


def test_purge_without_marker_is_refused(tmp_path: Path) -> None:
    """A directory that is not ours keeps all it has."""
    (tmp_path / "keep").write_text("x")
    with pytest.raises(AuditError, match="not a state directory"):
        purge(str(tmp_path))
    assert (tmp_path / "keep").exists()


def test_purge_of_a_link_is_refused(state: str, tmp_path: Path) -> None:
    """The directory itself may not be a link either."""
    os.symlink(state, tmp_path / "link")
    with pytest.raises(AuditError):
        purge(str(tmp_path / "link"))
    assert os.path.exists(state)


def test_purge_while_in_use_is_refused(state: str) -> None:
    """While a process has the store open, nothing is removed."""
    store = SqliteStore.in_state_dir(state)
    store.append([make_record()])
    with pytest.raises(AuditError, match="in use"):
        purge(state)
    store.append([make_record()])
    store.close()
    assert purge(state) > 0


def test_purge_of_nothing_is_nothing(tmp_path: Path) -> None:
    """A directory that is not there is not an error."""
    assert purge(str(tmp_path / "none")) == 0


@pytest.mark.root
def test_purge_stops_at_a_mount(state: str) -> None:
    """A file system mounted below is not emptied."""
    os.mkdir(f"{state}/mounted")
    subprocess.run(["mount", "-t", "tmpfs", "none", f"{state}/mounted"], check=True)
    try:
        Path(f"{state}/mounted/keep").write_text("x")
        with pytest.raises(AuditError, match="mounted"):
            purge(state)
        assert Path(f"{state}/mounted/keep").exists()
    finally:
        subprocess.run(["umount", f"{state}/mounted"], check=True)
