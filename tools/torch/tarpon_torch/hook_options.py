"""The options of bounded_hook(): what each may be, and that those of all ranks are alike."""

import dataclasses
import math
import numbers
import os
from typing import Any, Callable, Dict, Optional, Union

import torch

from . import library as lib
from .communicator import Communicator
from .library import TarponError
from .settings import Settings

# Options that may differ, and those that Communicator.connect() compares.
_NOT_COMPARED = (
    "loss_target",
    "codec",
    "interface",
    "retain_bytes",
    "silent_after",
    "skip_above",
    "halt_above",
    "secret_from_store",
)
_NONE = -1.0  # of an option that is None; no option may be negative
_LEAST_SECONDS = 1e-6  # the library counts microseconds
_LEAST_SILENCE = 0.01  # as in the library


@dataclasses.dataclass(frozen=True)
class HookOptions:
    """bounded_hook() explains them."""

    loss_target: Union[None, float, Callable[[int], float]]
    bound: Optional[float]
    deadline: Optional[float]
    rejoin_deadline: float
    codec: Optional[bool]
    interface: Optional[str]
    retain_bytes: Optional[int]
    silent_after: Optional[float]
    skip_above: Optional[float]
    halt_above: Optional[float]
    secret_from_store: Optional[bool]
    compare_every: int
    largest_distance: float
    allow_pickle: bool

    def check(self) -> None:
        """Errors: TarponError names an option, its value and the remedy."""
        for name in ("bound", "deadline", "rejoin_deadline"):
            seconds = getattr(self, name)
            may_lack = name != "rejoin_deadline"
            if not (may_lack and seconds is None or _is_number(seconds, _LEAST_SECONDS)):
                raise _wrong(name, seconds, "give seconds above 0, as a number: 0.5 for example")
        if self.silent_after is not None and not _is_number(self.silent_after, _LEAST_SILENCE):
            raise _wrong(
                "silent_after", self.silent_after, f"give seconds from {_LEAST_SILENCE} on: 0.1 for example"
            )
        for name in ("skip_above", "halt_above"):
            share = getattr(self, name)
            if share is not None and not (_is_number(share, 0, 1) and share > 0):
                raise _wrong(name, share, "give a share above 0, at most 1: 0.01 for 1 %")
        self.target_of(0)
        if not _is_number(self.largest_distance, 0):
            raise _wrong("largest_distance", self.largest_distance, "give a number from 0 on")
        if not _is_whole(self.compare_every, 0):
            raise _wrong(
                "compare_every", self.compare_every, "give a whole number of steps; 0: never"
            )
        if self.retain_bytes is not None and not _is_whole(self.retain_bytes, 1):
            raise _wrong("retain_bytes", self.retain_bytes, "give bytes, a whole number above 0")
        for name in ("codec", "secret_from_store"):
            if getattr(self, name) not in (None, True, False):
                raise _wrong(name, getattr(self, name), "give True, False or None")
        if self.interface is not None and not isinstance(self.interface, str):
            raise _wrong("interface", self.interface, "give the name of an interface: 'eth0'")
        if not isinstance(self.allow_pickle, bool):
            raise _wrong("allow_pickle", self.allow_pickle, "give True or False")

    def of_connect(self) -> Dict[str, Any]:
        """What Communicator.connect() gets."""
        return {
            **{name: getattr(self, name) for name in _NOT_COMPARED},
            "loss_target": self.target_of(0),
        }

    def target_of(self, step: int) -> Optional[float]:
        """The loss target of a step. Errors: TarponError, where a function gives something else."""
        share: Any = self.loss_target
        name = "loss_target"
        if callable(share):
            name += f"({step})"
            try:
                share = share(step)
            except Exception as error:
                raise TarponError(f"{name}: {type(error).__name__}: {error}") from error
        elif share is None:
            return None
        if not (_is_number(share, 0, 1) and 0 < share < 1):
            raise _wrong(name, share, "give a share above 0 and below 1: 0.01 for 1 %")
        return float(share)

    def with_defaults(self, settings: Settings) -> "HookOptions":
        """What is None here is that of the environment, if there is such a variable."""
        known = ("loss_target", "bound", "deadline")
        names = [name for name in known if getattr(self, name) is None]
        return dataclasses.replace(self, **{name: getattr(settings, name) for name in names})

    def expect_alike(
        self, communicator: Communicator, arguments: Dict[str, float], tag: int, deadline: float
    ) -> None:
        """All ranks call it. `arguments`: other values that are to be alike, by name.

        Errors: TarponError, on all ranks, names what differs, and the ranks.
        """
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values: Dict[str, Any] = {
            **own,
            **arguments,
            "loss_target (1: a function)": float(callable(self.loss_target)),
        }
        for name in _NOT_COMPARED:
            del values[name]
        table = torch.zeros(
            communicator.world_size, len(values), dtype=torch.float64, device="cpu"
        )
        table[communicator.rank] = torch.tensor(
            [_NONE if value is None else float(value) for value in values.values()],
            dtype=torch.float64,
        )
        communicator.allreduce_now(table, lib.SUM, tag=tag, deadline=deadline)
        for name, column in zip(values, table.t().tolist()):
            other = next((rank for rank, one in enumerate(column) if one != column[0]), None)
            if other is not None:
                raise TarponError(
                    f"{name}: {_text(column[0])} on rank 0, {_text(column[other])} on rank {other}: give "
                    "all ranks the same"
                )


def open_log(log: Any, rank: int) -> Any:
    """The file to append to; None: none. "{rank}" in its name stands for `rank`. Errors: TarponError."""
    if log is None:
        return None
    if not isinstance(log, (str, os.PathLike)) or not os.fspath(log):
        raise _wrong("log", log, "give the path of a file")
    log = os.fspath(log).replace("{rank}", str(rank))
    try:
        return open(log, "a", encoding="utf-8")
    except OSError as error:
        raise TarponError(f"log={log}: {error.strerror}: give a file to write to") from error


def check_function(name: str, function: Any) -> None:
    if function is not None and not callable(function):
        raise _wrong(name, function, "give a function, or None")


def _is_number(value: Any, least: float, most: float = math.inf) -> bool:
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_real and math.isfinite(value) and least <= value <= most


def _is_whole(value: Any, least: int) -> bool:
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_whole and least <= value < 1 << 63


def _wrong(name: str, value: Any, remedy: str) -> TarponError:
    return TarponError(f"{name}={value!r}: {remedy}")


def _text(value: float) -> str:
    return "None" if value == _NONE else f"{value:g}"
