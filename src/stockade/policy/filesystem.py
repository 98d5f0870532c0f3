"""The `filesystem` part of the policy: what is visible and what is writable; no I/O."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from stockade.policy._model import Listed, Model, Path, Size

#: Where nothing of the policy may be mounted: the kernel's file systems, and what the wall itself makes.
RESERVED = ("/proc", "/dev", "/sys", "/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/boot")

#: What toolchains may not be: directories that hold more than a toolchain.
_TOO_WIDE = ("/", "/home", "/root", "/var", "/opt", "/srv", "/mnt", "/media", "/run", "/tmp")

#: `writable` where the policy names none.
DEFAULT_WRITABLE = ("/workspace", "/output")


def lies_under(path: str, directory: str) -> bool:
    """Say whether `path` is `directory` or below it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _from_path(value: object) -> object:
    return {"path": value} if isinstance(value, str) else value


class WritableModel(Model):
    """A private directory on limited storage; written as a path, or with a size of its own."""

    path: Path
    #: None: an equal share of what the other parts leave
    size: Size | None = None

    @model_validator(mode="after")
    def _check(self) -> WritableModel:
        _check_target(self.path)
        return self


class WorkspaceLimit(Model):
    """How much may be added to a user's own directory; watched, for the kernel offers no quota there."""

    bytes: Size | None = None
    inodes: Annotated[int, Field(ge=1)] | None = None


#: Where a policy says nothing: room for a large dependency tree, not for a full disk.
DEFAULT_WORKSPACE_LIMIT = WorkspaceLimit(bytes=4 << 30, inodes=500_000)


class Workspace(Model):
    """A directory of the user, mounted into the sandbox."""

    source: Path
    target: Path = "/workspace"
    access: Literal["ro", "rw"] = "rw"
    #: null: none, which the policy must also accept (`limits: {accept_missing: [workspace_disk]}`)
    limit: WorkspaceLimit | None = DEFAULT_WORKSPACE_LIMIT
    #: take it although it holds sockets of host services, which then answer from inside
    sockets: Literal["refuse", "allow"] = "refuse"

    @model_validator(mode="after")
    def _check(self) -> Workspace:
        if self.source == "/":
            raise ValueError("source: '/' is the whole host")
        _check_target(self.target)
        return self


class Filesystem(Model):
    """R8's mode, and the directories around it."""

    mode: Literal["read-only", "workspace", "independent"] = "workspace"
    #: None: /workspace and /output, except in mode `read-only`
    writable: Listed[Annotated[WritableModel, BeforeValidator(_from_path)]] | None = None
    workspaces: Listed[Workspace] = ()
    #: directories of programs outside /usr, read-only at their own path
    toolchains: Listed[Path] = ()
    #: size of /tmp; None: a quarter of `limits.disk`
    tmp: Size | None = None

    @property
    def private_dirs(self) -> tuple[WritableModel, ...]:
        """The private writable directories, without those that a workspace takes the place of."""
        taken = {workspace.target for workspace in self.workspaces}
        if self.writable is not None:
            named = self.writable
        elif self.mode == "read-only":
            named = ()
        else:
            named = tuple(WritableModel(path=path) for path in DEFAULT_WRITABLE)
        return tuple(directory for directory in named if directory.path not in taken)

    @model_validator(mode="after")
    def _check(self) -> Filesystem:
        if self.mode == "read-only":
            self._check_read_only()
        for path in self.toolchains:
            _check_toolchain(path)
        targets = [workspace.target for workspace in self.workspaces]
        targets += [directory.path for directory in self.writable or ()]
        _check_apart([*targets, *self.toolchains])
        return self

    def _check_read_only(self) -> None:
        if self.writable is not None:
            raise ValueError("writable: mode 'read-only' has no writable directories but /tmp")
        if any(workspace.access == "rw" for workspace in self.workspaces):
            raise ValueError("workspaces: mode 'read-only' takes workspaces with access 'ro' only")


def _check_target(path: str) -> None:
    if path == "/" or any(lies_under(path, reserved) for reserved in RESERVED):
        raise ValueError(f"{path}: this place belongs to the sandbox's own system")
    if lies_under("/tmp", path) or lies_under(path, "/tmp"):
        raise ValueError(f"{path}: /tmp is the sandbox's own")


def _check_toolchain(path: str) -> None:
    home_itself = path.startswith("/home/") and path.count("/") == 2  # noqa: PLR2004 - "/home/name"
    if path in _TOO_WIDE or home_itself or any(lies_under(path, kept) for kept in RESERVED):
        raise ValueError(
            f"toolchains: {path} is not one toolchain; name the directory that holds it"
        )


def _check_apart(paths: list[str]) -> None:
    """Refuse mounts that would hide each other: which of two wins must not depend on their order."""
    ordered = sorted(paths)
    for first in range(len(ordered)):
        for second in ordered[first + 1 :]:
            if lies_under(second, ordered[first]):
                raise ValueError(f"{second} lies in {ordered[first]}; mounts must not overlap")
