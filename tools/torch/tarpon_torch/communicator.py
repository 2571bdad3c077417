"""A job's communicator for tensors: calls, the thread that ends them, futures and reports.

Interfaces of PyTorch (c10d.py, hook.py) are thin files over it.
"""

import atexit
import ctypes
import dataclasses
import os
import queue
import threading
import traceback
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

import torch

from . import library as lib
from .library import TarponError, microseconds

TYPES: Dict[torch.dtype, int] = {
    torch.float32: lib.FLOAT32,
    torch.float64: lib.FLOAT64,
    torch.int32: lib.INT32,
    torch.int64: lib.INT64,
    torch.float16: lib.FLOAT16,
    torch.bfloat16: lib.BFLOAT16,
    torch.int8: lib.INT8,
    torch.uint8: lib.UINT8,
    torch.int16: lib.INT16,
}
BOUNDED_TYPES = (torch.float32, torch.float16, torch.bfloat16)

MAX_RANKS = 64
_CLOSE_SECONDS = 5.0
_ADDRESS_KEY = "tarpon/address"
_REFUSED = "refused: "


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


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What becomes of a step, alike on all ranks that get a verdict."""

    step: int
    decision: str  # "apply", "skip" or "halt"
    decided_by: int
    lost_fraction: float  # the worst that was heard
    reporters: Tuple[int, ...]  # their reports were heard; none: halted without a verdict
    rejoin: Tuple[int, ...]  # these ranks wait in rejoin()
    differing: Tuple[int, ...]  # their digests are not that of the lowest rank that told one
    detail: str


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
        nonfinite=summary.nonfinite != 0,
        text=library.tarpon_report_text(handle).decode(errors="replace"),
    )


class _Call:
    """A call on its way."""

    def __init__(
        self,
        job: ctypes.c_void_p,
        tensor: torch.Tensor,
        arguments: lib.Arguments,
        ended: Callable[["_Call"], None],
    ):
        self.job = job  # the communicator's handle; its value is None once that is closed
        self.tensor = tensor
        self.memory = tensor  # what the library reads and writes
        # Of a CUDA tensor: the event after which `memory` holds its data, and the stream for the result.
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
                    _open(self.job), ctypes.byref(self.arguments), ctypes.byref(handle)
                )
            )
            self.handle = handle
        except TarponError as error:
            self.error = error

    def end(self) -> None:
        if self.handle is not None:
            self._wait(lib.library(), self.handle)
        if self.error is None and self.memory is not self.tensor:
            self.copy_back(self.tensor, self.memory)

    def copy_back(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Returns when it is there. On a GPU it waits for no other stream."""
        if self.way_back is None:
            to.copy_(source)
            return
        with torch.cuda.stream(self.way_back):
            to.copy_(source, non_blocking=True)
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


# The threads of all stages. At its end the interpreter kills threads that still run. Where one runs
# PyTorch's code then, the process aborts.
_live_threads: Set[threading.Thread] = set()


class _Stage:
    """A thread that does `work` to each call, in order, and then hands it on."""

    def __init__(self, work: Callable[[_Call], None], then: Callable[[_Call], None]):
        self._work = work
        self._then = then
        self._calls: "queue.SimpleQueue[Optional[_Call]]" = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tarpon", daemon=True)
        _live_threads.add(self._thread)
        self._thread.start()

    def add(self, call: _Call) -> None:
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
        _live_threads.discard(threading.current_thread())


def _open(handle: ctypes.c_void_p) -> ctypes.c_void_p:
    if not handle.value:
        raise TarponError("this communicator is closed")
    return handle


