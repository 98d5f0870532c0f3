"""`Sandbox` and `AsyncSandbox`: the public Python surface."""

from stockade.sandbox.async_sandbox import AsyncSandbox, Protections
from stockade.sandbox.commands import CommandHandle as AsyncCommandHandle
from stockade.sandbox.results import CommandResult, EntryInfo
from stockade.sandbox.sandbox import CommandHandle, Sandbox

__all__ = [
    "AsyncCommandHandle",
    "AsyncSandbox",
    "CommandHandle",
    "CommandResult",
    "EntryInfo",
    "Protections",
    "Sandbox",
]
