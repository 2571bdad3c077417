#!/usr/bin/env python3
"""The tail of AllReduce on links that are short: Tarpon in bounded mode beside the best of Gloo's
algorithms, in chunks in turn on one testbed a cell: a Gloo ring of 0 to 8 ranks beside them, a rank
that is stopped now and then, packets lost alone and in bursts.

Prints tables, writes tail.json and tail.html (distributions), ends with the targets; exit code 1
when one is missed. Intervals are 95 % bootstrap intervals over the operations."""
import argparse, collections, os, random, re, time

from contenders import GLOO
from figures import MIB, Progress, finish, judged, median, percentile
from tail_bed import Background, Bed, Failed, parse_pause
from tail_page import write_page

SIZE = 25 * MIB
RATE = 2_000_000_000
SHAPED = ("--rate", "2gbit/128K/400K")
FRAME, PAYLOAD = 1514, 1408  # of a full packet at MTU 1500
BURSTS = 8                   # packets, mean
ALONE_S = 5                  # the ring beside, measured alone
TRIAL_CHUNK = 4              # operations between two looks at the clock
TRIAL_S = 20                 # for the trial of one algorithm
WHERE_TARGETS_APPLY = 2.5, 5  # P99 / P50 of the chosen one

# Options of `tarpon testbed`; ranks of the ring; Pause; share of packets lost at the bridge.
Cell = collections.namedtuple("Cell", "name ranks shape background pause injected")

CUT = "4 ranks, quiet, trains cut"

# Operations of Tarpon, of the chosen algorithm, of each in the trial; in how many chunks; seconds
# for all operations of the chosen one; warm-up of Tarpon.
Plan = collections.namedtuple("Plan", "tarpon gloo trial chunks gloo_s warmup")
PLANS = {"usual": Plan(300, 100, 20, 5, 75, 10), "quick": Plan(100, 10, 2, 2, 12, 10),
         "smoke": Plan(2, 2, 1, 1, 1, 0)}


def tarpon_options(bound):
    """The whole difference between the measured job and the defaults."""
    return ["--mode", "bounded"] + (["--bound", bound] if bound != "learnt" else [])


def wire_us(ranks):
    """What the payload of an AllReduce needs on a shaped link that nobody shares."""
    return 1e6 * 2 * (ranks - 1) / ranks * SIZE * 8 / RATE * FRAME / PAYLOAD


def cells_of(arguments):
    def background(ranks, count, shape=SHAPED, text=""):
        name = f"ring of {count} beside" if count else "quiet"
        return Cell(f"{ranks} ranks{text}, {name}", ranks, shape, count, None, 0)

    def loss(share, bursts):
        option = ("--burst-loss", f"{share:g}%/{BURSTS}") if bursts else ("--loss", f"{share:g}%")
        name = f"4 ranks, {share:g} % lost {'in bursts' if bursts else 'at random'}"
        return Cell(name, 4, SHAPED + option, 0, None, share / 100)

    # To lose packets one by one the testbed has trains cut to packets at the sender, and every packet
    # then costs CPU time of its own: what loss does shows beside a link that cuts and loses nothing.
    cut = Cell(CUT, 4, SHAPED + ("--loss", "0%"), 0, None, 0)
    low, high = (round(1000 * t) for t in arguments.pause[1:])
    pause = Cell(f"4 ranks, rank {arguments.pause.rank} stopped for {low}-{high} ms", 4, SHAPED, 0,
                 arguments.pause, 0)
    if arguments.quick:
        return [background(4, 0), background(4, 4), pause, cut, loss(1, False)]
    cells = [background(4, count) for count in (0, 2, 4, 8)] + [pause, cut]
    cells += [loss(share, bursts) for share in (0.1, 1) for bursts in (False, True)]
    if arguments.full:
        cells += [background(8, count) for count in (0, 2, 4, 8)]
        cells += [background(ranks, count, (), ", links not shaped") for ranks in (4, 8)
                  for count in (0, 4)]
    return cells


def fixed_us(bound):
    """Of a bound like 20ms; None of one that Tarpon finds itself."""
    match = re.fullmatch(r"([0-9.]+)(us|ms|s)", bound)
    return float(match[1]) * {"us": 1, "ms": 1e3, "s": 1e6}[match[2]] if match else None


def p99(values):
    return percentile(values, 0.99)


def mean(values):
    return sum(values) / len(values)


def tail(values):
    return p99(values) / median(values)


