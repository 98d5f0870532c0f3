"""Watching a directory: changes arrive as they happen, and a flood is told as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stockade import AsyncSandbox
from stockade.errors import FileNotFound, NotDirectory, StockadeError
from stockade.sandbox.async_sandbox import Level
from stockade.wire import frames
from tests.contract.conftest import POLICY

Change = tuple[int, bytes]


async def _watch(
    made: AsyncSandbox, act: Callable[[], Awaitable[object]], last: Change
) -> list[Change]:
    """Return the changes of /workspace that `act` makes, up to `last`."""
    ready, seen = asyncio.Event(), []
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:

        async def then() -> None:
            await ready.wait()
            await act()

        group.create_task(then())
        async for event in made.files.watch_dir("/workspace", ready):
            seen.append((event.change, event.name))
            if event.overflow or seen[-1] == last:
                break
    return seen


@pytest.mark.parametrize(
    ("script", "change"),
    [
        ("touch f", (frames.CHANGE_CREATED, b"f")),
        ("echo x >old", (frames.CHANGE_MODIFIED, b"old")),
        ("rm old", (frames.CHANGE_REMOVED, b"old")),
        ("mv old new", (frames.CHANGE_RENAMED, b"new")),
        ("chmod 600 old", (frames.CHANGE_ATTRIBUTES, b"old")),
        ("mkdir d", (frames.CHANGE_CREATED, b"d")),
        (r"touch $(printf '\377')", (frames.CHANGE_CREATED, b"\xff")),
    ],
)
def test_each_kind_of_change_is_told(level: Level, script: str, change: Change) -> None:
    """A change says what happened, and to which name."""

    async def main() -> None:
        async with await AsyncSandbox.create(POLICY, level=level) as made:
            await made.files.write("/workspace/old", "")
            assert change in await _watch(made, lambda: made.commands.run(script), change)

    asyncio.run(main())


def test_changes_from_outside_are_told_too(level: Level) -> None:
    """A file operation is seen as a command's is."""

    async def main() -> None:
        last = (frames.CHANGE_CREATED, b"f")
        async with await AsyncSandbox.create(POLICY, level=level) as made:
            assert last in await _watch(made, lambda: made.files.write("/workspace/f", ""), last)

    asyncio.run(main())


def test_a_flood_of_changes_is_told_at_a_bounded_rate(level: Level) -> None:
    """The cell tells of some thousand changes a second, in order; the rest of the sandbox does not wait for them."""
    seen: list[frames.Event] = []

    async def main() -> None:
        async with await AsyncSandbox.create(POLICY, level=level) as made:
            ready = asyncio.Event()
            task = asyncio.ensure_future(_collect(made, ready, seen))  # noqa: TID251 - ends in this function
            await ready.wait()
            script = "import os\nfor n in range(6000): os.close(os.open(str(n), os.O_CREAT))"
            result = await made.commands.run(["python3", "-c", script])
            listed = await made.files.list("/workspace")
            task.cancel()
            await asyncio.wait([task])
            assert (result.ok, len(listed), 0 < len(seen) < 5000) == (True, 6000, True)

    asyncio.run(main())
    created = [event.name for event in seen if event.change == frames.CHANGE_CREATED]
    assert created == [b"%d" % n for n in range(len(created))]


async def _collect(made: AsyncSandbox, ready: asyncio.Event, seen: list[frames.Event]) -> None:
    async for event in made.files.watch_dir("/workspace", ready):
        seen.append(event)  # noqa: PERF401 - read while it grows


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/workspace/missing", FileNotFound), ("/etc/hosts", NotDirectory), ("/proc", StockadeError)],
)
def test_what_can_not_be_watched_is_an_error(
    level: Level, path: str, kind: type[StockadeError]
) -> None:
    """The error comes with the first step, not as silence."""

    async def main() -> None:
        async with await AsyncSandbox.create(POLICY, level=level) as made:
            with pytest.raises(kind):
                async with asyncio.timeout(2):
                    await anext(made.files.watch_dir(path))

    asyncio.run(main())


def test_a_watch_ends_with_its_sandbox(level: Level) -> None:
    """Who waits for a change learns that none will come."""

    async def watch_and_kill(made: AsyncSandbox) -> None:
        ready = asyncio.Event()
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            group.create_task(_collect(made, ready, []))
            await ready.wait()
            await made.kill()

    async def main() -> None:
        made = await AsyncSandbox.create(POLICY, level=level)
        with pytest.raises(ExceptionGroup) as caught:
            await watch_and_kill(made)
        assert caught.group_contains(StockadeError)

    asyncio.run(main())


def test_a_watch_that_is_left_is_given_back(level: Level) -> None:
    """A hundred watches one after the other do not use up the cell's."""

    async def main() -> None:
        async with await AsyncSandbox.create(POLICY, level=level) as made:
            for number in range(100):
                last = (frames.CHANGE_CREATED, b"%d" % number)
                path = f"/workspace/{number}"
                await _watch(made, lambda path=path: made.files.write(path, ""), last)  # type: ignore[misc]

    asyncio.run(main())
