"""Stockade: walls around the tool calls of AI agents, limits on them, and a record of each.

This module only re-exports; a name is loaded when it is first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stockade.policy import Policy, load_policy
    from stockade.sandbox import AsyncSandbox, CommandResult, EntryInfo, Sandbox

__version__ = "0.1.0"

_HOMES = {
    "AsyncSandbox": "stockade.sandbox",
    "CommandResult": "stockade.sandbox",
    "EntryInfo": "stockade.sandbox",
    "Policy": "stockade.policy",
    "Sandbox": "stockade.sandbox",
    "load_policy": "stockade.policy",
}

__all__ = [
    "AsyncSandbox",
    "CommandResult",
    "EntryInfo",
    "Policy",
    "Sandbox",
    "__version__",
    "load_policy",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name is
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stockade' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
