"""What can go wrong, as one tree of exceptions; pure: nothing is read, written or logged here.

::

    StockadeError
    ├── PolicyError (ValueError)              the policy cannot be read or contradicts itself
    ├── HostUnsupported                       this host lacks what was asked for
    ├── ImageError                            the root image is missing or unfit
    ├── WorkspaceRefused (ValueError)         a directory may not be given to a sandbox
    ├── LaunchError                           a step of building the wall failed
    ├── SandboxDied                           the sandbox ended without being asked to
    ├── ProtocolError                         the cell sent what the protocol does not allow
    ├── StateError                            the sandbox is in the wrong state for this
    ├── CommandTimeout (TimeoutError)         a command ran longer than its limit
    ├── OutputLimitExceeded                   a command wrote more than its limit
    ├── Denied (PermissionError)              a rule, or the lack of one, refused it
    ├── CommandNotFound (FileNotFoundError)   no such program in the sandbox
    ├── InvalidCwd (NotADirectoryError)       the working directory cannot be entered
    ├── StartError                            a command could not be started otherwise
    ├── SandboxFileError (OSError)            a file operation in the sandbox failed
    │   ├── FileNotFound (FileNotFoundError)
    │   ├── FileExists (FileExistsError)
    │   ├── NotPermitted (PermissionError)
    │   ├── IsDirectory (IsADirectoryError)
    │   ├── NotDirectory (NotADirectoryError)
    │   ├── NoSpace
    │   └── FileTooLarge
    └── AuditError                            records cannot be stored or read

Every error answers three questions: ``fault`` (whose fault is it), ``sandbox_usable`` (can the
sandbox still be used; None where there is none) and ``next_step`` (what to do now).
"""

from __future__ import annotations

import dataclasses
import errno as errno_names
import os
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Fault = Literal["caller", "policy", "host", "command", "sandbox", "stockade"]


@dataclass(eq=False, repr=False)
class StockadeError(Exception):
    """The root of all that Stockade raises; fields are per class, ``code`` never changes."""

    code: ClassVar[str] = "stockade"
    fault: ClassVar[Fault] = "stockade"
    sandbox_usable: ClassVar[bool | None] = None
    advice: ClassVar[str] = "Report this with the audit record of the call."

    def __post_init__(self) -> None:
        """Hand the message to ``Exception``, for tools that only look at ``args``."""
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """What happened, in one sentence."""
        return self._text()

    @property
    def next_step(self) -> str:
        """What the caller, or a model that reads it, can do now."""
        return str(getattr(self, "how", "")) or self.advice

    def fields(self) -> dict[str, Any]:
        """Return the fields of this error by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def to_dict(self) -> dict[str, Any]:
        """Return the error as plain JSON-ready data, for the command line and HTTP."""
        return {
            "code": self.code,
            "message": self.message,
            "fault": self.fault,
            "sandbox_usable": self.sandbox_usable,
            "next_step": self.next_step,
            "fields": {name: _plain(value) for name, value in self.fields().items()},
        }

    def _text(self) -> str:
        return "Stockade failed."

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={value!r}" for name, value in self.fields().items())
        return f"{type(self).__name__}({parts})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.fields())


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    """One fault in a policy: where it is (path of keys, line and column from 1) and what it is."""

    path: str
    message: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        where = "" if self.line is None else f"line {self.line}: "
        name = f"{self.path}: " if self.path else ""
        return f"{where}{name}{self.message}"


@dataclass(eq=False, repr=False)
class PolicyError(StockadeError, ValueError):
    """The policy cannot be used; ``source`` is the file's name or how it was given."""

    code: ClassVar[str] = "policy_invalid"
    fault: ClassVar[Fault] = "policy"
    advice: ClassVar[str] = (
        "Correct the named keys; `stockade plan POLICY` checks a policy without running it."
    )
    problems: tuple[PolicyProblem, ...]
    source: str = "policy"

    def _text(self) -> str:
        return f"{self.source}: " + ("; ".join(map(str, self.problems)) or "not a usable policy")


