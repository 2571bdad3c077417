"""The package with tensors of a GPU, which all ranks share: the backend, and the hook beside two others."""

import sys

import ranks
import torch
import torch.distributed as dist

if not torch.cuda.is_available():
    print("SKIP: PyTorch finds no GPU")
    sys.exit(0)
ranks.may_fork = False
torch.set_default_device("cuda")  # the functions below, of other tests, make their tensors there

import backend_test
import hook_members_test
import hook_test
from models import expect_like_gloo, expect_same_digests

SPIN = 200_000_000  # cycles of the GPU: 0.1 s and more


def streams():
    """A call starts with what the current stream still computes. It ends before work that is queued
    behind it, a later call's gradients too."""
    rank, world = dist.get_rank(), dist.get_world_size()
    wrong = []
    for turn in range(4):
        values = torch.zeros(1 << 10, 1 << 10)
        if turn % 2 == 1:
            values = values.t()  # not contiguous: copied once more
        later = torch.ones(1 << 20)
        torch.cuda._sleep(SPIN)
        values += rank + turn
        work = dist.all_reduce(values, async_op=True)
        torch.cuda._sleep(5 * SPIN)
        later += rank
        work_of_later = dist.all_reduce(later, async_op=True)
        behind = torch.cuda.Event()
        behind.record()
        work.wait()
        if behind.query():
            wrong.append([turn, "waited for the work behind it"])
        work_of_later.wait()
        expected = float(sum(range(world)) + world * turn)
        if not bool((values == expected).all()):
            wrong.append([turn, float(values[0][0]), expected])
        if not bool((later == world + sum(range(world))).all()):
            wrong.append([turn, "later", float(later[0])])
    return wrong


def sockets_only(rank):
    """NCCL refuses two ranks on one GPU unless they seem to be on two hosts."""
    return {
        "NCCL_HOSTID": f"host{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
    }


def test_types():
    for wrong in ranks.run("every_type", 2):
        assert wrong == [], wrong


def test_shapes():
    for wrong in ranks.run("shapes", 3):
        assert wrong == [], wrong


def test_streams():
    for wrong in ranks.run("streams", 2):
        assert wrong == [], wrong


def test_ddp():
    expect_like_gloo(steps=10, tolerance=1e-4)


def test_hook():
    hook_test.test_like_gloo()


def test_hook_over_nccl():
    """One line in a program that trains over NCCL: the model is what NCCL makes of it."""
    ours = ranks.run("trained", 2, {"steps": 10}, environment=sockets_only, backend="nccl")
    stock = ranks.run("plain", 2, {"steps": 10}, environment=sockets_only, backend="nccl")
    expect_same_digests(ours)
    apart = max(abs(a - b) for a, b in zip(ours[0]["sums"], stock[0]["sums"]))
    assert apart < 1e-3, apart


def test_evicted():
    """The model and the optimizer's state on the GPU come back with a rank that was evicted."""
    hook_members_test.test_evicted()


FUNCTIONS = {
    **backend_test.FUNCTIONS,
    **hook_test.FUNCTIONS,
    **hook_members_test.FUNCTIONS,
    "streams": streams,
}
TESTS = {
    "types": test_types,
    "shapes": test_shapes,
    "streams": test_streams,
    "ddp": test_ddp,
    "hook": test_hook,
    "hook_over_nccl": test_hook_over_nccl,
    "evicted": test_evicted,
}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
