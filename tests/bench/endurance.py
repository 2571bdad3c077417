#!/usr/bin/env python3
"""What lasts: jobs of `endurance_rank` over loopback at MTU 1500.

tags     4 ranks, calls of 4 KiB, each on a fresh tag, in turn with blocks of calls on one tag: CPU
         time and memory must not grow with the number of tags that the job has used.
stopped  4 ranks, bounded calls of 4 KiB; one rank stops. The others must go on as before until
         their retention is full and they evict it.
buckets  8 ranks, 8 exact calls of 4 MiB at once, with receive buffers of 208 KiB (what a process
         without privileges gets by default) in turn with the usual ones.

Prints tables, writes endurance.json, ends with the targets; exit code 1 when one is missed.
Intervals are 95 % bootstrap intervals over blocks (tags) and rounds."""
import argparse, collections, json, os, random, subprocess, sys, tempfile, time

from figures import KIB, MIB, Progress, at_least, at_most, finish, interval, judged, median, ratios

SMALL_BUFFER = 208 * KIB  # net.core.rmem_max as kernels have it by default
RETAIN = 64 * MIB         # the default of --retain
REMEMBERED_TAGS = 65_536  # a table grows until it holds so many: memory is flat from then on
LIMIT_S = 600             # of one job

Plan = collections.namedtuple("Plan", "calls block same rounds healthy iterations")
PLANS = {"usual": Plan(1_000_000, 500, 100, 5, 5000, 6),
         "quick": Plan(100_000, 200, 40, 3, 2000, 3),
         "smoke": Plan(200, 10, 5, 1, 50, 1)}


def run_job(binaries, cell, ranks, options, lasting=None, each_line=lambda: None):
    """The lines of each rank. `lasting`: ranks that are waited for, the others are killed then."""
    lasting = ranks if lasting is None else lasting
    with tempfile.TemporaryDirectory() as folder:
        files = [open(f"{folder}/{rank}", "w+") for rank in range(ranks)]
        complaints = open(f"{folder}/complaints", "w+")
        processes = [subprocess.Popen(
            [f"{binaries}/endurance_rank", cell, "--rank", str(rank), "--ranks", str(ranks),
             "--rendezvous", f"file://{folder}/rendezvous", *map(str, options)],
            stdout=subprocess.PIPE if rank == 0 else files[rank], stderr=complaints, text=True)
            for rank in range(ranks)]
        try:
            first = []
            for line in processes[0].stdout:
                first.append(line)
                each_line()
            end = time.monotonic() + LIMIT_S
            codes = [process.wait(max(0, end - time.monotonic()))
                     for process in processes[:lasting]]
        finally:
            for process in processes:
                process.kill()
                process.wait()
            for file in files:
                file.seek(0)
            complaints.seek(0)
        if any(codes):
            sys.exit(f"endurance_rank {cell} failed (exit {codes}):\n{complaints.read()[-2000:]}")
        rows = [[json.loads(line) for line in lines] for lines in [first, *files[1:]]]
        for file in [*files, complaints]:
            file.close()
        return rows[:lasting]


def mean(blocks):
    return sum(cpu for cpu, _ in blocks) / sum(calls for _, calls in blocks)


def of_means(over, under, draws=1000):
    """mean(over) / mean(under), and its interval."""
    generator = random.Random(1)
    drawn = sorted(mean(generator.choices(over, k=len(over))) /
                   mean(generator.choices(under, k=len(under))) for _ in range(draws))
    return mean(over) / mean(under), (drawn[int(0.025 * draws)], drawn[int(0.975 * draws) - 1])