@dataclass(eq=False, repr=False)
class HostUnsupported(StockadeError):
    """The host lacks ``what``; ``how`` says how to get it."""

    code: ClassVar[str] = "host_unsupported"
    fault: ClassVar[Fault] = "host"
    advice: ClassVar[str] = "Run `stockade doctor` to see what this host can enforce."
    what: str
    how: str

    def _text(self) -> str:
        return f"this host cannot provide {self.what}"


@dataclass(eq=False, repr=False)
class ImageError(StockadeError):
    """``image`` cannot serve as the root of a sandbox."""

    code: ClassVar[str] = "image_unusable"
    fault: ClassVar[Fault] = "caller"
    advice: ClassVar[str] = "Use `host` or a directory that holds a root file system."
    image: str
    why: str

    def _text(self) -> str:
        return f"image {self.image!r}: {self.why}"


@dataclass(eq=False, repr=False)
class WorkspaceRefused(StockadeError, ValueError):
    """The directory ``path`` may not be given to a sandbox."""

    code: ClassVar[str] = "workspace_refused"
    fault: ClassVar[Fault] = "caller"
    advice: ClassVar[str] = "Give a directory of your own that holds only what the agent may see."
    path: str
    why: str

    def _text(self) -> str:
        return f"{self.path!r} cannot be a workspace: {self.why}"


@dataclass(eq=False, repr=False)
class LaunchError(StockadeError):
    """Building the wall failed at ``step``, before anything of the agent's ran."""

    code: ClassVar[str] = "launch_failed"
    fault: ClassVar[Fault] = "host"
    sandbox_usable: ClassVar[bool | None] = False
    advice: ClassVar[str] = "Run `stockade doctor`; nothing was started and nothing is left."
    step: str
    errno: int = 0
    detail: str = ""
    how: str = ""

    def _text(self) -> str:
        return f"launch step {self.step!r} failed{_cause(self.errno, self.detail)}"


@dataclass(eq=False, repr=False)
class SandboxDied(StockadeError):
    """The sandbox ended by itself; ``reason`` is a short stable word such as ``oom``."""

    code: ClassVar[str] = "sandbox_died"
    fault: ClassVar[Fault] = "sandbox"
    sandbox_usable: ClassVar[bool | None] = False
    advice: ClassVar[str] = "Create a new sandbox; what was only in this one is gone."
    sandbox_id: str
    reason: str
    detail: str = ""

    def _text(self) -> str:
        return f"sandbox {self.sandbox_id} died: {self.reason}{_cause(0, self.detail)}"


@dataclass(eq=False, repr=False)
class ProtocolError(StockadeError):
    """The other side of the control channel broke the protocol; the sandbox is given up."""

    code: ClassVar[str] = "protocol"
    fault: ClassVar[Fault] = "sandbox"
    sandbox_usable: ClassVar[bool | None] = False
    advice: ClassVar[str] = "Create a new sandbox; treat this one's content as hostile."
    detail: str

    def _text(self) -> str:
        return f"broken control protocol: {self.detail}"


@dataclass(eq=False, repr=False)
class StateError(StockadeError):
    """``operation`` is not possible while the sandbox is ``state``."""

    code: ClassVar[str] = "state_illegal"
    fault: ClassVar[Fault] = "caller"
    sandbox_id: str
    state: str
    operation: str

    def _text(self) -> str:
        return f"cannot {self.operation}: sandbox {self.sandbox_id} is {self.state}"

    @property
    def next_step(self) -> str:
        if self.state == "frozen":
            return "Resume the sandbox first."
        return "Create a new sandbox, or wait until this one is ready."


@dataclass(eq=False, repr=False)
class CommandTimeout(StockadeError, TimeoutError):
    """A command ran past its limit and was ended with ``signal``, with all it had started."""

    code: ClassVar[str] = "command_timeout"
    fault: ClassVar[Fault] = "command"
    sandbox_usable: ClassVar[bool | None] = True
    advice: ClassVar[str] = (
        "Do less in one command or ask for a longer timeout; partial output is kept."
    )
    argv: tuple[str, ...]
    duration_ms: int
    limit_ms: int
    stdout: str = ""
    stderr: str = ""
    signal: int | None = None

    def _text(self) -> str:
        name = self.argv[0] if self.argv else "command"
        return f"{name!r} ran {self.duration_ms} ms; its limit is {self.limit_ms} ms"


