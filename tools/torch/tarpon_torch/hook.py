"""Averages the gradients of a step within a bound, and applies or skips the step as all ranks decide.
ddp.py registers the hook."""

import collections
import re
import threading
import types
from typing import Any, Callable, Deque, List, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist

from . import library as lib
from . import replicas
from .calls import MAX_RANKS, Call, Outcome, Report
from .communicator import BOUNDED_TYPES, Communicator, Verdict, can_carry
from .library import TarponError
from .step_report import AloneError, HaltError, StepReport

# Buckets have the tags from 0 on. Each attempt to compare models, or to resync them, has a tag of its
# own, by the step: a rank that gave an attempt up has made fewer calls. A rejoin has a communicator
# of its own.
_TAG_OF_COMPARISON = 1 << 30
_TAG_OF_REJOIN = 1 << 31
_STEPS_OF_TAGS = 1 << 20

_KEPT_REPORTS = 1000
_REJOIN_TRIES = 3

_SHORTEST_CLOSE = 5.0  # seconds

# Of Communicator.left_out.
_HALF = "without majority"  # the other half may go on, too
_LEFT = "left the communicator"

# A small bucket's time is so short that a bound learnt from it would cut off a rank that pauses for
# a moment. It has this share of the deadline instead.
_SMALL_BOUND = 0.1


