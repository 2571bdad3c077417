#!/usr/bin/env python3
"""What hostile packets cost: two ranks make exact calls of 1 MB over links of 200 Mb/s, and a third
host sends all classes of tests/hostile to one of them, in the name of the other. Blocks of calls
take turns: no hostile packets, those of strangers (without the job's cookie), those of insiders.
The links are slow, so that the sender does not take the ranks' cores.

The limit is 1.1 times the CPU time of a call without hostile packets. The socket filter refuses the
packets of strangers on uring and mmsg. There the limit includes the filter's own time, which
hostile_filter measures in the same run.

Prints a table, writes hostile.json, ends with the targets; exit code 1 when one is missed.
Intervals are 95 % bootstrap intervals over the rounds."""
import argparse, collections, json, os, subprocess, sys, tempfile

from figures import Progress, at_most, fail, finish, interval, median, ratios

DATAPATHS = ["uring", "mmsg", "xdp"]
TRAFFICS = ["nobody", "strangers", "insiders"]
FILTERED = {("uring", "strangers"), ("mmsg", "strangers")}  # by the socket filter
RATE = 10_000  # hostile packets a second: about 5 % of what the link carries
LINK = "200mbit"
Plan = collections.namedtuple("Plan", "rounds seconds")
PLANS = {"usual": Plan(9, 2), "quick": Plan(5, 1), "smoke": Plan(1, 0.2)}


def run_job(binaries, datapath, plan, progress, traffics=TRAFFICS, rate=RATE, link=LINK, secret=None):
    """The blocks by traffic, each in the order of the rounds. `secret`: the job's file."""
    blocks = {traffic: [] for traffic in traffics}
    with tempfile.NamedTemporaryFile() as board, tempfile.TemporaryFile("w+") as complaints:
        job = subprocess.Popen(
            [f"{binaries}/tarpon", "testbed", "--local-ranks", "3", "--rate", link, "--",
             f"{binaries}/hostile_rank", board.name, "--datapath", datapath, "--rounds",
             str(plan.rounds), "--seconds", str(plan.seconds), "--rate", str(rate), "--packets-of",
             *traffics, *(["--secret-file", secret] if secret else [])],
            stdout=subprocess.PIPE, stderr=complaints, text=True)
        for line in job.stdout:
            start = line.find("{")
            if start < 0:
                continue
            block = json.loads(line[start:])
            blocks[block["packets_of"]].append(block)
            progress.step(f"{datapath}, hostile packets of {block['packets_of']}")
        if job.wait() != 0:
            complaints.seek(0)
            sys.exit(f"hostile_rank on {datapath} failed (exit {job.returncode}):\n"
                     f"{complaints.read()[-2000:]}")
    return blocks


def filter_us(binaries, plan):
    """CPU time of the socket filter for each packet that it refuses, in us, round by round."""
    process = subprocess.run([f"{binaries}/hostile_filter", "--rounds", str(plan.rounds)],
                             capture_output=True, text=True)
    if process.returncode != 0:
        fail("hostile_filter", process)
    rounds = [json.loads(line) for line in process.stdout.splitlines()]
    return [one["refused_us"] - one["malformed_us"] for one in rounds]


def cpu_us(blocks):
    """CPU time of the attacked rank for each call, in us."""
    return [1e6 * block["cpu_s"] / block["calls"] for block in blocks]


def packets_a_call(blocks):
    return median([block["packets"] / block["calls"] for block in blocks])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="preset 'bench' built here; reports too")
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--smoke", action="store_true", help="does it run?")
    parser.add_argument("--only", choices=DATAPATHS, help="one data path")
    arguments = parser.parse_args()
    plan = PLANS["smoke" if arguments.smoke else "quick" if arguments.quick else "usual"]
    datapaths = [arguments.only] if arguments.only else DATAPATHS
    progress = Progress(len(datapaths) * plan.rounds * len(TRAFFICS))
    binaries = os.path.join(arguments.build, "bin")
    refusals = filter_us(binaries, plan)
    results = {datapath: run_job(binaries, datapath, plan, progress) for datapath in datapaths}
    progress.end()

    print(f"{'data path':>9} {'packets of':>10} {'CPU us a call (interval)':>27} "
          f"{'hostile packets a call':>23} {'CPU us each':>12}")
    rows, targets = [], []
    for datapath, blocks in results.items():
        quiet = cpu_us(blocks["nobody"])
        for traffic in TRAFFICS:
            times = cpu_us(blocks[traffic])
            low, high = interval(times)
            packets = packets_a_call(blocks[traffic])
            each = (median(times) - median(quiet)) / packets if packets else 0
            rows.append({"datapath": datapath, "packets_of": traffic, "cpu_us": times,
                         "packets_a_call": packets, "cpu_us_a_packet": each})
            spread = f"{median(times):.0f} ({low:.0f} .. {high:.0f})"
            print(f"{datapath:>9} {traffic:>10} {spread:>27} {packets:>23.0f} {each:>12.2f}")
            if traffic == "nobody":
                continue
            limit = 1.1
            if (datapath, traffic) in FILTERED:
                limit += median(refusals) * packets / median(quiet)
            targets.append(at_most(round(limit, 2), f"{datapath}, {traffic}: CPU time of a call / "
                                                    "without hostile packets", ratios(times, quiet)))
    low, high = interval(refusals)
    print(f"\nThe socket filter takes {median(refusals):.2f} us ({low:.2f} .. {high:.2f}) for each "
          "packet that it refuses.\nThe limits of strangers on uring and mmsg are 1.1 and that time "
          "for the packets of a call.")
    finish(os.path.join(arguments.build, "hostile.json"), targets, rows=rows, filter_us=refusals)


if __name__ == "__main__":
    main()
