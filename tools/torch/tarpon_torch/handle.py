"""The library's communicator, with all that uses it: threads and calls.

Ctrl-C raises KeyboardInterrupt in the main thread, between any two steps of Python. So a call belongs
to a set before it is begun, what has to follow a step stands in a `finally`, and shared state changes
by single operations of dict, set and queue. The communicator is freed by a thread of its own, which
Ctrl-C does not reach. There is no lock: abort() and close() wait for no call, and may be called by a
signal handler that interrupts one.
"""

import collections
import ctypes
import functools
import os
import threading
import time
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Set, Tuple

import torch

from . import library as lib
from .calls import Call, begin_all
from .library import TarponError, microseconds
from .threads import Latch, Stage, Workers, end_threads, run_pytorch

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05  # seconds, between looks at who uses a handle

GOODBYE_SECONDS = 5.0
_END_SECONDS = 5.0  # that close() waits for functions which abort() ends
_LAST_SECONDS = 1.0  # that the interpreter's end waits for threads inside the library
_BEGINNER = "begins"
_SOME_THREAD = 0  # no identifier of one
_LOOK = object()  # for the thread that ends calls


_enders = Workers("tarpon-end")
_turns = Workers("tarpon-turn")


class ClosedError(TarponError):
    def __init__(self) -> None:
        super().__init__("this communicator is closed")


