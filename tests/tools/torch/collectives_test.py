"""Collectives and messages of the c10d backend "tarpon", beside results that are computed here."""

import collections
import datetime
import gc
import os
import signal
import sys
import threading
import time
import weakref

import ranks
import torch
import torch.distributed as dist

TYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
)
MOVED_TYPES = (*TYPES, torch.bool, torch.complex64, torch.complex128)
COUNTS = (0, 1, 7, 5000)
BAD_INPUTS = 26


def values(rank, count, dtype, shift=0):
    """What `rank` contributes: small numbers, so that every sum is exact in every type."""
    numbers = (torch.arange(count) + 3 * rank + shift) % 5
    return (numbers % 2 == 0) if dtype == torch.bool else numbers.to(dtype)


class Check:
    """Names of the results that are not as expected."""

    def __init__(self):
        self.wrong, self.failed = [], []
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def equal(self, name, tensor, expected):
        if tensor.dtype != expected.dtype or not torch.equal(tensor, expected):
            self.wrong.append(str(name))

    def true(self, name, holds):
        if not holds:
            self.wrong.append(str(name))

    def fails(self, name, start, *parts, everywhere=True):
        """`start` raises RuntimeError, whose text has one of `parts`. Not `everywhere`: a rank whose part is
        done may have no error."""
        began = time.monotonic()
        try:
            start()
            if everywhere:
                self.wrong.append(f"{name}: no error")
        except RuntimeError as error:
            self.failed.append(name)
            if not any(part in str(error) for part in parts):
                self.wrong.append(f"{name}: {error}")
        if time.monotonic() - began > 10:
            self.wrong.append(f"{name}: took {time.monotonic() - began:.1f} s")


def copies():
    """Collectives that do not add."""
    check = Check()
    rank, world = check.rank, check.world
    for dtype in MOVED_TYPES:
        for count in COUNTS:
            what = f"{dtype}, {count}"
            every = [values(each, count, dtype) for each in range(world)]
            root = count % world
            tensor = every[rank].clone()
            dist.broadcast(tensor, root)
            check.equal(f"broadcast, {what}", tensor, every[root])
            parts = [torch.empty_like(every[0]) for _ in range(world)]
            dist.all_gather(parts, every[rank])
            check.equal(f"all_gather, {what}", torch.cat(parts), torch.cat(every))
            whole = torch.empty(world * count, dtype=dtype)
            dist.all_gather_into_tensor(whole, every[rank])
            check.equal(f"all_gather_into_tensor, {what}", whole, torch.cat(every))
            parts = [torch.empty_like(every[0]) for _ in range(world)] if rank == root else None
            dist.gather(every[rank], parts, root)
            if rank == root:
                check.equal(f"gather, {what}", torch.cat(parts), torch.cat(every))
            tensor = torch.empty_like(every[0])
            dist.scatter(tensor, every if rank == root else None, root)
            check.equal(f"scatter, {what}", tensor, every[rank])
            to_each = [values(rank, count, dtype, shift=each) for each in range(world)]
            from_each = [values(each, count, dtype, shift=rank) for each in range(world)]
            whole = torch.empty(world * count, dtype=dtype)
            dist.all_to_all_single(whole, torch.cat(to_each))
            check.equal(f"all_to_all_single, {what}", whole, torch.cat(from_each))
    return check.wrong


def reductions():
    check = Check()
    rank, world = check.rank, check.world
    functions = {
        "SUM": lambda all_values: all_values.sum(0),
        "MAX": lambda all_values: all_values.max(0).values,
        "MIN": lambda all_values: all_values.min(0).values,
        "PRODUCT": lambda all_values: all_values.prod(0),
    }
    for dtype in TYPES:
        for count in COUNTS:
            for name, function in functions.items():
                what = f"{name}, {dtype}, {count}"
                operation = getattr(dist.ReduceOp, name)
                wide = torch.stack([values(each, count, torch.float64) for each in range(world)])
                expected = function(wide).to(dtype) if count else wide[0].to(dtype)
                root = (count + 1) % world
                tensor = values(rank, count, dtype)
                dist.reduce(tensor, root, operation)
                own = expected if rank == root else values(rank, count, dtype)
                check.equal(f"reduce, {what}", tensor, own)
                inputs = [values(rank, count, dtype, shift=each) for each in range(world)]
                wide = torch.stack(
                    [values(each, count, torch.float64, shift=rank) for each in range(world)]
                )
                expected = function(wide).to(dtype) if count else wide[0].to(dtype)
                for name_of_form, start in (
                    ("reduce_scatter", lambda out: dist.reduce_scatter(out, inputs, operation)),
                    (
                        "reduce_scatter_tensor",
                        lambda out: dist.reduce_scatter_tensor(out, torch.cat(inputs), operation),
                    ),
                ):
                    output = torch.empty(count, dtype=dtype)
                    start(output)
                    check.equal(f"{name_of_form}, {what}", output, expected)
    average = torch.empty(10)
    dist.reduce_scatter_tensor(average, torch.full((10 * world,), float(rank)), dist.ReduceOp.AVG)
    check.equal("average", average, torch.full((10,), (world - 1) / 2))
    return check.wrong


