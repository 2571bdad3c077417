"""The hook of bounded gradients: beside Gloo, with reports, verdicts, and replicas that stay one."""

import json
import os
import signal
import sys
import time

import ranks
import torch
import torch.distributed as dist
from models import batches, digest, small_model, summary, train
from torch.nn.parallel import DistributedDataParallel

import tarpon_torch


# Nothing is lost on loopback where a call has so much time.
LONG = 5.0


def trained(steps, **options):
    made = []

    def register(ddp, optimizer):
        made.append(tarpon_torch.bounded_hook(ddp, optimizer, bound=LONG, bounded_min=0, **options))

    result = train(steps, register)
    hook = made[0]
    result["reports"] = [vars(report) for report in hook.reports]
    hook.finish()
    return result


def trained_without_optimizer(steps):
    made = []
    result = train(
        steps, lambda ddp, optimizer: made.append(tarpon_torch.bounded_hook(ddp, bound=LONG, bounded_min=0))
    )
    made[0].finish()
    result["reports"] = [vars(report) for report in made[0].reports]
    return result


def plain(steps):
    return train(steps)


def _loop(ddp, optimizer, steps, before_step):
    data = batches(dist.get_rank())
    for step in range(steps):
        before_step(step)
        inputs, labels = next(data)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()


def _ddp():
    ddp = DistributedDataParallel(small_model(), bucket_cap_mb=0.05, broadcast_buffers=False)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)


def strayed():
    """Rank 1's model is changed behind the others' backs: found, and mended."""
    ddp, optimizer = _ddp()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=LONG, bounded_min=0, compare_every=5)

    def before(step):
        if step == 7 and dist.get_rank() == 1:
            with torch.no_grad():
                next(ddp.parameters()).add_(1)

    _loop(ddp, optimizer, 20, before)
    result = summary(ddp.module)
    result["reports"] = [vars(report) for report in hook.reports]
    hook.finish()
    return result


def skipped():
    """A step whose gradients hold NaN on one rank is applied on none."""
    ddp, optimizer = _ddp()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bounded_min=0)
    before = digest(ddp.module)
    loss = ddp(torch.randn(4, 64)).sum()
    (loss * float("nan") if dist.get_rank() == 1 else loss).backward()
    optimizer.step()
    result = {"same": digest(ddp.module) == before, "decision": hook.reports[-1].decision}
    hook.finish()
    return result


def without_a_number():
    """A step whose exact gradients hold NaN on one rank is applied on none."""
    model = torch.nn.Linear(8, 8).double()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    hook = tarpon_torch.bounded_hook(ddp, optimizer)
    before = digest(model)
    loss = ddp(torch.randn(4, 8).double()).sum()
    (loss * float("nan") if dist.get_rank() == 1 else loss).backward()
    optimizer.step()
    result = {"same": digest(model) == before, "decision": hook.reports[-1].decision}
    hook.finish()
    return result


