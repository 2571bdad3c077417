"""Two ranks add through libtarpon.so, with Python's standard library alone.

    ctypes_test.py LIBRARY FILE     FILE: where rank 0 may leave its address
"""

import ctypes
import glob
import os
import signal
import subprocess
import sys
import tempfile

RANKS = 2


class Arguments(ctypes.Structure):
    """tarpon_arguments of collectives/tarpon.h."""

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
    ]


def load(path):
    library = ctypes.CDLL(path)
    library.tarpon_error_text.restype = ctypes.c_char_p
    library.tarpon_report_text.restype = ctypes.c_char_p
    library.tarpon_report_text.argtypes = [ctypes.c_void_p]
    library.tarpon_report_free.argtypes = [ctypes.c_void_p]
    library.tarpon_report_free.restype = None
    library.tarpon_close.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.tarpon_communicator_free.argtypes = [ctypes.c_void_p]
    library.tarpon_communicator_free.restype = None
    return library


def run_rank(path):
    library = load(path)

    def check(code):
        if code != 0:
            raise RuntimeError(library.tarpon_error_text().decode())

    rank = int(os.environ["RANK"])
    job = ctypes.c_void_p()
    check(library.tarpon_connect_from_environment(None, ctypes.byref(job)))
    data = (ctypes.c_float * 1000)(*[rank + 1] * 1000)
    call = Arguments(size=ctypes.sizeof(Arguments), count=len(data), deadline_us=20_000_000)
    call.input = call.output = ctypes.addressof(data)
    report = ctypes.c_void_p()
    check(library.tarpon_allreduce(job, ctypes.byref(call), ctypes.byref(report)))
    assert list(data) == [3.0] * 1000, data[0]
    assert library.tarpon_report_text(report).startswith(b"complete: ")
    library.tarpon_report_free(report)
    call.deadline_us = 0
    assert library.tarpon_allreduce(job, ctypes.byref(call), None) != 0
    assert b"deadline must be positive" in library.tarpon_error_text()
    # TARPON_FLIGHT asks for a recording on SIGUSR1, whose default action would end this process.
    os.kill(os.getpid(), signal.SIGUSR1)
    assert glob.glob(f"{os.environ['TARPON_FLIGHT']}/*.{rank}.flight")
    check(library.tarpon_close(job, 20_000_000))
    library.tarpon_communicator_free(job)


def main():
    if len(sys.argv) == 2:
        run_rank(sys.argv[1])
        return 0
    library, meet = sys.argv[1:]
    ranks = []
    flight = tempfile.TemporaryDirectory()
    for rank in range(RANKS):
        place = {
            "RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "TARPON_RENDEZVOUS": "file://" + meet,
            "TARPON_INTERFACE": "lo",
            "TARPON_FLIGHT": flight.name,
        }
        ranks.append(
            subprocess.Popen([sys.executable, __file__, library], env={**os.environ, **place})
        )
    codes = [rank.wait() for rank in ranks]
    if os.path.exists(meet):
        os.remove(meet)
    print("two ranks added through ctypes" if not any(codes) else f"exit codes {codes}")
    return int(any(codes))


sys.exit(main())
