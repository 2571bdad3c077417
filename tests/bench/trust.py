#!/usr/bin/env python3
"""What a secret costs: exact AllReduce of 4 ranks on the namespace testbed without a limit of the link,
plain, keyed (packets carry tags) and sealed (payloads are encrypted), and the time in which 8 ranks
connect with and without a secret. Runs are interleaved; an untimed refill and barrier go before each
iteration, and the slowest rank counts. Then the CPU time of a rank of a job with a secret while
strangers send 100,000 packets a second to it, beside that with as many packets which the kernel
drops before it looks for a socket: the target is the cost of the socket filter.

Prints three tables, writes trust.json, ends with the targets; exit code 1 when one is missed.
Intervals are 95 % bootstrap intervals over the rounds."""
import argparse, json, os, secrets, subprocess, tempfile

import hostile
from contenders import run_tarpon
from figures import KIB, MIB, Progress, at_most, fail, finish, human, interval, median, ratios

WHO = {"plain": [], "keyed": ["--integrity", "keyed"], "sealed": ["--integrity", "sealed"]}
CELLS = [(25 * MIB, 1500, 10), (25 * MIB, 9000, 10), (4 * KIB, 1500, 300)]  # size, MTU, iterations
MOST = {(25 * MIB, 1500): 1.5, (25 * MIB, 9000): 1.25, (4 * KIB, 1500): 1.1}  # keyed / plain
CONNECTING, MOST_MS = 8, 50
STRANGERS = 100_000  # packets a second
STRANGERS_LINK = "500mbit"
TRAFFICS = ["nobody", "malformed", "strangers"]


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.times = {}    # (size, MTU, who) -> the median of each round, us
        self.cpu = {}      # the same -> processor time of all ranks for a byte of the bucket, ns
        self.connect = {}  # who -> ms of the slowest rank in each round
        self.blocks = {}   # data path -> traffic -> blocks of hostile_rank
        self.filter_us = []

    def measure(self, size, mtu, count, who):
        run = run_tarpon(self.arguments.binaries, 4, mtu, size, count, "uring", WHO[who])
        self.times.setdefault((size, mtu, who), []).append(median(run.times))
        self.cpu.setdefault((size, mtu, who), []).append(1e9 * run.cpu_s / count / size)

    def measure_connecting(self, who):
        with tempfile.NamedTemporaryFile(suffix=".json") as report:
            command = [f"{self.arguments.binaries}/tarpon", "allreduce", "--local-ranks", str(CONNECTING),
                       "--hosts", "off", "-b", "4K", "-e", "4K", "-n", "1", "-w", "0", "--json", report.name,
                       *WHO[who]]
            process = subprocess.run(command, capture_output=True, text=True, timeout=60)
            if process.returncode != 0:
                fail(" ".join(command), process)
            cost = json.load(open(report.name))["config"]["connect"]
        self.connect.setdefault(who, []).append(cost["ms"])

    def measure_strangers(self, progress):
        plan = hostile.Plan(self.arguments.rounds, 1)
        self.filter_us = hostile.filter_us(self.arguments.binaries, plan)
        with tempfile.NamedTemporaryFile("w") as secret:
            secret.write(secrets.token_hex(32))
            secret.flush()
            for datapath in hostile.DATAPATHS:
                self.blocks[datapath] = hostile.run_job(
                    self.arguments.binaries, datapath, plan, progress, TRAFFICS, STRANGERS, STRANGERS_LINK,
                    secret.name)

    def packet_us(self, datapath, traffic):
        """CPU time of the attacked rank for each packet, by round."""
        quiet, attacked = self.blocks[datapath]["nobody"], self.blocks[datapath][traffic]
        packets = hostile.packets_a_call(attacked)
        return [(more - less) / packets
                for more, less in zip(hostile.cpu_us(attacked), hostile.cpu_us(quiet))]

    def run(self):
        steps = len(WHO) * (len(CELLS) + 1) + len(TRAFFICS) * len(hostile.DATAPATHS)
        progress = Progress(self.arguments.rounds * steps)
        names = list(WHO)
        for number in range(self.arguments.rounds):
            first = number % len(names)
            order = names[first:] + names[:first]
            for size, mtu, count in CELLS:
                for who in order:
                    self.measure(size, mtu, count, who)
                    progress.step(f"{human(size)}, MTU {mtu}")
            for _ in range(3):
                for who in order:
                    self.measure_connecting(who)
            progress.step("connecting", len(names))
        self.measure_strangers(progress)
        progress.end()

    def table(self):
        rows = []
        print(f"{'size':>5} {'MTU':>5} {'who':>7} {'p50 us':>9} {'95 % interval':>20} {'it / plain':>10} "
              f"{'CPU ns a byte':>13}")
        for size, mtu, _ in CELLS:
            for who in WHO:
                times, cpu = self.times[size, mtu, who], self.cpu[size, mtu, who]
                low, high = interval(times)
                ratio = median(ratios(times, self.times[size, mtu, "plain"]))
                rows.append({"size": size, "mtu": mtu, "who": who, "p50_us": median(times),
                             "p50_interval_us": [low, high], "it_over_plain": ratio,
                             "cpu_ns_a_byte": median(cpu), "rounds": times})
                print(f"{human(size):>5} {mtu:>5} {who:>7} {median(times):>9.0f} "
                      f"{f'{low:.0f} .. {high:.0f}':>20} {ratio:>10.2f} {median(cpu):>13.2f}")
        print(f"\n{CONNECTING} ranks connect in")
        for who in WHO:
            low, high = interval(self.connect[who])
            rows.append({"connecting": CONNECTING, "who": who, "ms": median(self.connect[who]),
                         "interval_ms": [low, high], "rounds": self.connect[who]})
            print(f"{who:>19} {median(self.connect[who]):>9.1f} ms {f'{low:.1f} .. {high:.1f}':>17}")
        return rows + self.table_of_strangers()

    def table_of_strangers(self):
        rows = []
        print(f"\n{'data path':>9} {'packets of':>10} {'packets/s':>9} {'CPU us a call':>13} "
              f"{'CPU us each':>11}")
        for datapath, blocks in self.blocks.items():
            for traffic in TRAFFICS:
                each = median(self.packet_us(datapath, traffic)) if traffic != "nobody" else 0
                rate = median([block["packets"] / block["seconds"] for block in blocks[traffic]])
                cpu = hostile.cpu_us(blocks[traffic])
                rows.append({"datapath": datapath, "packets_of": traffic, "packets_a_second": rate,
                             "cpu_us": cpu, "cpu_us_a_packet": each})
                print(f"{datapath:>9} {traffic:>10} {rate:>9.0f} {median(cpu):>13.0f} {each:>11.2f}")
        low, high = interval(self.filter_us)
        print(f"The socket filter takes {median(self.filter_us):.2f} us ({low:.2f} .. {high:.2f}).")
        return rows

    def stranger_target(self, datapath):
        malformed, strangers = (self.blocks[datapath][traffic] for traffic in ("malformed", "strangers"))
        filtering = median(self.filter_us) * hostile.packets_a_call(strangers)
        limit = 1 + filtering / median(hostile.cpu_us(malformed))
        return at_most(round(limit, 2), f"{datapath}: CPU time of a call, strangers / malformed",
                       ratios(hostile.cpu_us(strangers), hostile.cpu_us(malformed)))

    def targets(self):
        found = [at_most(MOST[size, mtu], f"{human(size)}, MTU {mtu}: keyed / plain",
                         ratios(self.times[size, mtu, "keyed"], self.times[size, mtu, "plain"]))
                 for size, mtu, _ in CELLS]
        more = [keyed - plain for keyed, plain in zip(self.connect["keyed"], self.connect["plain"])]
        strangers = [self.stranger_target(datapath) for datapath in hostile.DATAPATHS]
        return [*found, *strangers,
                at_most(MOST_MS, f"{CONNECTING} ranks connect with a secret: ms more", more)]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="preset 'bench' built here; reports too")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds (9)")
    arguments = parser.parse_args()
    arguments.binaries = os.path.join(arguments.build, "bin")
    bench = Bench(arguments)
    bench.run()
    rows = bench.table()
    finish(os.path.join(arguments.build, "trust.json"), bench.targets(), rows=rows)


if __name__ == "__main__":
    main()
