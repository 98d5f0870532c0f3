"""Files of a sandbox: what is written is what is read, inside and out, whatever its name and size."""

from __future__ import annotations

import hashlib
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stockade import Sandbox
from stockade.errors import (
    FileExists,
    FileNotFound,
    FileTooLarge,
    IsDirectory,
    NoSpace,
    NotPermitted,
    SandboxFileError,
)
from tests.contract.conftest import MakeSandbox

MIB = 1 << 20

NAMES = [
    pytest.param("with space", id="a space"),
    pytest.param("line\nbreak", id="a newline"),
    pytest.param("\udcff\udcfe", id="not UTF-8"),
    pytest.param("é-\U0001f600", id="Unicode"),
    pytest.param("-rf", id="a dash"),
    pytest.param("*?[$`'\"\\", id="a shell's characters"),
    pytest.param("...", id="dots"),
    pytest.param("x" * 255, id="the longest"),
]


def test_text_is_what_was_written(sandbox: Sandbox) -> None:
    """Text is UTF-8 in the file."""
    sandbox.files.write("/workspace/a.txt", "é\n")
    assert sandbox.files.read("/workspace/a.txt") == "é\n"
    assert sandbox.commands.run("od -An -tx1 a.txt").stdout.split() == ["c3", "a9", "0a"]


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 3 * MIB + 1])
def test_bytes_are_what_was_written(sandbox: Sandbox, size: int) -> None:
    """No size at a border of the protocol loses or adds a byte."""
    data = os.urandom(size)
    info = sandbox.files.write("/workspace/a", data)
    assert info.size == size
    assert sandbox.files.read("/workspace/a", "bytes") == data


def test_commands_and_files_see_the_same(sandbox: Sandbox) -> None:
    """Both work in one set of mounts, with one owner."""
    sandbox.commands.run("umask 022; printf inside >b; mkdir d; ln -s b l")
    assert sandbox.files.read("/workspace/b") == "inside"
    sandbox.files.write("/workspace/d/c", "outside")
    assert sandbox.commands.run("cat d/c; stat -c ' %U %a' d/c").stdout == "outside agent 644\n"


def test_writing_replaces_and_makes_directories(sandbox: Sandbox) -> None:
    """A shorter content leaves nothing of the longer one."""
    sandbox.files.write("/output/x/y/z", "long content")
    sandbox.files.write("/output/x/y/z", "short")
    assert sandbox.files.read("/output/x/y/z") == "short"


def test_an_exclusive_write_replaces_nothing(sandbox: Sandbox) -> None:
    """The first content stays."""
    sandbox.files.write("/tmp/x", "first", exclusive=True)
    with pytest.raises(FileExists):
        sandbox.files.write("/tmp/x", "second", exclusive=True)
    assert sandbox.files.read("/tmp/x") == "first"


def test_append_adds_at_the_end(sandbox: Sandbox) -> None:
    """It makes a missing file, and keeps what is there."""
    for part in ("a", b"b", "c"):
        sandbox.files.append("/workspace/deep/log", part)
    assert sandbox.files.read("/workspace/deep/log") == "abc"


@pytest.mark.parametrize("mode", [0o600, 0o755, 0o400])
def test_a_file_has_the_mode_that_was_asked_for(sandbox: Sandbox, mode: int) -> None:
    """The caller's umask plays no part."""
    assert sandbox.files.write("/workspace/m", "x", mode=mode).mode == mode


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6777])
def test_a_file_gets_no_set_id_bit(sandbox: Sandbox, mode: int) -> None:
    """A write is no way to make a set-uid program."""
    try:
        info = sandbox.files.write("/workspace/s", "x", mode=mode)
    except (ValueError, NotPermitted):
        return
    assert info.mode & 0o6000 == 0


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_written_listed_read_moved_and_removed(sandbox: Sandbox, name: str) -> None:
    """A name is bytes without slash and NUL; text stands for it both ways."""
    path = f"/workspace/{name}"
    sandbox.files.write(path, name.encode(errors="surrogateescape"))
    assert [entry.name for entry in sandbox.files.list("/workspace")] == [name]
    sandbox.files.make_dir("/workspace/d")
    sandbox.files.rename(path, f"/workspace/d/{name}")
    content = sandbox.files.read(f"/workspace/d/{name}", "bytes")
    assert content.decode(errors="surrogateescape") == name
    sandbox.files.remove(f"/workspace/d/{name}")
    assert sandbox.files.list("/workspace/d") == []


