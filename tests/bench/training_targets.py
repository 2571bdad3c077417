"""What the runs of the training benchmark say: rows of its table, and the targets.

Runs that share a seed share weights, data order and bursts: a contender is compared with Gloo seed
by seed."""
from figures import at_least, at_most, bootstrap, interval, judged, mean, median, percentile

UNREACHED = 99.0      # the ratio where one of two never reaches the accuracy


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

    def beside_exact(self, cell, contender):
        """Of each pair its time to accuracy over that of exact calls."""
        exact = {run.seed: run.reached()[1] for run in self.runs
                 if run.cell is cell and run.contender.kind == "exact"}
        both = [(run.reached()[1], exact.get(run.seed)) for run in self.of(cell, contender)]
        return [UNREACHED if ours is None else ours / theirs for ours, theirs in both
                if theirs is not None]

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
            found += self.cloud_targets(cell) if cell.is_cloud() else []
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
                found.append(at_most(1.05 if contender.kind == "exact" or cell.is_cloud() else 1.15,
                                     f"{cell.name}, {contender.name}: time to 97 % / Gloo's",
                                     times))
            elif cell.beside and contender.kind == "bounded":
                least = 1.3 if cell.is_cloud() else 1.2
                found.append(at_least(least, f"{cell.name}, {contender.name}: Gloo's time to 97 % / "
                                      "its time (aim: 1.9)", [1 / time for time in times]))
        return found

    def cloud_targets(self, cell):
        """Bounded beside exact training, and what it does not apply."""
        found = []
        for contender in cell.contenders:
            times = self.beside_exact(cell, contender)
            if contender.kind != "bounded" or not times:
                continue
            if cell.pauses:
                found.append(at_least(1.2, f"{cell.name}, {contender.name}: time to 97 % of exact "
                                      "calls / its time", [1 / time for time in times]))
            elif cell.beside:
                found.append(at_most(1.0, f"{cell.name}, {contender.name}: time to 97 % / that of "
                                     "exact calls", times))
            else:
                exact = {run.seed: percentile(run.step_s, 0.99) for run in self.runs
                         if run.cell is cell and run.contender.kind == "exact"}
                tails = [percentile(run.step_s, 0.99) / exact[run.seed]
                         for run in self.of(cell, contender) if run.seed in exact]
                found.append(at_most(1.1, f"{cell.name}, {contender.name}: P99 of a step / that of "
                                     "exact calls", tails))
            shares = [100 * run.reports[0].get("skipped", 0) / len(run.step_s)
                      for run in self.of(cell, contender)]
            found.append(at_most(0.5, f"{cell.name}, {contender.name}: skipped steps, %", shares))
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
        """A late rank is waited for, and its gradients are not lost."""
        found = []
        for contender in cell.contenders:
            times, lost = self.times(cell, contender), [100 * run.lost() for run in
                                                        self.of(cell, contender) if run.lost()]
            if contender.kind != "bounded" or not times:
                continue
            found.append(at_most(1.05, f"{cell.name}, {contender.name}: time to 97 % / Gloo's",
                                 times))
            found.append(at_most(100 * contender.loss_target,
                                 f"{cell.name}, {contender.name}: lost, %", lost or [0]))
        return found
