"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: How long a cancelled call may take to end: a command's tree is killed, a launch is taken back.
SETTLE_S = 15.0


class LoopThread:
    """One daemon thread that runs one event loop for all blocking sandboxes of this process."""

    _shared: LoopThread | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="stockade-loop", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> LoopThread:
        """Return this process's loop; a forked child gets its own."""
        with cls._lock:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    @classmethod
    def _forget(cls) -> None:
        cls._shared = None
        cls._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` on the loop and wait. Ctrl-C in the waiter cancels it and waits for its end."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                "a blocking call inside a callback of the same loop would never return"
            )
        waiter = _Waiter(self._loop, coroutine)
        self._loop.call_soon_threadsafe(waiter.start)
        try:
            return waiter.wait()
        except BaseException:
            if not waiter.ended:
                self._loop.call_soon_threadsafe(waiter.cancel)
                waiter.settle()
            raise

    def call(self, function: Callable[..., None], *arguments: object) -> None:
        """Run a function on the loop and wait."""

        async def run() -> None:
            function(*arguments)

        self.run(run())

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


class _Waiter(Generic[T]):
    """One blocking call: a lock that the task's end opens. A third of what a concurrent Future costs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._done = threading.Lock()
        self._done.acquire()

    @property
    def ended(self) -> bool:
        """True when the task is over."""
        return self._task is not None and self._task.done()

    def start(self) -> None:
        """Start the task, on the loop."""
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(lambda _task: self._done.release())

    def cancel(self) -> None:
        """Cancel the task, on the loop."""
        if self._task is not None:
            self._task.cancel()

    def wait(self) -> T:
        """Wait for the end; raises what the task raised."""
        self._done.acquire()
        assert self._task is not None  # noqa: S101 - its end released the lock
        return self._task.result()

    def settle(self) -> None:
        """Wait for the end of a cancelled task, within bounds."""
        self._done.acquire(timeout=SETTLE_S)


os.register_at_fork(after_in_child=LoopThread._forget)  # noqa: SLF001 - the class's own hook