class Communicator:
    """A rank's place in a job. Any thread may use it; calls of one tag match in their order.

    Close it when it is done with: the other ranks then know that this one has left. One that is
    dropped is closed, and so are all that are left at the interpreter's end.
    """

    def __init__(self, handle: ctypes.c_void_p):
        self._handle = handle
        self._lock = threading.Lock()
        self._ender = _Stage(_Call.end, _Call.tell)
        self._process = os.getpid()
        self._beginner: Optional[_Stage] = None  # since the first CUDA tensor
        self._streams: Dict[torch.device, Tuple[Any, Any]] = {}  # to the host, and back
        self.rank: int = lib.library().tarpon_rank(handle)
        self.world_size: int = lib.library().tarpon_world_size(handle)
        self.left_out: str = lib.library().tarpon_left_out(handle).decode(errors="replace")
        _open_communicators.add(self)

    @staticmethod
    def connect(
        store: Any,
        rank: int,
        world_size: int,
        timeout: float,
        *,
        loss_target: Optional[float] = None,
        interface: Optional[str] = None,
        codec: Optional[bool] = None,
        retain_bytes: Optional[int] = None,
        skip_above: Optional[float] = None,
        halt_above: Optional[float] = None,
        key: str = _ADDRESS_KEY,
    ) -> "Communicator":
        """Joins the job whose ranks share `store`: all of them call it, with the same `key`.

        Rank 0 listens at an address that reaches the host of the store and sets `key`. Without a
        store the ranks meet where the environment says. What is None here comes from the
        environment. Errors: TarponError, alike on all ranks.
        """
        library = lib.library()
        options = lib.sized(
            lib.Options,
            rank=rank,
            world_size=world_size,
            interface=interface.encode() if interface else None,
            loss_target=loss_target or 0,
            retain_bytes=retain_bytes or 0,
            skip_above=skip_above or 0,
            halt_above=halt_above or 0,
            codec=0 if codec is None else 1 if codec else 2,
            rendezvous_timeout_us=microseconds(timeout),
        )
        listener = ctypes.c_void_p()
        if store is None or world_size == 1:
            pass
        elif rank == 0:
            _publish_address(store, key, interface, listener)
            options.listener = listener
        else:
            address = store.get(key).decode(errors="replace")
            if address.startswith(_REFUSED):
                raise TarponError("rank 0: " + address[len(_REFUSED) :])
            options.rendezvous = address.encode()
        handle = ctypes.c_void_p()
        try:
            lib.check(
                library.tarpon_connect_from_environment(
                    ctypes.byref(options), ctypes.byref(handle)
                )
            )
        finally:
            library.tarpon_listener_free(listener)
        return Communicator(handle)

    # -- calls

    def allreduce(
        self,
        tensor: torch.Tensor,
        function: int,
        *,
        tag: int = 0,
        deadline: float,
        bounded: bool = False,
        bound: Optional[float] = None,
        ended: Callable[[_Call], None],
    ) -> None:
        """Starts a call over `tensor`, in place; returns before it has ended.

        `tensor` is contiguous, of a type in TYPES, on a CPU or a CUDA device, and belongs to the
        call until `ended` runs, on the communicator's thread, with its `report` or `error`. The
        call takes its number here. A CUDA tensor travels through pinned memory, from the current
        stream on.
        """
        arguments = lib.sized(
            lib.Arguments,
            count=tensor.numel(),
            type=TYPES[tensor.dtype],
            function=function,
            tag=tag,
            mode=lib.BOUNDED if bounded else lib.EXACT,
            deadline_us=microseconds(deadline),
            bound_us=microseconds(bound) if bound else 0,
        )
        call = _Call(self._handle, tensor, arguments, ended)
        with self._lock:
            if not self._handle.value:
                call.error = TarponError("this communicator is closed")
                return call.tell()
            if tensor.is_cuda:
                self._stage(call)
            if self._beginner is not None:
                return self._beginner.add(call)
            call.begin()
            self._ender.add(call)

    def _stage(self, call: _Call) -> None:
        """Copies to pinned memory, on a stream of its own, after the current stream's work.

        The way back has another stream: on this one, or on the current one, it would wait for the
        gradients of later buckets.
        """
        device = call.tensor.device
        if self._beginner is None:
            self._beginner = _Stage(_Call.begin, self._ender.add)
        if device not in self._streams:
            self._streams[device] = (torch.cuda.Stream(device), torch.cuda.Stream(device))
        to_host, call.way_back = self._streams[device]
        to_host.wait_stream(torch.cuda.current_stream(device))
        call.memory = torch.empty(
            call.tensor.shape, dtype=call.tensor.dtype, device="cpu", pin_memory=True
        )
        with torch.cuda.stream(to_host):
            call.memory.copy_(call.tensor, non_blocking=True)
            call.ready = torch.cuda.Event()
            call.ready.record(to_host)

    def allreduce_now(
        self, tensor: torch.Tensor, function: int, *, tag: int = 0, deadline: float
    ) -> Report:
        """An exact call; returns when it has ended. Errors: CallError, TarponError."""
        done = threading.Event()
        ends: List[_Call] = []

        def ended(call: _Call) -> None:
            ends.append(call)
            done.set()

        self.allreduce(tensor, function, tag=tag, deadline=deadline, ended=ended)
        done.wait()
        if ends[0].error is not None:
            raise ends[0].error
        assert ends[0].report is not None
        return ends[0].report

    # -- the job

    def barrier(self, deadline: float) -> None:
        """Returns when every rank has entered it. Errors: TarponError names the missing ranks."""
        lib.check(lib.library().tarpon_barrier(_open(self._handle), microseconds(deadline)))

    def agree(
        self,
        step: int,
        lost: float,
        nonfinite: bool,
        deadline: float,
        *,
        late_ranks: Iterable[int] = (),
        digest: int = 0,
    ) -> Verdict:
        """What becomes of step `step`, alike on all ranks; steps ascend. Halts without a verdict.

        `lost` is the largest Report.lost_in_network of the step's calls, 1 for one without a result.
        `late_ranks` were late for a call of the step, and are not waited for. `digest`: 64 bits
        that are to be alike on all ranks; 0: none.
        """
        loss = lib.sized(
            lib.Loss,
            lost_fraction=lost,
            nonfinite=int(nonfinite),
            late_ranks=sum(1 << rank for rank in set(late_ranks)),
            digest=digest,
        )
        verdict = lib.sized(lib.StepVerdict)
        lib.check(
            lib.library().tarpon_agree(
                _open(self._handle),
                step,
                ctypes.byref(loss),
                microseconds(deadline),
                ctypes.byref(verdict),
            )
        )
        return Verdict(
            step=step,
            decision=("apply", "skip", "halt")[verdict.verdict],
            decided_by=verdict.decided_by,
            lost_fraction=verdict.lost_fraction,
            reporters=tuple(ranks_of(verdict.reporters)),
            rejoin=tuple(ranks_of(verdict.rejoin)),
            differing=tuple(ranks_of(verdict.differing)),
            detail=verdict.detail.decode(errors="replace"),
        )

    def resync(self, tensor: torch.Tensor, root: int, deadline: float) -> None:
        """Gives `tensor` (contiguous) the value that it has on `root`. All ranks call it."""
        memory = tensor.detach() if tensor.device.type == "cpu" else tensor.detach().cpu()
        size = memory.numel() * memory.element_size()
        lib.check(
            lib.library().tarpon_resync(
                _open(self._handle), root, memory.data_ptr(), size, microseconds(deadline)
            )
        )
        if memory.device != tensor.device:
            tensor.detach().copy_(memory)

    def rejoin(self, deadline: float) -> "Communicator":
        """A communicator of the live and the returning ranks, who all call it. This one ends."""
        fresh = ctypes.c_void_p()
        lib.check(
            lib.library().tarpon_rejoin(
                _open(self._handle), microseconds(deadline), ctypes.byref(fresh)
            )
        )
        self.close(seconds=0)
        return Communicator(fresh)

    def abort(self, reason: str) -> None:
        """Ends all calls on all ranks, from any thread. Only close() and rejoin() still work."""
        with self._lock:
            if self._handle.value:
                lib.check(lib.library().tarpon_abort(self._handle, reason.encode()))

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Serves the other ranks until they need nothing more of this one, at most `seconds`.

        Calls that have not ended by then end as aborted.
        """
        if os.getpid() != self._process:
            return  # a forked child has no part in its parent's job
        with self._lock:
            handle = ctypes.c_void_p(self._handle.value)
            self._handle.value = None
        if not handle.value:
            return
        _open_communicators.discard(self)
        library = lib.library()
        if seconds > 0:
            library.tarpon_close(handle, microseconds(seconds))  # late ranks have their deadlines
        library.tarpon_abort(handle, None)
        if self._beginner is not None:
            self._beginner.stop()
        self._ender.stop()
        library.tarpon_communicator_free(handle)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.close()


_open_communicators: "weakref.WeakSet[Communicator]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for communicator in list(_open_communicators):
        communicator.close()
    # A communicator that its own thread has closed or dropped is not in the list above.
    for thread in list(_live_threads):
        thread.join()


def _publish_address(
    store: Any, key: str, interface: Optional[str], listener: ctypes.c_void_p
) -> None:
    """Rank 0 listens, and tells the others where, or why it cannot."""
    library = lib.library()
    host = os.environ.get("MASTER_ADDR") or _store_host(store)
    code = library.tarpon_listen(
        host.encode() if host else None,
        interface.encode() if interface else None,
        ctypes.byref(listener),
    )
    if code != lib.OK:
        text = library.tarpon_error_text().decode(errors="replace")
        store.set(key, _REFUSED + text)
        raise TarponError(text, code)
    store.set(key, library.tarpon_listener_address(listener).decode())


def _store_host(store: Any) -> Optional[str]:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None)
