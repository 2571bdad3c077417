#!/usr/bin/env python3
"""Tarpon's AF_XDP port beside a minimal AF_XDP pair on one veth pair, and AllReduce over AF_XDP beside
io_uring, mmsg without GSO and Gloo's ring on the namespace testbed. Contenders in turn within each
round, and in the opposite order in every second one.

Prints two tables, writes xdp.json, ends with the targets; exit code 0 only when all are met. Intervals
are 95 % bootstrap intervals over the rounds."""
import argparse, json, os, subprocess, sys, tempfile

from allreduce import KIB, MIB, human, run_gloo
from figures import Progress, interval, median, percentile, print_targets, target, write_report

# Frame bytes with Ethernet header, MTU of the pair, several buffers a frame?
FRAMES = [(106, 1500, False), (512, 1500, False), (1442, 1500, False), (1514, 1500, False),
          (3000, 3000, False), (8900, 9000, True)]
PAIRS = {"minimal": "minimal AF_XDP pair", "bare": "port", "reduce": "port, payload written and added",
         "crc": "the same with CRC32C", "mmsg": "sendmmsg without GSO"}
CONTENDERS = {"xdp": ["--datapath", "xdp"], "uring": ["--datapath", "uring"],
              "mmsg": ["--datapath", "mmsg", "--gso-segments", "1"], "gloo": None}
PAYLOAD, FRAME = 1408, 1514  # of a full slot at MTU 1500
RANKS = 4


class VethPair:
    """Two network namespaces with an end each, 10.9.0.1 and 10.9.0.2; they go with their holders."""

    def __init__(self, mtu):
        self.holders = [subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec sleep 3600"],
                                         stdout=subprocess.PIPE) for _ in range(2)]
        for holder in self.holders:
            holder.stdout.readline()
        pids = [holder.pid for holder in self.holders]
        self.run(0, f"ip link add v0 mtu {mtu} type veth peer name v1 mtu {mtu} netns {pids[1]}")
        for side in range(2):
            self.run(side, f"ip link set v{side} addrgenmode none")
            self.run(side, f"ip address add 10.9.0.{side + 1}/24 dev v{side}")
            self.run(side, f"ip link set v{side} up")
        links = json.loads(self.run(1, "ip -j link show v1"))
        self.mac = links[0]["address"]

    def inside(self, side):
        return ["nsenter", f"--net=/proc/{self.holders[side].pid}/ns/net"]

    def run(self, side, command):
        return subprocess.run(self.inside(side) + command.split(), check=True, capture_output=True,
                              text=True).stdout

    def close(self):
        for holder in self.holders:
            holder.kill()
            holder.wait()


def pair_commands(binaries, network, pair, frame, several, seconds):
    """Of the sender and of the receiver."""
    common = ["--frame", str(frame), "--seconds", str(seconds)] + ["--multi-buffer"] * several
    if pair == "minimal":
        sides = [["send", "--interface", "v0", "--to", network.mac], ["receive", "--interface", "v1"]]
        return [[f"{binaries}/xdp_minimal"] + side + common for side in sides]
    if pair == "mmsg":
        common += ["--datapath", "mmsg", "--gso-segments", "1"]
    else:
        common += ["--work", pair]
    return [[f"{binaries}/xdp_port_pair", role, "--interface", f"v{side}",
             "--address", f"10.9.0.{side + 1}", "--peer", f"10.9.0.{2 - side}"] + common
            for side, role in enumerate(["send", "receive"])]


def run_pair(binaries, pair, frame, mtu, several, seconds):
    """The receiver's report."""
    network = VethPair(mtu)
    try:
        send, receive = pair_commands(binaries, network, pair, frame, several, seconds)
        receiver = subprocess.Popen(network.inside(1) + receive, stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True)
        if receiver.stdout.readline() != "ready\n":
            sys.exit(f"{' '.join(receive)} failed: {receiver.communicate(timeout=30)[1]}")
        sender = subprocess.run(network.inside(0) + send, capture_output=True, text=True, timeout=60)
        out, error = receiver.communicate(timeout=60)
        if sender.returncode != 0 or receiver.returncode != 0:
            sys.exit(f"{pair} at {frame} B failed: {sender.stderr}{error}")
        return json.loads(out)
    finally:
        network.close()


