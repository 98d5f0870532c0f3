"""Fixtures of the attack tests: the places where a probe runs, and programs in C built once.

Every attack has a positive control: the same probe outside of a sandbox does what the attack wants, or at least
reaches the kernel. Where a successful attack would harm the machine, the control is a harmless form of it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stockade import Sandbox
from tests.attack.places import PROGRAMS, Inside, Outside

#: As the built-in policy, but with whole cores: starting interpreters is most of what these tests do.
FAST = {"version": 1, "limits": {"cpu": 4}}

MakeInside = Callable[..., Inside]
Build = Callable[..., Path]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """One sandbox for all attacks of a module that leave no damage."""
    with Sandbox.create(FAST) as made:
        yield made


@pytest.fixture
def inside(sandbox: Sandbox) -> Inside:
    """In the module's sandbox."""
    return Inside(sandbox)


@pytest.fixture(scope="session")
def outside() -> Outside:
    """On the host."""
    return Outside()


@pytest.fixture
def make_inside() -> Iterator[MakeInside]:
    """Make sandboxes of the test's own; keywords are parts of the policy."""
    with ExitStack() as stack:

        def make(**parts: Any) -> Inside:
            limits = {**FAST["limits"], **parts.pop("limits", {})}  # type: ignore[dict-item]
            policy = {"version": 1, "limits": limits, **parts}
            return Inside(stack.enter_context(Sandbox.create(policy)))

        yield make


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compile a program of programs/ once; more words go to the compiler."""
    directory = tmp_path_factory.mktemp("programs")

    def compile_program(name: str, *words: str) -> Path:
        target = directory / name.replace(".", "_")
        if not target.exists():
            command = [
                "gcc",
                "-O1",
                "-Wall",
                "-Werror",
                "-o",
                str(target),
                str(PROGRAMS / name),
                *words,
            ]
            subprocess.run(command, check=True, capture_output=True)
        return target

    return compile_program
