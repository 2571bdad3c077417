"""The jobs of this process that groups may share.

The communicator of a group costs sockets and threads, unless it is split from one that all of its
ranks have in common: the first group that was made of them, or of more ranks.
"""

import dataclasses
import itertools
import os
import uuid
import weakref
from typing import Dict, Optional

from .handle import Handle

_MAX_NUMBER = 65_535  # of tarpon_split()

# Variables that settings.py reads: each group follows them by itself.
_OF_CALLS = {
    "TARPON_MODE",
    "TARPON_BOUNDED_MIN",
    "TARPON_BOUND",
    "TARPON_DEADLINE",
}

def _is_sharable() -> bool:
    """A communicator that is split off writes no flight records, and does not multicast."""
    return not os.environ.get("TARPON_FLIGHT") and os.environ.get("TARPON_MULTICAST") != "on"


def _environment() -> Dict[str, str]:
    """The variables that a communicator follows from its connect() on."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("TARPON_") and name not in _OF_CALLS
    }


@dataclasses.dataclass(eq=False)
class Job:
    """A communicator of this process that others may be split from."""

    handle: Handle
    rank: int
    world_size: int
    environment: Dict[str, str] = dataclasses.field(default_factory=_environment)

    def __post_init__(self) -> None:
        # No two ranks of the job give the same number.
        self._numbers = itertools.count(self.rank + 1, self.world_size)

    def next_number(self) -> Optional[int]:
        """A number for tarpon_split(); None: all are used up."""
        number = next(self._numbers)
        return number if number <= _MAX_NUMBER else None


# By name, which is alike on all ranks.
_jobs: "weakref.WeakValueDictionary[str, Job]" = weakref.WeakValueDictionary()


def new_name() -> str:
    return uuid.uuid4().hex


def offer(name: str, handle: Handle, rank: int, world_size: int) -> Job:
    """The job can be shared as long as the result lives, and the communicator is open."""
    job = _jobs[name] = Job(handle, rank, world_size)
    return job


def offered() -> Dict[str, Job]:
    """By name; what was made first comes first."""
    if not _is_sharable():
        return {}
    present = _environment()
    return {
        name: job
        for name, job in list(_jobs.items())
        if job.handle.is_open() and job.environment == present
    }
