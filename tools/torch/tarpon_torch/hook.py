"""Bounded gradients for DistributedDataParallel, beside whatever process group it has."""

import collections
import dataclasses
import json
import threading
import types
from typing import Any, Callable, Deque, Optional, Tuple

import torch
import torch.distributed as dist

from . import library as lib
from . import replicas
from .c10d import Outcome
from .communicator import (
    BOUNDED_TYPES,
    MAX_RANKS,
    TYPES,
    CallError,
    Communicator,
    Report,
    Verdict,
    _Call,
)
from .library import TarponError
from .settings import Settings

# Buckets have the tags from 0 on. Each attempt to compare models, or to resync them, has a tag of its
# own, by the step: a rank that gave an attempt up has made fewer calls. A rejoin has a communicator
# of its own.
_TAG_OF_COMPARISON = 1 << 30
_TAG_OF_REJOIN = 1 << 31
_STEPS_OF_TAGS = 1 << 20

_KEPT_REPORTS = 1000
_REJOIN_TRIES = 3


@dataclasses.dataclass
class StepReport:
    """What a step's gradients are made of, at this rank."""

    step: int
    calls: int = 0
    bytes: int = 0
    lost_fraction: float = 0.0  # mean over the bytes of the step
    worst_lost_fraction: float = 0.0  # of a call
    lost_in_network: float = 0.0  # of a call, the worst: without late ranks; what budgets count
    seconds: float = 0.0  # the longest call
    late_ranks: Tuple[int, ...] = ()  # their gradients are missing somewhere
    nonfinite: bool = False  # a rank's gradients held NaN or infinity
    decision: str = "apply"  # "apply", "skip", "halt"; "apply" without an optimizer
    detail: str = ""  # why, where it was not applied
    replicas_equal: Optional[bool] = None  # None: not compared at this step
    distance: float = 0.0  # of the replicas, where they differ
    resynced: bool = False

    def add(self, report: Report, size: int) -> None:
        self.calls += 1
        self.lost_fraction = (self.lost_fraction * self.bytes + report.lost_fraction * size) / max(
            self.bytes + size, 1
        )
        self.bytes += size
        self.worst_lost_fraction = max(self.worst_lost_fraction, report.lost_fraction)
        self.lost_in_network = max(self.lost_in_network, report.lost_in_network)
        self.seconds = max(self.seconds, report.seconds)
        self.late_ranks = tuple(sorted({*self.late_ranks, *report.late_ranks}))
        self.nonfinite |= report.nonfinite


class HaltError(TarponError):
    """The ranks decided that training should stop: most was lost in three steps in a row."""

    def __init__(self, verdict: Verdict):
        super().__init__(f"step {verdict.step}: halt: {verdict.detail}")
        self.verdict = verdict


