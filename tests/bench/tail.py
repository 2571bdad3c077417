#!/usr/bin/env python3
"""The tail of AllReduce on links that are short: bounded jobs of Tarpon with several loss targets,
exact calls and the best of Gloo's algorithms, in turn on one testbed a cell. Beside them runs a
Gloo ring of 0 to 8 ranks, or another host sends short TCP bursts, or a rank is stopped now and
then, or packets are lost alone and in bursts.

Jobs of Tarpon stay alive between their turns, so that they learn their bound once. The exact calls
also say what the oracle's D is: the smallest bound that loses the target's share of those calls.

Prints a line a cell, a table, and the targets at the end; exit code 1 when one is missed. Writes
tail.json, tail.html (distributions and frontier), tail-frontier.svg, and tail-longest.svg: the slowest
calls beside the ring of 4."""
import argparse, os, signal, sys, time

from bursts import Bursts
from contenders import GLOO
from figures import Progress, finish, judged, mean, median, shown
from tables import markdown
from tail_bed import Background, Bed, Failed, known_congestion, parse_pause
from tail_cells import PLANS, SETTLE_SHARE, cells_of, plan_of, seconds_of
from tail_jobs import Job
from tail_page import COLUMNS, exceeded, frontier, write_page, write_picture
from tail_targets import Figures, Judge, oracle_us

ALONE_S = 5, 0.5  # for which the ring or the bursts run alone; the same with --smoke
BURSTS_SEED = 1   # as in the first runs of training.py
RING = "ring"     # of Gloo's algorithms; also the name of that contender
TRIAL_CHUNK = 10  # calls of a run of Gloo in the trial
TRIAL_S = 20      # for the trial of one algorithm


class Clock:
    """Divides the time of the benchmark over the cells by what they need, about; what one leaves
    is for those after it."""

    def __init__(self, seconds, needs):
        self.end, self.needs = time.monotonic() + seconds, list(needs)

    def next_cell(self):
        """Seconds."""
        left = max(0, self.end - time.monotonic())
        share = left * self.needs[0] / sum(self.needs)
        self.needs.pop(0)
        return share


class Tail:
    def __init__(self, arguments):
        self.arguments = arguments
        cells = self.available(cells_of(arguments.pause, arguments.quick, arguments.full))
        # The first one is what others are compared with.
        self.cells = [cell for number, cell in enumerate(cells)
                      if number == 0 or arguments.only in cell.name]
        self.plan = PLANS[next((name for name in ("smoke", "quick", "full")
                                if getattr(arguments, name)), "usual")]
        needs = [seconds_of(cell, arguments.quick, self.plan, arguments.baseline, len(GLOO))
                 for cell in self.cells]
        self.clock = Clock(60 * self.plan.minutes, (seconds for seconds, _ in needs))
        self.ends = [sum(calls for _, calls in needs[:number + 1]) for number in range(len(needs))]
        self.progress = Progress(self.ends[-1])
        self.figures = {}  # (cell, loss target, "exact", "gloo" or "baseline") -> Figures
        self.means = {}    # cell -> (algorithm, times) of the lowest mean of Gloo's algorithms
        self.failed = []   # jobs of Tarpon, and cells, that did not come to an end

    @staticmethod
    def available(cells):
        known = known_congestion(cell.congestion for cell in cells if cell.congestion)
        return [cell for cell in cells if not cell.congestion or cell.congestion in known]

    def run(self):
        for cell, end in zip(self.cells, self.ends):
            tcp = cell.congestion or self.arguments.tcp_congestion
            bed = Bed(self.arguments.binaries, cell.ranks,
                      cell.shape + (("--tcp-congestion", tcp) if tcp else ()), int(cell.bursts))
            turns, seconds = None, self.clock.next_cell()
            try:
                with bed, (Bursts(bed, BURSTS_SEED) if cell.bursts else
                           Background(bed, cell.background)) as beside:
                    turns = Turns(self, cell, bed, beside)
                    turns.run(time.monotonic() + seconds)
            except Failed as why:
                self.fail(cell, why)
            if turns and turns.calls:
                self.take(cell, turns)
            self.progress.done = end
        self.progress.end()

    def fail(self, cell, why):
        """What was measured until then is shown all the same."""
        self.progress.say(f"{cell.name}: FAILED: {why}")
        self.failed.append(cell.name)

    def take(self, cell, turns):
        """The figures of a cell, and its line."""
        for who, calls in turns.calls.items():
            target = who if isinstance(who, float) else None
            self.figures[cell, who] = Figures(turns.label(who), calls, turns.kept_by(who), target)
        exact = self.figures.get((cell, "exact"))
        for target in cell.targets(self.arguments.quick):
            if exact and (cell, target) in self.figures:
                self.figures[cell, target].oracle = oracle_us(exact.times, target)
        if turns.gloo_times:
            lowest = min(turns.gloo_times, key=lambda name: mean(turns.gloo_times[name]))
            self.means[cell] = lowest, turns.gloo_times[lowest]
        self.progress.say(f"{cell.name} (P50/P99/mean in ms): " + "; ".join(
            summary(self.figures[cell, who]) for who in turns.calls) + turns.cut_short)

    def rows(self):
        """The short calls first: most networks have their shape."""
        rows = sorted(self.figures.items(), key=lambda one: not one[0][0].is_short())
        return [figures.row(cell) for (cell, _), figures in rows]

    def longest_rows(self):
        """Of the cell with the frontier: Gloo, exact calls, the shortest and the longest bound."""
        chosen = {cell: [who for who in ("gloo", "exact", 0.001, 0.01) if (cell, who) in self.figures]
                  for cell in self.cells if cell.background == 4 and cell.is_usual()}
        return [self.figures[cell, who].row(cell) for cell, whos in chosen.items() for who in whos]

    def targets(self):
        judge = Judge(self.cells, self.figures, self.means, self.arguments.baseline)
        found = judge.targets()
        if self.failed:
            count = len(self.failed)
            found.append(judged("jobs of Tarpon and cells that failed", 0, count, (count, count),
                                most=True))
        return found


