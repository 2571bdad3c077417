"""Waits that Ctrl-C ends, and stores that are asked again and again."""

import ctypes
import datetime
import os
import signal
import sys
import threading
import time

import ranks

from tarpon_torch.library import TarponError
from tarpon_torch.waits import PatientStore, interruptible

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


TESTS = {"interruptible": test_interruptible, "patient_store": test_patient_store}

if __name__ == "__main__":
    sys.exit(ranks.main({}, TESTS))
