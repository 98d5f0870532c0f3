"""The exception tree: fields, messages, and the three answers that every error gives."""

from __future__ import annotations

import errno
import inspect
import json
import pickle
from typing import Any

import pytest

from stockade import errors
from stockade.errors import PolicyProblem, SandboxFileError, StockadeError, file_error

PROBLEM = PolicyProblem("limits.memory", "must be above 0", 3, 5)
SAMPLES: list[StockadeError] = [
    StockadeError(),
    errors.PolicyError((PROBLEM,), "p.yaml"),
    errors.HostUnsupported("microvm", "Enable /dev/kvm."),
    errors.ImageError("/srv/img", "no such directory"),
    errors.WorkspaceRefused("/", "it is the root of the host"),
    errors.LaunchError("mount /proc", errno.EPERM, "nested", "Run as root."),
    errors.SandboxDied("sb-1", "oom", "work group"),
    errors.ProtocolError("frame of 2 GB"),
    errors.StateError("sb-1", "frozen", "run a command"),
    errors.CommandTimeout(("sleep", "9"), 1001, 1000, "out", "err", 15),
    errors.OutputLimitExceeded("stdout", 1024),
    errors.Denied("gateway", "rule_missing", "/etc/shadow", "Allow fs:read:/etc/shadow."),
    errors.CommandNotFound("nope"),
    errors.InvalidCwd("/proc/self/fd/3", errno.EACCES),
    errors.StartError("execve", errno.EACCES),
    errors.AuditError("write", "disk full"),
    *(
        file_error("/workspace/a", number, "write")
        for number in (
            errno.EIO,
            errno.ENOENT,
            errno.EEXIST,
            errno.EROFS,
            errno.EISDIR,
            errno.ENOTDIR,
            errno.ENOSPC,
            errno.EFBIG,
        )
    ),
]


def _name(error: StockadeError) -> str:
    return type(error).__name__


def test_samples_cover_every_class() -> None:
    """No error class escapes the tests below."""
    defined = {
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, StockadeError)
    }
    assert {type(sample) for sample in SAMPLES} == defined


def test_codes_are_unique() -> None:
    """A code names one class, so that it can be told apart on the wire and in records."""
    codes = [sample.code for sample in SAMPLES]
    assert len(set(codes)) == len(codes)


def test_docstring_draws_every_class() -> None:
    """The tree in the module's docstring is complete."""
    words = (errors.__doc__ or "").split()
    assert [_name(sample) for sample in SAMPLES if _name(sample) not in words] == []


@pytest.mark.parametrize("error", SAMPLES, ids=_name)
def test_error_survives_json(error: StockadeError) -> None:
    """An error's dictionary is plain JSON with the message and the three answers."""
    data = error.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["message"] == str(error)
    assert data["next_step"].endswith((".", "works."))
    assert set(data) == {"code", "message", "fault", "sandbox_usable", "next_step", "fields"}


@pytest.mark.parametrize("error", SAMPLES, ids=_name)
def test_error_survives_pickle(error: StockadeError) -> None:
    """An error crosses a process boundary with its class and fields."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert copy.fields() == error.fields()
    assert str(copy) == str(error)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.PolicyError(()), ValueError),
        (errors.WorkspaceRefused("/", "root"), ValueError),
        (errors.CommandTimeout((), 1, 1), TimeoutError),
        (errors.Denied("a", "b", "c"), PermissionError),
        (errors.CommandNotFound("x"), FileNotFoundError),
        (errors.InvalidCwd("/x"), NotADirectoryError),
    ],
)
def test_errors_are_also_the_builtin_kind(error: StockadeError, kind: type[Exception]) -> None:
    """Code that knows only the standard exceptions catches ours."""
    assert isinstance(error, kind)


@pytest.mark.parametrize(
    ("number", "ours", "builtin"),
    [
        (errno.ENOENT, errors.FileNotFound, FileNotFoundError),
        (errno.EEXIST, errors.FileExists, FileExistsError),
        (errno.EACCES, errors.NotPermitted, PermissionError),
        (errno.EXDEV, errors.NotPermitted, PermissionError),
        (errno.EISDIR, errors.IsDirectory, IsADirectoryError),
        (errno.ENOTDIR, errors.NotDirectory, NotADirectoryError),
        (errno.EDQUOT, errors.NoSpace, OSError),
        (errno.EFBIG, errors.FileTooLarge, OSError),
        (errno.ENXIO, SandboxFileError, OSError),
    ],
)
def test_file_error_picks_the_class(
    number: int, ours: type[SandboxFileError], builtin: type[OSError]
) -> None:
    """An errno from the cell becomes the matching class, with errno and filename set."""
    error: Any = file_error("/workspace/a", number)
    assert type(error) is ours
    assert isinstance(error, builtin)
    assert (error.errno, error.filename) == (number, "/workspace/a")


def test_policy_error_names_line_and_key() -> None:
    """A policy error's message leads to the place in the file."""
    error = errors.PolicyError((PROBLEM,), "p.yaml")
    assert str(error) == "p.yaml: line 3: limits.memory: must be above 0"


def test_launch_error_names_step_and_errno() -> None:
    """A failed launch says which step failed, with the errno's name."""
    error = errors.LaunchError("mount /proc", errno.EPERM)
    assert str(error) == "launch step 'mount /proc' failed: EPERM (Operation not permitted)"