class Turns:
    """One cell: its jobs, and what they have done."""

    def __init__(self, bench, cell, bed, beside):
        self.bench, self.plan, self.cell, self.bed = bench, plan_of(cell, bench.plan), cell, bed
        self.beside = beside    # the ring or the bursts
        self.targets = cell.targets(bench.arguments.quick)
        self.calls = {}         # of the rounds: by loss target, "exact", "gloo" or "baseline"
        self.kept = {}          # the same: shares of its operations that the ring or the bursts kept
        self.gloo_times = {}    # by algorithm: of the trial, and of the rounds for the chosen one
        self.algorithm = None   # of Gloo: the best median of the trial
        self.cut_short = ""     # why there are fewer calls than planned
        self.jobs = {}

    def run(self, end):
        start = time.monotonic()
        alone_s = ALONE_S[self.bench.arguments.smoke] if \
            self.cell.background or self.cell.bursts else 0
        _, self.alone = self.beside.beside(lambda: time.sleep(alone_s))
        self.try_gloo()
        try:
            for number, who in enumerate([*self.targets, "exact"]):
                options = ["--loss-target", str(who)] if isinstance(who, float) else []
                options += ["--bytes", str(self.cell.size)]
                options += ["--no-codec"] * self.bench.arguments.no_codec
                self.jobs[who] = Job(self.bed, self.label(who), number, options, self.cell.pause)
            self.settle(time.monotonic() + SETTLE_SHARE * (end - start))
            self.rounds(end)
        finally:
            for job in self.jobs.values():
                job.close()

    def label(self, who):
        return f"Gloo {self.algorithm}" if who == "gloo" else f"Gloo {RING}" if who == RING else \
            "baseline" if who == "baseline" else \
            f"Tarpon {who if who == 'exact' else f'{100 * who:g} %'}"

    def try_gloo(self):
        """Chooses the algorithm with the best median."""
        chunk = min(TRIAL_CHUNK, self.plan.trial)
        for algorithm in GLOO:
            start, times = time.monotonic(), []
            try:
                while len(times) < self.plan.trial and time.monotonic() - start < TRIAL_S:
                    times += self.bed.gloo(self.cell.size, chunk, 1, algorithm, self.cell.pause).times
                self.gloo_times[algorithm] = times
            except Failed as why:
                self.bench.progress.say(f"{self.cell.name}: {algorithm} is out: {why}")
            self.bench.progress.step(f"{self.cell.name}, trial of {algorithm}", self.plan.trial)
        if self.gloo_times:
            self.algorithm = min(self.gloo_times, key=lambda name: median(self.gloo_times[name]))

    def settle(self, end):
        """Exact calls have nothing to learn but how many flows to take."""
        self.turn("exact", self.plan.warmup, counts=False)
        done = 0
        while done < self.plan.settle and time.monotonic() < end:
            for target in self.targets:
                self.turn(target, self.plan.settle_turn, counts=False)
            done += self.plan.settle_turn
        if done < self.plan.settle:
            self.cut_short += f"; out of time: {done} of {self.plan.settle} calls to settle"

    def rounds(self, end):
        contenders = [*self.targets, "exact"] + ["gloo"] * bool(self.algorithm)
        # PyTorch runs the ring, whatever is fastest.
        if self.cell.is_short() and RING in self.gloo_times and self.algorithm != RING:
            contenders.append(RING)
        if self.bench.arguments.baseline and self.cell.is_compared():
            contenders.append("baseline")
        longest = 0
        for number in range(self.plan.rounds):
            start = time.monotonic()
            if number > 0 and start + longest > end:
                self.cut_short += f"; out of time: {number} of {self.plan.rounds} rounds"
                return
            for who in contenders[::1 if number % 2 == 0 else -1]:
                self.turn(who, self.plan.calls)
            longest = max(longest, time.monotonic() - start)

    def turn(self, who, calls, counts=True):
        """Calls of one contender; one that has failed is out."""
        if who in self.jobs or who in ("gloo", "baseline", RING):
            try:
                found, rate = self.beside.beside(lambda: self.work(who, calls))
                if counts:
                    self.note(who, found, rate)
            except Failed as why:
                self.drop(who, why)
        self.bench.progress.step(f"{self.cell.name}, {self.label(who)}", calls)

    def work(self, who, calls):
        if who in ("gloo", RING):
            algorithm = RING if who == RING else self.algorithm
            return self.bed.gloo(self.cell.size, calls, 1, algorithm, self.cell.pause)
        if who == "baseline":
            return self.bed.tarpon(self.bench.arguments.baseline, self.cell.size, calls, self.plan.warmup,
                                   self.cell.pause)
        return self.jobs[who].run("exact" if who == "exact" else "bounded", calls)

    def note(self, who, found, rate):
        self.calls[who] = self.calls[who] + found if who in self.calls else found
        self.kept.setdefault(who, []).append(rate / self.alone if self.alone else 0)
        if who == "gloo":
            # The rounds have more calls than the trial, and meet what the others meet.
            self.gloo_times[self.algorithm] = self.calls[who].times
        elif who == RING:
            self.gloo_times[RING] = self.calls[who].times

    def kept_by(self, who):
        return mean(self.kept[who]) if self.alone else None

    def drop(self, who, why):
        if who in self.jobs:
            self.jobs.pop(who).close()
            self.bench.fail(self.cell, why)
        else:
            self.bench.progress.say(f"{self.cell.name}: a turn of {self.label(who)} is missing: "
                                    f"{why}")


