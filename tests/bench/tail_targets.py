"""What the calls of the tail benchmark say: figures of a contender in a cell, and the targets.

Neighbouring calls have their losses and times in common, so intervals are 95 % bootstrap intervals
over blocks of calls."""
from figures import bootstrap, judged, mean, median, not_beyond, p99

BLOCK = 20                           # calls
GLOO_P99 = {2: 1.6, 4: 2.5, 8: 1.8}  # by ranks of the ring beside: Gloo's P99 / ours, at least
BURSTS_P99 = 2.0                     # the same beside bursts, at 0.1 %
RING_P99, RING_MEAN = 4.0, 1.25      # Gloo's ring / ours at 0.1 %: short calls of 4 ranks beside bursts
EXACT_P99 = 0.8                      # there P99 at 0.1 % / that of exact calls, at most
SLOWER = 1.03                        # mean of bounded calls / that of exact calls, at most
LATE_US, NEVER_US = 10_000, 50_000   # after the bound: 1 call of 1,000, and none


def blocks(statistic, *samples):
    return bootstrap(statistic, *samples, block=BLOCK)


def tail(times):
    return p99(times) / median(times)


def percent(*shares):
    """Mean of the shares of all cells together."""
    return 100 * mean(sum(shares, []))


def ratio(statistic):
    return lambda over, under: statistic(over) / statistic(under)


def oracle_us(times, target):
    """The smallest bound D with mean(max(0, 1 - D / X)) <= target over the times X: what a bound
    would be that knew them. The mean is the largest of those over the k longest ones alone."""
    best, inverse = 0, 0
    for k, time in enumerate(sorted(times, reverse=True), 1):
        inverse += 1 / time
        best = max(best, (k - target * len(times)) / inverse)
    return best


class Figures:
    """One contender in one cell. `target`: of loss; None for those that lose nothing by intent.
    `kept`: share of its operations that the ring or the bursts still do."""

    def __init__(self, who, calls, kept=None, target=None):
        self.who, self.calls, self.kept, self.target = who, calls, kept, target
        self.times = calls.times
        self.median, self.mean, self.p99 = median(self.times), mean(self.times), p99(self.times)
        self.bound = median(calls.bounds) if calls.bounds and max(calls.bounds) > 0 else None
        self.oracle = None  # of the cell's exact calls, at the target

    def row(self, cell):
        """As in tail.json."""
        calls = self.calls
        interval = {name: blocks(statistic, self.times) if self.p99 else None for name, statistic
                    in (("p50", median), ("mean", mean), ("p99", p99))}
        return {"cell": cell.name, "who": self.who, "target": self.target,
                "calls": len(self.times), "p50_us": self.median, "mean_us": self.mean,
                "p99_us": self.p99, "max_us": max(self.times),
                "p99_over_p50": self.p99 and self.p99 / self.median,
                **{f"{name}_interval_us": pair for name, pair in interval.items()},
                "lost": mean(calls.lost) if calls.lost else None,
                "lost_interval": blocks(mean, calls.lost) if calls.lost else None,
                "counted": mean(calls.counted) if calls.counted else None,
                "causes": {cause: mean([one[cause] for one in calls.causes])
                           for cause in (calls.causes[0] if calls.causes else {})},
                "bound_us": self.bound, "bound_max_us": self.bound and max(calls.bounds),
                "oracle_us": self.oracle, "cpu_s": calls.cpu_s / len(self.times),
                "beside_keeps": self.kept, "times_us": self.times, "lost_all": calls.lost,
                "counted_all": calls.counted, "bounds_us": calls.bounds,
                "after_bound_us": calls.overruns}


