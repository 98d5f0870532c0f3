"""A sandbox's life as its owner sees it: what it says of itself, and every ordinary way for it to end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade import AsyncSandbox, Sandbox
from stockade.errors import StateError
from stockade.isolation.slots import collect
from stockade.runtime import live
from tests.e2e.orphans import ROOT, Owner, Place, subreaper
from tests.e2e.residue import assert_gone, traces_of, wait_until

QUIET = {"version": 1, "limits": {"cpu": 4}}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Make directories for owners of the test's own, which end with it."""
    made = Place(tmp_path)
    for name in ("run", "tmp"):
        (tmp_path / name).mkdir(mode=0o700)
    with subreaper():
        yield made


def _program(place: Place, text: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=ROOT,
        env=place.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_sandbox_says_who_it_is_and_what_stands_around_it() -> None:
    """Ids, walls, each limit's grade, and each phase of the creation."""
    with Sandbox.create(QUIET, session_id="se-mine", agent_id="agent-7") as made:
        assert made.sandbox_id.startswith("sb-")
        assert made.session_id == "se-mine"
        assert made.protections.level == "container"
        assert {entry.limit for entry in made.protections.limits} >= {
            "cpu",
            "memory",
            "processes",
            "disk",
        }
        assert len(made.protections.walls) >= 8
        assert made.timings["total"] >= max(made.timings.values()) > 0


def test_sandboxes_of_one_policy_share_no_id() -> None:
    """Ids are drawn, not counted."""
    made = [Sandbox.create(QUIET) for _ in range(5)]
    assert len({sandbox.sandbox_id for sandbox in made}) == 5
    for sandbox in made:
        sandbox.kill()


def test_what_one_sandbox_wrote_is_not_in_another() -> None:
    """Each begins empty, also where the one before it was of the same policy."""
    with Sandbox.create(QUIET) as first:
        first.commands.run("touch /workspace/x /tmp/x /dev/shm/x /output/x")
    with Sandbox.create(QUIET) as second:
        assert second.commands.run("ls /workspace /tmp /dev/shm /output | grep x").exit_code == 1


def test_an_error_in_the_body_ends_the_sandbox() -> None:
    """The caller's own error comes out, and nothing is left."""
    traces = []

    def body() -> None:
        with Sandbox.create(QUIET) as made:
            made.commands.run(["sleep", "60"], background=True)
            traces.append(traces_of(made))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        body()
    assert_gone(traces[0])


def test_a_cancelled_creation_leaves_nothing() -> None:
    """Cancelling at any turn of the event loop gives back what was taken."""

    async def create_and_cancel(turns: int) -> bool:
        task = asyncio.ensure_future(AsyncSandbox.create(QUIET))  # noqa: TID251 - cancelled in this function
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            made = await task
        except asyncio.CancelledError:
            return True
        await made.kill()
        return False

    async def main() -> int:
        async with await AsyncSandbox.create(QUIET):
            pass
        return sum([await create_and_cancel(turns) for turns in range(60)])

    before = set(Owner.own_children())
    assert asyncio.run(main()) > 0
    assert wait_until(lambda: set(Owner.own_children()) <= before)


def test_an_async_sandbox_belongs_to_its_loop() -> None:
    """From another loop it is an error at once, not a wait for ever."""
    made: list[AsyncSandbox] = []
    used, ended = threading.Event(), threading.Event()

    async def own() -> None:
        async with await AsyncSandbox.create(QUIET) as sandbox:
            made.append(sandbox)
            ended.set()
            await asyncio.to_thread(used.wait)

    async def use() -> None:
        async with asyncio.timeout(5):
            await made[0].commands.run(["true"])

    thread = threading.Thread(target=asyncio.run, args=(own(),))
    thread.start()
    ended.wait()
    try:
        with pytest.raises((RuntimeError, StateError)):
            asyncio.run(use())
    finally:
        used.set()
        thread.join()


@pytest.mark.parametrize(
    "end",
    ["", "import sys; sys.exit(3)", "raise KeyError", "import os; os._exit(4)", "del made"],
    ids=["end of the program", "sys.exit", "an error", "os._exit", "forgotten"],
)
def test_a_program_that_never_kills_its_sandbox_leaves_nothing(place: Place, end: str) -> None:
    """The end of the owner is the sandbox's; it says nothing about it on standard error."""
    program = (
        "from stockade import Sandbox\n"
        "made = Sandbox.create()\n"
        "made.commands.run(['sleep', '600'], background=True)\n" + end
    )
    owner = Owner(_program(place, program), frozenset(Owner.own_children()))  # type: ignore[arg-type]
    _, stderr = owner.process.communicate(timeout=15)
    owner.assert_alone()
    expected = ["Traceback (most recent call last):", "KeyError"] if end == "raise KeyError" else []
    assert [line for line in str(stderr).splitlines() if not line.startswith(" ")] == expected
    place.collect()
    assert place.left() == []


def test_an_interrupt_ends_the_command_and_the_program(place: Place) -> None:
    """Ctrl-C in a blocking `run` is a KeyboardInterrupt; the sandbox goes with its `with`."""
    program = (
        "from stockade import Sandbox\n"
        "with Sandbox.create() as made:\n"
        "    try:\n"
        "        made.commands.run('echo on; sleep 600', on_stdout=lambda t: print(t, end='', flush=True))\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', made.commands.run('echo usable').stdout, end='')\n"
    )
    process = _program(place, program)
    owner = Owner(process, frozenset(Owner.own_children()))  # type: ignore[arg-type]
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=15)
    assert (process.returncode, stdout, stderr) == (0, "interrupted usable\n", "")
    owner.assert_alone()
    assert place.left() == []


@pytest.mark.root
def test_what_a_kill_could_not_remove_keeps_its_ids_until_it_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of something that may still run are nobody else's, and the next start removes it (kernel-facts 21)."""
    run_dir = str(tmp_path / "run")
    monkeypatch.setenv("STOCKADE_RUN_DIR", run_dir)
    monkeypatch.setattr(live, "DESTROY_DEADLINE_S", 0.2)
    made = Sandbox.create(QUIET, state_dir=str(tmp_path))
    plan = made._sandbox.live.plan.launch
    stuck = Path(plan.cgroups[0].path) / "stuck"
    stuck.mkdir()
    try:
        made.kill()
        assert stuck.is_dir()
        with Sandbox.create(QUIET, state_dir=str(tmp_path)) as other:
            assert other._sandbox.live.plan.launch.identity.uid_map != plan.identity.uid_map
    finally:
        stuck.rmdir()
    assert made.sandbox_id in {found.sandbox_id for found in collect(run_dir)}
    assert not stuck.parent.exists()