class BoundedHook:
    """A communication hook: averages gradients within a bound. Made by bounded_hook().

    Without an optimizer it bounds the gradients, and reports. With one, each optimizer.step() first
    asks all ranks what becomes of the step: it is applied on all ranks or on none.

    One thread at a time trains. Steps are counted by backward passes, which are alike on all ranks.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        communicator: Communicator,
        optimizer: Optional[torch.optim.Optimizer],
        bound: Optional[float],
        bounded_min: int,
        deadline: float,
        rejoin_deadline: float,
        compare_every: int,
        largest_distance: float,
        on_report: Optional[Callable[[StepReport], None]],
        log: Optional[str],
    ):
        self.communicator = communicator
        self.reports: Deque[StepReport] = collections.deque(maxlen=_KEPT_REPORTS)
        self._model = model
        self._optimizer = optimizer
        self._bound = bound
        self._bounded_min = bounded_min
        self._deadline = deadline
        self._rejoin_deadline = rejoin_deadline
        self._compare_every = compare_every
        self._largest_distance = largest_distance
        self._on_report = on_report
        self._log = open(log, "a", encoding="utf-8") if log else None
        self._lock = threading.Lock()  # of the open report, which the communicator's thread fills
        self._open: Optional[StepReport] = None  # from the first bucket of a step on
        self._next_step = 0
        self._comparisons = 0
        self._out = False  # this rank is evicted, or too far behind for a verdict
        if optimizer is not None:
            self._apply = optimizer.step
            # Learning-rate schedulers look for the optimizer behind the method.
            step = lambda _, *args, **kwargs: self._step(*args, **kwargs)  # noqa: E731
            optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]

    # -- gradients

    def __call__(self, state: Any, bucket: "dist.GradBucket") -> "torch.futures.Future[Any]":
        if bucket.index() == 0 or self._open is None:
            self._begin_step()
        tensor = bucket.buffer()
        outcome = Outcome(1, tensor)
        if self._out or tensor.dtype not in TYPES:
            outcome.end(None if self._out else _no_type(tensor))
            return outcome.future
        step = self._open
        assert step is not None

        def ended(call: _Call) -> None:
            outcome.end(self._take(step, call))

        size = tensor.numel() * tensor.element_size()
        bounded = tensor.dtype in BOUNDED_TYPES and size > self._bounded_min
        self.communicator.allreduce(
            tensor,
            lib.AVG,
            tag=bucket.index(),
            deadline=self._deadline,
            bounded=bounded,
            bound=self._bound if bounded else None,
            ended=ended,
        )
        return outcome.future

    def _begin_step(self) -> None:
        self._finish_step()  # where nothing else has: no optimizer, or it was not called
        self._open = StepReport(step=self._next_step)
        self._next_step += 1

    def _take(self, step: StepReport, call: _Call) -> Optional[Exception]:
        size = call.tensor.numel() * call.tensor.element_size()
        with self._lock:
            if call.report is not None and call.report.has_result:
                step.add(call.report, size)
            report = call.error.report if isinstance(call.error, CallError) else None
            is_own = report is not None and self.communicator.rank in report.blamed
            if self._optimizer is not None and report is not None and report.evicted and is_own:
                # The step ends with the own gradients; then this rank comes back.
                self._out = True
                return None
        return call.error

    # -- steps

    @property
    def step(self) -> int:
        """Steps that have begun, alike on all ranks. It jumps where this rank has come back."""
        return self._next_step

    def finish(self) -> None:
        """Reports the last step, and closes the communicator. The optimizer is as before."""
        self._finish_step()
        if self._optimizer is not None:
            self._optimizer.step = self._apply  # type: ignore[method-assign]
        self.communicator.close()
        if self._log is not None:
            self._log.close()

    def _step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """In place of the optimizer's step()."""
        loss = closure() if closure is not None else None
        step = self._open
        if step is None:  # no bucket since the last one: not a step of ours
            self._apply()
            return loss
        if not self._out:
            self._end_step(step)
        if self._out:
            self._rejoin(step)
            self._finish_step()
        return loss

    def _end_step(self, step: StepReport) -> None:
        compares = self._compare_every > 0 and step.step % self._compare_every == 0
        verdict = self.communicator.agree(
            step.step,
            step.lost_in_network,
            step.nonfinite,
            self._deadline,
            late_ranks=step.late_ranks,
            digest=replicas.digest(self._model.parameters()) if compares else 0,
        )
        step.decision, step.detail = verdict.decision, verdict.detail
        if verdict.decision == "halt" and not verdict.reporters:
            self._out = True  # evicted, or so far behind that the verdict is forgotten
            return
        if verdict.decision == "halt":
            self._finish_step()
            raise HaltError(verdict)
        everybody = len(verdict.reporters) == self.communicator.world_size
        if compares and everybody:
            step.replicas_equal = not verdict.differing
            if verdict.differing:
                self._bring_together(step, verdict)
        if verdict.decision == "apply":
            self._apply()
        if verdict.rejoin:
            self._rejoin(step)  # who comes back takes the model after this step
        self._finish_step()

    def _finish_step(self) -> None:
        report, self._open = self._open, None
        if report is None:
            return
        self.reports.append(report)
        if self._log is not None:
            self._log.write(json.dumps(dataclasses.asdict(report)) + "\n")
            self._log.flush()
        if self._on_report is not None:
            self._on_report(report)

    # -- replicas

    def compare(self) -> replicas.Comparison:
        """Compares the parameters of all ranks, who all call it; resyncs those too far apart.

        For the moment before a checkpoint. Exact: it waits for every rank. Errors: TarponError.
        """
        tag = self._fresh_tag(_TAG_OF_COMPARISON + _STEPS_OF_TAGS, self._comparisons)
        self._comparisons += 1
        parameters = list(self._model.parameters())
        if replicas.are_equal(self.communicator, parameters, tag, self._deadline):
            return replicas.Comparison(equal=True, distance=0.0, resynced=False)
        return self._measure_and_resync(tag, in_minority=False)

    def _bring_together(self, step: StepReport, verdict: Verdict) -> None:
        """The models differ: measures how much, and resyncs where that is too much.

        A rank that stands still meanwhile costs the deadline, and the next comparison tries again.
        """
        differing = self.communicator.rank in verdict.differing
        most_differ = 2 * len(verdict.differing) > self.communicator.world_size
        tag = self._fresh_tag(_TAG_OF_COMPARISON, step.step)
        try:
            found = self._measure_and_resync(tag, in_minority=differing != most_differ)
            step.distance, step.resynced = found.distance, found.resynced
        except TarponError as error:
            step.detail = f"the models differ, and could not be compared: {error}"

    def _measure_and_resync(self, tag: int, in_minority: bool) -> replicas.Comparison:
        deadline = self._deadline
        apart = replicas.distance(
            self.communicator, list(self._model.parameters()), tag, deadline
        )
        resynced = apart > self._largest_distance
        if resynced:
            is_bad = not replicas.is_finite(self._model)
            self._resync_from_best((is_bad, in_minority), tag)
        return replicas.Comparison(equal=False, distance=apart, resynced=resynced)

    def _resync_from_best(self, flaws: Tuple[bool, ...], tag: int) -> None:
        """All ranks take the state of the lowest one with the fewest flaws; earlier ones weigh more."""
        key = 0
        for flaw in flaws:
            key = 2 * key + int(flaw)
        best = replicas.agree_on_number(
            self.communicator, key * MAX_RANKS + self.communicator.rank, lib.MIN, tag, self._deadline
        )
        replicas.resync(
            self.communicator,
            self._model,
            self._optimizer,
            best % MAX_RANKS,
            tag,
            self._deadline,
        )

    def _rejoin(self, step: StepReport) -> None:
        """All ranks make a new communicator, and take the state of one that was not out."""
        for attempt in range(_REJOIN_TRIES):
            try:
                self.communicator = self.communicator.rejoin(self._rejoin_deadline)
                break
            except TarponError:
                if attempt == _REJOIN_TRIES - 1:
                    raise
        newest = replicas.agree_on_number(
            self.communicator, step.step, lib.MAX, _TAG_OF_REJOIN, self._deadline
        )
        self._resync_from_best((self._out, step.step < newest), _TAG_OF_REJOIN)
        self._next_step = newest + 1
        step.resynced = True
        step.detail = f"rejoined: {self.communicator.world_size} ranks"
        self._out = False

    @staticmethod
    def _fresh_tag(base: int, number: int) -> int:
        return base + number % _STEPS_OF_TAGS


