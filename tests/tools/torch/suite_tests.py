"""Runs tests of PyTorch's own suite, distributed_test, and prints a line for each: verdict NAME WORD.

Started by suite.py. BACKEND and WORLD_SIZE are set. Each test starts WORLD_SIZE processes, which
import this file. Debian's python3-torch has the suite without the module expecttest: the suite
needs two of its names.

With TARPON_SUITE_BACKEND=tarpon the groups of backend "gloo" are of class ProcessGroupTarpon: a test that
wants Gloo's name runs, and gets Tarpon.
"""

import os
import sys
import types
import unittest

stub = types.ModuleType("expecttest")
stub.TestCase = unittest.TestCase
stub.ACCEPT = False
sys.modules["expecttest"] = stub

from torch.nn.parallel import _replicated_tensor_ddp_utils as replicated_tensor  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

# The suite switches a part of DDP on that is off in programs, and that Python 3.11 cannot import.
replicated_tensor._set_ddp_with_replicated_tensor = lambda value: None

# A process of a test starts in 3 s on a quiet machine. The suite allows 10 s between two of them.
distributed_test.Barrier.sync.__func__.__defaults__ = (None, 60)


def put_tarpon_for_gloo():
    import tarpon_torch
    from torch.distributed import distributed_c10d

    class Group(tarpon_torch.ProcessGroupTarpon):
        def __init__(self, store, rank, world_size, timeout):
            super().__init__(store, rank, world_size, timeout)
            print("tarpon: a rank has 1 group", flush=True)

        def _set_sequence_number_for_group(self):
            """c10d asks Gloo for it. The numbers are for messages of the wrapper of debug mode."""

    distributed_c10d.ProcessGroupGloo = Group
    # Debug mode wraps groups of C++ alone.
    distributed_c10d._create_process_group_wrapper = lambda wrapped_pg, **_: wrapped_pg
    # Gloo's works report themselves to the profiler.
    distributed_test.PROFILING_SUPPORTED_BACKENDS.clear()
    distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.clear()


if os.environ.get("TARPON_SUITE_BACKEND") == "tarpon":
    put_tarpon_for_gloo()


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()


class Verdicts(unittest.TextTestResult):
    """Prints the verdict, after everything that the test's processes wrote."""

    def stopTest(self, test):
        super().stopTest(test)
        broken = {each for each, _ in self.failures + self.errors}
        skipped = {each for each, _ in self.skipped}
        for each, text in self.failures + self.errors:
            if each is test:
                print(text)
        word = "fail" if test in broken else "skip" if test in skipped else "pass"
        print(f"verdict {test._testMethodName} {word}", flush=True)


def main(names):
    if names == ["--list"]:
        print("\n".join(unittest.TestLoader().getTestCaseNames(Suite)))
        return
    tests = unittest.TestSuite(Suite(name) for name in names)
    unittest.TextTestRunner(stream=sys.stdout, resultclass=Verdicts, verbosity=0).run(tests)


if __name__ == "__main__":
    names, sys.argv[1:] = sys.argv[1:], []  # the suite's modules parse the arguments too
    main(names)
