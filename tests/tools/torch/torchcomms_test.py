"""The backend of torchcomms, against an imitation of the package: its classes for backends of Python as
its sources of 2026 have them. The package itself is not in Debian."""

import datetime
import enum
import os
import sys
import types

import ranks
import torch

RedOpType = enum.Enum("RedOpType", "SUM PRODUCT MIN MAX BAND BOR BXOR PREMUL_SUM AVG")


class TorchCommBackend:
    """The base class: nothing in it serves a call."""

    def __init__(self):
        pass


class Imitation(types.ModuleType):
    def __init__(self):
        super().__init__("torchcomms")
        self.backends = {}
        self._comms = types.ModuleType("torchcomms._comms")
        self._comms.TorchCommBackend = TorchCommBackend

    def register_backend(self, name, backend_class):
        assert issubclass(backend_class, TorchCommBackend)
        self.backends[name] = backend_class

    def new_comm(self, name, comm_name, options):
        backend = self.backends[name]()
        backend.init(torch.device("cpu"), comm_name, options)
        return backend


def operation(kind):
    return types.SimpleNamespace(type=kind)


SUM = operation(RedOpType.SUM)


def prepared(with_store):
    """The package, and options."""
    from tarpon_torch import torchcomms as backend

    imitation = Imitation()
    sys.modules["torchcomms"], sys.modules["torchcomms._comms"] = imitation, imitation._comms
    backend.register()
    store = torch.distributed.distributed_c10d._get_default_store() if with_store else None
    options = types.SimpleNamespace(store=store, timeout=datetime.timedelta(seconds=30), hints={})
    return imitation, options


def collectives(with_store):
    imitation, options = prepared(with_store)
    comm = imitation.new_comm("tarpon", "main", options)
    rank, world = comm.get_rank(), comm.get_size()
    wrong = []

    def check(name, tensor, expected):
        if not torch.equal(torch.as_tensor(tensor), torch.as_tensor(expected)):
            wrong.append([name, str(tensor)])

    every = torch.arange(world).float()
    total = float(every.sum())
    own = torch.tensor([float(rank)])
    tensor = own.clone()
    assert comm.all_reduce(tensor, SUM, False) is None
    check("all_reduce", tensor, [total])
    tensor = own.clone()
    comm.all_reduce(tensor, operation(RedOpType.MAX), True).wait()
    check("all_reduce, max", tensor, [world - 1.0])
    tensor = own.clone()
    comm.reduce(tensor, 1, SUM, False)
    check("reduce", tensor, [total] if rank == 1 else own)
    tensor = own.clone()
    comm.broadcast(tensor, 1, False)
    check("broadcast", tensor, [1.0])
    parts = [torch.zeros(1) for _ in range(world)]
    comm.all_gather(parts, own, False)
    check("all_gather", torch.cat(parts), every)
    parts = [torch.zeros(each) for each in range(world)]
    comm.all_gather_v(parts, torch.full((rank,), float(rank)), False)
    check("all_gather_v", torch.cat(parts), every.repeat_interleave(torch.arange(world)))
    whole = torch.zeros(world)
    comm.all_gather_single(whole, own, False)
    check("all_gather_single", whole, every)
    output = torch.zeros(1)
    comm.reduce_scatter(output, list(every.reshape(world, 1)), SUM, False)
    check("reduce_scatter", output, [float(rank * world)])
    comm.reduce_scatter_single(output, every + 1, SUM, False)
    check("reduce_scatter_single", output, [float((rank + 1) * world)])
    comm.gather(parts := [torch.zeros(1) for _ in range(world)], own, 0, False)
    check("gather", torch.cat(parts), every if rank == 0 else torch.zeros(world))
    comm.scatter(output, list(every.reshape(world, 1)), 0, False)
    check("scatter", output, own)
    comm.all_to_all_single(whole, every + 10 * rank, False)
    check("all_to_all_single", whole, 10 * every + rank)
    outputs = [torch.zeros(1) for _ in range(world)]
    comm.all_to_all(outputs, list((every + 10 * rank).reshape(world, 1)), False)
    check("all_to_all", torch.cat(outputs), 10 * every + rank)
    ones = [1] * world
    comm.all_to_all_v_single(whole, every - rank, ones, ones, False)
    check("all_to_all_v_single", whole, rank - every)
    sent = comm.send(own, (rank + 1) % world, True)
    comm.recv(output, (rank - 1) % world, False)
    sent.wait()
    check("recv", output, [float((rank - 1) % world)])
    comm.barrier(False)
    part = comm.split([1, 0], "part", options)
    if rank < 2:
        check("place in a split", part.get_rank(), 1 - rank)
        tensor = own.clone()
        part.broadcast(tensor, 0, False)
        check("broadcast in a split", tensor, [1.0])
        part.finalize()
    elif part is not None:
        wrong.append("a split without this rank")
    try:
        comm.all_reduce(own.clone(), operation(RedOpType.PREMUL_SUM), False)
        wrong.append("an operation that there is not")
    except RuntimeError as error:
        if "PREMUL_SUM" not in str(error):
            wrong.append(str(error))
    comm.finalize()
    return wrong


def names():
    """Communicators of one name, apart and one after the other."""
    imitation, options = prepared(with_store=True)
    comm = imitation.new_comm("tarpon", "main", options)
    rank = comm.get_rank()
    wrong = []

    def check(name, part, ranks_of_part):
        tensor = torch.tensor([float(rank)])
        part.all_reduce(tensor, SUM, False)
        if part.get_size() != len(ranks_of_part) or float(tensor) != sum(ranks_of_part):
            wrong.append([name, part.get_size(), float(tensor)])

    own = [0, 1] if rank < 2 else [2, 3]
    parts = [comm.split(own, "half", options)]
    check("halves of one name", parts[0], own)
    parts.append(comm.split(own, "half", options))
    check("a second half", parts[1], own)
    parts.append(comm.split(range(4), "main", options))
    check("a part named like its parent", parts[2], range(4))
    parts.append(parts[2].split(own, "half", options))
    check("half of a part", parts[3], own)
    check("the first half again", parts[0], own)
    for part in parts:
        part.finalize()
    check("the parent", comm, range(4))
    comm.finalize()
    comm = imitation.new_comm("tarpon", "main", options)
    check("the same name after finalize()", comm, range(4))
    comm.finalize()
    return wrong


def test_names():
    for wrong in ranks.run("names", 4):
        assert wrong == [], wrong


def test_collectives():
    for wrong in ranks.run("collectives", 3, {"with_store": True}):
        assert wrong == [], wrong


def launched(port):
    """The ranks meet where the launcher says."""
    os.environ["MASTER_PORT"] = str(port)
    return collectives(with_store=False)


def test_launched():
    for wrong in ranks.run("launched", 3, {"port": ranks.free_port()}):
        assert wrong == [], wrong


FUNCTIONS = {function.__name__: function for function in (collectives, launched, names)}
TESTS = {"collectives": test_collectives, "launched": test_launched, "names": test_names}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
