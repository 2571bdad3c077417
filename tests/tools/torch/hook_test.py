"""The hook of bounded gradients beside Gloo: averages, reports and verdicts."""

import json
import logging
import os
import signal
import sys
import threading
import time
import warnings

import ranks
import torch
import torch.distributed as dist
from models import (
    batches,
    ddp_and_sgd,
    digest,
    expect_same_digests,
    reports_of,
    summary,
    train,
    train_on,
)
from torch.nn.parallel import DistributedDataParallel

import tarpon_torch
from tarpon_torch.loss_watch import LossWatch
from tarpon_torch.step_report import StepReport

# Nothing is lost on loopback where a call has so much time.
LONG = 5.0


def trained(steps, **options):
    made = []

    def register(ddp, optimizer):
        made.append(tarpon_torch.bounded_hook(ddp, optimizer, bound=LONG, **options))

    result = train(steps, register)
    hook = made[0]
    result["reports"] = reports_of(hook)
    hook.finish()
    return result


def trained_without_optimizer(steps):
    made = []
    result = train(
        steps, lambda ddp, optimizer: made.append(tarpon_torch.bounded_hook(ddp, bound=LONG))
    )
    made[0].finish()
    result["reports"] = reports_of(made[0])
    return result


def plain(steps):
    return train(steps)


def skipped():
    """A step whose gradients hold NaN on one rank is applied on none."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer)
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
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=LONG, compare_every=4)
    data = batches(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            inputs, labels = next(data)
            torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()
    result = summary(ddp.module)
    result["reports"] = reports_of(hook)
    result["step"] = hook.step
    hook.finish()
    return result


def in_two_groups():
    """Ranks 0 and 1 train one model, ranks 2 and 3 another. The gradient of a rank is its number."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rank = dist.get_rank()
    model = torch.nn.Linear(1, 1, bias=False)
    ddp = DistributedDataParallel(model, process_group=groups[rank // 2])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    hook = tarpon_torch.bounded_hook(ddp, optimizer)
    (float(rank) * ddp(torch.ones(1, 1))).sum().backward()
    gradient = float(model.weight.grad)
    optimizer.step()
    ranks_of_hook = len(hook.ranks)
    hook.finish()
    return [gradient, ranks_of_hook]


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


def scheduled(when):
    """A scheduler that is made before the hook, or after it. What PyTorch warns of."""
    ddp, optimizer = ddp_and_sgd()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if when == "before":
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=LONG, state=[])
        if when == "after":
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for _ in range(3):
            train_on(ddp, optimizer, 1)
            scheduler.step()
        steps = len(hook.reports)
        hook.finish()
        before = digest(ddp.module)
        optimizer.step()  # no step of the hook's any more
        scheduler.step()
    texts = [str(one.message) for one in caught if "lr_scheduler" in str(one.message)]
    return {"warned": texts, "steps": steps, "applied": digest(ddp.module) != before}


def ended():
    """A backward pass after finish(): the error."""
    ddp, optimizer = ddp_and_sgd()
    tarpon_torch.bounded_hook(ddp, optimizer).finish()
    try:
        train_on(ddp, optimizer, 1)
    except RuntimeError as error:
        return str(error)
    return None


def restarted():
    """The hook's step goes on where that of an earlier job ended."""
    numbers = []
    for steps in (3, 2):
        ddp, optimizer = ddp_and_sgd()
        hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=LONG, compare_every=4)
        if numbers:
            hook.load_state_dict(saved)
        train_on(ddp, optimizer, steps)
        saved = hook.state_dict()
        numbers += [(report.step, report.replicas_equal) for report in hook.reports]
        hook.finish()
    return numbers


def _seconds_to_interrupt(function):
    """From a SIGINT, while `function` runs, to its KeyboardInterrupt."""
    sent = []

    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(1.0, send).start()
    try:
        function()
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]
    return None


def interrupted_start():
    """Rank 0 is interrupted while it waits for rank 1; rank 1 gets an error."""
    ddp, optimizer = ddp_and_sgd()
    if dist.get_rank() == 0:
        return _seconds_to_interrupt(lambda: tarpon_torch.bounded_hook(ddp, optimizer))
    time.sleep(15)
    try:
        tarpon_torch.bounded_hook(ddp, optimizer)
    except RuntimeError as error:  # with PyTorch 1 the store's: it has ended with rank 0
        return str(error)


