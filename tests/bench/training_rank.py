#!/usr/bin/env python3
"""One rank of a training run: trains the network of training_model.py by DistributedDataParallel
and writes a JSON object to standard output.

The clock runs while steps run. Rank 0 keeps copies of the model, and evaluates them when the
training is over: an evaluation costs no contender time, and no rank waits for it. All ranks copy
the model, so that none is late for the next step."""
import argparse, datetime, json, os, random, signal, statistics, subprocess, time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import training_model
import training_tar

QUIET_STEPS = 12  # without communication, to know what a step computes
TIMEOUT_S = 60


class Delay:
    """Holds one rank back before its backward pass, at random."""

    def __init__(self, text, seed, rank):
        victim, share, low, high = text.split(":")
        self.is_own = int(victim) == rank
        self.share, self.range = float(share), (float(low), float(high))
        self.random = random.Random(seed)

    def wait(self):
        if self.is_own and self.random.random() < self.share:
            time.sleep(self.random.uniform(*self.range))


class Pauses:
    """Stops a rank's process at steps that are known beforehand, as a machine that hands it no time does."""

    def __init__(self, text, rank):
        """`text`: RANK:STEP:SECONDS, with commas between."""
        pauses = [one.split(":") for one in text.split(",")] if text else []
        self.of_step = {int(step): float(seconds) for victim, step, seconds in pauses
                        if int(victim) == rank}

    def take(self, number):
        """Those up to step `number`, which a rank that has come back may have left out."""
        for step in [each for each in self.of_step if each <= number]:
            seconds = self.of_step.pop(step)
            if step == number:
                own = os.getpid()
                subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {own}"])
                os.kill(own, signal.SIGSTOP)


class Steps:
    """What Tarpon reports of each step of the bounded hook."""

    def __init__(self):
        self.steps = []

    def summary(self):
        return {"lost": [step.lost_fraction for step in self.steps],
                "lost_in_network": [step.lost_in_network for step in self.steps],
                "late_ranks": [list(step.late_ranks) for step in self.steps],
                "skipped": sum(step.decision != "apply" for step in self.steps),
                "followed": sum(step.followed for step in self.steps),
                "resynced": sum(step.resynced for step in self.steps),
                "distances": [step.distance for step in self.steps if step.distance > 0]}


