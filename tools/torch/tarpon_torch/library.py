"""libtarpon.so through ctypes: the structs and functions of collectives/tarpon.h.

Nothing here knows of PyTorch. ctypes releases the interpreter's lock while a function runs, so a
thread that waits in the library holds nobody up.
"""

import ctypes
import os
import pathlib
from typing import Any, Optional

OK = 0
NO_RESULT = 8

FLOAT32, FLOAT64, INT32, INT64, FLOAT16, BFLOAT16, INT8, UINT8, INT16 = range(9)
UINT16, UINT32, UINT64 = range(9, 12)
# tarpon_rank_list
LATE_RANKS, BLAMED, VOID_SHARDS = range(3)
SUM, AVG, MIN, MAX, PROD = range(5)
BAND, BOR, BXOR = 5, 6, 7
EXACT, BOUNDED = 0, 1
FOLLOW = 1  # a flag
CAUSE_MISMATCH, CAUSE_ARGUMENT, CAUSE_DEADLINE, CAUSE_MEMORY, CAUSE_EXCEPTION = 1, 4, 5, 6, 7
REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, GATHER, SCATTER, ALL_TO_ALL = range(1, 8)

FILE_NAME = "libtarpon.so.0"


class TarponError(RuntimeError):
    """A function of Tarpon failed. The text names the thing, the value and the remedy."""

    def __init__(self, text: str, code: int = 0):
        super().__init__(text)
        self.code = code  # tarpon_error


class Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("rank", ctypes.c_uint32),
        ("world_size", ctypes.c_uint32),
        ("rendezvous", ctypes.c_char_p),
        ("interface", ctypes.c_char_p),
        ("address", ctypes.c_char_p),
        ("mtu", ctypes.c_uint32),
        ("datapath", ctypes.c_uint32),
        ("loss_target", ctypes.c_double),
        ("flight_directory", ctypes.c_char_p),
        ("rendezvous_timeout_us", ctypes.c_int64),
        ("dead_after_us", ctypes.c_int64),
        ("retain_bytes", ctypes.c_uint64),
        ("max_bytes_per_second", ctypes.c_double),
        ("flows", ctypes.c_uint32),
        ("no_status_socket", ctypes.c_uint32),
        ("listener", ctypes.c_void_p),
        ("codec", ctypes.c_uint32),
        ("multicast", ctypes.c_uint32),
        ("skip_above", ctypes.c_double),
        ("halt_above", ctypes.c_double),
        ("ports", ctypes.c_char_p),
        ("fixed_order", ctypes.c_uint32),
        ("no_shared_memory", ctypes.c_uint32),
        ("silent_after_us", ctypes.c_int64),
        ("lanes", ctypes.c_uint32),
        ("encrypt", ctypes.c_uint32),
        ("secret_file", ctypes.c_char_p),
    ]


