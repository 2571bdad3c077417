"""PyTorch's own suite with the Gloo shim in front, or with the backend "tarpon" in place of Gloo: each
test ends as it does with stock Gloo.

suite_stock.txt holds the verdicts with stock Gloo, one `TEST VERDICT` a line, without the tests that
stock Gloo skips: most of them need a GPU. A verdict that differs is a failure, and so is a run in
which nothing went by Tarpon.
"""

import argparse
import collections
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
STOCK = HERE / "suite_stock.txt"
RANKS = 4

# The tests whose names match use AllReduce, which the shim carries. Left out are the tests of GPUs and of
# NCCL, and the tests that stock Gloo skips.
ALLREDUCE = re.compile(
    r"all_?reduce|ddp|DistributedDataParallel|SyncBatchNorm|averag|post_localSGD|"
    r"accumulate_gradients|static_graph|unused|undefined_grad|get_future|new_subgroups"
)
ELSEWHERE = re.compile(r"cuda|gpu|nccl|multigpu")

# All tests but one that compares the name of the group's class with "gloo".
NOT_BY_NAME = re.compile(r"^(?!test_ddp_logging_data_cpu$)")

# What ctest runs: DDP, and types of calls and groups. 25 s on a quiet machine.
SHORT = (
    "test_DistributedDataParallelCPU",
    "test_static_graph_api_cpu",
    "test_all_reduce_coalesced_group_max",
    "test_all_reduce_group_product",
    "test_all_reduce_sum_async",
    "test_all_reduce_sum_complex",
)

# A test takes 5 s on a quiet machine, the longest 20 s.
SECONDS_A_TEST = 100
SECONDS_TO_START = 60

VERDICT = re.compile(r"verdict (test_\w+) (pass|fail|skip)")


@dataclasses.dataclass
class Test:
    """What became of a test."""

    verdict: str  # pass, fail, skip; none: the suite ended before the test
    carried: int  # what Tarpon carried, counted on each rank
    output: str


@dataclasses.dataclass
class Subject:
    """What carries the suite's collectives."""

    name: str
    variables: dict
    carries: str  # what its lines count
    carried: re.Pattern  # such a line
    takes: re.Pattern  # names of tests


def stock():
    return Subject("stock", {}, "nothing", re.compile(r"(?!)"), re.compile(""))


def shim(path):
    # A context that Tarpon refuses is an error, and no silent run with stock Gloo.
    variables = {
        "LD_PRELOAD": path,
        "TARPON_DEBUG": "INFO",
        "TARPON_REQUIRE": "1",
        "TARPON_MODE": "exact",
    }
    lines = re.compile(r"tarpon: rank \d+ carried (\d+) allreduces")
    return Subject("shim", variables, "AllReduces", lines, ALLREDUCE)


def backend(path):
    variables = {
        "TARPON_LIBRARY": path,
        "TARPON_MODE": "exact",
        "TARPON_SUITE_BACKEND": "tarpon",
        "PYTHONPATH": str(HERE.parents[2] / "tools" / "torch"),
    }
    lines = re.compile(r"tarpon: a rank has (\d+) group")
    return Subject("backend", variables, "groups", lines, NOT_BY_NAME)


def environment(subject):
    # The suite's file store and its address are the only ways in which its ranks meet.
    return {
        **os.environ,
        "BACKEND": "gloo",
        "WORLD_SIZE": str(RANKS),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(SECONDS_A_TEST),
        "PYTHONDONTWRITEBYTECODE": "1",
        **subject.variables,
    }


def end_all(process):
    """The session holds the ranks of the test that runs, too."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def lines_of(names, subject):
    """What suite_tests.py and its ranks print."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "suite_tests.py"), *names],
        env=environment(subject),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    limit = SECONDS_TO_START + SECONDS_A_TEST * len(names)
    timer = threading.Timer(limit, end_all, [process])
    timer.start()
    try:
        yield from process.stdout
        process.wait()
    finally:
        timer.cancel()
        end_all(process)
        process.wait()


