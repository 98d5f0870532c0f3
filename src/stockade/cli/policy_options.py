"""From options to one `Policy`: the file is read, options replace or add keys, and the result is checked as a whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stockade.cli.mounts import SOURCE, output_of, workspace_of
from stockade.errors import PolicyError, PolicyProblem
from stockade.policy import DEFAULT_POLICY, IMAGE_HOST, Policy, load_policy, policy_from
from stockade.policy.reader import MAX_BYTES, read_yaml


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """What a command line says about the policy; None and empty say nothing."""

    policy: str | None = None
    level: str | None = None
    image: str | None = None
    workspaces: Sequence[str] = ()
    writes: Sequence[str] = ()


def policy_from_options(options: PolicyOptions) -> Policy:
    """Return the policy that holds; raises `PolicyError` with lines for the file, or naming the option."""
    base = DEFAULT_POLICY
    data: dict[str, Any] = {"version": 1}
    if options.policy is not None:
        text = _read(options.policy)
        base = load_policy(text, options.policy)
        data = read_yaml(text, options.policy).data
    # The file's own words, not `base.model_dump()`: a duration that was read has other units than a written one.
    merged = merge(data, options)
    return base if merged == data else policy_from(merged, SOURCE)


def merge(data: dict[str, Any], options: PolicyOptions) -> dict[str, Any]:
    """Return the policy's data with the options in it."""
    isolation = {"level": options.level, "image": _image(options.image)}
    named = {key: value for key, value in isolation.items() if value is not None}
    mounts = [*map(workspace_of, options.workspaces), *map(output_of, options.writes)]
    merged = dict(data)
    if named:
        merged["isolation"] = {**data.get("isolation", {}), **named}
    if mounts:
        merged["filesystem"] = _with_mounts(data.get("filesystem", {}), mounts)
    return merged


def _with_mounts(filesystem: dict[str, Any], mounts: list[dict[str, Any]]) -> dict[str, Any]:
    """Add mounts; one with a target that the file has takes its place."""
    taken = {mount["target"] for mount in mounts}
    workspaces = [
        entry
        for entry in filesystem.get("workspaces", ())
        if entry.get("target", "/workspace") not in taken
    ]
    merged = {**filesystem, "workspaces": [*workspaces, *mounts]}
    writable = [entry for entry in filesystem.get("writable", ()) if _path(entry) not in taken]
    if writable:
        merged["writable"] = writable
    else:
        merged.pop("writable", None)  # the default directories are private, nothing of the host's
    return merged


def _path(entry: Any) -> str:  # noqa: ANN401 - a path, or a mapping with one; checked already
    return str(entry["path"] if isinstance(entry, dict) else entry)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        problem = PolicyProblem("", f"can't be read: {error.strerror}")
        raise PolicyError((problem,), path) from error


def _image(image: str | None) -> str | None:
    """Return an absolute path: a directory may be named from here, but not in a policy."""
    return image if image in {None, IMAGE_HOST} else os.path.realpath(str(image))
