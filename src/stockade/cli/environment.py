"""The variables that `--env` names: nothing else of the local environment reaches a sandbox (R9)."""

from __future__ import annotations

import os
from collections.abc import Iterable

import typer


def read_variables(words: Iterable[str]) -> dict[str, str]:
    """Return name and value of each `NAME=VALUE`, or of `NAME` with its local value; the last one of a name holds."""
    return dict(map(_variable, words))


def _variable(word: str) -> tuple[str, str]:
    name, assigned, value = word.partition("=")
    if not name:
        raise typer.BadParameter(f"{word!r} has no name; write NAME=VALUE", param_hint="--env")
    if assigned:
        return name, value
    if name not in os.environ:
        raise typer.BadParameter(f"{name} is not set here; write {name}=VALUE", param_hint="--env")
    return name, os.environ[name]
