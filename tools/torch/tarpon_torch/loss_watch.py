"""Warns where a job skips steps, or loses more of its gradients than its target allows."""

import collections
import logging
import math
import time
from typing import Callable, Deque, List, Optional, Tuple

from .step_report import StepReport

LOGGER = logging.getLogger("tarpon")  # without a handler, Python writes warnings to standard error

_LATEST = 1000  # steps that count
_LEAST = 50  # steps before the first warning
_MOST_SKIPPED = 0.01  # share of the steps
_LEAST_SKIPPED = 2
_MOST_LOST = 2.0  # loss targets
_PAUSE = 60.0  # seconds between two warnings


def _is_bad(step: Tuple[bool, float, float]) -> bool:
    return step[0] or step[1] > 0


def _events(report: StepReport) -> List[str]:
    """What a log of the usual level says of a step; nothing of one that went as it should."""
    events = []
    if report.decision != "apply":
        events.append(f"{report.decision}: {report.detail}")
    elif report.detail:
        events.append(report.detail)
    # Late ranks are not waited for, and do not report while they stand still.
    silent = sorted(set(report.unreported) - set(report.late_ranks))
    if silent:
        events.append(f"decided without a report of rank {', '.join(map(str, silent))}")
    if report.resynced:
        events.append(f"the models differed by {report.distance:.3g}, and were made equal")
    return events


class LossWatch:
    """Counts the latest steps of one rank. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # For each step: whether it was skipped, the share that it lost, and its loss target.
        self._steps: Deque[Tuple[bool, float, float]] = collections.deque()
        self._bad = 0  # of these: skipped, or with a loss
        self._quiet_until = -float("inf")

    def take(self, report: StepReport, loss_target: Optional[float]) -> None:
        """Logs the report of a step, and warns where that is due. `loss_target`: None where the bound is
        given, which no target limits."""
        if LOGGER.isEnabledFor(logging.DEBUG):
            LOGGER.debug("step %d: %s", report.step, report.line().rstrip())
        events = _events(report)
        if events:
            LOGGER.info("step %d: %s", report.step, "; ".join(events))
        skipped = report.decision == "skip" and not report.resynced  # it did not just come back
        # What late ranks owe is in the reports; a rank that is gone is no loss that a target limits.
        target = math.inf if loss_target is None else loss_target
        self._steps.append((skipped, report.lost_in_network, target))
        self._bad += _is_bad(self._steps[-1])
        if len(self._steps) > _LATEST:
            self._bad -= _is_bad(self._steps.popleft())
        if self._bad == 0 or len(self._steps) < _LEAST or self._clock() < self._quiet_until:
            return
        found = self._skipped() + self._lost()
        for line in found:
            LOGGER.warning("tarpon: rank %d, step %d: %s", report.rank, report.step, line)
        if found:
            self._quiet_until = self._clock() + _PAUSE

    def _skipped(self) -> List[str]:
        steps = len(self._steps)
        skipped = sum(skip for skip, _, _ in self._steps)
        if skipped < _LEAST_SKIPPED or skipped <= _MOST_SKIPPED * steps:
            return []
        return [
            f"{skipped} of the latest {steps} steps were skipped, since a rank lost too much of its "
            "gradients: lost_in_network and late_ranks in hook.reports say where; leave out bound=, give a "
            "longer one, or raise skip_above"
        ]

    def _lost(self) -> List[str]:
        lost = sum(share for _, share, _ in self._steps) / len(self._steps)
        target = sum(target for _, _, target in self._steps) / len(self._steps)
        if lost <= _MOST_LOST * target:
            return []
        return [
            f"the latest {len(self._steps)} steps lost {100 * lost:.3g} % of the gradients on average, and "
            f"the target is {100 * target:g} %: `tarpon check` finds lossy paths, and hook.reports has "
            "the steps"
        ]
