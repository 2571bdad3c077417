#!/usr/bin/env python3
"""The model of many ranks against the testbed: AllReduces of 25 MiB by Gloo's ring and by Tarpon in
bounded mode on links shaped as those of ./dev bench tail, and what `tarpon-sim scale` says of ring and
bounded TAR with the same links.

Prints medians and P99 of both, writes model.json, ends with the targets; exit code 1 when one is
missed: medians within 25 %, P99 within 40 %. Intervals are 95 % bootstrap intervals over the measured
operations."""
import argparse, collections, json, os, subprocess, tempfile

from figures import Progress, bootstrap, finish, judged, median, p99, shown
from tail_bed import Bed, Failed
from tail_cells import SHAPED, SIZE

RANKS = 4, 8
WITHIN = (("median", median, 25), ("P99", p99, 40))  # %
CONTENDERS = {"ring": "Gloo's ring", "bounded": "Tarpon, bounded"}  # by the model's names

# Operations of each contender, in how many chunks; warm-up of Tarpon.
Plan = collections.namedtuple("Plan", "operations chunks warmup")
USUAL, SMOKE = Plan(100, 5, 10), Plan(4, 1, 5)


def modelled(binaries, ranks, operations, delay):
    """Times in us of each operation, by algorithm."""
    rate, burst, queue = SHAPED[1].split("/")
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        # tbf counts Ethernet's header with a packet; a rank's own interface is a veth without a rate.
        subprocess.run([f"{binaries}/tarpon-sim", "scale", "--ranks", str(ranks), "--algorithms",
                        ",".join(CONTENDERS), "--bytes", str(SIZE), "--operations", str(operations),
                        "--rate", rate, "--burst", burst, "--queue", queue, "--egress-rate", "none",
                        "--frame", "14", "--delay", delay, "--loss", "0", "--tail", "1",
                        "--json", report.name], check=True, timeout=600, stdout=subprocess.DEVNULL)
        cells = json.load(open(report.name))["results"]
    return {cell["algorithm"]: [1000 * ms for ms in cell["completions_ms"]] for cell in cells}


def measured(binaries, ranks, plan, progress):
    """The same, on the testbed; in turn, so that both meet what else the machine does."""
    times = {name: [] for name in CONTENDERS}
    chunk = plan.operations // plan.chunks
    with Bed(binaries, ranks, SHAPED) as bed:
        work = {"ring": lambda: bed.gloo(SIZE, chunk, 1, "ring"),
                "bounded": lambda: bed.tarpon(binaries, SIZE, chunk, plan.warmup)}
        for number in range(plan.chunks):
            for name in list(work)[::1 if number % 2 == 0 else -1]:
                times[name] += work[name]().times
                progress.step(f"{ranks} ranks, {CONTENDERS[name]}")
    return times


def compare(ranks, model, testbed):
    """Prints a row a contender; rows and targets."""
    rows, targets = [], []
    for name, text in CONTENDERS.items():
        row = {"ranks": ranks, "who": text, "measured_us": testbed[name], "model_us": model[name]}
        line = f"{ranks:>5} {text:<16}"
        for what, statistic, within in WITHIN:
            said, seen = statistic(model[name]), statistic(testbed[name])
            row[what] = {"measured_us": seen, "model_us": said}
            line += f" {shown(seen, 1000):>12} {shown(said, 1000):>9}"
            if seen is None:
                continue  # too few operations

            def apart(times, statistic=statistic, said=said):
                return 100 * abs(said / statistic(times) - 1)

            targets.append(judged(f"{ranks} ranks, {text}: {what}, model and testbed apart by %",
                                  within, apart(testbed[name]), bootstrap(apart, testbed[name]),
                                  most=True))
        print(line)
        rows.append(row)
    return rows, targets


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="preset 'bench' built here; reports too")
    parser.add_argument("--smoke", action="store_true", help="a few operations: does it run?")
    parser.add_argument("--delay", default="20us", help="one way on the testbed: half of what ping shows")
    arguments = parser.parse_args()
    binaries = os.path.join(arguments.build, "bin")
    plan = SMOKE if arguments.smoke else USUAL
    progress = Progress(len(RANKS) * (1 + plan.chunks * len(CONTENDERS)))
    found = []
    for ranks in RANKS:
        model = modelled(binaries, ranks, plan.operations, arguments.delay)
        progress.step(f"{ranks} ranks, model")
        try:
            found.append((ranks, model, measured(binaries, ranks, plan, progress)))
        except Failed as why:
            raise SystemExit(f"{ranks} ranks: {why}") from None
    progress.end()
    print(f"{'ranks':>5} {'who':<16} {'p50 measured':>12} {'model, ms':>9} {'p99 measured':>12} "
          f"{'model, ms':>9}")
    rows, targets = [], []
    for one in found:
        more_rows, more_targets = compare(*one)
        rows += more_rows
        targets += more_targets
    finish(os.path.join(arguments.build, "model.json"), targets, rows=rows)


if __name__ == "__main__":
    main()
