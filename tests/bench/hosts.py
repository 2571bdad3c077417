#!/usr/bin/env python3
"""AllReduce among ranks that share hosts, with one timing rule: an untimed refill and barrier
before each iteration, the slowest rank counts, runs interleaved.

One host: through the memory that the ranks share (the default), over loopback (--hosts off), by Open
MPI and by Gloo. Two hosts, with links of 2 Gb/s: the default, exact and bounded, --hosts off, and Gloo's
ring, with ranks placed host by host and round-robin.

Prints two tables, writes hosts.json, ends with the targets; exit code 1 when one is missed.
Intervals are 95 % bootstrap intervals over the rounds' medians."""
import argparse, json, os, subprocess, tempfile

from contenders import Run, run_gloo as run_gloo_on_testbed
from figures import (KIB, MIB, Progress, at_most, fail, finish, human, interval, median, ratios)

SHARED, LOOPBACK, MPI, GLOO = "shared memory", "loopback", "Open MPI", "Gloo ring"
CONTENDERS = [SHARED, LOOPBACK, MPI, GLOO]
SIZES = [4 * KIB, 64 * KIB, MIB, 25 * MIB]
RANKS = [2, 4, 8]
# By size: the target for the time of shared memory, divided by the time of Open MPI.
TARGETS = {4 * KIB: 2.0, MIB: 1.0, 25 * MIB: 1.0}

BY_HOSTS, BOUNDED, FLAT = "by hosts", "bounded", "hosts off"
RATE = "2gbit"
# Ranks of each of two hosts, and how they are placed.
PLACES = [(4, ""), (2, ""), (4, "/round-robin")]
HEADER = 64  # bytes of Tarpon's header
MOST_SENT = 1.10  # buckets, by one of two hosts
MOST_DROPPED = 0.02
# By placement: the target for the time by hosts, divided by that of Gloo's ring.
AGAINST_GLOO = {"": 0.75, "/round-robin": 1 / 3}


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


