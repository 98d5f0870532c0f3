"""Attacks on files: the host's from inside, and the sandbox's through the file interface (C08, C09)."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from stockade import Sandbox
from stockade.errors import (
    FileTooLarge,
    NotPermitted,
    PolicyError,
    SandboxFileError,
    StockadeError,
    WorkspaceRefused,
)
from tests.applicability import not_applicable
from tests.attack.conftest import MakeInside
from tests.attack.places import Inside, Outside, has_own_id, is_root

pytestmark = pytest.mark.attack

READ = "print(len(open(sys.argv[1], 'rb').read(8)))"
LIST = "print(os.listdir(sys.argv[1]))"
WRITE = "os.close(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT))"


# ---- What of the host can be seen ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "for_root"),
    [
        ("/etc/shadow", True), ("/etc/gshadow", True), ("/etc/sudoers", True), ("/etc/fstab", False),
        ("/etc/machine-id", False), ("/etc/mtab", False), ("/root/.bashrc", True), ("/var/lib/dpkg/status", False),
        ("/var/log/dpkg.log", False), ("/etc/subuid", False), ("/etc/ssh/sshd_config", False),
        ("/sys/kernel/uevent_seqnum", False), ("/etc/crontab", False), ("/etc/debian_version", False),
        ("/var/run/docker.sock", True), ("/run/utmp", False),
    ],
)  # fmt: skip
def test_a_file_of_the_host_is_not_there(
    path: str, for_root: bool, inside: Inside, outside: Outside
) -> None:
    """What can be read outside does not exist inside."""
    found = outside.attempt(READ, path)
    if found in ("ENOENT", "ENXIO") or (for_root and not is_root()):
        not_applicable(f"{path} can't be read here outside of a sandbox")
    assert found.startswith("OK")
    assert inside.attempt(READ, path) in ("ENOENT", "ENOTDIR")


@pytest.mark.parametrize(
    "path", ["/var", "/run", "/home", "/root", "/boot", "/opt", "/srv", "/mnt", "/media", "/sys"]
)
def test_a_directory_of_the_host_is_empty_or_missing(
    path: str, inside: Inside, outside: Outside
) -> None:
    """Nothing of a host's directory is listed inside."""
    host = outside.attempt(LIST, path)
    if host in ("OK []", "ENOENT", "EACCES"):
        not_applicable(f"{path} shows nothing outside of a sandbox")
    found = inside.attempt(LIST, path)
    assert found in (
        "OK []",
        "ENOENT",
        "OK ['lib', 'tmp', 'run']",
        "OK ['run', 'tmp', 'lib']",
        "EACCES",
    )
    assert found != host


def test_the_hosts_users_are_not_named(inside: Inside, outside: Outside) -> None:
    """/etc/passwd inside knows root, the payload and nobody."""
    users = "import pwd; print(*sorted(p.pw_name for p in pwd.getpwall()))"
    assert len(outside.python(users).split()) > 3
    assert inside.python(users) == "agent nobody root"


