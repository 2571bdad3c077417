"""What the training benchmark compares: contenders, cells, and how much of them."""
import collections, os, random

from tail_cells import SHAPED

PYTHON = "/usr/bin/python3"  # with Debian's torch, which has Gloo as a library of its own
FOLDER = os.path.dirname(os.path.abspath(__file__))
DELAYED_RANK = 3
DELAY = f"{DELAYED_RANK}:0.2:0.05:0.5"  # 0.05 to 0.5 s, in a fifth of the steps

# Ranks but 0, whose clock counts, stand still: one at a time, for so many seconds, every so many
# steps.
PAUSE_S, STEPS_OF_PAUSE, FIRST_PAUSE = (1.0, 3.0), 50, 30
SILENT_AFTER_S = 0.1  # of bounded training there

Plan = collections.namedtuple("Plan", "minutes seeds steps every limit_s")
PLANS = {"usual": Plan(58, 3, 240, 5, 240),
         "quick": Plan(5.8, 1, 180, 5, 120),
         "full": Plan(20 * 60, 10, 240, 5, 400),
         "smoke": Plan(3, 1, 12, 3, 60)}

# The network's size, and how its gradients travel.
Shape = collections.namedtuple("Shape", "width parts bucket_mb")
CLOUD = Shape(6144, 3, 2)     # 6.5 MB, in 3 buckets of 2 MiB and a small one
LARGE = Shape(12288, 1, 25)   # 13 MB, in one bucket and small ones
SMALL = Shape(1024, 1, 25)


class Contender(collections.namedtuple("Contender", "name kind loss_target codec",
                                       defaults=(None, "auto"))):
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


def bounded(share, codec="auto", name=None):
    return Contender(name or f"Tarpon {100 * share:g} %", "bounded", share, codec)


GLOO = Contender("Gloo", "gloo")
EXACT = Contender("Tarpon exact", "exact")
TAR_TCP = Contender("tar-tcp", "tar-tcp")
BOUNDED = bounded(0.001), bounded(0.01)


class Cell(collections.namedtuple("Cell", "name ranks congestion beside contenders network shape "
                                  "delay pauses", defaults=(LARGE, (), None, False))):
    """`beside`: "bursts", "ring" or None. `shape`: more options of `tarpon testbed`."""

    def testbed(self):
        return (*SHAPED, "--tcp-congestion", self.congestion, *self.shape)

    def is_quiet(self):
        return not self.beside and not self.shape and not self.delay and not self.pauses

    def is_cloud(self):
        return self.network is CLOUD

    def options(self, seed, steps):
        """Of training_rank.py."""
        network = self.network
        options = ["--width", str(network.width), "--parts", str(network.parts),
                   "--bucket-mb", str(network.bucket_mb)]
        options += ["--delay", self.delay] if self.delay else []
        if self.pauses:
            options += ["--pauses", pauses(seed, steps, self.ranks),
                        "--silent-after", str(SILENT_AFTER_S)]
        return options


def pauses(seed, steps, ranks):
    """The same for all contenders of a seed."""
    draw = random.Random(seed)
    return ",".join(f"{draw.randrange(1, ranks)}:{step}:{draw.uniform(*PAUSE_S):.2f}"
                    for step in range(FIRST_PAUSE, steps - STEPS_OF_PAUSE // 2, STEPS_OF_PAUSE))


def comparison(ranks, congestion, beside, contenders, network=LARGE):
    name = {None: "quiet", "bursts": "bursts beside", "ring": "Gloo ring beside"}[beside]
    size = "2 MiB, " if network is CLOUD else ""
    return Cell(f"{size}{ranks} ranks, {name}, {congestion}", ranks, congestion, beside, contenders,
                network)


def cloud(beside, congestion, contenders):
    """In the time shape of clouds: a bucket takes 10 to 20 ms, a timeout of TCP 200 ms."""
    return comparison(4, congestion, beside, contenders, CLOUD)


def cells_of(arguments):
    """The quiet one first."""
    if arguments.loss:
        return [lossy(percent) for percent in (0, 1, 5, 10)]
    if arguments.delay:
        return [Cell(f"4 ranks, rank {DELAYED_RANK} delayed, cubic", 4, "cubic", None,
                     (GLOO, *BOUNDED), delay=DELAY)]
    everyone = (GLOO, EXACT, *BOUNDED, TAR_TCP)
    if arguments.smoke:
        return [comparison(4, "cubic", "bursts", everyone, SMALL)]
    few = (GLOO, EXACT, BOUNDED[1] if arguments.quick else BOUNDED[0], BOUNDED[1])
    few = tuple(dict.fromkeys(few))
    stopped = Cell("2 MiB, 4 ranks, pauses of 1 to 3 s, cubic", 4, "cubic", None, few, CLOUD,
                   pauses=True)
    if arguments.quick:
        return [cloud(None, "cubic", few), cloud("ring", "cubic", few), stopped]
    cells = [cloud(None, "cubic", few), cloud("bursts", "bbr", few), cloud("ring", "cubic", few),
             stopped]
    kinds = [("cubic", None), ("bbr", "bursts")]
    kinds += [("cubic", "bursts"), ("cubic", "ring"), ("bbr", "ring")] if arguments.full else []
    return cells + [comparison(ranks, congestion, beside, everyone)
                    for ranks in ((4, 8) if arguments.full else (4,))
                    for congestion, beside in kinds]


def lossy(percent):
    """The loss target is what the network loses: the bound then ends calls in place of repairing
    all of it."""
    target = max(percent / 100, 0.001)
    contenders = [bounded(target, codec, f"codec {codec}") for codec in ("on", "off")]
    return Cell(f"4 ranks, {percent} % lost", 4, "cubic", None, contenders,
                shape=("--loss", f"{percent}%"))
