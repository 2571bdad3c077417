"""Registers bounded gradients on DistributedDataParallel, beside whatever process group it has."""

import dataclasses
import warnings
from typing import Any, Callable, Optional, Sequence, Union

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import states
from .follower import collectives_of
from .hook import BoundedHook
from .hook_job import CONNECT_SECONDS, TAG_OF_MEETING, connect_beside
from .hook_options import HookOptions, check_function, open_log
from .library import TarponError
from .optimizer_step import check_optimizer
from .step_report import StepReport
from .step_reports import StepReports

# While a rank is behind, the others keep their parts of the steps that it lacks: of at most as many
# steps as the library keeps verdicts of.
_KEPT_STEPS = 64
_LEAST_KEPT_STEPS = 4  # also where these are more than the most bytes
_KEPT_BYTES = 64 << 20, 256 << 20  # at least, at most


def bounded_hook(
    model: Any,
    optimizer: Optional[torch.optim.Optimizer] = None,
    *,
    state: Sequence[Any] = (),
    loss_target: Union[None, float, Callable[[int], float]] = None,
    bound: Optional[float] = None,
    deadline: Optional[float] = None,
    rejoin_deadline: float = 60.0,
    codec: Optional[bool] = None,
    interface: Optional[str] = None,
    retain_bytes: Optional[int] = None,
    silent_after: Optional[float] = None,
    skip_above: Optional[float] = None,
    halt_above: Optional[float] = None,
    secret_from_store: Optional[bool] = None,
    compare_every: int = 100,
    largest_distance: float = 1e-3,
    allow_pickle: bool = False,
    on_report: Optional[Callable[[StepReport], None]] = None,
    log: Optional[str] = None,
    group: Any = None,
) -> BoundedHook:
    """Registers a hook on `model`, a DistributedDataParallel, that averages its gradients by Tarpon.

    All ranks of `group` (the model's own process group) call it, whatever backend that has: the ranks
    meet through its store and open a communicator of their own. Buckets of float32, float16 and bfloat16
    are averaged within a bound, those of other real numbers exactly; the group averages the rest
    (sparse, complex, of other devices than CPU and CUDA).

    optimizer         its step() then asks all ranks whether the step is applied, skipped or the
                      last; ranks that were evicted come back and take the state of the others, and
                      ranks that left, or whose processes are gone, are left out. One that needs a
                      closure (LBFGS), and ZeroRedundancyOptimizer, are refused, and so are several
    state             further objects whose state such a rank takes, by state_dict() and
                      load_state_dict(): schedulers, a scaler. Alike on all ranks
    loss_target       mean share that calls may lose to end early (0.001, or TARPON_LOSS_TARGET); or a
                      function of the step (hook.step) that gives it, the same on all ranks: training
                      may bear more at first than at its end
    bound             seconds of one call (TARPON_BOUND); else learnt
    deadline          seconds after which a call gives up (10, or TARPON_DEADLINE)
    rejoin_deadline   seconds that all ranks wait for those that come back
    codec             None: by the loss; True, False: float32 travels coded, or not
    retain_bytes      memory of results kept for late ranks (this rank's part of 64 steps, from 64 to
                      256 MiB, and four steps at least); a rank that is so late that more would be
                      needed comes back at the next step
    silent_after      seconds without a packet of a rank after which the others go on without it, until
                      it is heard again (0.3)
    skip_above        all ranks skip a step of which the network lost more than this share at one of
                      them (0.05, or 20 loss targets if that is more); above 0. Late ranks do not
                      count
    halt_above        the third step in a row that lost more than this share is a HaltError (0.5)
    secret_from_store True: the ranks take a secret from the group's store, unless a variable names
                      one: connections are TLS, packets carry tags. Only for a store that no stranger
                      can reach or read (TARPON_SECRET_FROM_STORE)
    compare_every     steps in which all parameters of all ranks are compared once, a part at each
                      step; 0: never
    largest_distance  relative distance of a rank's parameters from the mean above which all ranks
                      take those of one rank, of the majority
    allow_pickle      permits the state that ranks take from each other to hold objects of any class.
                      To load these may run code, and nothing proves which rank has sent the bytes: give
                      True only where no stranger can send packets to the ranks. False permits tensors,
                      numbers, texts and containers
    on_report         gets the report of each step; without an optimizer, when the next one begins
    log               a file to which the reports are added, a line of JSON each; all ranks may have the
                      same one, since each line has its rank and time. "{rank}" in the name: one a rank

    hook.reports keeps the latest 1,000. A rank keeps its first number in reports. The logger "tarpon"
    of Python's logging gets each report (DEBUG), steps that were not applied (INFO), and, at most once
    a minute, a warning where more than 1 % of the steps were skipped or more than twice the target is
    lost. Warns where DistributedDataParallel has collectives of its own in each step, and where the optimizer lacks
    parameters of the model. Errors: TarponError, alike on all ranks where one cannot start.
    """
    options = HookOptions(
        loss_target=loss_target,
        bound=bound,
        deadline=deadline,
        rejoin_deadline=rejoin_deadline,
        codec=codec,
        interface=interface,
        retain_bytes=retain_bytes,
        silent_after=silent_after,
        skip_above=skip_above,
        halt_above=halt_above,
        secret_from_store=secret_from_store,
        compare_every=compare_every,
        largest_distance=largest_distance,
        allow_pickle=allow_pickle,
    )
    # A model may train on a part of the ranks: its gradients are averaged over that group alone.
    own = getattr(getattr(model, "_orig_mod", model), "process_group", None)
    if group is None:
        group = own if own is not None else dist.distributed_c10d._get_default_group()
    file, obstacle = None, None
    try:
        options.check()
        check_function("on_report", on_report)
        ddp = _checked_model(model)
        state = _checked_state(ddp, optimizer, state, allow_pickle)
        file = open_log(log, dist.get_rank(group))
        if options.retain_bytes is None:
            options = dataclasses.replace(options, retain_bytes=_kept_bytes(ddp, group))
    except TarponError as error:
        obstacle = error
    reports = StepReports(on_report, file)
    communicator = connect_beside(group, options, obstacle, reports)
    options = options.with_defaults(communicator.settings)
    hook = BoundedHook(ddp, communicator, group, optimizer, state, options, reports)
    given = {"optimizer (1: given)": float(optimizer is not None), "len(state)": float(len(state))}
    try:
        options.expect_alike(communicator, given, TAG_OF_MEETING, CONNECT_SECONDS)
        hook.attach()  # first: with the hook alone this rank would apply steps that others skip
        ddp.register_comm_hook(None, _named(hook))
    except Exception:
        hook.finish()  # serves the others, who get the same error
        raise
    except BaseException:
        hook.detach()
        communicator.close(seconds=0)
        raise
    return hook


