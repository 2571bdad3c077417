"""Tarpon for PyTorch: collectives on ordinary Ethernet, AllReduce in bounded time.

    import tarpon_torch                                     # registers the backend
    dist.init_process_group("tarpon")                       # all collectives by Tarpon

    hook = tarpon_torch.bounded_hook(ddp, optimizer)        # or: bounded gradients beside any backend
    hook = tarpon_torch.bounded_fsdp_hook(fsdp, optimizer)  # the same for sharded models

The tutorial is in README.md beside this package's sources.
"""

from . import library
from .c10d import ProcessGroupTarpon, register
from .calls import CallError, Report
from .communicator import Communicator, Verdict
from .ddp import bounded_hook
from .fsdp import BoundedShards, bounded_fsdp_hook
from .hook import BoundedHook
from .library import TarponError
from .replicas import Comparison
from .step_report import AloneError, HaltError, StepReport

__all__ = [
    "AloneError",
    "BoundedHook",
    "BoundedShards",
    "CallError",
    "Communicator",
    "Comparison",
    "HaltError",
    "ProcessGroupTarpon",
    "Report",
    "StepReport",
    "TarponError",
    "Verdict",
    "bounded_fsdp_hook",
    "bounded_hook",
    "version",
]


def __getattr__(name: str) -> str:
    """__version__, which is asked of the library when it is needed: the two are of one release."""
    if name == "__version__":
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def version() -> str:
    """The version of the library that is loaded."""
    return library.library().tarpon_version().decode()


register()
