"""Messages between two ranks, apart from the collectives."""

import ctypes
import functools
import time
from typing import Callable, Optional

import torch

from . import library as lib
from .blocks import Block
from .calls import Call, Ended, check_rank
from .handle import Handle
from .library import TarponError, microseconds
from .threads import Latch

_LARGEST_TAG = 65_535

Given = Callable[[], torch.Tensor]  # fails where there is no tensor


class Message(Call):
    """One that is on its way to a rank, or from it."""

    is_ordered = False

    def __init__(
        self, start: str, block: Optional[Block], peer: int, tag: int, *, deadline: float, ended: Ended
    ) -> None:
        """Without a `block` it has to be refused."""
        arguments = lib.sized(
            lib.Message,
            bytes=block.count * block.element_size if block is not None else 0,
            peer=peer,
            tag=tag,
            deadline_us=microseconds(deadline),
        )
        super().__init__(start, arguments, ended, input=block)

    @property
    def peer(self) -> int:
        """The other rank."""
        return self.arguments.peer

    def _set_pointers(self) -> None:
        assert self.input is not None
        self.arguments.data = self.input.address()


class MessageFromAny(Message):
    """Its peer is found while it waits."""

    _is_found = False

    def __init__(self, block: Block, tag: int, *, deadline: float, ended: Ended) -> None:
        super().__init__("tarpon_recv_start", block, 0, tag, deadline=deadline, ended=ended)
        self._until = time.monotonic() + deadline
        self._begun = Latch()

    def _set_refusal(self, text: str) -> None:
        """Without a peer it takes no number: the library does not begin a message without a size."""
        super()._set_refusal(text)
        self.arguments.size = ctypes.sizeof(self.arguments) if self._is_found else 0

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
            self._is_found = True
        except TarponError as error:
            self.refuse(error)
        self.arguments.peer = peer.value
        self.arguments.deadline_us = microseconds(max(0.0, self._until - time.monotonic()))
        handle.begin([self], more=False)
        if handle.is_open():
            self._begun.wait()


class Messages:
    """Of one rank. All functions begin to send or receive, and take `deadline` in seconds, and `ended`,
    which gets the message when it has ended. Messages of one sender, receiver and tag match in order.

    A message that this rank cannot send or receive ends at the other rank, too, and takes its place in the
    order. Errors: TarponError, for what has no place there: a wrong rank or tag, and a receive from any rank.
    """

    def __init__(self, handle: Handle, world_size: int):
        self._handle = handle
        self._world_size = world_size

    def send(self, tensor: Given, to: int, tag: int, *, deadline: float, ended: Ended) -> Message:
        """It ends when the receiver has it."""
        make_block = functools.partial(_block, tensor, read=True)
        return self._begin("tarpon_send_start", make_block, to, tag, deadline, ended)

    def receive(
        self, tensor: Given, sender: int, tag: int, *, deadline: float, ended: Ended
    ) -> Message:
        make_block = functools.partial(_block, tensor, written=True)
        return self._begin("tarpon_recv_start", make_block, sender, tag, deadline, ended)

    def receive_from_any(
        self, tensor: Given, tag: int, *, deadline: float, ended: Ended
    ) -> Message:
        """`peer` of the message tells the sender when it has ended."""
        _check_tag(tag)
        message = MessageFromAny(_block(tensor, written=True), tag, deadline=deadline, ended=ended)
        find = functools.partial(MessageFromAny.find, handle=self._handle)
        self._handle.begin_in_turn(f"from any rank, tag {tag}", find, message)
        return message

    def _begin(
        self,
        start: str,
        make_block: Callable[[], Block],
        peer: int,
        tag: int,
        deadline: float,
        ended: Ended,
    ) -> Message:
        check_rank("rank", peer, self._world_size)
        _check_tag(tag)
        try:
            message = Message(start, make_block(), peer, tag, deadline=deadline, ended=ended)
        except Exception as error:
            message = Message(start, None, peer, tag, deadline=deadline, ended=ended)
            message.refuse(error)
        self._handle.begin([message], more=False)
        return message


def _block(tensor: Given, **use: bool) -> Block:
    return Block([tensor()], **use)


def _check_tag(tag: int) -> None:
    if not 0 <= tag <= _LARGEST_TAG:
        raise TarponError(f"a message of tag {tag}: give one from 0 to {_LARGEST_TAG}")
