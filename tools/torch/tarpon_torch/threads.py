"""The threads of this package.

At its end the interpreter kills threads that still run. Where one runs PyTorch's code then, the
process aborts. So the end waits for that, and for everything else a moment only.
"""

import os
import queue
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set

from .library import TarponError

_PAUSE = 0.001  # seconds, between looks at threads that run PyTorch's code
_PYTORCH_SECONDS = 60.0
_KEPT_IDLE = 4  # threads
_GRACE = 1.0  # seconds, for a function that another thread has promised

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


_live: Dict[threading.Thread, Callable[[], None]] = {}  # with the functions that make them end
_in_pytorch: Dict[int, None] = {}  # threads that may run PyTorch's code now
_is_over = False  # no thread begins to run it


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


def run_pytorch(work: Callable[[], None]) -> None:
    """Runs `work` on a thread of this package, unless the interpreter ends."""
    here = threading.get_ident()
    _in_pytorch[here] = None
    try:
        if not _is_over:
            work()
    finally:
        _in_pytorch.pop(here, None)


def end_threads(seconds: float) -> None:
    """Returns when all threads have ended: after `seconds`, or _PYTORCH_SECONDS more for those that are
    in run_pytorch()."""
    global _is_over
    until = time.monotonic() + seconds
    seen: Set[threading.Thread] = set()
    while True:
        live = [each for each in list(_live.items()) if each[0] not in seen]
        if not live:
            break
        for _, stop in live:
            stop()
        for thread, _ in live:
            seen.add(thread)
            if thread.is_alive():  # Ctrl-C may have come before it was started
                thread.join(max(0.0, until - time.monotonic()))
    until = time.monotonic() + _PYTORCH_SECONDS
    for _is_over in (False, True):  # what runs may wait for what has not begun
        while _in_pytorch:
            if time.monotonic() > until:
                _is_over = True
                print(
                    f"tarpon_torch: a callback of a future still runs {_PYTORCH_SECONDS:g} s after the end of "
                    "the program; it is cut off",
                    file=sys.stderr,
                )
                return
            time.sleep(_PAUSE)


class Stage:
    """A thread that does `work`, which may run PyTorch's code, to each item in order. It does `last` when it
    is stopped."""

    def __init__(self, work: Callable[[Any], None], last: Callable[[], None] = lambda: None):
        self._work = work
        self._last = last
        self._items: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        # Hands an item to the thread, by one operation, which a signal does not interrupt.
        self.put: Callable[[Any], None] = self._items.put
        self._thread = start_thread("tarpon", self._run, self.stop)

    def stop(self) -> None:
        """The thread ends after the items that it has."""
        self.put(None)

    def is_here(self) -> bool:
        """Whether the calling thread is that of the stage."""
        return threading.current_thread() is self._thread

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        for item in iter(self._items.get, None):
            self._do(item)
            del item  # it must not live until the next one comes
        self._last()

    def _do(self, item: Any) -> None:
        run_pytorch(lambda: self._work(item))


class Workers:
    """Runs functions at once, each on a thread that waits for no other function.

    A few idle threads are kept: a new one for each function would cost ten times as much, and a rank that
    sends and receives at a time needs two. State changes by single operations, between which Ctrl-C may come.
    """

    def __init__(self, name: str):
        self._name = name
        # The queues of idle threads. What takes one out puts a function into it, or leaves the thread alone.
        self._idle: "List[queue.SimpleQueue[Optional[Callable[[], None]]]]" = []
        os.register_at_fork(after_in_child=self._idle.clear)

    def run(self, work: Callable[[], None]) -> None:
        """Where no further thread can be started, on the calling one."""
        try:
            run_there = self.take()
        except TarponError:
            return work()
        run_there(work)

    def take(self) -> Callable[[Callable[[], None]], None]:
        """A thread, which waits for one function: what gives it that, once. Errors: TarponError, where no further
        thread can be started."""
        try:
            return self._idle.pop().put
        except IndexError:
            works: "queue.SimpleQueue[Optional[Callable[[], None]]]" = queue.SimpleQueue()
            start_thread(self._name, lambda: self._serve(works), lambda: works.put(None))
            return works.put

    def _serve(self, works: "queue.SimpleQueue[Optional[Callable[[], None]]]") -> None:
        stopped = False
        while True:
            try:
                work = works.get(timeout=_GRACE if stopped else None)
            except queue.Empty:  # Ctrl-C came to the thread that was about to give it a function
                return
            if work is None:
                stopped = True
                try:
                    self._idle.remove(works)
                    return
                except ValueError:
                    continue  # a function comes, or has come
            work()
            del work  # it must not live until the next one comes
            if stopped or len(self._idle) >= _KEPT_IDLE:
                return
            self._idle.append(works)


callbacks = Workers("tarpon-callback")

os.register_at_fork(after_in_child=_live.clear)
os.register_at_fork(after_in_child=_in_pytorch.clear)
