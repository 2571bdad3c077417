"""The backend with PyTorch 2: DDP, and what 1.13 does not have. Run by torch2.sh."""

import datetime
import shutil
import sys
import tempfile
import time
import warnings

import ranks
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from models import batches, expect_like_gloo, small_model, train
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def operations():
    """Of torch 2."""
    wrong = []
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(world)))
    total = sum(range(1, world + 1))
    value = functional.all_reduce(torch.full((9,), float(rank + 1)), "sum", group)
    if not bool((value == total).all()):
        wrong.append("functional all_reduce")
    value = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, group)
    if [int(one) for one in value] != [each for each in range(world) for _ in range(2)]:
        wrong.append("functional all_gather_tensor")
    gathered = torch.zeros(world)
    dist.all_gather_into_tensor(gathered, torch.tensor([float(rank)]), group=group)
    if [int(one) for one in gathered] != list(range(world)):
        wrong.append("all_gather_into_tensor")
    value = functional.reduce_scatter_tensor(torch.arange(2.0 * world), "sum", 0, group)
    if [int(one) for one in value] != [2 * rank * world, (2 * rank + 1) * world]:
        wrong.append("functional reduce_scatter_tensor")
    value = functional.all_to_all_single(torch.arange(1.0 * world) + rank, None, None, group)
    if [int(one) for one in value] != [rank + each for each in range(world)]:
        wrong.append("functional all_to_all_single")
    value = functional.broadcast(torch.full((3,), float(rank)), 1, group)
    if not bool((value == 1).all()):
        wrong.append("functional broadcast")
    coalesced = [torch.full((size,), float(rank)) for size in (1, 3)]
    for value in functional.all_reduce_coalesced(coalesced, "max", group):
        if not bool((value == world - 1).all()):
            wrong.append("functional all_reduce_coalesced")
    sent = ["text", {"rank": rank}]
    if rank == 0:
        dist.send_object_list(sent, 1)
    elif rank == 1:
        received = [None, None]
        dist.recv_object_list(received, 0)
        if received != ["text", {"rank": 0}]:
            wrong.append("send_object_list")
    if group._get_backend(torch.device("cpu")) is not group or group.supports_splitting:
        wrong.append("backend")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch changes timeouts of Gloo and NCCL alone
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=60), group)
    for name in ("uint16", "uint32", "uint64"):
        # Above the largest number of a signed type of this size.
        value = torch.tensor([2 ** (int(name[4:]) - 1) + rank], dtype=getattr(torch, name))
        dist.all_reduce(value, dist.ReduceOp.MAX, group=group)
        if int(value.numpy()[0]) != 2 ** (int(name[4:]) - 1) + world - 1:
            wrong.append(name)
    coalescing = dist.distributed_c10d._coalescing_manager
    after, before = (rank + 1) % world, (rank - 1) % world
    received = torch.zeros(2)
    with coalescing(group, torch.device("cpu"), async_ops=True) as batch:  # as of CUDA tensors
        dist.isend(torch.full((2,), float(rank)), after, group=group)
        dist.irecv(received, before, group=group)
    batch.wait()
    if not bool((received == before).all()):
        wrong.append("batch")
    with coalescing(group, torch.device("cpu"), async_ops=True) as batch:
        group.send([None], after, 0)
        dist.irecv(received, before, group=group)
    try:
        batch.wait()
        wrong.append("batch that fails")
    except RuntimeError:
        pass
    if not group.group_name:
        wrong.append("name")
    dist.destroy_process_group(group)
    return wrong


def training(steps):
    return train(steps)


def fully_sharded():
    """The whole model after training in parts. The newer fully_shard() of 2.6 needs a GPU."""
    model = FullyShardedDataParallel(small_model(), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = batches(dist.get_rank())
    for _ in range(5):
        inputs, labels = next(data)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model):
        return [float(each.detach().double().sum()) for each in model.parameters()]


