"""Looking at directories that a policy names before they are mounted: workspaces, toolchains and images; I/O.

The findings are values that planning reads. The launcher opens the directory again; between the two only its owner,
a user of this host, could exchange it.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stockade.errors import ImageError, WorkspaceRefused
from stockade.isolation.host import Host
from stockade.isolation.images import MOUNT_POINTS
from stockade.policy import IMAGE_HOST, Policy, Workspace
from stockade.policy.filesystem import lies_under

#: A scan for sockets looks at this many entries at most: 200,000 take about 0.4 s from a warm cache.
SCAN_ENTRIES = 200_000
#: And for this long, on a file system that answers slowly.
SCAN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """A directory that may be mounted: its owner on disk, and whether the scan for sockets saw all of it."""

    source: str
    uid: int
    gid: int
    scanned_all: bool = True


@dataclass(frozen=True, slots=True)
class Inspected:
    """All directories of a policy, looked at."""

    workspaces: tuple[DirectoryFacts, ...] = ()
    #: directories that the image lacks; empty for image `host`
    image_lacks: tuple[str, ...] = ()


def inspect_directories(policy: Policy, host: Host, state_dirs: Iterable[str] = ()) -> Inspected:
    """Look at every directory of the policy; raises `WorkspaceRefused` or `ImageError`.

    `state_dirs` are Stockade's own: a workspace may neither hold nor lie in one.
    """
    kept = tuple(state_dirs)
    found = tuple(inspect_workspace(entry, host, kept) for entry in policy.filesystem.workspaces)
    for path in policy.filesystem.toolchains:
        _facts(path, host)
    image = policy.isolation.image
    lacks = () if image == IMAGE_HOST else _image_lacks(policy, image)
    return Inspected(found, lacks)


def inspect_workspace(
    workspace: Workspace, host: Host, state_dirs: tuple[str, ...]
) -> DirectoryFacts:
    """Look at one workspace; raises `WorkspaceRefused`."""
    source = workspace.source
    for kept in state_dirs:
        if lies_under(kept, source) or lies_under(source, kept):
            raise WorkspaceRefused(source, f"Stockade keeps its own state in {kept}")
    facts = _facts(source, host)
    if not host.is_root and workspace.access == "rw" and facts.uid != host.euid:
        raise WorkspaceRefused(
            source, "it belongs to another user, and files made in it could not be yours"
        )
    if workspace.sockets == "allow":
        return facts
    complete = _scan_for_sockets(source)
    return DirectoryFacts(facts.source, facts.uid, facts.gid, complete)


def _facts(source: str, host: Host) -> DirectoryFacts:
    """Open without following a link in any component: a link could point elsewhere by the time it is mounted."""
    try:
        if str(Path(source).resolve(strict=True)) != source:
            raise WorkspaceRefused(
                source, "its path leads through a symbolic link; name the real directory"
            )
        descriptor = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise WorkspaceRefused(source, "it is not a directory") from error
    except OSError as error:
        raise WorkspaceRefused(source, os.strerror(error.errno or 0)) from error
    try:
        facts = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if not host.is_root and not os.access(source, os.R_OK | os.X_OK):
        raise WorkspaceRefused(source, "it can't be read by this user")
    return DirectoryFacts(source, facts.st_uid, facts.st_gid)


def _scan_for_sockets(source: str) -> bool:
    """Raise for a socket of a host service, which would answer from inside (kernel-facts 19).

    Returns whether everything was seen within the bounds.
    """
    deadline = time.monotonic() + SCAN_SECONDS
    left = SCAN_ENTRIES
    waiting = [source]
    while waiting:
        directory = waiting.pop()
        try:
            entries = os.scandir(directory)
        except OSError:
            continue
        with entries:
            for entry in entries:
                left -= 1
                if left <= 0 or time.monotonic() > deadline:
                    return False
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif _is_socket(entry):
                    raise WorkspaceRefused(
                        source,
                        f"it holds the socket {entry.path!r}, which a host service may answer; "
                        "remove it, or say `sockets: allow`",
                    )
    return True


def _is_socket(entry: os.DirEntry[str]) -> bool:
    if entry.is_file(follow_symlinks=False) or entry.is_symlink():
        return False
    try:
        return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


def _image_lacks(policy: Policy, image: str) -> tuple[str, ...]:
    """Return the mount points that a read-only image would need; raises `ImageError` for one that is none."""
    root = Path(image)
    if root.is_symlink() or not root.is_dir():
        raise ImageError(image, "it is not a directory")
    if not any(os.path.lexists(root / name) for name in ("usr", "bin")):
        raise ImageError(image, "it holds neither /usr nor /bin, so nothing could run in it")
    if policy.filesystem.mode == "independent":
        return ()
    places = [entry.path for entry in policy.filesystem.private_dirs]
    places += [entry.target for entry in policy.filesystem.workspaces]
    places += list(policy.filesystem.toolchains)
    needed = (*MOUNT_POINTS, *(place.lstrip("/") for place in places))
    return tuple(
        name for name in needed if (root / name).is_symlink() or not (root / name).is_dir()
    )
