"""Waits that Ctrl-C ends, what the end of the interpreter waits for, and stores that are asked again and again."""

import ctypes
import datetime
import os
import signal
import subprocess
import sys
import threading
import time

import ranks

from tarpon_torch.library import TarponError
from tarpon_torch.waits import PatientStore, Wait, interruptible

WAIT_S = 20


def test_interruptible():
    """A wait inside C ends at once for the main thread; its value is discarded when it comes."""
    assert interruptible(lambda: 3) == 3
    discarded = []
    ready = threading.Event()
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    try:
        interruptible(lambda: ctypes.CDLL(None).sleep(WAIT_S) or ready.wait() or 7, discarded.append)
        raise AssertionError("not interrupted")
    except KeyboardInterrupt:
        assert time.monotonic() - begin < WAIT_S / 2
    assert discarded == []
    ready.set()
    while not discarded and time.monotonic() < begin + 3 * WAIT_S:
        time.sleep(0.05)
    assert discarded == [True], discarded
    try:
        interruptible(lambda: {}["name"])
        raise AssertionError("no error")
    except KeyError as error:
        assert "name" in str(error)


def test_interrupted_wait():
    """It can be waited for again, and its work runs once."""
    runs, ready = [], threading.Event()
    wait = Wait(lambda: runs.append(1) or ready.wait() or 7, discard=lambda value: None)
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        wait.value()
        raise AssertionError("not interrupted")
    except KeyboardInterrupt:
        pass
    ready.set()
    assert wait.value() is True and wait.value() is True and runs == [1], runs


_AT_EXIT = """
import atexit, time
atexit.register(lambda: print(interruptible(lambda: 3), flush=True))  # runs after the package's own
from tarpon_torch.waits import interruptible
assert interruptible(lambda: 2) == 2
"""

_CONNECTING = """
import os, signal, threading
from tarpon_torch import Communicator
from tarpon_torch.waits import interruptible
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    interruptible(lambda: Communicator.connect(None, 0, 2, 100.0))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""

_CALLBACK = """
import time
import torch
from tarpon_torch import Communicator
from tarpon_torch.calls import Outcome
def late(_):
    time.sleep(12)
    print(int(torch.ones(3).sum()), flush=True)
outcome = Outcome(1)
future = outcome.future_of(None).then(late)
Communicator.connect(None, 0, 1, 10.0).allreduce(
    torch.ones(3), 0, deadline=10.0, ended=lambda call: outcome.end(call.error))
outcome.wait()
"""

_ENDLESS = """
import threading
import tarpon_torch.threads as threads
threads._PYTORCH_SECONDS = 2.0
threads.callbacks.run(lambda: threads.run_pytorch(threading.Event().wait))
print("ends", flush=True)
"""


def _end_of(program, **variables):
    """What the program prints, and the seconds from its first line to its end."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        first = process.stdout.readline()
        began = time.monotonic()
        rest, _ = process.communicate(timeout=5 * WAIT_S)
    finally:
        process.kill()
    return first + rest, process.returncode, time.monotonic() - began


def test_exit():
    """A wait after the end of the threads, a rank that is about to connect, and callbacks that run."""
    assert _end_of(_AT_EXIT)[:2] == ("3\n", 0)
    port = str(ranks.free_port())
    text, code, seconds = _end_of(_CONNECTING, TARPON_RENDEZVOUS=f"127.0.0.1:{port}")
    assert (text, code) == ("interrupted\n", 0) and seconds < 8, (text, code, seconds)
    assert _end_of(_CALLBACK)[:2] == ("3\n", 0)
    text, code, _ = _end_of(_ENDLESS)
    assert text.startswith("ends\ntarpon_torch: a callback") and code == 0, (text, code)


class _Store:
    """Has a key from the third question on; `asked` may be set by the test."""

    def __init__(self):
        self.asked = 0

    def check(self, keys):
        self.asked += 1
        return self.asked > 2

    def get(self, key):
        return b"value of " + key.encode()


def test_patient_store():
    store = _Store()
    patient = PatientStore(store)
    patient.wait(["key"], datetime.timedelta(seconds=30))
    assert store.asked == 3 and patient.get("key") == b"value of key"

    store.asked = -(1 << 30)
    for seconds, end, text in (
        (0.05, lambda: None, "no word"),
        (60.0, patient.give_up, "interrupted"),
    ):
        threading.Timer(0.2, end).start()
        try:
            patient.wait(["key"], datetime.timedelta(seconds=seconds))
            raise AssertionError("found")
        except TarponError as error:
            assert text in str(error), error


TESTS = {
    "interruptible": test_interruptible,
    "interrupted_wait": test_interrupted_wait,
    "exit": test_exit,
    "patient_store": test_patient_store,
}

if __name__ == "__main__":
    sys.exit(ranks.main({}, TESTS))