def summary(figures):
    text = "/".join(shown(time, 1000) for time in (figures.median, figures.p99, figures.mean))
    if figures.calls.counted and figures.target:
        text += f" lost {100 * mean(figures.calls.counted):.3f} %"
    if figures.bound:
        text += f" bound {figures.bound / 1000:.1f} (max {max(figures.calls.bounds) / 1000:.1f})"
    return f"{figures.who}: {text}"


def system_congestion():
    with open("/proc/sys/net/ipv4/tcp_congestion_control", encoding="utf-8") as file:
        return file.read().strip()


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench",
                        help="preset 'bench' built here; reports too")
    parser.add_argument("--baseline", metavar="FOLDER", help="bin folder of another revision's "
                        "bench build: its tarpon allreduce takes turns, and ours is judged beside "
                        "it")
    parser.add_argument("--quick", action="store_true",
                        help="3 cells, fewer calls: under 9 minutes; else under 60")
    parser.add_argument("--full", action="store_true",
                        help="8 ranks, links without a rate and fewer losses too: some 4 hours")
    parser.add_argument("--smoke", action="store_true", help="a few calls a cell: does it run?")
    parser.add_argument("--no-codec", action="store_true",
                        help="bounded calls are never coded; by default they are above 2 %% of loss")
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="the quiet cell, and those with this in their names")
    parser.add_argument("--tcp-congestion", metavar="NAME", help="of Gloo, ring and bursts, as "
                        "cubic; else the system's. A cell whose name has one uses that")
    parser.add_argument("--pause", type=parse_pause, default="3:20ms-200ms",
                        help="rank that is stopped, and for how long (3:20ms-200ms)")
    arguments = parser.parse_args()
    if arguments.baseline and not os.access(f"{arguments.baseline}/tarpon", os.X_OK):
        parser.error(f"--baseline {arguments.baseline}: no program tarpon there")
    arguments.binaries = os.path.join(arguments.build, "bin")
    return arguments


def main():
    arguments = parse()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    bench = Tail(arguments)
    start = time.monotonic()
    bench.run()
    print(f"TCP's congestion control: {arguments.tcp_congestion or system_congestion()}")
    print(f"measured for {(time.monotonic() - start) / 60:.1f} minutes")
    rows = bench.rows()
    print("\n" + markdown(COLUMNS, rows))
    page = os.path.join(arguments.build, "tail.html")
    write_page(page, rows)
    picture = os.path.join(arguments.build, "tail-frontier.svg")
    write_picture(picture, frontier(rows))
    print(f"\ndistributions: {page}\nfrontier: {picture}")
    if longest := bench.longest_rows():
        picture = os.path.join(arguments.build, "tail-longest.svg")
        write_picture(picture, exceeded(longest))
        print(f"slowest calls: {picture}")
    finish(os.path.join(arguments.build, "tail.json"), bench.targets(), rows=rows)


if __name__ == "__main__":
    main()