def _no_type(tensor: torch.Tensor) -> TarponError:
    known = ", ".join(str(each).replace("torch.", "") for each in TYPES)
    return TarponError(f"gradients of {tensor.dtype}: Tarpon reduces {known}")


def bounded_hook(
    model: Any,
    optimizer: Optional[torch.optim.Optimizer] = None,
    *,
    loss_target: Optional[float] = None,
    bound: Optional[float] = None,
    bounded_min: Optional[int] = None,
    deadline: float = 10.0,
    rejoin_deadline: float = 60.0,
    codec: Optional[bool] = None,
    interface: Optional[str] = None,
    retain_bytes: Optional[int] = None,
    skip_above: Optional[float] = None,
    halt_above: Optional[float] = None,
    compare_every: int = 100,
    largest_distance: float = 1e-3,
    on_report: Optional[Callable[[StepReport], None]] = None,
    log: Optional[str] = None,
    group: Any = None,
) -> BoundedHook:
    """Registers a hook on `model`, a DistributedDataParallel, that averages its gradients by Tarpon.

    All ranks of `group` (the default group) call it, whatever backend that has: the ranks meet
    through its store and open a communicator of their own. Float gradients are averaged within a
    bound, others exactly.

    optimizer         its step() then asks all ranks whether the step is applied, skipped or the
                      last; ranks that were evicted come back and take the state of the others
    loss_target       mean share that calls may lose to end early (0.001, or TARPON_LOSS_TARGET)
    bound             seconds of one call; None: learnt
    bounded_min       buckets of up to so many bytes stay exact (1 MiB, or TARPON_BOUNDED_MIN): their
                      usual time is so short that a moment's pause would cost most of their data
    deadline          seconds after which a call gives up
    rejoin_deadline   seconds that all ranks wait for those that come back
    codec             None: by the loss; True, False: float32 travels coded, or not
    retain_bytes      memory of results kept for late ranks (64 MiB); a rank that is so late that
                      more would be needed is evicted
    skip_above        all ranks skip a step of which the network lost more than this share at one of
                      them (0.05, or 20 loss targets if that is more); above 0. Late ranks do not
                      count
    halt_above        the third step in a row that lost more than this share is a HaltError (0.5)
    compare_every     steps between two comparisons of the parameters of all ranks; 0: never
    largest_distance  relative distance of a rank's parameters from the mean above which all ranks
                      take those of one rank, of the majority
    on_report         gets the report of each step, on the thread that trains
    log               a file to which the reports are added, a line of JSON each

    Errors: TarponError.
    """
    group = group if group is not None else dist.distributed_c10d._get_default_group()
    communicator = Communicator.connect(
        _own_store(group),
        dist.get_rank(group),
        dist.get_world_size(group),
        _CONNECT_SECONDS,
        loss_target=loss_target,
        interface=interface,
        codec=codec,
        retain_bytes=retain_bytes,
        skip_above=skip_above,
        halt_above=halt_above,
    )
    hook = BoundedHook(
        model.module if hasattr(model, "module") else model,
        communicator,
        optimizer,
        bound,
        Settings.from_environment().bounded_min if bounded_min is None else bounded_min,
        deadline,
        rejoin_deadline,
        compare_every if optimizer is not None else 0,
        largest_distance,
        on_report,
        log,
    )
    model.register_comm_hook(None, _named(hook))
    return hook


_CONNECT_SECONDS = 60.0


def _own_store(group: Any) -> Any:
    """Keys of this hook alone, in the store of the group; None for a group of MPI, which has none.

    Alike on all ranks of the group, since they make their hooks in the same order.
    """
    c10d = dist.distributed_c10d
    world = getattr(c10d, "_world", c10d)  # since torch 2.0 its tables lie there
    stores = getattr(world, "pg_map", None) or c10d._pg_map
    names = getattr(world, "pg_names", None) or c10d._pg_names
    store = stores[group][1]
    if store is None:
        return None
    name = f"tarpon-hook-{names[group]}"
    made = store.add(f"{name}-of-{dist.get_rank(group)}", 1)
    return dist.PrefixStore(f"{name}-{made}", store)


def _named(hook: BoundedHook) -> Callable[[Any, "dist.GradBucket"], Any]:
    """A function: DDP asks hooks for their names and annotations."""

    def bounded(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return hook(state, bucket)

    return bounded
