"""Runs of the training benchmark: a contender trains once, on a testbed, with a seed."""
import contextlib, json, os, time

from bursts import Bursts
from figures import mean
from tail_bed import Background, Bed, Failed
from training_cells import FOLDER

TARGET = 0.97        # accuracy that counts, twice in a row
LAST = 3             # evaluations whose mean is the final accuracy
FIRST_PORT = 29400
RING_RANKS = 4


class Run:
    """`reports`: of each rank what training_rank.py prints; of a user's script, rank 0's alone."""

    def __init__(self, cell, contender, seed, reports, bursts_per_s):
        self.cell, self.contender, self.seed = cell, contender, seed
        self.reports, self.bursts_per_s = reports, bursts_per_s
        self.step_s, self.evaluations = reports[0]["step_s"], reports[0]["evaluations"]

    def reached(self):
        """Step and seconds of the second evaluation in a row at TARGET; None, None: never."""
        good = [accuracy >= TARGET - 1e-9 for _, _, accuracy in self.evaluations]
        for number in range(1, len(good)):
            if good[number - 1] and good[number]:
                return self.evaluations[number][:2]
        return None, None

    def final(self):
        return mean([accuracy for _, _, accuracy in self.evaluations[-LAST:]])

    def seconds(self):
        return sum(self.step_s)

    def compute_s(self):
        """Of a step, at the slowest rank; None: unknown."""
        return max((report.get("compute_s") or 0 for report in self.reports)) or None

    def lost(self):
        """Mean share that the rank lacked that lost most; None: nothing can be lost, or unknown."""
        shares = [mean(report["lost"]) for report in self.reports if report.get("lost")]
        return max(shares) if shares else None

    def followed(self):
        """Steps that a rank took from the others without computing them."""
        return sum(report.get("followed", 0) for report in self.reports)

    def record(self):
        """As in training.json."""
        step, seconds = self.reached()
        return {"cell": self.cell.name, "who": self.contender.name, "seed": self.seed,
                "reached_step": step, "reached_s": seconds, "final_accuracy": self.final(),
                "seconds": self.seconds(), "lost": self.lost(), "compute_s": self.compute_s(),
                "bursts_per_s": self.bursts_per_s, "ranks": self.reports}


class Place:
    """A testbed of a cell, and what is beside, while this context lasts."""

    def __init__(self, binaries, cell, seed):
        self.binaries, self.cell, self.seed = binaries, cell, seed
        self.stack, self.runs = contextlib.ExitStack(), 0

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            cell = self.cell
            # Every seed has losses of its own, alike for all contenders.
            shape = (*cell.testbed(), "--seed", str(self.seed))
            others = int(cell.beside == "bursts")
            self.bed = stack.enter_context(Bed(self.binaries, cell.ranks, shape, others))
            self.beside = None
            if cell.beside == "bursts":
                self.beside = Bursts(self.bed, self.seed)
            elif cell.beside == "ring":
                self.beside = Background(self.bed, RING_RANKS)
            if self.beside:
                stack.enter_context(self.beside)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def environment(self, rank):
        library = os.path.join(self.binaries, "..", "collectives", "libtarpon.so.0")
        return {"RANK": str(rank), "WORLD_SIZE": str(self.cell.ranks), "LOCAL_RANK": "0",
                "MASTER_ADDR": self.bed.first, "MASTER_PORT": str(FIRST_PORT + self.runs),
                "GLOO_SOCKET_IFNAME": "eth0", "TARPON_INTERFACE": "eth0",
                "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                "PYTHONPATH": os.path.join(FOLDER, "../../tools/torch"),
                "PYTHONDONTWRITEBYTECODE": "1", "TARPON_LIBRARY": os.path.abspath(library),
                "TRAINING_SEED": str(self.seed)}

    def run(self, contender, command, limit):
        """Errors: Failed."""
        self.runs += 1
        commands, start = [command] * self.cell.ranks, time.monotonic()

        def work():
            return self.bed.run(commands, limit, environment=self.environment)

        outputs, rate = self.beside.beside(work) if self.beside else (work(), None)
        reports = [read(output) for output in outputs]
        if reports[0] is None:
            raise Failed(f"{contender.name}: rank 0 printed no JSON object with step_s and "
                         "evaluations; see tests/bench/README.md")
        reports = [report for report in reports if report is not None]
        run = Run(self.cell, contender, self.seed, reports, rate)
        run.wall_s = time.monotonic() - start
        return run


def read(output):
    """The last line that is an object with what a run needs; None without one."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                report = json.loads(line)
                if report.get("step_s") and report.get("evaluations"):
                    return report
                if "step_s" in report and report.get("rank"):
                    return report
    return None


def shortened(why):
    """The last line of what went wrong."""
    lines = [line.strip() for line in str(why).splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else f"{lines[0][:80]}... {lines[-1]}"
