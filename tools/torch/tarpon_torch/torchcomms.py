"""The backend "tarpon" of torchcomms: its names for the collectives of the process group.

    import torchcomms
    import tarpon_torch.torchcomms

    tarpon_torch.torchcomms.register()
    comm = torchcomms.new_comm("tarpon", torch.device("cpu"), name="main")

The interface is that of torchcomms' sources of 2026. The tests have an imitation of it, not the package.
"""

import functools
from typing import Any, List, Optional, Sequence

import torch
import torch.distributed as dist

from .c10d import BACKEND, ProcessGroupTarpon
from .launcher import place_of_launcher
from .work import TarponWork

_TAG = 0  # of messages, which have none in torchcomms


def register() -> None:
    """Makes torchcomms.new_comm("tarpon", ...) work. Errors: ImportError, where torchcomms is not
    installed."""
    import torchcomms
    from torchcomms._comms import TorchCommBackend

    class Backend(TarponComm, TorchCommBackend):
        pass

    torchcomms.register_backend(BACKEND, Backend)


class TarponComm:
    """A communicator. Each collective has a function. It returns None when the collective has ended, or with
    `async_op` a work at once. Errors: TarponError."""

    _group: ProcessGroupTarpon
    _name: str

    # -- the communicator

    def init(self, device: torch.device, name: str, options: Any) -> None:
        """`options.store`: where the ranks meet; else the launcher's variables say where."""
        rank, world_size = place_of_launcher()
        store = options.store or _store_of_launcher(rank, world_size)
        self._connect(store, rank, world_size, name, options)

    def split(
        self, ranks: Sequence[int], name: str, options: Any
    ) -> "Optional[TarponComm]":
        """A communicator of `ranks`, in this order. All of them call it. The part uses the sockets and threads of
        this communicator. None, where this rank is not in `ranks`."""
        if self.get_rank() not in ranks:
            return None
        part = type(self)()
        members = dist.PrefixStore(",".join(map(str, ranks)), self._store)
        part._connect(members, list(ranks).index(self.get_rank()), len(ranks), name, options)
        return part

    def _connect(
        self, store: Any, rank: int, world_size: int, name: str, options: Any
    ) -> None:
        """The ranks count the communicators of one name, each its own ones: none meets in the keys of another
        one."""
        self._name = name
        number = store.add(f"torchcomms/{name}/rank {rank}", 1)
        self._store = dist.PrefixStore(f"torchcomms/{name}/{number}", store)
        self._group = ProcessGroupTarpon(self._store, rank, world_size, options.timeout)

    def finalize(self) -> None:
        self._group.shutdown()

    def abort(self) -> None:
        """Ends all calls on all ranks."""
        self._group.abort()

    def get_rank(self) -> int:
        return self._group.communicator.rank

    def get_size(self) -> int:
        return self._group.communicator.world_size

    def get_backend_name(self) -> str:
        return BACKEND

    def get_comm_name(self) -> str:
        return self._name

    # -- collectives

    def all_reduce(self, tensor: torch.Tensor, op: Any, async_op: bool) -> Optional[TarponWork]:
        return _ended(self._group.allreduce([tensor], _op(op)), async_op)

    def reduce(
        self, tensor: torch.Tensor, root: int, op: Any, async_op: bool
    ) -> Optional[TarponWork]:
        return _ended(self._group.reduce([tensor], root, _op(op)), async_op)

    def reduce_scatter(
        self, output: torch.Tensor, inputs: List[torch.Tensor], op: Any, async_op: bool
    ) -> Optional[TarponWork]:
        return _ended(self._group.reduce_scatter([output], [inputs], _op(op)), async_op)

    reduce_scatter_v = reduce_scatter

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, op: Any, async_op: bool
    ) -> Optional[TarponWork]:
        return _ended(self._group._reduce_scatter_base(output, input, _op(op)), async_op)

    def broadcast(self, tensor: torch.Tensor, root: int, async_op: bool) -> Optional[TarponWork]:
        return _ended(self._group.broadcast([tensor], root), async_op)

    def all_gather(
        self, outputs: List[torch.Tensor], input: torch.Tensor, async_op: bool
    ) -> Optional[TarponWork]:
        return _ended(self._group.allgather([outputs], [input]), async_op)

    all_gather_v = all_gather

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, async_op: bool
    ) -> Optional[TarponWork]:
        return _ended(self._group._allgather_base(output, input), async_op)

    def gather(
        self, outputs: List[torch.Tensor], input: torch.Tensor, root: int, async_op: bool
    ) -> Optional[TarponWork]:
        lists = [outputs] if root == self.get_rank() else []
        return _ended(self._group.gather(lists, [input], root), async_op)

    def scatter(
        self, output: torch.Tensor, inputs: List[torch.Tensor], root: int, async_op: bool
    ) -> Optional[TarponWork]:
        lists = [inputs] if root == self.get_rank() else []
        return _ended(self._group.scatter([output], lists, root), async_op)

    def all_to_all(
        self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], async_op: bool
    ) -> Optional[TarponWork]:
        return _ended(self._group.alltoall(outputs, inputs), async_op)

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, async_op: bool
    ) -> Optional[TarponWork]:
        return _ended(self._group.alltoall_base(output, input, [], []), async_op)

    def all_to_all_v_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: List[int],
        input_splits: List[int],
        async_op: bool,
    ) -> Optional[TarponWork]:
        work = self._group.alltoall_base(output, input, output_splits, input_splits)
        return _ended(work, async_op)

    def barrier(self, async_op: bool) -> Optional[TarponWork]:
        return _ended(self._group.barrier(), async_op)

    def send(self, tensor: torch.Tensor, dst: int, async_op: bool) -> Optional[TarponWork]:
        return _ended(self._group.send([tensor], dst, _TAG), async_op)

    def recv(self, tensor: torch.Tensor, src: int, async_op: bool) -> Optional[TarponWork]:
        return _ended(self._group.recv([tensor], src, _TAG), async_op)


def _ended(work: TarponWork, async_op: bool) -> Optional[TarponWork]:
    if async_op:
        return work
    work.wait()
    return None


def _op(op: Any) -> Any:
    """c10d's operation of the same name."""
    return getattr(dist.ReduceOp.RedOpType, op.type.name, op.type)


@functools.lru_cache(maxsize=None)
def _store_of_launcher(rank: int, world_size: int) -> Any:
    """One for all communicators: rank 0 serves it at one port."""
    store, _, _ = next(dist.rendezvous("env://", rank=rank, world_size=world_size))
    return store