def uneven():
    """A count for each rank, some of them 0."""
    check = Check()
    rank, world = check.rank, check.world
    counts = [3 * each for each in range(world)]
    every = [values(each, counts[each], torch.float32) for each in range(world)]
    parts = [torch.empty(count) for count in counts]
    dist.all_gather(parts, every[rank])
    check.equal("all_gather", torch.cat(parts), torch.cat(every))
    inputs = [values(rank, count, torch.float32) for count in counts]
    output = torch.empty(counts[rank])
    dist.reduce_scatter(output, inputs)
    expected = sum(values(each, counts[rank], torch.float32) for each in range(world))
    check.equal("reduce_scatter", output, expected)
    lists = [[torch.empty(4), torch.empty(each, 2)] for each in range(world)]
    own = [torch.full((4,), float(rank)), torch.full((rank, 2), float(rank))]
    dist.all_gather_coalesced(lists, own)
    for each, (first, second) in enumerate(lists):
        check.equal(f"all_gather_coalesced {each}", first, torch.full((4,), float(each)))
        check.equal(f"all_gather_coalesced {each}, 2", second, torch.full((each, 2), float(each)))
    return check.wrong


def all_to_alls():
    """With parts of all sizes."""
    check = Check()
    rank, world = check.rank, check.world
    for dtype in MOVED_TYPES:
        sizes = [[(each + other) % 3 for other in range(world)] for each in range(world)]
        to_each = [values(rank, sizes[rank][each], dtype, shift=each) for each in range(world)]
        from_each = [values(each, sizes[each][rank], dtype, shift=rank) for each in range(world)]
        outputs = [torch.empty_like(part) for part in from_each]
        dist.all_to_all(outputs, to_each)
        check.equal(f"all_to_all, {dtype}", torch.cat(outputs), torch.cat(from_each))
        splits = [[len(part) for part in parts] for parts in (from_each, to_each)]
        rows = torch.cat(to_each).repeat(2, 1).t()
        output = torch.empty((sum(splits[0]), 2), dtype=dtype)
        dist.all_to_all_single(output, rows, *splits)
        check.equal(f"rows, {dtype}", output, torch.cat(from_each).repeat(2, 1).t())
    equal = [torch.full((2,), float(world * rank + each)) for each in range(world)]
    outputs = [torch.empty(2) for _ in range(world)]
    dist.all_to_all(outputs, equal)
    check.equal("equal parts", torch.stack(outputs)[:, 0], torch.arange(world).float() * world + rank)
    check.fails(
        "splits that do not add up",
        lambda: dist.all_to_all_single(torch.ones(world), torch.ones(world), None, [2] * world),
        "split sizes",
    )
    check.fails(
        "parts that differ",
        lambda: dist.all_to_all(
            [torch.empty(1 + (rank == 0 and each == 1)) for each in range(world)], list(torch.ones(world, 1))
        ),
        "mismatch",
        everywhere=False,
    )
    check.true("which fails where it differs", world == 1 or rank > 0 or "parts that differ" in check.failed)
    dist.all_to_all(outputs, equal)
    check.equal("the call after", torch.stack(outputs)[:, 0], torch.arange(world).float() * world + rank)
    return check.wrong


