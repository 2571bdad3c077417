#!/usr/bin/env python3
"""AF_XDP: Tarpon's port beside a minimal AF_XDP pair on one veth pair (sender and receiver on a core
each), then AllReduce on AF_XDP beside io_uring, sendmmsg without GSO and Gloo on the testbed, and
what minimal pairs carry there when all ranks send at once. Contenders in turn within each round.

Prints tables, writes xdp.json, ends with the targets; exit code 1 when one is missed. Intervals
are 95 % bootstrap intervals over the rounds."""
import argparse, collections, json, os, subprocess, tempfile

from contenders import GLOO, run_gloo, run_tarpon
from figures import (KIB, MIB, Progress, at_least, at_most, fail, finish, human, interval, median,
                     percentile, ratios)
from veth_pair import VethPair

HEADERS = 106  # bytes of a frame before its payload
SINGLE = [HEADERS, 512, 1442, 1514, 3498]  # bytes; 1514: MTU 1500
MULTI = [HEADERS, 1514, 8900, 9000]        # in several chunks above 3840
WORKS = ["minimal", "bare", "reduce", "crc"]
SOCKETS = {"mmsg, no GSO": ("mmsg", 1), "uring, no GSO": ("uring", 1),
           "mmsg, GSO": ("mmsg", 64), "uring, GSO": ("uring", 64)}
BESIDE = (1442, False), (8900, True)  # where the sockets are measured too

DATAPATHS = {"xdp": ("xdp", ()), "uring": ("uring", ()),
             "mmsg, no GSO": ("mmsg", ("--gso-segments", "1"))}
CARRIED = {1500: (1514, []), 9000: (9002, ["--multi-buffer"])}  # MTU: frame with a full payload

Cell = collections.namedtuple("Cell", "frame multi")


class Pairs:
    """Packets of one size, one way, from one process to another."""

    def __init__(self, arguments):
        self.binaries = arguments.binaries
        self.seconds = 0.15 if arguments.quick else 0.3
        self.rounds = 3 if arguments.quick else 10
        self.cells = [Cell(frame, False) for frame in SINGLE] + [Cell(frame, True) for frame in MULTI]
        self.samples = {}  # (cell, who) -> [(sender, receiver)]

    def contenders(self, cell):
        return WORKS + (list(SOCKETS) if cell in BESIDE else [])

    def run(self):
        progress = Progress(self.rounds * sum(len(self.contenders(cell)) for cell in self.cells))
        with VethPair(9000) as pair:
            for number in range(self.rounds):
                for cell in self.cells:
                    who = self.contenders(cell)
                    for one in who[number % len(who):] + who[:number % len(who)]:
                        result = pair.carry(lambda *side: self.command(cell, one, *side))
                        self.check(cell, one, *result)
                        self.samples.setdefault((cell, one), []).append(result)
                        progress.step(f"{cell.frame} B, {one}")
        progress.end()

    def command(self, cell, who, role, mine, peer):
        shared = [role, "--interface", "eth0", "--frame", str(cell.frame), "--seconds",
                  str(self.seconds)] + (["--multi-buffer"] if cell.multi else [])
        if who == "minimal":
            return [f"{self.binaries}/xdp_minimal", *shared]
        port = [f"{self.binaries}/xdp_port_pair", *shared, "--address", mine, "--peer", peer]
        if who in SOCKETS:
            datapath, segments = SOCKETS[who]
            return port + ["--datapath", datapath, "--gso-segments", str(segments)]
        return port + ["--datapath", "xdp", "--work", who]

    @staticmethod
    def check(cell, who, sender, receiver):
        assert receiver["packets"] > 0, (cell, who)
        assert receiver.get("wrong", 0) == 0 and receiver.get("slow_path", 0) == 0, (cell, who)
        assert sender.get("local_path", 0) == 0, (cell, who)

    def rates(self, cell, who):
        return [receiver["packets"] / receiver["seconds"] for _, receiver in self.samples[cell, who]]

    def over_minimal(self, cell, who):
        return ratios(self.rates(cell, who), self.rates(cell, "minimal"))

    def table(self):
        rows = []
        print(f"{'frame':>5} {'chunks':>7} {'who':>14} {'Mpps':>6} {'Gb/s':>6} {'lost':>6} "
              f"{'sender':>7} {'receiver':>9} {'/ minimal (interval)':>22}")
        for cell in self.cells:
            for who in self.contenders(cell):
                runs, share = self.samples[cell, who], self.over_minimal(cell, who)
                rate, (low, high) = median(self.rates(cell, who)), interval(share)
                cpu = [median([side["cpu_s"] / side["seconds"] for side in sides])
                       for sides in zip(*runs)]
                lost = median([r["lost"] / (r["lost"] + r["packets"]) for _, r in runs])
                rows.append({"frame": cell.frame, "multi_buffer": cell.multi, "who": who,
                             "packets_per_s": rate, "bits_per_s": 8 * rate * cell.frame,
                             "lost": lost, "sender_cpu": cpu[0], "receiver_cpu": cpu[1],
                             "over_minimal": median(share), "interval": [low, high],
                             "rounds": [{"sender": s, "receiver": r} for s, r in runs]})
                print(f"{cell.frame:>5} {'several' if cell.multi else 'one':>7} {who:>14} "
                      f"{rate / 1e6:>6.3f} {8e-9 * rate * cell.frame:>6.2f} {lost:>6.1%} "
                      f"{cpu[0]:>7.0%} {cpu[1]:>9.0%} "
                      f"{f'{median(share):.3f} ({low:.3f} .. {high:.3f})':>22}")
        return rows

    def targets(self):
        usual = Cell(1442, False)
        found = [at_least(1.5, "1442 B: minimal pair / mmsg without GSO (or it is no baseline)",
                          ratios(self.rates(usual, "minimal"), self.rates(usual, "mmsg, no GSO")))]
        for cell in self.cells:
            name = f"{cell.frame} B, {'several chunks' if cell.multi else 'one chunk'}"
            found.append(at_least(0.95, f"{name}: port / minimal pair",
                                  self.over_minimal(cell, "bare")))
            limit = 0.85 if cell.frame <= 1514 else 0.7 if cell.frame == 8900 else None
            if limit is not None:
                found.append(at_least(limit, f"{name}: port with payloads written and added / "
                                      "minimal pair", self.over_minimal(cell, "reduce")))
        return found