def test_a_listing_describes_each_entry(sandbox: Sandbox) -> None:
    """Names come sorted, with type, size, mode, owner and a link's target."""
    sandbox.commands.run("umask 022; mkdir d; printf 123 >f; ln -s ../etc l; mkfifo p")
    entries = sandbox.files.list("/workspace")
    assert [(entry.name, entry.type) for entry in entries] == [
        ("d", "dir"),
        ("f", "file"),
        ("l", "symlink"),
        ("p", "other"),
    ]
    file, link = entries[1], entries[2]
    assert (file.path, file.size, file.mode, file.uid) == ("/workspace/f", 3, 0o644, 1000)
    assert link.symlink_target == "../etc"
    assert abs((datetime.now(UTC) - file.modified_time).total_seconds()) < 60


def test_an_empty_directory_has_an_empty_listing(sandbox: Sandbox) -> None:
    """The directory itself and its parent are not in it."""
    assert sandbox.files.list("/output") == []


def test_five_thousand_entries_are_all_listed(sandbox: Sandbox) -> None:
    """A listing of many frames is complete and sorted."""
    sandbox.commands.run("seq -f 'entry-%05.0f' 5000 | xargs touch")
    names = [entry.name for entry in sandbox.files.list("/workspace")]
    assert names == [f"entry-{n:05}" for n in range(1, 5001)]


def test_a_link_is_described_and_followed_on_request(sandbox: Sandbox) -> None:
    """`follow` tells of the target; without it, of the link."""
    sandbox.commands.run("printf 12345 >f; ln -s f l; ln -s missing broken")
    assert sandbox.files.get_info("/workspace/l").type == "symlink"
    followed = sandbox.files.get_info("/workspace/l", follow=True)
    assert (followed.type, followed.size) == ("file", 5)
    assert sandbox.files.exists("/workspace/broken")
    with pytest.raises(FileNotFound):
        sandbox.files.get_info("/workspace/broken", follow=True)


def test_directories_are_made_once(sandbox: Sandbox) -> None:
    """The second call says that it was there; a file in the way is an error."""
    assert sandbox.files.make_dir("/workspace/a/b/c") is True
    assert sandbox.files.make_dir("/workspace/a/b/c") is False
    sandbox.files.write("/workspace/file", "")
    with pytest.raises(SandboxFileError):
        sandbox.files.make_dir("/workspace/file/x")


def test_a_move_keeps_a_target_unless_told(sandbox: Sandbox) -> None:
    """Replacing is asked for by name."""
    sandbox.files.write("/workspace/a", "a")
    sandbox.files.write("/workspace/b", "b")
    with pytest.raises(FileExists):
        sandbox.files.rename("/workspace/a", "/workspace/b")
    sandbox.files.rename("/workspace/a", "/workspace/b", replace=True)
    assert sandbox.files.read("/workspace/b") == "a"
    assert not sandbox.files.exists("/workspace/a")


@pytest.mark.parametrize("size", [0, 7, 3 * MIB])
def test_a_move_between_storages_keeps_content_and_mode(sandbox: Sandbox, size: int) -> None:
    """/workspace and /output are file systems of their own; a move of a file does not show it."""
    data = os.urandom(size)
    sandbox.files.write("/workspace/a", data, mode=0o750)
    sandbox.files.rename("/workspace/a", "/output/a")
    assert sandbox.files.read("/output/a", "bytes") == data
    assert sandbox.files.get_info("/output/a").mode == 0o750
    assert not sandbox.files.exists("/workspace/a")