def _kept_bytes(ddp: DistributedDataParallel, group: Any) -> int:
    """So that a rank which has stood still finds the results that it lacks."""
    step = sum(one.numel() * one.element_size() for one in ddp.parameters() if one.requires_grad)
    part = -(-step // max(1, dist.get_world_size(group) - 1))  # the late rank owns nothing
    least, most = _KEPT_BYTES
    return max(least, min(_KEPT_STEPS * part, most), _LEAST_KEPT_STEPS * part)


def _checked_model(model: Any) -> DistributedDataParallel:
    """`model`, or what torch.compile() has wrapped. Errors: TarponError."""
    ddp = getattr(model, "_orig_mod", model)
    if not isinstance(ddp, DistributedDataParallel):
        raise TarponError(
            f"model={type(model).__name__}: give the DistributedDataParallel(model) that trains"
        )
    _warn_of_collectives(ddp)
    return ddp


def _checked_state(
    ddp: DistributedDataParallel, optimizer: Any, state: Any, allow_pickle: bool
) -> Sequence[Any]:
    """Errors: TarponError."""
    if hasattr(state, "state_dict") or not isinstance(state, (list, tuple)):
        raise TarponError(f"state={type(state).__name__}: give a list: state=[scheduler]")
    states.check("model", ddp.module, allow_pickle)
    if optimizer is not None:
        check_optimizer(optimizer, ddp.module)
        states.check("optimizer", optimizer, allow_pickle)
    for number, part in enumerate(state):
        states.check(f"state[{number}]", part, allow_pickle)
    return state


def _warn_of_collectives(model: Any) -> None:
    """Of DistributedDataParallel's own, in which a rank that stands still holds up all others."""
    culprits = collectives_of(model)
    if culprits:
        warnings.warn(
            f"{culprits}: each step has a collective of the process group, which no "
            "bound ends, and which fails where a rank dies; give False to DistributedDataParallel",
            stacklevel=4,
        )


def _named(hook: BoundedHook) -> Callable[[Any, "dist.GradBucket"], Any]:
    """A function: DDP asks hooks for their names and annotations."""

    def bounded(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return hook(state, bucket)

    return bounded
