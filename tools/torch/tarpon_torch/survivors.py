"""A default process group of the ranks that are left, in place of the one that had all ranks."""

import ctypes
import datetime
import os
from typing import Any, Optional, Tuple

import torch
import torch.distributed as dist

from . import library as lib
from .communicator import Communicator
from .library import TarponError
from .waits import interruptible

_ADDRESS_BYTES = 512  # of the text that rank 0 gives to the others
_REFUSED = "refused: "


def replace_default_group(
    communicator: Communicator,
    interface: Optional[str],
    deadline: float,
    timeout: datetime.timedelta,
) -> Any:
    """Ends all process groups, and makes a default one of the communicator's ranks, which all call it.

    The old store may have died with its rank: rank 0 of the communicator opens a new one. The others
    have `deadline` seconds to come there; `timeout` is that of the group. Returns the group. Errors:
    TarponError, those of init_process_group().
    """
    backend = dist.get_backend()
    patience = datetime.timedelta(seconds=deadline)
    store, text = None, ""
    if communicator.rank == 0:
        try:
            store, text = _open_store(interface, patience)
        except (TarponError, RuntimeError, OSError) as error:
            text = f"{_REFUSED}{error}"
    text = _text_of_rank_0(communicator, text, deadline)
    if text.startswith(_REFUSED):
        raise TarponError(f"the store of the new process group: {text[len(_REFUSED):]}")
    if store is None:
        host, port = text.rsplit(":", 1)
        store = _tcp_store(host, int(port), False, patience)
    dist.destroy_process_group()
    dist.init_process_group(
        backend,
        store=store,
        rank=communicator.rank,
        world_size=communicator.world_size,
        timeout=timeout,
    )
    store.set_timeout(timeout)
    return dist.distributed_c10d._get_default_group()


def _open_store(interface: Optional[str], patience: datetime.timedelta) -> Tuple[Any, str]:
    """The store, and the address at which the other ranks find it."""
    host = _own_host(interface)
    store = _tcp_store(host, 0, True, patience)
    return store, f"{host}:{store.port}"


def _tcp_store(host: str, port: int, is_master: bool, patience: datetime.timedelta) -> Any:
    """Follows USE_LIBUV as init_process_group() does: some builds of PyTorch 2 lack that library."""
    options = {"is_master": is_master, "timeout": patience, "wait_for_workers": False}
    if "use_libuv" in (dist.TCPStore.__init__.__doc__ or ""):
        options["use_libuv"] = os.environ.get("USE_LIBUV", "1") == "1"
    return dist.TCPStore(host, port, **options)


def _own_host(interface: Optional[str]) -> str:
    """This host's address on the job's network, as the library finds it. Errors: TarponError."""
    listener = ctypes.c_void_p()
    known = os.environ.get("MASTER_ADDR", "").encode() or None
    lib.check(
        lib.library().tarpon_listen(
            known, interface.encode() if interface else None, ctypes.byref(listener)
        )
    )
    try:
        address = lib.library().tarpon_listener_address(listener).decode()
    finally:
        lib.library().tarpon_listener_free(listener)
    return address[len("tcp://") :].rsplit(":", 1)[0]


def _text_of_rank_0(communicator: Communicator, text: str, deadline: float) -> str:
    place = torch.zeros(_ADDRESS_BYTES, dtype=torch.uint8, device="cpu")
    if communicator.rank == 0:
        data = text.encode()[:_ADDRESS_BYTES]
        place[: len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    interruptible(lambda: communicator.resync(place, 0, deadline))
    return bytes(place.tolist()).rstrip(b"\0").decode(errors="replace")
