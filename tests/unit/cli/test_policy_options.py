"""From options to a policy: one source of truth, errors with their place."""

import os
from pathlib import Path
from typing import Any

import pytest

from stockade.cli import mounts
from stockade.cli.policy_options import PolicyOptions, merge, policy_from_options
from stockade.errors import PolicyError
from stockade.policy import DEFAULT_POLICY


def _policy(tmp_path: Path, text: str) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return str(path)


def test_without_options_the_built_in_policy_holds() -> None:
    """Nothing said, nothing changed."""
    assert policy_from_options(PolicyOptions()) is DEFAULT_POLICY


def test_a_file_without_options_is_taken_as_it_is(tmp_path: Path) -> None:
    """Its values are those of the file."""
    path = _policy(tmp_path, "version: 1\nlimits: {timeout: 30s}\n")
    assert policy_from_options(PolicyOptions(policy=path)).limits.timeout == 30_000


def test_an_option_leaves_the_files_other_values(tmp_path: Path) -> None:
    """30 s stay 30 s: what was read is not written back in other units."""
    path = _policy(tmp_path, "version: 1\nlimits: {timeout: 30s, memory: 1G}\n")
    policy = policy_from_options(PolicyOptions(policy=path, level="container"))
    assert (policy.limits.timeout, policy.limits.memory) == (30_000, 1 << 30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{d}", ("{d}", "/workspace", "rw")),
        ("{d}:ro", ("{d}", "/workspace", "ro")),
        ("{d}:rw", ("{d}", "/workspace", "rw")),
        ("{d}:/data", ("{d}", "/data", "rw")),
        ("{d}:/data:ro", ("{d}", "/data", "ro")),
        ("{d}:x", ("{d}:x", "/workspace", "rw")),
    ],
)
def test_spellings_of_a_workspace(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    """DIR, DIR:/target and :ro, in this order."""
    mount = mounts.workspace_of(text.format(d=tmp_path))
    source, target, access = expected
    assert (mount["source"], mount["target"], mount["access"]) == (
        source.format(d=tmp_path),
        target,
        access,
    )


def test_a_relative_directory_is_meant_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a link is followed once, by us."""
    monkeypatch.chdir(tmp_path)
    os.symlink("real", "link")
    (tmp_path / "real").mkdir()
    assert mounts.workspace_of("./link")["source"] == str(tmp_path / "real")


def test_results_are_written_at_output(tmp_path: Path) -> None:
    """`--write DIR` takes the place of the private /output."""
    policy = policy_from_options(PolicyOptions(writes=[str(tmp_path)]))
    (workspace,) = policy.filesystem.workspaces
    assert (workspace.target, workspace.access) == ("/output", "rw")
    assert [entry.path for entry in policy.filesystem.private_dirs] == ["/workspace"]


def test_a_directory_for_results_is_not_read_only(tmp_path: Path) -> None:
    """The two words contradict each other."""
    with pytest.raises(PolicyError, match="read-only"):
        policy_from_options(PolicyOptions(writes=[f"{tmp_path}:ro"]))


def test_two_mounts_at_one_place_are_an_error(tmp_path: Path) -> None:
    """Which of them wins must not depend on their order."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(PolicyError, match="overlap"):
        policy_from_options(PolicyOptions(writes=[str(tmp_path / "a"), str(tmp_path / "b")]))


@pytest.mark.parametrize(
    ("filesystem", "expected"),
    [
        (
            {"workspaces": ({"source": "/old", "target": "/output"}, {"source": "/kept"})},
            ["/kept", "/new"],
        ),
        ({"writable": ("/output", "/more")}, ["/new"]),
    ],
)
def test_a_mount_takes_the_place_of_the_files(
    filesystem: dict[str, Any], expected: list[str]
) -> None:
    """What the file has at the same target gives way; the rest stays."""
    merged = merge({"version": 1, "filesystem": filesystem}, PolicyOptions(writes=["/new"]))[
        "filesystem"
    ]
    assert [entry["source"] for entry in merged["workspaces"]] == expected
    assert "/output" not in merged.get("writable", ())


def test_a_level_is_checked_like_the_files() -> None:
    """The whole policy is validated after the options are in it."""
    with pytest.raises(PolicyError, match="command line"):
        policy_from_options(PolicyOptions(level="wall"))


def test_a_faulty_file_names_its_line(tmp_path: Path) -> None:
    """Options on top of it don't hide where the fault is."""
    path = _policy(tmp_path, "version: 1\nlimits:\n  cpu: many\n")
    with pytest.raises(PolicyError) as caught:
        policy_from_options(PolicyOptions(policy=path, level="container"))
    assert (caught.value.problems[0].line, caught.value.source) == (3, path)
