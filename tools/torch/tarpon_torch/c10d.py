"""The c10d backend "tarpon"."""

import datetime
import functools
import inspect
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from . import library as lib
from .blocks import DEVICES, count_of, expect_tensor
from .c10d_arguments import (
    Tensors,
    flat,
    function_of,
    is_sparse,
    only_list,
    only_tensor,
    op_of,
    pairs_of,
    root_of,
    timeout_of,
)
from .calls import Call, CallError, Outcome, Report
from .collectives import even_parts, split_parts
from .communicator import BOUNDED_TYPES, Communicator
from .library import TarponError
from .loss_watch import LOGGER
from .messages import Message
from .reductions import SparseSum, combined
from .work import TarponWork, Works

BACKEND = "tarpon"

# Of monitored_barrier(): the next collective of a rank that misses one is not mistaken for it.
_MONITORED_TAG = 1

# Of aborted calls that no rank could run.
_CAUSES_AT_THE_START = (
    lib.CAUSE_MISMATCH,
    lib.CAUSE_ARGUMENT,
    lib.CAUSE_DEADLINE,
    lib.CAUSE_MEMORY,
    lib.CAUSE_EXCEPTION,
)

Started = Callable[..., Call]  # gets `deadline` and `ended`


class ProcessGroupTarpon(dist.ProcessGroup):
    """A process group whose collectives run on Tarpon.

    If this rank cannot make a call, it ends on all ranks that take part, and its work has the error. It is raised at
    once where this rank does not know which calls the others make: of a message with a wrong rank or tag, of a receive
    from any rank, and of coalesced calls without tensors or with another number of outputs than of inputs.
    """

    # Of the backend of a device, which in this group is the group.
    supports_splitting = False
    supports_coalescing = False

    def __init__(
        self, store: Any, rank: int, world_size: int, timeout: datetime.timedelta
    ) -> None:
        super().__init__(rank, world_size)
        self._timeout = timeout.total_seconds()
        self.communicator = Communicator.connect(
            store, rank, world_size, self._timeout, shares_job=True
        )
        self._collectives = self.communicator.collectives
        self._settings = self.communicator.settings
        if self._settings.bounded and rank == 0:
            LOGGER.warning(
                "tarpon: TARPON_MODE=bounded: ranks may get different averages, and nothing compares their "
                "models: use tarpon_torch.bounded_hook(), or average the parameters now and then"
            )
        self._works = Works()
        self._batch: Optional[TarponWork] = None
        self._name = ""
        self.last_report: Optional[Report] = None  # of the call that ended last

    # -- name and devices. Since torch 2.0 C++ keeps them at backends, and a group of Python has none.

    def getBackendName(self) -> str:  # noqa: N802 (the name is c10d's)
        return BACKEND

    def _get_backend(self, device: torch.device) -> "ProcessGroupTarpon":
        return self

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    @property
    def _device_types(self) -> List[torch.device]:
        return [torch.device(device) for device in DEVICES]

    # -- batch_isend_irecv() of torch 2, for CUDA tensors, wants one work for all that begins between these

    def _start_coalescing(self, device: Optional[torch.device] = None) -> None:
        self._batch = TarponWork(Outcome(1), [])

    def _end_coalescing(self, device_or_works: Any = None) -> TarponWork:
        batch, self._batch = self._batch, None
        assert batch is not None
        batch.end(None)
        self._works.keep(batch)
        return batch

    # -- reductions

    def allreduce(self, tensors: Tensors, opts: Any = None) -> TarponWork:
        """In place. Several tensors are parts of one rank, and all get the result."""
        own = flat(tensors)
        if len(own) > 1:
            return self._allreduce_parts(own, opts)
        if is_sparse(own):
            return self._allreduce_sparse(own[0], opts)
        return self._start(
            [lambda **end: self._all_reduce(only_tensor(tensors), opts, **end)], own, timeout_of(opts)
        )

    def _allreduce_parts(self, parts: List[torch.Tensor], opts: Any) -> TarponWork:
        def start(**end: Any) -> Call:
            return self._all_reduce(combined(parts, function_of(op_of(opts))), opts, **end)

        def copy(call: Call) -> None:
            assert call.output is not None
            with torch.inference_mode():
                for part in parts:
                    part.copy_(call.output.tensors[0])

        return self._start([start], parts, timeout_of(opts), finish=copy)

    def _allreduce_sparse(self, tensor: torch.Tensor, opts: Any) -> TarponWork:
        """A call gathers the numbers of elements, and this waits for it. Two more gather the elements."""
        sums: List[SparseSum] = []
        left = 2
        timeout = timeout_of(opts)

        def gather_shapes(**end: Any) -> Call:
            if function_of(op_of(opts)) != lib.SUM:
                raise TarponError(f"{op_of(opts)} of sparse tensors: use SUM, or tensor.to_dense()")
            sums.append(SparseSum(tensor, self.communicator.world_size))
            return self._gathered(sums[0].shapes, [sums[0].shape], **end)

        shapes = self._start([gather_shapes], [], timeout)
        try:
            shapes.wait()
            total = sums[0]
            total.expect()
        except BaseException as error:  # also Ctrl-C
            if not _others_made_one_call(shapes):
                self._start(2 * [functools.partial(_fail, repr(error))], [], timeout)
            raise

        def add_up(_: Call) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                total.add_up()

        indices = functools.partial(self._gathered, total.all_indices, [total.indices.t()])
        values = functools.partial(self._gathered, total.all_values, [total.values])
        return self._start([indices, values], [tensor], timeout, finish=add_up)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> TarponWork:
        """In place, over each tensor."""
        starts = [functools.partial(self._all_reduce, tensor, opts) for tensor in tensors]
        return self._start(starts, flat(tensors), timeout_of(opts))

    def _all_reduce(self, tensor: torch.Tensor, opts: Any, **end: Any) -> Call:
        expect_tensor(tensor)
        function = function_of(op_of(opts))
        bounded = self._is_bounded([tensor], function)
        if bounded:
            end["deadline"] = self._settings.deadline
        return self.communicator.prepare(
            tensor,
            function,
            bounded=bounded,
            bound=self._settings.bound if bounded else None,
            learn_shares=self._settings.learn_shares,
            **end,
        )

    def _is_bounded(self, tensors: Sequence[torch.Tensor], function: int) -> bool:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return (
            self._settings.bounded
            and all(tensor.dtype in BOUNDED_TYPES for tensor in tensors)
            and function in (lib.SUM, lib.AVG)
            and size > self._settings.bounded_min
        )

    def reduce(self, tensors: Tensors, opts: Any, op: Any = None) -> TarponWork:
        def start(**end: Any) -> Call:
            function = function_of(op if op is not None else op_of(opts))
            return self._collectives.reduce(only_tensor(tensors), root_of(opts), function, **end)

        return self._start([start], flat(tensors), timeout_of(opts))

    def reduce_scatter(self, outputs: Tensors, inputs: Any, opts: Any = None) -> TarponWork:
        def start(**end: Any) -> Call:
            parts = only_list(inputs)
            sizes = [count_of([part]) for part in parts]
            return self._scattered(only_tensor(outputs), parts, sizes, opts, **end)

        return self._start([start], flat(outputs), timeout_of(opts))

    def _reduce_scatter_base(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> TarponWork:
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> TarponWork:
        def start(output: torch.Tensor, input: torch.Tensor, **end: Any) -> Call:
            sizes = even_parts(input, self.communicator.world_size)
            return self._scattered(output, [input], sizes, opts, **end)

        starts = [functools.partial(start, *pair) for pair in pairs_of(outputs, inputs)]
        return self._start(starts, flat(outputs), timeout_of(opts))

    def _scattered(
        self,
        output: torch.Tensor,
        parts: Sequence[torch.Tensor],
        sizes: Sequence[int],
        opts: Any,
        **end: Any,
    ) -> Call:
        function = function_of(op_of(opts))
        bounded = self._is_bounded(parts, function)
        if bounded:
            end["deadline"] = self._settings.deadline
        return self._collectives.reduce_scatter(
            output, parts, sizes, function, bounded=bounded, bound=self._settings.bound, **end
        )

    # -- copies

    def broadcast(self, tensors: Tensors, opts: Any) -> TarponWork:
        def start(**end: Any) -> Call:
            return self._collectives.broadcast(only_tensor(tensors), root_of(opts), **end)

        return self._start([start], flat(tensors), timeout_of(opts))

    def allgather(self, outputs: Any, inputs: Tensors, opts: Any = None) -> TarponWork:
        """The sizes may differ between ranks."""

        def start(**end: Any) -> Call:
            return self._gathered(only_list(outputs), [only_tensor(inputs)], **end)

        return self._start([start], flat(outputs), timeout_of(opts))

    def _gathered(
        self, outputs: Sequence[Tensors], inputs: Sequence[torch.Tensor], **end: Any
    ) -> Call:
        """`outputs`: a tensor of each rank, or a list of them."""
        sizes = [count_of(flat(parts)) for parts in outputs]
        return self._collectives.all_gather(flat(outputs), inputs, sizes, **end)

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
    ) -> TarponWork:
        """`output_lists`: a list for each rank, with tensors of the sizes of its `inputs`."""
        start = functools.partial(self._gathered, output_lists, inputs)
        return self._start([start], flat(output_lists), timeout_of(opts))

    def _allgather_base(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> TarponWork:
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> TarponWork:
        def start(output: torch.Tensor, input: torch.Tensor, **end: Any) -> Call:
            sizes = even_parts(output, self.communicator.world_size)
            return self._collectives.all_gather([output], [input], sizes, **end)

        starts = [functools.partial(start, *pair) for pair in pairs_of(outputs, inputs)]
        return self._start(starts, flat(outputs), timeout_of(opts))

    def gather(self, outputs: Any, inputs: Tensors, opts: Any) -> TarponWork:
        def start(**end: Any) -> Call:
            parts = only_list(outputs) if outputs else []
            return self._collectives.gather(parts, only_tensor(inputs), root_of(opts), **end)

        return self._start([start], flat([] if outputs is None else outputs), timeout_of(opts))

    def scatter(self, outputs: Tensors, inputs: Any, opts: Any) -> TarponWork:
        def start(**end: Any) -> Call:
            parts = only_list(inputs) if inputs else []
            return self._collectives.scatter(only_tensor(outputs), parts, root_of(opts), **end)

        return self._start([start], flat(outputs), timeout_of(opts))

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> TarponWork:
        """Without split sizes the parts are equal. Either all ranks give some or none does."""

        def start(**end: Any) -> Call:
            if not output_splits and not input_splits:
                return self._collectives.all_to_all(output, input, **end)
            world = self.communicator.world_size
            sizes = [split_parts(output, output_splits, world), split_parts(input, input_splits, world)]
            return self._collectives.all_to_all_uneven([output], [input], *sizes, **end)

        return self._start([start], [output], timeout_of(opts))

    def alltoall(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> TarponWork:
        def start(**end: Any) -> Call:
            sizes = [[count_of([part]) for part in only_list(parts)] for parts in (outputs, inputs)]
            return self._collectives.all_to_all_uneven(outputs, inputs, *sizes, **end)

        return self._start([start], flat(outputs), timeout_of(opts))

    # -- messages

    def send(self, tensors: Tensors, to: int, tag: int = 0) -> TarponWork:
        tensor = functools.partial(only_tensor, tensors)
        return self._start_message(functools.partial(self.communicator.messages.send, tensor, to, tag), [])

    def recv(self, tensors: Tensors, sender: int, tag: int = 0) -> TarponWork:
        tensor = functools.partial(only_tensor, tensors)
        receive = functools.partial(self.communicator.messages.receive, tensor, sender, tag)
        return self._start_message(receive, flat(tensors))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> TarponWork:
        tensor = functools.partial(only_tensor, tensors)
        receive = functools.partial(self.communicator.messages.receive_from_any, tensor, tag)
        return self._start_message(receive, flat(tensors))

    def _start_message(
        self, start: Callable[..., Message], received: List[torch.Tensor]
    ) -> TarponWork:

        def note_source(message: Any) -> None:
            if received:
                work.source = message.peer

        work, end = self._expect(1, received, None, note_source)
        start(**end)
        self._works.keep(work)
        return work

    # -- barriers

    def barrier(self, opts: Any = None) -> TarponWork:
        return self._start([self._collectives.barrier], [], timeout_of(opts))

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Waits for no earlier call. Errors: TarponError, on all ranks, names the ranks that did not come;
        without `wait_all_ranks` the first of them."""
        given = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
        seconds = self._timeout if given is None or given < 0 else given

        def start(**end: Any) -> Call:
            barrier = self._collectives.barrier(tag=_MONITORED_TAG, **end)
            barrier.is_ordered = False  # its timeout counts from now on, whatever began before it
            return barrier

        try:
            self._start([start], [], seconds).wait()
        except CallError as error:
            raise TarponError(self._missing_text(error, seconds, wait_all_ranks)) from error

    def _missing_text(self, error: CallError, seconds: float, all_of_them: bool) -> str:
        """In the words of Gloo, by which programs know it."""
        rank = self.communicator.rank
        missing = sorted({*error.report.late_ranks, *error.report.blamed} - {rank})
        if not missing:
            return f"Rank {rank} timed out in monitoredBarrier: {error}"
        named = missing if all_of_them else missing[:1]
        ranks = ("Ranks " if all_of_them else "Rank ") + ", ".join(map(str, named))
        text = f"{ranks} failed to pass monitoredBarrier in {1000 * seconds:g} ms: {error}"
        if rank == 0:
            return text
        return (
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for "
            f"send/recv from rank 0: {text}"
        )

    # -- calls

    def _start(
        self,
        starts: Sequence[Started],
        outputs: List[torch.Tensor],
        timeout: Optional[float],
        finish: Callable[[Call], None] = lambda call: None,
    ) -> TarponWork:
        """Begins a call for each of `starts`; where one fails, the call is refused. `finish` runs when a call
        has its result."""
        if not starts:
            raise TarponError("no tensors: give at least one")
        work, end = self._expect(len(starts), outputs, timeout, finish)
        self.communicator.begin([self._made(start, end) for start in starts])
        self._works.keep(work)
        return work

    def _expect(
        self,
        calls: int,
        outputs: List[torch.Tensor],
        timeout: Optional[float],
        finish: Callable[[Call], None] = lambda call: None,
    ) -> Tuple[TarponWork, Dict[str, Any]]:
        """A work, and the deadline and the function that each of its calls gets."""
        work, batch = TarponWork(Outcome(calls), outputs), self._batch
        if batch is not None:
            batch.expect(calls)

        def ended(call: Call) -> None:
            work.report = call.report
            self.last_report = call.report or self.last_report
            error = call.error
            try:
                if error is None:
                    finish(call)
            except Exception as failed:
                error = failed
            work.end(error)
            if batch is not None:
                batch.end(error)

        deadline = self._timeout if timeout is None else timeout
        return work, {"deadline": deadline, "ended": ended}

    def _made(self, start: Started, end: Dict[str, Any]) -> Call:
        try:
            return start(**end)
        except Exception as error:
            return self._collectives.refused(error, **end)

    # -- the end

    def abort(self) -> None:
        """Ends all calls on all ranks, from any thread."""
        self.communicator.abort("abort() of the process group")

    def shutdown(self) -> None:
        self.communicator.close()

    def __del__(self) -> None:
        communicator = getattr(self, "communicator", None)
        if communicator is not None:
            communicator.close()


def _others_made_one_call(shapes: TarponWork) -> bool:
    """Whether all ranks know that a sparse AllReduce ended with its first call: it met another call, or a rank
    could not make it."""
    report = shapes.report
    if report is None or report.has_result:
        return False
    return report.status == "mismatch" or report.abort_cause in _CAUSES_AT_THE_START


def _fail(why: str, **_: Any) -> Call:
    raise TarponError(f"the call before it failed: {why}")


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
