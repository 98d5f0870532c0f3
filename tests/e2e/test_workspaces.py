"""Directories of the user inside a sandbox: who owns what on both sides, what may be changed, what is refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stockade import Sandbox
from stockade.errors import HostUnsupported, ImageError, NoSpace, NotPermitted, WorkspaceRefused
from stockade.isolation.images import MOUNT_POINTS
from tests.applicability import not_applicable
from tests.e2e.residue import wait_until

MIB = 1 << 20

Open = Callable[..., Sandbox]


@pytest.fixture
def open_with() -> Iterator[Open]:
    """Make a sandbox with these workspaces."""
    with ExitStack() as stack:

        def make(*workspaces: dict[str, Any], **files: Any) -> Sandbox:
            parts = {"workspaces": list(workspaces), **files} if workspaces else files
            limits = {"cpu": 4, "accept_missing": ["workspace_disk"]}
            policy = {"version": 1, "limits": limits, "filesystem": parts}
            return stack.enter_context(Sandbox.create(policy))

        yield make


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Make a user's directory with a file and a tree."""
    (tmp_path / "user" / "sub").mkdir(parents=True)
    (tmp_path / "user" / "data").write_text("data", encoding="utf-8")
    (tmp_path / "user" / "sub" / "deep").write_text("deep", encoding="utf-8")
    return tmp_path / "user"


def _give(directory: Path, uid: int, gid: int) -> None:
    subprocess.run(["chown", "-R", f"{uid}:{gid}", directory], check=True)


OWNERS = [
    pytest.param((1000, 1000), id="uid 1000"),
    pytest.param((0, 0), id="root"),
    pytest.param((54_321, 12_345), id="uid 54321"),
]


@pytest.mark.root
@pytest.mark.parametrize("owner", OWNERS)
def test_ownership_is_right_on_both_sides(
    open_with: Open, directory: Path, owner: tuple[int, int]
) -> None:
    """Inside all of it is the payload's; on the host it stays the owner's, and so is what is made."""
    _give(directory, *owner)
    made = open_with({"source": str(directory)})
    script = "stat -c %u:%g . data sub/deep; echo new >new; echo more >>data; mkdir d; mv sub d/; rm d/sub/deep"
    result = made.commands.run(script)
    assert (result.stdout, result.stderr) == ("1000:1000\n" * 3, "")
    made.files.write("/workspace/written", "x")
    assert made.files.get_info("/workspace/written").uid == 1000
    names = ("new", "data", "d", "d/sub", "written")
    assert {_ids(directory / name) for name in names} == {owner}
    assert not (directory / "d" / "sub" / "deep").exists()


@pytest.mark.root
def test_a_file_of_another_user_in_a_workspace_is_not_the_payloads(
    open_with: Open, directory: Path
) -> None:
    """Only the owner's files are shown as the payload's: root's secret in it stays unreadable."""
    _give(directory, 54_321, 54_321)
    secret = directory / "secret"
    secret.write_text("root's", encoding="utf-8")
    secret.chmod(0o600)
    made = open_with({"source": str(directory)})
    assert made.commands.run("cat secret").exit_code == 1
    with pytest.raises(NotPermitted):
        made.files.read("/workspace/secret")


@pytest.mark.root
def test_a_root_payload_makes_no_set_uid_program_for_the_host(
    open_with: Open, directory: Path
) -> None:
    """What is made in a workspace of root's may carry the bit, but belongs to whom the host says."""
    _give(directory, 54_321, 54_321)
    open_with({"source": str(directory)}).commands.run("cp /bin/sh sh; chmod 4755 sh")
    assert _ids(directory / "sh") == (54_321, 54_321)


@pytest.mark.rootless
def test_an_ordinary_users_files_stay_theirs(open_with: Open, directory: Path) -> None:
    """Inside they are the payload's, outside the user's, without any power to change owners."""
    made = open_with({"source": str(directory)})
    result = made.commands.run("stat -c %u . data; echo new >new; mkdir d; rm -r sub")
    assert (result.stdout, result.stderr) == ("1000\n1000\n", "")
    made.files.write("/workspace/written", "x")
    assert {_ids(directory / name)[0] for name in ("new", "d", "written")} == {os.geteuid()}


def _ids(path: Path) -> tuple[int, int]:
    facts = path.lstat()
    return facts.st_uid, facts.st_gid


def test_a_writable_workspace_without_a_limit_is_refused(directory: Path) -> None:
    """No quota and no limit named is a missing limit, which only a policy that says so accepts."""
    workspace = {"source": str(directory), "limit": None}
    with pytest.raises(HostUnsupported, match="workspace_disk"):
        Sandbox.create({"version": 1, "filesystem": {"workspaces": [workspace]}})


def test_changes_are_seen_on_both_sides_at_once(open_with: Open, directory: Path) -> None:
    """A workspace is the directory itself, not a copy."""
    made = open_with({"source": str(directory)})
    (directory / "data").write_text("changed outside", encoding="utf-8")
    assert made.commands.run("cat data").stdout == "changed outside"
    made.files.write("/workspace/data", "changed inside")
    assert (directory / "data").read_text(encoding="utf-8") == "changed inside"