@dataclass(eq=False, repr=False)
class OutputLimitExceeded(StockadeError):
    """A command wrote more than ``limit_bytes`` to ``stream``."""

    code: ClassVar[str] = "output_limit"
    fault: ClassVar[Fault] = "command"
    sandbox_usable: ClassVar[bool | None] = True
    advice: ClassVar[str] = (
        "Write the output to a file in the workspace and read the part you need."
    )
    stream: str
    limit_bytes: int

    def _text(self) -> str:
        return f"{self.stream} passed its limit of {self.limit_bytes} bytes"


@dataclass(eq=False, repr=False)
class Denied(StockadeError, PermissionError):
    """``layer`` refused ``target`` by ``rule`` (``rule_missing`` where nothing allowed it)."""

    code: ClassVar[str] = "denied"
    fault: ClassVar[Fault] = "policy"
    sandbox_usable: ClassVar[bool | None] = True
    advice: ClassVar[str] = "Do without it, or ask for the policy to allow it."
    layer: str
    rule: str
    target: str
    how: str = ""

    def _text(self) -> str:
        return f"{self.layer} denied {self.target!r} ({self.rule})"


@dataclass(eq=False, repr=False)
class CommandNotFound(StockadeError, FileNotFoundError):
    """No program ``argv0`` exists in the sandbox."""

    code: ClassVar[str] = "command_not_found"
    fault: ClassVar[Fault] = "caller"
    sandbox_usable: ClassVar[bool | None] = True
    advice: ClassVar[str] = (
        "Check the name; the program must be in the image or in a mounted directory."
    )
    argv0: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self.errno = errno_names.ENOENT

    def _text(self) -> str:
        return f"no such program in the sandbox: {self.argv0!r}"


@dataclass(eq=False, repr=False)
class InvalidCwd(StockadeError, NotADirectoryError):
    """``cwd`` is missing, not a directory, or outside what the sandbox may enter."""

    code: ClassVar[str] = "cwd_invalid"
    fault: ClassVar[Fault] = "caller"
    sandbox_usable: ClassVar[bool | None] = True
    advice: ClassVar[str] = "Use an existing directory inside the sandbox, such as /workspace."
    cwd: str
    errno: int = errno_names.ENOTDIR

    def _text(self) -> str:
        return f"cannot enter the working directory {self.cwd!r}{_cause(self.errno, '')}"


@dataclass(eq=False, repr=False)
class StartError(StockadeError):
    """A command could not be started; ``step`` names what failed on the way."""

    code: ClassVar[str] = "start_failed"
    fault: ClassVar[Fault] = "command"
    sandbox_usable: ClassVar[bool | None] = True
    step: str
    errno: int = 0
    detail: str = ""

    def _text(self) -> str:
        return f"the command could not be started: {self.step}{_cause(self.errno, self.detail)}"

    @property
    def next_step(self) -> str:
        if self.errno in (errno_names.EAGAIN, errno_names.ENOMEM):
            return "Too many processes or too much memory in use: end some and try again."
        return "Check that the program is executable, and its arguments and environment."


@dataclass(eq=False, repr=False)
class SandboxFileError(StockadeError, OSError):
    """A file operation in the sandbox failed; made by ``file_error``."""

    code: ClassVar[str] = "file"
    fault: ClassVar[Fault] = "caller"
    sandbox_usable: ClassVar[bool | None] = True
    advice: ClassVar[str] = "Check the path and the sandbox's mounts."
    path: str
    errno: int = errno_names.EIO
    detail: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.filename = self.path

    def _text(self) -> str:
        return f"{self.path!r}{_cause(self.errno, self.detail)}"


