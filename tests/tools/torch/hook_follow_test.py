"""A rank of the hook that has stood still, and takes the steps that it missed without computing them."""

import os
import signal
import sys
import time

import ranks
import torch
import torch.distributed as dist
from hook_members_test import waking
from models import batches, ddp_and_sgd, expect_same_digests, reports_of, summary, train_on

import tarpon_torch


def followed(steps, pause, clips, leaves_out=False):
    """Rank 2 stands still at step 20, until a signal from outside. It may leave out the step() of that step."""
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
        stands_still = hook.step == 20 and dist.get_rank() == 2
        if stands_still:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(pause)
        torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
        if stands_still and leaves_out:
            continue
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
                skipped = [r for r in one["reports"] if r["decision"] != "apply"]
                assert not skipped, skipped
                late = [report["step"] for report in one["reports"] if 2 in report["late_ranks"]]
                assert max(late) <= max(steps) + 3, (late, steps)
            else:
                # It owns nothing after the first step that is decided without it.
                void = [report["step"] for report in one["reports"] if report["void_shards"]]
                assert 1 <= len(void) <= 2, (rank, void)
                assert any(report["unreported"] == [2] for report in one["reports"]), rank


def test_left_out():
    """A rank that leaves out the step() of the step for which it was late has the shares of the others."""
    arguments = {"steps": 60, "pause": 0.05, "clips": False, "leaves_out": True}
    results = ranks.run("followed", 4, arguments, backend="gloo", signals=waking(1.0))
    for rank, one in enumerate(results):
        steps = [report["step"] for report in one["reports"]]
        assert steps[-1] == 59 and (20 in steps) == (rank != 2), (rank, steps)
        assert any(report["unreported"] == [2] for report in one["reports"]) or rank == 2, rank


def _said_by(hook):
    try:
        hook.follow()
    except tarpon_torch.TarponError as error:
        return [hook.behind, str(error)]
    return None


def refused():
    """What follow() says where there is nothing to follow, or where it cannot."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer)
    said = [_said_by(hook)]
    train_on(ddp, optimizer, 3)
    said.append(_said_by(hook))
    data = batches(dist.get_rank())
    for _ in range(8):
        for _ in range(2):
            inputs, labels = next(data)
            torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
        said[2:] = [_said_by(hook)]  # before the step()
        optimizer.step()
    said.append(_said_by(hook))
    hook.finish()
    return said


def test_refused():
    wanted = ("no step of its own", "is not behind", "is not behind", "2 averaged backward passes")
    for said in ranks.run("refused", 2, backend="gloo"):
        assert len(said) == 4, said
        for one, text in zip(said, wanted):
            assert one[0] == 0 and text in one[1], (text, said)


FUNCTIONS = {function.__name__: function for function in (followed, refused)}
TESTS = {"followed": test_followed, "left_out": test_left_out, "refused": test_refused}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
