"""Runs the test program that TORCH2_FILE names, and is its ranks' program too. Used by torch2.sh.

PyTorch 2.6 hangs now and then in destroy_process_group() right after a call, with stock Gloo too (7
of 25 runs): the destructor waits for the group's thread with the interpreter's lock held, and the
thread needs the lock to free a tensor. Here the thread gets a moment to free it.
"""

import os
import time

import torch.distributed as dist

destroy = dist.destroy_process_group


def destroy_after_a_moment(*arguments):
    time.sleep(0.3)
    destroy(*arguments)


dist.destroy_process_group = destroy_after_a_moment
with open(os.environ["TORCH2_FILE"], encoding="utf-8") as file:
    exec(compile(file.read(), file.name, "exec"))  # runpy would change sys.argv[0]
