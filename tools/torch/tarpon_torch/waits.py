"""Waits that Ctrl-C ends at once.

Python runs the handlers of signals on the main thread, between two of its instructions: never while that
thread is inside the library or inside a store of PyTorch.
"""

import datetime
import os
import queue
import threading
import time
from typing import Any, Callable, Dict, List, Optional, TypeVar

from .library import TarponError
from .threads import Latch, start_thread

Value = TypeVar("Value")

_SHORTEST_SLEEP = 0.001  # seconds
_LONGEST_SLEEP = 0.05


# The queues of idle threads. A new thread for each wait would cost ten times as much.
_idle: "List[queue.SimpleQueue[Optional[Callable[[], None]]]]" = []
os.register_at_fork(after_in_child=_idle.clear)


class _Wait:
    """Work of another thread, for which the main thread waits."""

    def __init__(self, work: Callable[[], Any], discard: Optional[Callable[[Any], None]]):
        self._work = work
        self._discard = discard
        self._ends: Dict[str, str] = {}  # "first": what came first, "end" of the work or "interrupt"
        self.value: Any = None
        self.error: Optional[BaseException] = None
        self.over = Latch()

    def run(self, works: Any) -> None:
        """On the thread of the queue `works`."""
        try:
            self.value = self._work()
        except BaseException as error:
            self.error = error
        try:
            if self._ends.setdefault("first", "end") == "interrupt":
                self._drop()
        finally:
            _idle.append(works)  # before the main thread can ask for the next one
            self.over.open()

    def interrupt(self) -> None:
        """On the main thread, which returns without the value."""
        if self._ends.setdefault("first", "interrupt") == "end":
            self._drop()

    def _drop(self) -> None:
        if self.error is None and self._discard is not None:
            self._discard(self.value)


def interruptible(
    work: Callable[[], Value], discard: Optional[Callable[[Value], None]] = None
) -> Value:
    """Runs `work`, which may wait inside the library, and returns its value.

    The main thread has another one do it. When a signal's handler raises (KeyboardInterrupt), that
    thread finishes its work alone: `discard` gets the value.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    try:
        works = _idle.pop() if _idle else _new_thread()
    except TarponError:  # the system's limit is reached, or the interpreter ends
        return work()
    wait = _Wait(work, discard)
    try:
        works.put(lambda: wait.run(works))
        wait.over.wait()
    except BaseException:
        wait.interrupt()
        raise
    if wait.error is not None:
        raise wait.error
    return wait.value  # type: ignore[no-any-return]


def _new_thread() -> "queue.SimpleQueue[Optional[Callable[[], None]]]":
    """Its queue. None in there ends it. Errors: TarponError, where the system allows no further thread."""
    works: "queue.SimpleQueue[Optional[Callable[[], None]]]" = queue.SimpleQueue()

    def serve() -> None:
        for work in iter(works.get, None):
            work()
            del work  # it must not live until the next one comes

    start_thread("tarpon-wait", serve, lambda: works.put(None))
    return works


class PatientStore:
    """A store of PyTorch whose wait() asks again and again, so that it can be given up.

    A wait of PyTorch's own holds the store until its end, and all threads with it. Stores of PyTorch 1
    know no other one.
    """

    def __init__(self, store: Any):
        self._store = store
        self._given_up = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def give_up(self) -> None:
        """Ends the waits of other threads, and all later ones."""
        self._given_up.set()

    def wait(self, keys: List[str], timeout: datetime.timedelta) -> None:
        """Errors: TarponError, RuntimeError of the store."""
        if not hasattr(self._store, "check"):
            return self._store.wait(keys, timeout)
        until = time.monotonic() + timeout.total_seconds()
        pause = _SHORTEST_SLEEP
        while not self._store.check(keys):
            if time.monotonic() >= until:
                raise TarponError("the store has no word of it")
            if self._given_up.wait(pause):
                raise TarponError("this rank was interrupted")
            pause = min(2 * pause, _LONGEST_SLEEP)