def messages():
    check = Check()
    rank, world = check.rank, check.world
    group = dist.distributed_c10d._get_default_group()
    after, before = (rank + 1) % world, (rank - 1) % world
    for dtype in MOVED_TYPES:
        for count in COUNTS:
            received = torch.empty(count, dtype=dtype)
            request = group.send([values(rank, count, dtype)], after, 0)
            group.recv([received], before, 0).wait()
            request.wait()
            check.equal(f"{dtype}, {count}", received, values(before, count, dtype))
    columns = torch.zeros(6, 8)[:, ::2]
    requests = [dist.irecv(columns, before), dist.isend(torch.full((4, 6), float(rank)).t(), after)]
    for request in requests:
        request.wait()
    check.equal("columns", columns, torch.full((6, 4), float(before)))
    first, second = torch.zeros(1), torch.zeros(1)
    requests = [dist.irecv(first, before, tag=7), dist.irecv(second, before, tag=8)]
    for tag in (8, 7):
        dist.send(torch.tensor([float(tag)]), after, tag=tag)
    for request in requests:
        request.wait()
    check.true("tags", [float(first), float(second)] == [7, 8])
    several = torch.zeros(30, 1)
    requests = [dist.irecv(one, before) for one in several]
    requests += [dist.isend(torch.tensor([float(each)]), after) for each in range(30)]
    for request in reversed(requests):
        request.wait()
    check.equal("order", several[:, 0], torch.arange(30).float())
    received = torch.zeros(3)
    operations = [
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), after),
        dist.P2POp(dist.irecv, received, before),
    ]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    check.equal("batch", received, torch.full((3,), float(before)))
    return check.wrong


def among_collectives():
    """A message that waits holds up no later call."""
    check = Check()
    rank = check.rank
    last, value = torch.zeros(1), torch.ones(1)
    if rank == 0:
        waits = dist.irecv(last, 1, tag=1)
        pending = dist.all_reduce(value, async_op=True)
        received = torch.zeros(1)
        dist.recv(received, 1, tag=2)
        dist.send(received + 1, 1, tag=2)
        pending.wait()
        dist.broadcast(value, 0)
        dist.send(torch.ones(1), 1, tag=3)
        waits.wait()
        check.true("the first message", float(last) == 5 and waits.is_completed())
    else:
        dist.send(torch.ones(1), 0, tag=2)
        received = torch.zeros(1)
        dist.recv(received, 0, tag=2)
        check.true("answer", float(received) == 2)
        dist.all_reduce(value)
        dist.broadcast(value, 0)
        dist.recv(received, 0, tag=3)
        dist.send(torch.tensor([5.0]), 0, tag=1)
    return check.wrong


def from_any():
    check = Check()
    rank, world = check.rank, check.world
    tags = range(10, 30)
    if rank == 0:
        seen = {}
        for _ in range(2 * (world - 1)):
            value = torch.zeros(2)
            source = dist.recv(value)
            check.true("source", value[0] == source)
            check.true("order", value[1] == seen.get(source, 0))
            seen[source] = float(value[1]) + 1
        check.true("all", seen == {each: 2 for each in range(1, world)})
        tensors = [torch.zeros(1) for _ in range(8)]
        works = [dist.irecv(tensor, tag=3) for tensor in tensors]
        for work in works:
            work.wait()
        check.true("asynchronous", [int(each) for each in tensors] == list(range(8)))
        check.true("source of a work", works[0]._source_rank() == 1)
        before = threading.active_count()
        for tag in tags:
            dist.recv(torch.zeros(1), tag=tag)
        until = time.monotonic() + 5
        while threading.active_count() > before + 5 and time.monotonic() < until:
            time.sleep(0.01)
        check.true("no thread for each tag", threading.active_count() <= before + 5)
    else:
        for number in range(2):
            dist.send(torch.tensor([float(rank), float(number)]), 0)
        if rank == 1:
            for number in range(8):
                dist.send(torch.tensor([float(number)]), 0, tag=3)
            for tag in tags:
                dist.send(torch.ones(1), 0, tag=tag)
    dist.barrier()
    return check.wrong