def bounded_shards(kind):
    """The reports of ten steps with bounded gradients, and the model then. `kind`: what happens in step 4; or
    "plain": the gradients are not bounded."""
    import tarpon_torch

    rank = dist.get_rank()
    model = FullyShardedDataParallel(small_model(), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    bound = 0.05 if kind == "late" else 5.0
    hook = None if kind == "plain" else tarpon_torch.bounded_fsdp_hook(model, optimizer, bound=bound)
    data = batches(rank)
    for step in range(10):
        inputs, labels = next(data)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        if step == 4 and rank == 1 and kind == "spoilt":
            loss = loss * float("nan")
        if step == 4 and rank == 1 and kind == "late":
            time.sleep(0.5)  # after the parameters have been gathered, which waits for all ranks
        loss.backward()
        before = float(next(model.parameters()).detach().double().sum())
        optimizer.step()
        after = float(next(model.parameters()).detach().double().sum())
        if step == 4 and kind == "spoilt":
            assert before == after
    reports = []
    if hook is not None:
        reports = [vars(report) for report in hook.reports]
        hook.finish()
    with FullyShardedDataParallel.summon_full_params(model):
        return reports, [float(each.detach().double().sum()) for each in model.parameters()]


def wrong_model():
    import tarpon_torch

    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    try:
        tarpon_torch.bounded_fsdp_hook(model, optimizer)
    except tarpon_torch.TarponError as error:
        return str(error)
    return ""


def tensors_of_a_mesh():
    """DTensor in a mesh of two dimensions."""
    wrong = []
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    whole = torch.arange(64.0).reshape(8, 8)
    tensor = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    if not torch.equal(tensor.full_tensor(), whole):
        wrong.append("gathered")
    turned = tensor.redistribute(mesh, [Shard(1), Replicate()])
    if not torch.equal(turned.full_tensor(), whole):
        wrong.append("redistributed")
    if not torch.allclose((tensor @ turned).full_tensor(), whole @ whole):
        wrong.append("product")
    return wrong


def saved():
    """A checkpoint that all ranks write and read."""
    rank = dist.get_rank()
    place = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(place, 0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {"whole": torch.arange(9.0), "part": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}
    checkpoint.save(state, checkpoint_id=place[0])
    fresh = {"whole": torch.zeros(9), "part": distribute_tensor(torch.zeros(8), mesh, [Shard(0)])}
    checkpoint.load(fresh, checkpoint_id=place[0])
    same = torch.equal(fresh["whole"], state["whole"])
    same &= torch.equal(fresh["part"].full_tensor(), torch.arange(8.0))
    dist.barrier()
    if rank == 0:
        shutil.rmtree(place[0])
    return bool(same)


def test_operations():
    for wrong in ranks.run("operations", 3):
        assert wrong == [], wrong


def test_registration():
    """Names its devices; torch 2 warns otherwise."""
    for name in [each for each in sys.modules if each.startswith("tarpon_torch")]:
        del sys.modules[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        import tarpon_torch

        tarpon_torch.c10d.register()
    assert dist.Backend.backend_capability["tarpon"] == ["cpu", "cuda"]


def test_ddp():
    """Bit-identical to Gloo at 2 ranks, equal within rounding at 3 and 4.

    Ten steps: from step 15 on the model of these data multiplies a relative difference of 1e-7 by
    100,000, with stock Gloo too.
    """
    expect_like_gloo(steps=10, tolerance=1e-5)


def test_fully_sharded():
    """Beside stock Gloo."""
    for world in (2, 3):
        ours = ranks.run("fully_sharded", world)
        stock = ranks.run("fully_sharded", world, backend="gloo")
        for own, theirs in zip(ours, stock):
            apart = max(abs(a - b) for a, b in zip(own, theirs))
            assert apart < 1e-4, (world, apart)


def test_bounded_shards():
    """Like the exact gradients where all ranks are in time; a step with NaN is skipped by all ranks."""
    stock = ranks.run("bounded_shards", 3, {"kind": "plain"}, backend="gloo")
    ours = ranks.run("bounded_shards", 3, {"kind": "whole"})
    for (reports, own), (_, theirs) in zip(ours, stock):
        assert [each["decision"] for each in reports] == 10 * ["apply"]
        assert max(each["lost_fraction"] for each in reports) == 0
        assert max(abs(a - b) for a, b in zip(own, theirs)) < 1e-4
    for reports, _ in ranks.run("bounded_shards", 3, {"kind": "spoilt"}):
        assert [each["step"] for each in reports if each["decision"] == "skip"] == [4], reports


def test_late_shards():
    """A rank late by ten bounds costs its gradients of a step, and training goes on."""
    results = ranks.run("bounded_shards", 3, {"kind": "late"})
    for rank, (reports, sums) in enumerate(results):
        assert [each["decision"] for each in reports] == 10 * ["apply"], reports
        assert all(abs(one) < 1e6 for one in sums)
        if rank != 1:
            assert 1 in reports[4]["late_ranks"], reports[4]


def test_wrong_model():
    for said in ranks.run("wrong_model", 2):
        assert "model=Sequential: give the outermost FullyShardedDataParallel" in said, said


def test_mesh():
    for wrong in ranks.run("tensors_of_a_mesh", 4):
        assert wrong == [], wrong


def test_saved():
    assert ranks.run("saved", 2) == [True, True]


FUNCTIONS = {
    function.__name__: function
    for function in (
        operations,
        training,
        fully_sharded,
        bounded_shards,
        wrong_model,
        tensors_of_a_mesh,
        saved,
    )
}
TESTS = {
    "operations": test_operations,
    "registration": test_registration,
    "ddp": test_ddp,
    "fully_sharded": test_fully_sharded,
    "bounded_shards": test_bounded_shards,
    "late_shards": test_late_shards,
    "wrong_model": test_wrong_model,
    "mesh": test_mesh,
    "saved": test_saved,
}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
