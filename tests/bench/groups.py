#!/usr/bin/env python3
"""Groups that come and go, seen from PyTorch, over loopback.

regroup  9 processes, 8 of them a group in turn: a member aborts it from another thread in the middle
         of a call, and the next 8 meet in a fresh store prefix. Counts from the abort: when the call
         had ended on all members, and when the next group had made its first AllReduce.
many     8 ranks make 32 groups at once, within 1024 descriptors.
calls    4 ranks make 100,000 AllReduces of 4 KiB.
split    8 ranks split 32 communicators from their job (split_rank), without PyTorch.

What remains behind is counted in descriptors, threads and resident memory. Writes groups.json, ends
with the targets; exit code 1 when one is missed."""
import argparse, collections, json, os, socket, subprocess, sys, tempfile, time

from figures import Progress, finish, judged, median, percentile

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH = os.path.join(HERE, "../../tools/torch")
PYTHON = "/usr/bin/python3"  # the distribution's, which has PyTorch
LIMIT_S = 600

# Rounds of a group, groups at once, calls.
Plan = collections.namedtuple("Plan", "rounds groups calls")
PLANS = {"usual": Plan(200, 32, 100_000), "quick": Plan(60, 32, 20_000), "smoke": Plan(27, 4, 400)}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def run(library, ranks, cell, count):
    """What each rank tells."""
    port = str(free_port())
    with tempfile.TemporaryDirectory() as folder:
        processes, files = [], []
        for rank in range(ranks):
            place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                     "PYTHONPATH": TORCH, "TARPON_LIBRARY": library}
            files.append((open(f"{folder}/{rank}.out", "w+"), open(f"{folder}/{rank}.err", "w+")))
            processes.append(subprocess.Popen(
                [PYTHON, f"{HERE}/groups_rank.py", cell, str(count)],
                env={**os.environ, **place}, stdout=files[-1][0], stderr=files[-1][1]))
        try:
            codes = wait(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        texts = []
        for out, err in files:
            out.seek(0), err.seek(0)
            texts.append((out.read(), err.read()))
            out.close(), err.close()
        if any(code != 0 for code in codes):
            said = "\n".join(f"rank {rank}: {err[-600:]}" for rank, (_, err) in enumerate(texts)
                             if codes[rank] is not None)
            sys.exit(f"groups_rank.py {cell} failed (exit {codes}):\n{said}")
        return [json.loads(out) for out, _ in texts]


def split(build, ranks, parts):
    """What each rank of split_rank tells."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [subprocess.Popen(
            [f"{build}/bin/split_rank", "--rank", str(rank), "--ranks", str(ranks),
             "--rendezvous", f"file://{folder}/rendezvous", "--parts", str(parts)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
        try:
            texts = [process.communicate(timeout=LIMIT_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(process.returncode for process in processes):
            sys.exit("split_rank failed:\n" + "".join(error for _, error in texts)[-2000:])
        return [json.loads(out) for out, _ in texts]


def wait(processes):
    """Their exit codes, at the latest after LIMIT_S, or when one has failed: None still runs."""
    end = time.monotonic() + LIMIT_S
    while True:
        codes = [process.poll() for process in processes]
        if None not in codes or any(codes) or time.monotonic() > end:
            return codes
        time.sleep(0.1)


def most_grown(pairs, what):
    """Of the rank that grew most."""
    return max(after[what] - before[what] for before, after in pairs)


def regrouped(ranks):
    """Milliseconds from each abort on: until the call had ended, until the next group stood."""
    aborts, stands = [], []
    counted = {used["round"] for used in ranks[0]["used"]}  # counting what is held takes its time
    for number, each in enumerate(zip(*(rank["rounds"] for rank in ranks))):
        aborted = next(one["aborted"] for one in each if "aborted" in one)
        aborts.append(1e3 * (max(one["ended"] for one in each if "ended" in one) - aborted))
        if number + 1 < len(ranks[0]["rounds"]) and number not in counted:
            following = [rank["rounds"][number + 1] for rank in ranks]
            stands.append(1e3 * (max(one["stood"] for one in following if "stood" in one) - aborted))
    return aborts, stands


def exactly(text, limit, value):
    return judged(text, limit, value, (value, value), most=True)


def told(name, values):
    return f"{name}: P50 {median(values):.1f} ms, P90 {percentile(values, 0.9):.1f}, " \
           f"max {max(values):.1f}"


def split_targets(ranks, parts, judge_cost):
    pairs = [(rank["before"], rank["after"]) for rank in ranks]
    targets = [exactly(f"split: {what} that a rank gains with {parts} of 8", 0,
                       most_grown(pairs, what)) for what in ("descriptors", "threads")]
    if judge_cost:
        targets += [exactly("split: ms of a split(), the longest", 50,
                            max(ms for rank in ranks for ms in rank["ms"])),
                    exactly("split: KiB of a communicator, of the rank that gains most", 4096,
                            most_grown(pairs, "rss_kib") / parts)]
    return targets


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="the build folder")
    parser.add_argument("--quick", dest="plan", action="store_const", const="quick", default="usual",
                        help="a minute")
    parser.add_argument("--smoke", dest="plan", action="store_const", const="smoke",
                        help="whether it runs, and leaves no descriptor and no thread; neither times nor "
                             "memory are judged")
    arguments = parser.parse_args()
    plan = PLANS[arguments.plan]
    library = os.path.abspath(f"{arguments.build}/collectives/libtarpon.so.0")
    progress = Progress(4)

    ranks = run(library, 9, "regroup", plan.rounds)
    progress.step("regroup")
    aborts, stands = regrouped(ranks)
    progress.say(told(f"regroup: {plan.rounds} groups of 8: abort() to the end of the call", aborts))
    progress.say(told("regroup: abort() to the first AllReduce of the next group", stands))
    pairs = [(rank["used"][1], rank["used"][-1]) for rank in ranks]
    halves = [(rank["used"][len(rank["used"]) // 2], rank["used"][-1]) for rank in ranks]
    targets = [exactly("regroup: descriptors that a rank gains after the first rounds", 0,
                       most_grown(pairs, "descriptors")),
               exactly("regroup: threads that a rank gains after the first rounds", 0,
                       most_grown(pairs, "threads"))]
    if arguments.plan != "smoke":
        targets += [exactly("regroup: KiB that a rank gains in the second half", 2048,
                            most_grown(halves, "rss_kib")),
                    exactly("regroup: ms from abort() to the end of a call, the longest", 10,
                            max(aborts)),
                    exactly("regroup: ms from abort() to the next group, the longest", 250,
                            max(stands))]

    held = run(library, 8, "many", plan.groups)
    progress.step("many")
    targets.append(exactly(f"many: descriptors of a rank with {plan.groups} groups of 8", 1024,
                           max(rank["during"]["descriptors"] for rank in held)))
    # The default group keeps rings of threads that drove it for the others: at most 8 (uring_port.cc).
    for rank in held:
        for used in (rank["before"], rank["after"]):
            used["descriptors"] -= used["rings"]
    pairs = [(rank["before"], rank["after"]) for rank in held]
    targets += [exactly(f"many: {what} that a rank keeps of them", 0, most_grown(pairs, what))
                for what in ("descriptors", "threads")]
    targets.append(exactly("many: rings that a rank has afterwards", 8,
                           max(rank["after"]["rings"] for rank in held)))

    called = run(library, 4, "calls", plan.calls)
    progress.step("calls")
    cut = []
    if os.access(f"{arguments.build}/bin/split_rank", os.X_OK):
        cut = split(arguments.build, 8, plan.groups)
        targets += split_targets(cut, plan.groups, arguments.plan != "smoke")
        progress.say(told(f"split: {plan.groups} communicators of 8",
                          [ms for rank in cut for ms in rank["ms"]]))
    else:
        progress.say("split: left out, since this build has no bin/split_rank: build the preset bench")
    progress.step("split")
    progress.end()
    pairs = [(rank["blocks"][0], rank["blocks"][-1]) for rank in called]
    targets += [exactly(f"calls: {what} that a rank gains after the first tenth of {plan.calls}",
                        limit, most_grown(pairs, key))
                for what, key, limit in (("descriptors", "descriptors", 0),
                                         ("threads", "threads", 0), ("KiB", "rss_kib", 4096))]
    seconds = [block["seconds"] for block in called[0]["blocks"]]
    print(f"calls: {plan.calls} of 4 KiB on 4 ranks, {1e6 * sum(seconds) / plan.calls:.0f} us a call")
    finish(f"{arguments.build}/groups.json", targets, abort_ms=aborts, stand_ms=stands,
           regroup=[rank["used"] for rank in ranks], many=held, calls=called, split=cut)


if __name__ == "__main__":
    main()