@pytest.mark.root
def test_a_file_of_the_host_that_appears_later_is_not_seen(inside: Inside, tmp_path: Path) -> None:
    """A file that the host makes while the sandbox lives is not visible at its path."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    assert inside.attempt(READ, str(secret)) == "ENOENT"


# ---- What can be written ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "directory",
    ["/usr", "/usr/bin", "/usr/lib", "/usr/local", "/etc/ssl/certs", "/etc", "/", "/home"],
)
def test_the_image_can_not_be_written(
    directory: str, inside: Inside, outside: Outside, tmp_path: Path
) -> None:
    """Root outside may make files there; inside the place is read-only."""
    if is_root():
        assert os.access(directory, os.W_OK)
    assert outside.attempt(WRITE, str(tmp_path / "stockade-attack")) == "OK"
    assert inside.attempt(WRITE, f"{directory}/stockade-attack") in ("EROFS", "EACCES")
    assert not os.path.lexists(f"{directory}/stockade-attack")


@pytest.mark.root
@pytest.mark.parametrize(
    "change",
    [
        pytest.param("os.open('/usr/bin/env', os.O_WRONLY)", id="open for writing"),
        pytest.param("os.truncate('/usr/bin/env', 0)", id="truncate"),
        pytest.param("os.unlink('/usr/bin/env')", id="unlink"),
        pytest.param("os.rename('/usr/bin/env', '/usr/bin/env2')", id="rename"),
        pytest.param("os.chmod('/usr/bin/env', 0o777)", id="chmod"),
        pytest.param("os.chown('/usr/bin/env', 1000, 1000)", id="chown"),
        pytest.param("os.utime('/usr/bin/env')", id="set times"),
        pytest.param("os.setxattr('/usr/bin/env', 'user.x', b'1')", id="set an attribute"),
        pytest.param("os.mkdir('/usr/stockade')", id="make a directory"),
        pytest.param("os.symlink('/etc', '/usr/stockade')", id="make a link"),
        pytest.param("os.link('/usr/bin/env', '/usr/bin/env2')", id="make a hard link"),
        pytest.param("os.rename('/workspace', '/usr/bin')", id="mount over by rename"),
        pytest.param("os.unlink('/etc/passwd')", id="unlink passwd"),
    ],
)
def test_root_inside_can_not_change_the_image(change: str, inside: Inside) -> None:
    """Even as root inside, every change of the host's files is refused, and the file stays as it was."""
    before = os.stat("/usr/bin/env")
    source = f"import errno, os\ntry:\n    {change}\nexcept OSError as e:\n    print(errno.errorcode[e.errno])"
    found = inside.sandbox.commands.run(
        ["/usr/bin/python3", "-c", source], user="root"
    ).stdout.strip()
    assert found in ("EROFS", "EACCES", "EPERM", "EBUSY", "EXDEV")
    assert os.stat("/usr/bin/env").st_ctime_ns == before.st_ctime_ns


def test_a_hard_link_to_the_image_can_not_be_made(
    inside: Inside, outside: Outside, tmp_path: Path
) -> None:
    """A link on one file system works outside; inside the image is another mount."""
    (tmp_path / "file").touch()
    link = "os.link(sys.argv[1], sys.argv[2])"
    assert outside.attempt(link, str(tmp_path / "file"), str(tmp_path / "hard")) == "OK"
    assert inside.attempt(link, "/usr/bin/env", "/workspace/to-image") == "EXDEV"


# ---- C08: links through the file interface -----------------------------------------------------------------


@pytest.fixture(scope="module")
def linked(sandbox: Sandbox) -> Sandbox:
    """Return the sandbox with a payload's links in its workspace."""
    script = """
ln -s /usr/share/new.txt dangling; ln -s /workspace/dangling chain; ln -s /usr/share mid; ln -s /etc etc
ln -s ../../../../etc up; ln -s /proc/self/root root; ln -s /proc/1/root cell; ln -s /dev devices
ln -s /workspace/loop2 loop1; ln -s /workspace/loop1 loop2; ln -s /root/secret out; ln -s . self
mkdir sub; echo inside > sub/file; ln -s sub ok; ln -s /workspace/sub/file okfile; ln -s /workspace/sub/new oknew
ln sub/file hard; mkfifo pipe; ln -s pipe topipe; ln -s /proc/self/environ environ; ln -s /dev/zero zero
"""
    result = sandbox.commands.run(script, cwd="/workspace")
    assert result.stderr == ""
    return sandbox


@pytest.mark.parametrize(
    "path",
    [
        "/workspace/dangling", "/workspace/chain", "/workspace/mid/newdir/f.txt", "/workspace/mid/f.txt",
        "/workspace/etc/passwd", "/workspace/up/passwd", "/workspace/root/workspace/f", "/workspace/root/etc/passwd",
        "/workspace/cell/etc/passwd", "/workspace/devices/shm/f", "/workspace/devices/null", "/workspace/out",
        "/workspace/loop1", "/workspace/../etc/passwd", "/workspace/self/self/../../usr/f", "/usr/f", "/etc/passwd",
        "/proc/sys/kernel/hostname", "/proc/self/root/workspace/f", "/dev/shm/f", "/root/f", "/new/f", "/f",
        "/workspace/environ", "/workspace/zero", "//etc//passwd", "/workspace/./../usr/./f",
    ],
)  # fmt: skip
def test_a_write_that_leaves_the_workspace_is_refused(path: str, linked: Sandbox) -> None:
    """C08: through a dangling link, a chain, a link in the middle, `..` or /proc, nothing is written outside."""
    with pytest.raises(SandboxFileError):
        linked.files.write(path, "x")
    assert linked.commands.run("ls /usr/share/new.txt /usr/f /etc/f /usr/share/newdir").stdout == ""


