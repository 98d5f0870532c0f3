"""Input that no caller should give: one clear typed error each, the sandbox still usable, nothing left behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stockade import Sandbox
from stockade.errors import (
    CommandNotFound,
    FileNotFound,
    HostUnsupported,
    ImageError,
    InvalidCwd,
    IsDirectory,
    NotDirectory,
    NotPermitted,
    PolicyError,
    SandboxFileError,
    StartError,
    StockadeError,
    WorkspaceRefused,
)
from tests.applicability import not_applicable
from tests.e2e.residue import assert_gone, children, running_in, traces_of


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """Make a sandbox that must be usable after the test, and leave nothing when it is killed."""
    with Sandbox.create({"version": 1, "limits": {"cpu": 4}}) as made:
        traces = traces_of(made)
        yield made
        assert made.commands.run("echo on").stdout == "on\n"
        assert running_in(made) == []
    assert_gone(traces)


def _policy(**parts: Any) -> dict[str, Any]:
    return {"version": 1, **parts}


# ---- Creation ------------------------------------------------------------------------------------------

BAD_POLICIES = [
    pytest.param({"version": 2}, "version", id="another version"),
    pytest.param(_policy(network={}), "network: unknown key", id="an unknown part"),
    pytest.param(
        _policy(limits={"memroy": "1G"}), "limits.memroy: unknown key", id="a misspelt key"
    ),
    pytest.param(_policy(limits={"memory": "lots"}), "limits.memory", id="no size"),
    pytest.param(_policy(limits={"memory": -1}), "limits.memory", id="a negative size"),
    pytest.param(
        _policy(limits={"memory": "1M"}), "memory: 1048576 bytes; at least", id="too little"
    ),
    pytest.param(_policy(limits={"memory": 1 << 60}), "limits.memory", id="more than exists"),
    pytest.param(_policy(limits={"cpu": 0}), "limits.cpu", id="no CPU"),
    pytest.param(_policy(limits={"cpu": float("nan")}), "limits.cpu", id="not a number"),
    pytest.param(_policy(limits={"processes": 0}), "limits.processes", id="no process"),
    pytest.param(_policy(limits={"processes": "64"}), "limits.processes", id="a text"),
    pytest.param(_policy(limits={"processes": True}), "limits.processes", id="a truth value"),
    pytest.param(_policy(limits={"disk": "400M"}), "more than half of memory", id="too much disk"),
    pytest.param(_policy(limits={"timeout": "soon"}), "limits.timeout", id="no duration"),
    pytest.param(_policy(isolation={"level": "vault"}), "isolation.level", id="no such level"),
    pytest.param(_policy(isolation={"image": "usr"}), "isolation.image", id="a relative image"),
    pytest.param(_policy(isolation={"image": "/a/../b"}), "isolation.image", id="an image with .."),
    pytest.param(_policy(isolation={"env": {"A=B": "x"}}), "isolation.env", id="a name with ="),
    pytest.param(_policy(isolation={"env": {"A": "x\0"}}), "isolation.env", id="a value with NUL"),
    pytest.param(_policy(isolation={"uid": 1}), "isolation.uid", id="a foreign uid"),
    pytest.param(_policy(filesystem={"writable": ["/etc"]}), "/etc", id="a reserved place"),
    pytest.param(_policy(filesystem={"writable": []}), "filesystem.writable", id="an empty list"),
    pytest.param(_policy(filesystem={"mode": "chaos"}), "filesystem.mode", id="no such mode"),
    pytest.param(
        _policy(filesystem={"workspaces": [{"source": "/"}]}), "whole host", id="the host's root"
    ),
]


@pytest.mark.parametrize(("policy", "words"), BAD_POLICIES)
def test_a_bad_policy_is_refused_with_its_place(policy: dict[str, Any], words: str) -> None:
    """Nothing is started from a policy that is not understood in full."""
    before = children(os.getpid())
    with pytest.raises(PolicyError) as caught:
        Sandbox.create(policy)
    assert words in caught.value.message
    assert caught.value.problems
    assert children(os.getpid()) == before


def test_a_policy_file_names_the_line(tmp_path: Path) -> None:
    """The error says file, line and key."""
    file = tmp_path / "policy.yaml"
    file.write_text("version: 1\nlimits:\n  memory: 512M\n  proceses: 3\n", encoding="utf-8")
    with pytest.raises(PolicyError, match=r"policy\.yaml: line 4: limits\.proceses: unknown key"):
        Sandbox.create(str(file))


BAD_FILES = {
    "empty": b"",
    "not UTF-8": b"version: 1\n# \xff\n",
    "not YAML": b"version: [1\n",
    "a list": b"- version: 1\n",
    "a repeated key": b"version: 1\nversion: 1\n",
    "two documents": b"version: 1\n---\nversion: 1\n",
    "a tag": b"version: !!python/object/apply:os.system ['true']\n",
    "huge": b"version: 1\n" + b"#" * (1 << 21),
    "NULs": bytes(64),
}


@pytest.mark.parametrize("kind", sorted(BAD_FILES))
def test_a_file_that_is_no_policy_is_refused(tmp_path: Path, kind: str) -> None:
    """Whatever is wrong with the text, it is a `PolicyError`."""
    (tmp_path / "policy.yaml").write_bytes(BAD_FILES[kind])
    with pytest.raises(PolicyError):
        Sandbox.create(tmp_path / "policy.yaml")


@pytest.mark.parametrize("name", ["missing.yaml", "."], ids=["missing", "a directory"])
def test_a_policy_file_that_can_not_be_read_is_an_error(tmp_path: Path, name: str) -> None:
    """It is never taken for the default policy."""
    with pytest.raises((PolicyError, OSError), match=r"missing|directory"):
        Sandbox.create(tmp_path / name)


@pytest.mark.parametrize("kind", ["missing", "a file", "an empty directory", "a link"])
def test_an_image_that_is_none_is_an_image_error(tmp_path: Path, kind: str) -> None:
    """The error names the image and what is wrong with it."""
    image = tmp_path / "image"
    match kind:
        case "a file":
            image.touch()
        case "an empty directory":
            image.mkdir()
        case "a link":
            image.symlink_to("/usr")
        case _:
            pass
    with pytest.raises(ImageError) as caught:
        Sandbox.create(image=str(image))
    assert str(image) in caught.value.message


@pytest.mark.parametrize("source", ["missing", "file", "link", "through/a/link"])
def test_a_workspace_that_is_no_plain_directory_is_refused(tmp_path: Path, source: str) -> None:
    """A missing directory is not made, and links are not followed."""
    (tmp_path / "file").touch()
    (tmp_path / "real" / "a" / "link").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "through").symlink_to("real")
    with pytest.raises(WorkspaceRefused):
        Sandbox.create(_policy(filesystem={"workspaces": [{"source": str(tmp_path / source)}]}))


def test_a_level_that_is_not_available_is_no_weaker_one() -> None:
    """A wall that this version or host does not have is an error."""
    with pytest.raises((HostUnsupported, PolicyError)):
        Sandbox.create(level="microvm")


def test_a_strict_policy_says_which_limit_is_not_enforced_here(sandbox: Sandbox) -> None:
    """A limit that is only watched is an error for it, and named."""
    watched = [entry.limit for entry in sandbox.protections.limits if entry.grade != "enforced"]
    if not watched:
        not_applicable("the kernel enforces every limit here")
    with pytest.raises(HostUnsupported) as caught:
        Sandbox.create(_policy(isolation={"grades": "strict"}))
    assert any(name in caught.value.message for name in watched)


# ---- Commands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no-such-program", "/usr/bin/no-such-program", "./missing"])
def test_a_program_that_does_not_exist_is_not_found(sandbox: Sandbox, name: str) -> None:
    """It is an error of its own, not exit code 127."""
    with pytest.raises(CommandNotFound) as caught:
        sandbox.commands.run([name])
    assert (caught.value.argv0, caught.value.sandbox_usable) == (name, True)


def test_a_program_of_a_shell_line_that_does_not_exist_is_a_result(sandbox: Sandbox) -> None:
    """There the shell was found, and it says 127."""
    assert sandbox.commands.run("no-such-program").exit_code == 127


@pytest.mark.parametrize(
    ("argv", "number"),
    [(["/etc/passwd"], errno.EACCES), (["/usr"], errno.EACCES), (["/tmp/text"], errno.ENOEXEC)],
    ids=["not executable", "a directory", "no program"],
)
def test_what_can_not_be_executed_is_a_start_error(
    sandbox: Sandbox, argv: list[str], number: int
) -> None:
    """The kernel's own reason is in it."""
    sandbox.commands.run("printf 'just text' >/tmp/text; chmod +x /tmp/text")
    with pytest.raises(StartError) as caught:
        sandbox.commands.run(argv)
    assert caught.value.errno == number


