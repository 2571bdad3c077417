"""Messages between two ranks, apart from the collectives."""

import ctypes
import functools
import time
from typing import Callable

import torch

from . import library as lib
from .blocks import Block
from .calls import Call
from .handle import Handle
from .library import TarponError, microseconds
from .threads import Latch

_LARGEST_TAG = 65_535

Ended = Callable[[Call], None]


class Message(Call):
    """One that is on its way to a rank, or from it."""

    is_ordered = False

    def __init__(
        self, start: str, block: Block, peer: int, tag: int, *, deadline: float, ended: Ended
    ) -> None:
        if not 0 <= tag <= _LARGEST_TAG:
            raise TarponError(f"a message of tag {tag}: give one from 0 to {_LARGEST_TAG}")
        arguments = lib.Message(
            bytes=block.count * block.element_size,
            peer=peer,
            tag=tag,
            deadline_us=microseconds(deadline),
        )
        super().__init__(start, arguments, ended, input=block)

    @property
    def peer(self) -> int:
        """The other rank."""
        return self.arguments.peer

    def _set_refusal(self, text: str) -> None:
        """A message has no number that it could take: the library refuses one without a size at once."""
        self.arguments.size = 0 if text else ctypes.sizeof(self.arguments)

    def _set_pointers(self) -> None:
        assert self.input is not None
        self.arguments.data = self.input.address()


class MessageFromAny(Message):
    """Its peer is found while it waits."""

    def __init__(self, block: Block, tag: int, *, deadline: float, ended: Ended) -> None:
        super().__init__("tarpon_recv_start", block, 0, tag, deadline=deadline, ended=ended)
        self._until = time.monotonic() + deadline
        self._begun = Latch()

    def starter(self, job: ctypes.c_void_p) -> "functools.partial[int]":
        start = super().starter(job)

        def start_and_tell() -> int:
            try:
                return start()
            finally:
                self._begun.open()

        return functools.partial(start_and_tell)

    def find(self, handle: Handle) -> None:
        """Waits for the announcement of a message and begins to receive it. Returns when that has begun: the
        next look finds another message."""
        peer = ctypes.c_uint32()
        seconds = max(0.0, self._until - time.monotonic())
        tag = self.arguments.tag
        try:
            handle.call("tarpon_probe", tag, microseconds(seconds), ctypes.byref(peer))
        except TarponError as error:
            self.refuse(error)
        self.arguments.peer = peer.value
        self.arguments.deadline_us = microseconds(max(0.0, self._until - time.monotonic()))
        handle.begin([self], more=False)
        if handle.is_open():
            self._begun.wait()


class Messages:
    """Of one rank. All functions begin to send or receive, and take `deadline` in seconds, and `ended`,
    which gets the message when it has ended. Messages of one sender, receiver and tag match in
    order. Errors: TarponError.
    """

    def __init__(self, handle: Handle, world_size: int):
        self._handle = handle
        self._world_size = world_size

    def send(
        self, tensor: torch.Tensor, to: int, tag: int, *, deadline: float, ended: Ended
    ) -> Message:
        """It ends when the receiver has it."""
        self._check(to)
        block = Block([tensor], read=True)
        message = Message("tarpon_send_start", block, to, tag, deadline=deadline, ended=ended)
        self._handle.begin([message], more=False)
        return message

    def receive(
        self, tensor: torch.Tensor, sender: int, tag: int, *, deadline: float, ended: Ended
    ) -> Message:
        self._check(sender)
        block = Block([tensor], written=True)
        message = Message("tarpon_recv_start", block, sender, tag, deadline=deadline, ended=ended)
        self._handle.begin([message], more=False)
        return message

    def receive_from_any(
        self, tensor: torch.Tensor, tag: int, *, deadline: float, ended: Ended
    ) -> Message:
        """`peer` of the message tells the sender when it has ended."""
        message = MessageFromAny(Block([tensor], written=True), tag, deadline=deadline, ended=ended)
        find = functools.partial(MessageFromAny.find, handle=self._handle)
        self._handle.begin_in_turn(f"from any rank, tag {tag}", find, message)
        return message

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self._world_size:
            raise TarponError(
                f"rank {rank} of {self._world_size}: give one from 0 to {self._world_size - 1}"
            )
