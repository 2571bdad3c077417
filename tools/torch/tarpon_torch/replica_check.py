"""When the ranks compare their models, and what becomes of models that differ."""

from typing import Any, Optional, Sequence, Tuple

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


class ReplicaCheck:
    """One rank's part. `every`: steps from one comparison to the next; 0: never.

    A rank tells the digest of its model with its report of a step. In a step in which it does not
    compare it tells NO_DIGEST. So where a rank has left out a step(), and compares at another step
    than the others do, digests differ, and all ranks compare exactly.
    """

    def __init__(
        self, model: torch.nn.Module, parts: Sequence[Any], options: HookOptions, every: int
    ):
        self._model = model
        self._parts = parts  # what a rank takes of another one
        self._options = options
        self._deadline: float = options.deadline  # type: ignore[assignment]
        self._every = every
        self._next = 0  # compares at the first step from this one on
        self._incomplete = 0  # attempts in a row that lacked a rank

    def is_due(self, step: int) -> bool:
        return self._every > 0 and step >= self._next

    def digest(self, step: int) -> int:
        """What this rank tells at `step`."""
        return replicas.digest(self._model.parameters()) if self.is_due(step) else replicas.NO_DIGEST

    def plan(self, step: int) -> None:
        """The models are known to be alike at `step`."""
        if self._every > 0:
            self._next = (step // self._every + 1) * self._every
        self._incomplete = 0

    def judge(self, communicator: Communicator, step: StepReport, verdict: Verdict) -> None:
        """Says in `step` whether the models are equal, if all ranks have told a digest for it.

        An attempt that lacked a rank is made again at the next step, and ever later after that: a
        rank may be late for long.
        """
        is_due = self.is_due(step.step)
        is_complete = not step.unreported
        if is_complete and verdict.differing:
            is_complete = self._bring_together(communicator, step, verdict)
        elif is_complete and is_due:
            step.replicas_equal = True
        elif is_complete:
            return
        if is_complete:
            self.plan(step.step)
        elif is_due:
            self._next = step.step + min(1 << self._incomplete, self._every)
            self._incomplete = min(self._incomplete + 1, _STEPS_OF_TAGS.bit_length())

    def compare(
        self, communicator: Communicator, step: int, largest_distance: Optional[float] = None
    ) -> replicas.Comparison:
        """All ranks call it, after as many steps. Errors: TarponError."""
        if largest_distance is None:
            largest_distance = self._options.largest_distance
        tag = _TAG_OF_USERS + step % _STEPS_OF_TAGS
        return self._compare(communicator, tag, largest_distance, in_minority=False)

    def _bring_together(
        self, communicator: Communicator, step: StepReport, verdict: Verdict
    ) -> bool:
        """The digests differ: measures how much the models do, and resyncs where that is too much.

        Returns whether it could. A rank that stands still meanwhile costs the deadline.
        """
        differing = communicator.rank in verdict.differing
        most_differ = 2 * len(verdict.differing) > communicator.world_size
        tag = _TAG_OF_STEPS + step.step % _STEPS_OF_TAGS
        largest = self._options.largest_distance
        try:
            found = self._compare(communicator, tag, largest, differing != most_differ)
        except TarponError as error:
            step.detail = f"the models could not be compared: {error}"
            return False
        step.replicas_equal = found.equal
        step.distance, step.resynced = found.distance, found.resynced
        return True

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
