"""How a rank that is behind makes a step without a forward and a backward pass."""

import collections
import dataclasses
from typing import Any, Deque, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

from .blocks import can_carry
from .communicator import Communicator

_STEPS_THAT_COUNT = 8


def collectives_of(ddp: Any) -> str:
    """Those of DistributedDataParallel's own in each forward pass, by its arguments; empty: none."""
    found = []
    if getattr(ddp, "broadcast_buffers", False) and any(True for _ in ddp.buffers()):
        found.append("broadcast_buffers=True")
    if getattr(ddp, "find_unused_parameters", False):
        found.append("find_unused_parameters=True")
    return " and ".join(found)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Which gradients a bucket holds, and where."""

    like: torch.Tensor  # has no memory: type and device of the bucket
    elements: int
    parameters: Tuple[torch.Tensor, ...]
    places: Tuple[Tuple[int, Tuple[int, ...], Tuple[int, ...]], ...]  # offset, shape, strides


def _layout_of(bucket: "dist.GradBucket", parameters: Tuple[torch.Tensor, ...]) -> _Layout:
    buffer = bucket.buffer()
    places = tuple(
        (one.storage_offset() - buffer.storage_offset(), tuple(one.shape), one.stride())
        for one in bucket.gradients()
    )
    return _Layout(buffer.new_empty(0), buffer.numel(), parameters, places)


class Follower:
    """Knows the buckets of a backward pass, and makes gradients of what the other ranks have averaged."""

    def __init__(self) -> None:
        self._layouts: Dict[int, _Layout] = {}
        self._is_whole = False  # the last bucket of a backward pass has been seen
        self._is_carried = True  # every bucket, by Tarpon
        self._passes = 0  # backward passes of the open step
        # Of the latest steps. One may have more: all ranks left out the step() before it.
        self._usual_passes: Deque[int] = collections.deque(maxlen=_STEPS_THAT_COUNT)

    def note(self, bucket: "dist.GradBucket") -> None:
        """A bucket of a backward pass."""
        if bucket.index() == 0:
            self._is_whole = False
        parameters = tuple(bucket.parameters())
        known = self._layouts.get(bucket.index())
        if (
            known is None
            or len(known.parameters) != len(parameters)
            or any(a is not b for a, b in zip(known.parameters, parameters))
        ):
            self._layouts[bucket.index()] = _layout_of(bucket, parameters)
            self._is_carried &= can_carry(bucket.buffer())
        if bucket.is_last():
            for index in [each for each in self._layouts if each > bucket.index()]:
                del self._layouts[index]
            self._is_whole = True

    def pass_begins(self) -> None:
        self._passes += 1

    def step_ends(self) -> None:
        if self._passes > 0:
            self._usual_passes.append(self._passes)
        self._passes = 0

    def behind(self, communicator: Communicator) -> int:
        """Steps of which the other ranks have averaged all buckets, and this rank none."""
        if not self._is_whole:
            return 0
        return min(communicator.behind(tag) for tag in range(len(self._layouts)))

    def obstacle(self, ddp: Any) -> Optional[str]:
        """Why no step can be followed: a step does more than average gradients by Tarpon, once."""
        if not self._is_whole or not self._usual_passes:
            return "this rank has made no step of its own yet"
        if min(self._usual_passes) > 1:
            return (
                f"each step has {min(self._usual_passes)} averaged backward passes: average only in the last "
                "one, the others under no_sync()"
            )
        if not self._is_carried:
            return (
                "the process group averages some buckets (sparse, complex, or of another device), and their "
                "results are not kept: make the step with a forward and a backward pass"
            )
        if getattr(ddp, "static_graph", False):
            return "static_graph=True: which parameters get no gradient is not known without a pass"
        collectives = collectives_of(ddp)
        if collectives:
            return (
                f"{collectives}: each forward pass has a collective, in which the other ranks would wait for "
                "this one: give False to DistributedDataParallel"
            )
        return None

    def empty_buckets(self) -> List[torch.Tensor]:
        """Memory for the buckets of a backward pass; the tag of each is its place."""
        layouts = [self._layouts[index] for index in range(len(self._layouts))]
        return [one.like.new_empty(one.elements) for one in layouts]

    def set_gradients(self, buckets: List[torch.Tensor]) -> None:
        """Each parameter's gradient becomes that in `buckets`, which empty_buckets() has made."""
        for index, bucket in enumerate(buckets):
            layout = self._layouts[index]
            for parameter, (offset, shape, strides) in zip(layout.parameters, layout.places):
                found = bucket.as_strided(shape, strides, offset)
                if parameter.grad is None:
                    parameter.grad = found.clone()
                else:
                    parameter.grad.copy_(found)

    def drop_gradients(self) -> None:
        """Of set_gradients(): the next backward pass must not add to them."""
        for layout in self._layouts.values():
            for parameter in layout.parameters:
                parameter.grad = None
