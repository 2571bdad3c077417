"""A job's communicator for tensors.

Interfaces of PyTorch (c10d.py; hook.py and ddp.py) are files over it.
"""

import atexit
import contextlib
import ctypes
import dataclasses
import logging
import os
import sys
from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch

from . import jobs
from . import library as lib
from . import store_secret
from .calls import MAX_RANKS, Call, Outcome, Report
from .collectives import Collectives
from .handle import GOODBYE_SECONDS, ClosedError, Handle, close_all
from .library import TarponError, microseconds
from .meeting import Meeting, Place
from .messages import Messages
from .settings import Settings, connect_terms

BOUNDED_TYPES = (torch.float32, torch.float16, torch.bfloat16)

_KEY = "tarpon"
_LOGGER = logging.getLogger("tarpon")  # that of loss_watch.py

# No communicator is split from one of more ranks.
MAX_OF_ONE = 64

# All ranks are there when they split: the deadline of a rank that then fails alone.
_SPLIT_SECONDS = 30.0


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
    late: Tuple[int, ...]  # a report that was heard names them as late for a call of the step
    detail: str


class Communicator:
    """A rank's place in a job. Any thread may use it; calls of one tag match in their order.

    Close it when it is done with: the other ranks then know that this one has left. One that is
    dropped is closed, and so are all that are left at the interpreter's end.
    """

    def __init__(self, handle: Handle, settings: Settings, job: Optional[jobs.Job] = None):
        """`job`: this communicator, as one that others may be split from."""
        self._handle = handle
        self._job = job
        self.settings = settings
        library = lib.library()
        self.rank: int = handle.use(library.tarpon_rank)
        self.world_size: int = handle.use(library.tarpon_world_size)
        # A mask has a bit for each rank; of more than 64 ranks, for each host.
        self._bits = [handle.use(library.tarpon_mask_bit, rank) for rank in range(self.world_size)]
        self.collectives = Collectives(self.rank, self.world_size)
        self.messages = Messages(handle, self.world_size)
        self.left_out: str = handle.use(library.tarpon_left_out).decode(errors="replace")

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
        silent_after: Optional[float] = None,
        skip_above: Optional[float] = None,
        halt_above: Optional[float] = None,
        secret_from_store: Optional[bool] = None,
        key: str = _KEY,
        obstacle: Optional[TarponError] = None,
        shares_job: bool = False,
    ) -> "Communicator":
        """Joins the job whose ranks share `store`: all of them call it, with the same `key`.

        `obstacle`: why this rank cannot take part. `shares_job`, alike on all ranks: where all of
        them are ranks of one communicator that was made with `shares_job`, this one is split from
        it, and shares its sockets and threads; it cannot rejoin(). `secret_from_store`: store_secret.py.
        Without a store the ranks meet where the environment says. What is None here comes from the
        environment. Errors: TarponError, alike on all ranks that share a store.
        """
        options = lib.sized(
            lib.Options,
            rank=rank,
            world_size=world_size,
            interface=interface.encode() if interface else None,
            loss_target=loss_target or 0,
            retain_bytes=retain_bytes or 0,
            silent_after_us=microseconds(silent_after) if silent_after else 0,
            skip_above=skip_above or 0,
            halt_above=halt_above or 0,
            codec=0 if codec is None else 1 if codec else 2,
            # The ranks have met in the store when they connect; the variable counts then.
            rendezvous_timeout_us=(
                0 if os.environ.get("TARPON_RENDEZVOUS_TIMEOUT") else microseconds(timeout)
            ),
        )
        offered = jobs.offered() if shares_job else {}
        with contextlib.ExitStack() as stack:
            meeting = stack.enter_context(Meeting(store, key, rank, world_size, timeout, interface))
            try:
                if obstacle is not None:
                    raise obstacle
                settings = Settings.from_environment()
                secret = store_secret.source(secret_from_store)
                shares_secret = secret == store_secret.FROM_STORE and world_size > 1
                if shares_secret:
                    store_secret.check_store(store)
                if world_size > MAX_RANKS:
                    raise TarponError(f"{world_size} ranks: at most {MAX_RANKS} are supported")
                if store is not None:
                    _check_environment(options, meeting.host())
                meeting.come(listens=not offered)
                handle = stack.enter_context(_opened())
            except TarponError as error:
                raise meeting.refuse(error) from error
            terms = {
                **settings.terms(),
                **connect_terms(options),
                "secret": secret,
                "TARPON_INTEGRITY": store_secret.integrity(secret),
            }
            place = meeting.meet(terms, offered, shares_secret)
            if place.split is not None:
                parent, number, ranks = place.split
                handle.split(parent, ranks, number, min(timeout, _SPLIT_SECONDS))
                return Communicator(handle, settings)
            if place.secret is not None and rank == 0:
                store_secret.tell_worth()
            _connect(options, place, handle)
            _tell_choice(handle, rank, world_size, secret)
            if rank == 0:
                _warn_of_strangers(handle)
            if place.job is None or not shares_job or world_size > MAX_OF_ONE:
                return Communicator(handle, settings)
            return Communicator(
                handle, settings, jobs.offer(place.job, handle, rank, world_size)
            )

    # -- calls

    def prepare(
        self,
        tensor: torch.Tensor,
        function: int,
        *,
        tag: int = 0,
        deadline: float,
        bounded: bool = False,
        bound: Optional[float] = None,
        learn_shares: bool = False,
        shares: Optional[Sequence[float]] = None,
        follows: bool = False,
        ended: Callable[[Call], None],
    ) -> Call:
        """An AllReduce of `tensor`, in place, for begin(). `follows`: a bounded call that contributes nothing.
        `shares`: how much of the tensor each rank owns, relative to the others; alike on all ranks.

        From begin() on, the tensor belongs to the call until `ended` runs, on the communicator's thread, with
        its `report` or `error`; one that is not contiguous travels as a copy. A CUDA tensor travels
        through pinned memory, from the current stream on. Errors: TarponError, for a tensor that no
        reduction takes.
        """
        call = self.collectives.all_reduce(
            tensor,
            function,
            tag=tag,
            mode=lib.BOUNDED if bounded else lib.EXACT,
            deadline=deadline,
            bound_us=microseconds(bound) if bound else 0,
            learn_shares=int(learn_shares),
            flags=lib.FOLLOW if follows else 0,
            ended=ended,
        )
        if shares is not None:
            call.divide(shares)
        return call

    def allreduce(self, tensor: torch.Tensor, function: int, **options: Any) -> None:
        """begin() of what prepare() makes of the same arguments."""
        self.begin([self.prepare(tensor, function, **options)])

    def begin(self, calls: Sequence[Call], more: bool = False) -> None:
        """Starts them; returns before they have ended. They take their numbers here, whatever fails: then
        a call ends on all ranks, and `ended` gets the error. Where Ctrl-C interrupts it, either all of
        them have begun or none. `more`: another begin() follows. The ends of these calls are told together
        with the ends of its calls, which costs one wake-up in place of two.
        """
        self._handle.begin(calls, more)

    def allreduce_now(
        self, tensor: torch.Tensor, function: int, *, tag: int = 0, deadline: float
    ) -> Report:
        """An exact call; returns when it has ended. Errors: CallError, TarponError."""
        outcome = Outcome(1)
        reports: List[Optional[Report]] = []

        def ended(call: Call) -> None:
            reports.append(call.report)
            outcome.end(call.error)

        self.allreduce(tensor, function, tag=tag, deadline=deadline, ended=ended)
        outcome.wait()
        assert reports[0] is not None
        return reports[0]

    def behind(self, tag: int) -> int:
        """How many of this rank's next calls of `tag` another rank has ended: calls for `follows`."""
        calls = ctypes.c_uint32()
        self._handle.call("tarpon_behind", tag, ctypes.byref(calls))
        return calls.value

    def set_loss_target(self, share: float) -> None:
        """Of calls that begin from now on. All ranks set it between the same calls."""
        self._handle.call("tarpon_set_loss_target", share)

    # -- the job

    def barrier(self, deadline: float) -> None:
        """Returns when every rank has entered it. Errors: TarponError names the missing ranks."""
        self._handle.call("tarpon_barrier", microseconds(deadline))

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
            late_ranks=sum(1 << bit for bit in {self._bits[rank] for rank in late_ranks}),
            digest=digest,
        )
        verdict = lib.sized(lib.StepVerdict)
        self._handle.call(
            "tarpon_agree",
            step,
            ctypes.byref(loss),
            microseconds(deadline),
            ctypes.byref(verdict),
        )
        return Verdict(
            step=step,
            decision=("apply", "skip", "halt")[verdict.verdict],
            decided_by=verdict.decided_by,
            lost_fraction=verdict.lost_fraction,
            reporters=self._ranks_of(verdict.reporters),
            rejoin=self._ranks_of(verdict.rejoin),
            differing=self._ranks_of(verdict.differing),
            gone=self._ranks_of(verdict.gone),
            late=self._ranks_of(verdict.late),
            detail=verdict.detail.decode(errors="replace"),
        )

    def _ranks_of(self, mask: int) -> Tuple[int, ...]:
        return tuple(rank for rank, bit in enumerate(self._bits) if mask >> bit & 1) if mask else ()

    def resync(self, tensor: torch.Tensor, root: int, deadline: float) -> None:
        """Gives `tensor` (contiguous) the value that it has on `root`. All ranks call it."""
        try:
            memory = tensor.detach().cpu()
        except Exception:
            # Takes part, so that the other ranks neither wait nor count calls differently.
            with contextlib.suppress(TarponError):
                self._handle.call("tarpon_resync", root, None, 0, microseconds(deadline))
            raise
        size = memory.numel() * memory.element_size()
        self._handle.call("tarpon_resync", root, memory.data_ptr(), size, microseconds(deadline))
        if memory.device != tensor.device:
            tensor.detach().copy_(memory)

    def rejoin(self, deadline: float) -> "Communicator":
        """A communicator of the live and the returning ranks, who all call it. This one ends."""
        with _opened() as fresh:
            rejoin = lib.library().tarpon_rejoin
            fresh.make(lambda place: self._handle.use(rejoin, microseconds(deadline), place))
            self.close(seconds=0)
            return Communicator(fresh, self.settings)

    def abort(self, reason: str) -> None:
        """Ends all calls on all ranks, from any thread, without waiting for another one. Only close()
        and rejoin() still work. Does nothing once it is closed."""
        with contextlib.suppress(ClosedError):
            self._handle.call("tarpon_abort", reason.encode())

    def close(self, seconds: float = GOODBYE_SECONDS) -> None:
        """Serves the other ranks until they need nothing more of this one, at most `seconds`.

        Calls that have not ended by then end as aborted, and so do other functions that other
        threads are in. A communicator that others were split from is kept until they are closed.
        """
        self._handle.close(seconds)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.close()


