"""A rank of launchers_test.py: a few AllReduces, by the variables of its launcher.

Usage: launched.py BACKEND [killed]. With `killed` rank 1 kills itself, unless torchrun has restarted
the job. Prints one line: what the rank saw.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

backend = sys.argv[1]
if backend == "tarpon":
    import tarpon_torch  # noqa: F401 (registers the backend)
for name, theirs in (
    ("RANK", "OMPI_COMM_WORLD_RANK"),
    ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
):
    if theirs in os.environ:
        os.environ.setdefault(name, os.environ[theirs])
dist.init_process_group(backend)
rank, world = dist.get_rank(), dist.get_world_size()
restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
value = torch.ones(1000)
start = time.monotonic()
try:
    for _ in range(10):
        value.fill_(rank + 1.0)
        dist.all_reduce(value)
    if "killed" in sys.argv[2:] and restarts == "0":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's: the loss is told first
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while time.monotonic() < start + 30:
            dist.all_reduce(value)
except RuntimeError as error:
    print(f"LOST rank {rank} after {time.monotonic() - start:.3f} s: {error}", flush=True)
    raise
dist.barrier()
print(f"DONE rank {rank} of {world}, sum {float(value[0]):g}, restarts {restarts}", flush=True)
dist.destroy_process_group()
