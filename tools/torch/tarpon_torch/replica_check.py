"""When the ranks compare their models, and what becomes of models that differ."""

import itertools
import math
from typing import Any, List, Optional, Sequence, Tuple

import torch

from . import library as lib
from . import replicas
from .calls import MAX_RANKS
from .communicator import Communicator, Verdict
from .hook_options import HookOptions
from .library import TarponError
from .step_report import StepReport

# Each attempt to compare models has a tag of its own, by the step: a rank that gave an attempt up has
# made fewer calls. Buckets have the tags from 0 on.
_TAG_OF_STEPS = 1 << 30
_STEPS_OF_TAGS = 1 << 20
_TAG_OF_USERS = _TAG_OF_STEPS + _STEPS_OF_TAGS

_LEAST_PAUSE = 11  # steps between two measurements


def pause_of(parts: int) -> int:
    """Steps from one measurement to the next, so that all parts have their turn while models drift."""
    return next(n for n in itertools.count(min(_LEAST_PAUSE, parts)) if math.gcd(n, parts) == 1)


class ReplicaCheck:
    """One rank's part. `every`: steps in which all parameters are compared once; 0: never.

    A rank tells the digest of a part of its parameters with its report of a step, another part at each
    step. So a comparison costs a step next to nothing, and a rank that left out a step() is found at
    the next one. Digests that differ say nothing about how far the models are apart. That is measured
    for the part: when digests differ at first, and then not more often than every ten steps or so.
    Only where the part is too far apart are whole models measured, and exchanged.
    """

    def __init__(
        self, model: torch.nn.Module, parts: Sequence[Any], options: HookOptions, every: int
    ):
        self._model = model
        self._parts = parts  # what a rank takes of another one
        self._options = options
        self._deadline: float = options.deadline  # type: ignore[assignment]
        self._every = every
        self._measures_from = 0  # step; alike on all ranks, since verdicts alone change it
        self._digest = (-1, 0)  # step, and what this rank tells at it

    def prepare(self, step: int) -> None:
        """Computes what this rank tells at `step`, while its gradients travel."""
        if self._every > 0:
            self._digest = (step, replicas.digest(self._compared_at(step)))

    def _compared_at(self, step: int) -> List[torch.Tensor]:
        parameters = list(self._model.parameters())
        return replicas.part(parameters, step, replicas.parts(parameters, self._every))

    def digest(self, step: int) -> int:
        """What this rank tells at `step`; 0: nothing. The step is not applied yet."""
        if self._digest[0] != step:
            self.prepare(step)
        return self._digest[1]

    def restart(self) -> None:
        """All ranks call it when their models have become alike at the same step."""
        self._measures_from = 0

    def judge(self, communicator: Communicator, step: StepReport, verdict: Verdict) -> None:
        """Says in `step` whether the parts are equal, if all ranks have told their digests of it."""
        if self._every == 0 or step.unreported:
            return
        step.replicas_equal = not verdict.differing
        if verdict.differing and step.step >= self._measures_from:
            count = replicas.parts(list(self._model.parameters()), self._every)
            self._measures_from = step.step + pause_of(count)
            self._measure(communicator, step, verdict)

    def compare(
        self, communicator: Communicator, step: int, largest_distance: Optional[float] = None
    ) -> replicas.Comparison:
        """All ranks call it, after as many steps. Errors: TarponError."""
        if largest_distance is None:
            largest_distance = self._options.largest_distance
        tag = _TAG_OF_USERS + step % _STEPS_OF_TAGS
        return self._compare(communicator, tag, largest_distance, in_minority=False)

    def _measure(self, communicator: Communicator, step: StepReport, verdict: Verdict) -> None:
        """Says in `step` how far the part is apart; where that is too far, how far the models are, which
        then become one.

        A rank that stands still meanwhile costs the deadline.
        """
        tag = _TAG_OF_STEPS + step.step % _STEPS_OF_TAGS
        largest = self._options.largest_distance
        try:
            step.distance = replicas.distance(
                communicator, self._compared_at(step.step), tag, self._deadline
            )
            if step.distance <= largest and largest > 0:
                return
            differing = communicator.rank in verdict.differing
            most_differ = 2 * len(verdict.differing) > communicator.world_size
            found = self._compare(communicator, tag, largest, differing != most_differ)
        except TarponError as error:
            step.detail = f"the models could not be compared: {error}"
            return
        step.replicas_equal = found.equal
        step.distance, step.resynced = found.distance, found.resynced

    def _compare(
        self, communicator: Communicator, tag: int, largest_distance: float, in_minority: bool
    ) -> replicas.Comparison:
        parameters = list(self._model.parameters())
        if replicas.are_equal(communicator, parameters, tag, self._deadline):
            return replicas.Comparison(equal=True, distance=0.0, resynced=False)
        apart = replicas.distance(communicator, parameters, tag, self._deadline)
        # That of float64 is measured in float32, and may be 0 though bits differ.
        resynced = apart > largest_distance or largest_distance == 0
        if resynced:
            is_bad = not all(map(replicas.is_finite, parameters))
            self.resync_from_best(communicator, (is_bad, in_minority), tag)
        return replicas.Comparison(equal=False, distance=apart, resynced=resynced)

    def resync_from_best(
        self, communicator: Communicator, flaws: Tuple[bool, ...], tag: int
    ) -> None:
        """All ranks take the state of the lowest one with the fewest flaws; earlier ones weigh more."""
        key = 0
        for flaw in flaws:
            key = 2 * key + int(flaw)
        best = replicas.agree_on_number(
            communicator, key * MAX_RANKS + communicator.rank, lib.MIN, tag, self._deadline
        )
        replicas.resync(
            communicator,
            self._parts,
            best % MAX_RANKS,
            tag,
            self._options.rejoin_deadline,
            self._options.allow_pickle,
        )
