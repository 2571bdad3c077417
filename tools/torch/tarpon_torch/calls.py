"""Calls on their way, and the futures of their ends."""

import ctypes
import dataclasses
import functools
import threading
import traceback
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch

from . import library as lib
from .blocks import Block
from .library import TarponError
from .threads import Latch, callbacks, run_pytorch

MAX_RANKS = 4096

Ended = Callable[["Call"], None]


def check_rank(name: str, rank: int, world_size: int) -> None:
    """Errors: TarponError, where there is no such rank."""
    if not 0 <= rank < world_size:
        raise TarponError(f"{name} {rank} of {world_size} ranks: give one from 0 to {world_size - 1}")


def _ranks_in(handle: ctypes.c_void_p, which: int, mask: int) -> Tuple[int, ...]:
    """The ranks of one of a report's lists, whose mask is given."""
    if mask == 0:  # nearly always
        return ()
    ranks, count = (ctypes.c_uint32 * MAX_RANKS)(), ctypes.c_uint32()
    report_ranks = lib.library().tarpon_report_ranks
    lib.check(report_ranks(handle, which, ranks, MAX_RANKS, ctypes.byref(count)))
    return tuple(ranks[: count.value])


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of one call at this rank."""

    status: str  # "complete", "partial", "late_self", "peer_late", ...
    abort_cause: int  # tarpon_abort_cause, of aborted calls
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
        # Programs know a timeout by these words of Gloo.
        late = f": Timed out after {report.seconds:.3g} s" if report.status == "peer_late" else ""
        super().__init__(report.text + late, lib.NO_RESULT)
        self.report = report


def _read_report(handle: ctypes.c_void_p) -> Report:
    library = lib.library()
    summary = lib.sized(lib.Summary)
    lib.check(library.tarpon_report_summary(handle, ctypes.byref(summary)))
    return Report(
        status=library.tarpon_status_name(summary.status).decode(),
        abort_cause=summary.abort_cause,
        tag=summary.tag,
        operation=summary.operation,
        bounded=summary.mode == lib.BOUNDED,
        seconds=summary.elapsed_us / 1e6,
        bound=summary.bound_us / 1e6,
        lost_fraction=summary.lost_fraction,
        lost_in_network=summary.lost_in_network,
        late_ranks=_ranks_in(handle, lib.LATE_RANKS, summary.late_ranks),
        blamed=_ranks_in(handle, lib.BLAMED, summary.blamed),
        void_shards=_ranks_in(handle, lib.VOID_SHARDS, summary.void_shards),
        nonfinite=summary.nonfinite != 0,
        text=library.tarpon_report_text(handle).decode(errors="replace"),
    )


class Call:
    """A call on its way, from one block of memory into another, or in place."""

    # Whether it ends after the calls that have begun before it.
    is_ordered = True

    def __init__(
        self,
        start: str,
        arguments: Union[lib.Arguments, lib.CollectiveArguments, lib.Message],
        ended: Ended,
        *,
        input: Optional[Block] = None,
        output: Optional[Block] = None,
    ):
        """`start`: the library's function. `input` is `output` for a call in place; None: this rank needs no
        such block."""
        self._start = start
        self._blocks = list(dict.fromkeys(block for block in (input, output) if block is not None))
        # A pointer that is not used may be that of the other block.
        self.input = input or output
        self.output = output or input
        # Of CUDA tensors: the event after which the blocks hold their data, and the stream for the
        # result.
        self.ready: Any = None
        self.way_back: Any = None
        # Of a call that is not ordered: gives its end to the thread that waits for it.
        self.end_on_thread: Optional[Callable[[Callable[[], None]], None]] = None
        self.arguments = arguments
        self.ended = ended
        self.report: Optional[Report] = None
        self.error: Optional[Exception] = None
        # Until it is ready to begin: begin_all() then takes the number alone.
        self._set_refusal("the call was interrupted before it began")
        self._arrays: List[Any] = []  # memory that `arguments` refer to
        self._handle = ctypes.c_void_p()

    def divide(self, weights: Sequence[float]) -> None:
        """The ranks own parts of the tensor in proportion to `weights`, one for each rank."""
        self.arguments.shares = self._address_of((ctypes.c_double * len(weights))(*weights))
        self.arguments.share_count = len(weights)

    def set_counts(
        self, counts: Sequence[int], output_counts: Optional[Sequence[int]] = None
    ) -> None:
        """The elements of each rank's part; of all_to_all in the input, and in the output."""
        self.arguments.counts = self._address_of((ctypes.c_uint64 * len(counts))(*counts))
        if output_counts is not None:
            array = (ctypes.c_uint64 * len(output_counts))(*output_counts)
            self.arguments.output_counts = self._address_of(array)

    def _address_of(self, array: Any) -> int:
        self._arrays.append(array)
        return ctypes.addressof(array)

    def cuda_device(self) -> Optional[torch.device]:
        """Where its tensors are; None: on the host."""
        devices = [block.device for block in self._blocks if block.device.type == "cuda"]
        return devices[0] if devices else None

    def stage(self, to_host: Any, way_back: Any) -> None:
        """Copies CUDA tensors to pinned memory, on a stream of its own, after the current stream's
        work.

        The way back has another stream: on this one, or on the current one, it would wait for the
        gradients of later buckets.
        """
        self.way_back = way_back
        to_host.wait_stream(torch.cuda.current_stream(to_host.device))
        with torch.cuda.stream(to_host):
            for block in self._blocks:
                block.open()
            ready = torch.cuda.Event()
            ready.record(to_host)
            self.ready = ready  # one that is not recorded would be over at once

    def refuse(self, error: Exception) -> None:
        """The call ends on all ranks, here with `error`."""
        self.error = error
        self._set_refusal(f"{type(error).__name__}: {error}")

    def _set_refusal(self, text: str) -> None:
        """Empty: the call runs."""
        self.arguments.refusal = text.encode(errors="replace")

    def _set_pointers(self) -> None:
        if self.input is not None and self.output is not None:
            self.arguments.input = self.input.address()
            self.arguments.output = self.output.address()

    def prepare(self) -> None:
        """What this rank can fail at before the call begins. Never fails itself: the call is refused."""
        if self.error is not None:
            return
        try:
            if self.ready is not None:
                self.ready.synchronize()
            elif self.cuda_device() is not None:
                return  # interrupted before it was staged
            else:
                for block in self._blocks:
                    block.open()
            self._set_pointers()
        except Exception as error:
            self.refuse(error)
        else:
            self._set_refusal("")

    def starter(self, job: ctypes.c_void_p) -> "functools.partial[int]":
        """Starts it and returns the library's code."""
        start = getattr(lib.library(), self._start)
        return functools.partial(
            start, job, ctypes.byref(self.arguments), ctypes.byref(self._handle)
        )

    def end(self) -> None:
        """Once. Returns when the call has ended, and the result is in the tensors."""
        try:
            if self._handle.value:
                self._wait(lib.library())
            elif self.error is None:
                self.error = TarponError("the call could not begin")
            if self.error is None:
                self._give_back()
        except Exception as error:
            self.error = self.error or error
        if self.error is not None:
            # Its frames, and those of errors before it, refer to this call, or to its tensors.
            self.error.__traceback__ = self.error.__context__ = self.error.__cause__ = None

    def is_over(self) -> bool:
        """Whether the library needs the memory no more. REQUIRES: end() has returned."""
        return self.report is not None or not self._handle.value

    def _give_back(self) -> None:
        """Returns when the result is in the tensors. On a GPU it waits for no other stream."""
        if self.way_back is None:
            for block in self._blocks:
                block.give_back()
            return
        with torch.cuda.stream(self.way_back):
            for block in self._blocks:
                block.give_back()
        self.way_back.synchronize()

    def tell(self) -> None:
        try:
            self.ended(self)
        except Exception:  # a defect of the caller's; there is nobody to tell
            traceback.print_exc()

    def _wait(self, library: ctypes.CDLL) -> None:
        report = ctypes.c_void_p()
        code = library.tarpon_wait(self._handle, ctypes.byref(report))
        library.tarpon_call_free(self._handle)
        if not report.value:
            self.error = self.error or TarponError(lib.error_text(), code)
            return
        self.report = _read_report(report)
        library.tarpon_report_free(report)
        if not self.report.has_result:
            self.error = self.error or CallError(self.report)


