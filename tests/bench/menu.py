#!/usr/bin/env python3
"""The menu of exact algorithms beside Gloo's, on the namespace testbed, by the timing rule of
`./dev bench allreduce`. The contenders of a cell run one after the other: in two rounds for calls by size,
in four beside TCP, else in one.

sizes    every --algorithm and Gloo's three, 4, 7 and 8 ranks, 1 KiB to 64 MiB: times, CPU time, what
         the busiest rank sends (contenders.Run), and which one wins.
unequal  25 MiB over links of 1 Gb/s of which some are slower, and on equal ones: TAR with even
         shares, TAR with the shares that let all ranks finish together, in four cells the same learnt (after
         50 calls, or 26 with --quick), and Gloo's ring, beside the lower bound. (Gloo's bcube takes as
         long as its ring there, halving-doubling longer.) Then even and learnt shares on equal links, of
         which two carry bulk flows of TCP: these take what a rank leaves, so that shares bring nothing.

late     25 MiB on 8 ranks over such links, one rank late by 0, 1, 2 and 4 times half of what TAR takes:
         the time after its arrival, by late-rank, by TAR with a share of 0 for that rank, by the ring,
         TAR and Gloo's ring; for T also by shares that were learnt in 28 calls, and by the first two
         where another rank is late than was said.

multicast  25 MiB on 8 ranks, TAR by multicast and one by one: where the links from the ranks are what
         is short (1 Gb/s; those to the ranks have no limit), and where those to the ranks have 1 Gb/s
         too. The lower bound of the former is a bucket over an uplink. With one owner of all of the bucket
         stage 2 is what takes the time: stage 1 goes on meanwhile.

Prints tables, writes menu.json, ends with the targets; exit code 1 when one is missed."""
import argparse, os

import contenders
from figures import (KIB, MIB, Progress, at_least, at_most, finish, human, interval, median, ratios)

GLOO = [f"gloo {name}" for name in contenders.GLOO]
GLOO_RING = "gloo ring"
UNEQUAL_CONTENDERS = ["even", "shares", "auto", GLOO_RING]
ALGORITHMS = ["tar", "2d-tar", "circulant", "ring", "recursive-doubling", "one-shot"]
WHOLE_BUCKETS = ["recursive-doubling", "one-shot"]  # send it log2 N and N - 1 times: not large ones
MOST_OF_WHOLE = 4 * MIB

BUCKET = 25 * MIB
LINK = 1e9  # bits a second
ON_THE_WIRE = 1514 / 1408  # bytes of a frame at MTU 1500 and of its payload
UNEQUAL = {f"{ranks} ranks, one at {speed}": [speed] + [1] * (ranks - 1)
           for ranks in (4, 8) for speed in (0.75, 0.5, 0.25)}
UNEQUAL["8 ranks, mixed"] = [0.5, 0.6, 0.8, 0.9, 1, 1, 1, 1]
UNEQUAL["4 ranks, equal"] = [1] * 4
BESIDE_TCP = "4 ranks, TCP beside two"
ROUNDS_BESIDE_TCP = 4  # times vary by a third from call to call

UPLINKS = ["--uplink", f"{LINK / 1e6:.0f}mbit"]
ONE_OWNER = "8 ranks, uplinks, one owner"  # it adds up all of the bucket: its stage 2 takes all of the time
MULTICAST = {"8 ranks, uplinks of 1 Gb/s": UPLINKS,
             ONE_OWNER: [*UPLINKS, "--shares", "1,0,0,0,0,0,0,0"],
             "8 ranks, links of 1 Gb/s": [*UPLINKS, "--rate", f"{LINK / 1e6:.0f}mbit"]}
MULTICAST_CONTENDERS = ["multicast", "one by one"]

LATE = 3  # of 8
LATE_BY = {"late by 0": 0, "late by T/2": 0.2, "late by T": 0.4, "late by 2 T": 0.8}  # seconds; T: TAR's
TAKEN_FOR_LATE = 5  # where the prediction is wrong


