"""Stockade: walls around the tool calls of AI agents, limits on them, and a record of each.

This module only re-exports; it does no work when it is imported.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
