#!/usr/bin/env python3
"""Tarpon's exact AllReduce beside Gloo's, on the namespace testbed: the same timing rule for both
(untimed refill and barrier before each iteration, the slowest rank counts), runs interleaved.
From 1 MiB on, the row 'minimal' is an upper limit: a Transpose AllReduce over UDP sockets without
reliability (minimal_allreduce.cc).

Prints one table, writes NAME.json, ends with the targets; exit code 1 when one is missed.
Intervals are 95 % bootstrap intervals over the rounds' medians."""
import argparse, os

from contenders import GLOO, run_gloo, run_minimal, run_tarpon
from figures import (KIB, MIB, Progress, at_least, at_most, finish, human, interval, median, not_beyond,
                     percentile, ratios)

TARPON = ["uring", "mmsg"]
MINIMAL = "minimal"
MINIMAL_SHARE = {1500: 0.95, 9000: 0.88}  # by MTU: the share of its rate that io_uring must reach


def iterations_for(size, ranks, quick):
    """Large ones fewer; where the targets are, enough for a P99 over the whole run."""
    if size <= 4 * MIB:
        return 100 if quick else 200
    if quick or size > 25 * MIB:
        return 6
    return 25 if ranks == 4 else 10


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.samples = {}   # (ranks, mtu, size, contender) -> list of rounds, each a list of us
        self.extra_kib = 0
        self.lost = 0       # operations of 'minimal' that lost data

    def contenders(self, size):
        """Without 'minimal' for small sizes: it sleeps whenever it waits, so it is no limit there."""
        return (TARPON + (["baseline"] if self.arguments.baseline else []) +
                ([MINIMAL] if size >= MIB else []) + GLOO)

    def cells(self):
        if self.arguments.quick:
            return [(4, 1500, [4 * KIB, 1 * MIB, 25 * MIB]), (4, 9000, [25 * MIB])]
        sizes = [4 * KIB, 64 * KIB, 1 * MIB, 25 * MIB, 64 * MIB]
        return [(ranks, mtu, sizes) for ranks in (4, 8) for mtu in (1500, 9000)]

    def run(self):
        rounds = 3 if self.arguments.quick else self.arguments.rounds
        progress = Progress(rounds * sum(len(self.contenders(size)) for _, _, sizes in self.cells()
                                         for size in sizes))
        for round_number in range(rounds):
            for ranks, mtu, sizes in self.cells():
                for size in sizes:
                    contenders = self.contenders(size)
                    first = round_number % len(contenders)
                    for contender in contenders[first:] + contenders[:first]:
                        self.measure(ranks, mtu, size, contender)
                        progress.step(f"{ranks} ranks, MTU {mtu}, {human(size)}")
        progress.end()

    def measure(self, ranks, mtu, size, contender):
        iterations = iterations_for(size, ranks, self.arguments.quick)
        if contender == "baseline":
            result = run_tarpon(self.arguments.baseline, ranks, mtu, size, iterations, "uring")
        elif contender == MINIMAL:
            result = run_minimal(self.arguments.binaries, ranks, mtu, size, iterations)
            self.lost += iterations - len(result.times)
        else:
            run = run_tarpon if contender in TARPON else run_gloo
            result = run(self.arguments.binaries, ranks, mtu, size, iterations, contender)
        self.extra_kib = max(self.extra_kib, result.extra_kib or 0)
        self.samples.setdefault((ranks, mtu, size, contender), []).append(result.times)

    def medians(self, ranks, mtu, size, contender):
        return [median(values) for values in self.samples[ranks, mtu, size, contender]]

    def best_gloo(self, ranks, mtu, size):
        return min(GLOO, key=lambda name: median(self.medians(ranks, mtu, size, name)))

    def ratios(self, ranks, mtu, size, over, under):
        """Round by round: median of `over` / median of `under`."""
        return ratios(self.medians(ranks, mtu, size, over), self.medians(ranks, mtu, size, under))

    def table(self):
        rows = []
        print(f"{'ranks':>5} {'MTU':>5} {'size':>5} {'who':>17} {'p50 us':>10} {'95 % interval':>21} "
              f"{'p99 us':>10} {'max us':>10} {'best Gloo / it':>15}")
        for ranks, mtu, sizes in self.cells():
            for size in sizes:
                best = self.best_gloo(ranks, mtu, size)
                for contender in self.contenders(size):
                    everything = [t for r in self.samples[ranks, mtu, size, contender] for t in r]
                    low, high = interval(self.medians(ranks, mtu, size, contender))
                    p99 = percentile(everything, 0.99)
                    ratio = median(self.ratios(ranks, mtu, size, best, contender))
                    row = {"ranks": ranks, "mtu": mtu, "size": size, "who": contender,
                           "p50_us": median(everything), "p50_interval_us": [low, high],
                           "p99_us": p99, "max_us": max(everything), "speedup_over_best_gloo": ratio,
                           "rounds": self.samples[ranks, mtu, size, contender]}
                    rows.append(row)
                    name = f"gloo {contender}" if contender in GLOO else contender
                    mark = "*" if contender == best else " "
                    p99_text = "-" if p99 is None else f"{p99:.0f}"
                    print(f"{ranks:>5} {mtu:>5} {human(size):>5} {name:>17}{mark}{row['p50_us']:>9.0f} "
                          f"{f'{low:.0f} .. {high:.0f}':>21} "
                          f"{p99_text:>10} {max(everything):>10.0f} {ratio:>15.2f}")
        if self.lost:
            print(f"minimal: {self.lost} operations lost data; they are left out")
        return rows

    def targets(self):
        found = []
        for mtu in (1500, 9000):
            found.append(at_least(2.0, f"25M, 4 ranks, MTU {mtu}: best Gloo / uring", self.ratios(
                4, mtu, 25 * MIB, self.best_gloo(4, mtu, 25 * MIB), "uring")))
            found.append(at_least(0.85, f"25M, 4 ranks, MTU {mtu}: uring / mmsg",
                                  self.ratios(4, mtu, 25 * MIB, "uring", "mmsg")))
            found.append(at_least(MINIMAL_SHARE[mtu], f"25M, 4 ranks, MTU {mtu}: minimal / uring",
                                  self.ratios(4, mtu, 25 * MIB, MINIMAL, "uring")))
        for ranks, mtu, sizes in self.cells():
            for size in sizes:
                found.append(at_least(
                    1.0, f"{human(size)}, {ranks} ranks, MTU {mtu}: best Gloo / uring",
                    self.ratios(ranks, mtu, size, self.best_gloo(ranks, mtu, size), "uring")))
                if self.arguments.baseline:
                    values = self.ratios(ranks, mtu, size, "uring", "baseline")
                    found.append(not_beyond(f"{human(size)}, {ranks} ranks, MTU {mtu}: uring / baseline",
                                            1.0, median(values), interval(values)))
        found.append(at_most(65536, "KiB of resident memory beyond twice the buffers",
                             [self.extra_kib]))
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="preset 'bench' built here; reports too")
    parser.add_argument("--quick", action="store_true", help="under 2 minutes")
    parser.add_argument("--baseline", metavar="FOLDER", help="bin folder of another revision's build: "
                        "its calls on uring take turns too")
    parser.add_argument("--rounds", type=int, default=4, help="interleaved rounds (4)")
    arguments = parser.parse_args()
    if arguments.baseline and not os.access(f"{arguments.baseline}/tarpon", os.X_OK):
        parser.error(f"--baseline {arguments.baseline}: no program tarpon there")
    arguments.binaries = os.path.join(arguments.build, "bin")
    bench = Bench(arguments)
    bench.run()
    rows = bench.table()
    finish(os.path.join(arguments.build, "allreduce.json"), bench.targets(), rows=rows,
           minimal_lost=bench.lost)


if __name__ == "__main__":
    main()