@pytest.mark.parametrize(
    ("cwd", "number"),
    [
        ("/no/such/directory", errno.ENOENT),
        ("/etc/passwd", errno.ENOTDIR),
        ("/" + "x" * 300, errno.ENAMETOOLONG),
    ],
    ids=["missing", "a file", "too long"],
)
def test_a_cwd_that_can_not_be_entered_is_named(sandbox: Sandbox, cwd: str, number: int) -> None:
    """It is not confused with a missing program."""
    with pytest.raises(InvalidCwd) as caught:
        sandbox.commands.run(["pwd"], cwd=cwd)
    assert (caught.value.cwd, caught.value.errno) == (cwd, number)


@pytest.mark.parametrize("cwd", ["workspace", "./", "..", "/tmp\0x"])
def test_a_cwd_that_is_no_absolute_path_is_refused(sandbox: Sandbox, cwd: str) -> None:
    """A relative path would depend on where the cell happens to stand."""
    with pytest.raises((ValueError, InvalidCwd)):
        sandbox.commands.run(["pwd"], cwd=cwd)


@pytest.mark.parametrize(
    ("cmd", "kind"),
    [
        ([], ValueError),
        ((), ValueError),
        (["echo", 5], TypeError),
        ([b"echo"], TypeError),
        (None, TypeError),
        (["echo", "a\0b"], ValueError),
        ("echo a\0b", ValueError),
    ],
    ids=["empty", "empty tuple", "a number", "bytes", "None", "NUL in a word", "NUL in a line"],
)
def test_a_command_that_is_none_is_refused(
    sandbox: Sandbox, cmd: Any, kind: type[Exception]
) -> None:
    """Nothing is sent for it."""
    with pytest.raises(kind):
        sandbox.commands.run(cmd)


