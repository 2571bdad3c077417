"""AllReduce of several tensors of one rank, and of sparse tensors."""

import functools
from typing import Callable, Dict, List, Sequence

import torch

from . import library as lib
from .library import TarponError

_COMBINE: Dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    lib.SUM: torch.add,
    lib.PROD: torch.mul,
    lib.MIN: torch.minimum,
    lib.MAX: torch.maximum,
    lib.BAND: torch.bitwise_and,
    lib.BOR: torch.bitwise_or,
    lib.BXOR: torch.bitwise_xor,
}


def combined(parts: Sequence[torch.Tensor], function: int) -> torch.Tensor:
    """The reduction of one rank's tensors. Errors: TarponError."""
    combine = _COMBINE.get(function)
    if combine is None:
        raise TarponError(f"an average over {len(parts)} tensors of one rank: give one tensor")
    with torch.inference_mode():
        return functools.reduce(combine, parts)


class SparseSum:
    """The sum of a sparse tensor over all ranks. Each rank gathers the elements of all ranks and adds them.
    The sum replaces the tensor's elements."""

    def __init__(self, tensor: torch.Tensor, world_size: int):
        """Errors: TarponError."""
        if tensor.layout != torch.sparse_coo:
            raise TarponError(f"AllReduce of a tensor of {tensor.layout}: give one of torch.sparse_coo")
        self._tensor = tensor
        own = tensor.detach().coalesce()
        # A column for each element.
        self.indices = own.indices().contiguous()
        self.values = own.values().contiguous()
        self.shape = torch.tensor([own._nnz(), *tensor.shape], device=tensor.device)
        self.shapes = [torch.empty_like(self.shape) for _ in range(world_size)]
        self.all_indices: List[torch.Tensor] = []
        self.all_values: List[torch.Tensor] = []

    def expect(self) -> None:
        """Makes room for the elements of all ranks. REQUIRES: `shapes` are there. Errors: TarponError, alike
        on all ranks."""
        shapes = [shape.tolist() for shape in self.shapes]
        for rank, shape in enumerate(shapes):
            if shape[1:] != shapes[0][1:]:
                raise TarponError(
                    f"rank {rank} has a sparse tensor of {shape[1:]}, and rank 0 one of {shapes[0][1:]}: "
                    "give tensors of one shape"
                )
        for elements, *_ in shapes:
            self.all_indices.append(self.indices.new_empty((elements, self.indices.shape[0])))
            self.all_values.append(self.values.new_empty((elements, *self.values.shape[1:])))

    def add_up(self) -> None:
        """The sum replaces the tensor's elements. REQUIRES: `all_indices`, with a row for each element, and
        `all_values` hold the elements of all ranks."""
        with torch.no_grad():
            indices, values = torch.cat(self.all_indices).t(), torch.cat(self.all_values)
            shape = self._tensor.shape
            total = torch.sparse_coo_tensor(indices, values, shape, device=self._tensor.device)
            self._tensor.copy_(total.coalesce())
