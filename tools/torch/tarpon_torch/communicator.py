"""A job's communicator for tensors.

Interfaces of PyTorch (c10d.py; hook.py and ddp.py) are files over it.
"""

import atexit
import ctypes
import dataclasses
import os
import threading
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch

from . import library as lib
from .calls import (
    MAX_RANKS,
    Call,
    Outcome,
    Report,
    Stage,
    callbacks,
    live_threads,
    open_handle,
    ranks_of,
)
from .library import TarponError, microseconds
from .meeting import Meeting
from .settings import Settings

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
DEVICES = ("cpu", "cuda")

_CLOSE_SECONDS = 5.0
_KEY = "tarpon"


def can_carry(tensor: torch.Tensor) -> bool:
    """Whether allreduce() takes this tensor. Follows from its type, layout and device."""
    return (
        tensor.layout == torch.strided
        and tensor.dtype in TYPES
        and tensor.device.type in DEVICES
    )


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
    gone: Tuple[int, ...]  # they left, or their processes are gone; rejoin() leaves them out
    detail: str


class Communicator:
    """A rank's place in a job. Any thread may use it; calls of one tag match in their order.

    Close it when it is done with: the other ranks then know that this one has left. One that is
    dropped is closed, and so are all that are left at the interpreter's end.
    """

    def __init__(self, handle: ctypes.c_void_p, settings: Settings):
        self._handle = handle
        self.settings = settings
        self._lock = threading.Lock()
        self._ender = Stage(Call.end, Call.tell)
        self._process = os.getpid()
        self._beginner: Optional[Stage] = None  # since the first CUDA tensor
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
        key: str = _KEY,
        obstacle: Optional[TarponError] = None,
    ) -> "Communicator":
        """Joins the job whose ranks share `store`: all of them call it, with the same `key`.

        `obstacle`: why this rank cannot take part. Without a store the ranks meet where the
        environment says. What is None here comes from the environment. Errors: TarponError, alike on all ranks that share a store.
        """
        with Meeting(store, key, rank, world_size, timeout) as meeting:
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
                # The ranks have met in the store when they connect; the variable counts then.
                rendezvous_timeout_us=(
                    0 if os.environ.get("TARPON_RENDEZVOUS_TIMEOUT") else microseconds(timeout)
                ),
            )
            try:
                if obstacle is not None:
                    raise obstacle
                settings = Settings.from_environment()
                if world_size > MAX_RANKS:
                    raise TarponError(f"{world_size} ranks: at most {MAX_RANKS} are supported")
                if store is not None:
                    options.rendezvous = b"127.0.0.1:1"  # in place of the one to come
                    lib.check(lib.library().tarpon_check_environment(ctypes.byref(options)))
                    options.rendezvous = None
                meeting.listen(interface)
            except TarponError as error:
                raise meeting.refuse(error) from error
            meeting.meet(options)
            handle = ctypes.c_void_p()
            lib.check(
                lib.library().tarpon_connect_from_environment(
                    ctypes.byref(options), ctypes.byref(handle)
                )
            )
        return Communicator(handle, settings)

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
        learn_shares: bool = False,
        ended: Callable[[Call], None],
    ) -> None:
        """Starts a call over `tensor`, in place; returns before it has ended.

        can_carry(tensor) holds. The tensor belongs to the call until `ended` runs, on the
        communicator's thread, with its `report` or `error`; one that is not contiguous travels as a
        copy. The call takes its number here. A CUDA tensor travels through pinned memory, from the
        current stream on.
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
            learn_shares=int(learn_shares),
        )
        call = Call(self._handle, tensor, arguments, ended)
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

    def _stage(self, call: Call) -> None:
        """Copies to pinned memory, on a stream of its own, after the current stream's work.

        The way back has another stream: on this one, or on the current one, it would wait for the
        gradients of later buckets.
        """
        device = call.tensor.device
        if self._beginner is None:
            self._beginner = Stage(Call.begin, self._ender.add)
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
        outcome = Outcome(1, None)
        reports: List[Optional[Report]] = []

        def ended(call: Call) -> None:
            reports.append(call.report)
            outcome.end(call.error)

        self.allreduce(tensor, function, tag=tag, deadline=deadline, ended=ended)
        outcome.wait()
        assert reports[0] is not None
        return reports[0]

    # -- the job

    def barrier(self, deadline: float) -> None:
        """Returns when every rank has entered it. Errors: TarponError names the missing ranks."""
        lib.check(lib.library().tarpon_barrier(open_handle(self._handle), microseconds(deadline)))

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
                open_handle(self._handle),
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
            gone=tuple(ranks_of(verdict.gone)),
            detail=verdict.detail.decode(errors="replace"),
        )

    def resync(self, tensor: torch.Tensor, root: int, deadline: float) -> None:
        """Gives `tensor` (contiguous) the value that it has on `root`. All ranks call it."""
        memory = tensor.detach() if tensor.device.type == "cpu" else tensor.detach().cpu()
        size = memory.numel() * memory.element_size()
        lib.check(
            lib.library().tarpon_resync(
                open_handle(self._handle), root, memory.data_ptr(), size, microseconds(deadline)
            )
        )
        if memory.device != tensor.device:
            tensor.detach().copy_(memory)

    def rejoin(self, deadline: float) -> "Communicator":
        """A communicator of the live and the returning ranks, who all call it. This one ends."""
        fresh = ctypes.c_void_p()
        lib.check(
            lib.library().tarpon_rejoin(
                open_handle(self._handle), microseconds(deadline), ctypes.byref(fresh)
            )
        )
        self.close(seconds=0)
        return Communicator(fresh, self.settings)

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
    callbacks.stop()
    # A communicator that its own thread has closed or dropped is not in the list above.
    for thread in list(live_threads):
        thread.join()