def messages_that_fail():
    check = Check()
    rank = check.rank
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    tensor = torch.ones(4)
    check.fails("to itself", lambda: group.send([tensor], rank, 0).wait(), f"peer {rank}", "itself", "rank")
    check.fails("no such rank", lambda: group.send([tensor], 5, 0), "rank 5 of 2")
    check.fails("no such sender", lambda: group.recv([tensor], -1, 0), "rank -1 of 2")
    check.fails("tag", lambda: group.send([tensor], 1 - rank, 70_000), "70000")
    check.fails("any", lambda: group.recv_anysource([tensor.to_sparse()], 0), "layout")
    dist.barrier()
    for name, bad, *texts in (
        ("layout", [tensor.to_sparse()], "layout"),
        ("no tensor", [None], "NoneType"),
        ("two tensors", [tensor, tensor], "2 tensors of one rank"),
    ):
        for refuses, transfers in enumerate((group.send, group.recv)):
            # Of rank 0 this one is refused. Rank 1 is told, and the next message is its own.
            transfer = transfers if rank == 0 else (group.recv, group.send)[refuses]
            refused = transfer(bad if rank == 0 else [tensor], 1 - rank, 6)
            check.fails(name, refused.wait, *(texts if rank == 0 else ["rank 0 refused the call"]))
            number = torch.full((4,), float(rank))
            transfer([number], 1 - rank, 6).wait()
            check.equal(f"the message after: {name}", number, torch.full((4,), float(refuses)))
    dist.barrier()
    if rank == 0:
        check.fails("nobody receives", lambda: group.send([tensor], 1, 1).wait(), "rank 1")
        check.fails("nobody sends", lambda: group.recv([tensor], 1, 2).wait(), "rank 1")
        check.fails("no rank sends", lambda: group.recv_anysource([tensor], 3).wait(), "tag 3")
    dist.barrier()
    sizes = [torch.ones(4), torch.ones(5)][rank]
    start = (lambda: dist.send(sizes, 1, tag=4)) if rank == 0 else (lambda: dist.recv(sizes, 0, tag=4))
    check.fails("sizes that differ", start, "mismatch", "bytes")
    dist.barrier()
    waiting = dist.new_group()
    began = time.monotonic()
    works = [waiting.recv([torch.ones(1)], 1 - rank, 0), waiting.recv_anysource([torch.ones(1)], 5)]
    time.sleep(0.2)
    if rank == 0:
        waiting.abort()
    for work in works:
        check.fails("aborted", work.wait, "abort", "gave")
    check.true("aborted quickly", time.monotonic() - began < 3)
    dist.barrier()
    return check.wrong


def closed_while_waiting():
    """close() ends what waits for messages, and does not wait for it."""
    check = Check()
    group = dist.distributed_c10d._get_default_group()
    works = [group.recv([torch.ones(1)], 1 - check.rank, 0), group.recv_anysource([torch.ones(1)], 5)]
    time.sleep(0.2)
    began = time.monotonic()
    group.communicator.close(seconds=0)
    for work in works:
        check.fails("closed", work.wait, "abort", "closed", "gave")
    check.true("quickly", time.monotonic() - began < 3)
    check.fails("closed before", lambda: group.recv_anysource([torch.ones(1)], 6).wait(), "closed")
    return check.wrong


def interrupted():
    """Ctrl-C ends the wait for a message at once. The message comes all the same."""
    check = Check()
    if check.rank == 1:
        dist.barrier()
        for number, tag in ((0, 0), (1, 1), (2, 0)):
            dist.send(torch.tensor([float(number)]), 0, tag=tag)
        return check.wrong
    tensors = [torch.full((1,), -1.0) for _ in range(3)]
    for tensor, receive in zip(
        tensors, (lambda one: dist.recv(one, 1), lambda one: dist.recv(one, tag=1))
    ):
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        try:
            receive(tensor)
            check.wrong.append("no interrupt")
        except KeyboardInterrupt:
            check.true("at once", time.monotonic() - began < 2)
    dist.barrier()
    dist.recv(tensors[2], 1)
    check.true("each has its own", [float(tensor) for tensor in tensors] == [0, 1, 2])
    return check.wrong