def test_a_write_through_links_that_stay_inside_works(linked: Sandbox) -> None:
    """The positive control of C08: links within the workspace are followed."""
    linked.files.write("/workspace/ok/written", "x")
    linked.files.write("/workspace/oknew", "y")
    assert linked.files.read("/workspace/sub/written") == "x"
    assert linked.files.read("/workspace/sub/new") == "y"


def test_a_file_with_two_names_is_not_written(linked: Sandbox) -> None:
    """C08: the rule for hard links is to refuse a file with more than one name; it can be read."""
    with pytest.raises(NotPermitted, match="hard link"):
        linked.files.write("/workspace/hard", "x")
    assert linked.files.read("/workspace/hard") == "inside\n"


@pytest.mark.parametrize(
    "path",
    [
        "/proc/1/environ", "/proc/self/environ", "/workspace/environ", "/workspace/root/etc/hostname",
        "/proc/self/root/etc/hostname", "/workspace/cell/etc/hostname", "/dev/zero", "/workspace/zero", "/dev/mem",
        "/proc/self/fd/3", "/proc/self/fd/4", "/proc/self/exe", "/proc/self/mem", "/root/.bashrc", "/proc/self/cwd/x",
        "/etc/shadow", "/workspace/../../../etc/shadow", "/var/lib/dpkg/status",
    ],
)  # fmt: skip
def test_a_read_of_what_is_the_cells_or_the_hosts_is_refused(path: str, linked: Sandbox) -> None:
    """The cell reads for the host: it must not read itself, a device, or anything out of its directories."""
    with pytest.raises(SandboxFileError):
        linked.files.read(path)


@pytest.mark.parametrize("path", ["/workspace/pipe", "/workspace/topipe"])
def test_a_pipe_does_not_hang_the_file_interface(path: str, linked: Sandbox) -> None:
    """A named pipe without a writer blocks open(2); the cell refuses it and answers the next request."""
    for attempt in (lambda: linked.files.read(path), lambda: linked.files.write(path, "x")):
        with pytest.raises(SandboxFileError):
            attempt()
    assert linked.files.exists("/workspace/sub")


def test_removing_a_link_to_a_directory_leaves_the_directory(linked: Sandbox) -> None:
    """`remove` of a link removes the link, not what it names."""
    linked.commands.run("mkdir keep; touch keep/file; ln -s keep tokeep", cwd="/workspace")
    linked.files.remove("/workspace/tokeep")
    assert [entry.name for entry in linked.files.list("/workspace/keep")] == ["file"]


@pytest.mark.parametrize(
    "path", ["/workspace/etc", "/workspace/mid", "/workspace/up", "/workspace"]
)
def test_a_tree_is_removed_without_leaving_it(path: str, make_inside: MakeInside) -> None:
    """A recursive removal does not follow links out of the tree, and never removes a mount."""
    inside = make_inside()
    inside.sandbox.commands.run(
        "ln -s /etc etc; ln -s /usr/share mid; ln -s ../etc up; mkdir d; ln -s /etc d/etc",
        cwd="/workspace",
    )
    with contextlib.suppress(StockadeError):
        inside.sandbox.files.remove(path)
    assert inside.sandbox.commands.run("ls /etc/passwd /workspace /usr/bin/env").exit_code == 0


def test_a_tree_deeper_than_recursion_is_removed(make_inside: MakeInside) -> None:
    """3,000 levels that the payload made neither end the cell nor the host (kernel-facts 12)."""
    inside = make_inside(limits={"inodes": 32768})
    inside.python(
        """
import os
os.chdir('/workspace')
os.mkdir('d')
os.chdir('d')
for _ in range(3000):
    os.mkdir('d')
    os.chdir('d')
"""
    )
    with contextlib.suppress(StockadeError):
        inside.sandbox.files.remove("/workspace/d")
    assert inside.sandbox.is_running()
    assert inside.run("/bin/echo", "alive").out == "alive\n"


SWAP = """
import ctypes, os
os.chdir("/workspace/race")
os.symlink("/dev/shm/outside", "link")
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, b"sub", -100, b"link", 2)  # RENAME_EXCHANGE: neither name is ever missing
"""


