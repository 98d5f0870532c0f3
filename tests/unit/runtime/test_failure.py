"""From the cell's ERROR messages to exceptions: the whole table, and nothing beside it."""

from __future__ import annotations

import errno

import pytest

from stockade import errors
from stockade.runtime.failure import file_failure, start_failure
from stockade.wire import frames


@pytest.mark.parametrize(
    ("code", "number", "kind"),
    [
        (frames.ERROR_EXEC, errno.ENOENT, errors.CommandNotFound),
        (frames.ERROR_EXEC, errno.EACCES, errors.StartError),
        (frames.ERROR_CWD, errno.ENOENT, errors.InvalidCwd),
        (frames.ERROR_START, errno.EAGAIN, errors.StartError),
        (frames.ERROR_REFUSED, 0, errors.StartError),
        (frames.ERROR_LIMIT, errno.EMFILE, errors.StartError),
        (frames.ERROR_FILE, errno.ENOENT, errors.ProtocolError),
        (999, 0, errors.ProtocolError),
    ],
)
def test_a_start_that_failed_has_the_class_of_its_code(
    code: int, number: int, kind: type[errors.StockadeError]
) -> None:
    """A code of another dialogue is the cell's fault, not the command's."""
    assert type(start_failure(frames.Error(code, number, "clone"), [b"x"], b"/workspace")) is kind


@pytest.mark.parametrize(
    ("code", "number", "kind"),
    [
        (frames.ERROR_FILE, errno.ENOENT, errors.FileNotFound),
        (frames.ERROR_FILE, errno.EIO, errors.SandboxFileError),
        (frames.ERROR_OUTSIDE, errno.EXDEV, errors.NotPermitted),
        (frames.ERROR_NOT_REGULAR, errno.EISDIR, errors.IsDirectory),
        (frames.ERROR_NOT_REGULAR, 0, errors.SandboxFileError),
        (frames.ERROR_HARD_LINK, 0, errors.NotPermitted),
        (frames.ERROR_REFUSED, 0, errors.NotPermitted),
        (frames.ERROR_LIMIT, 0, errors.SandboxFileError),
        (frames.ERROR_EXEC, errno.ENOENT, errors.ProtocolError),
        (999, 0, errors.ProtocolError),
    ],
)
def test_a_file_operation_that_failed_has_the_class_of_its_code(
    code: int, number: int, kind: type[errors.StockadeError]
) -> None:
    """An unknown code is a protocol error, never a guess."""
    assert type(file_failure(frames.Error(code, number, ""), b"/workspace/a")) is kind