class BoundedHook:
    """A communication hook: averages gradients within a bound. Made by bounded_hook().

    Without an optimizer it bounds the gradients, and reports. With one, each optimizer.step() first
    asks all ranks what becomes of the step: it is applied on all ranks or on none.

    One thread at a time trains. Steps are counted by backward passes, which are alike on all ranks.
    With an optimizer, backward passes without a step() between them are judged together by the next.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        communicator: Communicator,
        group: Any,
        optimizer: Optional[torch.optim.Optimizer],
        state: Sequence[Any],
        bound: Optional[float],
        bounded_min: int,
        deadline: float,
        rejoin_deadline: float,
        compare_every: int,
        largest_distance: float,
        allow_pickle: bool,
        on_report: Optional[Callable[[StepReport], None]],
        log: Any,
    ):
        self.communicator = communicator
        self.reports: Deque[StepReport] = collections.deque(maxlen=_KEPT_REPORTS)
        self._model = model
        self._group = group  # for buckets that Tarpon does not carry
        self._optimizer = optimizer
        self._parts = [model, *([optimizer] if optimizer is not None else []), *state]
        self._bound = bound
        self._bounded_min = bounded_min
        self._deadline = deadline
        self._rejoin_deadline = rejoin_deadline
        self._compare_every = compare_every
        self._largest_distance = largest_distance
        self._allow_pickle = allow_pickle
        self._on_report = on_report
        self._log = log
        self._lock = threading.Lock()  # of the open report, which the communicator's thread fills
        self._open: Optional[StepReport] = None  # from the first bucket of a step on
        self._next_step = 0
        self._late: Set[int] = set()  # in this step, by their present numbers
        self._own = communicator.rank  # its first number
        # First numbers of ranks, by their present ones.
        self._ranks: List[int] = list(range(communicator.world_size))
        self._judged = -1  # the last step of which this rank asked for the verdict
        self._out = False  # this rank is evicted, or got no verdict
        self._apply: Optional[Callable[..., Any]] = None  # the optimizer's own step()

    # -- gradients

    def __call__(self, state: Any, bucket: "dist.GradBucket") -> "torch.futures.Future[Any]":
        if bucket.index() == 0 or self._open is None:
            self._begin_step()
        tensor = bucket.buffer()
        if not can_carry(tensor):
            return self._average_in_group(bucket)
        outcome = Outcome(1, tensor)
        if self._out:
            outcome.end(None)
            return outcome.future
        step = self._open
        assert step is not None

        def ended(call: Call) -> None:
            try:
                error = self._take(step, call)
            except Exception as own:
                error = own
            outcome.end(error)

        bounded = tensor.dtype in BOUNDED_TYPES
        self.communicator.allreduce(
            tensor,
            lib.AVG,
            tag=bucket.index(),
            deadline=self._deadline,
            bounded=bounded,
            bound=self._bound_of(tensor) if bounded else None,
            ended=ended,
        )
        return outcome.future

    def _average_in_group(self, bucket: "dist.GradBucket") -> "torch.futures.Future[Any]":
        # Imported only when needed: with Python 3.13 the import prints a warning about PyTorch's own code.
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        return allreduce_hook(self._group, bucket)

    def _bound_of(self, tensor: torch.Tensor) -> Optional[float]:
        """Seconds; None: learnt."""
        size = tensor.numel() * tensor.element_size()
        if self._bound is not None or size > self._bounded_min:
            return self._bound
        return self._deadline * _SMALL_BOUND

    def _begin_step(self) -> None:
        step = self._open
        if step is None or self._optimizer is None:
            self._finish_step()
            self._open = StepReport(step=self._next_step)
            self._late.clear()
        else:
            step.step = self._next_step
            step.nonfinite = False  # what remains of it is in the gradients to come
        self._next_step += 1

    def _take(self, step: StepReport, call: Call) -> Optional[Exception]:
        report = call.report
        if report is None:
            return call.error
        if not report.has_result:
            is_own = self.communicator.rank in report.blamed
            if report.evicted and is_own and self._optimizer is not None:
                # The step ends with the own gradients; then this rank comes back.
                self._out = True
                return None
            return call.error
        # Calls that are not bounded do not look for it.
        is_judged = report.bounded or not call.memory.is_floating_point()
        finite = is_judged or replicas.is_finite(call.memory)
        with self._lock:
            late_ranks = [self._ranks[rank] for rank in report.late_ranks]
            step.add(report, call.tensor.numel() * call.tensor.element_size(), late_ranks)
            self._late.update(report.late_ranks)
            if self._optimizer is not None and self._lacks_result(report):
                self._out = True
            step.nonfinite |= not finite
        return call.error

    def _lacks_result(self, report: Report) -> bool:
        """Whether this rank came late, and could fetch nothing of the others' result."""
        fetched_nothing = len(report.void_shards) == self.communicator.world_size
        return report.status == "late_self" and fetched_nothing

    # -- steps

    @property
    def step(self) -> int:
        """Steps that have begun, alike on all ranks. It jumps where this rank has come back."""
        return self._next_step

    def finish(self) -> None:
        """Reports the last step, and closes the communicator. The optimizer is as before."""
        self._finish_step()
        if self._apply is not None:
            self._optimizer.step = self._apply  # type: ignore[union-attr, method-assign]
        # Late ranks fetch results for as long as a call may take.
        self.communicator.close(max(self._deadline, _SHORTEST_CLOSE))
        if self._log is not None:
            self._log.close()

    def attach(self) -> None:
        """Puts _step() in place of the optimizer's step()."""
        optimizer = self._optimizer
        if optimizer is None:
            return
        self._apply = optimizer.step
        # Learning-rate schedulers look for the optimizer behind the method.
        step = lambda _, *args, **kwargs: self._step(*args, **kwargs)  # noqa: E731
        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]

    def _step(self, closure: Optional[Callable[[], Any]] = None, **kwargs: Any) -> Any:
        """In place of the optimizer's step(), which gets `kwargs`."""
        loss = closure() if closure is not None else None
        step = self._open
        if step is None:  # no bucket since the last one: not a step of ours
            self._apply(**kwargs)
            return loss
        if not self._out:
            self._end_step(step, kwargs)
        if self._out:
            step.decision = "skip"
            self._rejoin(step)
            self._finish_step()
        return loss

    def _end_step(self, step: StepReport, kwargs: Any) -> None:
        every = self._compare_every
        compares = every > 0 and step.step // every > self._judged // every
        self._judged = step.step
        verdict = self.communicator.agree(
            step.step,
            step.lost_in_network,
            step.nonfinite,
            self._deadline,
            late_ranks=self._late,
            digest=replicas.digest(self._model.parameters()) if compares else 0,
        )
        step.decision, step.detail = verdict.decision, verdict.detail
        if verdict.decision == "halt" and not verdict.reporters:
            # Evicted, or so far behind that the verdict is forgotten; or the rank that decides
            # stands still.
            self._out = True
            return
        if verdict.decision == "halt":
            self._finish_step()
            raise HaltError(verdict)
        everybody = len(verdict.reporters) == self.communicator.world_size
        if verdict.differing or (compares and everybody):
            step.replicas_equal = not verdict.differing
        if verdict.differing and everybody:
            self._bring_together(step, verdict)
        elif verdict.differing:
            step.detail = "the models differ: measured when all ranks take part in a comparison"
        if verdict.decision == "apply":
            self._apply(**kwargs)
        if verdict.rejoin or verdict.gone:
            self._rejoin(step)  # a rank that comes back takes the model after this step
        self._finish_step()

    def _finish_step(self) -> None:
        report, self._open = self._open, None
        if report is None:
            return
        self.reports.append(report)
        if self._log is not None:
            self._log.write(report.line())
            self._log.flush()
        if self._on_report is not None:
            self._on_report(report)

    # -- replicas

    def compare(self) -> replicas.Comparison:
        """Compares the parameters of all ranks, who all call it; resyncs those too far apart.

        For the moment before a checkpoint. Exact: it waits for every rank. Errors: TarponError.
        """
        tag = self._fresh_tag(_TAG_OF_COMPARISON + _STEPS_OF_TAGS, self._next_step)
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
            is_bad = not all(map(replicas.is_finite, self._model.parameters()))
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
            self._parts,
            best % MAX_RANKS,
            tag,
            self._rejoin_deadline,
            self._allow_pickle,
        )

    def _rejoin(self, step: StepReport) -> None:
        """All ranks make a new communicator, and take the state of one that was not out. Where a
        rank dies meanwhile, they do so again.

        Errors: TarponError, AloneError.
        """
        for attempt in range(_REJOIN_TRIES):
            try:
                return self._meet_again(step)
            except AloneError:
                raise
            except TarponError:
                if attempt == _REJOIN_TRIES - 1:
                    raise

    def _meet_again(self, step: StepReport) -> None:
        before = self.communicator.world_size
        self.communicator = self.communicator.rejoin(self._rejoin_deadline)
        present = self.communicator.world_size
        left_out = re.sub(
            r"\brank (\d+)\b",
            lambda rank: f"rank {self._ranks[int(rank[1])]}",
            self.communicator.left_out,
        )
        # Such a rank may have missed what the others did, who have all left since.
        is_last = 2 * present <= before and _LEFT in left_out
        is_alone = present == 1 and self._out
        if left_out and (_HALF in left_out or is_last or is_alone):
            raise AloneError(step.step, present, left_out)
        numbers = torch.full((present,), -1, dtype=torch.int64, device="cpu")
        numbers[self.communicator.rank] = self._own
        self.communicator.allreduce_now(
            numbers, lib.MAX, tag=_TAG_OF_REJOIN, deadline=self._deadline
        )
        self._ranks = numbers.tolist()
        newest = replicas.agree_on_number(
            self.communicator, step.step, lib.MAX, _TAG_OF_REJOIN, self._deadline
        )
        self._resync_from_best((self._out, step.step < newest), _TAG_OF_REJOIN)
        self._judged = newest
        self._next_step = newest + 1
        step.resynced = True
        step.detail = f"rejoined: {present} ranks"
        if left_out:
            step.detail += f"; {left_out}"
        self._out = False

    @staticmethod
    def _fresh_tag(base: int, number: int) -> int:
        return base + number % _STEPS_OF_TAGS