def test_a_move_between_storages_keeps_a_target_unless_told(sandbox: Sandbox) -> None:
    """The rule is the same as within one storage."""
    sandbox.files.write("/workspace/a", "a")
    sandbox.files.write("/output/a", "b")
    with pytest.raises(FileExists):
        sandbox.files.rename("/workspace/a", "/output/a")
    assert (sandbox.files.read("/workspace/a"), sandbox.files.read("/output/a")) == ("a", "b")


def test_a_tree_is_removed_only_with_what_is_in_it(sandbox: Sandbox) -> None:
    """Without `recursive`, a directory that holds something stays."""
    sandbox.files.write("/workspace/d/e/f", "x")
    with pytest.raises(FileExists):
        sandbox.files.remove("/workspace/d", recursive=False)
    sandbox.files.remove("/workspace/d")
    assert not sandbox.files.exists("/workspace/d")


def test_a_missing_file_can_not_be_removed(sandbox: Sandbox) -> None:
    """The caller learns that there was nothing."""
    with pytest.raises(FileNotFound):
        sandbox.files.remove("/workspace/missing")


def test_removing_a_link_keeps_its_target(sandbox: Sandbox) -> None:
    """A tree's removal follows no link out of it."""
    sandbox.commands.run("mkdir t keep; touch keep/x; ln -s ../keep t/l; ln -s keep direct")
    sandbox.files.remove("/workspace/t")
    sandbox.files.remove("/workspace/direct")
    assert [entry.name for entry in sandbox.files.list("/workspace/keep")] == ["x"]


def test_a_tree_of_three_thousand_levels_is_removed(sandbox: Sandbox) -> None:
    """Depth is no way to keep a tree: its path is longer than any call takes."""
    script = "import os\nfor _ in range(3000):\n    os.mkdir('d' * 20)\n    os.chdir('d' * 20)\n"
    assert sandbox.commands.run(["python3", "-c", script]).ok
    sandbox.files.remove("/workspace/" + "d" * 20)
    assert sandbox.files.list("/workspace") == []


def test_a_tree_without_permissions_is_removed(sandbox: Sandbox) -> None:
    """Its owner could do it, so the sandbox can."""
    sandbox.commands.run("mkdir -p a/b/c; touch a/b/c/f; chmod 0 a/b/c a/b a")
    try:
        sandbox.files.remove("/workspace/a")
    except NotPermitted:
        sandbox.commands.run("chmod -R u+rwx a; rm -rf a")
    assert sandbox.files.list("/workspace") == []


def test_fifty_megabytes_go_in_and_out(make_sandbox: MakeSandbox) -> None:
    """A large file is whole, and a command sees the same bytes."""
    made = make_sandbox(limits={"memory": "1G", "disk": "300M"})
    data = os.urandom(MIB) * 50
    made.files.write("/workspace/large", data)
    digest = hashlib.sha256(data).hexdigest()
    assert made.commands.run("sha256sum <large").stdout.split()[0] == digest
    assert hashlib.sha256(made.files.read("/workspace/large", "bytes")).hexdigest() == digest


def test_a_stream_yields_a_file_of_any_size(make_sandbox: MakeSandbox) -> None:
    """What `read` refuses for its size is streamed; a stream that is left early ends."""
    made = make_sandbox(limits={"memory": "1G", "disk": "300M"})
    made.commands.run("truncate -s 65M sparse")
    with pytest.raises(FileTooLarge):
        made.files.read("/workspace/sparse")
    assert sum(map(len, made.files.stream("/workspace/sparse"))) == 65 * MIB
    assert len(next(made.files.stream("/workspace/sparse", offset=65 * MIB - 10))) == 10
    for chunk in made.files.stream("/workspace/sparse"):
        assert chunk
        break
    assert made.files.read("/etc/hostname") == "sandbox\n"


