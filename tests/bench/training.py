#!/usr/bin/env python3
"""Training by DistributedDataParallel on 4 ranks in namespaces whose links carry 2 Gb/s: accuracy
against time. A convolutional network learns scikit-learn's digits by stock Gloo, Tarpon exact, and
Tarpon bounded at loss targets of 0.1 and 1 %, in the cells of training_cells.py. Contenders take
turns; all of a seed share weights, data order and bursts.

Prints a line a run, a table, and the targets at the end; exit code 1 when one is missed. Writes
training.json and training.html (with --loss and --delay training-loss, training-delay).

A SCRIPT runs on each rank with torchrun's variables and TRAINING_SEED, backend gloo. At its end
rank 0 prints a JSON line: step_s, the seconds of all steps; evaluations, a list of [step, seconds of
training so far, accuracy from 0 to 1]; optional compute_s, seconds of a step without communication."""
import argparse, os, signal, subprocess, sys, tempfile, time

from figures import Progress, finish, median, shown
from tables import markdown
from tail_bed import Failed, known_congestion
from training_cells import DELAY, FOLDER, PLANS, PYTHON, cells_of
from training_page import COLUMNS, write_page
from training_run import Place, shortened
from training_targets import Results

class Training:
    def __init__(self, arguments, folder):
        self.arguments = arguments
        self.plan = PLANS[next((name for name in ("smoke", "quick", "full")
                                if getattr(arguments, name)), "usual")]
        self.seeds = arguments.seeds or self.plan.seeds
        self.data = os.path.join(folder, "digits.npz")
        self.results = Results(self.available(cells_of(arguments)))
        self.progress = Progress(self.seeds * sum(len(c.contenders) for c in self.results.cells))
        self.notes, self.longest_run = [], 0
        self.end = time.monotonic() + 60 * self.plan.minutes

    def available(self, cells):
        known = known_congestion(cell.congestion for cell in cells)
        return [cell for cell in cells
                if cell.congestion in known and self.arguments.only in cell.name]

    def run(self):
        if not self.arguments.script:
            self.write_digits()
        longest = 0
        for seed in range(1, self.seeds + 1):
            begun = time.monotonic()
            if seed > 1 and begun + longest > self.end:
                self.say(f"out of time: {seed - 1} of {self.seeds} seeds")
                break
            for cell in self.results.cells:
                self.run_cell(cell, seed)
            longest = max(longest, time.monotonic() - begun)
        self.progress.end()

    def say(self, text):
        self.progress.say(text)
        self.notes.append(text)

    def write_digits(self):
        process = subprocess.run([PYTHON, f"{FOLDER}/training_model.py", self.data],
                                 capture_output=True, text=True, timeout=120)
        if process.returncode != 0:
            sys.exit(f"{PYTHON} cannot load the digits: {process.stderr.strip().splitlines()[-1]}; "
                     "install python3-sklearn and python3-torch")

    def run_cell(self, cell, seed):
        """Every other seed in reversed order."""
        try:
            with Place(self.arguments.binaries, cell, seed) as place:
                for contender in cell.contenders[::1 if seed % 2 else -1]:
                    self.turn(place, contender)
        except Failed as why:
            self.fail(cell.name, why)

    def turn(self, place, contender):
        what = f"{place.cell.name}, {contender.name}, seed {place.seed}"
        if time.monotonic() + self.longest_run > self.end:
            self.say(f"{what}: out of time: not run")
            return
        try:
            run = place.run(contender, self.command(contender, place), self.plan.limit_s)
            self.results.runs.append(run)
            self.longest_run = max(self.longest_run, run.wall_s)
            self.progress.say(f"{what}: {summary(run)}")
        except Failed as why:
            self.fail(what, why)
        self.progress.step(what)

    def fail(self, what, why):
        self.say(f"{what}: FAILED: {shortened(why)}")
        self.results.failed.append(what)

    def command(self, contender, place):
        if self.arguments.script:
            return contender.script(self.arguments.binaries, self.arguments.script)
        plan = self.plan
        options = ["--data", self.data, "--seed", str(place.seed), "--steps", str(plan.steps),
                   "--every", str(plan.every), *place.cell.options(place.seed, plan.steps)]
        return contender.digits(self.arguments.binaries, options)

    def report(self):
        arguments, results = self.arguments, self.results
        rows = results.rows()
        if not rows:
            sys.exit("no run came to its end: " + "; ".join(self.notes))
        for cell in results.cells:
            if cell.is_quiet() and (shares := results.share(cell)):
                self.say(f"{cell.name}: communication is {100 * median(shares):.0f} % of Gloo's "
                         "step")
        if arguments.delay:
            self.say(f"delay (rank:share of steps:seconds from:to): {DELAY}")
        print("\n" + markdown(COLUMNS, rows))
        # A few steps of a small network say nothing about the targets.
        targets = [] if arguments.smoke else results.targets()
        name = "training" + "-loss" * arguments.loss + "-delay" * arguments.delay
        page = os.path.join(arguments.build, f"{name}.html")
        write_page(page, results, rows, targets, self.notes)
        print(f"\nplots: {page}")
        if arguments.smoke and results.failed:
            sys.exit(1)
        finish(os.path.join(arguments.build, f"{name}.json"), targets, notes=self.notes,
               rows=[{key: value for key, value in row.items() if key != "steps_s"}
                     for row in rows],
               runs=[run.record() for run in results.runs])


def summary(run):
    step, seconds = run.reached()
    text = f"97 % after {seconds:.1f} s (step {step})" if step else "97 % not reached"
    text += f", in the end {100 * run.final():.1f} %, step {shown(median(run.step_s), 1e-3)} ms"
    text += f" (computes {shown(run.compute_s(), 1e-3)})" if run.compute_s() else ""
    text += f", lost {100 * run.lost():.3f} %" if run.lost() is not None else ""
    text += f", {run.followed()} steps followed" if run.followed() else ""
    return f"{text}; {run.wall_s:.0f} s in all"


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench",
                        help="preset 'bench' built here; reports too")
    parser.add_argument("--quick", action="store_true",
                        help="1 seed, 3 cells, 3 contenders: under 6 minutes; else under 60")
    parser.add_argument("--full", action="store_true",
                        help="10 seeds, 8 ranks and a Gloo ring beside too: many hours")
    parser.add_argument("--smoke", action="store_true", help="a few steps: does it run?")
    parser.add_argument("--loss", action="store_true",
                        help="instead: 0, 1, 5 and 10 %% of all packets lost, codec on and off")
    parser.add_argument("--delay", action="store_true",
                        help="instead: one rank whose backward pass is held back at random")
    parser.add_argument("--seeds", type=int, help="instead of the plan's number")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells with this in their names")
    parser.add_argument("script", nargs="*", metavar="SCRIPT",
                        help="after --: a script of yours and its arguments, in place of the digits")
    arguments = parser.parse_args()
    if arguments.loss and arguments.delay:
        parser.error("--loss and --delay: give one of them")
    arguments.binaries = os.path.abspath(os.path.join(arguments.build, "bin"))
    if not os.access(f"{arguments.binaries}/tarpon", os.X_OK):
        parser.error(f"--build {arguments.build}: no program bin/tarpon there; build the preset "
                     "'bench'")
    return arguments


def main():
    arguments = parse()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as folder:
        bench = Training(arguments, folder)
        bench.run()
        bench.report()


if __name__ == "__main__":
    main()
