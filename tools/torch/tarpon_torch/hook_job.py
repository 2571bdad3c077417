"""The communicator of a hook, beside the process group of its model."""

from typing import Any, Optional

import torch.distributed as dist

from .communicator import Communicator
from .hook_options import HookOptions
from .library import TarponError
from .step_reports import StepReports
from .waits import PatientStore, interruptible

CONNECT_SECONDS = 60.0
SHORTEST_CLOSE = 5.0  # seconds

# Of what ranks tell each other when they have met, at first or again: on a new communicator. Gradients
# have the tags from 0 on, comparisons those of replica_check.py.
TAG_OF_MEETING = 1 << 31


def connect_beside(
    group: Any, options: HookOptions, obstacle: Optional[TarponError], reports: StepReports
) -> Communicator:
    """A communicator of the ranks of `group`, which all call it, whatever backend the group has. Errors:
    TarponError. With an `obstacle` all ranks get it. Closes `reports` where it fails."""
    own = _own_store(group)
    store = PatientStore(own) if own is not None else None
    wishes = options.of_connect() if obstacle is None else {}
    try:
        return interruptible(
            lambda: Communicator.connect(
                store,
                dist.get_rank(group),
                dist.get_world_size(group),
                CONNECT_SECONDS,
                obstacle=obstacle,
                **wishes,
            ),
            discard=lambda communicator: communicator.close(seconds=0),
        )
    except BaseException:
        reports.close()
        if store is not None:
            store.give_up()
        raise


def _own_store(group: Any) -> Any:
    """Keys of this hook alone, in the store of the group; None for a group of MPI, which has none.

    Alike on all ranks of the group, since they make their hooks in the same order.
    """
    c10d = dist.distributed_c10d
    world = getattr(c10d, "_world", c10d)  # since torch 2.0 its tables lie there
    stores = getattr(world, "pg_map", None) or c10d._pg_map
    names = getattr(world, "pg_names", None) or c10d._pg_names
    store = stores[group][1]
    if store is None:
        return None
    name = f"tarpon-hook-{names[group]}"
    made = store.add(f"{name}-of-{dist.get_rank(group)}", 1)
    return dist.PrefixStore(f"{name}-{made}", store)
