"""The threads of this package. All of them end before the interpreter does.

At its end the interpreter kills threads that still run. Where one runs PyTorch's code then, the
process aborts.
"""

import os
import queue
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from .library import TarponError

# Each thread, and the function that makes it end.
_live: Dict[threading.Thread, Callable[[], None]] = {}


def start_thread(name: str, work: Callable[[], None], stop: Callable[[], None]) -> threading.Thread:
    """`stop` makes `work` return. Errors: TarponError, where the system allows no further thread."""

    def run() -> None:
        try:
            work()
        finally:
            _live.pop(threading.current_thread(), None)

    thread = threading.Thread(target=run, name=name, daemon=True)
    _live[thread] = stop
    try:
        thread.start()
    except RuntimeError as error:
        del _live[thread]
        raise TarponError(
            f"{error}: raise the limit of this user's threads (ulimit -u), or pids.max of the cgroup"
        ) from error
    return thread


def end_threads(seconds: float) -> None:
    """Returns when all threads have ended, at the latest after `seconds`: one may wait inside a store of
    PyTorch."""
    until = time.monotonic() + seconds
    for thread, stop in list(_live.items()):
        stop()
        if thread.is_alive():  # Ctrl-C may have come before it was started
            thread.join(max(0.0, until - time.monotonic()))


class Latch:
    """Opens once. Unlike threading.Event it has no lock that a waiting thread takes: Ctrl-C there can
    leave the lock taken, and set() then never returns.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._waiters: List[Any] = []  # a lock each, which open() releases

    def open(self) -> None:
        self._is_open = True
        for waiter in list(self._waiters):
            waiter.release()

    def is_open(self) -> bool:
        return self._is_open

    def wait(self, seconds: Optional[float] = None) -> bool:
        """Returns whether it is open, at the latest after `seconds`."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        try:
            if not self._is_open:
                waiter.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))
            return self._is_open
        finally:
            self._waiters.remove(waiter)


class Stage:
    """A thread that does `work` to each call, in order, and `last` when it is stopped."""

    def __init__(self, work: Callable[[Any], None], last: Callable[[], None] = lambda: None):
        self._work = work
        self._last = last
        self._calls: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        # Hands a call to the thread, by one operation, which a signal does not interrupt.
        self.put: Callable[[Any], None] = self._calls.put
        self._thread = start_thread("tarpon", self._run, self.stop)

    def stop(self) -> None:
        """The thread ends after the calls that it has."""
        self.put(None)

    def is_here(self) -> bool:
        """Whether the calling thread is that of the stage."""
        return threading.current_thread() is self._thread

    def join(self) -> None:
        self._thread.join()

    def drain(self) -> None:
        """Does the work of all calls that wait. REQUIRES: is_here()."""
        while not self._calls.empty():
            call = self._calls.get()
            if call is not None:
                self._work(call)

    def _run(self) -> None:
        for call in iter(self._calls.get, None):
            self._work(call)
            del call  # it must not live until the next one comes
        self._last()


class _Callbacks:
    """Runs functions at once, each on a thread that waits for no other function."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: "queue.SimpleQueue[Optional[Callable[[], None]]]" = queue.SimpleQueue()
        self._idle = 0  # threads that wait for a function that is not in the queue yet
        self._stopped = False

    def run(self, work: Callable[[], None]) -> None:
        """Where no further thread can be started, on the calling one."""
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                return self._works.put(work)
        first = [work]  # from which the thread takes it: it must not live as long as the thread
        try:
            start_thread("tarpon-callback", lambda: self._serve(first.pop()), self.stop)
        except TarponError:
            work()

    def stop(self) -> None:
        """Threads end when they have nothing to run."""
        with self._lock:
            self._stopped = True
            for _ in range(self._idle):
                self._works.put(None)
            self._idle = 0

    def _serve(self, work: Optional[Callable[[], None]]) -> None:
        while work is not None:
            work()
            del work  # it must not live until the next one comes
            with self._lock:
                if self._stopped or self._idle > 0:
                    break
                self._idle = 1
            work = self._works.get()


callbacks = _Callbacks()


def _forget_threads() -> None:
    """A fork has none of them."""
    _live.clear()
    callbacks.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget_threads)