def test_a_full_disk_is_an_error_of_the_write(sandbox: Sandbox) -> None:
    """`NoSpace`, with the sandbox usable; what is removed is free again."""
    with pytest.raises(NoSpace) as caught:
        sandbox.files.write("/workspace/full", bytes(400 * MIB))
    assert caught.value.sandbox_usable
    sandbox.files.remove("/workspace/full")
    sandbox.files.write("/workspace/small", bytes(MIB))


def test_a_command_learns_that_the_disk_is_full(sandbox: Sandbox) -> None:
    """The result names the limit that was met."""
    result = sandbox.commands.run("head -c 1G /dev/zero >full")
    assert (result.exit_code, result.limits_hit) == (1, ("disk",))


def test_too_many_files_are_an_error_of_the_write(make_sandbox: MakeSandbox) -> None:
    """Inodes are limited as bytes are."""
    made = make_sandbox(limits={"inodes": 2000})
    assert "No space left" in made.commands.run("seq 3000 | xargs touch").stderr
    with pytest.raises(NoSpace):
        made.files.write("/workspace/one-more", "x")


@pytest.mark.parametrize("path", ["/etc/hosts", "/usr/bin/env", "/proc/meminfo"])
def test_files_of_the_system_can_not_be_changed(sandbox: Sandbox, path: str) -> None:
    """Whatever can be read there, nothing is written, moved or removed."""
    for change in (
        lambda: sandbox.files.write(path, "x"),
        lambda: sandbox.files.append(path, "x"),
        lambda: sandbox.files.remove(path),
        lambda: sandbox.files.rename(path, "/workspace/x"),
    ):
        with pytest.raises(NotPermitted):
            change()


def test_a_directory_is_not_read_as_a_file(sandbox: Sandbox) -> None:
    """Nor is it written as one."""
    with pytest.raises(IsDirectory):
        sandbox.files.read("/workspace")
    with pytest.raises(IsDirectory):
        sandbox.files.write("/workspace", "x")


def test_a_file_written_by_the_host_side_belongs_to_the_payload(sandbox: Sandbox) -> None:
    """A command may change and remove it."""
    sandbox.files.write("/workspace/d/f", "x")
    assert sandbox.commands.run("echo y >>d/f && rm -r d").ok


def test_an_export_leaves_keys_and_host_paths_behind(sandbox: Sandbox, tmp_path: Path) -> None:
    """The article's accident: the report that leaves names neither the key nor where it was made."""
    key = "sk-proj-" + "Ab1" * 16
    report = f"result 42\nkey={key}\nmade in /home/alice/project/secret.csv\n"
    sandbox.files.write("/output/report.md", report)
    assert sandbox.files.export("/output/report.md", tmp_path / "report.md") >= 2
    exported = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "result 42" in exported
    assert key not in exported
    assert "/home/alice" not in exported


def test_an_export_of_plain_bytes_changes_none(sandbox: Sandbox, tmp_path: Path) -> None:
    """Bytes that are no text arrive as they are."""
    data = bytes(range(256)) * 100
    sandbox.files.write("/output/data", data)
    assert sandbox.files.export("/output/data", tmp_path / "data") == 0
    assert (tmp_path / "data").read_bytes() == data


def test_an_export_replaces_no_file_of_the_host(sandbox: Sandbox, tmp_path: Path) -> None:
    """Nor does it write through a link."""
    sandbox.files.write("/output/x", "inside")
    (tmp_path / "there").write_text("host", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("there", "link"):
        with pytest.raises(FileExistsError):
            sandbox.files.export("/output/x", tmp_path / name)
    assert (tmp_path / "there").read_text(encoding="utf-8") == "host"
    assert not (tmp_path / "elsewhere").exists()


def test_an_exported_file_is_no_program(sandbox: Sandbox, tmp_path: Path) -> None:
    """It belongs to the caller, without an execute bit."""
    sandbox.files.write("/output/x", "#!/bin/sh\n", mode=0o755)
    sandbox.files.export("/output/x", tmp_path / "x")
    facts = (tmp_path / "x").stat()
    assert (facts.st_uid, stat.S_IMODE(facts.st_mode) & 0o111) == (os.geteuid(), 0)
