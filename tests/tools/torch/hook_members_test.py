"""Ranks of the hook that die, leave, or stand still, and the ranks that go on."""

import os
import signal
import sys
import time

import ranks
import torch
import torch.distributed as dist
from models import batches, ddp_and_sgd, digest, expect_same_digests, reports_of, summary, train_on

import tarpon_torch


def left(steps):
    """Rank 1 leaves in the middle, as by an exception. What the others report, or their error."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=1.0, compare_every=10)
    mine = dist.get_rank()
    try:
        train_on(ddp, optimizer, 20 if mine == 1 else steps, lambda step: None)
        hook.compare() if mine != 1 else None
    except tarpon_torch.AloneError as error:
        return str(error)
    finally:
        hook.finish()
    result = summary(ddp.module)
    result["reports"] = reports_of(hook)
    return result


def ends_without_it(steps):
    """Rank 2 stands still for so long that the others end without it."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=1.5, deadline=3.0)

    def before(step):
        if step == steps - 10 and dist.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGSTOP)

    try:
        train_on(ddp, optimizer, steps, before)
    except tarpon_torch.AloneError as error:
        return str(error)
    finally:
        hook.finish()
    return digest(ddp.module)


def two_deaths(steps):
    """Rank 1 dies, then rank 2."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=1.0)
    dies = {1: 10, 2: 20}.get(dist.get_rank())

    def before(step):
        if step == dies:
            os.kill(os.getpid(), signal.SIGKILL)

    train_on(ddp, optimizer, steps, before)
    result = summary(ddp.module)
    result["reports"] = reports_of(hook)
    hook.finish()
    return result


def killed(steps):
    """Rank 1 dies in the middle."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=1.0, compare_every=10)

    def before(step):
        if step == 20 and hook.communicator.world_size > 1 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    train_on(ddp, optimizer, steps, before)
    equal = hook.compare().equal
    result = summary(ddp.module)
    result["reports"] = reports_of(hook)
    result["equal"] = equal
    hook.finish()
    sys.stdout.flush()
    return result


def stopped(steps, pause, **options):
    """Rank 2 stands still in the middle, until a signal from outside."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, compare_every=10, **options)
    longest = 0.0
    began = time.monotonic()

    def before(step):
        nonlocal longest, began
        now = time.monotonic()
        longest = max(longest, now - began) if step > 1 else 0.0
        began = now
        if step == 20 and dist.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(pause)

    train_on(ddp, optimizer, steps, before)
    equal = hook.compare().equal
    result = summary(ddp.module)
    result["reports"] = reports_of(hook)
    result["longest"] = longest
    result["equal"] = equal
    hook.finish()
    return result


def returning(steps, pause, stops=2, **options):
    """A rank stands still for so long that it cannot catch up call by call; it comes back."""
    ddp, optimizer = ddp_and_sgd()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.9)
    hook = tarpon_torch.bounded_hook(
        ddp, optimizer, state=[schedule], bound=1.0, **options
    )
    data = batches(dist.get_rank())
    while hook.step < steps:
        if hook.step == 20 and dist.get_rank() == stops:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(pause)
        inputs, labels = next(data)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()
        schedule.step()
    equal = hook.compare().equal
    result = summary(ddp.module)
    result["reports"] = reports_of(hook)
    result["equal"] = equal
    result["turns"] = schedule.last_epoch
    hook.finish()
    return result


def renewed(steps, dies):
    """A rank dies; the others use collectives of PyTorch without it."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=1.0)
    first = dist.get_rank()
    sums = []

    def before(step):
        if step == 10 and first == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if len(hook.ranks) != dist.get_world_size():
            hook.renew_group()
        if step < 10 or len(hook.ranks) == 2:
            total = torch.tensor([first])
            dist.all_reduce(total)
            sums.append(int(total))

    train_on(ddp, optimizer, steps, before)
    result = summary(ddp.module)
    result["sums"], result["ranks"], result["place"] = sums, hook.ranks, dist.get_rank()
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))  # has collectives
    dist.barrier()
    hook.finish()
    return result


def test_killed():
    """The others leave it behind, and compare their models again."""
    for world in (2, 4):
        results = ranks.run("killed", world, {"steps": 60}, backend="gloo", killed=(1,))
        survivors = [one for one in results if one is not None]
        assert len(survivors) == world - 1
        expect_same_digests(survivors)
        for one in survivors:
            assert one["equal"]
            details = [report["detail"] for report in one["reports"] if report["detail"]]
            assert len(details) == 1, details
            assert f"rejoined: {world - 1} ranks; rank 1 is dead" in details[0], details
            assert one["reports"][-1]["step"] == 59
            assert all(report["decision"] == "apply" for report in one["reports"]), details


def test_left():
    """As a rank that is killed. A rank alone cannot know what the other one has done since."""
    results = ranks.run("left", 4, {"steps": 60}, backend="gloo")
    survivors = [results[rank] for rank in (0, 2, 3)]
    expect_same_digests(survivors)
    for one in survivors:
        details = [report["detail"] for report in one["reports"] if report["detail"]]
        assert len(details) == 1 and "rejoined: 3 ranks; rank 1 left the communicator" in details[0], details
    alone = ranks.run("left", 2, {"steps": 60}, backend="gloo")[0]
    assert "this rank is alone" in alone and "rank 1 left the communicator" in alone, alone


