"""The c10d backend "tarpon": AllReduce by Tarpon, everything else by a Gloo group inside."""

import collections
import datetime
import inspect
import sys
from typing import Any, Deque, Dict, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from . import library as lib
from .calls import Call, Outcome, Report
from .communicator import BOUNDED_TYPES, DEVICES, Communicator, can_carry
from .loss_watch import LOGGER

BACKEND = "tarpon"

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_FUNCTIONS: Dict[Any, int] = {
    dist.ReduceOp.RedOpType.SUM: lib.SUM,
    dist.ReduceOp.RedOpType.AVG: lib.AVG,
    dist.ReduceOp.RedOpType.PRODUCT: lib.PROD,
    dist.ReduceOp.RedOpType.MIN: lib.MIN,
    dist.ReduceOp.RedOpType.MAX: lib.MAX,
    dist.ReduceOp.RedOpType.BAND: lib.BAND,
    dist.ReduceOp.RedOpType.BOR: lib.BOR,
    dist.ReduceOp.RedOpType.BXOR: lib.BXOR,
}
_KEPT_WORKS = 1000

_BITWISE = (lib.BAND, lib.BOR, lib.BXOR)


def _function(op: Any) -> Optional[int]:
    """The library's number of a reduction; None where it has none."""
    for known, number in _FUNCTIONS.items():
        if op == known:
            return number
    return None


def _options(given: Any) -> Any:
    """AllreduceOptions of those, of AllreduceCoalescedOptions, of a function, or of nothing."""
    if isinstance(given, dist.AllreduceOptions):
        return given
    options = dist.AllreduceOptions()
    if hasattr(given, "reduceOp"):
        options.reduceOp, options.timeout = given.reduceOp, given.timeout
    elif given is not None:
        options.reduceOp = given
    return options


class _Work(Work):
    """What c10d waits for. Its calls have deadlines, so that no wait needs one."""

    def __init__(self, outcome: Outcome, tensors: List[torch.Tensor]):
        super().__init__()
        self._outcome = outcome
        self._tensors = tensors
        self._asked = False

    def is_done_with(self) -> bool:
        """Whether its calls are over, and C++ has what it asks for once."""
        return self._asked and self._outcome.is_over()

    def is_completed(self) -> bool:
        self._asked = self._asked or self._outcome.is_over()
        return self._outcome.is_over()

    def is_success(self) -> bool:
        return self._outcome.is_over() and self._outcome.error() is None

    def exception(self) -> Optional[Exception]:
        return self._outcome.error()

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        """At most `timeout`, where that is above 0. Errors: TarponError."""
        self._asked = True
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        self._outcome.wait(seconds if seconds > 0 else None)
        return True

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> List[torch.Tensor]:
        self.wait()
        return self._tensors

    def get_future(self) -> "torch.futures.Future[List[torch.Tensor]]":
        self._asked = True
        caller = sys._getframe().f_back
        if caller is None or "get_future" not in caller.f_code.co_names:
            return self._future_for_cpp()
        return self._outcome.future

    def _future_for_cpp(self) -> "torch.futures.Future[List[torch.Tensor]]":
        """C++ calls get_future() for DDP's built-in hooks, which take a list of tensors. The futures of
        Python have values of Python, and a typed one can only be made of a value that is there. So
        this waits: such a hook does not overlap with the backward pass.
        """
        self.wait()
        return torch.jit.fork(lambda: self._tensors)


