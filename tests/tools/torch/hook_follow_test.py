"""A rank of the hook that has stood still, and takes the steps that it missed without computing them."""

import os
import signal
import sys
import time

import ranks
import torch
import torch.distributed as dist
from hook_members_test import waking
from models import batches, ddp_and_sgd, expect_same_digests, reports_of, summary

import tarpon_torch


def followed(steps, pause, clips):
    """Rank 2 stands still at step 20, until a signal from outside."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, compare_every=10)
    data = batches(dist.get_rank())

    def step():
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
        optimizer.step()

    while hook.step < steps:
        optimizer.zero_grad()
        inputs, labels = next(data)
        if hook.behind > 0:
            hook.follow(step) if clips else hook.follow()
            continue
        if hook.step == 20 and dist.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(pause)
        torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
        step() if clips else optimizer.step()
    equal = hook.compare(largest_distance=1e-6).equal
    result = summary(ddp.module)
    result["reports"] = reports_of(hook)
    result["equal"] = equal
    hook.finish()
    return result


def test_followed():
    """It makes the steps that it missed, is in step again, and the models stay alike."""
    for clips in (False, True):
        results = ranks.run(
            "followed",
            4,
            {"steps": 60, "pause": 0.1, "clips": clips},
            backend="gloo",
            signals=waking(2.0),
        )
        expect_same_digests(results)
        for rank, one in enumerate(results):
            steps = [report["step"] for report in one["reports"] if report["followed"]]
            assert one["equal"] and all("rejoined" not in r["detail"] for r in one["reports"]), one
            assert (len(steps) > 5) == (rank == 2), (rank, steps)
            if rank == 2:
                assert all(r["decision"] == "apply" for r in one["reports"]), one["reports"]
                late = [report["step"] for report in one["reports"] if 2 in report["late_ranks"]]
                assert max(late) <= max(steps) + 3, (late, steps)


def refused():
    """What follow() says where there is nothing to follow."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer)
    said = [hook.behind]
    try:
        hook.follow()
    except tarpon_torch.TarponError as error:
        said.append(str(error))
    hook.finish()
    return said


def test_refused():
    for said in ranks.run("refused", 2, backend="gloo"):
        assert said[0] == 0 and "this rank is not behind" in said[1], said


FUNCTIONS = {function.__name__: function for function in (followed, refused)}
TESTS = {"followed": test_followed, "refused": test_refused}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
