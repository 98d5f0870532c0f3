"""What goes to standard error: one sentence, the next step, and nothing that drives a terminal."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import traceback
from typing import Any

from stockade.errors import PolicyError, StockadeError

# C0, DEL, C1 and lone surrogates act on terminals; the others reorder or hide what is shown (Trojan Source).
_ACTIVE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: object) -> str:
    r"""Return text on one line, with whatever a terminal would act on written as `\x1b` or `\u202e`."""
    return _ACTIVE.sub(lambda found: _escaped(ord(found[0])), str(text))


def show(text: str, next_step: str = "", *details: str) -> None:
    """Print a message, its details and what to do now."""
    lines = [f"stockade: {printable(text)}", *(f"  {printable(detail)}" for detail in details)]
    if next_step:
        lines.append(f"  next: {printable(next_step)}")
    print("\n".join(lines), file=sys.stderr, flush=True)


def show_error(error: StockadeError) -> None:
    """Print one of our errors; a policy's faults each on a line of their own."""
    if isinstance(error, PolicyError) and error.problems:
        show(
            f"{error.source}: this policy can't be used", error.next_step, *map(str, error.problems)
        )
    else:
        show(error.message, error.next_step)


def write_json(data: object) -> None:
    """Print data as one JSON object on standard output: ASCII, so that no text of a command's reaches the terminal."""
    print(json.dumps(data, allow_nan=False), flush=True)


def is_usage_error(error: Exception) -> bool:
    """Say whether typer refused the words; its exceptions moved between modules, their shape did not."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def show_usage_error(error: Any) -> None:  # noqa: ANN401 - see above
    """Print what typer did not understand, and where the help is."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "stockade"
    show(error.format_message(), f"{command} --help")


def show_bug(error: Exception) -> None:
    """Print that this is our fault, and keep the traceback in a file: it would bury the message."""
    text = "".join(traceback.format_exception(error))
    try:
        descriptor, path = tempfile.mkstemp(prefix="stockade-error-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{sys.version}\n{' '.join(os.uname())}\n{text}")
        how = f"Report this with {path}, or set STOCKADE_DEBUG=1 to see the traceback here."
    except OSError:
        how = "Set STOCKADE_DEBUG=1 to see the traceback, and report it."
    show(f"internal error: {type(error).__name__}: {error}", how)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"  # noqa: PLR2004 - one byte
