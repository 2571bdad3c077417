#!/usr/bin/env python3
"""Transpose AllReduce over TCP: the algorithm of Tarpon's bounded mode on the transport of Gloo.

Beside stock Gloo and Tarpon it separates what the algorithm gains from what the transport gains.

training_tar.py SCRIPT ARGS...   runs a script whose DistributedDataParallel gets the hook"""
import concurrent.futures, runpy, sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class TransposeHook:
    """A communication hook of DistributedDataParallel. Each rank gets its shard of the gradients
    from all ranks, averages it, and gathers the averages of the others.

    One thread runs the collectives of all buckets, in the order of the buckets: a process group
    needs the same order on all ranks."""

    def __init__(self):
        self.group = dist.new_group()  # of its own: nothing else may come between
        self.ranks = dist.get_world_size()
        self.thread = concurrent.futures.ThreadPoolExecutor(1)

    def __call__(self, _, bucket):
        buffer, done = bucket.buffer(), torch.futures.Future()

        def work():
            try:
                done.set_result(self.average(buffer))
            except RuntimeError as error:
                done.set_exception(error)

        self.thread.submit(work)
        return done

    def average(self, buffer):
        shard = -(-buffer.numel() // self.ranks)
        sent = torch.nn.functional.pad(buffer, (0, shard * self.ranks - buffer.numel()))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        average = received.view(self.ranks, shard).sum(0).div_(self.ranks)
        dist.all_gather(list(sent.view(self.ranks, shard).unbind(0)), average, group=self.group)
        buffer.copy_(sent[:buffer.numel()])
        return buffer

    def close(self):
        self.thread.shutdown()


def register(ddp):
    """Gives `ddp` the hook; close() it when the training is over."""
    hook = TransposeHook()

    def transpose_allreduce(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return hook(state, bucket)

    ddp.register_comm_hook(None, transpose_allreduce)
    return hook


def main():
    made = DistributedDataParallel.__init__

    def with_hook(self, *arguments, **options):
        made(self, *arguments, **options)
        register(self)

    DistributedDataParallel.__init__ = with_hook
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