class Training:
    def __init__(self, arguments):
        self.arguments = arguments
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT_S))
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.digits = training_model.Digits(arguments.data, arguments.seed, self.rank, self.ranks,
                                            arguments.batch)
        self.model = training_model.build(arguments.seed, arguments.width, arguments.parts)
        self.ddp = DistributedDataParallel(self.model, broadcast_buffers=False,
                                           bucket_cap_mb=arguments.bucket_mb)
        self.optimizer = training_model.optimizer_of(self.model)
        self.reports, self.hook = Steps(), None
        self.times, self.copies = [], []
        evaluations = -(-arguments.steps // arguments.every) if self.rank == 0 else 1
        # Memory that is touched in the course of the training would hold rank 0 back.
        self.room = [[torch.zeros_like(each) for each in self.model.parameters()]
                     for _ in range(evaluations)]
        self.delay = Delay(arguments.delay, arguments.seed, self.rank) if arguments.delay else None
        self.pauses = Pauses(arguments.pauses, self.rank)

    def start_hook(self):
        if self.arguments.contender == "tar-tcp":
            self.hook = training_tar.register(self.ddp)
        elif self.arguments.contender == "bounded":
            import tarpon_torch
            self.hook = tarpon_torch.bounded_hook(
                self.ddp, self.optimizer, loss_target=self.arguments.loss_target,
                codec={"on": True, "off": False, "auto": None}[self.arguments.codec],
                silent_after=self.arguments.silent_after, on_report=self.reports.steps.append)

    def step(self, number, optimizer):
        images, labels = self.digits.of_step(number)
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(self.ddp(images), labels)
        if self.delay:
            self.delay.wait()
        loss.backward()
        optimizer.step()

    def compute_s(self):
        """Median of steps without communication, all ranks at once. The model stays as it is."""
        delay, self.delay = self.delay, None
        still = training_model.optimizer_of(self.model, rate=0)
        dist.barrier()
        times = []
        with self.ddp.no_sync():
            for number in range(QUIET_STEPS):
                start = time.monotonic()
                self.step(number, still)
                times.append(time.monotonic() - start)
        still.zero_grad(set_to_none=True)
        self.delay = delay
        dist.barrier()
        return statistics.median(times[QUIET_STEPS // 3:])

    def train(self):
        """The learning rates fall to 0 along a line. A rank that was evicted comes back at a later
        step than its own."""
        steps, clock, number = self.arguments.steps, 0.0, 0
        rates = [group["lr"] for group in self.optimizer.param_groups]
        while number < steps:
            start = time.monotonic()
            for group, rate in zip(self.optimizer.param_groups, rates):
                group["lr"] = rate * (1 - number / steps)
            if getattr(self.hook, "behind", 0) > 0:
                self.hook.follow()
            else:
                self.pauses.take(number)
                self.step(number, self.optimizer)
            seconds = time.monotonic() - start
            clock += seconds
            self.times.append(seconds)
            number = self.hook.step if hasattr(self.hook, "step") else number + 1
            if number % self.arguments.every == 0 or number == steps:
                self.keep(number, clock)

    def keep(self, number, clock):
        """A copy of the model; of the ranks but 0 the last one."""
        room = self.room[len(self.copies) if self.rank == 0 else 0]
        with torch.no_grad():
            for copy, parameter in zip(room, self.model.parameters()):
                copy.copy_(parameter)
        self.copies.append((number, clock, room))

    def finish(self):
        equal = None
        if self.arguments.contender == "bounded":
            equal = self.hook.compare().equal
            self.hook.finish()
        elif self.hook is not None:
            self.hook.close()
        dist.barrier()
        dist.destroy_process_group()
        return equal

    def evaluations(self):
        """Of rank 0: step, seconds, accuracy."""
        found = []
        for number, clock, copies in self.copies if self.rank == 0 else []:
            with torch.no_grad():
                for parameter, copy in zip(self.model.parameters(), copies):
                    parameter.copy_(copy)
            found.append((number, clock, training_model.accuracy(self.model, self.digits)))
        return found


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contender", required=True, choices=("gloo", "tar-tcp", "bounded"),
                        help="gloo: what carries DDP without a hook, Tarpon's shim too")
    parser.add_argument("--data", required=True, help="what training_model.py has written")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--every", type=int, default=5, help="steps between two evaluations")
    parser.add_argument("--batch", type=int, default=24, help="images of all ranks together")
    parser.add_argument("--width", type=int, default=12288, help="of the wide layer")
    parser.add_argument("--parts", type=int, default=1, help="into which that layer is divided")
    parser.add_argument("--bucket-mb", type=int, default=25, help="of DistributedDataParallel")
    parser.add_argument("--pauses", default="", metavar="RANK:STEP:SECONDS,...",
                        help="RANK stands still for so long at the beginning of STEP")
    parser.add_argument("--silent-after", type=float, help="seconds; of bounded_hook()")
    parser.add_argument("--loss-target", type=float)
    parser.add_argument("--codec", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--delay", metavar="RANK:SHARE:LOW:HIGH",
                        help="in this share of its steps RANK is held back, for so many seconds")
    return parser.parse_args()


def main():
    torch.set_num_threads(1)
    training = Training(parse())
    compute_s = training.compute_s()
    training.start_hook()
    dist.barrier()
    training.train()
    equal = training.finish()
    print(json.dumps({"rank": training.rank, "compute_s": compute_s, "step_s": training.times,
                      "evaluations": training.evaluations(), "replicas_equal": equal,
                      **training.reports.summary()}))


if __name__ == "__main__":
    main()