def bootstrap(statistic, *samples, draws=1000):
    """95 % interval of a statistic of one or more samples, each drawn by itself."""
    generator = random.Random(1)
    drawn = sorted(statistic(*(generator.choices(values, k=len(values)) for values in samples))
                   for _ in range(draws))
    return drawn[int(0.025 * draws)], drawn[int(0.975 * draws) - 1]


class Figures:
    """What the chunks of one contender in one cell say together."""

    def __init__(self, samples, kept=None):
        self.times = [time for sample in samples for time in sample.times]
        self.lost = [share for sample in samples for share in sample.lost]
        self.rank_times = [[t for sample in samples for t in sample.rank_times[rank]]
                           for rank in range(len(samples[0].rank_times))]
        self.bound_us = max((s.bound_us for s in samples if s.bound_us), default=None)
        self.cpu_s = sum(sample.cpu_s for sample in samples) / len(self.times)
        self.kept = kept  # share of its operations that the ring beside still does
        self.median, self.mean, self.p99 = median(self.times), mean(self.times), p99(self.times)
        self.tail = self.p99 and self.p99 / self.median

    def others(self, rank):
        """Of each operation the slowest rank but this one."""
        rest = self.rank_times[:rank] + self.rank_times[rank + 1:]
        return [max(times) for times in zip(*rest)]


