"""A small model, and training on made data, the same on every start."""

import hashlib

import ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def small_model():
    """1.8 MB of parameters: two buckets from the second step on."""
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 640),
        torch.nn.ReLU(),
        torch.nn.Linear(640, 640),
        torch.nn.ReLU(),
        torch.nn.Linear(640, 10),
    )


def digest(model):
    state = hashlib.sha256()
    for parameter in model.parameters():
        state.update(parameter.detach().cpu().numpy().tobytes())
    return state.hexdigest()


def batches(rank):
    torch.manual_seed(100 + rank)
    while True:
        yield torch.randn(16, 64), torch.randint(0, 10, (16,))


def reports_of(hook):
    """For ranks.run(): as JSON has them."""
    return [vars(report) for report in hook.reports]


def summary(model):
    return {
        "digest": digest(model),
        "sums": [float(parameter.detach().double().sum()) for parameter in model.parameters()],
    }


def ddp_and_sgd():
    ddp = DistributedDataParallel(small_model(), bucket_cap_mb=0.05, broadcast_buffers=False)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)


def train_on(ddp, optimizer, steps, before_step=lambda step: None, applies=lambda step: True):
    """`applies`: whether this rank calls the optimizer's step()."""
    data = batches(dist.get_rank())
    for step in range(steps):
        before_step(step)
        inputs, labels = next(data)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
        if applies(step):
            optimizer.step()


def train(steps, hook=None):
    """Trains on this rank; `hook(ddp, optimizer)` may register one."""
    ddp, optimizer = ddp_and_sgd()
    if hook is not None:
        hook(ddp, optimizer)
    train_on(ddp, optimizer, steps)
    return summary(ddp.module)


def expect_same_digests(results):
    assert all(one["digest"] == results[0]["digest"] for one in results), "models differ"


def expect_like_gloo(steps, tolerance):
    """The backend against stock Gloo, by the calling program's function `training`: the same bits at
    2 ranks, sums of parameters within `tolerance` at 3 and 4."""
    for world in (2, 3, 4):
        ours = ranks.run("training", world, {"steps": steps})
        stock = ranks.run("training", world, {"steps": steps}, backend="gloo")
        expect_same_digests(ours)
        if world == 2:
            assert ours[0]["digest"] == stock[0]["digest"], "not the bits of Gloo"
        apart = max(abs(a - b) for a, b in zip(ours[0]["sums"], stock[0]["sums"]))
        assert apart < tolerance, apart