@pytest.mark.parametrize("cmd", ["", [""]], ids=["an empty line", "an empty word"])
def test_an_empty_command_is_what_it_is_in_a_shell(sandbox: Sandbox, cmd: Any) -> None:
    """An empty line does nothing; an empty word names no program."""
    if isinstance(cmd, str):
        assert sandbox.commands.run(cmd).exit_code == 0
    else:
        with pytest.raises((CommandNotFound, StartError)):
            sandbox.commands.run(cmd)


def test_a_word_that_is_too_long_is_a_start_error(sandbox: Sandbox) -> None:
    """The kernel takes 128 KiB with the final NUL."""
    assert sandbox.commands.run(["true", "x" * ((128 << 10) - 1)]).ok
    with pytest.raises(StartError) as caught:
        sandbox.commands.run(["true", "x" * (128 << 10)])
    assert caught.value.errno == errno.E2BIG


def test_a_long_command_line_is_run(sandbox: Sandbox) -> None:
    """800 kB of words are fewer than the kernel's own limit, and than a frame's."""
    assert sandbox.commands.run(["true", *["x" * 100_000] * 8]).ok


@pytest.mark.parametrize("count", [2, 3, 16, 64])
def test_arguments_longer_than_a_frame_are_refused(sandbox: Sandbox, count: int) -> None:
    """A command line of MiBs is one typed error, and does not cost the sandbox."""
    with pytest.raises((StartError, ValueError)):
        sandbox.commands.run(["true", "x" * (count << 20)])


