"""The secret of a job, by the store in which its ranks meet: for stores that the user trusts.

Rank 0 draws it and writes it under a key of the meeting. The rank that reads it last deletes the key.
It is in memory alone: in the store's process, and in a memfd of each rank until that has connected.
"""

import contextlib
import logging
import os
import secrets
from typing import Any, Iterator, Mapping, Optional

from .library import TarponError

VARIABLE = "TARPON_SECRET_FROM_STORE"

# Where a rank has its secret from; in messages.
NONE = "none"
GIVEN = "that of TARPON_SECRET_FILE or TARPON_SECRET_FD"
FROM_STORE = f"one from the store ({VARIABLE}=1)"

_BYTES = 32
_LOGGER = logging.getLogger("tarpon")  # that of loss_watch.py


def source(wanted: Optional[bool], environment: Mapping[str, str] = os.environ) -> str:
    """NONE, GIVEN or FROM_STORE. `wanted`: whether it may come from the store; None: as VARIABLE says.
    A secret that a variable names takes precedence. Errors: TarponError."""
    value = environment.get(VARIABLE) or "0"
    if value not in ("0", "1"):
        raise TarponError(f"{VARIABLE}={value}: use 1, or 0")
    if environment.get("TARPON_SECRET_FILE") or environment.get("TARPON_SECRET_FD"):
        return GIVEN
    return FROM_STORE if (value == "1" if wanted is None else wanted) else NONE


def check_store(store: Any) -> None:
    """Errors: TarponError, where there is none, or where it would write a secret to a file."""
    if store is None:
        raise TarponError(f"{FROM_STORE}: this group has no store: give a TARPON_SECRET_FILE")
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if hasattr(store, "path"):
        raise TarponError(
            f"{FROM_STORE}: the store is a file, which other users can read: give a TARPON_SECRET_FILE"
        )


def tell_worth() -> None:
    _LOGGER.warning(
        "tarpon: the secret of this job comes from the store, which proves no rank and encrypts nothing: it "
        "protects from strangers who can neither connect to the store nor read packets on the way to it"
    )


def give(store: Any, key: str) -> str:
    """Draws a secret and writes it under `key`."""
    secret = secrets.token_hex(_BYTES)
    store.set(key, secret)
    return secret


def take(store: Any, key: str, takers: int) -> str:
    """The secret under `key`, which rank 0 has written. The last of `takers` deletes it, if the store can."""
    secret: str = store.get(key).decode(errors="replace")
    if store.add(f"{key}/taken", 1) == takers:
        with contextlib.suppress(AttributeError, RuntimeError):  # not all stores can
            store.delete_key(key)
    return secret


@contextlib.contextmanager
def in_memory(secret: str) -> Iterator[bytes]:
    """The path of a file that has the secret, in this process's memory alone."""
    descriptor = os.memfd_create("tarpon-secret")
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, secret.encode())
        yield f"/proc/self/fd/{descriptor}".encode()
    finally:
        os.close(descriptor)
