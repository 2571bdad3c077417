"""Waits that Ctrl-C ends at once.

Python runs the handlers of signals on the main thread, between two of its instructions: never while that
thread is inside the library or inside a store of PyTorch.
"""

import datetime
import threading
import time
from typing import Any, Callable, Dict, Generic, List, Optional, TypeVar

from .library import TarponError
from .threads import Latch, Workers

Value = TypeVar("Value")

_SHORTEST_SLEEP = 0.001  # seconds
_LONGEST_SLEEP = 0.05

_workers = Workers("tarpon-wait")


class Wait(Generic[Value]):
    """Work that may wait inside the library, and that another thread does.

    Where a signal's handler raises in value(), the work goes on: a further value() waits on, and
    give_up() leaves the value to `discard`.
    """

    def __init__(self, work: Callable[[], Value], discard: Callable[[Value], None]):
        self._work = work
        self._discard = discard
        self._marks: Dict[str, object] = {}  # "begun": by which run; "first": the end or give_up()
        self._value: Optional[Value] = None
        self._error: Optional[BaseException] = None
        self._over = Latch()

    def value(self) -> Value:
        """Begins the work, unless it has begun. Errors: its own."""
        if "begun" not in self._marks:
            _workers.run(self._run)
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def has_failed(self) -> bool:
        return self._error is not None

    def give_up(self) -> None:
        """Once, after value() has raised; not while another thread is in it."""
        if self._marks.setdefault("first", "give_up") == "end":
            self._drop()

    def _run(self) -> None:
        run = object()
        if self._marks.setdefault("begun", run) is not run:
            return  # Ctrl-C came after another run was ordered
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
        try:
            if self._marks.setdefault("first", "end") == "give_up":
                self._drop()
        finally:
            self._over.open()

    def _drop(self) -> None:
        if self._error is None:
            self._discard(self._value)  # type: ignore[arg-type]


def interruptible(
    work: Callable[[], Value], discard: Callable[[Value], None] = lambda value: None
) -> Value:
    """Runs `work`, which may wait inside the library, and returns its value.

    The main thread has another one do it. When a signal's handler raises (KeyboardInterrupt), that
    thread finishes its work alone: `discard` gets the value.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    wait = Wait(work, discard)
    try:
        return wait.value()
    except BaseException:
        wait.give_up()
        raise


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
