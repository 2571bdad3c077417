"""The memory of calls: tensors as one piece of host memory, which the library reads or writes."""

from typing import Any, Iterator, List, Optional, Sequence, Tuple

import torch

from . import library as lib
from .library import TarponError

TYPES = {
    torch.float32: lib.FLOAT32,
    torch.float64: lib.FLOAT64,
    torch.int32: lib.INT32,
    torch.int64: lib.INT64,
    torch.float16: lib.FLOAT16,
    torch.bfloat16: lib.BFLOAT16,
    torch.int8: lib.INT8,
    torch.uint8: lib.UINT8,
    torch.int16: lib.INT16,
}
for _name, _number in (("uint16", lib.UINT16), ("uint32", lib.UINT32), ("uint64", lib.UINT64)):
    if hasattr(torch, _name):  # since 2.3
        TYPES[getattr(torch, _name)] = _number
DEVICES = ("cpu", "cuda")


class Block:
    """Tensors of one type and device, one after another. The library uses their own memory where it is
    one piece; else a copy. CUDA tensors are copied to pinned memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], *, read: bool = False, written: bool = False):
        """`read`, `written`: by the library. Errors: TarponError, for tensors that no block can hold."""
        if not tensors:
            raise TarponError("an empty list of tensors: give at least one")
        self.tensors = list(tensors)
        self._read = read
        self._written = written
        self._copy: Optional[torch.Tensor] = None
        first = self.tensors[0]
        for tensor in self.tensors:
            expect_tensor(tensor)
            _check(tensor, first)
        self.dtype: torch.dtype = first.dtype
        self.device: torch.device = first.device
        self.count: int = sum(tensor.numel() for tensor in self.tensors)

    @property
    def element_size(self) -> int:
        return self.tensors[0].element_size()

    @property
    def memory(self) -> torch.Tensor:
        """What the library uses, of a block of one tensor. REQUIRES: open() has returned."""
        return self.tensors[0] if self._copy is None else self._copy

    def address(self) -> int:
        """REQUIRES: open() has returned."""
        if self._copy is not None:
            return self._copy.data_ptr()
        return next((each.data_ptr() for each in self.tensors if each.numel() > 0), 0)

    def open(self) -> None:
        """Makes the copy where one is needed. Of CUDA tensors the copy is there when the current stream has
        come here."""
        is_cuda = self.device.type == "cuda"
        if not is_cuda and self._is_one_piece():
            return
        with torch.inference_mode():  # whatever mode the tensors were made in; no gradients
            self._copy = torch.empty(self.count, dtype=self.dtype, device="cpu", pin_memory=is_cuda)
            if self._read:
                for part, tensor in self._parts():
                    part.copy_(tensor, non_blocking=is_cuda)

    def give_back(self) -> None:
        """Copies the library's results to the tensors; on the current stream, where they are CUDA tensors."""
        if self._copy is None or not self._written:
            return
        with torch.inference_mode():
            for part, tensor in self._parts():
                tensor.copy_(part, non_blocking=self.device.type == "cuda")

    def _is_one_piece(self) -> bool:
        """Row by row, with no gap between the tensors."""
        end = 0
        for tensor in self.tensors:
            if tensor.is_neg() or tensor.is_conj() or not tensor.is_contiguous():
                return False
            if tensor.numel() > 0:
                if end not in (0, tensor.data_ptr()):
                    return False
                end = tensor.data_ptr() + tensor.numel() * tensor.element_size()
        return True

    def _parts(self) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
        """The tensors, each with its part of the copy."""
        assert self._copy is not None
        sizes: List[int] = [tensor.numel() for tensor in self.tensors]
        for part, tensor in zip(self._copy.split(sizes), self.tensors):
            yield part.view(tensor.shape), tensor


def expect_tensor(thing: Any) -> None:
    """Errors: TarponError."""
    if not isinstance(thing, torch.Tensor):
        raise TarponError(f"a {type(thing).__name__} in place of a tensor: give a tensor")


def count_of(tensors: Sequence[Any]) -> int:
    """Their elements. Errors: TarponError, for what is no tensor."""
    for each in tensors:
        expect_tensor(each)
    return sum(each.numel() for each in tensors)


def _check(tensor: torch.Tensor, first: torch.Tensor) -> None:
    if tensor.layout != torch.strided:
        raise TarponError(f"a tensor has the layout {tensor.layout}: give tensor.to_dense()")
    if tensor.device.type not in DEVICES:
        raise TarponError(f"a tensor is on {tensor.device}: give tensors of {' or '.join(DEVICES)}")
    if tensor.dtype != first.dtype or tensor.device != first.device:
        raise TarponError(
            f"tensors of {first.dtype} on {first.device} and of {tensor.dtype} on {tensor.device} in one "
            "call: give tensors of one type and device"
        )


def can_carry(tensor: torch.Tensor) -> bool:
    """Whether the library can reduce this tensor. Follows from its type, layout and device."""
    return (
        tensor.layout == torch.strided
        and tensor.dtype in TYPES
        and tensor.device.type in DEVICES
    )


def type_to_reduce(dtype: torch.dtype) -> int:
    """The library's number. Errors: TarponError."""
    number = TYPES.get(dtype)
    if number is None:
        raise TarponError(f"no reduction has elements of {dtype}: convert them, bool to torch.uint8")
    return number


def type_to_move(block: Block) -> Tuple[int, int]:
    """A type of the library to move the elements as, and how many of its elements one of the block is. Bytes,
    where the library has no such type."""
    number = TYPES.get(block.dtype)
    return (lib.UINT8, block.element_size) if number is None else (number, 1)
