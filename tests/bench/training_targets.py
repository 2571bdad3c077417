"""What the runs of the training benchmark say: rows of its table, and the targets.

Runs that share a seed share weights, data order and bursts: a contender is compared with Gloo seed
by seed."""
from figures import at_least, at_most, bootstrap, interval, judged, mean, median, percentile
from training_cells import DELAYED_RANK

UNREACHED = 99.0      # the ratio where one of two never reaches the accuracy
SLACK_S = 0.01        # after a bound


class Results:
    """All runs, by cell and contender."""

    def __init__(self, cells):
        self.cells, self.runs, self.failed = cells, [], []

    def of(self, cell, contender):
        return [run for run in self.runs if run.cell is cell and run.contender is contender]

    def pairs(self, cell, contender):
        """(a run of it, Gloo's run of the same seed)"""
        theirs = {run.seed: run for run in self.runs
                  if run.cell is cell and run.contender.kind == "gloo"}
        return [(run, theirs[run.seed]) for run in self.of(cell, contender) if run.seed in theirs]

    def times(self, cell, contender):
        """Of each pair its time to accuracy over Gloo's."""
        both = [(ours.reached()[1], theirs.reached()[1])
                for ours, theirs in self.pairs(cell, contender)]
        return [UNREACHED if ours is None else 1 / UNREACHED if theirs is None else ours / theirs
                for ours, theirs in both if ours is not None or theirs is not None]

    def share(self, cell):
        """Of each of Gloo's runs the share of a step that is communication."""
        return [1 - run.compute_s() / median(run.step_s) for run in self.runs if run.cell is cell
                and run.contender.kind == "gloo" and run.compute_s()]

    def rows(self):
        return [self.row(cell, contender) for cell in self.cells for contender in cell.contenders
                if self.of(cell, contender)]

    def row(self, cell, contender):
        runs = self.of(cell, contender)
        reached = [run.reached() for run in runs]
        known = [seconds for _, seconds in reached if seconds is not None]
        steps = sum((run.step_s for run in runs), [])
        lost = [run.lost() for run in runs if run.lost() is not None]
        times, pairs = self.times(cell, contender), self.pairs(cell, contender)
        rates = [run.bursts_per_s for run in runs if run.bursts_per_s is not None]
        return {"cell": cell.name, "who": contender.name, "seeds": len(runs),
                "reached": len(known), "reached_s": median(known) if known else None,
                "reached_step": median([step for step, s in reached if s is not None])
                if known else None,
                "time_over_gloo": median(times) if times else None,
                "time_over_gloo_interval": interval(times) if times else None,
                "step_over_gloo": median([ours.seconds() / len(ours.step_s) /
                                          (theirs.seconds() / len(theirs.step_s))
                                          for ours, theirs in pairs]) if pairs else None,
                "final_accuracy": mean([run.final() for run in runs]),
                "step_p50_s": median(steps), "step_p99_s": percentile(steps, 0.99),
                "step_max_s": max(steps), "lost": mean(lost) if lost else None,
                "skipped": max(sum(report.get("skipped", 0) for report in run.reports[:1])
                               for run in runs),
                "beside_per_s": mean(rates) if rates else None, "steps_s": steps}

    # -- targets

    def targets(self):
        found = []
        for cell in self.cells:
            if self.share(cell) and cell.is_quiet() and cell.ranks == 4:
                found.append(at_least(0.75, f"{cell.name}: share of communication in Gloo's step",
                                      self.share(cell)))
            found += self.time_targets(cell)
            found += self.delay_targets(cell) if cell.delay else []
        found += self.accuracy_targets()
        if self.failed:
            count = len(self.failed)
            found.append(judged("runs that failed", 0, count, (count, count), most=True))
        return found

    def time_targets(self, cell):
        found = []
        for contender in cell.contenders:
            times = self.times(cell, contender)
            if not times or cell.ranks != 4 or contender.kind not in ("exact", "bounded"):
                continue
            if cell.is_quiet():
                found.append(at_most(1.05 if contender.kind == "exact" else 1.15,
                                     f"{cell.name}, {contender.name}: time to 97 % / Gloo's",
                                     times))
            elif cell.beside == "bursts" and contender.kind == "bounded":
                found.append(at_least(1.2, f"{cell.name}, {contender.name}: Gloo's time to 97 % / "
                                      "its time (aim: 1.9)", [1 / time for time in times]))
        return found

    def accuracy_targets(self):
        """Of all cells together, in points."""
        found = []
        contenders = dict.fromkeys(each for cell in self.cells for each in cell.contenders)
        for contender in contenders:
            points = [100 * (ours.final() - theirs.final()) for cell in self.cells
                      for ours, theirs in self.pairs(cell, contender)]
            if points and contender.kind in ("exact", "bounded"):
                found.append(judged(f"{contender.name}: final accuracy - Gloo's, points", -1,
                                    mean(points), bootstrap(mean, points)))
        return found

    def delay_targets(self, cell):
        """The other ranks: their steps, and what they count as missing."""
        found = []
        for contender in cell.contenders:
            runs = [run for run in self.of(cell, contender) if contender.kind == "bounded"]
            others = [report for run in runs for report in run.reports
                      if report["rank"] != DELAYED_RANK]
            calls = sum((report["calls"] for report in others), [])
            known = [(seconds, bound) for seconds, bound in calls if bound > 0]
            if not known:
                continue
            late = [1000 * (seconds > bound + SLACK_S) for seconds, bound in known]
            found.append(judged(f"{cell.name}, {contender.name}: calls of 1,000 of the other ranks "
                                "that end later than bound + 10 ms", 1, mean(late),
                                bootstrap(mean, late, block=20), most=True))
            missing = [sum(DELAYED_RANK in late for late in report["late_ranks"])
                       for report in others]
            found.append(judged(f"{cell.name}, {contender.name}: steps whose missing gradients of "
                                f"rank {DELAYED_RANK} a rank counts", 1, min(missing),
                                (min(missing), max(missing))))
        return found
