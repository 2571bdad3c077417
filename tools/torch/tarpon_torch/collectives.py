"""Makes the calls of all collectives of a communicator; its begin() starts them.

Lists of tensors are parts of one block. All ranks make the same calls in the same order.
"""

from typing import List, Optional, Sequence

import torch

from . import library as lib
from .blocks import Block, count_of, type_to_move, type_to_reduce
from .calls import Call, Ended, check_rank
from .library import TarponError, microseconds


class Collectives:
    """Of one rank. All functions take `deadline` in seconds, and `ended`, which gets the call when it
    has ended. Errors: TarponError, for what this rank alone can see. Then refused() makes a call that takes
    the number.
    """

    def __init__(self, rank: int, world_size: int):
        self._rank = rank
        self._world_size = world_size

    def barrier(self, *, deadline: float, ended: Ended, tag: int = 0) -> Call:
        """An AllReduce without data, which waits for all ranks."""
        arguments = lib.sized(lib.Arguments, tag=tag, deadline_us=microseconds(deadline))
        return Call("tarpon_allreduce_start", arguments, ended)

    def refused(self, error: Exception, *, deadline: float, ended: Ended) -> Call:
        """In place of a call that this rank cannot make. It ends on all ranks, here with `error`."""
        call = self.barrier(deadline=deadline, ended=ended)
        call.refuse(error)
        return call

    def all_reduce(
        self, tensor: torch.Tensor, function: int, *, deadline: float, ended: Ended, **members: int
    ) -> Call:
        """In place. `members`: further ones of lib.Arguments."""
        block = Block([tensor], read=True, written=True)
        arguments = lib.sized(
            lib.Arguments,
            count=block.count,
            type=type_to_reduce(block.dtype),
            function=function,
            deadline_us=microseconds(deadline),
            **members,
        )
        return Call("tarpon_allreduce_start", arguments, ended, input=block, output=block)

    def reduce(
        self, tensor: torch.Tensor, root: int, function: int, *, deadline: float, ended: Ended
    ) -> Call:
        """In place at the root; other ranks keep what they have."""
        block = Block([tensor], read=True, written=root == self._rank)
        call = self._call(lib.REDUCE, block, block, deadline, ended, root=root)
        self._add_up(call, block, function)
        call.arguments.count = block.count
        return call

    def broadcast(self, tensor: torch.Tensor, root: int, *, deadline: float, ended: Ended) -> Call:
        """In place."""
        is_root = root == self._rank
        block = Block([tensor], read=is_root, written=not is_root)
        call = self._call(lib.BROADCAST, block, block, deadline, ended, root=root)
        self._move(call, block, [block.count])
        return call

    def all_gather(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        sizes: Sequence[int],
        *,
        deadline: float,
        ended: Ended,
    ) -> Call:
        """`sizes`: elements of each rank's part of the output."""
        output, input = Block(outputs, written=True), Block(inputs, read=True)
        self._check_parts("output", output, "input", input, sizes)
        call = self._call(lib.ALL_GATHER, input, output, deadline, ended)
        self._move(call, output, sizes)
        return call

    def reduce_scatter(
        self,
        output: torch.Tensor,
        inputs: Sequence[torch.Tensor],
        sizes: Sequence[int],
        function: int,
        *,
        bounded: bool = False,
        bound: Optional[float] = None,
        deadline: float,
        ended: Ended,
    ) -> Call:
        """`sizes`: elements of each rank's part of the input. `bound`: seconds of a bounded call; None: learnt."""
        parts, own = Block(inputs, read=True), Block([output], written=True)
        self._check_parts("input", parts, "output", own, sizes)
        call = self._call(lib.REDUCE_SCATTER, parts, own, deadline, ended)
        self._add_up(call, parts, function)
        _set_sizes(call, sizes, 1)
        if bounded:
            call.arguments.mode = lib.BOUNDED
            call.arguments.bound_us = microseconds(bound) if bound else 0
        return call

    def gather(
        self,
        outputs: Sequence[torch.Tensor],
        input: torch.Tensor,
        root: int,
        *,
        deadline: float,
        ended: Ended,
    ) -> Call:
        """`outputs`: at the root, one for each rank, all of the input's size."""
        own = Block([input], read=True)
        parts = self._parts_of_root("outputs", outputs, own, root, written=True)
        call = self._call(lib.GATHER, own, parts, deadline, ended, root=root)
        self._move(call, own, [own.count])
        return call

    def scatter(
        self,
        output: torch.Tensor,
        inputs: Sequence[torch.Tensor],
        root: int,
        *,
        deadline: float,
        ended: Ended,
    ) -> Call:
        """`inputs`: at the root, one for each rank, all of the output's size."""
        own = Block([output], written=True)
        parts = self._parts_of_root("inputs", inputs, own, root, read=True)
        call = self._call(lib.SCATTER, parts, own, deadline, ended, root=root)
        self._move(call, own, [own.count])
        return call

    def all_to_all(
        self, output: torch.Tensor, input: torch.Tensor, *, deadline: float, ended: Ended
    ) -> Call:
        """Parts of one size."""
        source, target = Block([input], read=True), Block([output], written=True)
        if source.count != target.count or source.count % self._world_size != 0:
            raise TarponError(
                f"all_to_all of {source.count} elements into {target.count} at {self._world_size} ranks: "
                "give equal sizes that the ranks divide, or split sizes"
            )
        call = self._call(lib.ALL_TO_ALL, source, target, deadline, ended)
        self._move(call, source, [source.count // self._world_size])
        return call

    def all_to_all_uneven(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        sizes_from: Sequence[int],
        sizes_to: Sequence[int],
        *,
        deadline: float,
        ended: Ended,
    ) -> Call:
        """`sizes_from`, `sizes_to`: elements from each rank and to each rank; on all ranks, also where they
        are equal."""
        source, target = Block(inputs, read=True), Block(outputs, written=True)
        call = self._call(lib.ALL_TO_ALL, source, target, deadline, ended)
        for name, block, sizes in (("input", source, sizes_to), ("output", target, sizes_from)):
            if len(sizes) != self._world_size or sum(sizes) != block.count:
                raise TarponError(
                    f"an {name} of {block.count} elements with parts of {list(sizes)}: give one part for "
                    f"each of the {self._world_size} ranks"
                )
        call.arguments.type, scale = type_to_move(source)
        call.set_counts([size * scale for size in sizes_to], [size * scale for size in sizes_from])
        return call

    # -- arguments and their checks

    def _call(
        self,
        collective: int,
        input: Optional[Block],
        output: Optional[Block],
        deadline: float,
        ended: Ended,
        *,
        root: int = 0,
    ) -> Call:
        check_rank("root", root, self._world_size)
        if input is not None and output is not None and input.dtype != output.dtype:
            raise TarponError(
                f"an input of {input.dtype} and an output of {output.dtype}: give tensors of one type"
            )
        arguments = lib.sized(
            lib.CollectiveArguments,
            collective=collective,
            root=root,
            deadline_us=microseconds(deadline),
        )
        return Call("tarpon_collective_start", arguments, ended, input=input, output=output)

    @staticmethod
    def _add_up(call: Call, block: Block, function: int) -> None:
        call.arguments.type = type_to_reduce(block.dtype)
        call.arguments.function = function

    @staticmethod
    def _move(call: Call, block: Block, sizes: Sequence[int]) -> None:
        call.arguments.type, scale = type_to_move(block)
        _set_sizes(call, sizes, scale)

    def _check_parts(
        self, name: str, parts: Block, name_of_own: str, own: Block, sizes: Sequence[int]
    ) -> None:
        """`parts` are one for each rank, of the given sizes; `own` is this rank's one."""
        if len(sizes) != self._world_size:
            raise TarponError(
                f"the {name} has parts for {len(sizes)} ranks of {self._world_size}: give one for each"
            )
        if sum(sizes) != parts.count or sizes[self._rank] != own.count:
            raise TarponError(
                f"the {name_of_own} has {own.count} elements, and the {name} {parts.count}, with "
                f"{list(sizes)} for the ranks: give this rank, {self._rank}, equal sizes in both"
            )

    def _parts_of_root(
        self,
        name: str,
        tensors: Sequence[torch.Tensor],
        own: Block,
        root: int,
        **use: bool,
    ) -> Optional[Block]:
        """One for each rank, as large as `own`; None at other ranks than the root."""
        if root != self._rank:
            if tensors:
                raise TarponError(
                    f"{len(tensors)} {name} at rank {self._rank}: give them at root {root} alone"
                )
            return None
        sizes: List[int] = [count_of([tensor]) for tensor in tensors]
        if sizes != self._world_size * [own.count]:
            raise TarponError(
                f"{name} of {sizes} elements at root {root}: give one of {own.count} for each of the "
                f"{self._world_size} ranks, or use all_gather or all_to_all for different sizes"
            )
        return Block(tensors, **use)


def _set_sizes(call: Call, sizes: Sequence[int], scale: int) -> None:
    """The elements of the ranks' parts, each `scale` of the call's type. One size stands for all; equal ones
    are no list of counts, so that all ranks give them in the same way."""
    if len(set(sizes)) == 1:
        call.arguments.count = sizes[0] * scale
    else:
        call.set_counts([size * scale for size in sizes])


def even_parts(tensor: torch.Tensor, world_size: int) -> List[int]:
    """The elements of each part of `tensor`. Errors: TarponError."""
    count = count_of([tensor])
    if count % world_size != 0:
        raise TarponError(
            f"a tensor of {count} elements has no {world_size} equal parts: give one of a multiple of "
            f"{world_size}"
        )
    return world_size * [count // world_size]


def split_parts(tensor: torch.Tensor, splits: Sequence[int], world_size: int) -> List[int]:
    """The same for parts of so many rows; of equal sizes, where `splits` is empty."""
    if not splits:
        return even_parts(tensor, world_size)
    rows = tensor.shape[0] if tensor.dim() > 0 else 0
    if len(splits) != world_size or min(splits) < 0 or sum(splits) != rows:
        raise TarponError(
            f"split sizes {list(splits)} of {rows} rows: give {world_size}, which add up to the rows"
        )
    return [split * tensor[0].numel() if split > 0 else 0 for split in splits]