def run_all_at_once(binaries, seconds):
    """Packets per second received by each of RANKS minimal sockets that all send to the next."""
    with tempfile.TemporaryDirectory() as place:
        command = [f"{binaries}/tarpon", "testbed", "--local-ranks", str(RANKS), "--",
                   f"{binaries}/xdp_minimal", "both", "--interface", "eth0", "--meet", place,
                   "--frame", str(FRAME), "--seconds", str(seconds)]
        process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: {process.stderr}")
    reports = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    return sum(each["packets"] / each["seconds"] for each in reports) / RANKS


def run_allreduce(binaries, contender, size, mtu, iterations):
    """Times in us, and CPU seconds per byte and rank (None for Gloo)."""
    if contender == "gloo":
        return run_gloo(binaries, RANKS, mtu, "ring", [size], False, iterations)[size], None
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [f"{binaries}/tarpon", "allreduce", "--local-ranks", str(RANKS), "--net", "veth",
                   "--mtu", str(mtu), "-b", str(size), "-e", str(size), "-n", str(iterations), "-w", "3",
                   "--json", report.name] + CONTENDERS[contender]
        process = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if process.returncode != 0:
            sys.exit(f"{' '.join(command)} failed: {process.stderr}")
        entry = json.load(open(report.name))["results"][-1]
    assert entry["nwrong"] == 0 and entry["lost_fraction"] == 0
    times = entry["time_us"]["all"]
    return times, entry["cpu_s"] / (len(times) * size * RANKS)


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.binaries = os.path.join(arguments.build, "bin")
        self.rounds = 3 if arguments.quick else 10
        self.allreduce_rounds = 2 if arguments.quick else 5
        self.frames = [f for f in FRAMES if f[0] in (106, 1442, 8900)] if arguments.quick else FRAMES
        sizes = [4 * KIB, 25 * MIB] if arguments.quick else [4 * KIB, 64 * KIB, 1 * MIB, 25 * MIB]
        self.cells = [(mtu, size) for mtu in (1500, 9000) for size in sizes]
        self.pairs, self.times, self.cpu, self.at_once = {}, {}, {}, []

    def run(self):
        steps = (self.rounds * len(self.frames) * len(PAIRS) +
                 self.allreduce_rounds * (1 + len(self.cells) * len(CONTENDERS)))
        progress = Progress(steps)
        for number in range(self.rounds):
            for frame, mtu, several in self.frames:
                for pair in list(PAIRS)[:: 1 if number % 2 == 0 else -1]:
                    report = run_pair(self.binaries, pair, frame, mtu, several, 0.4)
                    self.pairs.setdefault((frame, pair), []).append(report)
                    progress.step(f"{frame} B, {pair}")
        for number in range(self.allreduce_rounds):
            self.at_once.append(run_all_at_once(self.binaries, 0.5))
            progress.step("all ranks send")
            for mtu, size in self.cells:
                for contender in list(CONTENDERS)[:: 1 if number % 2 == 0 else -1]:
                    self.measure(contender, mtu, size)
                    progress.step(f"{contender}, MTU {mtu}, {human(size)}")
        progress.end()

    def measure(self, contender, mtu, size):
        iterations = {4 * KIB: 1000, 64 * KIB: 200, 1 * MIB: 50}.get(size, 8)
        times, cpu = run_allreduce(self.binaries, contender, size, mtu, iterations)
        self.times.setdefault((mtu, size, contender), []).append(times)
        self.cpu.setdefault((mtu, size, contender), []).append(cpu)

    def rates(self, frame, pair):
        return [report["packets"] / report["seconds"] for report in self.pairs[frame, pair]]

    def pair_ratios(self, frame, over, under):
        return [a / b for a, b in zip(self.rates(frame, over), self.rates(frame, under))]

    def pair_table(self):
        rows = []
        print(f"{'frame':>6} {'pair':<32} {'1000 packets/s':>15} {'Gb/s':>6} {'of minimal':>11} "
              f"{'95 % interval':>15}")
        for frame, _, _ in self.frames:
            for pair, text in PAIRS.items():
                speed, ratios = median(self.rates(frame, pair)), self.pair_ratios(frame, pair, "minimal")
                low, high = interval(ratios)
                rows.append({"frame": frame, "pair": pair, "packets_per_s": speed,
                             "of_minimal": median(ratios), "interval": [low, high],
                             "rounds": self.pairs[frame, pair]})
                print(f"{frame:>6} {text:<32} {speed / 1e3:>15.1f} {speed * frame * 8e-9:>6.2f} "
                      f"{median(ratios):>11.2f} {f'{low:.2f} .. {high:.2f}':>15}")
        return rows

    def time_ratios(self, mtu, size, over, under):
        return [median(a) / median(b) for a, b in
                zip(self.times[mtu, size, over], self.times[mtu, size, under])]

    def allreduce_table(self):
        rows = []
        print(f"\n{'MTU':>5} {'size':>5} {'who':<17} {'p50 us':>10} {'p99 us':>10} {'max us':>10} "
              f"{'CPU ns/byte':>12} {'it / xdp':>9}")
        for mtu, size in self.cells:
            for contender in CONTENDERS:
                every = [t for times in self.times[mtu, size, contender] for t in times]
                costs = [c for c in self.cpu[mtu, size, contender] if c is not None]
                cost = median(costs) * 1e9 if costs else None
                p99, ratio = percentile(every, 0.99), median(self.time_ratios(mtu, size, contender, "xdp"))
                rows.append({"mtu": mtu, "size": size, "who": contender, "p50_us": median(every),
                             "p99_us": p99, "cpu_ns_per_byte": cost, "over_xdp": ratio,
                             "rounds": self.times[mtu, size, contender]})
                name = {"mmsg": "mmsg without GSO", "gloo": "gloo ring"}.get(contender, contender)
                print(f"{mtu:>5} {human(size):>5} {name:<17} {median(every):>10.0f} "
                      f"{'-' if p99 is None else f'{p99:.0f}':>10} {max(every):>10.0f} "
                      f"{'-' if cost is None else f'{cost:.2f}':>12} {ratio:>9.2f}")
        return rows

    def share_of_pairs(self):
        """Packets that a rank receives in an AllReduce of 25 MiB, of those that the minimal sockets
        carry when all send."""
        packets = 2 * (RANKS - 1) / RANKS * 25 * MIB / PAYLOAD
        return [packets / (median(times) * 1e-6) / rate for times, rate in
                zip(self.times[1500, 25 * MIB, "xdp"], self.at_once)]

    def targets(self):
        found = [target("1442 B: minimal pair / sendmmsg without GSO",
                        self.pair_ratios(1442, "minimal", "mmsg"), 1.5)]
        for frame, _, _ in self.frames:
            found.append(target(f"{frame} B: port / minimal pair",
                                self.pair_ratios(frame, "bare", "minimal"), 0.95))
        for frame, _, _ in self.frames:
            if frame <= 1514 or frame == 8900:
                found.append(target(f"{frame} B, payload written and added: port / minimal pair",
                                    self.pair_ratios(frame, "reduce", "minimal"),
                                    0.85 if frame <= 1514 else 0.7))
        found.append(target("25M, MTU 1500: packets of xdp / of minimal sockets that all send",
                            self.share_of_pairs(), 0.8))
        found.append(target("25M, MTU 1500: mmsg without GSO / xdp",
                            self.time_ratios(1500, 25 * MIB, "mmsg", "xdp"), 1.5))
        found.append(target("4K, MTU 1500: p50 of xdp / of uring",
                            self.time_ratios(1500, 4 * KIB, "xdp", "uring"), at_most=1.2))
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="preset 'bench' built here; reports too")
    parser.add_argument("--quick", action="store_true", help="under 3 minutes")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    bench.run()
    report = {"pairs": bench.pair_table(), "allreduce": bench.allreduce_table(),
              "all_at_once_packets_per_s": bench.at_once, "targets": bench.targets()}
    write_report(os.path.join(arguments.build, "xdp.json"), report)
    print_targets(report["targets"])
    sys.exit(0 if all(each["met"] for each in report["targets"]) else 1)


if __name__ == "__main__":
    main()
