"""The c10d backend "tarpon": every type and function, groups, errors, and DDP beside stock Gloo."""

import sys
import time

import ranks
import torch
import torch.distributed as dist
from models import expect_like_gloo, train

TYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
}
OPERATIONS = {
    "SUM": sum,
    "PRODUCT": lambda values: torch.stack(values).prod(0),
    "MIN": lambda values: torch.stack(values).min(0).values,
    "MAX": lambda values: torch.stack(values).max(0).values,
}


def own_values(rank, count, dtype):
    return (torch.arange(count) % 3 + rank + 1).to(dtype)


def every_type():
    wrong = []
    rank, world = dist.get_rank(), dist.get_world_size()
    for name, dtype in TYPES.items():
        for operation, reference in OPERATIONS.items():
            for count in (1, 5, 1000):
                tensor = own_values(rank, count, dtype)
                dist.all_reduce(tensor, getattr(dist.ReduceOp, operation))
                wide = [own_values(r, count, torch.float64) for r in range(world)]
                if not torch.equal(tensor.double(), reference(wide)):
                    wrong.append([name, operation, count])
    for operation, expected in (("BAND", 1 & 2), ("BOR", 1 | 2), ("BXOR", 1 ^ 2)):
        tensor = torch.full((7,), [1, 2][rank % 2], dtype=torch.int32)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, operation))
        if world == 2 and not torch.equal(tensor, torch.full((7,), expected, dtype=torch.int32)):
            wrong.append([operation])
    average = torch.full((9,), float(rank))
    dist.all_reduce(average, dist.ReduceOp.AVG)
    if not torch.equal(average, torch.full((9,), (world - 1) / 2)):
        wrong.append(["AVG"])
    return wrong


def shapes():
    """Of tensors, and of ways to wait."""
    wrong = []
    rank, world = dist.get_rank(), dist.get_world_size()
    total = sum(range(1, world + 1))
    columns = torch.ones(6, 8)[:, ::2] * (rank + 1)
    dist.all_reduce(columns)
    if not torch.equal(columns, torch.full((6, 4), float(total))):
        wrong.append("not contiguous")
    works = []
    many = [torch.full((100,), float(rank + 1)) for _ in range(40)]
    for tensor in many:
        works.append(dist.all_reduce(tensor, async_op=True))
    for work in works:
        work.wait()
    if not all(torch.equal(tensor, torch.full((100,), float(total))) for tensor in many):
        wrong.append("asynchronous")
    several = [torch.full((10,), float(rank + 1)), torch.full((20,), float(rank))]
    dist.all_reduce_coalesced(several)
    if float(several[0][0]) != total or float(several[1][0]) != total - world:
        wrong.append("coalesced")
    empty = torch.empty(0)
    dist.all_reduce(empty)
    flags = torch.tensor([rank == 0])  # of bool: Gloo's
    gathered = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(gathered, torch.tensor([float(rank)]))
    if [int(one) for one in gathered] != list(range(world)) or bool(flags) != (rank == 0):
        wrong.append("all_gather")
    values = torch.tensor([float(rank)])
    dist.broadcast(values, 1)
    if int(values) != 1:
        wrong.append("broadcast")
    dist.barrier()
    return wrong


def groups():
    wrong = []
    rank = dist.get_rank()
    for number in range(10):
        members = [number % 4, (number + 1) % 4]
        group = dist.new_group(members)
        if rank in members:
            value = torch.tensor([float(rank)])
            dist.all_reduce(value, group=group)
            if int(value) != sum(members):
                wrong.append(number)
        dist.destroy_process_group(group) if rank in members else None
    return wrong


def closed_by_a_callback():
    """The communicator's thread runs PyTorch's code when the interpreter ends."""
    group = dist.new_group([0])
    work = dist.all_reduce(torch.ones(1), group=group, async_op=True)

    def close(_):
        group.communicator.close()
        for _ in range(500):
            time.sleep(0.001)

    work.get_future().then(close)
    work.wait()


def late_rank():
    import datetime

    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if dist.get_rank() == 1:
        time.sleep(3)
        return ""
    try:
        dist.all_reduce(torch.ones(10), group=group)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def mismatch():
    try:
        dist.all_reduce(torch.ones(10 + dist.get_rank()))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def training(steps):
    return train(steps)


def test_types():
    for world in (2, 3):
        for wrong in ranks.run("every_type", world):
            assert wrong == [], wrong


def test_shapes():
    for wrong in ranks.run("shapes", 3):
        assert wrong == [], wrong


def test_groups():
    for wrong in ranks.run("groups", 4):
        assert wrong == [], wrong


def test_end_of_the_interpreter():
    assert ranks.run("closed_by_a_callback", 1) == [None]


def test_errors():
    texts = ranks.run("late_rank", 2)
    assert texts[0].startswith("CallError: "), texts
    assert "rank 1" in texts[0] and "peer_late" in texts[0], texts
    for text in ranks.run("mismatch", 2):
        assert "mismatch" in text and "count" in text, text


def test_ddp():
    """Bit-identical to Gloo at 2 ranks, equal within rounding at 3 and 4."""
    expect_like_gloo(steps=50, tolerance=1e-3)


FUNCTIONS = {
    function.__name__: function
    for function in (
        every_type,
        shapes,
        groups,
        closed_by_a_callback,
        late_rank,
        mismatch,
        training,
    )
}
TESTS = {
    "types": test_types,
    "shapes": test_shapes,
    "groups": test_groups,
    "end": test_end_of_the_interpreter,
    "errors": test_errors,
    "ddp": test_ddp,
}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
