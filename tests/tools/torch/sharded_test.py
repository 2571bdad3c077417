"""Training with a part of the state on each rank, and other users of many collectives in PyTorch: the backend
"tarpon" beside stock Gloo."""

import sys

import ranks
import torch
import torch.distributed as dist
from models import batches, expect_same_digests, small_model, summary, train
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

STEPS = 5
MOST_APART = 1e-3  # of sums of parameters: Gloo adds in another order, and rounds float16 more often


def _steps(model, optimizer, steps=STEPS):
    data = batches(dist.get_rank())
    for _ in range(steps):
        inputs, labels = next(data)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def zero():
    """ZeroRedundancyOptimizer: each rank updates its part and broadcasts it."""
    model = DistributedDataParallel(small_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    _steps(model, optimizer)
    optimizer.consolidate_state_dict(to=0)
    state = len(optimizer.state_dict()["state"]) if dist.get_rank() == 0 else 0
    return {**summary(model.module), "state": state}


def power_sgd():
    """With one bucket: the callbacks of several buckets start calls in another order on each rank."""
    torch.manual_seed(7)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = DistributedDataParallel(layers)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    before = summary(layers)
    _steps(model, torch.optim.SGD(model.parameters(), lr=0.05))
    return [before, summary(layers)]


def fp16():
    return train(STEPS, lambda ddp, _: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook))


def joined():
    """Each rank has another number of batches."""
    model = DistributedDataParallel(small_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Join([model]):
        _steps(model, optimizer, STEPS + 2 * dist.get_rank())
    return summary(model.module)


def batch_norm():
    """Buffers, which DDP broadcasts at each step."""
    torch.manual_seed(7)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 10))
    model = DistributedDataParallel(layers, find_unused_parameters=True)
    _steps(model, torch.optim.SGD(model.parameters(), lr=0.05))
    return {**summary(layers), "mean": float(layers[1].running_mean.sum())}


def embedding():
    """Sparse gradients."""
    torch.manual_seed(7)
    layers = torch.nn.Sequential(torch.nn.EmbeddingBag(50, 16, sparse=True), torch.nn.Linear(16, 10))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randint(0, 50, (8, 4))).sum().backward()
        optimizer.step()
    return summary(layers)


def through_autograd():
    """torch.distributed.nn: collectives whose backward passes are collectives."""
    import torch.distributed.nn.functional as functional

    rank, world = dist.get_rank(), dist.get_world_size()
    own = torch.full((world, 2), float(rank + 1), requires_grad=True)
    loss = functional.all_reduce(own * 1).sum()
    loss = loss + functional.broadcast(own * 2, 0).sum()
    loss = loss + torch.cat(functional.all_gather(own * 3)).sum() * (rank + 1)
    parts = functional.all_to_all([torch.empty(2) for _ in range(world)], list((own * 4).unbind()))
    loss = loss + torch.stack(parts).sum() * (rank + 1)
    loss.backward()
    return {"digest": "", "sums": [float(loss), *own.grad.flatten().tolist()]}


def fully_sharded():
    """What FullyShardedDataParallel does in a step, of which PyTorch 1.13 runs the whole on GPUs alone: each
    rank holds a part of all parameters, gathers them in place, and gets its part of the gradients."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = small_model()
    parameters = list(model.parameters())
    flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
    flat = torch.nn.functional.pad(flat, (0, -len(flat) % world))
    size = len(flat) // world
    shard = flat[rank * size : (rank + 1) * size].clone()
    data = batches(rank)
    for _ in range(STEPS):
        whole = torch.empty_like(flat)
        whole[rank * size : (rank + 1) * size] = shard
        dist.all_gather_into_tensor(whole, whole[rank * size : (rank + 1) * size])
        torch.nn.utils.vector_to_parameters(whole, parameters)
        inputs, labels = next(data)
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        gradients = torch.zeros_like(flat)
        own = torch.cat([parameter.grad.flatten() for parameter in parameters])
        gradients[: len(own)] = own
        part = torch.empty(size)
        work = dist.reduce_scatter_tensor(part, gradients / world, async_op=True)
        work.wait()
        shard -= 0.05 * part
    whole = torch.empty_like(flat)
    dist.all_gather_into_tensor(whole, shard)
    torch.nn.utils.vector_to_parameters(whole, parameters)
    return summary(model)


def replicated():
    """fully_sharded() by other means."""
    model = DistributedDataParallel(small_model())
    _steps(model, torch.optim.SGD(model.parameters(), lr=0.05))
    return summary(model.module)


def _expect_alike(ours, theirs):
    for rank, (own, their) in enumerate(zip(ours, theirs)):
        assert own["digest"] == ours[0]["digest"], "models differ"
        apart = [abs(a - b) for a, b in zip(own["sums"], their["sums"])]
        assert max(apart, default=0.0) < MOST_APART, (rank, apart)
        others = {"digest", "sums"}
        for name in set(own) - others:
            assert abs(own[name] - their[name]) < MOST_APART, (rank, name, own[name], their[name])


def _like_gloo(name):
    for world in (2, 3):
        _expect_alike(ranks.run(name, world), ranks.run(name, world, backend="gloo"))


def test_fully_sharded():
    """Gloo of PyTorch 1.13 has no reduce_scatter: beside DDP."""
    for world in (2, 3):
        _expect_alike(ranks.run("fully_sharded", world), ranks.run("replicated", world))


def bounded_shards():
    """fully_sharded() with bounded gradients, and whether they were."""
    modes = set()
    group = dist.distributed_c10d._get_default_group()
    plain = group.reduce_scatter_tensor_coalesced

    def noting(*arguments):
        work = plain(*arguments)
        work.wait()
        modes.add(group.last_report.bounded)
        return work

    group.reduce_scatter_tensor_coalesced = noting
    return {**fully_sharded(), "bounded": [bool(mode) for mode in modes]}


def test_bounded_shards():
    """TARPON_MODE bounds reduce_scatter, too; nothing is late here."""
    bounded = {"TARPON_MODE": "bounded", "TARPON_BOUNDED_MIN": "1K", "TARPON_BOUND": "5s"}
    ours = ranks.run("bounded_shards", 3, environment=bounded)
    for own, their in zip(ours, ranks.run("replicated", 3)):
        assert own["bounded"] == [True], own["bounded"]
        apart = [abs(a - b) for a, b in zip(own["sums"], their["sums"])]
        assert max(apart) < MOST_APART, apart


def test_power_sgd():
    """All ranks have one model, which has learnt. With stock Gloo some of these ranks abort at their end."""
    for world in (2, 3):
        (before, _), *_ = results = ranks.run("power_sgd", world)
        expect_same_digests([after for _, after in results])
        assert before["digest"] != results[0][1]["digest"]


_LIKE_GLOO = (zero, fp16, joined, batch_norm, embedding, through_autograd)
FUNCTIONS = {
    function.__name__: function
    for function in (*_LIKE_GLOO, power_sgd, fully_sharded, bounded_shards, replicated)
}
TESTS = {
    **{
        function.__name__: (lambda name=function.__name__: _like_gloo(name)) for function in _LIKE_GLOO
    },
    "power_sgd": test_power_sgd,
    "fully_sharded": test_fully_sharded,
    "bounded_shards": test_bounded_shards,
}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
