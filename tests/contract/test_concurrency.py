"""Many at once: commands of one sandbox, loops, threads and forked processes of one owner."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stockade import AsyncSandbox, Sandbox
from stockade.sandbox.async_sandbox import Level
from tests.contract.conftest import POLICY, MakeSandbox


def test_fifty_commands_at_once_do_not_mix(level: Level) -> None:
    """Each gets its own output and exit code."""
    policy = {**POLICY, "limits": {"cpu": 4, "processes": 200}}

    async def main() -> None:
        async with await AsyncSandbox.create(policy, level=level) as made:
            async with asyncio.TaskGroup() as group:
                scripts = (f"echo {n}; cat; exit {n}" for n in range(50))
                tasks = [group.create_task(made.commands.run(s, stdin="in")) for s in scripts]
            results = [task.result() for task in tasks]
        assert [(r.exit_code, r.stdout) for r in results] == [(n, f"{n}\nin") for n in range(50)]

    asyncio.run(main())


def test_a_flood_of_one_command_does_not_starve_another(level: Level) -> None:
    """While one writes without end, another one starts and ends."""

    async def main() -> None:
        async with await AsyncSandbox.create(POLICY, level=level) as made:
            flood = await made.commands.run(["yes"], background=True, on_stdout=lambda _: None)
            async with asyncio.timeout(5):
                assert [(await made.commands.run(["true"])).exit_code for _ in range(20)] == [
                    0
                ] * 20
            await flood.kill()
            await flood.wait()

    asyncio.run(main())


def test_threads_share_a_sandbox(sandbox: Sandbox) -> None:
    """The blocking surface may be called from any thread."""
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: sandbox.commands.run(f"echo {n}").stdout, range(40)))
    assert results == [f"{n}\n" for n in range(40)]


def test_two_event_loops_have_sandboxes_of_their_own(level: Level) -> None:
    """Loops in two threads do not disturb each other."""
    seen: dict[int, str] = {}

    async def main(number: int) -> None:
        async with await AsyncSandbox.create(POLICY, level=level) as made:
            for _ in range(5):
                seen[number] = (await made.commands.run(f"echo {number}")).stdout

    threads = [threading.Thread(target=asyncio.run, args=(main(n),)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {0: "0\n", 1: "1\n"}


def test_a_loop_after_another_works(level: Level) -> None:
    """Nothing that a closed loop left is used by the next one."""

    async def main() -> str:
        async with await AsyncSandbox.create(POLICY, level=level) as made:
            return (await made.commands.run("echo x")).stdout

    assert [asyncio.run(main()) for _ in range(3)] == ["x\n"] * 3


def test_limits_of_one_sandbox_are_not_those_of_another(make_sandbox: MakeSandbox) -> None:
    """A sandbox that used up its processes leaves others theirs."""
    script = (
        "import os, time\n"
        "try:\n"
        "    while True:\n"
        "        if os.fork() == 0: time.sleep(60)\n"
        "except OSError as error: print(error.errno, flush=True); time.sleep(60)\n"
    )
    full, other = make_sandbox(limits={"processes": 10}), make_sandbox(limits={"processes": 10})
    seen: list[str] = []
    full.commands.run(["python3", "-c", script], background=True, on_stdout=seen.append)
    while not seen:
        assert full.is_running()
    assert (seen, other.commands.run("true & true & wait").exit_code) == (["11\n"], 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_makes_sandboxes_of_its_own(sandbox: Sandbox) -> None:
    """A fork has its own loop, locks and writer; the parent's sandbox goes on after the child's end."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def child() -> None:
        with Sandbox.create(POLICY) as made:
            queue.put((made.sandbox_id, made.commands.run("echo child").stdout))

    process = context.Process(target=child)
    process.start()
    sandbox_id, output = queue.get(timeout=10)
    process.join(10)
    assert (output, process.exitcode) == ("child\n", 0)
    assert sandbox_id != sandbox.sandbox_id


def test_a_forked_child_can_not_use_its_parents_sandbox(sandbox: Sandbox) -> None:
    """It gets an error at once: two processes on one channel would read each other's frames."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            sandbox.commands.run(["true"])
            os.write(write, b"ran")
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent reads it
            os.write(write, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        assert pipe.read() == b"StateError"
    os.waitpid(pid, 0)