class Handle:
    """A communicator of the library. It is freed once it is closed, no thread is inside a function of
    it, and all communicators that were split from it are freed. Any thread may call.
    """

    def __init__(self) -> None:
        """Errors: TarponError, where no thread can be started."""
        self.pointer = ctypes.c_void_p()  # NULL until it is connected
        self._calls: Set[Call] = set()  # the library may have their memory
        self._begun: Deque[Call] = collections.deque()  # to be ended, in order
        # The threads that are inside a function, and the handles that were split from this one.
        self._users: Dict[object, Optional[int]] = {}
        self._closing = False  # no new calls
        self._ending = False  # nothing at all
        self._ended = Latch()
        self._parent: Optional[Handle] = None
        self._process = os.getpid()
        self._beginners: Dict[str, Stage] = {}  # one, from the first CUDA tensor on
        # What begin_in_turn() was given, by name, and the users whose thread begins it.
        self._turns: Dict[str, Deque[Any]] = {}
        self._turn_takers: Dict[str, object] = {}
        self._streams: Dict[torch.device, Tuple[Any, Any]] = {}  # to the host, and back
        self._ender = Stage(self._end_calls, self._end)
        _open_handles.add(self)

    # -- functions of the library

    def call(self, function: str, *arguments: Any) -> None:
        """The function of that name, with this communicator. Errors: its own; ClosedError."""
        lib.check(self.use(getattr(lib.library(), function), *arguments))

    def is_open(self) -> bool:
        return bool(self.pointer.value) and not self._closing and self._process == os.getpid()

    def use(self, function: Any, *arguments: Any, closes: bool = False) -> Any:
        """function(the communicator, ...); nothing frees it meanwhile. `closes`: also while it is
        closed. Errors: ClosedError, TarponError in a forked child."""
        user = object()
        try:
            self._users[user] = threading.get_ident()
            if self._process != os.getpid():
                raise TarponError(
                    f"process {os.getpid()} was forked from process {self._process}, whose communicator this "
                    "is: connect in the child"
                )
            if self._ending or (self._closing and not closes):
                raise ClosedError()
            return function(self.pointer, *arguments)
        finally:
            self._users.pop(user, None)

    def split(self, parent: "Handle", ranks: Sequence[int], number: int, seconds: float) -> None:
        """Makes this one by tarpon_split()."""
        members = (ctypes.c_uint32 * len(ranks))(*ranks)

        def split(place: Any) -> int:
            # Now this one is open, and _end() takes it out.
            self._parent = parent
            parent._users[self] = None
            return parent.use(
                lib.library().tarpon_split, members, len(ranks), number, microseconds(seconds), place
            )

        self.make(split)

    def make(self, function: Callable[[Any], int]) -> None:
        """function(the place for the communicator) makes this one. Whoever closes it meanwhile leaves
        it to be freed after that. Errors: those of the function; ClosedError."""
        user = object()
        try:
            self._users[user] = threading.get_ident()
            if self._closing:
                raise ClosedError()
            lib.check(function(ctypes.byref(self.pointer)))
        finally:
            self._users.pop(user, None)

    # -- calls

    def begin(self, calls: Sequence[Call], more: bool) -> None:
        """Takes the numbers of the calls; their ends are told on a thread of this handle, if `more` once
        further calls have begun or this handle is closed. Where a signal's handler raises meanwhile, all
        of them have begun or none. Where this handle is closed, or its process was forked, they are told
        of it here. Errors: those of handlers."""
        own = list(calls)
        entered: List[bool] = []  # a handler may raise the same errors as use() does

        def enter(_: Any) -> None:
            entered.append(True)
            self._begin(own, more)

        try:
            self.use(enter)
        except TarponError as error:
            if entered:
                raise
            for call in own:
                call.error = error
                call.tell()

    def _begin(self, calls: List[Call], more: bool) -> None:
        try:
            self._calls.update(calls)
            for call in calls:
                if not call.is_ordered:
                    _take_ender(call)
                device = call.cuda_device()
                if device is not None:
                    self._stage(call, device)
        finally:
            beginner = self._beginner()
            if beginner is not None:
                beginner.put((calls, more))
            else:
                self._begin_now((calls, more))

    def begin_in_turn(self, name: str, begin: Callable[[Any], None], item: Any) -> None:
        """Runs begin(item) on another thread, after what it was given before under this name. Errors:
        ClosedError, TarponError."""
        self.use(lambda _: self._add_turn(name, begin, item))

    def _add_turn(self, name: str, begin: Callable[[Any], None], item: Any) -> None:
        items = self._turns.setdefault(name, collections.deque())
        user = object()

        def take_turns() -> None:
            """Unless another thread does."""
            try:
                self._users[user] = threading.get_ident()
                while items and self._turn_takers.setdefault(name, user) is user:
                    try:
                        while items:
                            run_pytorch(functools.partial(begin, items.popleft()))
                    finally:
                        del self._turn_takers[name]
            finally:
                self._users.pop(user, None)

        run_there = _turns.take()
        try:
            self._users[user] = _SOME_THREAD
            items.append(item)
        finally:
            run_there(take_turns)

    def _make_beginner(self) -> None:
        """Of two threads one makes it."""
        if _BEGINNER not in self._beginners:
            fresh = Stage(self._begin_now)
            if self._beginners.setdefault(_BEGINNER, fresh) is not fresh:
                fresh.stop()

    def _beginner(self) -> Optional[Stage]:
        return self._beginners.get(_BEGINNER)

    def _stage(self, call: Call, device: torch.device) -> None:
        try:
            self._make_beginner()
            if device not in self._streams:
                self._streams[device] = (torch.cuda.Stream(device), torch.cuda.Stream(device))
            call.stage(*self._streams[device])
        except Exception as error:
            call.refuse(error)

    def _begin_now(self, item: Tuple[List[Call], bool]) -> None:
        calls, more = item
        ordered = [call for call in calls if call.is_ordered]
        try:
            begin_all(self.pointer, calls)
        finally:
            try:
                self._begun.extend(ordered)
            finally:
                if not more:
                    self._ender.put(_LOOK)
                for call in calls:
                    if not call.is_ordered:
                        self._end_apart(call)

    def _end_calls(self, _: object = None) -> None:
        while self._begun:
            self._end_call(self._begun.popleft())

    def _end_call(self, call: Call) -> None:
        call.end()
        call.tell()
        if call.is_over():
            self._calls.discard(call)

    def _end_apart(self, call: Call) -> None:
        """On another thread: the other calls end before it, or after it."""
        user = object()
        self._users[user] = _SOME_THREAD

        def end() -> None:
            try:
                self._users[user] = threading.get_ident()
                run_pytorch(lambda: self._end_call(call))
            finally:
                self._users.pop(user, None)

        (call.end_on_thread or _enders.run)(end)

    # -- the end

    def close(self, seconds: float) -> None:
        """Serves the other ranks until they need nothing more of this one, at most `seconds`; then ends
        calls as aborted, and waits until the communicator is freed, at most _END_SECONDS. Returns earlier
        where that has to wait: for the calling thread itself, or for communicators that were split from
        this one.
        """
        if os.getpid() != self._process:
            return  # a forked child has no part in its parent's job
        self._closing = True
        try:
            if self.pointer.value and seconds > 0:  # late ranks have their deadlines
                self._finish("tarpon_close", microseconds(seconds))
        finally:
            if self.pointer.value:
                self._finish("tarpon_abort", None)
            self._ender.stop()
        until = time.monotonic() + _END_SECONDS
        while not self._is_held_up() and time.monotonic() < until:
            if self._ended.wait(_LONGEST_PAUSE):
                return

    def _finish(self, function: str, argument: Any) -> None:
        try:
            self.use(getattr(lib.library(), function), argument, closes=True)
        except ClosedError:
            pass  # another thread has closed it

    def _is_held_up(self) -> bool:
        """Whether the end waits for the calling thread, for a communicator that was split off, or for one
        that is still being made."""
        if self._is_being_made():
            return True
        own_stages = [self._ender, *self._beginners.values()]
        here = (None, threading.get_ident())
        return any(stage.is_here() for stage in own_stages) or any(
            thread in here for thread in list(self._users.values())
        )

    def _is_being_made(self) -> bool:
        """The library waits for other ranks, and nothing ends that before its time."""
        return not self.pointer.value and bool(self._users)

    def _end(self) -> None:
        """Frees the communicator, once nothing uses it."""
        self._ending = True
        pause = _SHORTEST_PAUSE
        while self._users:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        for beginner in self._beginners.values():
            beginner.stop()
            beginner.join()
        run_pytorch(self._end_calls)
        lib.library().tarpon_communicator_free(self.pointer)
        self._calls.clear()
        if self._parent is not None:
            self._parent._users.pop(self, None)
        _open_handles.discard(self)
        self._ended.open()


def _take_ender(call: Call) -> None:
    """Before it begins. Without a thread it would hold up the calling one: it is refused, and ends there at
    once."""
    try:
        call.end_on_thread = _enders.take()
    except TarponError as error:
        call.refuse(error)


_open_handles: Set[Handle] = set()


def close_all() -> None:
    """At the interpreter's end. Ctrl-C ends the goodbyes, and a second one all."""
    try:
        _close_all(GOODBYE_SECONDS)
    except KeyboardInterrupt:
        _close_all(seconds=0)


def _close_all(seconds: float) -> None:
    until = time.monotonic() + seconds + _END_SECONDS
    while time.monotonic() < until:
        handles = [each for each in list(_open_handles) if not each._is_being_made()]
        if not handles:
            break
        for handle in handles:
            handle.close(seconds)
        time.sleep(_SHORTEST_PAUSE)  # those that wait for others end by themselves
    end_threads(_LAST_SECONDS)


os.register_at_fork(after_in_child=_open_handles.clear)
