"""Attacks on the choice of the wall: what is missing is an error, never a weaker wall (C03)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stockade import Sandbox
from stockade.errors import HostUnsupported, ImageError, LaunchError, PolicyError, StockadeError
from stockade.runtime.spawn import cell_path
from tests.attack.conftest import MakeInside
from tests.attack.places import Outside, records

pytestmark = pytest.mark.attack


@pytest.mark.parametrize("level", ["process", "microvm"])
def test_a_level_that_is_missing_runs_nothing(level: str, tmp_path: Path, outside: Outside) -> None:
    """C03: asking for it is an error that names it; the side effect did not happen, and does outside."""
    mark = tmp_path / "ran"
    assert outside.run("/usr/bin/touch", str(mark)).status == 0
    mark.unlink()
    with pytest.raises(HostUnsupported, match=level), Sandbox.create(level=level) as sandbox:  # type: ignore[arg-type]
        sandbox.commands.run(["/usr/bin/touch", str(mark)])
    assert not mark.exists()


@pytest.mark.parametrize("level", ["none", "", "CONTAINER", "container ", "host", "vm"])
def test_an_unknown_level_is_refused(level: str) -> None:
    """C03: a misspelt level is no level."""
    with pytest.raises(PolicyError):
        Sandbox.create(level=level)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "image", ["no-such-image:0", "/nonexistent", "/", "/etc/passwd", "../..", ""]
)
def test_an_image_that_is_none_runs_nothing(image: str) -> None:
    """C03: a missing image is not the host's root."""
    with pytest.raises(StockadeError) as caught:
        Sandbox.create(image=image).kill()
    assert isinstance(caught.value, ImageError | PolicyError | LaunchError)


def test_a_missing_cell_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """C03: a package that was installed without its cell says so and runs nothing."""
    monkeypatch.setattr("stockade.runtime.spawn.resources.files", lambda _: tmp_path)
    cell_path.cache_clear()
    with pytest.raises(HostUnsupported, match="stockade-cell"):
        Sandbox.create()


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/true\n", b"not a program"])
def test_a_broken_cell_is_an_error(
    content: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C03: nor does a cell that can't be executed, or does nothing, stand for a wall."""
    (tmp_path / "_bin").mkdir()
    program = tmp_path / "_bin" / "stockade-cell"
    program.write_bytes(content)
    program.chmod(0o755)
    monkeypatch.setattr("stockade.runtime.live.cell_path", lambda: program)
    with pytest.raises((StockadeError, OSError)):
        Sandbox.create()


@pytest.mark.parametrize("path", ["/nonexistent", "", None])
def test_the_hosts_search_path_does_not_matter(
    path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C03: the launcher is found without PATH, and what stands there is not taken in its place."""
    if path is None:
        monkeypatch.delenv("PATH")
    else:
        monkeypatch.setenv("PATH", path)
    with Sandbox.create() as sandbox:
        assert sandbox.protections.level == "container"
        assert sandbox.commands.run("id -un").stdout == "agent\n"


def test_a_program_of_that_name_in_the_search_path_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C03: PATH, LD_PRELOAD and PYTHONPATH of the caller do not choose or change the cell."""
    mark = tmp_path / "ran"
    for name in ("stockade-cell", "newuidmap", "newgidmap", "mount", "sh"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {mark}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "nothing.so"))
    with Sandbox.create() as sandbox:
        assert sandbox.commands.run("id -un; echo $LD_PRELOAD").stdout == "agent\n\n"
    assert not mark.exists()


@pytest.mark.parametrize("level", ["process", "microvm"])
def test_a_refused_level_is_on_record(level: str) -> None:
    """C03: the record says which level was asked for, and that it was refused."""
    session = f"se-{level}-{os.getpid()}"
    with pytest.raises(HostUnsupported):
        Sandbox.create(level=level, session_id=session)  # type: ignore[arg-type]
    (record,) = records("sandbox_create", session_id=session)
    assert (record.isolation, record.params["level"], record.result) == (level, level, "error")
    assert record.detail["error"] == "host_unsupported"


@pytest.mark.parametrize("limit", ["memory", "processes", "disk", "cpu"])
def test_strict_takes_no_limit_that_is_only_watched(limit: str, make_inside: MakeInside) -> None:
    """A policy that says `strict` gets limits that the kernel enforces, or an error."""
    try:
        inside = make_inside(isolation={"grades": "strict"})
    except HostUnsupported:
        return
    grades = {entry.limit: entry.grade for entry in inside.sandbox.protections.limits}
    assert grades[limit] == "enforced"


def test_what_was_put_up_is_told(make_inside: MakeInside) -> None:
    """`protections` lists every wall that the launcher checked."""
    walls = set(make_inside().sandbox.protections.walls)
    assert {
        "user namespace", "mount namespace", "pid namespace", "network namespace", "ipc namespace", "uts namespace",
        "cgroup namespace", "no capabilities", "no new privileges", "seccomp",
    } <= walls  # fmt: skip


@pytest.mark.parametrize("kind", ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"])
def test_every_namespace_is_the_sandboxs_own(kind: str, make_inside: MakeInside) -> None:
    """C04's second way: assert the namespace itself."""
    link = f"import os; print(os.readlink('/proc/self/ns/{kind}'))"
    first, second = make_inside(), make_inside()
    numbers = {first.python(link), second.python(link), os.readlink(f"/proc/self/ns/{kind}")}
    assert len(numbers) == 3


def test_creation_is_quick() -> None:
    """A wall is up well under a second, or people go without."""
    with Sandbox.create() as first:
        assert first.timings["total"] < 1000