def run_on_two_hosts(binaries, per_host, place, iterations, hosts, mode):
    """Returns the times in us, the buckets that a host sends in a call, and the share of them that is sent
    again. With hosts off, siblings send to one another as well, over loopback."""
    size, ranks = 25 * MIB, 2 * per_host
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        run([f"{binaries}/tarpon", "allreduce", "--local-ranks", str(ranks), "--net", "veth", "--per-host",
             f"{per_host}{place}", "--rate", RATE, "--uplink", RATE, "--hosts", hosts, "--mode", mode, "-b", str(size),
             "-e", str(size), "-n", str(iterations), "-w", "2", "--json", report.name])
        result = json.load(open(report.name))
    entry, slot = result["results"][-1], result["config"]["slot_bytes"]
    assert entry["nwrong"] == 0 and (entry["algorithm"] == "hosts") == (hosts == "on")
    sent = sum(entry["sent_bytes"]) / 2 / size
    needed = (1 if hosts == "on" else per_host * 2 * (ranks - 1) / ranks) * (slot + HEADER) / slot
    return entry["time_us"]["all"], sent, max(0.0, 1 - needed / sent)


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.samples = {}  # (ranks, size, contender) -> list of rounds, each a list of us
        self.memory = {}   # (ranks, size, contender) -> KiB of the largest rank beyond its buffers
        self.two_hosts = {}  # (per host, place, contender) -> list of rounds, each a list of us
        self.sent = {}       # (per host, place, contender) -> (buckets, share sent again) of each round

    def measure(self, ranks, size, contender):
        binaries, count = self.arguments.binaries, iterations_for(size, self.arguments.quick)
        if contender == GLOO:
            # It takes up to 20 ms a call where ranks are more than cores.
            count = min(count, 30 if self.arguments.quick else 100)
        if contender in (SHARED, LOOPBACK):
            result = run_tarpon(binaries, ranks, size, count, "on" if contender == SHARED else "off")
        else:
            result = (run_mpi if contender == MPI else run_gloo)(binaries, ranks, size, count)
        self.samples.setdefault((ranks, size, contender), []).append(result.times)
        if result.extra_kib is not None:
            key = ranks, size, contender
            self.memory[key] = max(self.memory.get(key, 0), result.extra_kib)

    def measure_two_hosts(self, per_host, place, contender):
        count = 5 if self.arguments.quick or contender == FLAT else 10
        key = per_host, place, contender
        if contender == GLOO:
            options = ["--per-host", f"{per_host}{place}", "--rate", RATE, "--uplink", RATE]
            times = run_gloo_on_testbed(self.arguments.binaries, 2 * per_host, 1500, 25 * MIB, count, "ring",
                                        options).times
        else:
            times, *sent = run_on_two_hosts(self.arguments.binaries, per_host, place, count,
                                            "off" if contender == FLAT else "on",
                                            "bounded" if contender == BOUNDED else "exact")
            self.sent.setdefault(key, []).append(sent)
        self.two_hosts.setdefault(key, []).append(times)

    def run(self):
        rounds = 2 if self.arguments.quick else self.arguments.rounds
        cells = [(ranks, size) for ranks in RANKS for size in SIZES]
        links = [(*place, who) for place in PLACES for who in (BY_HOSTS, BOUNDED, FLAT, GLOO)]
        progress = Progress(rounds * (len(cells) * len(CONTENDERS) + len(links)))
        for number in range(rounds):
            for per_host, place, contender in links:
                self.measure_two_hosts(per_host, place, contender)
                progress.step(f"2 hosts x {per_host} ranks")
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

    def table_of_two_hosts(self):
        rows = []
        print(f"\n{'2 hosts x':>13} {'placed':>12} {'who':>10} {'p50 ms':>8} {'95 % interval':>16} "
              f"{'/ Gloo':>7} {'buckets a host':>15} {'sent again':>11}")
        for (per_host, place, who), rounds in self.two_hosts.items():
            medians = [median(values) for values in rounds]
            gloo = [median(values) for values in self.two_hosts[per_host, place, GLOO]]
            low, high = interval(medians)
            sent = self.sent.get((per_host, place, who))
            buckets, again = [median(values) for values in zip(*sent)] if sent else (None, None)
            rows.append({"per_host": per_host, "place": place or "by host", "who": who,
                         "p50_us": median(medians), "p50_interval_us": [low, high],
                         "over_gloo": median(ratios(medians, gloo)), "buckets": buckets,
                         "sent_again": again, "rounds": rounds})
            columns = (f"{buckets:>15.3f} {100 * again:>9.1f} %" if sent else f"{'-':>15} {'-':>11}")
            print(f"{per_host:>7} ranks {place[1:] or 'by host':>12} {who:>10} {median(medians) / 1e3:>8.1f} "
                  f"{f'{low / 1e3:.1f} .. {high / 1e3:.1f}':>16} {median(ratios(medians, gloo)):>7.2f} {columns}")
        return rows

    def targets(self):
        result = [at_most(limit, f"{human(size)}, {ranks} ranks: shared memory / Open MPI",
                          ratios(self.medians(ranks, size, SHARED), self.medians(ranks, size, MPI)))
                  for ranks in (4, 8) for size, limit in TARGETS.items()]
        for per_host, place in PLACES:
            name = f"2 x {per_host} ranks{place.replace('/', ' ')}"
            of = {who: [median(values) for values in self.two_hosts[per_host, place, who]]
                  for who in (BY_HOSTS, BOUNDED, GLOO)}
            for who in (BY_HOSTS, BOUNDED):
                result.append(at_most(AGAINST_GLOO[place], f"{name}: {who} / Gloo's ring",
                                      ratios(of[who], of[GLOO])))
                sent = self.sent[per_host, place, who]
                result.append(at_most(MOST_SENT, f"{name}, {who}: buckets that a host sends",
                                      [one[0] for one in sent]))
            for who in (BY_HOSTS, BOUNDED, FLAT):
                again = [one[1] for one in self.sent[per_host, place, who]]
                result.append(at_most(MOST_DROPPED, f"{name}, {who}: share sent again", again))
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="preset 'bench' built here; reports too")
    parser.add_argument("--quick", action="store_true", help="4 minutes")
    parser.add_argument("--rounds", type=int, default=6, help="interleaved rounds (6)")
    arguments = parser.parse_args()
    arguments.binaries = os.path.join(arguments.build, "bin")
    bench = Bench(arguments)
    bench.run()
    rows = bench.table() + bench.table_of_two_hosts()
    finish(os.path.join(arguments.build, "hosts.json"), bench.targets(), rows=rows)


if __name__ == "__main__":
    main()
