"""The forms in which c10d gives arguments. Errors: TarponError names what does not fit."""

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from . import library as lib
from .blocks import expect_tensor
from .library import TarponError

Tensors = Union[torch.Tensor, Sequence[torch.Tensor]]

_FUNCTIONS: Dict[Any, int] = {
    dist.ReduceOp.RedOpType.SUM: lib.SUM,
    dist.ReduceOp.RedOpType.AVG: lib.AVG,
    dist.ReduceOp.RedOpType.PRODUCT: lib.PROD,
    dist.ReduceOp.RedOpType.MIN: lib.MIN,
    dist.ReduceOp.RedOpType.MAX: lib.MAX,
    dist.ReduceOp.RedOpType.BAND: lib.BAND,
    dist.ReduceOp.RedOpType.BOR: lib.BOR,
    dist.ReduceOp.RedOpType.BXOR: lib.BXOR,
}


def function_of(op: Any) -> int:
    """The library's number of a reduction. Errors: TarponError."""
    for known, number in _FUNCTIONS.items():
        if op == known:
            return number
    names = ", ".join(each.name for each in _FUNCTIONS)
    raise TarponError(f"{op} is not supported: use one of {names}")


def only_tensor(tensors: Any) -> torch.Tensor:
    """c10d gives a list with an item for each tensor of this rank."""
    tensor = _only_item(tensors)
    expect_tensor(tensor)
    return tensor


def _only_item(items: Any) -> Any:
    if not isinstance(items, (list, tuple)):
        return items
    if len(items) != 1:
        raise TarponError(f"{len(items)} tensors of one rank: give one")
    return items[0]


def only_list(lists: Any) -> List[torch.Tensor]:
    """The list of that one item, which c10d also gives alone."""
    _expect_list(lists)
    if lists and all(isinstance(each, torch.Tensor) for each in lists):
        return list(lists)
    tensors = _only_item(lists)
    _expect_list(tensors)
    return list(tensors)


def _expect_list(thing: Any) -> None:
    if not isinstance(thing, (list, tuple)):
        raise TarponError(f"a {type(thing).__name__} in place of a list of tensors: give a list")


def is_sparse(tensors: Sequence[Any]) -> bool:
    """Whether it is one tensor, a sparse one."""
    return (
        len(tensors) == 1
        and isinstance(tensors[0], torch.Tensor)
        and tensors[0].layout != torch.strided
    )


def pairs_of(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> List[Tuple[torch.Tensor, torch.Tensor]]:
    if len(outputs) != len(inputs):
        raise TarponError(f"{len(outputs)} outputs and {len(inputs)} inputs: give an output for each input")
    return list(zip(outputs, inputs))


def timeout_of(options: Any) -> Optional[float]:
    """Seconds; None: the group's."""
    given = getattr(options, "timeout", None)
    return given.total_seconds() if given is not None and given.total_seconds() > 0 else None


def op_of(options: Any) -> Any:
    """c10d also gives the operation alone, or none, which is a sum."""
    if options is None or isinstance(options, int):  # the root alone
        return dist.ReduceOp.SUM
    return getattr(options, "reduceOp", options)


def root_of(options: Any) -> int:
    """c10d also gives the root alone."""
    return options if isinstance(options, int) else options.rootRank


def flat(items: Any) -> List[Any]:
    """The items of a list, or of lists, or the one item; whether they are tensors or not."""
    if not isinstance(items, (list, tuple)):
        return [items]
    return [each for part in items for each in flat(part)]