def forms():
    """In place, not contiguous, asynchronous, coalesced, and lists that lie in one piece of memory."""
    check = Check()
    rank, world = check.rank, check.world
    group = dist.distributed_c10d._get_default_group()
    whole = torch.full((world, 5), -1.0)
    whole[rank] = rank
    dist.all_gather_into_tensor(whole, whole[rank])
    check.equal("all_gather in place", whole, torch.arange(world).float().repeat(5, 1).t())
    whole = torch.arange(world * 4).float() + rank
    dist.reduce_scatter_tensor(whole[4 * rank : 4 * rank + 4], whole)
    expected = sum(torch.arange(world * 4).float() + each for each in range(world))
    check.equal("reduce_scatter in place", whole[4 * rank : 4 * rank + 4], expected[4 * rank : 4 * rank + 4])
    columns = torch.full((6, 8), float(rank))[:, ::2]
    dist.broadcast(columns, 1)
    check.equal("broadcast of columns", columns, torch.ones(6, 4))
    parts = [torch.zeros(4, 6).t() for _ in range(world)]
    dist.all_gather(parts, torch.full((4, 6), float(rank)).t())
    check.equal("all_gather of columns", torch.stack(parts)[:, 2, 3], torch.arange(world).float())
    conjugate = torch.full((3,), rank + 1j).conj()
    group.broadcast([conjugate], 1).wait()
    check.equal("broadcast of conjugates", conjugate.resolve_conj(), torch.full((3,), 1 - 1j))
    piece = torch.zeros(world, 3)
    addresses = []
    start = group.communicator.begin
    group.communicator.begin = lambda calls: (addresses.extend(calls), start(calls))
    dist.all_gather(list(piece), torch.full((3,), float(rank)))
    group.communicator.begin = start
    check.true("a list in one piece is not copied", addresses[0].arguments.output == piece.data_ptr())
    works = [dist.broadcast(torch.ones(1000), each % world, async_op=True) for each in range(20)]
    outputs = [torch.zeros(2 * world) for _ in range(20)]
    works += [
        dist.all_gather_into_tensor(output, torch.full((2,), float(rank)), async_op=True)
        for output in outputs
    ]
    for work in works:
        work.wait()
        check.true("completed", work.is_completed() and work.exception() is None)
    check.true("results", works[-1].result()[0] is outputs[-1])
    future = works[-1].get_future()
    check.equal("future", future.wait()[0], torch.arange(world).float().repeat_interleave(2))
    pairs = [(torch.zeros(world * size), torch.full((size,), float(rank))) for size in (1, 4)]
    group.allgather_into_tensor_coalesced(*zip(*pairs)).wait()
    for output, own in pairs:
        expected = torch.arange(world).float().repeat_interleave(len(own))
        check.equal("allgather_into_tensor_coalesced", output, expected)
    pairs = [(torch.zeros(size), torch.ones(world * size) * rank) for size in (1, 4)]
    group.reduce_scatter_tensor_coalesced(*zip(*pairs)).wait()
    for output, _ in pairs:
        check.equal("reduce_scatter_tensor_coalesced", output, torch.full_like(output, sum(range(world))))
    several = [torch.full((4,), rank + 1.0), torch.full((4,), 2.0)]
    group.allreduce(several).wait()
    for tensor in several:
        check.equal("parts of a rank", tensor, torch.full((4,), sum(range(world)) + 3.0 * world))
    group.allreduce(several, dist.ReduceOp.MAX).wait()
    sparse = torch.sparse_coo_tensor([[rank, world]], [[1.0, 2.0], [float(rank), 1.0]], (world + 2, 2))
    dense = sparse.to_dense()
    dist.all_reduce(sparse)
    dist.all_reduce(dense)
    check.equal("sparse", sparse.to_dense(), dense)
    return check.wrong


def objects():
    check = Check()
    rank, world = check.rank, check.world
    own = {"rank": rank, "text": "x" * 1000 * rank}
    gathered = [None] * world
    dist.all_gather_object(gathered, own)
    check.true("all_gather_object", [each["rank"] for each in gathered] == list(range(world)))
    gathered = [None] * world if rank == 1 else None
    dist.gather_object(own, gathered, 1)
    check.true("gather_object", rank != 1 or len(gathered[world - 1]["text"]) == 1000 * (world - 1))
    shared = [own, "second"] if rank == 0 else [None, None]
    dist.broadcast_object_list(shared, 0)
    check.true("broadcast_object_list", shared == [{"rank": 0, "text": ""}, "second"])
    received = [None]
    dist.scatter_object_list(received, list(range(world)) if rank == 0 else None, 0)
    check.true("scatter_object_list", received == [rank])
    return check.wrong


def in_groups():
    """Each collective in a group of some ranks, in another order."""
    check = Check()
    rank, world = check.rank, check.world
    members = list(range(1, world))
    group = dist.new_group(members)
    if rank in members:
        tensor = torch.tensor([float(rank)])
        dist.broadcast(tensor, world - 1, group=group)
        check.true("broadcast", int(tensor) == world - 1)
        parts = [torch.zeros(1) for _ in members]
        dist.all_gather(parts, torch.tensor([float(rank)]), group=group)
        check.true("all_gather", [int(part) for part in parts] == members)
        dist.barrier(group)
    dist.barrier()
    return check.wrong


