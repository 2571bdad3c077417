#!/usr/bin/env python3
"""Calls of 1 GiB: jobs of `large_rank` over loopback, of 2 and of 4 ranks.

late    calls that cannot end by their deadline, exact and bounded: how long after it they return.
beside  calls of 4 KiB on another tag while a large call runs: how long it takes to submit one, and
        until it has ended.
abort   abort() from another thread in the middle of a large call: when it returns, and when the
        call has ended on the last rank.

Prints a table, writes large.json, ends with the targets; exit code 1 when one is missed. The
targets hold for the longest time of all rounds, since they are promises."""
import argparse, json, os, subprocess, sys, tempfile, time

from figures import MIB, Progress, finish, human, judged, median, percentile, shown

LIMIT_S = 300  # of one job
DEADLINE_MS = {2: 150, 4: 400}  # of the cell late; keys: how many ranks
ABORT_MS = 150
LARGE = 1024 * MIB
OVER_MS = {2: 10, 4: 50}  # 4 ranks share 2 cores
THROUGH_MS = 10


def run_job(arguments, cell, ranks):
    """The lines of each rank."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [open(f"{folder}/{rank}", "w+") for rank in range(ranks)]
        processes = [subprocess.Popen(
            [f"{arguments.build}/bin/large_rank", cell, "--rank", str(rank), "--ranks", str(ranks),
             "--rendezvous", f"file://{folder}/rendezvous", "--rounds", str(arguments.rounds),
             "--bytes", str(arguments.bytes),
             "--deadline", str(max(1, DEADLINE_MS[ranks] * arguments.bytes // LARGE)),
             "--abort-within", str(max(1, ABORT_MS * arguments.bytes // LARGE))],
            stdout=outputs[rank], stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
        end = time.monotonic() + LIMIT_S
        try:
            complaints = [process.communicate(timeout=max(0, end - time.monotonic()))[1]
                          for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(process.returncode for process in processes):
            sys.exit(f"large_rank {cell} failed:\n{''.join(complaints)[-2000:]}")
        for output in outputs:
            output.seek(0)
        lines = [[json.loads(line) for line in output] for output in outputs]
        for output in outputs:
            output.close()
        return lines


def late(lines):
    """Ms after the deadline, of the slowest rank of each round, by mode."""
    times = {}
    for each in zip(*lines):
        times.setdefault(each[0]["mode"], []).append(max(one["over_ms"] for one in each))
    return {f"{mode}: after its deadline": values for mode, values in times.items()}


def reasons(lines, limit):
    """What the reports say of the bounded calls that returned more than `limit` ms late."""
    for number, each in enumerate(zip(*lines)):
        slowest = max(each, key=lambda one: one["over_ms"])
        if slowest["mode"] != "bounded" or slowest["over_ms"] <= limit:
            continue
        paused = max(one["paused_ms"] for one in each)
        doubt = sum(one["in_doubt"] for one in each)
        yield (f"# round {number}, {slowest['over_ms']:.1f} ms late: half of the ranks had begun after "
               f"{slowest['begun_ms']:.0f} ms; a process stood still for {paused:.0f} ms; "
               f"{doubt} ranks in doubt")


def beside(lines):
    def all_of(what):
        return [value for rank in lines for one in rank for value in one[what]]
    return {"4 KiB beside: until it is submitted": all_of("asked_ms"),
            "4 KiB beside: until it has ended": all_of("small_ms")}


def abort(lines):
    ended, returned = [], []
    for each in zip(*lines):
        aborted = each[0]["aborted_ms"]
        returned.append(each[0]["returned_ms"] - aborted)
        ended.append(max(one["ended_ms"] for one in each) - aborted)
    return {"abort(): until it returns": returned, "abort(): until the call has ended": ended}


def exactly(text, limit, value):
    return judged(text, limit, value, (value, value), most=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="folder of a build with -DTARPON_BENCH=ON")
    parser.add_argument("--rounds", type=int, default=20, help="of each cell (default %(default)s)")
    parser.add_argument("--only", choices=["late", "beside", "abort"], help="one cell")
    parser.add_argument("--smoke", action="store_true", help="does it run? 64 MiB, 2 rounds")
    arguments = parser.parse_args()
    arguments.bytes = LARGE
    if arguments.smoke:
        arguments.bytes, arguments.rounds = 64 * MIB, 2

    cells = {"late": late, "beside": beside, "abort": abort}
    wanted = [arguments.only] if arguments.only else list(cells)
    progress = Progress(len(wanted) * len(OVER_MS))
    print(f"calls of {human(arguments.bytes)}, {arguments.rounds} rounds; ms\n"
          f"{'ranks':>5} {'':<36} {'P50':>8} {'P99':>8} {'longest':>8} {'of':>6}")
    rows, targets = [], []
    for ranks in OVER_MS:
        for cell in wanted:
            lines = run_job(arguments, cell, ranks)
            for what, times in cells[cell](lines).items():
                longest = max(times)
                progress.say(f"{ranks:>5} {what:<36} {median(times):>8.2f} "
                             f"{shown(percentile(times, 0.99), 1, 2):>8} {longest:>8.2f} "
                             f"{len(times):>6}")
                rows.append({"ranks": ranks, "what": what, "ms": times})
                limit = OVER_MS[ranks] if cell == "late" else THROUGH_MS
                targets.append(exactly(f"{ranks} ranks, {what}, the longest in ms", limit, longest))
            if cell == "late":
                for reason in reasons(lines, OVER_MS[ranks]):
                    progress.say(reason)
            progress.step(f"{ranks} ranks, {cell}")
    progress.end()
    finish(os.path.join(arguments.build, "large.json"), targets, rows=rows)


if __name__ == "__main__":
    main()