def accumulated(steps):
    """Two backward passes before each step."""
    ddp, optimizer = _ddp()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=LONG, compare_every=4)
    data = batches(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            inputs, labels = next(data)
            torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()
    result = summary(ddp.module)
    result["reports"] = [vars(report) for report in hook.reports]
    result["step"] = hook.step
    hook.finish()
    return result


def sparse(bounded):
    """Gradients of an embedding, which Tarpon leaves to the group."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Embedding(50, 8, sparse=True), torch.nn.Linear(8, 4))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    hook = tarpon_torch.bounded_hook(ddp, optimizer) if bounded else None
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        ddp(torch.randint(0, 50, (6,))).square().sum().backward()
        optimizer.step()
    if hook is not None:
        hook.finish()
    return summary(model)


def refused():
    texts = []
    ddp, optimizer = _ddp()
    for wrong in (torch.optim.LBFGS(ddp.parameters()), optimizer):
        own_step = wrong.step
        try:
            tarpon_torch.bounded_hook(ddp, wrong).finish()
            tarpon_torch.bounded_hook(ddp, wrong)  # a second hook, which DDP refuses
        except RuntimeError as error:
            texts.append(str(error))
        assert wrong.step == own_step, "the optimizer's step() is not its own"
    return texts


def left(steps):
    """Rank 1 leaves in the middle, as by an exception. What the others report, or their error."""
    ddp, optimizer = _ddp()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=1.0, compare_every=10)
    mine = dist.get_rank()
    try:
        _loop(ddp, optimizer, 20 if mine == 1 else steps, lambda step: None)
        hook.compare() if mine != 1 else None
    except tarpon_torch.AloneError as error:
        return str(error)
    finally:
        hook.finish()
    result = summary(ddp.module)
    result["reports"] = [vars(report) for report in hook.reports]
    return result


def ends_without_it(steps):
    """Rank 2 stands still for so long that the others end without it."""
    ddp, optimizer = _ddp()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=0.5, deadline=2.0)

    def before(step):
        if step == steps - 10 and dist.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGSTOP)

    try:
        _loop(ddp, optimizer, steps, before)
    except tarpon_torch.AloneError as error:
        return str(error)
    finally:
        hook.finish()
    return digest(ddp.module)


def two_deaths(steps):
    """Rank 1 dies, then rank 2."""
    ddp, optimizer = _ddp()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=1.0)
    dies = {1: 10, 2: 20}.get(dist.get_rank())

    def before(step):
        if step == dies:
            os.kill(os.getpid(), signal.SIGKILL)

    _loop(ddp, optimizer, steps, before)
    result = summary(ddp.module)
    result["reports"] = [vars(report) for report in hook.reports]
    hook.finish()
    return result


def killed(steps):
    """Rank 1 dies in the middle."""
    ddp, optimizer = _ddp()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=1.0, compare_every=10)

    def before(step):
        if step == 20 and hook.communicator.world_size > 1 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    _loop(ddp, optimizer, steps, before)
    equal = hook.compare().equal
    result = summary(ddp.module)
    result["reports"] = [vars(report) for report in hook.reports]
    result["equal"] = equal
    hook.finish()
    sys.stdout.flush()
    return result


def stopped(steps, pause, **options):
    """Rank 2 stands still in the middle, until a signal from outside."""
    ddp, optimizer = _ddp()
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

    _loop(ddp, optimizer, steps, before)
    equal = hook.compare().equal
    result = summary(ddp.module)
    result["reports"] = [vars(report) for report in hook.reports]
    result["longest"] = longest
    result["equal"] = equal
    hook.finish()
    return result


def returning(steps, pause, stops=2, **options):
    """A rank stands still for so long that it cannot catch up call by call; it comes back."""
    ddp, optimizer = _ddp()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.9)
    hook = tarpon_torch.bounded_hook(
        ddp, optimizer, state=[schedule], bound=1.0, bounded_min=0, **options
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
    result["reports"] = [vars(report) for report in hook.reports]
    result["equal"] = equal
    result["turns"] = schedule.last_epoch
    hook.finish()
    return result


def _same_digests(results):
    assert all(one["digest"] == results[0]["digest"] for one in results), "models differ"


def test_like_gloo():
    """On a quiet network nothing is lost, and the model is that of stock Gloo within rounding."""
    for function in ("trained", "trained_without_optimizer"):
        ours = ranks.run(function, 3, {"steps": 30}, backend="gloo")
        stock = ranks.run("plain", 3, {"steps": 30}, backend="gloo")
        _same_digests(ours)
        apart = max(abs(a - b) for a, b in zip(ours[0]["sums"], stock[0]["sums"]))
        assert apart < 1e-3, apart
        for one in ours:
            assert [report["step"] for report in one["reports"]] == list(range(30))
            assert all(report["decision"] == "apply" for report in one["reports"])
            # DDP has one bucket until it has seen the order of the gradients.
            assert all(report["calls"] > 1 for report in one["reports"][1:])


def test_log():
    with ranks.directory() as directory:
        log = os.path.join(directory, "log")
        ranks.run("trained", 2, {"steps": 5, "log": log}, backend="gloo")
        lines = [json.loads(line) for line in open(log, encoding="utf-8")]
    assert len(lines) == 10 and lines[0]["bytes"] > 0, lines


def test_strayed():
    results = ranks.run("strayed", 3, backend="gloo")
    _same_digests(results)
    compared = [r for r in results[0]["reports"] if r["replicas_equal"] is not None]
    assert [r["replicas_equal"] for r in compared] == [True, True, False, True], compared
    assert [r["resynced"] for r in compared] == [False, False, True, False], compared
    assert compared[2]["distance"] > 0.1, compared


def test_skipped():
    for function in ("skipped", "without_a_number"):
        for one in ranks.run(function, 2, backend="gloo"):
            assert one == {"same": True, "decision": "skip"}, (function, one)


def test_accumulated():
    results = ranks.run("accumulated", 2, {"steps": 10}, backend="gloo")
    _same_digests(results)
    for one in results:
        assert [report["step"] for report in one["reports"]] == list(range(1, 20, 2)), one
        assert one["step"] == 20
        compared = [r["step"] for r in one["reports"] if r["replicas_equal"] is not None]
        assert compared == [1, 5, 9, 13, 17], compared
        assert all(report["calls"] == 4 for report in one["reports"][2:]), one["reports"]


def test_sparse():
    ours = ranks.run("sparse", 2, {"bounded": True}, backend="gloo")
    stock = ranks.run("sparse", 2, {"bounded": False}, backend="gloo")
    _same_digests(ours)
    apart = max(abs(a - b) for a, b in zip(ours[0]["sums"], stock[0]["sums"]))
    assert apart < 1e-4, apart


def test_refused():
    for texts in ranks.run("refused", 2, backend="gloo"):
        assert len(texts) == 2 and "LBFGS" in texts[0], texts


def test_killed():
    """The others leave it behind, and compare their models again."""
    for world in (2, 4):
        results = ranks.run("killed", world, {"steps": 60}, backend="gloo", killed=(1,))
        survivors = [one for one in results if one is not None]
        assert len(survivors) == world - 1
        _same_digests(survivors)
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
    _same_digests(survivors)
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
    _same_digests(survivors)
    for one in survivors:
        details = [report["detail"] for report in one["reports"] if report["detail"]]
        assert len(details) == 2, details
        assert "3 ranks; rank 1 is dead" in details[0], details
        assert "2 ranks; rank 2 is dead" in details[1], details
        late = {rank for report in one["reports"][15:] for rank in report["late_ranks"]}
        assert late <= {2}, late


def waking(seconds, rank=2):
    """Lets a rank run again, `seconds` after it has stopped itself."""

    def wake(processes):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with open(f"/proc/{processes[rank].pid}/stat", encoding="ascii") as stat:
                if stat.read().rsplit(")", 1)[1].split()[0] == "T":
                    break
            time.sleep(0.05)
        time.sleep(seconds)
        processes[rank].send_signal(signal.SIGCONT)

    return wake


def test_stopped():
    """The others go on within the bound; the stopped rank ends with their parameters."""
    # Without a bound, all buckets of this model have a tenth of the deadline.
    for options in ({"bound": 1.0, "bounded_min": 0}, {"deadline": 10.0}):
        results = ranks.run(
            "stopped", 4, {"steps": 80, "pause": 0.1, **options}, backend="gloo", signals=waking(3)
        )
        _same_digests(results)
        others = [results[rank] for rank in (0, 1, 3)]
        for one in others:
            assert one["equal"], one["reports"][-3:]
            assert any(2 in report["late_ranks"] for report in one["reports"]), "it is not named"
            assert one["longest"] < 2.5, one["longest"]


def _returns(seconds, steps, stops=2, **options):
    """It takes the state of the others at a step boundary, and all end with one model."""
    results = ranks.run(
        "returning",
        4,
        {"steps": steps, "stops": stops, **options},
        backend="gloo",
        signals=waking(seconds, stops),
    )
    _same_digests(results)
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
    _returns(8, 300, pause=0.03)


FUNCTIONS = {
    function.__name__: function
    for function in (
        trained,
        trained_without_optimizer,
        plain,
        strayed,
        skipped,
        without_a_number,
        accumulated,
        sparse,
        refused,
        killed,
        left,
        ends_without_it,
        two_deaths,
        stopped,
        returning,
    )
}
TESTS = {
    "like_gloo": test_like_gloo,
    "log": test_log,
    "strayed": test_strayed,
    "skipped": test_skipped,
    "accumulated": test_accumulated,
    "sparse": test_sparse,
    "refused": test_refused,
    "killed": test_killed,
    "left": test_left,
    "ends_without_it": test_ends_without_it,
    "two_deaths": test_two_deaths,
    "stopped": test_stopped,
    "decider": test_decider,
    "evicted": test_evicted,
    "far_behind": test_far_behind,
}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
