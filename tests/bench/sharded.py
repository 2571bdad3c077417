#!/usr/bin/env python3
"""Steps of FullyShardedDataParallel: a transformer of 16 MB on 4 ranks in namespaces whose links carry
2 Gb/s, on a quiet network and beside short TCP bursts. PyTorch 2 runs in the chroot of
tests/tools/torch/torch2.sh. Stock Gloo, Tarpon exact and Tarpon with bounded gradients take turns.

Prints a line a run, a table, and the targets at the end; exit code 1 when one is missed. Writes
sharded.json."""
import argparse, contextlib, json, os, subprocess, sys

from bursts import Bursts
from figures import Progress, at_most, bootstrap, finish, judged, median, p99, ratios, shown
from tail_bed import Bed
from tail_cells import SHAPED

RANKS, LIMIT_S = 4, 300
CONTENDERS = "gloo", "exact", "bounded"
PORT = 29500
LOSS_TARGET = 0.01
TORCH2 = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tools/torch/torch2.sh")


class Sharded:
    def __init__(self, arguments):
        self.binaries = os.path.abspath(f"{arguments.build}/bin")
        self.steps = arguments.steps
        self.runs = 0
        self.results = {}  # by cell and contender: of each run what rank 0 said

    def prepare(self, build):
        said = subprocess.run([TORCH2, "--build", build, "--prepare"], stdout=subprocess.PIPE, text=True)
        if said.returncode != 0 or "SKIP" in said.stdout:
            sys.exit(said.stdout.strip() or "torch2.sh failed")

    def run(self, cell, contender, seed):
        with contextlib.ExitStack() as stack:
            bed = stack.enter_context(Bed(self.binaries, RANKS, (*SHAPED, "--seed", str(seed)),
                                          int(cell == "bursts")))
            self.runs += 1
            shared = [f"MASTER_ADDR={bed.first}", f"MASTER_PORT={PORT}", f"WORLD_SIZE={RANKS}",
                      "GLOO_SOCKET_IFNAME=eth0", "TARPON_INTERFACE=eth0", "OMP_NUM_THREADS=1",
                      "OPENBLAS_NUM_THREADS=1"]
            commands = [[TORCH2, "--exec", f"RANK={rank}", *shared, "python3",
                         "/work/tests/bench/sharded_rank.py", contender, str(self.steps),
                         str(LOSS_TARGET)] for rank in range(RANKS)]
            if cell == "bursts":
                stack.enter_context(Bursts(bed, seed))
            outputs = bed.run(commands, LIMIT_S)
        told = [json.loads(output.splitlines()[-1]) for output in outputs]
        result = {"step_s": told[0]["step_s"], "loss": told[0]["loss"],
                  "skipped": told[0].get("skipped", 0),
                  "lost": [max(shares) for shares in zip(*(one.get("lost", []) for one in told))]}
        self.results.setdefault((cell, contender), []).append(result)
        return result

    def steps_of(self, cell, contender):
        return sum((run["step_s"] for run in self.results[cell, contender]), [])

    def medians(self, cell, contender):
        return [median(run["step_s"]) for run in self.results[cell, contender]]

    def table(self):
        yield ["network", "gradients by", "step, ms", "P99, ms", "last loss", "lost", "skipped"]
        yield 7 * ["---"]
        for (cell, contender), runs in self.results.items():
            steps = self.steps_of(cell, contender)
            lost = sum((run["lost"] for run in runs), [])
            yield [cell, contender, shown(median(steps), 0.001, 0), shown(p99(steps), 0.001, 0),
                   f"{median([median(run['loss'][-10:]) for run in runs]):.3f}",
                   f"{100 * sum(lost) / len(lost):.3f} %" if lost else "-",
                   str(sum(run["skipped"] for run in runs))]

    def tail(self, contender):
        """The target of P99 beside bursts."""
        def ratio(gloo, ours):
            return p99(gloo) / p99(ours)

        steps = [self.steps_of("bursts", each) for each in ("gloo", contender)]
        return judged(f"bursts: P99 of Gloo / Tarpon {contender}", 2, ratio(*steps),
                      bootstrap(ratio, *steps, block=5))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="preset 'bench' built here")
    parser.add_argument("--rounds", type=int, default=4, help="runs of each contender in each cell")
    parser.add_argument("--steps", type=int, default=60, help="that count, of a run")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 50 steps: 9 minutes; else 18")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.steps = 2, 50
    if arguments.rounds * arguments.steps < 100:
        parser.error("P99 needs 100 steps: give more rounds or more steps")
    bench = Sharded(arguments)
    bench.prepare(arguments.build)
    cells = "quiet", "bursts"
    progress = Progress(arguments.rounds * len(cells) * len(CONTENDERS))
    for turn in range(arguments.rounds):
        for cell in cells:
            for contender in CONTENDERS if turn % 2 == 0 else reversed(CONTENDERS):
                told = bench.run(cell, contender, 1 + turn)
                progress.say(f"{cell}, {contender}: {1000 * median(told['step_s']):.0f} ms a step, "
                             f"the longest {1000 * max(told['step_s']):.0f} ms")
                progress.step(f"{cell}, {contender}")
    progress.end()
    print("\n".join(f"| {' | '.join(row)} |" for row in bench.table()))
    targets = [at_most(0.9, f"quiet: step of Tarpon {kind} / Gloo",
                       ratios(bench.medians("quiet", kind), bench.medians("quiet", "gloo")))
               for kind in ("exact", "bounded")]
    targets += [bench.tail(kind) for kind in ("exact", "bounded")]
    finish(f"{arguments.build}/sharded.json", targets,
           runs=[{"cell": cell, "contender": contender, "runs": runs}
                 for (cell, contender), runs in bench.results.items()])


if __name__ == "__main__":
    main()
