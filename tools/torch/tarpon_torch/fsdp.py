"""Bounds the gradients of FullyShardedDataParallel: each rank gets the average of its part within a bound."""

import time
from typing import Any, Callable, Optional, Union

import torch
import torch.distributed as dist

from . import library as lib
from . import replicas
from .calls import Outcome
from .collectives import even_parts
from .communicator import BOUNDED_TYPES, Communicator, Verdict
from .hook_job import CONNECT_SECONDS, SHORTEST_CLOSE, TAG_OF_MEETING, connect_beside
from .hook_options import HookOptions, check_function, open_log
from .library import TarponError
from .optimizer_step import ReplacedStep, check_optimizer
from .step_report import HaltError, StepReport
from .step_reports import StepReports
from .waits import interruptible

_SHARDED = ("FULL_SHARD", "SHARD_GRAD_OP")


class BoundedShards:
    """A communication hook of FullyShardedDataParallel. Made by bounded_fsdp_hook().

    Each optimizer.step() first asks all ranks what becomes of the step: it is applied on all ranks or on none.
    Backward passes without a step() between them are judged together. One thread at a time trains.
    """

    def __init__(
        self,
        communicator: Communicator,
        optimizer: torch.optim.Optimizer,
        options: HookOptions,
        reports: StepReports,
    ):
        """`options` has a value for each that may be left to the environment."""
        self.communicator = communicator
        self.reports = reports.kept
        self._reports = reports
        self._options = options
        self._deadline: float = options.deadline  # type: ignore[assignment]
        self._loss_target = options.target_of(0)  # as the communicator has it
        self._open: Optional[StepReport] = None  # from the first gradient of a step on
        self._next_step = 0
        self._finished = False
        self._failed = False  # this rank does not know what the others do
        self._replaced = ReplacedStep(optimizer, self._step)

    @property
    def step(self) -> int:
        """Steps that have begun, alike on all ranks."""
        return self._next_step

    def __call__(self, state: Any, gradient: torch.Tensor, part: torch.Tensor) -> None:
        """Sets `part` to this rank's part of the average of all ranks' `gradient`, which has equal parts."""
        self._expect_running()
        if self._open is None:
            self._begin_step()
        step = self._open
        assert step is not None
        outcome = Outcome(1)
        bounded = gradient.dtype in BOUNDED_TYPES
        call = self.communicator.collectives.reduce_scatter(
            part,
            [gradient],
            even_parts(gradient, self.communicator.world_size),
            lib.AVG,
            bounded=bounded,
            bound=self._options.bound if bounded else None,
            deadline=self._deadline,
            ended=lambda ended: outcome.end(ended.error),
        )
        try:
            self.communicator.begin([call])
            outcome.wait()
        except BaseException:  # also Ctrl-C: the others may go on
            self._failed = True
            raise
        report = call.report
        assert report is not None
        step.add(report, part.numel() * part.element_size(), report.late_ranks, report.void_shards)
        if not bounded:  # the library does not look for it
            step.nonfinite |= not replicas.is_finite(part)

    def _expect_running(self) -> None:
        if self._finished:
            raise TarponError("finish() has ended this hook: to train on, make a new model")
        if self._failed:
            raise TarponError(
                "a call or a step of this rank failed, and the others may have gone on: start the job again "
                "from a checkpoint"
            )

    def _begin_step(self) -> None:
        self._open = StepReport(step=self._next_step)
        target = self._options.target_of(self._next_step)
        if target is not None and target != self._loss_target:
            self.communicator.set_loss_target(target)
            self._loss_target = target
        self._next_step += 1

    def _step(self, closure: Optional[Callable[[], Any]] = None, **kwargs: Any) -> Any:
        """In place of the optimizer's step(), which gets `kwargs`."""
        loss = closure() if closure is not None else None
        self._expect_running()
        step, self._open = self._open, None
        if step is None:  # no gradient since the last one: not a step of ours
            self._replaced.apply(**kwargs)
            return loss
        try:
            verdict = self._end_step(step, lambda: self._replaced.apply(**kwargs))
        except BaseException:  # of Tarpon, of the optimizer, or of a signal's handler
            self._failed = True
            raise
        if verdict.decision == "halt":
            raise HaltError(verdict)
        return loss

    def _end_step(self, step: StepReport, apply: Callable[[], Any]) -> Verdict:
        """The verdict of all ranks, which is carried out and reported."""
        communicator = self.communicator
        verdict = interruptible(
            lambda: communicator.agree(
                step.step,
                step.lost_in_network,
                step.nonfinite,
                self._deadline,
                late_ranks=step.late_ranks,
            )
        )
        step.decision, step.detail = verdict.decision, verdict.detail
        missing = set(range(communicator.world_size)) - set(verdict.reporters)
        step.unreported = tuple(sorted(missing))
        if verdict.decision == "apply":
            apply()
        step.rank, step.time = communicator.rank, time.time()
        self._reports.take(step, None if self._options.bound is not None else self._loss_target)
        return verdict

    def finish(self) -> None:
        """Closes the communicator. The optimizer is as before."""
        self._finished = True
        self._replaced.restore()
        seconds = max(self._deadline, SHORTEST_CLOSE)
        interruptible(lambda: self.communicator.close(seconds))
        self._reports.close()


