"""How the ranks of a job find each other in a store that they share.

Every rank writes that it is ready, or why it cannot take part. When all are ready, rank 0 writes the
address at which it listens; else it writes the first refusal.
"""

import ctypes
import datetime
import os
import time
from typing import Any, Optional

from . import library as lib
from .library import TarponError

_READY = "ready"
_REFUSED = "refused: "
_LONGER = 5.0  # seconds that ranks wait for the word of rank 0, after its own wait is over


class Meeting:
    """One rank's part. Nothing to do without a store, or for a job of one rank."""

    def __init__(self, store: Any, key: str, rank: int, world_size: int, timeout: float):
        self._store = store if world_size > 1 else None
        self._key = key
        self._rank = rank
        self._world_size = world_size
        self._timeout = timeout
        self._until = time.monotonic() + timeout
        self._listener = ctypes.c_void_p()

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._listener.value:
            lib.library().tarpon_listener_free(self._listener)

    def listen(self, interface: Optional[str]) -> None:
        """Listens at an address that reaches the host of the store. Only rank 0's is used; the other
        ranks learn whether their interfaces work. Errors: TarponError."""
        if self._store is None:
            return
        host = os.environ.get("MASTER_ADDR") or _host_of(self._store)
        lib.check(
            lib.library().tarpon_listen(
                host.encode() if host else None,
                interface.encode() if interface else None,
                ctypes.byref(self._listener),
            )
        )

    def refuse(self, error: TarponError) -> TarponError:
        """Tells the other ranks why this one cannot take part. Returns what they all raise."""
        if self._store is None:
            return error
        text = f"rank {self._rank}: {error}"
        self._write(_REFUSED + text)
        return TarponError(text, error.code)

    def meet(self, options: lib.Options) -> None:
        """Sets the address in `options`, once all ranks are ready. Errors: TarponError."""
        if self._store is None:
            return
        if self._rank != 0:
            self._write(_READY)
            options.rendezvous = _address(self._read(0, _LONGER)).encode()
            return
        try:
            for other in range(1, self._world_size):
                _address(self._read(other))
        except TarponError as error:
            self._write(_REFUSED + str(error))
            raise
        options.listener = self._listener
        self._write(lib.library().tarpon_listener_address(self._listener).decode())

    def _write(self, text: str) -> None:
        self._store.set(f"{self._key}/{self._rank}", text)

    def _read(self, rank: int, longer: float = 0.0) -> str:
        key = f"{self._key}/{rank}"
        left = max(self._until + longer - time.monotonic(), 0.001)
        try:
            self._store.wait([key], datetime.timedelta(seconds=left))
        except RuntimeError as error:
            raise TarponError(
                f"rank {rank} did not come within {self._timeout:g} s: {error}"
            ) from error
        return self._store.get(key).decode(errors="replace")


def _address(text: str) -> str:
    if text.startswith(_REFUSED):
        raise TarponError(text[len(_REFUSED) :])
    return text


def _host_of(store: Any) -> Optional[str]:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None)