@contextlib.contextmanager
def _opened() -> Iterator[Handle]:
    """A handle that is closed where the block fails."""
    handle = Handle()
    try:
        yield handle
    except BaseException:
        handle.close(seconds=0)
        raise


def _check_environment(options: lib.Options, host: Optional[str]) -> None:
    options.rendezvous = f"tcp://{host or '127.0.0.1'}:1".encode()  # in place of the one to come
    lib.check(lib.library().tarpon_check_environment(ctypes.byref(options)))
    options.rendezvous = None


def _connect(options: lib.Options, place: Place, handle: Handle) -> None:
    options.listener, options.rendezvous = place.listener, place.address
    connect = lib.library().tarpon_connect_from_environment
    with contextlib.ExitStack() as stack:
        if place.secret is not None:
            options.secret_file = stack.enter_context(store_secret.in_memory(place.secret))
        handle.make(lambda given: connect(ctypes.byref(options), given))


def _tell_choice(handle: Handle, rank: int, world_size: int, secret: str) -> None:
    """What carries and protects the packets of a job, for TARPON_DEBUG. `secret`: store_secret.source()."""
    if os.environ.get("TARPON_DEBUG") not in ("INFO", "TRACE"):
        return
    library = lib.library()
    datapath, interface, integrity = (
        handle.use(function).decode()
        for function in (
            library.tarpon_datapath_name,
            library.tarpon_interface_name,
            library.tarpon_integrity_name,
        )
    )
    print(
        f"tarpon: rank {rank} of {world_size}: data path {datapath} over {interface}, integrity {integrity}, "
        f"secret: {secret}",
        file=sys.stderr,
        flush=True,
    )


def _warn_of_strangers(handle: Handle) -> None:
    exposed = handle.use(lib.library().tarpon_exposed).decode(errors="replace")
    if exposed:
        _LOGGER.warning("tarpon: %s", exposed)


atexit.register(close_all)