def bad_input():
    """Each ends on all ranks at once, and later calls match. The wrong results, and what has failed."""
    check = Check()
    rank, world = check.rank, check.world
    group = dist.distributed_c10d._get_default_group()
    refused = f"rank {world - 1} refused the call"

    def matches(name):
        tensor = torch.tensor([float(rank)])
        dist.broadcast(tensor, 1)
        check.true(f"the call after: {name}", int(tensor) == 1)

    def reduce_to(tensor, root):
        return group.reduce([tensor], root).wait()

    last = rank == world - 1
    one, ones = torch.ones(1), [torch.ones(1 + each) for each in range(world)]
    for name, start, *texts in (
        ("root", lambda: group.broadcast([one], world).wait(), f"root {world}"),
        ("root at one rank", lambda: reduce_to(one, -7 if last else 0), "root -7", refused),
        ("another root", lambda: dist.broadcast(one, int(last)), "mismatch"),
        ("another count", lambda: dist.broadcast(torch.ones(1 + last), 0), "mismatch"),
        ("another type", lambda: dist.broadcast(torch.ones(1, dtype=TYPES[last]), 0), "mismatch"),
        (
            "another collective",
            lambda: dist.broadcast(one, 0) if last else reduce_to(one, 0),
            "mismatch",
        ),
        (
            "all_gather without equal parts",
            lambda: dist.all_gather_into_tensor(torch.ones(world + last), one),
            "equal parts",
            refused,
        ),
        (
            "all_gather into parts of other sizes",
            lambda: dist.all_gather([torch.ones(1) for _ in range(world)], torch.ones(1 + last)),
            "give this rank",
            refused,
        ),
        (
            "all_gather into too few parts",
            lambda: dist.all_gather([torch.ones(1)], one),
            "parts for 1 ranks",
        ),
        (
            "gather into parts of other sizes",
            lambda: dist.gather(one, ones if last else None, world - 1),
            "elements at root",
            refused,
        ),
        ("all_reduce of bool", lambda: dist.all_reduce(torch.tensor([True])), "torch.uint8"),
        ("complex", lambda: reduce_to(one + 1j, 0), "complex64"),
        (
            "layout",
            lambda: dist.broadcast(one.to_sparse() if last else one, 0),
            "layout",
            refused,
        ),
        ("bitwise", lambda: dist.reduce(one, 0, dist.ReduceOp.BAND), "needs integers"),
        ("no tensor", lambda: group.broadcast([None], 0).wait(), "NoneType"),
        ("no list", lambda: group.broadcast(None, 0).wait(), "NoneType"),
        ("all_gather into nothing", lambda: group.allgather([[None]], [one]).wait(), "NoneType"),
        ("all_gather without a list", lambda: group.allgather([None], [one]).wait(), "list of tensors"),
        (
            "all_gather of several into nothing",
            lambda: group.allgather_coalesced([[one, None if last else one]] * world, [one, one]).wait(),
            "NoneType",
            refused,
        ),
        ("all_reduce of several", lambda: group.allreduce_coalesced([None]).wait(), "NoneType"),
        ("all_to_all without lists", lambda: group.alltoall(None, None).wait(), "list of tensors"),
        ("all_to_all without tensors", lambda: group.alltoall([None], [one]).wait(), "NoneType", "list"),
        ("gather into nothing", lambda: group.gather([[None] * world], [one], rank).wait(), "NoneType"),
    ):
        check.fails(name, start, *texts, everywhere="all_" in name)
        matches(name)
    check.fails("no tensors", lambda: group.allreduce_coalesced([]), "no tensors")
    check.fails("no pairs", lambda: group.allgather_into_tensor_coalesced([one], []), "an output for each")
    work = dist.all_gather([torch.ones(1)], torch.ones(1), async_op=True)
    check.fails("asynchronous", work.wait, "parts for 1 ranks")
    check.true("exception", "parts for 1 ranks" in str(work.exception()) and not work.is_success())
    matches("asynchronous")
    return [check.wrong, check.failed]