@pytest.fixture
def racing(make_inside: MakeInside) -> Iterator[Sandbox]:
    """Return a sandbox in which a directory and a link to another one take turns at one name.

    The other one exists, the payload may write it, and the file interface may not go there.
    """
    sandbox = make_inside().sandbox
    sandbox.files.write("/workspace/race/sub/passwd", "safe")
    assert sandbox.commands.run("mkdir /dev/shm/outside; printf evil > /dev/shm/outside/passwd").ok
    handle = sandbox.commands.run(["/usr/bin/python3", "-c", SWAP], background=True)
    yield sandbox
    handle.kill()
    handle.wait()


def test_a_swapped_directory_is_never_read_through(racing: Sandbox) -> None:
    """C09: of 2,000 reads against a racing swap, each gives what was safe or an error."""
    found = {"safe": 0, "error": 0}
    for _ in range(2000):
        try:
            found[racing.files.read("/workspace/race/sub/passwd")] += 1
        except SandboxFileError:
            found["error"] += 1
    # The positive control: the race was on, both sides of it were met, and a naive reader meets the third.
    assert (sum(found.values()), min(found.values()) > 0) == (2000, True)
    naive = """
import os
for _ in range(100000):
    try:
        if open('/workspace/race/sub/passwd').read() == 'evil':
            print('evil')
            break
    except OSError:
        pass
"""
    assert Inside(racing).python(naive) == "evil"


def test_a_swapped_directory_is_never_written_through(racing: Sandbox) -> None:
    """C09: of 500 writes against the swap, none lands in the other directory, and some are refused."""
    refused = 0
    for _ in range(500):
        try:
            racing.files.write("/workspace/race/sub/stockade", "x")
        except SandboxFileError:
            refused += 1
    assert racing.commands.run("ls /dev/shm/outside").stdout == "passwd\n"
    assert refused > 0


# ---- Workspaces --------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory of this user with a file in it."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "data.csv").write_text("1,2\n")
    return made.resolve()


def mounted(make_inside: MakeInside, source: Path, **how: object) -> Inside:
    """Return a sandbox with `source` at /workspace."""
    workspace = {"source": str(source), "target": "/workspace", **how}
    return make_inside(
        filesystem={"workspaces": [workspace]}, limits={"accept_missing": ["workspace_disk"]}
    )


@pytest.mark.parametrize(
    "change",
    [
        "open('/workspace/new', 'w')", "open('/workspace/data.csv', 'a')", "os.unlink('/workspace/data.csv')",
        "os.chmod('/workspace/data.csv', 0o777)", "os.rename('/workspace/data.csv', '/workspace/x')",
        "os.mkdir('/workspace/d')", "os.link('/workspace/data.csv', '/workspace/x')", "os.utime('/workspace/data.csv')",
    ],
)  # fmt: skip
def test_a_read_only_workspace_is_not_changed(
    change: str, make_inside: MakeInside, outside: Outside, directory: Path
) -> None:
    """What its owner can do outside is refused inside, and the directory stays as it was."""
    inside = mounted(make_inside, directory, access="ro")
    assert inside.attempt(READ, "/workspace/data.csv") == "OK 4"
    assert inside.attempt(change) in ("EROFS", "EACCES", "EXDEV")
    assert os.listdir(directory) == ["data.csv"]
    assert outside.attempt(change.replace("/workspace", str(directory))).startswith("OK")


def test_files_of_a_workspace_have_the_right_owner_on_both_sides(
    make_inside: MakeInside, directory: Path
) -> None:
    """What the payload makes belongs to the directory's owner outside; what the owner made is the payload's inside."""
    if is_root():
        os.chown(directory, 12345, 12345)
        os.chown(directory / "data.csv", 12345, 12345)
    owner = os.stat(directory).st_uid
    inside = mounted(make_inside, directory, access="rw")
    assert (
        inside.attempt(
            "print(os.stat('/workspace/data.csv').st_uid, open('/workspace/made', 'w').write('x'))"
        )
        == "OK 1000 1"
    )
    inside.sandbox.files.write("/workspace/by-file", "x")
    assert {os.stat(directory / name).st_uid for name in ("made", "by-file")} == {owner}


@pytest.mark.parametrize("access", ["ro", "rw"])
def test_a_lease_does_not_keep_the_hosts_writers_waiting(
    access: str, make_inside: MakeInside, outside: Outside, directory: Path
) -> None:
    """A lease is granted outside, and then opening the file for writing waits; inside none is to be had."""
    lease = "fcntl.fcntl(os.open(sys.argv[1], os.O_RDONLY), 1024, fcntl.F_RDLCK)"
    assert outside.attempt(lease, str(directory / "data.csv")) == "OK"
    inside = mounted(make_inside, directory, access=access)
    assert inside.attempt(lease, "/workspace/data.csv") in ("EACCES", "EINVAL", "EPERM")