@dataclass(eq=False, repr=False)
class FileNotFound(SandboxFileError, FileNotFoundError):
    """No file has this path in the sandbox."""

    code: ClassVar[str] = "file_not_found"
    advice: ClassVar[str] = (
        "List the directory above it; create it first where it should be written."
    )


@dataclass(eq=False, repr=False)
class FileExists(SandboxFileError, FileExistsError):
    """The path is taken already."""

    code: ClassVar[str] = "file_exists"
    advice: ClassVar[str] = "Use another name, or remove the existing file first."


@dataclass(eq=False, repr=False)
class NotPermitted(SandboxFileError, PermissionError):
    """The path is read-only, outside the sandbox's directories, or not the payload's."""

    code: ClassVar[str] = "file_not_permitted"
    fault: ClassVar[Fault] = "policy"
    advice: ClassVar[str] = "Use a writable directory, such as /workspace, /output or /tmp."


@dataclass(eq=False, repr=False)
class IsDirectory(SandboxFileError, IsADirectoryError):
    """The path is a directory where a file was expected."""

    code: ClassVar[str] = "file_is_directory"
    advice: ClassVar[str] = "Name a file in it, or list it instead."


@dataclass(eq=False, repr=False)
class NotDirectory(SandboxFileError, NotADirectoryError):
    """A part of the path is not a directory."""

    code: ClassVar[str] = "file_not_directory"
    advice: ClassVar[str] = "Check each directory in the path."


@dataclass(eq=False, repr=False)
class NoSpace(SandboxFileError):
    """The sandbox's disk limit, in bytes or in files, is reached."""

    code: ClassVar[str] = "file_no_space"
    advice: ClassVar[str] = "Remove files, or raise the disk limit in the policy."


@dataclass(eq=False, repr=False)
class FileTooLarge(SandboxFileError):
    """The file is larger than this operation or the sandbox's limit allows."""

    code: ClassVar[str] = "file_too_large"
    advice: ClassVar[str] = "Read or write it in parts."


@dataclass(eq=False, repr=False)
class AuditError(StockadeError):
    """Records cannot be stored or read; ``operation`` says which of both was tried."""

    code: ClassVar[str] = "audit"
    fault: ClassVar[Fault] = "host"
    advice: ClassVar[str] = (
        "Check the state directory's free space and rights; records wait until it works."
    )
    operation: str
    detail: str

    def _text(self) -> str:
        return f"audit {self.operation}: {self.detail}"


_FILE_ERRORS: dict[int, type[SandboxFileError]] = {
    errno_names.ENOENT: FileNotFound,
    errno_names.EEXIST: FileExists,
    errno_names.ENOTEMPTY: FileExists,
    errno_names.EACCES: NotPermitted,
    errno_names.EPERM: NotPermitted,
    errno_names.EROFS: NotPermitted,
    # openat2(2): EXDEV is a path that leaves its directory, ELOOP a link that may not be followed.
    errno_names.EXDEV: NotPermitted,
    errno_names.ELOOP: NotPermitted,
    errno_names.EISDIR: IsDirectory,
    errno_names.ENOTDIR: NotDirectory,
    errno_names.ENOSPC: NoSpace,
    errno_names.EDQUOT: NoSpace,
    errno_names.EFBIG: FileTooLarge,
}


def file_error(path: str, errno: int, detail: str = "") -> SandboxFileError:
    """Return the error of the file tree that ``errno`` stands for."""
    return _FILE_ERRORS.get(errno, SandboxFileError)(path, errno, detail)


def _cause(errno: int, detail: str) -> str:
    """Return ``: NAME, text: detail`` with the parts that are known."""
    known = f"{errno_names.errorcode.get(errno, errno)} ({os.strerror(errno)})" if errno else ""
    text = ": ".join(part for part in (known, detail) if part)
    return f": {text}" if text else ""


def _plain(value: object) -> object:
    """Return ``value`` as JSON-ready data; fields hold scalars, tuples and dataclasses only."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def _rebuild(kind: type[StockadeError], fields: dict[str, Any]) -> StockadeError:
    """Make a pickled error again; ``Exception`` alone would call ``kind(message)``."""
    return kind(**fields)
