"""The contract of commands and files: what every wall gives. A new wall adds its name to `LEVELS`, and no test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from stockade import Sandbox
from stockade.sandbox.async_sandbox import Level
from tests.e2e.residue import assert_gone, traces_of

LEVELS: tuple[Level, ...] = ("container",)

#: As the built-in policy, but with whole cores: starting interpreters is most of what these tests do.
POLICY: dict[str, Any] = {"version": 1, "limits": {"cpu": 4}}

MakeSandbox = Callable[..., Sandbox]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Level:
    """Return the wall under test."""
    chosen: Level = request.param
    return chosen


@pytest.fixture
def sandbox(level: Level) -> Iterator[Sandbox]:
    """Make a sandbox that must be usable after the test, and leave nothing when it is killed."""
    with Sandbox.create(POLICY, level=level) as made:
        traces = traces_of(made)
        yield made
        assert made.commands.run(["true"]).ok
        assert [entry.pid for entry in made.commands.list()] == []
    assert_gone(traces)


@pytest.fixture
def make_sandbox(level: Level) -> Iterator[MakeSandbox]:
    """Make sandboxes with limits or other parts of the policy of their own."""
    with ExitStack() as stack:

        def make(*, timeout: float | None = None, **parts: Any) -> Sandbox:
            limits = {**POLICY["limits"], **parts.pop("limits", {})}
            policy = {"version": 1, "limits": limits, **parts}
            return stack.enter_context(Sandbox.create(policy, level=level, timeout=timeout))

        yield make
