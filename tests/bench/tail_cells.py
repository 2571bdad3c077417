"""What the tail benchmark measures: its cells, the loss targets of each, and how many calls."""
import collections

from figures import MIB

SIZE = 25 * MIB
SHORT = 2 * MIB                        # at 2 Gb/s it takes as long as 25 MiB at 25 Gb/s
SHAPED = ("--rate", "2gbit/128K/400K")
BURSTS = 8                             # packets, mean
TARGETS = (0.001, 0.01)                # --loss-target of the jobs of a cell
FRONTIER = (0.001, 0.005, 0.01, 0.02)  # the same beside the ring of 4


class Cell(collections.namedtuple("Cell", "name ranks shape background pause injected bursts "
                                  "congestion size", defaults=(0, None, None, False, None, SIZE))):
    """`shape`: options of `tarpon testbed`. `background`: ranks of the ring beside. `pause`: a
    Pause, or None. `injected`: share of packets lost at the bridge; None where trains are whole.
    `bursts`: whether a host more sends short bursts. `congestion`: TCP's, where the cell names it. `size`: of the bucket, in bytes."""

    def targets(self, quick):
        return FRONTIER if self.background == 4 and self.is_usual() and not quick else TARGETS

    def is_usual(self):
        return self.ranks == 4 and bool(self.shape) and self.size == SIZE

    def is_short(self):
        """Whether one timeout of TCP costs many calls, as in clouds."""
        return self.size == SHORT

    def is_quiet(self):
        return not self.background and not self.bursts and not self.pause and self.injected is None

    def has_tail(self):
        """Whether the targets of loss, P99 and mean are about this cell."""
        return self.is_usual() and (self.background > 0 or self.injected == 0.01)

    def is_compared(self):
        """Whether the baseline takes turns: where targets hold our calls against its calls."""
        return self.has_tail() or (self.is_usual() and self.is_quiet())

    def call_s(self):
        """How long a call takes, about, with its refill: to divide the time of the benchmark."""
        if self.is_short():
            return 0.05 if self.ranks > 4 else 0.025
        return 0.5 if self.injected is not None else 0.33 if self.background or self.bursts \
            else 0.2


# Calls of each bounded job before the first round, and of one of its turns meanwhile; rounds, and
# calls of a turn in them; calls of each of Gloo's algorithms in the trial; warm-up of a job that
# does not learn, or does not stay alive; minutes for all cells together.
Plan = collections.namedtuple("Plan", "settle settle_turn rounds calls trial warmup minutes")
PLANS = {"usual": Plan(200, 50, 3, 100, 20, 10, 58), "full": Plan(200, 50, 3, 100, 20, 10, 240),
         "quick": Plan(100, 50, 3, 50, 10, 10, 8), "smoke": Plan(2, 2, 1, 2, 1, 1, 58)}
SHORT_PLAN = {"settle": 400, "rounds": 6}  # of cells of short calls; not in a smoke run
SETTLE_SHARE = 0.4  # of the time of a cell, at most


def background(ranks, count, shape=SHAPED, text=""):
    name = f"ring of {count} beside" if count else "quiet"
    return Cell(f"{ranks} ranks{text}, {name}", ranks, shape, background=count)


def plan_of(cell, plan):
    return plan._replace(**SHORT_PLAN) if cell.is_short() and plan.settle > 2 else plan


def bursts(congestion, ranks=4, size=SIZE):
    text = "" if size == SIZE else f", {size // MIB} MiB"
    return Cell(f"{ranks} ranks{text}, bursts beside, {congestion}", ranks, SHAPED, bursts=True,
                congestion=congestion, size=size)


def short_cells(quick):
    """In the time shape that clouds have."""
    cells = [bursts("bbr", size=SHORT)]
    if not quick:
        cells += [bursts("cubic", size=SHORT), bursts("bbr", 8, SHORT),
                  background(4, 0)._replace(name="4 ranks, 2 MiB, quiet", size=SHORT),
                  background(4, 4)._replace(name="4 ranks, 2 MiB, ring of 4 beside", size=SHORT),
                  loss(0.1, False)._replace(name="4 ranks, 2 MiB, 0.1 % lost at random", size=SHORT)]
    return cells


def loss(share, bursts):
    """To lose packets one by one the testbed cuts trains to packets at the sender, and every packet
    then costs CPU time of its own."""
    option = ("--burst-loss", f"{share:g}%/{BURSTS}") if bursts else ("--loss", f"{share:g}%")
    name = f"4 ranks, {share:g} % lost {'in bursts' if bursts else 'at random'}"
    return Cell(name, 4, SHAPED + option, injected=share / 100)


def stopped(pause):
    low, high = (round(1000 * seconds) for seconds in pause[1:])
    name = f"4 ranks, rank {pause.rank} stopped for {low}-{high} ms"
    return Cell(name, 4, SHAPED, pause=pause)


def cells_of(pause, quick=False, full=False):
    """The quiet one first: others are compared with it."""
    if quick:
        return [background(4, 0), *short_cells(quick), background(4, 4)]
    cells = [background(4, 0), *short_cells(quick)]
    cells += [background(4, count) for count in (2, 4, 8)]
    cells += [stopped(pause), loss(1, False), loss(1, True), bursts("cubic"), bursts("bbr")]
    if full:
        cut = Cell("4 ranks, quiet, trains cut", 4, SHAPED + ("--loss", "0%"), injected=0)
        cells += [cut, loss(0.1, False), loss(0.1, True)]
        cells += [background(8, count) for count in (0, 2, 4, 8)]
        cells += [background(ranks, count, (), ", links not shaped") for ranks in (4, 8)
                  for count in (0, 4)]
    return cells


def seconds_of(cell, quick, plan, baseline, algorithms):
    """What the cell needs, about, and how many calls that is."""
    plan = plan_of(cell, plan)
    bounded = len(cell.targets(quick))
    turns = bounded + 2 + cell.is_short() + (1 if baseline and cell.is_compared() else 0)  # exact calls, Gloo
    calls = bounded * plan.settle + plan.warmup + algorithms * plan.trial
    calls += turns * plan.rounds * plan.calls
    return calls * cell.call_s(), calls
