"""How the ranks of a job find each other in a store that they share.

Every rank writes that it is ready, with what has to be alike on all ranks and the jobs that it is a
rank of; or why it cannot take part. When all are ready, rank 0 writes where they meet: at its
address, or in a job that all of them share; else it writes the first refusal.
"""

import ctypes
import dataclasses
import datetime
import json
import os
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from . import library as lib
from . import store_secret
from .handle import Handle
from .jobs import Job, new_name
from .library import TarponError

_READY = "ready: "
_REFUSED = "refused: "
_LONGER = 5.0  # seconds that ranks wait for the word of rank 0, after its own wait is over


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the ranks meet."""

    job: Optional[str] = None  # the new job's name, alike on all ranks; None: it cannot be shared
    address: Optional[bytes] = None  # None: as the environment says, or on rank 0
    listener: Optional[ctypes.c_void_p] = None  # on rank 0
    secret: Optional[str] = dataclasses.field(default=None, repr=False)  # None: none from the store
    # The communicator to split from, the number, and the ranks in it, in the new order.
    split: Optional[Tuple[Handle, int, List[int]]] = None


class Meeting:
    """One rank's part. Without a store, or for a job of one rank, there is nobody to meet."""

    def __init__(
        self,
        store: Any,
        key: str,
        rank: int,
        world_size: int,
        timeout: float,
        interface: Optional[str],
    ):
        self._store = store if world_size > 1 else None
        self._key = key
        self._rank = rank
        self._world_size = world_size
        self._timeout = timeout
        self._until = time.monotonic() + timeout
        self._interface = interface
        self._listener = ctypes.c_void_p()
        self._gave_secret = False

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._gave_secret:
            store_secret.forget(self._store, self._secret_key())
        if self._listener.value:
            lib.library().tarpon_listener_free(self._listener)

    def come(self, listens: bool) -> None:
        """`listens`: rank 0 needs an address, and other ranks learn whether their interfaces work.
        Errors: TarponError."""
        if self._store is None:
            return
        if self._store.add(f"{self._key}/{self._rank}/times", 1) > 1:
            raise TarponError(
                f"the store has a key {self._key}/{self._rank} already: did it outlive an earlier run, "
                f"or have two processes rank {self._rank}? Give each run a store or a prefix of its own"
            )
        if listens:
            self._listen()

    def host(self) -> Optional[str]:
        """A host that all ranks reach: that of the store."""
        return os.environ.get("MASTER_ADDR") or _host_of(self._store)

    def _listen(self) -> None:
        """At an address that reaches the host of the store."""
        host = self.host()
        interface = self._interface
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

    def meet(
        self, terms: Mapping[str, str], offered: Mapping[str, Job], shares_secret: bool = False
    ) -> Place:
        """Returns once all ranks are ready. `terms`: by name, alike on all ranks. `offered`: jobs to
        split from, by name. `shares_secret`: without such a job, rank 0 gives a secret to all, by the
        store. Errors: TarponError, alike on all ranks."""
        own = {"terms": dict(terms), "jobs": {name: job.rank for name, job in offered.items()}}
        if self._world_size == 1:
            return self._split_of(_common_job(offered, [own]), offered) or Place(new_name())
        if self._store is None:
            return Place()
        if self._rank != 0:
            self._write(_READY + json.dumps(own))
            word = self._read(0, _LONGER)
            place = self._split_of(word, offered)
            if place is not None:
                return place
            secret = None
            if shares_secret:
                secret = store_secret.take(self._store, self._secret_key())
            return Place(word["job"], word["address"].encode(), secret=secret)
        try:
            words = [own]
            for other in range(1, self._world_size):
                words.append(self._read(other))
                _check_terms(own["terms"], words[-1]["terms"], other)
            word = _common_job(offered, words) or self._address()
            place = self._split_of(word, offered) or Place(word["job"], listener=self._listener)
            if shares_secret and place.split is None:
                self._gave_secret = True
                secret = store_secret.give(self._store, self._secret_key())
                place = dataclasses.replace(place, secret=secret)
        except TarponError as error:
            self._write(_REFUSED + str(error))
            raise
        self._write(_READY + json.dumps(word))
        return place

    def _secret_key(self) -> str:
        return f"{self._key}/secret"

    def _address(self) -> Dict[str, Any]:
        if not self._listener.value:
            self._listen()
        address = lib.library().tarpon_listener_address(self._listener).decode()
        return {"job": new_name(), "address": address}

    @staticmethod
    def _split_of(word: Optional[Mapping[str, Any]], offered: Mapping[str, Job]) -> Optional[Place]:
        if word is None or "number" not in word:
            return None
        return Place(split=(offered[word["job"]].handle, word["number"], word["ranks"]))

    def _write(self, text: str) -> None:
        self._store.set(f"{self._key}/{self._rank}", text)

    def _read(self, rank: int, longer: float = 0.0) -> Dict[str, Any]:
        key = f"{self._key}/{rank}"
        left = max(self._until + longer - time.monotonic(), 0.001)
        try:
            self._store.wait([key], datetime.timedelta(seconds=left))
        except RuntimeError as error:
            raise TarponError(
                f"rank {rank} did not come within {self._timeout:g} s: {error}"
            ) from error
        text = self._store.get(key).decode(errors="replace")
        if text.startswith(_REFUSED):
            raise TarponError(text[len(_REFUSED) :])
        if not text.startswith(_READY):
            raise TarponError(f"rank {rank} has another version of tarpon_torch: install one on all")
        word: Dict[str, Any] = json.loads(text[len(_READY) :])
        return word


def _check_terms(own: Mapping[str, str], others: Mapping[str, str], other: int) -> None:
    for name in sorted({*own, *others}):
        if own.get(name) != others.get(name):
            raise TarponError(
                f"rank {other} has {name}={others.get(name)}, and rank 0 {own.get(name)}: give all "
                "ranks the same"
            )


def _common_job(
    offered: Mapping[str, Job], words: List[Dict[str, Any]]
) -> Optional[Dict[str, Any]]:
    """The first job that all ranks offer; `words`: of the ranks, in order."""
    for name, job in offered.items():
        ranks = [word["jobs"].get(name) for word in words]
        if None in ranks:
            continue
        number = job.next_number()
        if number is not None:
            return {"job": name, "number": number, "ranks": ranks}
    return None


def _host_of(store: Any) -> Optional[str]:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None)