def test_a_users_own_directory_has_the_limit_that_is_named(
    make_inside: MakeInside, directory: Path
) -> None:
    """No quota holds there, so the cell measures: what goes past the limit is ended for `disk`."""
    workspace = {"source": str(directory), "access": "rw", "limit": {"bytes": "16MiB"}}
    inside = make_inside(filesystem={"workspaces": [workspace]})
    source = "import os, time\nf = open('/workspace/f', 'wb', buffering=0)\n"
    source += "for _ in range(400):\n    f.write(bytes(1 << 18)); time.sleep(0.01)"
    result = inside.sandbox.commands.run(["/usr/bin/python3", "-c", source], timeout=10)
    assert result.killed_by == "disk"
    assert os.stat(directory / "f").st_size < 100 << 20


def test_a_link_made_inside_names_nothing_of_the_host(
    make_inside: MakeInside, directory: Path
) -> None:
    """kernel-facts 12: the host's walk follows a link made inside; through the interface it is refused."""
    secret = directory.parent / "secret"
    secret.write_text("of the host")
    inside = mounted(make_inside, directory, access="rw")
    assert inside.attempt("os.symlink(sys.argv[1], '/workspace/link')", str(secret)) == "OK"
    assert (directory / "link").read_text() == "of the host"
    with pytest.raises(SandboxFileError):
        inside.sandbox.files.read("/workspace/link")
    # Written through, it makes a file at that path inside.
    inside.sandbox.files.write("/workspace/link", "of the sandbox")
    assert inside.sandbox.files.read(str(secret)) == "of the sandbox"
    assert secret.read_text() == "of the host"


def test_a_hard_link_in_a_workspace_is_not_written_through(
    make_inside: MakeInside, directory: Path
) -> None:
    """C08: a file of the workspace that is also a file outside of it is refused for writing."""
    existing = directory.parent / "existing.txt"
    existing.write_text("outside")
    os.link(existing, directory / "hard")
    inside = mounted(make_inside, directory, access="rw")
    with pytest.raises(NotPermitted, match="hard link"):
        inside.sandbox.files.write("/workspace/hard", "x")
    assert existing.read_text() == "outside"


def test_a_device_or_setuid_file_in_a_workspace_has_no_effect(
    make_inside: MakeInside, directory: Path
) -> None:
    """A workspace is nosuid and nodev, whatever lies in it."""
    inside = mounted(make_inside, directory, access="rw")
    flags = int(inside.python("import os; print(os.statvfs('/workspace').f_flag)"))
    assert flags & (os.ST_NOSUID | os.ST_NODEV) == os.ST_NOSUID | os.ST_NODEV


def test_a_workspace_with_a_socket_is_refused(make_inside: MakeInside, directory: Path) -> None:
    """kernel-facts 19: a service's socket in a workspace would answer from inside, so `create` refuses it."""
    import socket  # noqa: PLC0415

    with socket.socket(socket.AF_UNIX) as service:
        (directory / "run").mkdir()
        service.bind(os.path.relpath(directory / "run" / "docker.sock"))
        service.listen()
        with pytest.raises(WorkspaceRefused, match="socket"):
            mounted(make_inside, directory, access="rw")
        # The positive control: named, it is taken, and does answer.
        inside = mounted(make_inside, directory, access="rw", sockets="allow")
        connect = "socket.socket(socket.AF_UNIX).connect('/workspace/run/docker.sock')"
        assert inside.attempt(connect) == "OK"


@pytest.mark.parametrize("kind", ["link", "link above", "state"])
def test_a_workspace_that_is_not_what_it_seems_is_refused(
    kind: str, make_inside: MakeInside, directory: Path, tmp_path: Path
) -> None:
    """A path through a link, and Stockade's own state, are no workspaces."""
    if kind == "state":
        source = Path(os.environ["STOCKADE_STATE_DIR"]).resolve()
    else:
        link = tmp_path / "link"
        link.symlink_to(directory if kind == "link" else directory.parent)
        source = link if kind == "link" else link / directory.name
    with pytest.raises(WorkspaceRefused):
        mounted(make_inside, source, access="ro")


