"""Directories of the user that the command line names: how they are written."""

from __future__ import annotations

import os
import re
from typing import Any

from stockade.errors import PolicyError, PolicyProblem

#: Where errors of options are said to be.
SOURCE = "command line"
_MOUNT = re.compile(r"(?P<source>.+?)(?::(?P<target>/[^:]*))?(?::(?P<access>ro|rw))?", re.DOTALL)


def workspace_of(text: str) -> dict[str, Any]:
    """Read `DIR[:/target][:ro]` as a workspace of the policy; raises `PolicyError`."""
    return _mount(text, "/workspace")


def output_of(text: str) -> dict[str, Any]:
    """Read `DIR[:/target]` as a writable workspace; raises `PolicyError`."""
    mount = _mount(text, "/output")
    if mount["access"] == "ro":
        raise refused(f"{text!r} is for results, so it can't be read-only")
    return mount


def refused(why: str) -> PolicyError:
    """Return the error of an option."""
    return PolicyError((PolicyProblem("", why),), SOURCE)


def _mount(text: str, target: str) -> dict[str, Any]:
    found = _MOUNT.fullmatch(text)
    if found is None:
        raise refused(f"{text!r} is not DIR, DIR:/target or DIR:ro")
    return {
        # Links are followed here, once: who typed the name chose what it leads to.
        "source": os.path.realpath(found["source"]),
        "target": found["target"] or target,
        "access": found["access"] or "rw",
    }
