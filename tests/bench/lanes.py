#!/usr/bin/env python3
"""Exact AllReduce of 25 MiB by ranks with 1, 2 and 4 lanes, beside Gloo's algorithms, on the namespace
testbed without a limit of the link. One timing rule for all: an untimed refill and barrier before each
iteration, the slowest rank counts, runs interleaved. Lanes help where a rank has idle cores, so these
targets of time hold for machines with 16 cores.

Before it, one rank alone sends trains to nobody, with 10 us of other work for each (lanes_sender.cc):
what a second lane gains where it has a core, also on 2 cores.

Prints two tables, writes lanes.json, ends with the targets; exit code 1 when one is missed.
Intervals are 95 % bootstrap intervals over the rounds' medians."""
import argparse, json, os, subprocess

from contenders import GLOO, run_gloo, run_tarpon
from figures import MIB, Progress, at_least, at_most, fail, finish, interval, median, ratios
from veth_pair import ADDRESS, VethPair

LANES = [1, 2, 4]
CELLS = [(ranks, mtu) for ranks in (2, 4, 8) for mtu in (1500, 9000)]
SIZE = 25 * MIB
NOBODY = [f"10.78.0.{host}" for host in (3, 4, 5)]
SENDER_LANES = [1, 2]
CORES = 16  # from so many on the targets of time hold
FASTER_THAN_GLOO, FASTER_THAN_ONE, MORE_CPU = 1.2, 1.5, 1.1


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.times = {}  # (ranks, mtu, contender) -> the median of each round, us
        self.alone = {}  # lanes -> (us, processor time in us) a train of each round
        self.cpu = {}    # the same -> processor time of all ranks for a byte of the bucket, ns, of each round

    def measure(self, ranks, mtu, contender):
        count = 25 if os.cpu_count() >= CORES else 10
        if contender in GLOO:
            run = run_gloo(self.arguments.binaries, ranks, mtu, SIZE, count, contender)
        else:
            run = run_tarpon(self.arguments.binaries, ranks, mtu, SIZE, count, "uring", ["--lanes", str(contender)])
        key = ranks, mtu, contender
        self.times.setdefault(key, []).append(median(run.times))
        self.cpu.setdefault(key, []).append(1e9 * run.cpu_s / count / SIZE)

    def send_alone(self, pair, lanes):
        command = pair.inside(0, [f"{self.arguments.binaries}/lanes_sender", "--address", ADDRESS[0], "--peers",
                                  ",".join(NOBODY), "--lanes", str(lanes), "--work-us", "10"])
        process = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if process.returncode != 0:
            fail(" ".join(command), process)
        result = json.loads(process.stdout)
        self.alone.setdefault(lanes, []).append((result["us"], result["cpu_us"]))

    def run(self):
        contenders = LANES + GLOO
        progress = Progress(self.arguments.rounds * len(CELLS) * len(contenders))
        with VethPair(1500) as pair:
            for address in NOBODY:  # of no interface: the other side drops what comes
                pair.run(0, ["ip", "neighbour", "add", address, "lladdr", "02:00:00:00:00:99", "dev", "eth0"])
            for _ in range(2 * self.arguments.rounds):
                for lanes in SENDER_LANES:
                    self.send_alone(pair, lanes)
        for number in range(self.arguments.rounds):
            first = number % len(contenders)
            for ranks, mtu in CELLS:
                for contender in contenders[first:] + contenders[:first]:
                    self.measure(ranks, mtu, contender)
                    progress.step(f"{ranks} ranks, MTU {mtu}")
        progress.end()

    def best_gloo(self, ranks, mtu):
        return min(GLOO, key=lambda name: median(self.times[ranks, mtu, name]))

    def table_of_sender(self):
        rows = []
        print(f"{'a rank alone':>12} {'us a train':>10} {'95 % interval':>16} {'CPU us a train':>14}")
        for lanes in SENDER_LANES:
            times, cpu = zip(*self.alone[lanes])
            low, high = interval(times)
            rows.append({"ranks": 1, "lanes": lanes, "us_a_train": median(times), "interval_us": [low, high],
                         "cpu_us_a_train": median(cpu), "rounds": times})
            print(f"{lanes:>6} lane{'s' if lanes > 1 else ' '} {median(times):>10.1f} {f'{low:.1f} .. {high:.1f}':>16} "
                  f"{median(cpu):>14.1f}")
        print()
        return rows

    def table(self):
        rows = []
        print(f"{'ranks':>5} {'MTU':>5} {'who':>17} {'p50 ms':>8} {'95 % interval':>16} {'best Gloo / it':>15} "
              f"{'CPU ns a byte':>13}")
        for ranks, mtu in CELLS:
            best = self.best_gloo(ranks, mtu)
            for who in LANES + [best]:
                times, cpu = self.times[ranks, mtu, who], self.cpu[ranks, mtu, who]
                low, high = interval(times)
                ratio = median(ratios(self.times[ranks, mtu, best], times))
                name = f"gloo {who}" if who in GLOO else f"{who} lane{'s' if who > 1 else ''}"
                rows.append({"ranks": ranks, "mtu": mtu, "who": name, "p50_us": median(times),
                             "p50_interval_us": [low, high], "best_gloo_over_it": ratio,
                             "cpu_ns_a_byte": median(cpu), "rounds": times, "cpu_rounds": cpu})
                print(f"{ranks:>5} {mtu:>5} {name:>17} {median(times) / 1e3:>8.1f} "
                      f"{f'{low / 1e3:.1f} .. {high / 1e3:.1f}':>16} {ratio:>15.2f} {median(cpu):>13.2f}")
        return rows

    def targets(self):
        alone = {lanes: [us for us, _ in self.alone[lanes]] for lanes in SENDER_LANES}
        found = [at_least(FASTER_THAN_ONE, "a rank that sends alone: 1 lane / 2", ratios(alone[1], alone[2]))]
        for ranks, mtu in CELLS:
            name = f"{ranks} ranks, MTU {mtu}"
            found.append(at_most(MORE_CPU, f"{name}: processor time of 2 lanes / 1",
                                 ratios(self.cpu[ranks, mtu, 2], self.cpu[ranks, mtu, 1])))
            if ranks != 4 or os.cpu_count() < CORES:
                continue
            best = min(LANES, key=lambda lanes: median(self.times[ranks, mtu, lanes]))
            found.append(at_least(FASTER_THAN_GLOO, f"{name}: best Gloo / {best} lanes", ratios(
                self.times[ranks, mtu, self.best_gloo(ranks, mtu)], self.times[ranks, mtu, best])))
            found.append(at_least(FASTER_THAN_ONE, f"{name}: 1 lane / 2", ratios(
                self.times[ranks, mtu, 1], self.times[ranks, mtu, 2])))
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="preset 'bench' built here; reports too")
    parser.add_argument("--rounds", type=int, default=4, help="interleaved rounds (4)")
    arguments = parser.parse_args()
    arguments.binaries = os.path.join(arguments.build, "bin")
    bench = Bench(arguments)
    bench.run()
    rows = bench.table_of_sender() + bench.table()
    finish(os.path.join(arguments.build, "lanes.json"), bench.targets(), rows=rows)


if __name__ == "__main__":
    main()
