"""Directories of the user that the command line names: their spelling, and the limit that they get."""

from __future__ import annotations

import os
import re
import time
from typing import Any

from stockade.errors import PolicyError, PolicyProblem

#: Where errors of options are said to be.
SOURCE = "command line"
#: What a command may add to a directory of the user: there the kernel offers no quota, so the cell measures.
GROWTH_BYTES = 1 << 30
#: Measuring takes 0.1 s for 50,000 files; what takes longer is named in a policy with a limit of its own.
MEASURE_S = 2.0

_MOUNT = re.compile(r"(?P<source>.+?)(?::(?P<target>/[^:]*))?(?::(?P<access>ro|rw))?", re.DOTALL)
_BLOCK_BYTES = 512


def workspace_of(text: str) -> dict[str, Any]:
    """Read `DIR[:/target][:ro]` as a workspace of the policy; raises `PolicyError`."""
    return _mount(text, "/workspace")


def output_of(text: str) -> dict[str, Any]:
    """Read `DIR[:/target]` as a writable workspace; raises `PolicyError`."""
    mount = _mount(text, "/output")
    if mount["access"] == "ro":
        raise refused(f"{text!r} is for results, so it can't be read-only")
    return mount


def limited(mount: dict[str, Any]) -> dict[str, Any]:
    """Give a writable mount its limit: what it holds now and GROWTH_BYTES. Raises `PolicyError`."""
    if mount["access"] == "ro":
        return mount
    used = allocated_bytes(mount["source"], time.monotonic() + MEASURE_S)
    if used is None:
        raise refused(
            f"{mount['source']} is too large to be measured; mount it in a policy file, with a limit of its own"
        )
    return {**mount, "limit": {"bytes": used + GROWTH_BYTES}}


def allocated_bytes(directory: str, deadline: float) -> int | None:
    """Return the bytes that all below a directory takes on disk, or None when that takes too long."""
    total = 0
    waiting = [directory]
    while waiting:
        if time.monotonic() > deadline:
            return None
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue  # what is wrong with the directory itself is found when it is mounted
        for entry in entries:
            total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
    return total


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