def test_a_read_only_workspace_is_not_changed(open_with: Open, directory: Path) -> None:
    """Neither by commands nor by file operations; reading works."""
    made = open_with({"source": str(directory), "target": "/data", "access": "ro"})
    assert made.commands.run("cat /data/data /data/sub/deep").stdout == "datadeep"
    result = made.commands.run(
        "echo x >/data/x; rm /data/data; chmod 777 /data/data; mkdir /data/d"
    )
    assert result.stderr.count("Read-only file system") == 4
    for change in (
        lambda: made.files.write("/data/x", "x"),
        lambda: made.files.remove("/data/data"),
        lambda: made.files.rename("/data/data", "/data/y"),
        lambda: made.files.make_dir("/data/d"),
    ):
        with pytest.raises(NotPermitted):
            change()
    assert sorted(path.name for path in directory.iterdir()) == ["data", "sub"]


def test_several_workspaces_stand_side_by_side(open_with: Open, tmp_path: Path) -> None:
    """Each at its place, with its own access; the private /output stays."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name, encoding="utf-8")
    made = open_with(
        {"source": str(tmp_path / "a")},
        {"source": str(tmp_path / "b"), "target": "/data/b", "access": "ro"},
    )
    assert (
        made.commands.run("cat name /data/b/name; touch x /output/y && echo on").stdout == "abon\n"
    )
    assert (tmp_path / "a" / "x").exists()


def test_a_toolchain_works_at_its_own_path(open_with: Open, tmp_path: Path) -> None:
    """A virtual environment runs inside as outside, and can't be changed."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    made = open_with(toolchains=[str(venv)])
    result = made.commands.run([f"{venv}/bin/python", "-c", "import sys; print(sys.prefix)"])
    assert (result.stdout, result.stderr) == (f"{venv}\n", "")
    assert "Read-only" in made.commands.run(f"touch {venv}/x").stderr


def test_nothing_beside_a_workspace_is_visible(open_with: Open, directory: Path) -> None:
    """The way to it is not mounted, nor are its neighbours."""
    (directory.parent / "neighbour").write_text("secret", encoding="utf-8")
    made = open_with({"source": str(directory)})
    assert made.commands.run(["ls", str(directory.parent)]).exit_code == 2
    assert made.commands.run(["cat", "../neighbour"]).exit_code == 1


def test_a_link_out_of_a_workspace_leads_nowhere(open_with: Open, directory: Path) -> None:
    """Commands resolve it inside; file operations refuse it."""
    (directory.parent / "neighbour").write_text("secret", encoding="utf-8")
    (directory / "out").symlink_to(directory.parent / "neighbour")
    (directory / "up").symlink_to("../neighbour")
    made = open_with({"source": str(directory)})
    for name in ("out", "up"):
        assert made.commands.run(["cat", name]).exit_code == 1
        with pytest.raises(OSError, match=name):
            made.files.read(f"/workspace/{name}")


def test_a_hard_link_in_a_workspace_is_not_written(open_with: Open, directory: Path) -> None:
    """Its other name may lie outside: a file operation does not change what it can't see."""
    outside = directory.parent / "outside"
    outside.write_text("outside", encoding="utf-8")
    (directory / "inside").hardlink_to(outside)
    made = open_with({"source": str(directory)})
    with pytest.raises(NotPermitted):
        made.files.write("/workspace/inside", "x")
    assert outside.read_text(encoding="utf-8") == "outside"


