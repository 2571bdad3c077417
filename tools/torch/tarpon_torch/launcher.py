"""The place of this process in its job, by the variables of its launcher."""

import os
from typing import Tuple

from .library import TarponError

# Rank and number of ranks, of torchcomms, torchrun, Open MPI, PMI and Slurm. The first complete pair counts.
_VARIABLES = (
    ("TORCHCOMM_RANK", "TORCHCOMM_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def place_of_launcher() -> Tuple[int, int]:
    """Rank and number of ranks. Errors: TarponError."""
    for rank, size in _VARIABLES:
        if os.environ.get(rank) and os.environ.get(size):
            return int(os.environ[rank]), int(os.environ[size])
    raise TarponError("no launcher has set a rank: set RANK and WORLD_SIZE, or start with torchrun")
