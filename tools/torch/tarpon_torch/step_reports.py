"""Where the reports of a hook's steps go: its latest ones, a log, the caller, and warnings of losses."""

import collections
from typing import Any, Callable, Deque, Optional

from .loss_watch import LossWatch
from .step_report import StepReport

_KEPT = 1000


class StepReports:
    """Of one rank. Not thread-safe."""

    def __init__(self, on_report: Optional[Callable[[StepReport], None]], log: Any):
        """`log`: a file, which this owns; or None."""
        self.kept: Deque[StepReport] = collections.deque(maxlen=_KEPT)  # the latest
        self._watch = LossWatch()
        self._on_report = on_report
        self._log = log

    def take(self, report: StepReport, loss_target: Optional[float]) -> None:
        """`loss_target`: None where the bound is given."""
        self.kept.append(report)
        self._watch.take(report, loss_target)
        if self._log is not None:
            self._log.write(report.line())
            self._log.flush()
        if self._on_report is not None:
            self._on_report(report)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
