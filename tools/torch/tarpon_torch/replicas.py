"""Whether the ranks' models are still one, and how they become one again."""

import dataclasses
import hashlib
import math
from typing import Any, Iterable, List, Sequence

import torch

from . import library as lib
from . import states
from .communicator import Communicator
from .library import TarponError
from .waits import interruptible

# Elements of the exact average that one call compares: 4 MiB of float32, which caches hold.
_COMPARED_AT_ONCE = 1 << 20


# A comparison of less would cost about as much.
_LEAST_PART = 1 << 16  # bytes


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The models of all ranks, compared. Alike on all ranks."""

    equal: bool
    distance: float  # largest |model - mean| / |mean| of a rank; 0 where equal
    resynced: bool  # all ranks took the model of one of them


def digest(tensors: Iterable[torch.Tensor]) -> int:
    """64 bits that differ where the tensors' bytes differ. Not 0."""
    state = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel() > 0:
            state.update(memoryview(flat.view(torch.uint8).numpy()))
    return max(int.from_bytes(state.digest(), "little"), 1)


def parts(tensors: Sequence[torch.Tensor], most: int) -> int:
    """Into how many parts the tensors' bytes are divided: `most`, or fewer if they are few."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return max(1, min(most, -(-size // _LEAST_PART)))


def part(tensors: Sequence[torch.Tensor], number: int, count: int) -> List[torch.Tensor]:
    """Part `number` of the tensors' bytes, in turns, of `count` parts."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    first, end = (sum(sizes) * (number % count + i) // count for i in range(2))
    found = []
    for tensor, size in zip(tensors, sizes):
        width = tensor.element_size()
        # Elements at a border belong to the earlier part.
        begin, stop = (-(-min(max(at, 0), size) // width) for at in (first, end))
        if begin < stop:
            found.append(tensor.detach().reshape(-1)[begin:stop])
        first, end = first - size, end - size
    return found


def agree_on_number(
    communicator: Communicator, value: int, function: int, tag: int, deadline: float
) -> int:
    """The least (lib.MIN) or largest (lib.MAX) value of a rank; all ranks call it."""
    tensor = torch.tensor([value], dtype=torch.int64, device="cpu")
    communicator.allreduce_now(tensor, function, tag=tag, deadline=deadline)
    return int(tensor)


def are_equal(
    communicator: Communicator, tensors: Iterable[torch.Tensor], tag: int, deadline: float
) -> bool:
    """Whether the tensors have the same bytes on all ranks, who all call it."""
    own = digest(tensors) - (1 << 63)  # signed
    # The largest, and of ~: the smallest.
    extremes = torch.tensor([own, ~own], dtype=torch.int64, device="cpu")
    communicator.allreduce_now(extremes, lib.MAX, tag=tag, deadline=deadline)
    return int(extremes[0]) == ~int(extremes[1])


def is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _square(tensor: torch.Tensor) -> float:
    square = float(torch.dot(tensor, tensor))
    if math.isfinite(square):
        return square
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2


def distance(
    communicator: Communicator, tensors: Iterable[torch.Tensor], tag: int, deadline: float
) -> float:
    """The largest |x - mean| / |mean| of a rank, over all float tensors together; exact calls.

    Infinite where a rank holds NaN or infinity, and where other tensors differ.
    """
    tensors = list(tensors)
    apart = mean = 0.0
    others = [each for each in tensors if not each.is_floating_point()]
    if others and not are_equal(communicator, others, tag, deadline):
        apart = math.inf
    # Fresh memory for each part would cost more than its additions.
    average, difference = torch.empty((2, _COMPARED_AT_ONCE), dtype=torch.float32, device="cpu")
    for tensor in tensors:
        if not tensor.is_floating_point():
            continue
        for part in tensor.detach().reshape(-1).split(_COMPARED_AT_ONCE):
            own = part.to("cpu", torch.float32)
            mine, apart_here = average[: own.numel()], difference[: own.numel()]
            mine.copy_(own)
            communicator.allreduce_now(mine, lib.AVG, tag=tag, deadline=deadline)
            torch.sub(own, mine, out=apart_here)
            apart += _square(apart_here)
            mean += _square(mine)
    relative = math.inf
    if math.isfinite(apart) and math.isfinite(mean) and (mean > 0 or apart == 0):
        relative = math.sqrt(apart / mean) if mean > 0 else 0.0
    largest = torch.tensor([relative], dtype=torch.float64, device="cpu")
    communicator.allreduce_now(largest, lib.MAX, tag=tag, deadline=deadline)
    return float(largest[0])


def resync(
    communicator: Communicator,
    parts: Sequence[Any],
    root: int,
    tag: int,
    deadline: float,
    allow_pickle: bool,
) -> None:
    """The parts of all ranks, alike in number and kind, take the state of those of `root`.

    A part has state_dict() and load_state_dict(). The states travel as states.py writes them, since
    ranks may have different optimizer state, or none. `root` loads its own, too: an optimizer changes
    the types of what it loads. Errors: TarponError.
    """
    data, obstacle = torch.empty(0, dtype=torch.uint8, device="cpu"), None
    if communicator.rank == root:
        try:
            data = states.save(parts)
        except Exception as error:
            obstacle = error
    size = agree_on_number(communicator, data.numel(), lib.MAX, tag, deadline)
    if size == 0:
        raise TarponError(f"the rank that gives its state cannot save it: {obstacle or 'see its error'}")
    if communicator.rank != root:
        data = torch.empty(size, dtype=torch.uint8, device="cpu")
    interruptible(lambda: communicator.resync(data, root, deadline))
    for part, its_state in zip(parts, states.load(data, allow_pickle)):
        part.load_state_dict(its_state)
