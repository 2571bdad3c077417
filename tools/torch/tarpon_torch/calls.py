"""Calls on their way, the threads that begin and end them, and the futures of their ends."""

import ctypes
import dataclasses
import os
import queue
import threading
import traceback
from typing import Any, Callable, List, Optional, Set, Tuple

import torch

from . import library as lib
from .library import TarponError

MAX_RANKS = 64


def ranks_of(mask: int) -> List[int]:
    return [rank for rank in range(MAX_RANKS) if mask >> rank & 1]


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of one call at this rank."""

    status: str  # "complete", "partial", "late_self", "peer_late", ...
    tag: int
    operation: int  # number of the call within its tag
    bounded: bool
    seconds: float
    bound: float  # seconds; 0 for exact calls
    lost_fraction: float  # 1 - contributions that are in / (ranks x elements)
    lost_in_network: float  # part of it: without late ranks and the shards that they own
    late_ranks: Tuple[int, ...]
    blamed: Tuple[int, ...]
    void_shards: Tuple[int, ...]  # nothing came of the shards that these ranks own
    nonfinite: bool  # an input held NaN or infinity
    text: str  # one line for a person

    @property
    def has_result(self) -> bool:
        return self.status in ("complete", "partial", "late_self")

    @property
    def evicted(self) -> bool:
        return self.status == "evicted"


class CallError(TarponError):
    """A call ended without a result."""

    def __init__(self, report: Report):
        super().__init__(report.text, lib.NO_RESULT)
        self.report = report


def _read_report(handle: ctypes.c_void_p) -> Report:
    library = lib.library()
    summary = lib.sized(lib.Summary)
    lib.check(library.tarpon_report_summary(handle, ctypes.byref(summary)))
    return Report(
        status=library.tarpon_status_name(summary.status).decode(),
        tag=summary.tag,
        operation=summary.operation,
        bounded=summary.mode == lib.BOUNDED,
        seconds=summary.elapsed_us / 1e6,
        bound=summary.bound_us / 1e6,
        lost_fraction=summary.lost_fraction,
        lost_in_network=summary.lost_in_network,
        late_ranks=tuple(ranks_of(summary.late_ranks)),
        blamed=tuple(ranks_of(summary.blamed)),
        void_shards=tuple(ranks_of(summary.void_shards)),
        nonfinite=summary.nonfinite != 0,
        text=library.tarpon_report_text(handle).decode(errors="replace"),
    )


class Call:
    """A call on its way, in place over `tensor`."""

    def __init__(
        self,
        job: ctypes.c_void_p,
        tensor: torch.Tensor,
        arguments: lib.Arguments,
        ended: Callable[["Call"], None],
    ):
        self.job = job  # the communicator's handle; its value is None once that is closed
        self.tensor = tensor
        # What the library reads and writes: the tensor itself, or a copy.
        self.memory = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
        # Of a CUDA tensor: the event after which `memory` holds its data, and the stream for the
        # result.
        self.ready: Any = None
        self.way_back: Any = None
        self.arguments = arguments
        self.ended = ended
        self.handle: Optional[ctypes.c_void_p] = None
        self.report: Optional[Report] = None
        self.error: Optional[Exception] = None

    def begin(self) -> None:
        if self.ready is not None:
            self.ready.synchronize()
        handle = ctypes.c_void_p()
        self.arguments.input = self.arguments.output = self.memory.data_ptr()
        try:
            lib.check(
                lib.library().tarpon_allreduce_start(
                    open_handle(self.job), ctypes.byref(self.arguments), ctypes.byref(handle)
                )
            )
            self.handle = handle
        except TarponError as error:
            self.error = error

    def end(self) -> None:
        if self.handle is not None:
            self._wait(lib.library(), self.handle)
        if self.error is None and self.memory is not self.tensor:
            self._copy_back()

    def _copy_back(self) -> None:
        """Returns when it is there. On a GPU it waits for no other stream."""
        with torch.inference_mode():  # whatever mode the tensor was made in; no gradients
            if self.way_back is None:
                self.tensor.copy_(self.memory)
                return
            with torch.cuda.stream(self.way_back):
                self.tensor.copy_(self.memory, non_blocking=True)
            self.way_back.synchronize()

    def tell(self) -> None:
        try:
            self.ended(self)
        except Exception:  # a defect of the caller's; there is nobody to tell
            traceback.print_exc()

    def _wait(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        report = ctypes.c_void_p()
        code = library.tarpon_wait(handle, ctypes.byref(report))
        library.tarpon_call_free(handle)
        if not report.value:
            self.error = TarponError(library.tarpon_error_text().decode(errors="replace"), code)
            return
        self.report = _read_report(report)
        library.tarpon_report_free(report)
        if not self.report.has_result:
            self.error = CallError(self.report)


def open_handle(handle: ctypes.c_void_p) -> ctypes.c_void_p:
    if not handle.value:
        raise TarponError("this communicator is closed")
    return handle


# The threads of all stages. At its end the interpreter kills threads that still run. Where one runs
# PyTorch's code then, the process aborts.
live_threads: Set[threading.Thread] = set()


class Stage:
    """A thread that does `work` to each call, in order, and then hands it on."""

    def __init__(self, work: Callable[[Call], None], then: Callable[[Call], None]):
        self._work = work
        self._then = then
        self._calls: "queue.SimpleQueue[Optional[Call]]" = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tarpon", daemon=True)
        live_threads.add(self._thread)
        self._thread.start()

    def add(self, call: Call) -> None:
        self._calls.put(call)

    def stop(self) -> None:
        """Returns when all calls are through, but on this very thread at once."""
        self._calls.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        for call in iter(self._calls.get, None):
            try:
                self._work(call)
            except Exception as error:  # of this call; the thread serves the next one
                call.error = call.error or error
            self._then(call)
            del call  # it must not live until the next one comes
        live_threads.discard(threading.current_thread())


class _Callbacks:
    """Runs functions at once, each on a thread that waits for no other function."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: "queue.SimpleQueue[Optional[Callable[[], None]]]" = queue.SimpleQueue()
        self._idle = 0  # threads that wait for a function that is not in the queue yet
        self._stopped = False

    def run(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                return self._works.put(work)
        thread = threading.Thread(
            target=self._serve, args=(work,), name="tarpon-callback", daemon=True
        )
        live_threads.add(thread)
        thread.start()

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
        live_threads.discard(threading.current_thread())


callbacks = _Callbacks()
os.register_at_fork(after_in_child=callbacks.__init__)  # type: ignore[misc]


class Outcome:
    """The end of several calls, which fails with the first error.

    Callbacks of `future` run on a thread of their own, and may wait for other calls.
    """

    def __init__(self, calls: int, value: Any):
        self._left = calls
        self._value = value
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ended: "torch.futures.Future[Any]" = torch.futures.Future()
        self.error: Optional[Exception] = None
        # An error that set_exception() sets shows in Python alone. C++ sees that of a callback.
        self.future = self._ended.then(lambda _: self._settle())

    def _settle(self) -> Any:
        if self.error is not None:
            raise self.error
        return self._value

    def end(self, error: Optional[Exception]) -> None:
        with self._lock:
            self._left -= 1
            self.error = self.error or error
            over = self._left == 0
        if over:
            self._over.set()
            callbacks.run(lambda: self._ended.set_result(None))

    def is_over(self) -> bool:
        return self._over.is_set()

    def wait(self, seconds: Optional[float] = None) -> None:
        """Errors: that of the first call that failed; TarponError after `seconds`, while the call
        goes on."""
        if not self._over.wait(seconds):
            raise TarponError(f"Timed out after {seconds:g} s: the call goes on to its deadline")
        if self.error is not None:
            raise self.error