class Tail:
    def __init__(self, arguments):
        self.arguments = arguments
        own = arguments.tcp_congestion
        self.tcp = ("--tcp-congestion", own) if own else ()
        # The first one is what others are compared with.
        self.cells = [cell for number, cell in enumerate(cells_of(arguments))
                      if number == 0 or cell.name == CUT or arguments.only in cell.name]
        self.plan = PLANS["smoke" if arguments.smoke else "quick" if arguments.quick else "usual"]
        self.progress = Progress(len(self.cells) * (len(GLOO) + 2 * self.plan.chunks) +
                                 len(self.bounds()))
        self.figures = {}   # (cell, "tarpon" or "gloo") -> Figures
        self.chosen = {}    # cell -> algorithm of Gloo
        self.bridge = {}    # cell -> share of packets that were lost there
        self.frontier = []  # (bound, Figures)
        self.failed = []    # chunks, cells or the frontier in which Tarpon did not come to an end

    def bounds(self):
        """Of the frontier: shares of what a call needs on a quiet link, and the usual one."""
        few = self.arguments.quick or self.arguments.smoke
        shares = [1] if few else [0.9, 1, 1.1, 1.3, 1.6, 2]
        call_ms = wire_us(4) / 1000
        return [f"{share * call_ms:.0f}ms" for share in shares] + [self.arguments.bound]

    def run(self):
        for cell in self.cells:
            bed = Bed(self.arguments.binaries, cell.ranks, cell.shape + self.tcp)
            try:
                with bed, Background(bed, cell.background) as ring:
                    self.measure(cell, bed, ring)
            except Failed as why:
                self.fail(cell.name, why)
            counts = re.search(r"of (\d+) packets (\d+) lost", bed.said)
            self.bridge[cell] = int(counts[2]) / max(1, int(counts[1])) if counts else 0.0
        try:
            self.measure_frontier()
        except Failed as why:
            self.fail("frontier", why)
        self.progress.end()

    def measure_frontier(self):
        bed = Bed(self.arguments.binaries, 4, SHAPED + self.tcp)
        with bed, Background(bed, 4):
            for bound in self.bounds():
                sample = self.tarpon(bed, None, bound, self.plan.tarpon // 5)
                self.frontier.append((bound, Figures([sample])))
                self.progress.step(f"frontier, {bound}")

    def fail(self, what, why):
        """What was measured until then is shown all the same."""
        print(f"{what}: FAILED: {why}")
        self.failed.append(what)

    def tarpon(self, bed, pause, bound, operations):
        return bed.tarpon(SIZE, max(1, operations // 2), self.plan.warmup, tarpon_options(bound),
                          pause)

    def measure(self, cell, bed, ring):
        _, alone = ring.beside(lambda: time.sleep(ALONE_S if cell.background else 0))
        algorithm, operations = self.try_gloo(cell, bed)
        work = {"tarpon": lambda: self.tarpon(bed, cell.pause, self.arguments.bound,
                                              self.plan.tarpon // self.plan.chunks)}
        if algorithm:
            work["gloo"] = lambda: bed.gloo(SIZE, operations // self.plan.chunks, 1, algorithm,
                                            cell.pause)
        samples = {who: [] for who in work}
        kept = {who: [] for who in work}
        for chunk in range(self.plan.chunks):
            for who in list(work)[::1 if chunk % 2 == 0 else -1]:
                try:
                    sample, rate = ring.beside(work[who])
                except Failed as why:
                    if who == "tarpon":
                        self.fail(cell.name, why)
                    else:
                        print(f"{cell.name}: a chunk of {algorithm} is missing: {why}")
                    continue
                samples[who].append(sample)
                kept[who].append(rate / alone if alone else 0)
                self.progress.step(f"{cell.name}, {who}")
        self.chosen[cell] = algorithm
        for who in filter(samples.get, work):
            self.figures[cell, who] = Figures(samples[who], mean(kept[who]) if alone else None)

    def try_gloo(self, cell, bed):
        """The algorithm with the best median, and how many operations there is time for."""
        medians, seconds, chunk = {}, {}, min(TRIAL_CHUNK, self.plan.trial)
        for algorithm in GLOO:
            start, times = time.monotonic(), []
            while len(times) < self.plan.trial and time.monotonic() - start < TRIAL_S:
                try:
                    times += bed.gloo(SIZE, chunk, 1, algorithm, cell.pause).times
                except Failed as why:
                    print(f"{cell.name}: {algorithm} is out: {why}")
                    break
            else:
                medians[algorithm] = median(times)
                seconds[algorithm] = (time.monotonic() - start) / len(times)
            self.progress.step(f"{cell.name}, trial of {algorithm}")
        if not medians:
            return None, 0
        best = min(medians, key=medians.get)
        fitting = int(self.plan.gloo_s / seconds[best])
        return best, max(self.plan.chunks, min(self.plan.gloo, fitting))

    def table(self):
        rows = []
        print(f"\n{'cell':<44} {'who':>21} {'ops':>4} {'p50 ms (interval)':>24} {'mean':>7} "
              f"{'p99':>7} {'max':>7} {'p99/p50':>7} {'lost %':>7} {'CPU s/op':>8} "
              f"{'ring keeps':>10}")
        for (cell, who), f in self.figures.items():
            name = "Tarpon" if who == "tarpon" else f"Gloo {self.chosen[cell]}"
            low, high = bootstrap(median, f.times)
            row = {"cell": cell.name, "who": name, "operations": len(f.times), "p50_us": f.median,
                   "p50_interval_us": [low, high], "mean_us": f.mean, "p99_us": f.p99,
                   "max_us": max(f.times), "p99_over_p50": f.tail, "lost": mean(f.lost),
                   "lost_at_bridge": self.bridge[cell], "cpu_s": f.cpu_s, "ring_keeps": f.kept,
                   "bound_us": f.bound_us, "times_us": f.times, "lost_all": f.lost}
            rows.append(row)
            interval = f"{f.median / 1000:.1f} ({low / 1000:.1f} .. {high / 1000:.1f})"
            print(f"{cell.name:<44} {name:>21} {len(f.times):>4} {interval:>24} "
                  f"{f.mean / 1000:>7.1f} {shown(f.p99, 1000):>7} {max(f.times) / 1000:>7.1f} "
                  f"{shown(f.tail, 1, 2):>7} {100 * mean(f.lost):>7.3f} {f.cpu_s:>8.3f} "
                  f"{shown(f.kept, 1, 2):>10}")
        for cell in self.cells:
            if cell.injected:
                print(f"{cell.name}: {100 * self.bridge[cell]:.3f} % of all packets at the bridge")
        return rows

    def frontier_table(self):
        rows = []
        print("\n4 ranks, ring of 4 beside")
        print(f"{'bound':>10} {'p50 ms':>8} {'max ms':>8} {'lost %':>8}")
        for bound, f in self.frontier:
            rows.append({"bound": bound, "p50_us": f.median, "max_us": max(f.times),
                         "lost": mean(f.lost)})
            print(f"{bound:>10} {f.median / 1000:>8.1f} {max(f.times) / 1000:>8.1f} "
                  f"{100 * mean(f.lost):>8.3f}")
        return rows

    def targets(self):
        found = []
        for cell in self.cells:
            if cell.shape and (cell, "tarpon") in self.figures:
                found += self.tail_targets(cell) + self.own_targets(cell)
        return found

    def tail_targets(self, cell):
        """Of the tail, where Gloo's is the kind that the targets are about."""
        gloo = self.figures.get((cell, "gloo"))
        low, high = WHERE_TARGETS_APPLY
        ours = self.figures[cell, "tarpon"]
        few = not gloo or not gloo.tail or not ours.tail
        if cell.pause or few or not low <= gloo.tail <= high:
            why = ("it has its own" if cell.pause else "too few operations" if few
                   else f"Gloo's P99/P50 is {gloo.tail:.2f}")
            print(f"{cell.name}: no targets of the tail: {why}")
            return []
        wire = wire_us(cell.ranks)

        def ratio(statistic):
            return lambda ours, gloo: statistic(gloo) / statistic(ours)

        both = ours.times, gloo.times
        return [
            judged(f"{cell.name}: P99 / P50 of Tarpon", 1.15, ours.tail,
                   bootstrap(tail, ours.times), most=True),
            judged(f"{cell.name}: median / quiet wire time", 1.25, ours.median / wire,
                   bootstrap(lambda t: median(t) / wire, ours.times), most=True),
            judged(f"{cell.name}: mean of Gloo / of Tarpon", 1.2, ratio(mean)(*both),
                   bootstrap(ratio(mean), *both)),
            judged(f"{cell.name}: P99 of Gloo / of Tarpon", 2, ratio(p99)(*both),
                   bootstrap(ratio(p99), *both))]

    def own_targets(self, cell):
        """Of what is lost, and of what a stopped rank costs the others."""
        ours, quiet = self.figures[cell, "tarpon"], self.figures.get((self.cells[0], "tarpon"))
        if cell.pause:
            return self.pause_target(cell, ours, quiet) if quiet else []
        limit = 100 * cell.injected + 0.2
        found = [judged(f"{cell.name}: lost entries, %", limit, 100 * mean(ours.lost),
                        bootstrap(lambda lost: 100 * mean(lost), ours.lost), most=True)]
        if cell.injected == 0.01:
            def slower(ours, quiet):
                return median(ours) / median(quiet)

            cut = next((f for (other, who), f in self.figures.items()
                        if other.name == CUT and who == "tarpon"), None)
            if not cut or not quiet:
                print(f"{cell.name}: no target of its median: what it is compared with failed")
                return found
            both = ours.times, cut.times
            found.append(judged(f"{cell.name}: median / without loss", 1.2, slower(*both),
                                bootstrap(slower, *both), most=True))
            print(f"{cell.name}: median {slower(ours.times, quiet.times):.2f}x that of the quiet "
                  f"cell, whose trains are not cut")
        return found

    def pause_target(self, cell, ours, quiet):
        fixed = fixed_us(self.arguments.bound)
        bound_us = ours.bound_us or fixed
        if not bound_us:
            print(f"{cell.name}: no target: the report names no bound")
            return []
        others = ours.others(cell.pause.rank)

        def delay(others, quiet):
            return (max(others) - median(quiet)) / bound_us

        both = others, quiet.times
        return [judged(f"{cell.name}: longest delay of the others / bound", 1, delay(*both),
                       bootstrap(delay, *both), most=True)]


def system_congestion():
    with open("/proc/sys/net/ipv4/tcp_congestion_control", encoding="utf-8") as file:
        return file.read().strip()


def shown(value, unit, decimals=1):
    return "-" if value is None else f"{value / unit:.{decimals}f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench",
                        help="preset 'bench' built here; reports too")
    parser.add_argument("--quick", action="store_true", help="5 cells, some 5 minutes")
    parser.add_argument("--full", action="store_true", help="8 ranks and links without a rate too")
    parser.add_argument("--smoke", action="store_true",
                        help="a few operations a cell: does it run?")
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="the quiet cell, and those with this in their names")
    parser.add_argument("--tcp-congestion", metavar="NAME", help="of Gloo and of the ring beside, "
                        "as cubic; else the system's")
    parser.add_argument("--bound", default="learnt", help="Tarpon's, as of tarpon allreduce")
    parser.add_argument("--pause", type=parse_pause, default="3:20ms-200ms",
                        help="rank that is stopped, and for how long (3:20ms-200ms)")
    arguments = parser.parse_args()
    arguments.binaries = os.path.join(arguments.build, "bin")
    bench = Tail(arguments)
    start = time.monotonic()
    bench.run()
    print(f"TCP's congestion control: {arguments.tcp_congestion or system_congestion()}")
    print(f"measured for {(time.monotonic() - start) / 60:.1f} minutes")
    parts = {"rows": bench.table(), "frontier": bench.frontier_table()}
    page = os.path.join(arguments.build, "tail.html")
    write_page(page, **parts)
    print(f"\ndistributions: {page}")
    targets = bench.targets()
    if bench.failed:
        targets.append(judged("chunks of Tarpon that failed", 0, len(bench.failed),
                              (len(bench.failed), len(bench.failed)), most=True))
    finish(os.path.join(arguments.build, "tail.json"), targets, **parts)


if __name__ == "__main__":
    main()
