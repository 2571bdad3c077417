#!/usr/bin/env python3
"""Exact AllReduce among ranks of one host: through the memory that they share (the default), over
loopback (--hosts off), by Open MPI and by Gloo, with the same timing rule: an untimed refill and
barrier before each iteration, the slowest rank counts, runs interleaved.

Prints one table, writes hosts.json, ends with the targets; exit code 1 when one is missed.
Intervals are 95 % bootstrap intervals over the rounds' medians."""
import argparse, json, os, subprocess, tempfile

from contenders import Run
from figures import (KIB, MIB, Progress, at_most, fail, finish, human, interval, median, ratios)

SHARED, LOOPBACK, MPI, GLOO = "shared memory", "loopback", "Open MPI", "Gloo ring"
CONTENDERS = [SHARED, LOOPBACK, MPI, GLOO]
SIZES = [4 * KIB, 64 * KIB, MIB, 25 * MIB]
RANKS = [2, 4, 8]
# By size: the target for the time of shared memory, divided by the time of Open MPI.
TARGETS = {4 * KIB: 2.0, MIB: 1.0, 25 * MIB: 1.0}


def iterations_for(size, quick):
    if size <= 64 * KIB:
        return 300 if quick else 1000
    return (100 if quick else 200) if size <= MIB else (10 if quick else 25)


def run(command, **more):
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, **more)
    if process.returncode != 0:
        fail(" ".join(command), process)
    return process.stdout


def run_tarpon(binaries, ranks, size, iterations, hosts):
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        run([f"{binaries}/tarpon", "allreduce", "--local-ranks", str(ranks), "--hosts", hosts, "-b", str(size),
             "-e", str(size), "-n", str(iterations), "-w", "5", "--json", report.name])
        result = json.load(open(report.name))
    entry = result["results"][-1]
    assert entry["place"] == "in" and entry["nwrong"] == 0
    assert (entry["algorithm"] == "hosts") == (hosts == "on"), entry["algorithm"]
    return Run(entry["time_us"]["all"], entry["cpu_s"], entry["max_rss_kib"] - 2 * size // KIB, 0, 0)


def run_mpi(binaries, ranks, size, iterations):
    out = run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), "--mca", "btl",
               "self,vader", f"{binaries}/mpi_allreduce", str(iterations), "5", str(size)])
    result = json.loads(out)
    assert result["wrong"] == 0, result["wrong"]
    return Run(result["times_us"], None, result["rss_kib"], 0, 0)


def run_gloo(binaries, ranks, size, iterations):
    with tempfile.TemporaryDirectory() as store:
        program = [f"{binaries}/gloo_allreduce", store, "lo", "ring", str(iterations), "5", str(size)]
        processes = [subprocess.Popen(program, stdout=subprocess.PIPE, text=True,
                                      env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks)})
                     for rank in range(ranks)]
        rows = [process.communicate(timeout=300)[0].split() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    return Run([max(values) for values in zip(*([float(v) for v in row[5:]] for row in rows))], None, None, 0, 0)


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.samples = {}  # (ranks, size, contender) -> list of rounds, each a list of us
        self.memory = {}   # (ranks, size, contender) -> KiB of the largest rank beyond its buffers

    def measure(self, ranks, size, contender):
        binaries, count = self.arguments.binaries, iterations_for(size, self.arguments.quick)
        if contender == GLOO:
            count = min(count, 100)  # it takes up to 20 ms a call where ranks are more than cores
        if contender in (SHARED, LOOPBACK):
            result = run_tarpon(binaries, ranks, size, count, "on" if contender == SHARED else "off")
        else:
            result = (run_mpi if contender == MPI else run_gloo)(binaries, ranks, size, count)
        self.samples.setdefault((ranks, size, contender), []).append(result.times)
        if result.extra_kib is not None:
            key = ranks, size, contender
            self.memory[key] = max(self.memory.get(key, 0), result.extra_kib)

    def run(self):
        rounds = 3 if self.arguments.quick else self.arguments.rounds
        cells = [(ranks, size) for ranks in RANKS for size in SIZES]
        progress = Progress(rounds * len(cells) * len(CONTENDERS))
        for number in range(rounds):
            for ranks, size in cells:
                first = number % len(CONTENDERS)
                for contender in CONTENDERS[first:] + CONTENDERS[:first]:
                    self.measure(ranks, size, contender)
                    progress.step(f"{ranks} ranks, {human(size)}")
        progress.end()

    def medians(self, ranks, size, contender):
        return [median(values) for values in self.samples[ranks, size, contender]]

    def table(self):
        rows = []
        print(f"{'ranks':>5} {'size':>5} {'who':>14} {'p50 us':>10} {'95 % interval':>20} {'/ Open MPI':>10} "
              f"{'MiB beyond buffers':>18}")
        for ranks in RANKS:
            for size in SIZES:
                for who in CONTENDERS:
                    medians = self.medians(ranks, size, who)
                    low, high = interval(medians)
                    ratio = median(ratios(medians, self.medians(ranks, size, MPI)))
                    kib = self.memory.get((ranks, size, who))
                    rows.append({"ranks": ranks, "size": size, "who": who, "p50_us": median(medians),
                                 "p50_interval_us": [low, high], "over_open_mpi": ratio,
                                 "kib_beyond_buffers": kib, "rounds": self.samples[ranks, size, who]})
                    beyond = "-" if kib is None else f"{kib / KIB:.0f}"
                    print(f"{ranks:>5} {human(size):>5} {who:>14} {median(medians):>10.0f} "
                          f"{f'{low:.0f} .. {high:.0f}':>20} {ratio:>10.2f} {beyond:>18}")
        return rows

    def targets(self):
        return [at_most(limit, f"{human(size)}, {ranks} ranks: shared memory / Open MPI",
                        ratios(self.medians(ranks, size, SHARED), self.medians(ranks, size, MPI)))
                for ranks in (4, 8) for size, limit in TARGETS.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="preset 'bench' built here; reports too")
    parser.add_argument("--quick", action="store_true", help="2 minutes")
    parser.add_argument("--rounds", type=int, default=6, help="interleaved rounds (6)")
    arguments = parser.parse_args()
    arguments.binaries = os.path.join(arguments.build, "bin")
    bench = Bench(arguments)
    bench.run()
    rows = bench.table()
    finish(os.path.join(arguments.build, "hosts.json"), bench.targets(), rows=rows)


if __name__ == "__main__":
    main()