def test_a_workspace_that_holds_a_socket_is_refused(open_with: Open, directory: Path) -> None:
    """A host service would answer through it (kernel-facts 19); naming it allows it."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "sub" / "s"))
        with pytest.raises(WorkspaceRefused, match="socket"):
            open_with({"source": str(directory)})
        made = open_with({"source": str(directory), "sockets": "allow"})
        assert made.commands.run("cat data").stdout == "data"


def test_a_source_that_is_a_link_is_refused(open_with: Open, directory: Path) -> None:
    """What it points to could change between the check and the mount."""
    link = directory.parent / "link"
    link.symlink_to(directory)
    for source in (link, link / "sub"):
        with pytest.raises(WorkspaceRefused, match="symbolic link"):
            open_with({"source": str(source)})


def test_stockades_own_state_is_no_workspace(open_with: Open) -> None:
    """Neither the directory that holds the audit log, nor one in it, nor one around it."""
    state = Path(os.environ["STOCKADE_STATE_DIR"]).resolve()
    open_with()
    for source in (state, state / "audit", state.parent):
        with pytest.raises(WorkspaceRefused, match="own state"):
            open_with({"source": str(source)})


@pytest.mark.rootless
def test_another_users_directory_is_refused_for_writing(open_with: Open) -> None:
    """Files made in it could not be the user's; reading is a matter of the host's permissions."""
    with pytest.raises(WorkspaceRefused, match="another user"):
        open_with({"source": "/usr/share"})
    made = open_with({"source": "/usr/share/zoneinfo", "target": "/zones", "access": "ro"})
    assert made.commands.run("ls /zones").ok


def test_a_workspaces_limit_is_watched(open_with: Open, directory: Path) -> None:
    """Where the kernel has no quota for us, the cell measures, ends the command and says why."""
    made = open_with({"source": str(directory), "limit": {"bytes": "4M"}})
    grades = {entry.limit: entry.grade for entry in made.protections.limits}
    if grades["workspace_disk"] == "enforced":
        not_applicable("the kernel holds this directory's limit by itself")
    result = made.commands.run(
        "while :; do head -c 1M /dev/zero >>big; sleep 0.05; done", timeout=15
    )
    assert result.killed_by == "disk"
    assert (directory / "big").stat().st_size < 400 * MIB


def test_a_full_workspace_can_be_emptied(open_with: Open, directory: Path) -> None:
    """After the limit was met, removing makes room again."""
    made = open_with({"source": str(directory), "limit": {"bytes": "4M"}})
    made.commands.run("head -c 8M /dev/zero >big; sleep 15")
    made.files.remove("/workspace/big")
    assert wait_until(lambda: made.commands.run("echo x >y").ok, 5)


def test_what_was_there_before_is_not_counted(open_with: Open, directory: Path) -> None:
    """The limit is on what is added: a large tree of the user's is no fault of the payload's."""
    (directory / "before").write_bytes(bytes(8 * MIB))
    made = open_with({"source": str(directory), "limit": {"bytes": "4M"}})
    assert made.commands.run("head -c 1M /dev/zero >small; sleep 3").killed_by is None


def test_what_file_operations_add_is_counted(open_with: Open, directory: Path) -> None:
    """A write from outside before the first command is added too."""
    made = open_with({"source": str(directory), "limit": {"bytes": "4M"}})
    made.files.write("/workspace/big", bytes(8 * MIB))
    assert made.commands.run("sleep 10").killed_by == "disk"


@pytest.mark.root  # an overlay's owners can't be mapped for an ordinary user
def test_an_independent_root_is_writable_everywhere(tmp_path: Path) -> None:
    """Commands and file operations write where they like, and the image stays as it was."""
    image = tmp_path / "image"
    _fill(image)
    before = sorted(path.name for path in image.iterdir())
    policy = {
        "version": 1,
        "isolation": {"image": str(image)},
        "filesystem": {"mode": "independent"},
    }
    with Sandbox.create(policy) as made:
        assert made.commands.run("echo x >/by-a-command; echo y >/bin/z").ok
        made.files.write("/anywhere", "x")
        assert made.files.read("/anywhere") == "x"
    assert sorted(path.name for path in image.iterdir()) == before


@pytest.mark.rootless
def test_an_independent_root_is_refused_where_it_can_not_be(tmp_path: Path) -> None:
    """It never becomes another mode silently."""
    _fill(tmp_path / "image")
    policy = {
        "version": 1,
        "isolation": {"image": str(tmp_path / "image")},
        "filesystem": {"mode": "independent"},
    }
    with pytest.raises(HostUnsupported, match="independent"):
        Sandbox.create(policy)


def test_an_image_of_ones_own_is_the_root(tmp_path: Path) -> None:
    """Any directory with programs and mount points serves; the host's programs and /etc are not in it."""
    image = tmp_path / "image"
    _fill(image)
    with Sandbox.create(image=str(image)) as made:
        result = made.commands.run("echo on; [ -e /usr/bin/env ] || [ -e /etc/debian_version ]")
        assert (result.stdout, result.exit_code) == ("on\n", 1)
        made.files.write("/workspace/x", "x")
        with pytest.raises(NotPermitted):
            made.files.write("/bin/x", "x")


def test_an_image_without_mount_points_names_them(tmp_path: Path) -> None:
    """A read-only root can't get them, so the caller has to make them."""
    _fill(tmp_path / "image")
    (tmp_path / "image" / "workspace").rmdir()
    with pytest.raises(ImageError, match="workspace"):
        Sandbox.create(image=str(tmp_path / "image"))


def _fill(image: Path) -> None:
    """Make an image of what /bin/sh needs."""
    for path in ("bin", "usr/bin", *MOUNT_POINTS, "workspace", "output"):
        (image / path).mkdir(parents=True, exist_ok=True)
    needed = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in needed.split() if word.startswith("/")]
    for path in ("/bin/sh", *libraries):
        target = image / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(Path(path).read_bytes())
        target.chmod(0o755)


@pytest.mark.root
def test_the_disk_of_an_independent_root_is_limited(tmp_path: Path) -> None:
    """The writable layer is storage of ours, so its limit holds."""
    image = tmp_path / "image"
    _fill(image)
    policy = {
        "version": 1,
        "limits": {"disk": "16M"},
        "isolation": {"image": str(image)},
        "filesystem": {"mode": "independent"},
    }
    with Sandbox.create(policy) as made:
        with pytest.raises(NoSpace):
            made.files.write("/full", bytes(32 * MIB))
        assert made.commands.run("echo on").stdout == "on\n"