class Judge:
    """`figures`: (cell, loss target, "exact", "gloo" or "baseline") -> Figures. `means`: of a cell,
    (algorithm, times) of the algorithm of Gloo with the lowest mean."""

    def __init__(self, cells, figures, means, has_baseline):
        self.cells, self.figures, self.means = cells, figures, means
        self.has_baseline = has_baseline

    def targets(self):
        if not self.has_baseline:
            print("no --baseline: P99 and mean at 0.1 %, and the quiet network, are not judged")
        tails = [cell for cell in self.cells if cell.has_tail()]
        found = self.lost(0.001, 0.13, tails) + self.lost(0.01, 1.3, tails)
        found += self.lost(0.02, 2.6, [cell for cell in tails if cell.background == 4])
        for cell in self.cells:
            if cell.is_usual() and cell.is_quiet():
                found += self.beside_baseline(cell, ("P50", median), ("P99", p99), ("mean", mean))
            if cell.has_tail():
                found += self.beside_baseline(cell, ("P99", p99), ("mean", mean))
                found += self.tail_at_one(cell) + self.tail_at_two(cell) + self.beside_gloo(cell)
            found += self.beside_exact(cell)
            if cell.bursts and not cell.is_short():
                found += self.beside_bursts(cell)
            if cell.bursts and cell.is_short():
                found += self.short_beside_bursts(cell)
            if cell.is_usual() and cell.pause:
                found += self.stopped(cell)
        return found + self.after_bound()

    def of(self, cell, who):
        """None where there are too few calls to speak of a P99."""
        figures = self.figures.get((cell, who))
        return figures if figures and figures.p99 else None

    def lost(self, target, limit, cells):
        shares = [figures.calls.counted for cell in cells if (figures := self.of(cell, target))]
        if not shares:
            return []
        value, interval = percent(*shares), blocks(percent, *shares)
        text = f"{cells[0].name if len(shares) == 1 else f'{len(shares)} cells'}, " \
            f"{100 * target:g} %: lost on average, %"
        return [not_beyond(text, limit, value, interval)]

    def beside_baseline(self, cell, *statistics):
        ours, theirs = self.of(cell, 0.001), self.of(cell, "baseline")
        if not ours or not theirs:
            return []
        both = ours.times, theirs.times
        return [not_beyond(f"{cell.name}, 0.1 %: {name} / the baseline's", 1,
                           ratio(statistic)(*both), blocks(ratio(statistic), *both))
                for name, statistic in statistics]

    def tail_at_one(self, cell):
        """The one of two targets that is closer to being met."""
        ours, exact = self.of(cell, 0.01), self.of(cell, "exact")
        if not ours:
            return []
        either = [judged(f"{cell.name}, 1 %: P99 / P50", 1.35, tail(ours.times),
                         blocks(tail, ours.times), most=True)]
        if exact:
            def against(ours, exact):
                return p99(ours) / oracle_us(exact, 0.01)

            both = ours.times, exact.times
            either.append(judged(f"{cell.name}, 1 %: P99 / the oracle's D (P99 / P50 is "
                                 f"{tail(ours.times):.2f})", 1.1, against(*both),
                                 blocks(against, *both), most=True))
        return [min(either, key=lambda target: ["met", "open", "MISSED"].index(target["verdict"]))]

    def tail_at_two(self, cell):
        ours = self.of(cell, 0.02)
        return [judged(f"{cell.name}, 2 %: P99 / P50", 1.2, tail(ours.times),
                       blocks(tail, ours.times), most=True)] if ours else []

    def beside_gloo(self, cell):
        ours, gloo, found = self.of(cell, 0.01), self.of(cell, "gloo"), []
        if ours and gloo and cell.background in GLOO_P99:
            both = gloo.times, ours.times
            found.append(judged(f"{cell.name}, 1 %: P99 of {gloo.who} / of Tarpon",
                                GLOO_P99[cell.background], ratio(p99)(*both),
                                blocks(ratio(p99), *both)))
        if ours and cell in self.means:
            algorithm, times = self.means[cell]
            both = ours.times, times
            found.append(judged(f"{cell.name}, 1 %: mean / the lowest of Gloo's ({algorithm})",
                                1.05, ratio(mean)(*both), blocks(ratio(mean), *both), most=True))
        return found

    def beside_bursts(self, cell):
        ours, gloo = self.of(cell, 0.001), self.of(cell, "gloo")
        found = self.lost(0.001, 0.13, [cell])
        if ours:
            found.append(judged(f"{cell.name}, 0.1 %: P99 / P50", 1.2, tail(ours.times),
                                blocks(tail, ours.times), most=True))
        if ours and gloo:
            both = gloo.times, ours.times
            found.append(judged(f"{cell.name}, 0.1 %: P99 of {gloo.who} / of Tarpon", BURSTS_P99,
                                ratio(p99)(*both), blocks(ratio(p99), *both)))
        return found

    def beside_exact(self, cell):
        """A bound costs no time, and a larger target none either."""
        exact, low, high = (self.of(cell, who) for who in ("exact", 0.001, 0.01))
        found = []
        for target, ours in ((0.001, low), (0.01, high)):
            if ours and exact:
                both = ours.times, exact.times
                found.append(not_beyond(f"{cell.name}, {100 * target:g} %: mean / exact calls'",
                                        SLOWER, ratio(mean)(*both), blocks(ratio(mean), *both)))
        if low and high:
            both = high.times, low.times
            found += [not_beyond(f"{cell.name}: {name} at 1 % / at 0.1 %", 1, ratio(statistic)(*both),
                                 blocks(ratio(statistic), *both))
                      for name, statistic in (("mean", mean), ("P99", p99))]
        return found

    def short_beside_bursts(self, cell):
        ours, exact = self.of(cell, 0.001), self.of(cell, "exact")
        ring = self.of(cell, "ring")
        if not ring and (gloo := self.of(cell, "gloo")) and gloo.who == "Gloo ring":
            ring = gloo
        found = self.lost(0.001, 0.13, [cell]) + self.lost(0.01, 1.3, [cell])
        if cell.ranks != 4 or cell.congestion != "bbr" or not ours:
            return found
        if ring:
            both = ring.times, ours.times
            found += [judged(f"{cell.name}, 0.1 %: {name} of Gloo ring / of Tarpon", limit,
                             ratio(statistic)(*both), blocks(ratio(statistic), *both))
                      for name, statistic, limit in (("P99", p99, RING_P99), ("mean", mean, RING_MEAN))]
        if exact:
            both = ours.times, exact.times
            found.append(judged(f"{cell.name}, 0.1 %: P99 / exact calls'", EXACT_P99,
                                ratio(p99)(*both), blocks(ratio(p99), *both), most=True))
        return found

    def stopped(self, cell):
        """What a stopped rank costs the others."""
        found = []
        quiet = self.of(self.cells[0], 0.001)
        for target in cell.targets(False):
            ours = self.of(cell, target)
            if not ours or not quiet or not ours.bound:
                continue
            rest = [times for rank, times in enumerate(ours.calls.ranks) if rank != cell.pause.rank]
            others = [(max(times), bound) for *times, bound in zip(*rest, ours.calls.bounds)
                      if bound > 0]

            def delay(others, quiet):
                usual = median(quiet)
                return max((time - usual) / bound for time, bound in others)

            both = others, quiet.times
            found.append(judged(f"{cell.name}, {100 * target:g} %: longest delay of the others / "
                                "bound", 1, delay(*both), blocks(delay, *both), most=True))
        return found

    def after_bound(self):
        """Of all calls with a bound together."""
        after = [figures.calls.overruns for figures in self.figures.values()
                 if figures.target and figures.calls.overruns]
        if not after:
            return []

        def late(*cells):
            return 1000 * mean([us > LATE_US for us, _ in sum(cells, [])])

        longest, in_doubt = max(sum(after, []))
        doubtful = sum(us > LATE_US and doubt for us, doubt in sum(after, []))
        return [judged(f"calls of 1,000 that end later than bound + 10 ms ({doubtful} in doubt)", 1,
                       late(*after), blocks(late, *after), most=True),
                judged("longest end after the bound, ms" + (" (in doubt)" if in_doubt else ""),
                       NEVER_US / 1000, longest / 1000, (longest / 1000, longest / 1000),
                       most=True)]