class Jobs:
    """AllReduce, and the minimal pairs of all ranks at once."""

    def __init__(self, arguments):
        self.binaries, self.quick = arguments.binaries, arguments.quick
        self.samples = {}  # (ranks, mtu, size, who) -> [Run]
        self.carried = {}  # (ranks, mtu) -> [frames per second]

    def cells(self):
        """(ranks, MTU, size, iterations, rounds)"""
        if self.quick:
            return [(4, 1500, 4 * KIB, 300, 3), (4, 1500, 25 * MIB, 4, 2), (4, 9000, 25 * MIB, 4, 2)]
        small = [(4, mtu, 4 * KIB, 1000, 5) for mtu in (1500, 9000)]
        large = [(4, mtu, size, count, 3) for mtu in (1500, 9000)
                 for size, count in ((64 * KIB, 200), (MIB, 60), (25 * MIB, 8), (64 * MIB, 3))]
        return small + large + [(8, mtu, 25 * MIB, 4, 3) for mtu in (1500, 9000)]

    def contenders(self, size):
        """Where the P50 is compared, of Gloo only its best there."""
        return list(DATAPATHS) + (["halving_doubling"] if size == 4 * KIB else GLOO)

    def run(self):
        progress = Progress(sum(rounds * len(self.contenders(size))
                                for _, _, size, _, rounds in self.cells()))
        for number in range(max(rounds for *_, rounds in self.cells())):
            for ranks, mtu, size, count, rounds in self.cells():
                if number >= rounds:
                    continue
                who = self.contenders(size)
                for one in who[number % len(who):] + who[:number % len(who)]:
                    result = self.measure(ranks, mtu, size, count, one)
                    self.samples.setdefault((ranks, mtu, size, one), []).append(result)
                    progress.step(f"{ranks} ranks, MTU {mtu}, {human(size)}, {one}")
                if size == 25 * MIB:
                    self.carried.setdefault((ranks, mtu), []).append(self.carry(ranks, mtu))
        progress.end()

    def measure(self, ranks, mtu, size, count, who):
        if who in GLOO:
            return run_gloo(self.binaries, ranks, mtu, size, count, who)
        datapath, options = DATAPATHS[who]
        return run_tarpon(self.binaries, ranks, mtu, size, count, datapath, options)

    def carry(self, ranks, mtu):
        """Frames per second, over all ranks, that arrive while each sends to its successor."""
        frame, options = CARRIED[mtu]
        with tempfile.TemporaryDirectory() as place:
            command = [f"{self.binaries}/tarpon", "testbed", "--local-ranks", str(ranks), "--mtu",
                       str(mtu), "--", f"{self.binaries}/xdp_minimal", "both", "--interface", "eth0",
                       "--frame", str(frame), "--meet", place, *options]
            process = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if process.returncode != 0:
            fail(" ".join(command), process)
        rows = [json.loads(line) for line in process.stdout.splitlines()]
        assert len(rows) == ranks
        return sum(row["packets"] / row["seconds"] for row in rows)

    def medians(self, ranks, mtu, size, who):
        return [median(run.times) for run in self.samples[ranks, mtu, size, who]]

    def ratios(self, ranks, mtu, size, over, under):
        return ratios(self.medians(ranks, mtu, size, over), self.medians(ranks, mtu, size, under))

    def over_carried(self, ranks, mtu):
        """Full frames per second of AllReduce over what the minimal pairs carry."""
        size = 25 * MIB
        frames = 2 * (ranks - 1) * size / (CARRIED[mtu][0] - HEADERS)  # of all ranks
        return [frames / (1e-6 * time) / carried
                for time, carried in zip(self.medians(ranks, mtu, size, "xdp"),
                                         self.carried[ranks, mtu])]

    def table(self):
        rows = []
        print(f"\n{'ranks':>5} {'MTU':>5} {'size':>5} {'who':>17} {'p50 us':>10} "
              f"{'95 % interval':>21} {'p99 us':>10} {'CPU ns/B':>9} {'it / xdp':>9}")
        for ranks, mtu, size, *_ in self.cells():
            for who in self.contenders(size):
                runs = self.samples[ranks, mtu, size, who]
                times = [time for run in runs for time in run.times]
                low, high = interval(self.medians(ranks, mtu, size, who))
                cpu = median([1e9 * run.cpu_s / len(run.times) / size for run in runs])
                ratio, p99 = median(self.ratios(ranks, mtu, size, who, "xdp")), percentile(times, 0.99)
                rows.append({"ranks": ranks, "mtu": mtu, "size": size, "who": who,
                             "p50_us": median(times), "p50_interval_us": [low, high], "p99_us": p99,
                             "cpu_ns_per_byte": cpu, "over_xdp": ratio,
                             "rounds": [run.times for run in runs]})
                name = f"gloo {who}" if who in GLOO else who
                print(f"{ranks:>5} {mtu:>5} {human(size):>5} {name:>17} {median(times):>10.0f} "
                      f"{f'{low:.0f} .. {high:.0f}':>21} {'-' if p99 is None else f'{p99:.0f}':>10} "
                      f"{cpu:>9.2f} {ratio:>9.2f}")
        print(f"\n{'ranks':>5} {'MTU':>5} {'frame':>5} {'minimal pairs, Mpps':>20} "
              f"{'AllReduce of 25M / that':>24}")
        for (ranks, mtu), carried in self.carried.items():
            share = median(self.over_carried(ranks, mtu))
            rows.append({"ranks": ranks, "mtu": mtu, "who": "minimal pairs",
                         "packets_per_s": median(carried), "rounds": carried,
                         "allreduce_over_it": share})
            print(f"{ranks:>5} {mtu:>5} {CARRIED[mtu][0]:>5} {median(carried) / 1e6:>20.3f} "
                  f"{share:>24.2f}")
        return rows

    def targets(self):
        found = []
        for mtu in (1500, 9000):
            found.append(at_least(0.8, f"25M, 4 ranks, MTU {mtu}: frames of AllReduce / of the "
                                  "minimal pairs of all ranks", self.over_carried(4, mtu)))
        found.append(at_least(1.5, "25M, 4 ranks, MTU 1500: mmsg without GSO / xdp",
                              self.ratios(4, 1500, 25 * MIB, "mmsg, no GSO", "xdp")))
        for ranks, mtu, size, *_ in self.cells():
            if size == 4 * KIB:
                found.append(at_most(1.2, f"4K, {ranks} ranks, MTU {mtu}: xdp / uring",
                                     self.ratios(ranks, mtu, size, "xdp", "uring")))
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="preset 'bench' built here; reports too")
    parser.add_argument("--quick", action="store_true", help="under 3 minutes")
    parser.add_argument("--only", choices=["pairs", "jobs"], help="one half of it")
    arguments = parser.parse_args()
    arguments.binaries = os.path.join(arguments.build, "bin")
    halves = {"pairs": Pairs, "jobs": Jobs}
    chosen = {name: half(arguments) for name, half in halves.items()
              if arguments.only in (None, name)}
    for half in chosen.values():
        half.run()
    rows = {name: half.table() for name, half in chosen.items()}
    targets = [target for half in chosen.values() for target in half.targets()]
    finish(os.path.join(arguments.build, "xdp.json"), targets, **rows)


if __name__ == "__main__":
    main()
