"""The secret of a job, by the store in which its ranks meet: for stores that the user trusts.

Rank 0 draws the secret and writes it under a key of the meeting. It deletes the key when all ranks have
connected, or when it gives up. The secret is in memory alone: in the store's process, and in a memfd of
each rank until that rank has connected.
"""

import contextlib
import datetime
import logging
import os
import secrets
from typing import Any, Iterator, Mapping, Optional

import torch.distributed as dist

from .library import TarponError

VARIABLE = "TARPON_SECRET_FROM_STORE"

# Where a rank has its secret from; in messages.
NONE = "none"
GIVEN = "that of TARPON_SECRET_FILE or TARPON_SECRET_FD"
FROM_STORE = f"one from the store ({VARIABLE}=1)"

_BYTES = 32
_PATIENCE = 2.0  # seconds, for what is there unless it is gone
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


def integrity(secret: str, environment: Mapping[str, str] = os.environ) -> str:
    """TARPON_INTEGRITY, alike where its absence means the same. `secret`: source()."""
    value = environment.get("TARPON_INTEGRITY") or "unset"
    return "unset" if value == "keyed" and secret != NONE else value


def check_store(store: Any) -> None:
    """Errors: TarponError, where there is none, or where it may write a secret to a file."""
    if store is None:
        raise TarponError(f"{FROM_STORE}: this group has no store: give a TARPON_SECRET_FILE")
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if not isinstance(store, (dist.TCPStore, dist.HashStore)):
        raise TarponError(
            f"{FROM_STORE}: a {type(store).__name__} may keep it in a file, which other users can read: give a "
            "TARPON_SECRET_FILE"
        )


def tell_worth() -> None:
    _LOGGER.warning(
        "tarpon: the secret of this job comes from the store, which proves no rank and encrypts nothing: it "
        "protects from strangers who can neither connect to the store nor read packets on the way to it"
    )


def give(store: Any, key: str) -> str:
    """Draws a secret and writes it under `key`. Errors: TarponError."""
    secret = secrets.token_hex(_BYTES)
    try:
        store.set(key, secret)
    except RuntimeError as error:
        raise TarponError(f"{FROM_STORE} cannot be written: {error}") from error
    return secret


def take(store: Any, key: str) -> str:
    """The secret under `key`, which rank 0 has written. Errors: TarponError, where it is gone: rank 0 has
    given up."""
    try:
        store.wait([key], datetime.timedelta(seconds=_PATIENCE))
        secret: str = store.get(key).decode(errors="replace")
    except RuntimeError as error:
        raise TarponError(f"{FROM_STORE} is gone, as rank 0 has given up: {error}") from error
    return secret


def forget(store: Any, key: str) -> None:
    """Deletes it from the store."""
    try:
        store.delete_key(key)
    except RuntimeError as error:
        _LOGGER.warning("tarpon: the secret of a job stays in the store: %s", error)


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
