"""Averages the gradients of a step within a bound, and applies or skips the step as all ranks decide.
ddp.py registers the hook."""

import datetime
import re
import threading
import time
import warnings
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist

from . import library as lib
from . import replicas, survivors
from .blocks import can_carry
from .calls import Call, Outcome, Report
from .communicator import BOUNDED_TYPES, Communicator, Verdict
from .follower import Follower
from .hook_job import SHORTEST_CLOSE, TAG_OF_MEETING
from .hook_options import HookOptions
from .library import TarponError
from .loss_watch import LOGGER
from .optimizer_step import ReplacedStep
from .owners import Owners
from .replica_check import ReplicaCheck
from .step_report import AloneError, HaltError, StepReport
from .step_reports import StepReports
from .waits import Wait, interruptible

_REJOIN_TRIES = 3

_LONG_WAIT = 0.3  # of the deadline: a report is waited for half of it, unless its rank is known as late

# Of Communicator.left_out.
_HALF = "without majority"  # the other half may go on, too
_LEFT = "left the communicator"


class BoundedHook:
    """A communication hook: averages gradients within a bound. Made by bounded_hook().

    Without an optimizer it bounds the gradients, and reports. With one, each optimizer.step() first
    asks all ranks what becomes of the step: it is applied on all ranks or on none.

    One thread at a time trains. Steps are counted by backward passes, which are alike on all ranks.
    With an optimizer, backward passes without a step() between them are judged together by the next.
    """

    def __init__(
        self,
        ddp: Any,
        communicator: Communicator,
        group: Any,
        optimizer: Optional[torch.optim.Optimizer],
        state: Sequence[Any],
        options: HookOptions,
        reports: StepReports,
    ):
        """`options` has a value for each that bounded_hook() may leave to the environment."""
        self.communicator = communicator
        self.reports = reports.kept
        self._reports = reports
        self._ddp = weakref.ref(ddp)  # which owns this hook
        self._group = group  # for buckets that Tarpon does not carry
        self._optimizer = optimizer
        self._options = options
        self._deadline: float = options.deadline  # type: ignore[assignment]
        self._check = ReplicaCheck(
            ddp.module,
            [ddp.module, *([optimizer] if optimizer is not None else []), *state],
            options,
            options.compare_every if optimizer is not None else 0,
        )
        self._loss_target = options.target_of(0)  # as the communicator has it
        self._lock = threading.Lock()  # of the open report, which the communicator's thread fills
        self._open: Optional[StepReport] = None  # from the first bucket of a step on
        self._next_step = 0
        self._follower = Follower()
        self._late: Set[int] = set()  # in this step, by their present numbers
        self._late_self = False  # peers have ended a call of this step without this rank
        self._owners = Owners(communicator.world_size)
        # Of a backward pass: over when its last bucket has begun and all of its calls have ended.
        self._pass = Outcome(1)
        self._own = communicator.rank  # its first number
        # First numbers of ranks, by their present ones.
        self._ranks: List[int] = list(range(communicator.world_size))
        self._out = False  # this rank is evicted, or got no verdict
        self._warned = False  # of a rank that does not report
        self._told_obstacle = False
        self._told_unheard = False
        self._finished = False
        self._rejoining: Optional[Wait[Communicator]] = None  # Ctrl-C may interrupt it
        self._replaced: Optional[ReplacedStep] = None

    # -- gradients

    def __call__(self, state: Any, bucket: "dist.GradBucket") -> "torch.futures.Future[Any]":
        if bucket.index() == 0 or self._open is None:
            self._begin_step()
            self._pass = Outcome(1)
        self._follower.note(bucket)
        tensor, is_last = bucket.buffer(), bucket.is_last()
        calls = []
        if not can_carry(tensor):
            future = self._average_in_group(bucket)
        else:
            future = self._pass.future_of(tensor)
            if not self._out:
                self._pass.expect_another()
                calls.append(self._call(bucket.index(), tensor, self._pass.end))
        # DDP waits for no bucket before the last one has begun. So the ends of all are told together.
        if calls or is_last:
            self.communicator.begin(calls, more=not is_last)
        if is_last:
            self._pass.end(None)
            self._check.prepare(self._next_step - 1)  # the open step
        return future

    def _call(
        self,
        tag: int,
        tensor: torch.Tensor,
        ended: Callable[[Optional[Exception]], Any],
        **options: Any,
    ) -> Call:
        """The call of a bucket of the open step. `ended` gets its error."""
        step = self._open
        assert step is not None

        def take(call: Call) -> None:
            try:
                error = self._take(step, call)
            except Exception as own:
                error = own
            ended(error)

        bounded = tensor.dtype in BOUNDED_TYPES
        return self.communicator.prepare(
            tensor,
            lib.AVG,
            tag=tag,
            deadline=self._deadline,
            bounded=bounded,
            bound=self._options.bound if bounded else None,
            shares=self._owners.shares if bounded else None,
            ended=take,
            **options,
        )

    def _average_in_group(self, bucket: "dist.GradBucket") -> "torch.futures.Future[Any]":
        # Imported only when needed: with Python 3.13 the import prints a warning about PyTorch's own code.
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        return allreduce_hook(self._group, bucket)

    def _begin_step(self) -> None:
        if self._finished:
            raise TarponError(
                "finish() has ended this hook: to train on, make a new DistributedDataParallel"
            )
        step = self._open
        if step is None or self._optimizer is None:
            self._finish_step()
            self._open = StepReport(step=self._next_step)
            self._late.clear()
            self._late_self = False
        else:
            if self._late_self:  # the others may have changed the owners
                self._take_missed_verdict(step)
            step.step = self._next_step
            step.nonfinite = False  # what remains of it is in the gradients to come
        self._set_loss_target()
        self._next_step += 1
        self._follower.pass_begins()

    def _set_loss_target(self) -> None:
        target = self._options.target_of(self._next_step)
        if target is None or target == self._loss_target or self._out:
            return
        self.communicator.set_loss_target(target)
        self._loss_target = target

    def _take(self, step: StepReport, call: Call) -> Optional[Exception]:
        report = call.report
        if report is None:
            return call.error
        if not report.has_result:
            is_evicted = report.evicted and self.communicator.rank in report.blamed
            # Without an answer until the deadline: the others may wait in rejoin() for this rank.
            is_alone = report.bounded and report.status == "peer_late"
            if (is_evicted or is_alone) and self._optimizer is not None:
                # The step ends with the own gradients; then this rank comes back.
                self._out = True
                return None
            return call.error
        # Calls that are not bounded do not look for it.
        bucket = call.output
        assert bucket is not None
        is_judged = report.bounded or not bucket.dtype.is_floating_point
        finite = is_judged or replicas.is_finite(bucket.memory)
        with self._lock:
            late_ranks = [self._ranks[rank] for rank in report.late_ranks]
            void_shards = [self._ranks[rank] for rank in report.void_shards]
            step.add(report, bucket.count * bucket.element_size, late_ranks, void_shards)
            self._late.update(report.late_ranks)
            self._late_self |= report.status == "late_self"
            contributed = step.followed and report.status != "late_self"
            if self._optimizer is not None and (contributed or self._lacks_result(report)):
                self._out = True
            step.nonfinite |= not finite
        return call.error

    def _lacks_result(self, report: Report) -> bool:
        """Whether this rank came late, and could fetch nothing of the others' result."""
        return report.status == "late_self" and report.lost_fraction >= 1

    # -- a rank that is behind

    @property
    def behind(self) -> int:
        """Steps of which the other ranks have averaged all gradients, and this rank none. Above 0 after
        a pause of this rank: follow() then makes such a step. 0 where it cannot: without an optimizer,
        between a backward pass and its step(), and where follow() names an obstacle."""
        if self._out or self._finished or self._open is not None:
            return 0
        steps = self._follower.behind(self.communicator)
        obstacle = self._obstacle() if steps > 0 else None
        if obstacle is None:
            return steps
        if not self._told_obstacle:
            self._told_obstacle = True
            LOGGER.warning(
                "tarpon: rank %d is %d steps behind, and computes them: %s", self._own, steps, obstacle
            )
        return 0

    def _obstacle(self) -> Optional[str]:
        """Why this rank can follow no step."""
        if self._optimizer is None:
            return "follow() needs the argument optimizer of bounded_hook()"
        return self._follower.obstacle(self._ddp())

    def follow(self, step: Optional[Callable[[], Any]] = None) -> None:
        """Makes one step that the other ranks have made without this one: it takes their gradients, in
        place of a forward and a backward pass of its own, and their decision.

        `step`: what the loop does after backward(), where that is more than optimizer.step(): clipping, a
        scaler, a scheduler. The batch of the step is the loop's to leave out. Gradients are None
        afterwards. A rank that is so far behind that the results are no longer kept comes back by this
        step, as by any other: `hook.step` then jumps. Errors: TarponError, where `behind` is 0, with the
        obstacle if there is one.
        """
        if self.behind == 0:
            obstacle = self._obstacle()
            raise TarponError(
                f"follow(): {obstacle}"
                if obstacle is not None
                else "follow(): this rank is not behind: make the step with a forward and a backward pass"
            )
        assert self._optimizer is not None
        self._begin_step()
        try:
            self._follow_gradients()
        except BaseException:  # a signal's handler may raise
            self._out = True  # the others go on, and this rank has no gradients
            raise
        (step or self._optimizer.step)()
        self._follower.drop_gradients()

    def _follow_gradients(self) -> None:
        step = self._open
        assert step is not None
        step.followed = True
        buckets = self._follower.empty_buckets()
        outcome = Outcome(len(buckets))
        calls = [
            self._call(tag, bucket, outcome.end, follows=True)
            for tag, bucket in enumerate(buckets)
        ]
        self.communicator.begin(calls)
        outcome.wait()
        self._follower.set_gradients(buckets)

    # -- steps

    @property
    def step(self) -> int:
        """Steps that have begun, alike on all ranks. It jumps where this rank has come back."""
        return self._next_step

    @property
    def ranks(self) -> Tuple[int, ...]:
        """The first numbers of the ranks that still take part, in the order of their present ones."""
        return tuple(self._ranks)

    def state_dict(self) -> Dict[str, int]:
        """For a checkpoint: a job that is started again counts its steps on."""
        return {"step": self._next_step}

    def load_state_dict(self, state: Dict[str, int]) -> None:
        """All ranks call it with the same state, before their first step."""
        self._next_step = int(state["step"])

    def finish(self) -> None:
        """Reports the last step, and closes the communicator. The optimizer is as before."""
        try:
            self._finish_step()
        finally:
            self._finished = True
            self.detach()
            if self._rejoining is not None:
                self._rejoining.give_up()
            # Late ranks fetch results for as long as a call may take.
            seconds = max(self._deadline, SHORTEST_CLOSE)
            interruptible(lambda: self.communicator.close(seconds))
            self._reports.close()

    def attach(self) -> None:
        """Puts _step() in place of the optimizer's step()."""
        if self._optimizer is not None:
            self._replaced = ReplacedStep(self._optimizer, self._step)

    def detach(self) -> None:
        """The optimizer is as before."""
        if self._replaced is not None:
            self._replaced.restore()

    def _step(self, closure: Optional[Callable[[], Any]] = None, **kwargs: Any) -> Any:
        """In place of the optimizer's step(), which gets `kwargs`."""
        replaced = self._replaced
        assert replaced is not None
        loss = closure() if closure is not None else None
        step = self._open
        if step is None:  # no bucket since the last one: not a step of ours
            replaced.apply(**kwargs)
            return loss
        verdict = None
        try:
            if not self._out:
                verdict = self._end_step(step, lambda: replaced.apply(**kwargs))
            if self._out:
                step.decision = "skip"
                self._rejoin(step)
        except BaseException:  # of Tarpon, of the optimizer, or of a signal's handler
            self._out = True  # the others go on, and this rank does not know how
            raise
        self._finish_step()
        if verdict is not None and verdict.decision == "halt":
            raise HaltError(verdict)
        return loss

    def _end_step(self, step: StepReport, apply: Callable[[], Any]) -> Optional[Verdict]:
        """The verdict of all ranks; None where this rank is out."""
        digest = self._check.digest(step.step)
        communicator = self.communicator
        with self._lock:
            late = set(self._late)
        began = time.monotonic()
        verdict = interruptible(
            lambda: communicator.agree(
                step.step,
                step.lost_in_network,
                step.nonfinite,
                self._deadline,
                late_ranks=late,
                digest=digest,
            )
        )
        step.decision, step.detail = verdict.decision, verdict.detail
        if verdict.decision == "halt":
            # Without reporters it is evicted, or so far behind that the verdict is forgotten; or the rank
            # that decides stands still.
            self._out = not verdict.reporters
            return None if self._out else verdict
        self._owners.take(verdict)
        self._warn_if_unheard(step, verdict)
        self._note_unreported(step, verdict, time.monotonic() - began)
        self._check.judge(self.communicator, step, verdict)
        if verdict.decision == "apply":
            apply()
        if verdict.rejoin or verdict.gone:
            self._rejoin(step)  # a rank that comes back takes the model after this step
        return verdict

    def _take_missed_verdict(self, step: StepReport) -> None:
        """Asks for the verdict on a step whose step() this rank left out. It was late for a call of that
        step, so the others need not have waited for it."""
        verdict = self.communicator.agree(
            step.step, step.lost_in_network, step.nonfinite, self._deadline
        )
        self._late_self = False
        if verdict.reporters:
            self._owners.take(verdict)
        else:
            self._out = True

    def _warn_if_unheard(self, step: StepReport, verdict: Verdict) -> None:
        """Warns, once, where others had nothing of this rank, and it was in time as far as it knows."""
        own = self.communicator.rank
        if own not in verdict.late or self._late_self or step.followed or self._told_unheard:
            return
        self._told_unheard = True
        warnings.warn(
            f"step {step.step}: other ranks had no gradients of rank {self._own}, which was in time; where this "
            "goes on, UDP between the ranks is broken: try it with `tarpon check`",
            stacklevel=5,
        )

    def _note_unreported(self, step: StepReport, verdict: Verdict, waited: float) -> None:
        """Warns, once, of a rank that was waited for though its gradients had come."""
        missing = set(range(self.communicator.world_size)) - set(verdict.reporters)
        step.unreported = tuple(self._ranks[rank] for rank in sorted(missing))
        silent = missing - self._late - set(verdict.gone) - set(verdict.rejoin)
        silent.discard(self.communicator.rank)
        if silent and waited > _LONG_WAIT * self._deadline and not self._warned:
            self._warned = True
            names = ", ".join(str(self._ranks[rank]) for rank in sorted(silent))
            warnings.warn(
                f"step {step.step} was decided without rank {names}, whose gradients came: where it left out "
                "optimizer.step(), its model lacks this step until the models are compared; call step() on "
                "all ranks or on none (a GradScaler decides by the gradients of its own rank)",
                stacklevel=5,
            )

    def _finish_step(self) -> None:
        report, self._open = self._open, None
        if report is None:
            return
        report.rank, report.time = self._own, time.time()
        self._follower.step_ends()
        self._reports.take(report, None if self._options.bound is not None else self._loss_target)

    def compare(self, largest_distance: Optional[float] = None) -> replicas.Comparison:
        """Compares the parameters of all ranks, which all call it; resyncs those too far apart.

        For the moment before a checkpoint. `largest_distance`: in place of that of bounded_hook();
        with 0 all ranks have the same bits afterwards. Exact: it waits for every rank. Errors:
        TarponError.
        """
        return self._check.compare(self.communicator, self._next_step, largest_distance)

    # -- ranks that come back, or are left behind

    def renew_group(
        self, timeout: datetime.timedelta = dist.distributed_c10d.default_pg_timeout
    ) -> Any:
        """Makes a new default process group of the ranks that are left, `ranks`, which all call it.

        For dist.all_reduce() and its like, after ranks have been left behind. All process groups of
        this process end, and dist.get_rank() is the place in `ranks` from then on. The hook has to
        be on the default group. Returns the group. Errors: TarponError.
        """
        if self._group is not dist.distributed_c10d._get_default_group():
            raise TarponError(
                "renew_group() replaces the default process group, and this hook is on another one: give "
                "DistributedDataParallel no process_group, and bounded_hook() no group"
            )
        self._group = survivors.replace_default_group(
            self.communicator, self._options.interface, self._options.rejoin_deadline, timeout
        )
        ddp = self._ddp()
        if ddp is not None:
            ddp.process_group = self._group
        return self._group

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
        old = self.communicator
        before = old.world_size
        if self._rejoining is None:
            self._rejoining = Wait(
                lambda: old.rejoin(self._options.rejoin_deadline),
                discard=lambda fresh: fresh.close(seconds=0),
            )
        try:
            self.communicator = self._rejoining.value()
        finally:
            if self._rejoining.has_failed():
                self._rejoining = None
        self._rejoining = None
        present = self.communicator.world_size
        left_out = self.communicator.left_out
        if len(self._ranks) == before:  # else an earlier try ended before it knew
            left_out = re.sub(
                r"\brank (\d+)\b", lambda rank: f"rank {self._ranks[int(rank[1])]}", left_out
            )
        # Such a rank may have missed what the others did, who have all left since.
        is_last = 2 * present <= before and _LEFT in left_out
        is_alone = present == 1 and self._out
        if left_out and (_HALF in left_out or is_last or is_alone):
            raise AloneError(step.step, present, left_out)
        numbers = torch.full((present,), -1, dtype=torch.int64, device="cpu")
        numbers[self.communicator.rank] = self._own
        self.communicator.allreduce_now(
            numbers, lib.MAX, tag=TAG_OF_MEETING, deadline=self._deadline
        )
        self._ranks = numbers.tolist()
        self._owners = Owners(self.communicator.world_size)
        self._loss_target = self._options.target_of(0)  # of the new communicator
        newest = replicas.agree_on_number(
            self.communicator, step.step, lib.MAX, TAG_OF_MEETING, self._deadline
        )
        self._check.resync_from_best(
            self.communicator, (self._out, step.step < newest), TAG_OF_MEETING
        )
        self._check.restart()
        self._next_step = newest + 1
        step.resynced = True
        step.detail = f"rejoined: {present} ranks"
        if left_out:
            step.detail += f"; {left_out}"
        self._out = False