class ProcessGroupTarpon(dist.ProcessGroup):
    """A process group whose AllReduces run on Tarpon."""

    def __init__(
        self, store: Any, rank: int, world_size: int, timeout: datetime.timedelta
    ) -> None:
        super().__init__(rank, world_size)
        self._timeout = timeout.total_seconds()
        # Where ranks refuse, all know why before Gloo connects any.
        self.communicator = Communicator.connect(
            store, rank, world_size, self._timeout, shares_job=True
        )
        self._inner = dist.ProcessGroupGloo(
            dist.PrefixStore("gloo", store), rank, world_size, timeout
        )
        # Since torch 2.0 a group keeps its name at its devices' backends, and what this class does
        # not define goes to them.
        if hasattr(self, "_register_backend"):
            for device in DEVICES:
                gloo = dist.ProcessGroup.BackendType.GLOO
                self._register_backend(torch.device(device), gloo, self._inner)
        self._settings = self.communicator.settings
        if self._settings.bounded and rank == 0:
            LOGGER.warning(
                "tarpon: TARPON_MODE=bounded: ranks may get different averages, and nothing compares their "
                "models: use tarpon_torch.bounded_hook(), or average the parameters now and then"
            )
        # C++ holds a work without its Python part, which answers for it, and asks it soon.
        self._works: Deque[_Work] = collections.deque(maxlen=_KEPT_WORKS)
        self.last_report: Optional[Report] = None  # of the call that ended last

    def getBackendName(self) -> str:  # noqa: N802 (the name is c10d's)
        return BACKEND

    # -- AllReduce

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """In place. What Tarpon has no type or function for, Gloo does; several tensors, too, which
        c10d takes for the parts of one rank."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        options = _options(opts)
        if len(tensors) == 1 and self._carries(tensors[0], _function(options.reduceOp)):
            return self._start(tensors, options)
        return self._inner.allreduce(tensors, options)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """In place, over each tensor."""
        options = _options(opts)
        function = _function(options.reduceOp)
        if tensors and all(self._carries(tensor, function) for tensor in tensors):
            return self._start(list(tensors), options)
        return self._inner.allreduce_coalesced(tensors, *([opts] if opts is not None else []))

    @staticmethod
    def _carries(tensor: torch.Tensor, function: Optional[int]) -> bool:
        """Follows from what is alike on all ranks."""
        if function is None or not can_carry(tensor):
            return False
        return function not in _BITWISE or tensor.dtype not in _FLOATS

    def _start(self, tensors: List[torch.Tensor], options: Any) -> "_Work":
        outcome = Outcome(len(tensors), tensors)
        asked = options.timeout.total_seconds()
        deadline = asked if asked > 0 else self._timeout
        function = _function(options.reduceOp)
        assert function is not None

        def ended(call: Call) -> None:
            self.last_report = call.report or self.last_report
            outcome.end(call.error)

        calls = []
        for tensor in tensors:
            bounded = self._is_bounded(tensor, function)
            calls.append(
                self.communicator.prepare(
                    tensor,
                    function,
                    deadline=self._settings.deadline if bounded else deadline,
                    bounded=bounded,
                    bound=self._settings.bound if bounded else None,
                    learn_shares=self._settings.learn_shares,
                    ended=ended,
                )
            )
        self.communicator.begin(calls)
        work = _Work(outcome, tensors)
        self._keep(work)
        return work

    def _keep(self, work: _Work) -> None:
        """Until C++ has asked it; at most _KEPT_WORKS. For each new one, two are looked at."""
        for _ in range(min(2, len(self._works))):
            older = self._works.popleft()
            if not older.is_done_with():
                self._works.append(older)
        self._works.append(work)

    def _is_bounded(self, tensor: torch.Tensor, function: int) -> bool:
        size = tensor.numel() * tensor.element_size()
        return (
            self._settings.bounded
            and tensor.dtype in BOUNDED_TYPES
            and function in (lib.SUM, lib.AVG)
            and size > self._settings.bounded_min
        )

    # -- everything else

    def allgather(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.allgather(*args, **kwargs)

    def _allgather_base(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner._allgather_base(*args, **kwargs)

    def allgather_coalesced(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.allgather_coalesced(*args, **kwargs)

    def alltoall(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.alltoall(*args, **kwargs)

    def alltoall_base(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.alltoall_base(*args, **kwargs)

    def barrier(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.barrier(*args, **kwargs)

    def broadcast(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.broadcast(*args, **kwargs)

    def gather(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.gather(*args, **kwargs)

    def monitored_barrier(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.monitored_barrier(*args, **kwargs)

    def recv(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.recv(*args, **kwargs)

    def recv_anysource(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.recv_anysource(*args, **kwargs)

    def reduce(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.reduce(*args, **kwargs)

    def reduce_scatter(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.reduce_scatter(*args, **kwargs)

    def _reduce_scatter_base(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner._reduce_scatter_base(*args, **kwargs)

    def scatter(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.scatter(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.send(*args, **kwargs)

    # -- the end

    def abort(self) -> None:
        """Ends all of Tarpon's calls on all ranks, from any thread. Those of the Gloo group inside
        end at their timeouts."""
        self.communicator.abort("abort() of the process group")

    def shutdown(self) -> None:
        self.communicator.close()

    def __del__(self) -> None:
        communicator = getattr(self, "communicator", None)
        if communicator is not None:
            communicator.close()


def _create(
    store: Any, rank: int, world_size: int, timeout: datetime.timedelta
) -> ProcessGroupTarpon:
    return ProcessGroupTarpon(store, rank, world_size, timeout)


def register() -> None:
    """Makes init_process_group("tarpon") work; a second time changes nothing."""
    if hasattr(dist.Backend, BACKEND.upper()):
        return
    known = inspect.signature(dist.Backend.register_backend).parameters
    devices = {"devices": list(DEVICES)} if "devices" in known else {}  # since torch 2.0
    dist.Backend.register_backend(BACKEND, _create, **devices)
