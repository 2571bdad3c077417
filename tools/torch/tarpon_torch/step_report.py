"""The report of a training step, and the errors that end training at a step."""

import dataclasses
import json
import math
from typing import Iterable, Optional, Tuple

from .calls import Report
from .communicator import Verdict
from .library import TarponError


@dataclasses.dataclass
class StepReport:
    """What a step's gradients are made of, at this rank."""

    step: int
    rank: int = 0  # its first number
    time: float = 0.0  # when the step ended: seconds since 1970
    calls: int = 0
    bytes: int = 0
    lost_fraction: float = 0.0  # mean over the bytes of the step
    worst_lost_fraction: float = 0.0  # of a call
    lost_in_network: float = 0.0  # of a call, the worst: without late ranks; what budgets count
    seconds: float = 0.0  # the longest call
    late_ranks: Tuple[int, ...] = ()  # their gradients are missing somewhere
    void_shards: Tuple[int, ...] = ()  # nothing came of what these ranks own of some bucket
    nonfinite: bool = False  # a rank's gradients held NaN or infinity
    followed: bool = False  # this rank was behind, and took the others' gradients: follow()
    decision: str = "apply"  # "apply", "skip", "halt"; "apply" without an optimizer
    unreported: Tuple[int, ...] = ()  # the decision did not wait for their reports
    detail: str = ""  # why, where it was not applied; which ranks are left out
    replicas_equal: Optional[bool] = None  # the parts compared at this step; None: a rank did not report
    distance: float = 0.0  # of these parts, or of the models; 0: not measured; inf where one is not finite
    resynced: bool = False

    def add(
        self, report: Report, size: int, late_ranks: Iterable[int], void_shards: Iterable[int]
    ) -> None:
        self.calls += 1
        self.lost_fraction = (self.lost_fraction * self.bytes + report.lost_fraction * size) / max(
            self.bytes + size, 1
        )
        self.bytes += size
        self.worst_lost_fraction = max(self.worst_lost_fraction, report.lost_fraction)
        self.lost_in_network = max(self.lost_in_network, report.lost_in_network)
        self.seconds = max(self.seconds, report.seconds)
        self.late_ranks = tuple(sorted({*self.late_ranks, *late_ranks}))
        self.void_shards = tuple(sorted({*self.void_shards, *void_shards}))
        self.nonfinite |= report.nonfinite

    def line(self) -> str:
        """As JSON, which has no number for an infinite distance: null."""
        fields = dataclasses.asdict(self)
        if not math.isfinite(self.distance):
            fields["distance"] = None
        return json.dumps(fields) + "\n"


class HaltError(TarponError):
    """The ranks decided that training should stop: most was lost in three steps in a row."""

    def __init__(self, verdict: Verdict):
        super().__init__(f"step {verdict.step}: halt: {verdict.detail}")
        self.verdict = verdict


class AloneError(TarponError):
    """The other ranks may have gone on without this one: its model may not be theirs."""

    def __init__(self, step: int, ranks: int, left_out: str):
        present = "this rank is alone" if ranks == 1 else f"{ranks} ranks are left"
        super().__init__(
            f"step {step}: {present}, and the others may have gone on, or have ended: {left_out}; look "
            "at their logs, and start the job again from a checkpoint"
        )
