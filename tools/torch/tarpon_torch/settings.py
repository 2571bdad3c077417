"""What the environment says of a job's calls; the same variables as for the Gloo shim."""

import dataclasses
import os
import re
from typing import Mapping, Optional

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
        return Settings(
            bounded=mode == "bounded",
            bounded_min=usual.bounded_min if smallest is None else int(smallest),
            bound=bound,
            learn_shares=shares == "auto",
            deadline=usual.deadline if deadline is None else deadline,
        )