def test_an_export_never_replaces_a_file_of_the_host(linked: Sandbox, tmp_path: Path) -> None:
    """`export` makes a new file: neither an existing one nor a link is written through."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "link").symlink_to(victim)
    for target in (victim, tmp_path / "link"):
        with pytest.raises(OSError, match=r"exists|symbolic"):
            linked.files.export("/workspace/sub/file", target)
    assert victim.read_text() == "kept"
    assert linked.files.export("/workspace/sub/file", tmp_path / "new") == 0


# ---- Names and facts that lie ------------------------------------------------------------------------------

NAMES = [b"\n", b"a\nb", b"\xff\xfe", b"\x1b[2J", b" ", b"-rf", b"n" * 255, b"\xe2\x80\xae", b"..."]


def test_hostile_names_are_listed_and_worked_on(make_inside: MakeInside) -> None:
    """Any bytes that a file system takes as a name come through the interface as they are."""
    inside = make_inside()
    inside.python(
        f"import os\nfor name in {NAMES!r}:\n    open(b'/workspace/' + name, 'w').close()"
    )
    listed = [
        entry.name.encode(errors="surrogateescape")
        for entry in inside.sandbox.files.list("/workspace")
    ]
    assert sorted(listed) == sorted(NAMES)
    for name in NAMES:
        path = "/workspace/" + name.decode(errors="surrogateescape")
        assert inside.sandbox.files.read(path) == ""
        inside.sandbox.files.remove(path)
    assert inside.sandbox.files.list("/workspace") == []


@pytest.mark.parametrize(
    "path", ["/workspace/a\0b", "relative", "", "/" + "n" * 256, "/workspace/" + "d/" * 3000]
)
def test_a_path_that_is_none_is_an_error(path: str, inside: Inside) -> None:
    """NUL, a relative path, a name or path too long: a typed error, and the sandbox goes on."""
    with pytest.raises((ValueError, SandboxFileError, StockadeError)):
        inside.sandbox.files.read(path)
    assert inside.sandbox.is_running()


@pytest.mark.parametrize("stamp", [-1, -(2**33), 2**33, 2**34 - 1])
def test_a_time_before_or_after_all_others_is_an_entry(stamp: int, make_inside: MakeInside) -> None:
    """The payload chooses a file's times; listing it works."""
    inside = make_inside()
    inside.python(
        f"import os\nopen('/workspace/f', 'w').close()\nos.utime('/workspace/f', ({stamp}, {stamp}))"
    )
    assert inside.sandbox.files.list("/workspace")[0].modified_time.year >= 1


def test_a_file_larger_than_memory_is_not_read_whole(make_inside: MakeInside) -> None:
    """A sparse file of a terabyte is an error of `read`, within the cap of 64 MiB."""
    inside = make_inside()
    assert (
        inside.attempt("os.truncate(os.open('/workspace/f', os.O_CREAT | os.O_RDWR), 1 << 40)")
        == "OK"
    )
    with pytest.raises(FileTooLarge):
        inside.sandbox.files.read("/workspace/f")
    chunks = inside.sandbox.files.stream("/workspace/f")
    assert len(next(chunks)) <= 65536
    chunks.close()  # type: ignore[attr-defined]
    assert inside.sandbox.files.get_info("/workspace/f").size == 1 << 40


def test_a_file_that_grows_while_it_is_read_ends(make_inside: MakeInside) -> None:
    """A reader does not chase a writer for ever."""
    inside = make_inside()
    handle = inside.sandbox.commands.run("yes > /workspace/f", background=True)
    while not inside.sandbox.files.exists("/workspace/f"):
        pass
    with contextlib.suppress(StockadeError):
        assert len(inside.sandbox.files.read("/workspace/f", "bytes")) <= 64 << 20
    handle.kill()


def test_a_directory_of_very_many_files_is_listed(make_inside: MakeInside) -> None:
    """9,000 entries are listed, however fast they arrive; the sandbox serves after it."""
    inside = make_inside()
    inside.python("import os\nfor n in range(9000):\n    os.mknod(f'/workspace/{n}')")
    assert {len(inside.sandbox.files.list("/workspace")) for _ in range(10)} == {9000}
    assert inside.run("/bin/echo", "alive").out == "alive\n"


