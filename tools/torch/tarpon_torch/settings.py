"""What the environment says of a job's calls; the same variables as for the Gloo shim."""

import dataclasses
import os
import re
from typing import Dict, Mapping, Optional

from . import library as lib
from .library import TarponError

_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SIZE_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_NO_DURATION = "not a duration above 0; write for example 50ms or 10s"


def _number(name: str, text: str, units: Mapping[str, float], remedy: str) -> float:
    parts = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if parts and parts.group(2) in units:
        return float(parts.group(1)) * units[parts.group(2)]
    raise TarponError(f"{name}={text}: {remedy}")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How the calls of a job run. Alike on all ranks."""

    bounded: bool = False  # TARPON_MODE: exact, or bounded sums and averages of floats
    bounded_min: int = 1 << 20  # TARPON_BOUNDED_MIN: smaller calls stay exact; bytes
    bound: Optional[float] = None  # TARPON_BOUND: seconds of the whole call; None: learnt
    learn_shares: bool = False  # TARPON_SHARES: even, or auto: they follow the links' speed
    deadline: float = 10.0  # TARPON_DEADLINE: hard limit of bounded calls; seconds
    loss_target: float = 0.001  # TARPON_LOSS_TARGET: of learnt bounds; connect_terms() compares it

    def terms(self) -> Dict[str, str]:
        """By variable."""
        return {
            "TARPON_MODE": "bounded" if self.bounded else "exact",
            "TARPON_BOUNDED_MIN": str(self.bounded_min),
            "TARPON_BOUND": _seconds(self.bound),
            "TARPON_SHARES": "auto" if self.learn_shares else "even",
            "TARPON_DEADLINE": _seconds(self.deadline),
        }

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> "Settings":
        """Errors: TarponError names the variable, its value and the remedy."""
        usual = Settings()

        def value(name: str, units: Mapping[str, float], remedy: str) -> Optional[float]:
            text = environment.get(name)
            return _number(name, text, units, remedy) if text else None

        mode = environment.get("TARPON_MODE") or "exact"
        if mode not in ("exact", "bounded"):
            raise TarponError(f"TARPON_MODE={mode}: use exact or bounded")
        shares = environment.get("TARPON_SHARES") or "even"
        if shares not in ("even", "auto"):
            raise TarponError(f"TARPON_SHARES={shares}: use even or auto")
        smallest = value("TARPON_BOUNDED_MIN", _SIZE_UNITS, "not a size; write for example 1M")
        deadline = value("TARPON_DEADLINE", _TIME_UNITS, _NO_DURATION)
        bound = value("TARPON_BOUND", _TIME_UNITS, _NO_DURATION)
        for name, time in (("TARPON_DEADLINE", deadline), ("TARPON_BOUND", bound)):
            if time == 0:
                raise TarponError(f"{name}={environment[name]}: {_NO_DURATION}")
        try:
            target = float(_share(environment.get("TARPON_LOSS_TARGET") or ""))
        except ValueError:  # the library refuses what is no share
            target = usual.loss_target
        return Settings(
            loss_target=target,
            bounded=mode == "bounded",
            bounded_min=usual.bounded_min if smallest is None else int(smallest),
            bound=bound,
            learn_shares=shares == "auto",
            deadline=usual.deadline if deadline is None else deadline,
        )


def _seconds(time: Optional[float]) -> str:
    return "unset" if time is None else f"{time:g}s"


def connect_terms(
    options: lib.Options, environment: Mapping[str, str] = os.environ
) -> Dict[str, str]:
    """What else has to be alike on all ranks, by name: options, or the variables in their place.

    The library compares it too, but its rank 0 waits for the ranks that it has refused.
    """

    def either(option: float, variable: str) -> str:
        return f"{option:g}" if option else environment.get(variable) or "unset"

    return {
        "version": lib.library().tarpon_version().decode(),
        "loss_target": _share(either(options.loss_target, "TARPON_LOSS_TARGET")),
        "codec": {1: "on", 2: "off"}.get(
            options.codec, environment.get("TARPON_CODEC") or "auto"
        ),
        "TARPON_MULTICAST": environment.get("TARPON_MULTICAST") or "off",
        "TARPON_HOSTS": environment.get("TARPON_HOSTS") or "on",
        "TARPON_ORDER": environment.get("TARPON_ORDER") or "rotating",
        "silent_after": f"{options.silent_after_us / 1e6:g}s" if options.silent_after_us else "unset",
        "skip_above": f"{options.skip_above:g}",
        "halt_above": f"{options.halt_above:g}",
    }


def _share(text: str) -> str:
    """The same text for the same share: 1.0% is 0.01."""
    percent = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)%", text)
    return f"{float(percent.group(1)) / 100:g}" if percent else text