def interrupted_step():
    """Rank 0 is interrupted while its step() waits for the report of rank 1."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=LONG, deadline=40.0)
    result = None
    torch.nn.functional.cross_entropy(ddp(torch.ones(2, 64)), torch.tensor([1, 2])).backward()
    if dist.get_rank() == 0:
        result = _seconds_to_interrupt(optimizer.step)
    else:
        time.sleep(15)
        optimizer.step()
    dist.barrier()
    hook.finish()
    return result


def interrupted_attach():
    """Ctrl-C comes when everything is made but the optimizer's new step()."""
    ddp, optimizer = ddp_and_sgd()
    original, step = tarpon_torch.hook.BoundedHook.attach, optimizer.step

    def attach(hook):
        raise KeyboardInterrupt

    tarpon_torch.hook.BoundedHook.attach = attach
    try:
        tarpon_torch.bounded_hook(ddp, optimizer)
        return "not interrupted"
    except KeyboardInterrupt:
        pass
    tarpon_torch.hook.BoundedHook.attach = original
    unchanged = optimizer.step == step
    hook = tarpon_torch.bounded_hook(ddp, optimizer)  # DDP takes one hook in its life
    hook.finish()
    return unchanged


def interrupted_steps(steps):
    """A signal comes to rank 1 at several places of its step(). It catches what that raises, and trains on."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=1.0, deadline=4.0)
    data = batches(dist.get_rank())
    errors, inside, most_inside = [], [], 0

    def once(owner, name, interrupt):
        """`owner` does it as ever, after the first time."""
        original = getattr(owner, name)

        def first(*arguments, **options):
            setattr(owner, name, original)
            interrupt()
            return original(*arguments, **options)

        setattr(owner, name, first)

    def kill():  # the waits run on a thread of their own, and signals come to the main one
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)

    def expire():
        raise TimeoutError("for the test")

    def fail():  # as a collective of an optimizer
        raise tarpon_torch.TarponError("for the test")

    def rejoin(original, *arguments):
        nonlocal most_inside
        inside.append(1)
        most_inside = max(most_inside, len(inside))
        try:
            return original(*arguments)
        finally:
            inside.pop()

    library = tarpon_torch.library.library()
    whole = library.tarpon_rejoin
    library.tarpon_rejoin = lambda *arguments: rejoin(whole, *arguments)
    places = {
        3: lambda: once(hook.communicator, "agree", kill),
        10: lambda: once(hook._replaced, "apply", expire),
        17: lambda: once(hook._check, "resync_from_best", expire),
        31: lambda: once(hook._replaced, "apply", fail),
        24: lambda: (once(hook._replaced, "apply", expire), once(hook.communicator, "rejoin", kill)),
    }
    while hook.step < steps:
        if dist.get_rank() == 1:
            for at in [at for at in places if hook.step >= at]:
                places.pop(at)()
                if at == 17:
                    once(hook._replaced, "apply", expire)
        inputs, labels = next(data)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
        try:
            optimizer.step()
        except (KeyboardInterrupt, TimeoutError, RuntimeError) as error:
            errors.append(type(error).__name__)
    result = [errors, most_inside, hook.compare().equal]
    hook.finish()
    return result


def test_like_gloo():
    """On a quiet network nothing is lost, and the model is that of stock Gloo within rounding."""
    for function in ("trained", "trained_without_optimizer"):
        ours = ranks.run(function, 3, {"steps": 30}, backend="gloo")
        stock = ranks.run("plain", 3, {"steps": 30}, backend="gloo")
        expect_same_digests(ours)
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
        ranks.run("trained", 2, {"steps": 3, "log": log + "-{rank}"}, backend="gloo")
        for rank in range(2):
            own = [json.loads(line) for line in open(f"{log}-{rank}", encoding="utf-8")]
            assert [line["rank"] for line in own] == [rank] * 3, own
    assert len(lines) == 10 and lines[0]["bytes"] > 0, lines
    of_ranks = sorted((line["rank"], line["step"]) for line in lines)
    assert of_ranks == [(rank, step) for rank in range(2) for step in range(5)], lines
    assert all(abs(time.time() - line["time"]) < 1000 for line in lines), lines


class _Targets:
    """One that cannot be copied, as a trainer of the user's may be."""

    def __init__(self):
        self.lock = threading.Lock()

    def of_step(self, step):
        return {0: 0.02, 1: 0.02, 2: 0.01, 3: 2}[step]


def targets_in_turn():
    """The loss target is a function of the step."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, loss_target=_Targets().of_step)
    given = []
    hook.communicator.set_loss_target = given.append
    try:
        train_on(ddp, optimizer, 4)
    except RuntimeError as error:  # of DDP, which ran the hook
        given.append(str(error))
    hook.finish()
    return given


def test_targets_in_turn():
    for given in ranks.run("targets_in_turn", 2, backend="gloo"):
        assert given[0] == 0.01 and "loss_target(3)=2: give a share above 0" in given[1], given


def test_skipped():
    for function in ("skipped", "without_a_number"):
        for one in ranks.run(function, 2, backend="gloo"):
            assert one == {"same": True, "decision": "skip"}, (function, one)


def test_accumulated():
    results = ranks.run("accumulated", 2, {"steps": 10}, backend="gloo")
    expect_same_digests(results)
    for one in results:
        assert [report["step"] for report in one["reports"]] == list(range(1, 20, 2)), one
        assert one["step"] == 20
        assert all(report["replicas_equal"] for report in one["reports"]), one["reports"]
        assert all(report["calls"] == 4 for report in one["reports"][2:]), one["reports"]


def test_model_group():
    """The gradients are averaged over the model's own process group."""
    assert ranks.run("in_two_groups", 4, backend="gloo") == [[0.5, 2], [0.5, 2], [2.5, 2], [2.5, 2]]