def bounded_fsdp_hook(
    model: Any,
    optimizer: torch.optim.Optimizer,
    *,
    loss_target: Union[None, float, Callable[[int], float]] = None,
    bound: Optional[float] = None,
    deadline: Optional[float] = None,
    interface: Optional[str] = None,
    silent_after: Optional[float] = None,
    skip_above: Optional[float] = None,
    halt_above: Optional[float] = None,
    secret_from_store: Optional[bool] = None,
    on_report: Optional[Callable[[StepReport], None]] = None,
    log: Optional[str] = None,
) -> BoundedShards:
    """Registers a hook on `model`, the outermost FullyShardedDataParallel, that averages its gradients by
    Tarpon's bounded reduce_scatter. Parameters are gathered by the model's process group, as before.

    All ranks of that group call it, whatever backend it has. The strategy is FULL_SHARD or SHARD_GRAD_OP.
    Gradients of float32, float16 and bfloat16 are averaged within a bound, others exactly. The options mean
    what they mean for bounded_hook(). If the gradients of a rank do not come in time, the step of the others lacks them. If a rank begins
    after the end of a call, its part may hold its own gradients alone. If a rank dies, the job ends, because
    its part of the model is gone.

    Errors: TarponError, alike on all ranks where one cannot start.
    """
    options = HookOptions(
        loss_target=loss_target,
        bound=bound,
        deadline=deadline,
        rejoin_deadline=CONNECT_SECONDS,
        codec=False,
        interface=interface,
        retain_bytes=None,
        silent_after=silent_after,
        skip_above=skip_above,
        halt_above=halt_above,
        secret_from_store=secret_from_store,
        compare_every=0,
        largest_distance=0,
        allow_pickle=False,
    )
    group = getattr(model, "process_group", None)
    if group is None:
        group = dist.distributed_c10d._get_default_group()
    file, obstacle = None, None
    try:
        options.check()
        check_function("on_report", on_report)
        _check_model(model)
        check_optimizer(optimizer, model)
        file = open_log(log, dist.get_rank(group))
    except TarponError as error:
        obstacle = error
    reports = StepReports(on_report, file)
    communicator = connect_beside(group, options, obstacle, reports)
    options = options.with_defaults(communicator.settings)
    hook = BoundedShards(communicator, optimizer, options, reports)
    try:
        options.expect_alike(communicator, {}, TAG_OF_MEETING, CONNECT_SECONDS)
        model.register_comm_hook(None, hook)
    except BaseException:
        hook.finish()
        raise
    return hook


def _check_model(model: Any) -> None:
    """Errors: TarponError."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if not isinstance(model, FullyShardedDataParallel):
        raise TarponError(
            f"model={type(model).__name__}: give the outermost FullyShardedDataParallel; for "
            "DistributedDataParallel use bounded_hook(), for fully_shard() TARPON_MODE=bounded"
        )
    for unit in FullyShardedDataParallel.fsdp_modules(model):
        strategy = unit.sharding_strategy.name
        if strategy not in _SHARDED:
            raise TarponError(f"sharding_strategy={strategy}: give one of {', '.join(_SHARDED)}")