class Arguments(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("type", ctypes.c_uint32),
        ("function", ctypes.c_uint32),
        ("tag", ctypes.c_uint32),
        ("mode", ctypes.c_uint32),
        ("algorithm", ctypes.c_uint32),
        ("missing", ctypes.c_uint32),
        ("deadline_us", ctypes.c_int64),
        ("bound_us", ctypes.c_int64),
        ("custom_id", ctypes.c_uint32),
        ("group_size", ctypes.c_uint32),
        ("custom_combine", ctypes.c_void_p),
        ("custom_context", ctypes.c_void_p),
        ("shares", ctypes.c_void_p),
        ("share_count", ctypes.c_uint32),
        ("late_rank", ctypes.c_uint32),
        ("learn_shares", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("refusal", ctypes.c_char_p),
    ]


class CollectiveArguments(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("counts", ctypes.c_void_p),
        ("collective", ctypes.c_uint32),
        ("root", ctypes.c_uint32),
        ("type", ctypes.c_uint32),
        ("function", ctypes.c_uint32),
        ("tag", ctypes.c_uint32),
        ("custom_id", ctypes.c_uint32),
        ("deadline_us", ctypes.c_int64),
        ("custom_combine", ctypes.c_void_p),
        ("custom_context", ctypes.c_void_p),
        ("refusal", ctypes.c_char_p),
        ("output_counts", ctypes.c_void_p),
        ("mode", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("bound_us", ctypes.c_int64),
    ]


class Message(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("peer", ctypes.c_uint32),
        ("tag", ctypes.c_uint32),
        ("deadline_us", ctypes.c_int64),
        ("refusal", ctypes.c_char_p),
    ]


class Summary(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("status", ctypes.c_uint32),
        ("tag", ctypes.c_uint32),
        ("operation", ctypes.c_uint32),
        ("stage", ctypes.c_uint32),
        ("mode", ctypes.c_uint32),
        ("abort_cause", ctypes.c_uint32),
        ("elapsed_us", ctypes.c_int64),
        ("bound_us", ctypes.c_int64),
        ("bytes_sent", ctypes.c_uint64),
        ("bytes_received", ctypes.c_uint64),
        ("bytes_fetched", ctypes.c_uint64),
        ("lost_fraction", ctypes.c_double),
        ("lost_stage1", ctypes.c_double),
        ("lost_stage2", ctypes.c_double),
        ("late_ranks", ctypes.c_uint64),
        ("blamed", ctypes.c_uint64),
        ("void_shards", ctypes.c_uint64),
        ("nonfinite_ranks", ctypes.c_uint64),
        ("nonfinite", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("first_missed", ctypes.c_uint32),
        ("operations_missed", ctypes.c_uint32),
        ("lost_in_network", ctypes.c_double),
        ("held_us", ctypes.c_int64),
    ]


class Loss(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("lost_fraction", ctypes.c_double),
        ("nonfinite", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("late_ranks", ctypes.c_uint64),
        ("digest", ctypes.c_uint64),
    ]


class StepVerdict(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("step", ctypes.c_uint64),
        ("verdict", ctypes.c_uint32),
        ("decided_by", ctypes.c_uint32),
        ("lost_fraction", ctypes.c_double),
        ("reporters", ctypes.c_uint64),
        ("rejoin", ctypes.c_uint64),
        ("detail", ctypes.c_char * 256),
        ("differing", ctypes.c_uint64),
        ("gone", ctypes.c_uint64),
        ("late", ctypes.c_uint64),
    ]


def sized(struct: type, **members: Any) -> Any:
    """A struct with its size set; members that are not given are 0."""
    return struct(size=ctypes.sizeof(struct), **members)


_HANDLE = ctypes.c_void_p
_TEXT = ctypes.c_char_p
_INT = ctypes.c_int


def _place(of: type) -> Any:
    return ctypes.POINTER(of)


_PROTOTYPES = {
    "tarpon_version": (_TEXT, []),
    "tarpon_error_text": (_TEXT, []),
    "tarpon_status_name": (_TEXT, [ctypes.c_uint32]),
    "tarpon_listen": (_INT, [_TEXT, _TEXT, _place(_HANDLE)]),
    "tarpon_listener_address": (_TEXT, [_HANDLE]),
    "tarpon_listener_free": (None, [_HANDLE]),
    "tarpon_connect_from_environment": (_INT, [_place(Options), _place(_HANDLE)]),
    "tarpon_check_environment": (_INT, [_place(Options)]),
    "tarpon_rank": (ctypes.c_uint32, [_HANDLE]),
    "tarpon_world_size": (ctypes.c_uint32, [_HANDLE]),
    "tarpon_mask_bit": (ctypes.c_uint32, [_HANDLE, ctypes.c_uint32]),
    "tarpon_datapath_name": (_TEXT, [_HANDLE]),
    "tarpon_interface_name": (_TEXT, [_HANDLE]),
    "tarpon_integrity_name": (_TEXT, [_HANDLE]),
    "tarpon_exposed": (_TEXT, [_HANDLE]),
    "tarpon_allreduce_start": (_INT, [_HANDLE, _place(Arguments), _place(_HANDLE)]),
    "tarpon_collective_start": (
        _INT,
        [_HANDLE, _place(CollectiveArguments), _place(_HANDLE)],
    ),
    "tarpon_send_start": (_INT, [_HANDLE, _place(Message), _place(_HANDLE)]),
    "tarpon_recv_start": (_INT, [_HANDLE, _place(Message), _place(_HANDLE)]),
    "tarpon_probe": (
        _INT,
        [_HANDLE, ctypes.c_uint32, ctypes.c_int64, _place(ctypes.c_uint32)],
    ),
    "tarpon_wait": (_INT, [_HANDLE, _place(_HANDLE)]),
    "tarpon_call_free": (None, [_HANDLE]),
    "tarpon_report_summary": (_INT, [_HANDLE, _place(Summary)]),
    "tarpon_report_ranks": (
        _INT,
        [
            _HANDLE,
            ctypes.c_uint32,
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.c_uint32,
            _place(ctypes.c_uint32),
        ],
    ),
    "tarpon_report_text": (_TEXT, [_HANDLE]),
    "tarpon_report_free": (None, [_HANDLE]),
    "tarpon_behind": (_INT, [_HANDLE, ctypes.c_uint32, _place(ctypes.c_uint32)]),
    "tarpon_set_loss_target": (_INT, [_HANDLE, ctypes.c_double]),
    "tarpon_barrier": (_INT, [_HANDLE, ctypes.c_int64]),
    "tarpon_abort": (_INT, [_HANDLE, _TEXT]),
    "tarpon_agree": (
        _INT,
        [_HANDLE, ctypes.c_uint64, _place(Loss), ctypes.c_int64, _place(StepVerdict)],
    ),
    "tarpon_split": (
        _INT,
        [
            _HANDLE,
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.c_int64,
            _place(_HANDLE),
        ],
    ),
    "tarpon_rejoin": (_INT, [_HANDLE, ctypes.c_int64, _place(_HANDLE)]),
    "tarpon_left_out": (_TEXT, [_HANDLE]),
    "tarpon_resync": (
        _INT,
        [_HANDLE, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64],
    ),
    "tarpon_close": (_INT, [_HANDLE, ctypes.c_int64]),
    "tarpon_communicator_free": (None, [_HANDLE]),
}


def _candidates() -> "list[str]":
    named = os.environ.get("TARPON_LIBRARY")
    if named:
        return [named]
    packed = pathlib.Path(__file__).parent / FILE_NAME
    return [str(packed), FILE_NAME] if packed.exists() else [FILE_NAME]


def _open() -> ctypes.CDLL:
    tried = []
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))
    raise TarponError(
        f"cannot load Tarpon's library ({'; '.join(tried)}): install the package libtarpon, or set "
        f"TARPON_LIBRARY=/path/to/{FILE_NAME}"
    )


_library: Optional[ctypes.CDLL] = None


def library() -> ctypes.CDLL:
    """The loaded library. Errors: TarponError names the places that were tried."""
    global _library
    if _library is None:
        opened = _open()
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(opened, name, None)
            if function is None:
                raise TarponError(
                    f"{opened._name} has no {name}: it is another version than this package; install "
                    "both from one release"
                )
            function.restype = result
            function.argtypes = arguments
        _library = opened
    return _library


def error_text() -> str:
    """What failed in the last function that failed on this thread."""
    return library().tarpon_error_text().decode(errors="replace")


def check(code: int) -> None:
    """Raises TarponError with the library's text unless `code` is OK."""
    if code != OK:
        raise TarponError(error_text(), code)


def microseconds(seconds: float) -> int:
    return int(min(seconds, 1e9) * 1e6)
