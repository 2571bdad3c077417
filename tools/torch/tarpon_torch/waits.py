"""Waits that Ctrl-C ends at once.

Python runs the handlers of signals on the main thread, between two of its instructions: never while that
thread is inside the library or inside a store of PyTorch.
"""

import concurrent.futures
import datetime
import threading
import time
from typing import Any, Callable, List, Optional, TypeVar

from .library import TarponError

Value = TypeVar("Value")

_SHORTEST_SLEEP = 0.001  # seconds
_LONGEST_SLEEP = 0.05


def interruptible(
    work: Callable[[], Value], discard: Optional[Callable[[Value], None]] = None
) -> Value:
    """Runs `work`, which may wait inside the library, and returns its value.

    The main thread has another one do it. When a signal's handler raises (KeyboardInterrupt), that
    thread finishes its work alone: `discard` gets the value.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    done: "concurrent.futures.Future[Value]" = concurrent.futures.Future()
    try:
        threading.Thread(target=_finish, args=(done, work), name="tarpon-wait", daemon=True).start()
    except RuntimeError:  # the system's limit is reached, or the interpreter ends
        return work()
    try:
        done.exception()  # waits
    except BaseException:
        if discard is not None:
            done.add_done_callback(lambda _: None if done.exception() else discard(done.result()))
        raise
    return done.result()


def _finish(done: "concurrent.futures.Future[Any]", work: Callable[[], Any]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)


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
