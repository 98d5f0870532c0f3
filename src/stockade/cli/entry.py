"""The entry point: from `sys.argv` to an exit status; every exception ends here as a message, or is a bug."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

from stockade import __version__

#: Exit status of our own failures where any other number may be the command's (as env(1) and docker do).
OWN_FAILURE = 125
USAGE = 2
FAILURE = 1


def main() -> int:
    """Run the command that `sys.argv` names; the entry point exits with what this returns."""
    _hold_standard_descriptors()
    words = sys.argv[1:]
    if words in (["--version"], ["-V"]):
        print(f"stockade {__version__}")
        return 0
    if words[:1] in (["audit"], ["plan"]):
        # Their output goes into head(1) and less(1). Not where sandboxes are: a write to a dead cell would end us.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    failure = OWN_FAILURE if words[:1] == ["run"] else FAILURE
    try:
        status = _invoke(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        from stockade.cli.ending import die_of

        return die_of(signal.SIGINT)
    except BrokenPipeError:
        _drop_output()
        return 128 + signal.SIGPIPE
    except Exception as error:  # noqa: BLE001 - the last resort: a traceback helps nobody who typed a command
        return _report(error, failure)
    return status


def _invoke(words: list[str]) -> int:
    from stockade.cli.app import app

    # Not typer's standalone mode: that prints usage errors in its own way and exits with 2 for `run`, too.
    status: Any = app(args=words, prog_name="stockade", standalone_mode=False)
    return status if isinstance(status, int) else 0


def _report(error: Exception, failure: int) -> int:
    from stockade.cli import message
    from stockade.errors import StockadeError

    if isinstance(error, StockadeError):
        message.show_error(error)
        return failure
    if message.is_usage_error(error):
        message.show_usage_error(error)
        return OWN_FAILURE if failure == OWN_FAILURE else USAGE
    if os.environ.get("STOCKADE_DEBUG") == "1":
        raise error
    message.show_bug(error)
    return failure


def _hold_standard_descriptors() -> None:
    """Open what the caller closed of 0, 1 and 2: else a socket of ours gets the number and the output of a command."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # The interpreter has none where the descriptor was closed at its start.
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _drop_output() -> None:
    """Point standard output at nothing, so that the interpreter's last flush has no reader to miss."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
