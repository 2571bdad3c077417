"""The works that c10d waits for."""

import collections
import datetime
import sys
import time
from typing import Deque, List, Optional

import torch
from torch._C._distributed_c10d import Work

from .calls import Outcome, Report
from .library import TarponError

_KEPT_WORKS = 1000
_TENSOR_SECONDS = 5.0  # that a work which is over keeps tensors for C++, which asks for them at once
_OWN_REFERENCES = 2  # to a work, in keep(): a variable, and an argument of getrefcount()


class TarponWork(Work):
    """The end of one or more calls. They have deadlines, so that no wait needs one."""

    def __init__(self, outcome: Outcome, tensors: List[torch.Tensor]):
        super().__init__()
        self._outcome = outcome
        self._tensors = tensors
        self._future: Optional["torch.futures.Future[List[torch.Tensor]]"] = None
        self._asked = False
        self._ended_at: Optional[float] = None
        self.report: Optional[Report] = None  # of its call that ended last
        self.source: Optional[int] = None  # the rank whose message came

    def expect(self, calls: int) -> None:
        """Waits for further calls. REQUIRES: it is not over."""
        for _ in range(calls):
            self._outcome.expect_another()

    def end(self, error: Optional[Exception]) -> None:
        """One of its calls has ended."""
        self._outcome.end(error)
        if self._outcome.is_over():
            self._ended_at = time.monotonic()

    def is_done_with(self) -> bool:
        """Whether its calls are over, and C++ has what it asks for once."""
        return self._asked and self._outcome.is_over()

    def may_forget(self) -> bool:
        """Whether its calls have been over for some time."""
        return self._ended_at is not None and time.monotonic() - self._ended_at > _TENSOR_SECONDS

    def forget_tensors(self) -> None:
        """It still tells whether the calls have failed."""
        self._tensors = []

    def is_completed(self) -> bool:
        self._asked = self._asked or self._outcome.is_over()
        return self._outcome.is_over()

    def is_success(self) -> bool:
        return self._outcome.is_over() and self._outcome.error() is None

    def exception(self) -> Optional[Exception]:
        return self._outcome.error()

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        """At most `timeout`, where that is above 0. Errors: TarponError."""
        self._asked = True
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        self._outcome.wait(seconds if seconds > 0 else None)
        return True

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> List[torch.Tensor]:
        self.wait()
        return self._tensors

    def _source_rank(self) -> int:
        """Where the tensor came from."""
        self.wait()
        if self.source is None:
            raise TarponError("the source rank of a work that receives nothing: ask one of recv()")
        return self.source

    def get_future(self) -> "torch.futures.Future[List[torch.Tensor]]":
        self._asked = True
        caller = sys._getframe().f_back
        if caller is None or "get_future" not in caller.f_code.co_names:
            return self._future_for_cpp()
        if self._future is None:
            self._future = self._outcome.future_of(self._tensors)
        return self._future

    def _future_for_cpp(self) -> "torch.futures.Future[List[torch.Tensor]]":
        """C++ calls get_future() for DDP's built-in hooks, which take a list of tensors. The futures of
        Python have values of Python, and a typed one can only be made of a value that is there. So
        this waits: such a hook does not overlap with the backward pass.
        """
        self.wait()
        return torch.jit.fork(lambda: self._tensors)


class Works:
    """The works that C++ may still ask. C++ holds a work without its Python part, which answers for it, and
    asks it soon."""

    def __init__(self) -> None:
        self._works: Deque[TarponWork] = collections.deque(maxlen=_KEPT_WORKS)
        self._without_tensors: Deque[TarponWork] = collections.deque(maxlen=_KEPT_WORKS)

    def keep(self, work: TarponWork) -> None:
        """Until C++ has asked it; at most _KEPT_WORKS. For each new one, two are looked at. One that nobody asks
        loses its tensors, unless Python refers to it."""
        for _ in range(2):
            try:
                older = self._works.popleft()
            except IndexError:  # there are no more, or another thread has them
                break
            if older.is_done_with():
                continue
            if older.may_forget() and sys.getrefcount(older) <= _OWN_REFERENCES:
                older.forget_tensors()
                self._without_tensors.append(older)
            else:
                self._works.append(older)
        self._works.append(work)
