"""Which ranks own parts of the next step's buckets: a rank that stands still owns nothing."""

from typing import List, Optional

from .communicator import Verdict

__all__ = ["Owners"]


class Owners:
    """Follows from the verdicts alone, so that it is alike on all ranks that take them in turn.

    `world_size`: ranks of the communicator. A new communicator takes new owners. Not thread-safe.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        # How much of each bucket the ranks own; None: alike.
        self.shares: Optional[List[float]] = None

    def take(self, verdict: Verdict) -> None:
        """Sets the shares of the step after that of the verdict.

        Ranks that were late and did not report own nothing: all ranks would lack their shards.
        - A rank that was not late and did not report has left out step(). It knows no verdict, and its
          shares stay as they are. So they stay on all ranks.
        - Where fewer than half of the ranks have reported, the reporters may be the ones that are cut off.
          Then all own alike, so that none decides alone what the others get.
        """
        ranks = set(range(self._world_size))
        unheard = ranks - set(verdict.reporters)
        if unheard - set(verdict.late) - set(verdict.gone) - set(verdict.rejoin):
            return
        absent = unheard & set(verdict.late)
        if not absent or 2 * len(verdict.reporters) < self._world_size:
            self.shares = None
        else:
            self.shares = [float(rank not in absent) for rank in sorted(ranks)]