def sparse_that_fails():
    """Later calls match, whatever ends the first of the three calls of a sparse all_reduce."""
    from tarpon_torch.reductions import SparseSum
    from tarpon_torch.work import TarponWork

    check = Check()
    rank, world = check.rank, check.world
    group = dist.distributed_c10d._get_default_group()
    late = dist.new_group(timeout=datetime.timedelta(seconds=1))
    last = rank == world - 1

    def sparse():
        return torch.sparse_coo_tensor([[rank]], [1.0], (world,))

    def matches(name, group=None):
        tensor = torch.tensor([float(rank)])
        dist.broadcast(tensor, 1, group=group)
        check.true(f"the call after: {name}", int(tensor) == 1)

    def no_memory(*_):
        raise MemoryError("no memory for the elements")

    def interrupted_wait(_):
        raise KeyboardInterrupt

    average = dist.ReduceOp.AVG if last else dist.ReduceOp.SUM
    for name, start, *texts in (
        ("a dense tensor", lambda: dist.all_reduce(torch.ones(1) if last else sparse()), "mismatch"),
        ("refused", lambda: dist.all_reduce(sparse(), average), "of sparse tensors", "refused the call"),
        ("no tensor", lambda: group.allreduce([None if last else sparse()]).wait(), "NoneType", "refused"),
        (
            "shapes",
            lambda: dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (1 + rank,))),
            "tensors of one shape",
        ),
    ):
        check.fails(name, start, *texts)
        matches(name)
    expect = SparseSum.expect
    if last:
        SparseSum.expect = no_memory
    try:
        check.fails("no memory", lambda: dist.all_reduce(sparse()), "rank 2 refused the call")
    except MemoryError:
        check.true("no memory at the last rank", last)
    SparseSum.expect = expect
    matches("no memory")
    wait = TarponWork.wait
    if last:
        TarponWork.wait = interrupted_wait
    try:
        check.fails("interrupted", lambda: dist.all_reduce(sparse()), "rank 2 refused the call")
    except KeyboardInterrupt:
        check.true("interrupted at the last rank", last)
    TarponWork.wait = wait
    matches("interrupted")
    if last:
        time.sleep(1.5)
    check.fails("late", lambda: dist.all_reduce(sparse(), group=late), f"rank {world - 1}", "late", "deadline")
    dist.barrier()
    matches("late", late)
    gc.collect()
    gc.disable()
    tensor = sparse()
    dist.all_reduce(tensor)
    dist.barrier()
    check.true("no cycle", not any(type(each) is SparseSum for each in gc.get_objects()))
    gc.enable()
    check.equal("sparse", tensor.to_dense(), torch.ones(world))
    return check.wrong


def monitored():
    check = Check()
    rank = check.rank
    group = dist.distributed_c10d._get_default_group()
    group.monitored_barrier(datetime.timedelta(seconds=30))
    if rank in (0, 2):
        check.fails(
            "all are named",
            lambda: group.monitored_barrier(datetime.timedelta(seconds=0.5), wait_all_ranks=True),
            "Ranks 1, 3 failed to pass monitoredBarrier in 500 ms",
        )
    dist.barrier()
    tensor = torch.tensor([float(rank)])
    dist.broadcast(tensor, 1)
    check.true("the call after", int(tensor) == 1)
    return check.wrong


def monitored_beside_a_call():
    """Its timeout counts although an earlier call waits for the same rank."""
    check = Check()
    group = dist.new_group(timeout=datetime.timedelta(seconds=20))
    store = dist.distributed_c10d._get_default_store()
    value = torch.ones(1)
    if check.rank == 1:
        store.wait(["told 0", "told 2"])
        dist.all_reduce(value, group=group)
    else:
        pending = dist.all_reduce(value, group=group, async_op=True)
        check.fails(
            "named",
            lambda: group.monitored_barrier(datetime.timedelta(seconds=0.5)),
            "Rank 1 failed to pass monitoredBarrier in 500 ms",
        )
        store.set(f"told {check.rank}", "")
        pending.wait()
    check.equal("the call before", value, torch.full((1,), 3.0))
    return check.wrong


def aborted():
    """Rank 0 ends what the others wait for."""
    check = Check()
    group = dist.distributed_c10d._get_default_group()
    if check.rank == 0:
        time.sleep(0.5)
        group.abort()
        return check.wrong
    began = time.monotonic()
    works = [
        dist.broadcast(torch.ones(10), 0, async_op=True),
        dist.all_gather_into_tensor(torch.ones(10 * check.world), torch.ones(10), async_op=True),
        dist.barrier(async_op=True),
    ]
    for work in works:
        check.fails("aborted", work.wait, "rank 0 aborted", "rank 0 gave the operation up")
    check.true("quickly", time.monotonic() - began < 3)
    return check.wrong