def run(names, subject):
    """The tests by name, those included that the suite did not reach."""
    tests = {}
    output = []
    for line in lines_of(names, subject):
        output.append(line)
        ended = VERDICT.match(line)
        if ended:
            text = "".join(output)
            carried = sum(int(count) for count in subject.carried.findall(text))
            tests[ended[1]] = Test(ended[2], carried, text)
            print(f"{ended[2]} {ended[1]}, {carried} {subject.carries}", flush=True)
            output = []
    for name in names:
        tests.setdefault(name, Test("none", 0, "".join(output)))
    return tests


def renew_stock(logs):
    listed = lines_of(["--list"], stock())
    names = [line.strip() for line in listed if line.startswith("test_")]
    tests = run([name for name in names if not ELSEWHERE.search(name)], stock())
    keep_logs(logs, {name: test for name, test in tests.items() if test.verdict != "pass"})
    kept = {name: test.verdict for name, test in tests.items() if test.verdict != "skip"}
    STOCK.write_text("".join(f"{name} {kept[name]}\n" for name in sorted(kept)), encoding="utf-8")
    print(f"suite: {summary(tests)}; {STOCK.name} holds those that are not skipped")
    return 0


def keep_logs(folder, tests):
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, test in tests.items():
        (folder / f"{name}.log").write_text(test.output, encoding="utf-8")


def summary(tests):
    counts = collections.Counter(test.verdict for test in tests.values())
    return ", ".join(f"{counts[word]} {word}" for word in sorted(counts)) or "no test"


def reason(test):
    """The first line that names an error."""
    found = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|FAILED)\b.*$", test.output, re.MULTILINE)
    return found[0][:300] if found else "no error is named"


def compare(names, subject, logs):
    verdicts = dict(line.split() for line in STOCK.read_text(encoding="utf-8").splitlines())
    unknown = [name for name in names if name not in verdicts]
    if unknown:
        sys.exit(f"suite: {' '.join(unknown)}: not in {STOCK.name}")
    tests = run(names or [name for name in verdicts if subject.takes.search(name)], subject)
    differing = {name: test for name, test in tests.items() if test.verdict != verdicts[name]}
    keep_logs(logs, differing)
    for name, test in differing.items():
        print(f"DIFFERS {name}: stock {verdicts[name]}, {subject.name} {test.verdict}: {reason(test)}")
        if logs is None:
            print(test.output)
    carried = sum(test.carried for test in tests.values())
    if carried == 0:
        print("FAIL: nothing went by Tarpon")
    without = sum(test.carried == 0 for test in tests.values())
    print(
        f"suite: {summary(tests)}; {len(differing)} differ from stock Gloo; "
        f"{carried} {subject.carries} of Tarpon, none in {without} tests"
    )
    return int(bool(differing) or carried == 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--stock", action="store_true", help=f"renews {STOCK.name}, without the shim")
    parser.add_argument("--short", action="store_true", help="the selection that ctest runs")
    parser.add_argument("--backend", choices=["tarpon"], help="in place of Gloo, without the shim")
    parser.add_argument("--shim", default=os.environ.get("TARPON_GLOO_SHIM"), help="libtarpon_gloo.so")
    parser.add_argument("--library", default=os.environ.get("TARPON_LIBRARY"), help="libtarpon.so.0")
    parser.add_argument("--logs", type=pathlib.Path, help="folder for the output of tests that differ")
    parser.add_argument("test", nargs="*", help="names of tests; default: all that are stored")
    given = parser.parse_args()
    if given.stock:
        return renew_stock(given.logs)
    option, variable, path = (
        ("--library", "TARPON_LIBRARY", given.library)
        if given.backend
        else ("--shim", "TARPON_GLOO_SHIM", given.shim)
    )
    if not path or not os.path.exists(path):
        parser.error(f"{option} PATH, or the variable {variable}, has to name a file; it is {path}")
    subject = (backend if given.backend else shim)(os.path.abspath(path))
    return compare(list(SHORT) if given.short else given.test, subject, given.logs)


if __name__ == "__main__":
    sys.exit(main())