def begin_all(job: ctypes.c_void_p, calls: Sequence[Call]) -> None:
    """Takes the numbers of all calls, also where this rank cannot run one, or is interrupted: the other
    ranks take them, too, and equal calls would match wrongly from then on.
    """
    codes: List[int] = []
    # extend() runs it through without a step of Python, so that no signal's handler comes between.
    starts = map(functools.partial.__call__, [call.starter(job) for call in calls])
    try:
        for call in calls:
            call.prepare()
    finally:
        codes.extend(starts)
    for call, code in zip(calls, codes):
        if code != lib.OK:
            call.error = call.error or TarponError(lib.error_text(), code)


class Outcome:
    """The end of several calls, which fails with the first error."""

    def __init__(self, calls: int):
        self._left = calls
        self._lock = threading.Lock()
        self._over = Latch()
        self._error: Optional[Exception] = None
        self._future: Dict[str, "torch.futures.Future[Any]"] = {}  # one, once it was asked for

    def future_of(self, value: Any) -> "torch.futures.Future[Any]":
        """A future that this end completes, with `value`. Its callbacks run on a thread of their own, and may
        wait for other calls. Where the calls are over, they run at once."""
        # An error that set_exception() sets shows in Python alone. C++ sees that of a callback. It runs
        # inside end(); a cycle through a future of C++ would keep the value for ever, if no end came.
        own = weakref.ref(self)
        ended = self._future.get("ended")
        if ended is None:
            ended = self._future.setdefault("ended", torch.futures.Future())
            if self.is_over():  # else end() finds it
                self._complete()
        return ended.then(lambda _: own()._settle(value))  # type: ignore[union-attr]

    def _complete(self) -> None:
        """Of the future. Both end() and the future_of() that makes it may call it."""
        ended = self._future["ended"]
        try:
            if not ended.done():
                ended.set_result(None)
        except RuntimeError:
            if not ended.done():  # the other one has completed it meanwhile
                raise

    def _settle(self, value: Any) -> Any:
        self._raise_error()
        return value

    def error(self) -> Optional[Exception]:
        """A copy: an exception that was raised refers to the frames that it went through, and they to
        this object, its tensors and its process group."""
        error = self._error
        if error is None:
            return None
        try:
            fresh = type(error).__new__(type(error), *error.args)
        except Exception:  # a class of others, which takes other arguments
            return TarponError(f"{type(error).__name__}: {error}")
        fresh.__dict__.update(error.__dict__)
        return fresh

    def _raise_error(self) -> None:
        error = self.error()
        if error is not None:
            try:
                raise error
            finally:
                del error  # or this frame and the exception refer to each other

    def expect_another(self) -> None:
        """REQUIRES: it is not over."""
        with self._lock:
            self._left += 1

    def end(self, error: Optional[Exception]) -> None:
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            over = self._left == 0
        if over:
            self._over.open()
            if self._future:
                callbacks.run(lambda: run_pytorch(self._complete))

    def is_over(self) -> bool:
        return self._over.is_open()

    def wait(self, seconds: Optional[float] = None) -> None:
        """Errors: that of the first call that failed; TarponError after `seconds`, while the call
        goes on."""
        if not self._over.wait(seconds):
            raise TarponError(f"Timed out after {seconds:g} s: the call goes on to its deadline")
        self._raise_error()