def test_watch():
    """A warning a minute, with the figures, and each report for those that want it."""
    now = [0.0]
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("tarpon")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)

    def warnings_of(steps, target=0.001, **fields):
        records.clear()
        for _ in range(steps):
            watch.take(StepReport(step=7, rank=3, **fields), target)
        return [one.getMessage() for one in records if one.levelno == logging.WARNING]

    watch = LossWatch(lambda: now[0])
    assert warnings_of(200, lost_in_network=0.0019) == []
    assert len([one for one in records if one.levelno == logging.DEBUG]) == 200
    (said,) = warnings_of(200, lost_in_network=0.004)
    assert said.startswith("tarpon: rank 3, step 7: ") and "lost 0.2" in said, said
    assert "the target is 0.1 %" in said, said
    now[0] = 59.0
    assert warnings_of(50, lost_in_network=0.004) == []
    now[0] = 61.0
    assert len(warnings_of(1)) == 1
    watch = LossWatch(lambda: now[0])
    assert warnings_of(100, None, lost_in_network=0.5) == [], "a given bound has no target"
    (said,) = warnings_of(2, None, decision="skip", detail="lost 7 %")
    assert "2 of the latest 102 steps were skipped" in said, said
    assert [one.getMessage() for one in records if one.levelno == logging.INFO] == [
        "step 7: skip: lost 7 %"
    ] * 2
    records.clear()
    watch.take(StepReport(step=8, unreported=(1, 3), late_ranks=(3,)), None)
    watch.take(StepReport(step=9, distance=0.0018, resynced=True), None)
    assert [one.getMessage() for one in records if one.levelno == logging.INFO] == [
        "step 8: decided without a report of rank 1",
        "step 9: the models differed by 0.0018, and were made equal",
    ]


def test_sparse():
    ours = ranks.run("sparse", 2, {"bounded": True}, backend="gloo")
    stock = ranks.run("sparse", 2, {"bounded": False}, backend="gloo")
    expect_same_digests(ours)
    apart = max(abs(a - b) for a, b in zip(ours[0]["sums"], stock[0]["sums"]))
    assert apart < 1e-4, apart


def test_scheduled():
    for when in ("before", "after"):
        for one in ranks.run("scheduled", 2, {"when": when}, backend="gloo"):
            assert one == {"warned": [], "steps": 3, "applied": True}, (when, one)


def test_ended():
    for text in ranks.run("ended", 1, backend="gloo"):
        assert text is not None and "finish() has ended this hook" in text, text


def test_restarted():
    for numbers in ranks.run("restarted", 2, backend="gloo"):
        assert numbers == [[step, True] for step in range(5)], numbers


def test_interrupted():
    """Ctrl-C ends the hook's own waits, of which the shortest here is 14 s."""
    waited, refusal = ranks.run("interrupted_start", 2, backend="gloo")
    assert waited is not None and waited < 7, waited
    assert refusal, "rank 1 has started alone"
    assert ranks.run("interrupted_attach", 1, backend="gloo") == [True]
    waited, _ = ranks.run("interrupted_step", 2, backend="gloo")
    assert waited is not None and waited < 7, waited


def test_interrupted_steps():
    """The rank meets the others again, once, and all have one model."""
    there, here = ranks.run("interrupted_steps", 2, {"steps": 40}, backend="gloo")
    assert there == [[], 1, True], there
    assert here[1:] == [1, True], here
    expected = ["KeyboardInterrupt"] * 2 + ["TarponError"] + ["TimeoutError"] * 4
    assert sorted(here[0]) == expected, here


FUNCTIONS = {
    function.__name__: function
    for function in (
        trained,
        targets_in_turn,
        trained_without_optimizer,
        plain,
        skipped,
        without_a_number,
        accumulated,
        in_two_groups,
        sparse,
        scheduled,
        ended,
        restarted,
        interrupted_start,
        interrupted_step,
        interrupted_attach,
        interrupted_steps,
    )
}
TESTS = {
    "like_gloo": test_like_gloo,
    "log": test_log,
    "targets_in_turn": test_targets_in_turn,
    "skipped": test_skipped,
    "accumulated": test_accumulated,
    "model_group": test_model_group,
    "watch": test_watch,
    "sparse": test_sparse,
    "scheduled": test_scheduled,
    "ended": test_ended,
    "restarted": test_restarted,
    "interrupted": test_interrupted,
    "interrupted_steps": test_interrupted_steps,
}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