def lower_bound(speeds):
    """In buckets over a link of speed 1: the slowest link carries a bucket each way, and all links
    together carry 2 (N - 1)."""
    return max(1 / min(speeds), 2 * (len(speeds) - 1) / sum(speeds))


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.rounds = 1 if arguments.quick else 2  # of calls by size; one round has no interval
        self.binaries = os.path.join(arguments.build, "bin")
        self.samples = {}  # (cell, contender) -> a Run for each round

    def sized(self):
        """(ranks, size) of the first part."""
        if self.arguments.quick:
            return [(8, size) for size in (4 * KIB, 256 * KIB, 4 * MIB)]
        sizes = (1 * KIB, 4 * KIB, 64 * KIB, 1 * MIB, 64 * MIB)
        return [(ranks, size) for ranks in (4, 7, 8) for size in sizes]

    def unequal(self):
        if not self.arguments.quick:
            return UNEQUAL
        return {name: speeds for name, speeds in UNEQUAL.items() if name.endswith(("0.5", "equal"))}

    @staticmethod
    def unequal_contenders(cell):
        """Shares are learnt where a link has half of the others' speed, and where they are mixed or equal."""
        learns = cell.endswith(("0.5", "mixed", "equal"))
        return [name for name in UNEQUAL_CONTENDERS if learns or name != "auto"]

    def beside_tcp(self):
        return [] if self.arguments.quick else ["even", "auto"]

    def late(self):
        return ["late by T"] if self.arguments.quick else list(LATE_BY)

    @staticmethod
    def late_contenders(cell):
        more = ["auto", "late-rank wrong", "shares wrong"] if cell == "late by T" else []
        return ["late-rank", "shares", *more, "tar", "ring", GLOO_RING]

    def contenders(self, ranks, size):
        """2d-tar is TAR where no group is both smaller than the job and larger than a rank."""
        left_out = ["2d-tar"] if ranks == 7 else []
        left_out += WHOLE_BUCKETS if size > MOST_OF_WHOLE else []
        return [name for name in ALGORITHMS if name not in left_out] + GLOO

    def run(self):
        steps = self.rounds * sum(len(self.contenders(*cell)) for cell in self.sized())
        steps += 3 * sum(len(self.unequal_contenders(cell)) for cell in self.unequal())
        steps += 3 * ROUNDS_BESIDE_TCP * len(self.beside_tcp())
        steps += sum(4 * len(self.late_contenders(cell)) for cell in self.late())
        steps += 3 * len(MULTICAST_CONTENDERS) * len(MULTICAST)
        progress = Progress(steps)
        for turn in range(self.rounds):
            for ranks, size in self.sized():
                for name in in_turn(self.contenders(ranks, size), turn):
                    self.keep((ranks, size), name, self.measure(ranks, size, name))
                    progress.step(f"{ranks} ranks, {human(size)}, {name}")
        for cell, speeds in self.unequal().items():
            for name in self.unequal_contenders(cell):
                self.keep(cell, name, self.measure_unequal(speeds, name))
                progress.step(f"{cell}, {name}", 3)
        for turn in range(ROUNDS_BESIDE_TCP):
            for name in in_turn(self.beside_tcp(), turn):
                self.keep(BESIDE_TCP, name, self.measure_unequal([1] * 4, name, ["--background", "2"]))
                progress.step(f"{BESIDE_TCP}, {name}", 3)
        for cell in self.late():
            for name in self.late_contenders(cell):
                self.keep(cell, name, self.measure_late(LATE_BY[cell], name))
                progress.step(f"{cell}, {name}", 4)
        for cell, options in MULTICAST.items():
            for name in MULTICAST_CONTENDERS:
                self.keep(cell, name, self.measure_multicast(options, name))
                progress.step(f"{cell}, {name}", 3)
        progress.end()

    def keep(self, cell, name, run):
        self.samples.setdefault((cell, name), []).append(run)

    def measure(self, ranks, size, name):
        calls = 100 if size <= 64 * KIB else 30 if size <= 4 * MIB else 3
        if name in GLOO:
            return contenders.run_gloo(self.binaries, ranks, 1500, size, calls, name[len("gloo "):])
        return contenders.run_tarpon(self.binaries, ranks, 1500, size, calls, "uring",
                                     ["--algorithm", name])

    def measure_unequal(self, speeds, name, more=()):
        network = ["--rate", f"{LINK / 1e6:.0f}mbit", *more]
        for rank, speed in enumerate(speeds):
            if speed != 1:
                network += ["--rate-of", f"{rank}={speed * LINK / 1e6:.0f}mbit"]
        if name in GLOO:
            return contenders.run_gloo(self.binaries, len(speeds), 1500, BUCKET, 4, name[len("gloo "):],
                                       network)
        if name == "shares":
            network += ["--link-speeds", ",".join(map(str, speeds))]
        calls, warmup = 4, 3
        if name == "auto":
            network += ["--shares", "auto"]
            # The calls out of place come first, and learn too. Before the calls that count there are
            # 19 + 12 + 19 = 50 calls, or 7 + 12 + 7 = 26 with --quick.
            calls, warmup = 12, 7 if self.arguments.quick else 19
        return contenders.run_tarpon(self.binaries, len(speeds), 1500, BUCKET, calls, "uring", network,
                                     warmup)

    def measure_late(self, seconds, name):
        """From the arrival of the late rank on."""
        network = ["--rate", f"{LINK / 1e6:.0f}mbit"]
        if name in GLOO:
            run = contenders.run_gloo(self.binaries, 8, 1500, BUCKET, 4, name[len("gloo "):], network,
                                      (LATE, seconds))
        else:
            taken = TAKEN_FOR_LATE if name.endswith(" wrong") else LATE
            how = {"late-rank": ["--algorithm", "late-rank", "--late-rank", str(taken)],
                   "shares": ["--shares", ",".join("01"[rank != taken] for rank in range(8))],
                   "auto": ["--shares", "auto"], "tar": [],
                   "ring": ["--algorithm", "ring"]}[name.removesuffix(" wrong")]
            late = ["--inject-late", f"{LATE}={max(1, int(1e6 * seconds))}us"]
            run = contenders.run_tarpon(self.binaries, 8, 1500, BUCKET, 4, "uring", network + how + late,
                                        warmup=12 if name == "auto" else 3)
        return run._replace(times=[time - 1e6 * seconds for time in run.times])

    def measure_multicast(self, options, name):
        how = ["--multicast"] if name == "multicast" else []
        return contenders.run_tarpon(self.binaries, 8, 1500, BUCKET, 8, "uring", [*options, *how])

    def medians(self, cell, name):
        """Milliseconds, by round."""
        return [median(run.times) / 1e3 for run in self.samples[cell, name]]

    def fastest(self, cell, names):
        return min((name for name in names if (cell, name) in self.samples),
                   key=lambda name: median(self.medians(cell, name)))

    def rows(self, cells):
        """Printed by cell; what the report keeps."""
        rows = []
        for cell, title, names in cells:
            best = self.fastest(cell, names)
            for name in names:
                medians = self.medians(cell, name)
                runs = self.samples[cell, name]
                cpu_ms = median([1e3 * run.cpu_s / len(run.times) for run in runs])
                packets = median([run.packets for run in runs])
                sent = median([run.bytes for run in runs])
                low, high = interval(medians)
                print(f"{title:>22} {name:<22}"
                      f"{'*' if name == best else ' '} {median(medians):>9.3f} "
                      f"{f'{low:.3f} .. {high:.3f}':>22} {cpu_ms:>9.2f} {packets:>9.0f} "
                      f"{sent / KIB:>10.1f}")
                rows.append({"cell": title, "name": name, "ms": medians, "cpu_ms": cpu_ms,
                             "packets": packets, "bytes": sent, "wins": name == best})
        return rows

    def tables(self):
        print(f"{'cell':>22} {'algorithm':<22}  {'p50 ms':>9} {'95 % interval':>22} {'CPU ms':>9} "
              f"{'packets':>9} {'KiB sent':>10}")
        rows = self.rows([(cell, f"{cell[0]} ranks, {human(cell[1])}", self.contenders(*cell))
                          for cell in self.sized()])
        rows += self.rows([(cell, cell, self.unequal_contenders(cell)) for cell in self.unequal()])
        rows += self.rows([(BESIDE_TCP, BESIDE_TCP, self.beside_tcp())] if self.beside_tcp() else [])
        rows += self.rows([(cell, cell, self.late_contenders(cell)) for cell in self.late()])
        return rows + self.rows([(cell, cell, MULTICAST_CONTENDERS) for cell in MULTICAST])

    def targets(self):
        found = []
        for ranks, size in self.sized():
            if ranks == 8 and size <= 4 * KIB:
                best = self.fastest((ranks, size), ALGORITHMS)
                gloo = self.fastest((ranks, size), GLOO)
                found.append(at_least(
                    3.0, f"{human(size)}, 8 ranks: best Gloo / {best} by Tarpon",
                    ratios(self.medians((ranks, size), gloo), self.medians((ranks, size), best))))
        for cell, speeds in self.unequal().items():
            bound_ms = 1e3 * lower_bound(speeds) * BUCKET * 8 * ON_THE_WIRE / LINK
            shares = self.medians(cell, "shares")
            if cell.endswith("equal"):
                found.append(at_most(1.02, f"{cell}: auto / even",
                                     ratios(self.medians(cell, "auto"), self.medians(cell, "even"))))
                continue
            for name in ("shares", "auto"):
                if name not in self.unequal_contenders(cell):
                    continue
                found.append(at_most(1.05, f"{cell}: {name} / lower bound of {bound_ms:.0f} ms",
                                     [value / bound_ms for value in self.medians(cell, name)]))
            if cell.endswith("0.5"):
                for name in ("even", GLOO_RING):
                    found.append(at_least(1.4 if len(speeds) == 4 else 1.65, f"{cell}: {name} / shares",
                                          ratios(self.medians(cell, name), shares)))
        if self.beside_tcp():
            found.append(at_most(1.02, f"{BESIDE_TCP}: auto / even",
                                 ratios(self.medians(BESIDE_TCP, "auto"),
                                        self.medians(BESIDE_TCP, "even"))))
        for cell in self.late():
            if LATE_BY[cell] < LATE_BY["late by T"]:
                continue
            if "auto" in self.late_contenders(cell):
                found.append(at_least(1.3, f"{cell}, after the arrival: tar / auto",
                                      ratios(self.medians(cell, "tar"), self.medians(cell, "auto"))))
            best = self.fastest(cell, ["late-rank", "shares"])
            for name in ("ring", GLOO_RING):
                found.append(at_least(1.3, f"{cell}, after the arrival: {name} / {best}",
                                      ratios(self.medians(cell, name), self.medians(cell, best))))
        for cell, options in MULTICAST.items():
            alone = self.medians(cell, "one by one")
            least = 3.0 if cell == ONE_OWNER else 1.0 if "--rate" in options else 1.5
            found.append(at_least(least, f"{cell}: one by one / multicast",
                                  ratios(alone, self.medians(cell, "multicast"))))
            if cell == ONE_OWNER:
                continue
            sent = [run.bytes / BUCKET for run in self.samples[cell, "multicast"]]
            found.append(at_most(1.1 * 1472 / 1408, f"{cell}: buckets sent by a rank, with headers",
                                 sent))
        return found


def in_turn(names, turn):
    first = turn % max(1, len(names))
    return names[first:] + names[:first]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="preset 'bench' built here; reports too")
    parser.add_argument("--quick", action="store_true",
                        help="8 ranks and 3 sizes, one link at 0.5, late by T")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    bench.run()
    rows = bench.tables()
    finish(os.path.join(arguments.build, "menu.json"), bench.targets(), rows=rows)


if __name__ == "__main__":
    main()
