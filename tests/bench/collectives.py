#!/usr/bin/env python3
"""The collectives beside AllReduce, with one timing rule: an untimed refill and barrier before each
iteration, the slowest rank counts, runs interleaved. Sizes are those of the whole, as in nccl-tests: the
parts of all ranks together. The root is rank 0.

On the namespace testbed at MTU 1500, without a limit of the link: Tarpon and Gloo, called as PyTorch calls
it. Gloo has no function for reduce_scatter: its class ReduceScatterHalvingDoubling runs instead. Tarpon's
AllReduce runs beside them, for reduce_scatter plus all_gather.
On one host, over loopback or shared memory: Tarpon and Open MPI.
broadcast, reduce and reduce_scatter work in place, the others apart.

Prints two tables, writes collectives.json, ends with the targets; exit code 1 when one is missed.
Intervals are 95 % bootstrap intervals over the rounds' medians."""
import argparse, json, os, subprocess, tempfile

from contenders import runs_on_testbed
from figures import (KIB, MIB, Progress, at_least, at_most, fail, finish, human, interval, median, ratios)

COLLECTIVES = ["reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "alltoall"]
IN_PLACE = {"reduce_scatter", "broadcast", "reduce"}
ALLREDUCE = "all_reduce"
TARPON, GLOO, MPI = "Tarpon", "Gloo", "Open MPI"
NETWORK, ONE_HOST = "network", "one host"
PEER = {NETWORK: GLOO, ONE_HOST: MPI}

# Sizes that one run measures, with the same number of calls.
SMALL, LARGE, LARGE_OF_HOST = (4 * KIB, 64 * KIB, MIB), (25 * MIB, 64 * MIB), (25 * MIB,)
# Calls before those. The first nine large calls of a job try how many flows carry most.
WARM_UP = {SMALL: 3, LARGE: 10, LARGE_OF_HOST: 10}
BUCKET = 25 * MIB

AIM = 2.0  # Gloo's time / Tarpon's, at every size; 1 is the least
LEAST = {("alltoall", BUCKET): 1.5}  # else 1
MOST_OF_ALLREDUCE = 1.05  # reduce_scatter and all_gather, divided by AllReduce
MOST_SENT = 1.1           # buckets, by the root of a broadcast


def run(command):
    process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if process.returncode != 0:
        fail(" ".join(command), process)
    return process.stdout


def run_tarpon(binaries, collective, ranks, sizes, calls, network):
    """The entries of the report, by size and place."""
    # A factor of 16, or a step.
    steps = ["-f", "16"] if sizes == SMALL else ["-i", str(max(1, sizes[-1] - sizes[0]))]
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        run([f"{binaries}/tarpon", collective, "--local-ranks", str(ranks), *network, "-b", str(sizes[0]), "-e",
             str(sizes[-1]), *steps, "-n", str(calls), "-w", str(WARM_UP[sizes]), "--json", report.name])
        entries = json.load(open(report.name))["results"]
    assert all(entry["nwrong"] == 0 for entry in entries)
    assert sorted({entry["size"] for entry in entries}) == list(sizes)
    return {(entry["size"], entry["place"]): entry for entry in entries}


def run_gloo(binaries, collective, ranks, sizes, calls):
    """The times, by size."""
    with tempfile.TemporaryDirectory() as store:
        program = [f"{binaries}/gloo_collective", store, "eth0", collective, str(calls), str(WARM_UP[sizes]),
                   *map(str, sizes)]
        runs = runs_on_testbed(binaries, ranks, 1500, program)
    return {size: one.times for size, one in runs.items()}


def run_mpi(binaries, collective, ranks, sizes, calls):
    """The times, by size."""
    out = run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), "--mca", "btl", "self,vader",
               f"{binaries}/mpi_collective", collective, str(calls), str(WARM_UP[sizes]), *map(str, sizes)])
    results = [json.loads(line) for line in out.splitlines()]
    assert all(result["wrong"] == 0 for result in results)
    return {result["size"]: result["times_us"] for result in results}


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.samples = {}  # (where, ranks, collective, size, contender) -> list of rounds, each a list of us
        self.both = {}     # (ranks, reduce_scatter, all_gather or AllReduce) -> median in place of each round
        self.sent = {}     # ranks -> buckets that the root of a broadcast sends, of each round

    def cells(self):
        """What a round measures: where, ranks, sizes of one run, calls."""
        quick = self.arguments.quick
        small, large = (30, 3) if quick else (60, 4)
        for ranks in (4,) if quick else (4, 8):
            yield NETWORK, ranks, SMALL, small
            yield NETWORK, ranks, LARGE_OF_HOST if quick else LARGE, large
            yield ONE_HOST, ranks, SMALL, small
            yield ONE_HOST, ranks, LARGE_OF_HOST, large

    def measure(self, cell, collective, contender):
        where, ranks, sizes, calls = cell
        binaries = self.arguments.binaries
        if contender == TARPON:
            network = ["--net", "veth", "--datapath", "uring"] if where == NETWORK else []
            entries = run_tarpon(binaries, collective, ranks, sizes, calls, network)
            self.note(where, ranks, collective, entries)
            place = "in" if collective in IN_PLACE else "out"
            times = {size: entries[size, place]["time_us"]["all"] for size in sizes}
        else:
            times = (run_gloo if contender == GLOO else run_mpi)(binaries, collective, ranks, sizes, calls)
        for size in sizes:
            self.samples.setdefault((where, ranks, collective, size, contender), []).append(times[size])

    def note(self, where, ranks, collective, entries):
        """What only the targets of 25 MiB on the network need."""
        entry = entries.get((BUCKET, "in"))
        if where != NETWORK or entry is None:
            return
        if collective in ("reduce_scatter", "all_gather", ALLREDUCE):
            self.both.setdefault((ranks, collective), []).append(median(entry["time_us"]["all"]))
        if collective == "broadcast":
            self.sent.setdefault(ranks, []).append(entry["sent_bytes"][0] / BUCKET)

    def measure_allreduce(self, cell):
        where, ranks, sizes, calls = cell
        entries = run_tarpon(self.arguments.binaries, ALLREDUCE, ranks, sizes, calls,
                             ["--net", "veth", "--datapath", "uring"])
        self.note(where, ranks, ALLREDUCE, entries)

    def run(self):
        rounds = 2 if self.arguments.quick else self.arguments.rounds
        cells = list(self.cells())
        progress = Progress(rounds * len(cells) * len(COLLECTIVES))
        for number in range(rounds):
            for cell in cells:
                where, ranks, sizes, _ = cell
                contenders = [TARPON, PEER[where]][::-1 if number % 2 else 1]
                if where == NETWORK and BUCKET in sizes:
                    self.measure_allreduce(cell)
                for collective in COLLECTIVES:
                    for contender in contenders:
                        self.measure(cell, collective, contender)
                    progress.step(f"{where}, {ranks} ranks, {human(sizes[-1])}, {collective}")
        progress.end()

    def medians(self, key, contender):
        return [median(values) for values in self.samples[(*key, contender)]]

    def keys(self, where):
        """(where, ranks, collective, size) of a table's rows, in order."""
        found = {key[:-1] for key in self.samples if key[0] == where}
        return sorted(found, key=lambda key: (key[1], COLLECTIVES.index(key[2]), key[3]))

    def table(self, where):
        rows = []
        peer = PEER[where]
        print(f"\n{where:>8} {'ranks':>5} {'collective':>14} {'size':>5} {'Tarpon us':>10} {'95 % interval':>21} "
              f"{peer + ' us':>12} {peer + ' / Tarpon':>17}")
        for key in self.keys(where):
            _, ranks, collective, size = key
            ours, theirs = self.medians(key, TARPON), self.medians(key, peer)
            low, high = interval(ours)
            ratio = median(ratios(theirs, ours))
            rows.append({"where": where, "ranks": ranks, "collective": collective, "size": size,
                         "tarpon_us": median(ours), "interval_us": [low, high], "peer": peer,
                         "peer_us": median(theirs), "peer_over_tarpon": ratio,
                         "rounds": self.samples[(*key, TARPON)], "rounds_of_peer": self.samples[(*key, peer)]})
            print(f"{'':>8} {ranks:>5} {collective:>14} {human(size):>5} {median(ours):>10.0f} "
                  f"{f'{low:.0f} .. {high:.0f}':>21} {median(theirs):>12.0f} {ratio:>17.2f}")
        return rows

    def targets(self):
        found = []
        for key in self.keys(NETWORK):
            _, ranks, collective, size = key
            found.append(at_least(LEAST.get((collective, size), 1.0),
                                  f"{collective}, {human(size)}, {ranks} ranks: Gloo / Tarpon",
                                  ratios(self.medians(key, GLOO), self.medians(key, TARPON))))
        for key in self.keys(ONE_HOST):
            _, ranks, collective, size = key
            if size >= MIB:
                found.append(at_least(
                    1.0, f"{collective}, {human(size)}, {ranks} ranks of one host: Open MPI / Tarpon",
                    ratios(self.medians(key, MPI), self.medians(key, TARPON))))
        for ranks, sent in self.sent.items():
            both = [a + b for a, b in zip(self.both[ranks, "reduce_scatter"], self.both[ranks, "all_gather"])]
            found.append(at_most(MOST_OF_ALLREDUCE, f"25M, {ranks} ranks: reduce_scatter and all_gather / AllReduce",
                                 ratios(both, self.both[ranks, ALLREDUCE])))
            found.append(at_most(MOST_SENT, f"broadcast of 25M, {ranks} ranks: buckets that the root sends", sent))
        return found

    def say_aim(self):
        """How many rows of the network are as fast as the aim."""
        keys = self.keys(NETWORK)
        reached = [key for key in keys if median(ratios(self.medians(key, GLOO), self.medians(key, TARPON))) >= AIM]
        print(f"\n{len(reached)} of {len(keys)} are {AIM:g} times as fast as Gloo")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="preset 'bench' built here; reports too")
    parser.add_argument("--quick", action="store_true", help="4 minutes: 4 ranks, up to 25M")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (3)")
    arguments = parser.parse_args()
    arguments.binaries = os.path.join(arguments.build, "bin")
    bench = Bench(arguments)
    bench.run()
    rows = bench.table(NETWORK) + bench.table(ONE_HOST)
    bench.say_aim()
    finish(os.path.join(arguments.build, "collectives.json"), bench.targets(), rows=rows,
           reduce_scatter_all_gather_allreduce=[[*key, values] for key, values in bench.both.items()],
           buckets_that_the_root_sends=bench.sent)


if __name__ == "__main__":
    main()