@pytest.mark.parametrize(
    "envs",
    [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0y"}, {"A": "x" * (4 << 20)}],
    ids=["no name", "= in a name", "NUL in a name", "NUL in a value", "a huge value"],
)
def test_an_environment_that_is_none_is_refused(sandbox: Sandbox, envs: dict[str, str]) -> None:
    """What a C program could not tell from another variable is not passed."""
    with pytest.raises((ValueError, StartError)):
        sandbox.commands.run(["env"], envs=envs)


@pytest.mark.parametrize("envs", [{"A": 5}, {5: "x"}, {"A": None}, {"A": b"x"}])
def test_an_environment_of_other_types_is_refused(sandbox: Sandbox, envs: Any) -> None:
    """Nothing is turned into a text silently."""
    with pytest.raises(TypeError):
        sandbox.commands.run(["env"], envs=envs)


@pytest.mark.parametrize("user", ["nobody", "0", 0, "ROOT"])
def test_a_user_that_is_none_is_refused(sandbox: Sandbox, user: Any) -> None:
    """An unknown name is never taken for the default."""
    with pytest.raises((ValueError, TypeError)):
        sandbox.commands.run(["id"], user=user)


@pytest.mark.parametrize("pty", [(-1, 80), (70_000, 80), (24,), "24x80", (2.5, 80)])
def test_a_terminal_size_that_is_none_is_refused(sandbox: Sandbox, pty: Any) -> None:
    """The numbers of a window are 16 bits wide."""
    with pytest.raises((ValueError, TypeError)):
        sandbox.commands.run(["true"], pty=pty)


@pytest.mark.parametrize("number", [0, -1, 65, 1000, "TERM", True])
def test_a_signal_that_is_none_is_refused(sandbox: Sandbox, number: Any) -> None:
    """Signals are 1 to 64."""
    handle = sandbox.commands.run(["sleep", "60"], background=True)
    with pytest.raises((ValueError, TypeError)):
        handle.kill(number)
    handle.kill()
    handle.wait()


@pytest.mark.parametrize("stdin", [5, ["x"], {"a": 1}])
def test_an_input_of_another_type_is_refused(sandbox: Sandbox, stdin: Any) -> None:
    """Input is text or bytes."""
    with pytest.raises(TypeError):
        sandbox.commands.run(["cat"], stdin=stdin)


def test_an_unknown_option_is_refused(sandbox: Sandbox) -> None:
    """A misspelt `timeout` must not mean none."""
    with pytest.raises(TypeError, match="timeout_s"):
        sandbox.commands.run(["true"], timeout_s=1)  # type: ignore[call-overload]


# ---- Files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["relative", "", "./x", "../x", "~/x"])
def test_a_path_that_is_not_absolute_is_refused(sandbox: Sandbox, path: str) -> None:
    """There is no directory that it could be relative to."""
    with pytest.raises(ValueError, match="absolute"):
        sandbox.files.read(path)


def test_a_path_with_nul_is_refused(sandbox: Sandbox) -> None:
    """The kernel would read it to the NUL only."""
    with pytest.raises(ValueError, match="NUL"):
        sandbox.files.read("/workspace/a\0b")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/workspace/missing", FileNotFound),
        ("/workspace/missing/deeper", FileNotFound),
        ("/workspace", IsDirectory),
        ("/workspace/file/x", NotDirectory),
        ("/workspace/" + "x" * 256, SandboxFileError),
        ("/workspace/" + "x/" * 3000, SandboxFileError),
        ("/workspace/fifo", SandboxFileError),
        ("/workspace/loop", NotPermitted),
        ("/workspace/unreadable", NotPermitted),
        ("/workspace/../../../../etc/shadow", StockadeError),
        ("/proc/1/environ", StockadeError),
        ("/dev/zero", StockadeError),
    ],
)
def test_a_file_that_can_not_be_read_is_a_typed_error(
    sandbox: Sandbox, path: str, kind: type[StockadeError]
) -> None:
    """Each reason has its class; nothing blocks, and nothing else raises."""
    sandbox.commands.run(
        "cd /workspace; touch file; [ -p fifo ] || mkfifo fifo; ln -sf loop loop;"
        "touch unreadable; chmod 0 unreadable"
    )
    with pytest.raises(kind) as caught:
        sandbox.files.read(path)
    assert caught.value.sandbox_usable


@pytest.mark.parametrize("path", ["/etc/passwd", "/usr/x", "/x", "/proc/x", "/dev/x", "/sys/x"])
def test_a_file_outside_the_writable_directories_is_not_written(
    sandbox: Sandbox, path: str
) -> None:
    """The error says that it is not permitted."""
    with pytest.raises((NotPermitted, FileNotFound)):
        sandbox.files.write(path, "x")


@pytest.mark.parametrize("data", [5, None, ["x"], {"a": 1}])
def test_content_of_another_type_is_refused(sandbox: Sandbox, data: Any) -> None:
    """Content is text or bytes."""
    with pytest.raises(TypeError):
        sandbox.files.write("/workspace/x", data)
    assert not sandbox.files.exists("/workspace/x")


@pytest.mark.parametrize("mode", [-1, 1 << 40, "644"])
def test_a_mode_that_is_none_is_refused(sandbox: Sandbox, mode: Any) -> None:
    """Nothing is written with another mode than was asked for."""
    with pytest.raises((ValueError, TypeError)):
        sandbox.files.write("/workspace/moded", "x", mode=mode)
    assert not sandbox.files.exists("/workspace/moded")
