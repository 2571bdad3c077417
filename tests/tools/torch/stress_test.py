"""Calls under Ctrl-C, close(), abort() and the end of the interpreter, at random moments.

    stress_test.py NAME     TARPON_STRESS_SECONDS: how long (3)

The library must not write to memory that Python has freed: freed memory is taken again and looked at,
and with a library that has AddressSanitizer inside, that one looks, too. The seed is printed first, and
TARPON_STRESS_SEED repeats it.
"""

import atexit
import os
import random
import signal
import sys
import threading
import time

import ranks
import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("TARPON_STRESS_SECONDS", "3"))
SEED = int(os.environ.get("TARPON_STRESS_SEED") or random.SystemRandom().randrange(1 << 30))
ROUND_S = 1.0
DEADLINE_S = 0.3
CONNECT_S = 60.0
SIZES = (24, 1000, 40_000)
GUARDS = 8

_kept = []  # until the interpreter ends


class Storm:
    """Ctrl-C for the main thread, again and again."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._over = False
        self._main = threading.main_thread().ident
        self._thread = threading.Thread(target=self._run, daemon=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def begin(self):
        self._thread.start()

    def _run(self):
        while not self._over:
            time.sleep(self._random.choice((0.0, 0.001, 0.01)) * self._random.random())
            signal.pthread_kill(self._main, signal.SIGINT)

    def end(self):
        while True:
            try:
                self._over = True
                self._thread.join()
                time.sleep(0.01)
                return
            except KeyboardInterrupt:
                pass


def _is_uniform(tensor):
    return bool((tensor == tensor[0]).all())


class Calls:
    """Calls of one thread, whose memory is freed and taken again."""

    def __init__(self, communicator, tag, seed):
        self._communicator = communicator
        self._tag = tag
        self._random = random.Random(seed)
        self._guards = []
        self.wrong = []

    def make(self, until):
        while time.monotonic() < until:
            try:
                self._make_one()
            except (KeyboardInterrupt, RuntimeError):
                pass

    def _make_one(self):
        size = self._random.choice(SIZES)
        tensor = torch.full((size,), float(dist.get_rank() + 1))
        if self._random.random() < 0.2:
            tensor = torch.full((size, 2), 1.0)[:, 0]
        waits = self._random.random() < 0.5
        if waits:
            self._communicator.allreduce_now(tensor, 0, tag=self._tag, deadline=DEADLINE_S)
            if not _is_uniform(tensor):
                self.wrong.append("a result")
        else:
            self._communicator.allreduce(
                tensor, 0, tag=self._tag, deadline=DEADLINE_S, ended=lambda call: None
            )
        del tensor
        # Memory that was freed too early is likely to be part of this now.
        self._guards.append(torch.full((size,), -1.0))
        if len(self._guards) > GUARDS:
            guard = self._guards.pop(0)
            if not bool((guard == -1.0).all()):
                self.wrong.append("memory of another tensor")


def _end_of_round(communicator, kind, until):
    """Half-way through the round, from another thread."""
    time.sleep(max(0.0, until - time.monotonic() - ROUND_S / 2))
    if kind == "abort":
        communicator.abort("for the test")
    elif kind == "close":
        communicator.close(seconds=0.1)


def stress(seconds, seed):
    from tarpon_torch import Communicator

    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    wrong = []
    for number in range(max(1, int(seconds / ROUND_S))):
        dist.barrier()
        communicator = Communicator.connect(
            dist.PrefixStore(f"stress{number}", store), rank, world, CONNECT_S
        )
        until = time.monotonic() + ROUND_S
        kind = ("none", "abort", "close")[number % 3] if rank == number // 3 % world else "none"
        makers = [Calls(communicator, tag, seed + 7 * number + tag) for tag in (0, 1)]
        others = [
            threading.Thread(target=makers[1].make, args=(until,)),
            threading.Thread(target=_end_of_round, args=(communicator, kind, until)),
        ]
        for other in others:
            other.start()
        storm = Storm(seed + number)
        try:
            storm.begin()
            makers[0].make(until)
        except KeyboardInterrupt:
            pass
        storm.end()
        for other in others:
            other.join()
        for maker in makers:
            wrong += maker.wrong
        communicator.close(seconds=0.1)
        del communicator
    return wrong


def end_in_the_midst():
    """Of calls, with a Ctrl-C while communicators are closed."""
    from tarpon_torch import Communicator

    rank = dist.get_rank()
    store = dist.PrefixStore("end", dist.distributed_c10d._get_default_store())
    communicator = Communicator.connect(store, rank, dist.get_world_size(), CONNECT_S)
    _kept.append(communicator)
    for tag in range(4):
        communicator.allreduce(
            torch.ones(40_000), 0, tag=4 * rank + tag, deadline=CONNECT_S, ended=lambda call: None
        )
    ending = threading.Event()

    def interrupt():
        ending.wait()
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    if rank == 1:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=interrupt, daemon=True).start()
        atexit.register(ending.set)  # runs before the package's


def test_stress():
    for wrong in ranks.run("stress", 2, {"seconds": SECONDS, "seed": SEED}, timeout=SECONDS + 250):
        assert wrong == [], wrong


def test_end_in_the_midst():
    assert ranks.run("end_in_the_midst", 2) == [None, None]


FUNCTIONS = {function.__name__: function for function in (stress, end_in_the_midst)}
TESTS = {"stress": test_stress, "end": test_end_in_the_midst}

if __name__ == "__main__":
    if "--rank" not in sys.argv:
        print(f"TARPON_STRESS_SEED={SEED}", flush=True)
    sys.exit(ranks.main(FUNCTIONS, TESTS))
