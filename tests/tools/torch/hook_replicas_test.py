"""Models of the hook's ranks that differ: what is said of them, and how they become one."""

import sys
import warnings

import ranks
import torch
import torch.distributed as dist
from models import ddp_and_sgd, digest, expect_same_digests, reports_of, summary, train_on

import tarpon_torch
from tarpon_torch import replicas
from tarpon_torch.replica_check import pause_of

LONG = 5.0  # nothing is lost on loopback where a call has so much time


def strayed():
    """Rank 1's model is changed behind the others' backs: found, and mended."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=LONG, compare_every=5)

    def before(step):
        if step == 7 and dist.get_rank() == 1:
            with torch.no_grad():
                next(ddp.parameters()).add_(1)

    train_on(ddp, optimizer, 20, before)
    result = summary(ddp.module)
    result["reports"] = reports_of(hook)
    hook.finish()
    return result


def test_strayed():
    results = ranks.run("strayed", 3, backend="gloo")
    expect_same_digests(results)
    reports = results[0]["reports"]
    # Each step compares one of five parts; the first parameter is in the first one.
    assert [r["step"] for r in reports if not r["replicas_equal"]] == [10], reports
    assert [r["step"] for r in reports if r["resynced"]] == [10], reports
    assert reports[10]["distance"] > 0.1, reports[10]


def drifting():
    """Rank 1's model strays a little at each step: that is measured once in so many steps."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, bound=LONG, compare_every=5)

    def before(step):
        if dist.get_rank() == 1:
            with torch.no_grad():
                for parameter in ddp.parameters():
                    parameter.mul_(1 + 1e-6)

    train_on(ddp, optimizer, 12, before)
    result = reports_of(hook)
    hook.finish()
    return result


def test_parts():
    """All of the bytes have their turn, and all parts are measured while models drift."""
    tensors = [torch.arange(30_001, dtype=torch.float32), torch.arange(7), torch.ones(40_000).half()]
    for count in (1, 2, 3, 7):
        found = [replicas.part(tensors, number, count) for number in range(count)]
        flat = [b"".join(t.numpy().tobytes() for t in part) for part in found]
        assert b"".join(flat) == b"".join(t.numpy().tobytes() for t in tensors), count
    assert replicas.parts(tensors, 100) == 4 and replicas.parts(tensors, 2) == 2
    for count in range(1, 301):
        pause = pause_of(count)
        assert len({step * pause % count for step in range(count)}) == count, (count, pause)
        assert min(11, count) <= pause < 16, (count, pause)


def test_drifting():
    for reports in ranks.run("drifting", 2, backend="gloo"):
        assert all(r["replicas_equal"] is False for r in reports), reports
        assert [r["step"] for r in reports if r["distance"] > 0] == [0, 6], reports
        assert not any(r["resynced"] for r in reports), reports


def left_out(skips):
    """Rank 1 alone calls no step() at the steps of `skips`."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(
        ddp, optimizer, bound=2 * LONG, compare_every=4, largest_distance=0
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train_on(
            ddp, optimizer, 8, applies=lambda step: step not in skips or dist.get_rank() != 1
        )
    result = summary(ddp.module)
    result["reports"] = reports_of(hook)
    result["warned"] = [str(one.message) for one in caught if "optimizer.step()" in str(one.message)]
    hook.finish()
    return result


def exactly():
    """Models that differ by little: compare() leaves them so, unless it is told otherwise."""
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer)
    with torch.no_grad():
        next(ddp.parameters()).add_(1e-5 * dist.get_rank())
    found = [hook.compare(), hook.compare(largest_distance=0), hook.compare()]
    hook.finish()
    return {
        "equal": [one.equal for one in found],
        "resynced": [one.resynced for one in found],
        "digest": digest(ddp.module),
    }


class _Counter:
    """A part of the state that comes to hold something else than it did at registration."""

    def __init__(self):
        self.value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def state_refused():
    """What a resync says of a state with code, and of one that cannot be saved. Then it works again."""
    ddp, optimizer = ddp_and_sgd()
    counter = _Counter()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, state=[counter])
    said = []
    for value in (print, lambda: None, 7 + dist.get_rank()):
        counter.value = value
        with torch.no_grad():
            next(ddp.parameters()).add_(dist.get_rank())
        try:
            said.append(hook.compare().resynced)
        except tarpon_torch.TarponError as error:
            said.append(str(error))
    hook.finish()
    return [*said, counter.value]


def test_state_refused():
    for said in ranks.run("state_refused", 2, backend="gloo"):
        assert "holds builtins.print" in said[0] and "allow_pickle=True" in said[0], said
        assert "the rank that gives its state cannot save it" in said[1], said
        assert said[2:] == [True, 7], said


def test_left_out():
    """No rank says that models are equal which are not. The rank is named, and the next step compares."""
    _expect_found([4], at=5)
    _expect_found([4, 5], at=6)


def _expect_found(skips, at):
    results = ranks.run("left_out", 3, {"skips": skips}, backend="gloo")
    expect_same_digests(results)
    for rank, one in enumerate(results):
        found = {report["step"]: report["replicas_equal"] for report in one["reports"]}
        assert found[0] is True and found[at] is False, (rank, found)
        assert all(found.get(step) is None for step in skips), (rank, found)
        assert all(found[step] for step in range(at + 1, 8)), (rank, found)
        if rank != 1:
            unreported = {report["step"]: list(report["unreported"]) for report in one["reports"]}
            assert [step for step, missing in unreported.items() if missing == [1]] == skips, one
            assert len(one["warned"]) == 1 and "without rank 1" in one["warned"][0], one["warned"]


def test_exactly():
    results = ranks.run("exactly", 3, backend="gloo")
    expect_same_digests(results)
    for one in results:
        assert one["equal"] == [False, False, True] and one["resynced"] == [False, True, False], one


FUNCTIONS = {
    function.__name__: function for function in (strayed, drifting, left_out, exactly, state_refused)
}
TESTS = {
    "strayed": test_strayed,
    "parts": test_parts,
    "drifting": test_drifting,
    "left_out": test_left_out,
    "exactly": test_exactly,
    "state_refused": test_state_refused,
}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
