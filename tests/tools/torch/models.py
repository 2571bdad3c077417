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


def summary(model):
    return {
        "digest": digest(model),
        "sums": [float(parameter.detach().double().sum()) for parameter in model.parameters()],
    }


def train(steps, hook=None):
    """Trains on this rank; `hook(ddp, optimizer)` may register one."""
    ddp = DistributedDataParallel(small_model(), bucket_cap_mb=0.05, broadcast_buffers=False)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    if hook is not None:
        hook(ddp, optimizer)
    data = batches(dist.get_rank())
    for _ in range(steps):
        inputs, labels = next(data)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()
    return summary(ddp.module)


def expect_like_gloo(steps, tolerance):
    """The backend against stock Gloo, by the calling program's function `training`: the same bits at
    2 ranks, sums of parameters within `tolerance` at 3 and 4."""
    for world in (2, 3, 4):
        ours = ranks.run("training", world, {"steps": steps})
        stock = ranks.run("training", world, {"steps": steps}, backend="gloo")
        assert all(one["digest"] == ours[0]["digest"] for one in ours), "the ranks' models differ"
        if world == 2:
            assert ours[0]["digest"] == stock[0]["digest"], "not the bits of Gloo"
        apart = max(abs(a - b) for a, b in zip(ours[0]["sums"], stock[0]["sums"]))
        assert apart < tolerance, apart