# ---- Other modes and users -------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize(
    "change",
    [
        "open('/usr/bin/stockade-x', 'w')",
        "os.unlink('/usr/bin/env')",
        "os.truncate('/usr/bin/env', 0)",
    ],
)
def test_a_change_of_an_independent_image_stays_inside(
    change: str, make_inside: MakeInside
) -> None:
    """Mode `independent` lets the payload change its /usr; the host's is untouched."""
    before = os.stat("/usr/bin/env")
    inside = make_inside(filesystem={"mode": "independent"})
    assert inside.attempt(change).startswith("OK")
    after = os.stat("/usr/bin/env")
    assert (after.st_size, after.st_mtime_ns, after.st_nlink) == (
        before.st_size,
        before.st_mtime_ns,
        before.st_nlink,
    )
    assert not os.path.exists("/usr/bin/stockade-x")


@pytest.mark.root
@pytest.mark.parametrize("user", ["agent", "root"])
def test_a_file_of_root_in_a_toolchain_is_not_read(
    user: Literal["agent", "root"], make_inside: MakeInside, outside: Outside
) -> None:
    """Root inside is not root of the host: what only that one may read stays closed."""
    with tempfile.TemporaryDirectory(prefix="stockade-", dir="/opt") as directory:
        secret = Path(directory) / "key"
        secret.write_text("of root")
        secret.chmod(0o600)
        Path(directory).chmod(0o755)
        assert outside.attempt(READ, str(secret)) == "OK 7"
        inside = make_inside(filesystem={"toolchains": [directory]})
        done = inside.sandbox.commands.run(["/bin/cat", str(secret)], user=user)
        assert "Permission denied" in done.stderr
        with pytest.raises(NotPermitted):
            inside.sandbox.files.read(str(secret))


@pytest.mark.parametrize(
    "change",
    [
        "open('/usr/x', 'w')", "open('/etc/passwd', 'w')", "open('/x', 'w')", "os.chown('/workspace', 0, 5)",
        "os.mknod('/workspace/d', 0o20600, os.makedev(1, 1))", "open('/proc/sys/kernel/hostname', 'w')",
        "open('/proc/1/environ')", "os.chroot('/')", "os.setuid(65535)", "os.kill(1, 9)",
        "os.chmod('/dev/null', 0o600)", "libc.mount(b'/', b'/', 0, 4096, 0) and checked(-1)",
    ],
)  # fmt: skip
def test_a_payload_that_is_root_inside_has_no_more(change: str, make_inside: MakeInside) -> None:
    """With `uid: 0` the same walls stand: the id is a name, not a right."""
    inside = make_inside(isolation={"uid": 0})
    assert inside.attempt("print(os.getuid())") == "OK 0"
    assert inside.attempt(change) in ("EROFS", "EPERM", "EACCES", "EINVAL", "ENOENT")


@pytest.mark.rootless
def test_no_other_user_can_be_asked_for_with_a_single_id(make_inside: MakeInside) -> None:
    """Where the namespace has one id, `user="root"` is refused, not run as somebody else."""
    inside = make_inside()
    if has_own_id(inside.sandbox):
        not_applicable("this user has subordinate ids, so inside root exists")
    with pytest.raises(StockadeError):
        inside.sandbox.commands.run("id -u", user="root")


@pytest.mark.parametrize(
    "filesystem",
    [
        {"workspaces": [{"source": "/", "target": "/workspace"}]},
        {"workspaces": [{"source": "/tmp", "target": "/usr"}]},
        {"workspaces": [{"source": "/tmp", "target": "/proc/x"}]},
        {"workspaces": [{"source": "/tmp/../etc", "target": "/workspace"}]},
        {"workspaces": [{"source": "tmp", "target": "/workspace"}]},
        {"workspaces": [{"source": "/tmp", "target": "/etc/../workspace"}]},
        {"writable": ["/usr/local"]},
        {"writable": ["/"]},
        {"toolchains": ["/root"]},
        {"toolchains": ["/"]},
        {"mode": "everything"},
    ],
)
def test_a_policy_that_would_open_the_host_is_refused(filesystem: dict[str, object]) -> None:
    """Sources and targets that hold or cover a system are an error of the policy."""
    with pytest.raises(PolicyError):
        Sandbox.create({"version": 1, "filesystem": filesystem})


@pytest.mark.parametrize(
    "name", ["mount", "bpf", "setns", "pidfd_getfd", "io_uring_setup", "reboot", "userfaultfd"]
)
def test_a_policy_can_not_allow_a_locked_call(name: str) -> None:
    """What ends every wall is not for a policy to lift."""
    with pytest.raises(PolicyError):
        Sandbox.create({"version": 1, "isolation": {"allow": [name]}})
