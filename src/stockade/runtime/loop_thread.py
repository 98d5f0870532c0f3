"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

T = TypeVar("T")


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
        """Run `coroutine` on the loop and wait; an interrupt of the waiter (Ctrl-C) cancels it."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                "a blocking call inside a callback of the same loop would never return"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                _settle(future)
            raise

    def call(self, function: Callable[..., None], *arguments: object) -> None:
        """Run a function on the loop and wait."""

        async def run() -> None:
            function(*arguments)

        self.run(run())

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


def _settle(future: Any) -> None:  # noqa: ANN401 - a concurrent future of any result
    try:
        future.exception(timeout=15)
    except (CancelledError, TimeoutError):
        return


os.register_at_fork(after_in_child=LoopThread._forget)  # noqa: SLF001 - the class's own hook