def test_ends_without_it():
    results = ranks.run("ends_without_it", 4, {"steps": 30}, backend="gloo", signals=waking(12))
    others = [results[rank] for rank in (0, 1, 3)]
    assert all(one == others[0] for one in others), others
    assert "this rank is alone" in results[2], results


def test_two_deaths():
    """Reports name ranks by their first numbers."""
    results = ranks.run("two_deaths", 4, {"steps": 40}, backend="gloo", killed=(1, 2))
    survivors = [results[0], results[3]]
    expect_same_digests(survivors)
    for one in survivors:
        details = [report["detail"] for report in one["reports"] if report["detail"]]
        assert len(details) == 2, details
        assert "3 ranks; rank 1 is dead" in details[0], details
        assert "2 ranks; rank 2 is dead" in details[1], details
        late = {rank for report in one["reports"][15:] for rank in report["late_ranks"]}
        assert late <= {2}, late


def waking(seconds, rank=2, when=lambda: True):
    """Lets a rank run again, `seconds` after it has stopped itself, and when `when()` holds."""

    def wake(processes):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with open(f"/proc/{processes[rank].pid}/stat", encoding="ascii") as stat:
                if stat.read().rsplit(")", 1)[1].split()[0] == "T":
                    break
            time.sleep(0.05)
        time.sleep(seconds)
        while not when() and time.monotonic() < deadline:
            time.sleep(0.2)
        processes[rank].send_signal(signal.SIGCONT)

    return wake


def test_stopped():
    """The others go on; the stopped rank ends with their parameters.

    With a bound no step takes much longer than that. Learnt bounds wait for a rank that is back until it
    has made the steps that it missed: about as long as it stood still.
    """
    for options, most in (({"bound": 1.0}, 2.5), ({"deadline": 10.0}, 4.5)):
        results = ranks.run(
            "stopped", 4, {"steps": 80, "pause": 0.1, **options}, backend="gloo", signals=waking(3)
        )
        expect_same_digests(results)
        others = [results[rank] for rank in (0, 1, 3)]
        for one in others:
            assert one["equal"], one["reports"][-3:]
            assert any(2 in report["late_ranks"] for report in one["reports"]), "it is not named"
            assert one["longest"] < most, (options, one["longest"])


def _returns(seconds, steps, stops=2, when=lambda: True, **options):
    """It takes the state of the others at a step boundary, and all end with one model."""
    results = ranks.run(
        "returning",
        4,
        {"steps": steps, "stops": stops, **options},
        backend="gloo",
        signals=waking(seconds, stops, when),
    )
    expect_same_digests(results)
    for one in results:
        assert one["equal"], one["reports"][-3:]
        rejoined = [report for report in one["reports"] if "rejoined" in report["detail"]]
        assert len(rejoined) == 1 and rejoined[0]["resynced"], one["reports"]
        applied = [report for report in one["reports"] if report["decision"] == "apply"]
        assert len(applied) > len(one["reports"]) - 10, one["reports"]
        assert one["turns"] == results[0]["turns"], "the schedules differ"
    if stops == 0:
        return
    numbers = [report["step"] for report in results[2]["reports"]]
    assert len(numbers) < steps and numbers[-1] == steps - 1, numbers


def test_evicted():
    """More than may be retained is needed for it."""
    _returns(3, 80, pause=0.1, deadline=1.5, retain_bytes=1 << 20)


def test_decider():
    """Rank 0, which decides, stands still for longer than the deadline: all ranks come together."""
    _returns(4, 60, stops=0, pause=0.05, deadline=1.5)


def test_far_behind():
    """The verdicts that it asks for are forgotten; the results would still be there."""
    with ranks.directory() as directory:
        log = os.path.join(directory, "log")

        def others_are_ahead():
            with open(log, encoding="utf-8") as lines:
                return f'"step": {20 + 64 + 10}, ' in lines.read()

        _returns(1, 140, pause=0.03, when=others_are_ahead, log=log)


def test_renewed():
    """Also where the rank dies that has the store of the first process group."""
    for dies in (1, 0):
        results = ranks.run("renewed", 3, {"steps": 30, "dies": dies}, backend="gloo", killed=(dies,))
        survivors = [one for one in results if one is not None]
        expect_same_digests(survivors)
        for place, one in enumerate(survivors):
            left = [rank for rank in range(3) if rank != dies]
            assert one["ranks"] == left and one["place"] == place, one
            assert one["sums"][:10] == [3] * 10 and set(one["sums"][10:]) == {3 - dies}, one


FUNCTIONS = {
    function.__name__: function
    for function in (killed, left, ends_without_it, two_deaths, stopped, returning, renewed)
}
TESTS = {
    "killed": test_killed,
    "left": test_left,
    "ends_without_it": test_ends_without_it,
    "two_deaths": test_two_deaths,
    "stopped": test_stopped,
    "decider": test_decider,
    "evicted": test_evicted,
    "far_behind": test_far_behind,
    "renewed": test_renewed,
}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
