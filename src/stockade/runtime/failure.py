"""From the cell's ERROR messages to exceptions: one place of translation, a closed table."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from stockade.errors import (
    CommandNotFound,
    InvalidCwd,
    NotPermitted,
    ProtocolError,
    SandboxFileError,
    StartError,
    StockadeError,
    file_error,
)
from stockade.wire import frames

_MISSING = (errno.ENOENT, errno.ENOTDIR)

#: Why the cell refused a path or a request, where errno alone does not say it.
_REFUSALS = {
    frames.ERROR_OUTSIDE: "outside the directories of the sandbox that may be used",
    frames.ERROR_HARD_LINK: "the file has a second name (hard link); write a new file instead",
    frames.ERROR_REFUSED: "the directory is read-only, or the request is not allowed",
}


def start_failure(error: frames.Error, argv: Sequence[bytes], cwd: bytes) -> StockadeError:
    """Return the exception of a command that could not be started."""
    match error.code:
        case frames.ERROR_EXEC if error.errno in _MISSING:
            return CommandNotFound(argv0=_text(argv[0]))
        case frames.ERROR_EXEC:
            return StartError(step="execute the program", errno=error.errno, detail=_text(argv[0]))
        case frames.ERROR_CWD:
            return InvalidCwd(cwd=_text(cwd), errno=error.errno or errno.ENOTDIR)
        case frames.ERROR_START | frames.ERROR_REFUSED | frames.ERROR_LIMIT:
            return StartError(step=error.detail, errno=error.errno)
        case _:
            return ProtocolError(detail=f"error code {error.code} in a command's dialogue")


def file_failure(error: frames.Error, path: bytes) -> StockadeError:
    """Return the exception of a file operation that failed."""
    name = _text(path)
    match error.code:
        case frames.ERROR_FILE:
            return file_error(name, error.errno, error.detail)
        case frames.ERROR_OUTSIDE | frames.ERROR_HARD_LINK | frames.ERROR_REFUSED:
            return NotPermitted(path=name, errno=errno.EACCES, detail=_REFUSALS[error.code])
        case frames.ERROR_NOT_REGULAR:
            if error.errno == errno.EISDIR:
                return file_error(name, errno.EISDIR, "")
            return SandboxFileError(path=name, errno=errno.EINVAL, detail="not a regular file")
        case frames.ERROR_LIMIT:
            return SandboxFileError(path=name, errno=errno.EMFILE, detail=error.detail)
        case _:
            return ProtocolError(detail=f"error code {error.code} in a file's dialogue")


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
