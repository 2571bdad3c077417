"""What the training benchmark compares: contenders, cells, and how much of them."""
import collections
import os

from tail_cells import SHAPED

PYTHON = "/usr/bin/python3"  # with Debian's torch, which has Gloo as a library of its own
FOLDER = os.path.dirname(os.path.abspath(__file__))
DELAYED_RANK = 3
DELAY = f"{DELAYED_RANK}:0.2:0.05:0.5"  # 0.05 to 0.5 s, in a fifth of the steps

Plan = collections.namedtuple("Plan", "minutes seeds steps every width limit_s")
PLANS = {"usual": Plan(58, 3, 240, 5, 12288, 240),
         "quick": Plan(4.8, 1, 180, 5, 12288, 120),
         "full": Plan(20 * 60, 10, 240, 5, 12288, 400),
         "smoke": Plan(3, 1, 12, 3, 1024, 60)}


class Contender(collections.namedtuple("Contender", "name kind loss_target codec",
                                       defaults=(None, "on"))):
    """`kind`: gloo, exact, bounded or tar-tcp."""

    def launcher(self, binaries, by_hook):
        """Words before the program. Without a hook `tarpon run` bounds the calls."""
        if self.kind == "exact":
            return [f"{binaries}/tarpon", "run", "--require", "--"]
        if self.kind == "bounded" and not by_hook:
            return [f"{binaries}/tarpon", "run", "--require", "--mode", "bounded", "--loss-target",
                    f"{100 * self.loss_target:g}%", "--codec", self.codec, "--"]
        return []

    def digits(self, binaries, options):
        """The command of a rank that trains the digits."""
        kind = "gloo" if self.kind == "exact" else self.kind
        command = [*self.launcher(binaries, by_hook=True), PYTHON, f"{FOLDER}/training_rank.py",
                   "--contender", kind, *options]
        if self.kind == "bounded":
            command += ["--loss-target", str(self.loss_target), "--codec", self.codec]
        return command

    def script(self, binaries, words):
        """The command of a rank that runs a script of the user's."""
        hook = [f"{FOLDER}/training_tar.py"] if self.kind == "tar-tcp" else []
        return [*self.launcher(binaries, by_hook=False), PYTHON, *hook, *words]


def bounded(share, codec="on", name=None):
    return Contender(name or f"Tarpon {100 * share:g} %", "bounded", share, codec)


GLOO = Contender("Gloo", "gloo")
EXACT = Contender("Tarpon exact", "exact")
TAR_TCP = Contender("tar-tcp", "tar-tcp")
BOUNDED = bounded(0.001), bounded(0.01)


class Cell(collections.namedtuple("Cell", "name ranks congestion beside contenders shape delay",
                                  defaults=((), None))):
    """`beside`: "bursts", "ring" or None. `shape`: more options of `tarpon testbed`."""

    def testbed(self):
        return (*SHAPED, "--tcp-congestion", self.congestion, *self.shape)

    def is_quiet(self):
        return not self.beside and not self.shape and not self.delay


def comparison(ranks, congestion, beside, contenders):
    name = {None: "quiet", "bursts": "bursts beside", "ring": "Gloo ring beside"}[beside]
    return Cell(f"{ranks} ranks, {name}, {congestion}", ranks, congestion, beside, contenders)


def cells_of(arguments):
    """The quiet one first."""
    if arguments.loss:
        return [lossy(percent) for percent in (0, 1, 5, 10)]
    if arguments.delay:
        return [Cell(f"4 ranks, rank {DELAYED_RANK} delayed, cubic", 4, "cubic", None,
                     (GLOO, *BOUNDED), delay=DELAY)]
    everyone = (GLOO, EXACT, *BOUNDED, TAR_TCP)
    if arguments.smoke:
        return [comparison(4, "cubic", "bursts", everyone)]
    if arguments.quick:
        few = (GLOO, EXACT, BOUNDED[1])
        return [comparison(4, "cubic", beside, few) for beside in (None, "bursts")]
    kinds = [("cubic", None), ("cubic", "bursts"), ("bbr", "bursts")]
    kinds += [("cubic", "ring"), ("bbr", "ring")] if arguments.full else []
    return [comparison(ranks, congestion, beside, everyone)
            for ranks in ((4, 8) if arguments.full else (4,)) for congestion, beside in kinds]


def lossy(percent):
    """The loss target is what the network loses: the bound then ends calls in place of repairing
    all of it."""
    target = max(percent / 100, 0.001)
    contenders = [bounded(target, codec, f"codec {codec}") for codec in ("on", "off")]
    return Cell(f"4 ranks, {percent} % lost", 4, "cubic", None, contenders,
                shape=("--loss", f"{percent}%"))