class Tags:
    name = "tags"

    def __init__(self, arguments):
        self.arguments, self.plan = arguments, arguments.plan

    def run(self):
        calls = self.arguments.calls or self.plan.calls
        progress = Progress(2 * -(-calls // self.plan.block))
        started = time.monotonic()
        rows = run_job(self.arguments.binaries, "tags", 4,
                       ["--calls", calls, "--block", self.plan.block, "--same", self.plan.same],
                       each_line=lambda: progress.step(f"{calls} calls, each on a fresh tag"))
        progress.end()
        self.seconds = time.monotonic() - started
        blocks = list(zip(*rows))  # of all ranks
        # (CPU seconds of all ranks, calls) of each block, in order
        self.fresh, self.same = ([(sum(rank["cpu_s"] for rank in block), block[0]["calls"])
                                  for block in blocks if block[0]["fresh"] == fresh]
                                 for fresh in (True, False))
        self.rss_kib = [[rank["rss_kib"] for rank in block] for block in blocks]

    def tenth(self, blocks, number):
        return blocks[len(blocks) * number // 10:len(blocks) * (number + 1) // 10]

    def growth_kib(self):
        """Of the rank that grows most, after the first tenth, or once the table of tags is full."""
        blocks = len(self.rss_kib)
        full = 2 * (REMEMBERED_TAGS // self.plan.block + 1)
        after_first = self.rss_kib[max(blocks // 10, min(full, blocks - 1)):]
        return max(max(values) - values[0] for values in zip(*after_first))

    def table(self):
        print(f"\ntags: 4 ranks, 4 KiB, {sum(calls for _, calls in self.fresh)} calls on fresh tags and "
              f"{sum(calls for _, calls in self.same)} on one, {self.seconds:.0f} s\n"
              f"{'tenth':>5} {'CPU us a call, fresh':>21} {'one tag':>8} {'resident KiB':>13}")
        rows = []
        for number in range(10):
            row = {"fresh_us": 1e6 * mean(self.tenth(self.fresh, number)),
                   "one_tag_us": 1e6 * mean(self.tenth(self.same, number)),
                   "rss_kib": max(self.tenth(self.rss_kib, number)[-1])}
            rows.append(row)
            print(f"{number + 1:>5} {row['fresh_us']:>21.1f} {row['one_tag_us']:>8.1f} "
                  f"{row['rss_kib']:>13}")
        return {"tenths": rows, "seconds": self.seconds,
                "fresh_us": [round(1e6 * cpu / calls, 1) for cpu, calls in self.fresh],
                "one_tag_us": [round(1e6 * cpu / calls, 1) for cpu, calls in self.same],
                "rss_kib": self.rss_kib[::max(1, len(self.rss_kib) // 100)]}

    def targets(self):
        last = self.tenth(self.fresh, 9)
        grown = self.growth_kib()
        # The blocks on one tag tell how far the machine has changed meanwhile.
        one_tag, _ = of_means(self.tenth(self.same, 9), self.tenth(self.same, 0))
        return [judged("fresh tags: CPU time of the last tenth / of the first "
                       f"(calls on one tag: {one_tag:.2f})", 1.1,
                       *of_means(last, self.tenth(self.fresh, 0)), most=True),
                judged("fresh tags: CPU time of the last tenth / that of one tag meanwhile", 1.1,
                       *of_means(last, self.tenth(self.same, 9)), most=True),
                judged("fresh tags: KiB that a rank grows after the first tenth", 4096, grown,
                       (grown, grown), most=True)]


class Stopped:
    name = "stopped"

    def __init__(self, arguments):
        self.arguments, self.plan = arguments, arguments.plan

    def run(self):
        progress = Progress(self.plan.rounds)
        self.rounds = []
        for _ in range(self.plan.rounds):
            rows = run_job(self.arguments.binaries, "stopped", 4,
                           ["--calls", self.plan.healthy, "--retain", RETAIN], lasting=3)
            self.rounds.append([row[0] for row in rows])
            progress.step("one of 4 ranks stopped")
        progress.end()

    def medians(self, what):
        """Of the slowest rank of each call, round by round."""
        return [median([max(times) for times in zip(*(rank[what] for rank in ranks))])
                for ranks in self.rounds]

    def grown_kib(self):
        return [max(rank["rss_kib"][1] - rank["rss_kib"][0] for rank in ranks)
                for ranks in self.rounds]

    def table(self):
        print(f"\nstopped: 4 ranks, bounded calls of 4 KiB, --retain {RETAIN // MIB}M\n"
              f"{'healthy P50 us':>14} {'one stopped':>12} {'evicted':>8} {'grown KiB':>10}")
        rows = [{"healthy_p50_us": healthy, "stopped_p50_us": stopped,
                 "grown_kib": grown, "evicted": all(rank["evicted"] for rank in ranks)}
                for healthy, stopped, grown, ranks in
                zip(self.medians("healthy_us"), self.medians("stopped_us"), self.grown_kib(), self.rounds)]
        for row in rows:
            print(f"{row['healthy_p50_us']:>14.0f} {row['stopped_p50_us']:>12.0f} "
                  f"{'yes' if row['evicted'] else 'no':>8} {row['grown_kib']:>10}")
        return {"rounds": rows}

    def targets(self):
        evicted = sum(rank["evicted"] for ranks in self.rounds for rank in ranks)
        total = 3 * len(self.rounds)
        return [at_most(1.3, "one stopped: P50 while results are kept for it / of four healthy ranks",
                        ratios(self.medians("stopped_us"), self.medians("healthy_us"))),
                at_most(RETAIN // KIB, "one stopped: KiB that a rank grows meanwhile",
                        self.grown_kib()),
                judged("one stopped: ranks that evicted it", total, evicted, (evicted, evicted))]


class Buckets:
    name = "buckets"

    def __init__(self, arguments):
        self.arguments, self.plan = arguments, arguments.plan

    def run(self):
        progress = Progress(2 * self.plan.rounds)
        self.samples = {"full": [], "small": []}  # rounds, each the line of each rank
        for number in range(self.plan.rounds):
            for which in ("full", "small") if number % 2 == 0 else ("small", "full"):
                rows = run_job(self.arguments.binaries, "buckets", 8,
                               ["--calls", self.plan.iterations, "--receive-buffer",
                                SMALL_BUFFER if which == "small" else 0])
                self.samples[which].append([row[0] for row in rows])
                progress.step(f"8 buckets at once, {which} receive buffers")
        progress.end()

    def seconds(self, which):
        """Of one iteration, round by round."""
        return [median([max(times) for times in zip(*(rank["seconds"] for rank in ranks))])
                for ranks in self.samples[which]]

    def share(self, which, what, base="data"):
        return [sum(rank[what] for rank in ranks) / sum(rank[base] for rank in ranks)
                for ranks in self.samples[which]]

    def table(self):
        print(f"\nbuckets: 8 ranks, 8 buckets of 4 MiB at once\n{'receive buffer':>14} "
              f"{'P50 ms (interval)':>24} {'CREDIT / DATA':>14} {'repaired':>9} {'duplicates':>11} "
              f"{'overruns':>9}")
        result = []
        for which, runs in self.samples.items():
            low, high = interval(self.seconds(which))
            row = {"receive_bytes": runs[0][0]["receive_bytes"],
                   "p50_s": median(self.seconds(which)), "p50_interval_s": [low, high],
                   "credits_per_data": median(self.share(which, "credits")),
                   "repaired_share": median(self.share(which, "repaired")),
                   "duplicate_share": median(self.share(which, "duplicates")),
                   "overruns": sum(rank["overruns"] for ranks in runs for rank in ranks),
                   "rounds": runs}
            result.append(row)
            spread = f"{1e3 * row['p50_s']:.0f} ({1e3 * low:.0f} .. {1e3 * high:.0f})"
            print(f"{row['receive_bytes'] // KIB:>10} KiB {spread:>24} "
                  f"{row['credits_per_data']:>14.3f} {row['repaired_share']:>9.2%} "
                  f"{row['duplicate_share']:>11.2%} {row['overruns']:>9}")
        return {"rows": result}

    def targets(self):
        return [at_least(0.8, "8 buckets: rate with receive buffers of 208 KiB / of the usual size",
                         ratios(self.seconds("full"), self.seconds("small"))),
                at_most(0.25, "8 buckets, 208 KiB: CREDIT packets for each DATA packet",
                        self.share("small", "credits"))]


CELLS = [Tags, Stopped, Buckets]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="preset 'bench' built here; reports too")
    parser.add_argument("--quick", action="store_true", help="under 2 minutes")
    parser.add_argument("--smoke", action="store_true", help="does it run?")
    parser.add_argument("--only", choices=[cell.name for cell in CELLS], help="one cell")
    parser.add_argument("--rounds", type=int, help="of the other cells (5)")
    parser.add_argument("--calls", type=int, help="of the cell 'tags' (1000000)")
    arguments = parser.parse_args()
    arguments.binaries = os.path.join(arguments.build, "bin")
    arguments.plan = PLANS["smoke" if arguments.smoke else "quick" if arguments.quick else "usual"]
    if arguments.rounds:
        arguments.plan = arguments.plan._replace(rounds=arguments.rounds)
    cells = [cell(arguments) for cell in CELLS if arguments.only in (None, cell.name)]
    parts, targets = {}, []
    for cell in cells:
        cell.run()
        parts[cell.name] = cell.table()
        sys.stdout.flush()
        targets += cell.targets()
    finish(os.path.join(arguments.build, "endurance.json"), targets, **parts)


if __name__ == "__main__":
    main()
