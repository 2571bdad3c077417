#!/usr/bin/env python3
"""AF_XDP in the zero-copy guest (tests/guest): Tarpon's port beside a minimal pair, and zero-copy,
copy mode and io_uring side by side. One sender and one receiver on the guest's one processor; pairs
in turn within each round, and in the opposite order in every second one.

The processor is emulated: order and ratios between AF_XDP pairs are of use, figures are not.

Prints one table, writes zerocopy.json, ends with the targets: open where the median misses and its
95 % interval does not. Exit code 1 when one is missed; 0 also where there is no such guest (the line
SKIP says why)."""
import argparse, json, os, subprocess, sys

from figures import at_least, finish, median, ratios

FRAMES = [106, 1442, 3498]  # the header alone; MTU 1428; the largest payload at MTU 3498
PAIRS = {"minimal": "minimal pair, zero-copy", "zero-copy": "port, zero-copy",
         "copy": "port, copy mode", "uring": "port, io_uring (trains of 16)"}
TARGET = 0.95


def run_guest(arguments):
    """[(round, pair, frame, receiver, sender)]; ends the program where no guest can be had."""
    script = os.path.join(os.path.dirname(__file__), "..", "guest", "zerocopy.sh")
    command = [script, "--build", arguments.build, "--bench", str(arguments.rounds),
               str(arguments.seconds)] + [str(frame) for frame in FRAMES]
    process = subprocess.run(command, capture_output=True, text=True)
    lines = process.stdout.splitlines()
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n" + "\n".join(lines[-5:]) + process.stderr[-500:])
    if lines and lines[-1].startswith("SKIP: "):
        print(lines[-1])
        sys.exit(0)
    rows = []
    for words in (line.split() for line in lines if line.startswith("PAIR ")):
        try:
            receiver, sender = json.loads(words[4]), json.loads(words[5])
        except (IndexError, ValueError):
            sys.exit("a pair failed: " + " ".join(words))
        rows.append((int(words[1]), words[2], int(words[3]), receiver, sender))
    return rows


def rate(row):
    return row[3]["packets"] / row[3]["seconds"]


def cpu_us(row):
    """Of both sides together; a packet that was lost on the way has cost its sender too."""
    receiver, sender = row[3], row[4]
    return 1e6 * (receiver["cpu_s"] / receiver["packets"] + sender["cpu_s"] / sender["sent"])


def table(rows):
    """[{frame, pair, ...}], printed."""
    found = []
    print(f"{'frame':>6} {'pair':<30} {'1000 packets/s':>15} {'Gb/s':>6} {'CPU us/packet':>14}")
    for frame in FRAMES:
        for pair, text in PAIRS.items():
            chosen = [row for row in rows if row[1] == pair and row[2] == frame]
            rates, costs = [rate(row) for row in chosen], [cpu_us(row) for row in chosen]
            speed, cpu = median(rates), median(costs)
            found.append({"frame": frame, "pair": pair, "packets_per_s": speed, "cpu_us": cpu,
                          "rounds_packets_per_s": rates, "rounds_cpu_us": costs})
            print(f"{frame:>6} {text:<30} {speed / 1e3:>15.1f} {speed * frame * 8e-9:>6.2f} "
                  f"{cpu:>14.2f}")
    return found


def targets(rows):
    """The port's rate over the minimal pair's, round by round."""
    found = []
    for frame in FRAMES:
        port, minimal = ({row[0]: rate(row) for row in rows if row[1] == pair and row[2] == frame}
                         for pair in ("zero-copy", "minimal"))
        found.append(at_least(TARGET, f"{frame} bytes, zero-copy: port / minimal pair",
                              ratios([port[number] for number in minimal], minimal.values())))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="preset 'bench' built here; reports too")
    parser.add_argument("--rounds", type=int, default=10, help="interleaved rounds (10)")
    parser.add_argument("--seconds", type=float, default=0.5, help="that a receiver measures (0.5)")
    arguments = parser.parse_args()
    rows = run_guest(arguments)
    found = table(rows)
    finish(os.path.join(arguments.build, "zerocopy.json"), targets(rows), rows=found)


if __name__ == "__main__":
    main()