def late():
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    check = Check()
    if check.rank == 1:
        time.sleep(2.5)
        return check.wrong
    began = time.monotonic()
    check.fails("late", lambda: dist.broadcast(torch.ones(3), 1, group=group), "rank 1")
    check.true("in time", time.monotonic() - began < 2)
    return check.wrong


def works():
    """What is kept of works that nobody asks."""
    from tarpon_torch import work as module
    from tarpon_torch.calls import Outcome

    class TakenByOthers(collections.deque):
        def popleft(self):
            raise IndexError

    check = Check()
    module._TENSOR_SECONDS = 0.0
    works = module.Works()

    def kept():
        tensor = torch.ones(1)
        work = module.TarponWork(Outcome(1), [tensor])
        works.keep(work)
        return work, weakref.ref(tensor)

    held, of_held = kept()
    of_pending = kept()[1]
    ended, of_ended = kept()
    held.end(None)
    ended.end(None)
    del ended
    time.sleep(0.01)
    for _ in range(4):
        kept()
    check.true("a work that is over", of_ended() is None)
    check.true("one that has not ended", of_pending() is not None)
    check.true("one that is held", of_held() is not None and held.result()[0] is of_held())
    works._works = TakenByOthers(works._works)
    kept()
    check.true("another thread takes works", len(works._works) > 0)

    class OfOthers(Exception):
        def __new__(cls, *, text):
            return super().__new__(cls, text)

        def __init__(self, *, text):
            super().__init__(text)

    held, _ = kept()
    held.end(OfOthers(text="no disk"))
    check.fails("an error of others", held.wait, "OfOthers: no disk")
    return check.wrong


def _expect_right(name, world):
    for wrong in ranks.run(name, world):
        assert wrong == [], wrong


def test_copies():
    for world in (1, 3):
        _expect_right("copies", world)


def test_reductions():
    _expect_right("reductions", 3)


def test_uneven():
    for world in (2, 4):
        _expect_right("uneven", world)


def test_all_to_alls():
    for world in (1, 3):
        _expect_right("all_to_alls", world)


def test_messages():
    for world in (2, 3):
        _expect_right("messages", world)
    _expect_right("among_collectives", 2)


def test_from_any():
    _expect_right("from_any", 4)


def test_messages_that_fail():
    _expect_right("messages_that_fail", 2)
    _expect_right("closed_while_waiting", 2)
    _expect_right("interrupted", 2)


def test_forms():
    _expect_right("forms", 3)


def test_objects():
    for world in (2, 3):
        _expect_right("objects", world)


def test_groups():
    _expect_right("in_groups", 4)


def test_works():
    _expect_right("works", 1)


def test_bad_input():
    results = ranks.run("bad_input", 3)
    assert [wrong for wrong, _ in results] == [[], [], []], results
    failed = {name for _, names in results for name in names}
    assert len(failed) == BAD_INPUTS, failed


def test_sparse_that_fails():
    _expect_right("sparse_that_fails", 3)


def test_monitored():
    _expect_right("monitored", 4)
    _expect_right("monitored_beside_a_call", 3)


def test_aborted():
    _expect_right("aborted", 3)


def test_late():
    _expect_right("late", 2)


FUNCTIONS = {
    function.__name__: function
    for function in (
        copies,
        reductions,
        uneven,
        all_to_alls,
        messages,
        among_collectives,
        from_any,
        messages_that_fail,
        closed_while_waiting,
        interrupted,
        forms,
        objects,
        in_groups,
        works,
        bad_input,
        sparse_that_fails,
        monitored,
        monitored_beside_a_call,
        aborted,
        late,
    )
}
TESTS = {
    "copies": test_copies,
    "reductions": test_reductions,
    "uneven": test_uneven,
    "all_to_alls": test_all_to_alls,
    "messages": test_messages,
    "from_any": test_from_any,
    "messages_that_fail": test_messages_that_fail,
    "forms": test_forms,
    "objects": test_objects,
    "groups": test_groups,
    "works": test_works,
    "bad_input": test_bad_input,
    "sparse_that_fails": test_sparse_that_fails,
    "monitored": test_monitored,
    "aborted": test_aborted,
    "late": test_late,
}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
