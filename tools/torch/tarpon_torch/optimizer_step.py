"""Another step() in place of an optimizer's, and which optimizers a hook can take."""

import inspect
import types
import warnings
from typing import Any, Callable

from .library import TarponError

_MARKS_OF_SCHEDULERS = ("_with_counter", "_wrapped_by_lr_sched")  # of PyTorch 1 and 2
_METHODS = ("step", "state_dict", "load_state_dict")


class ReplacedStep:
    """From its construction until restore(), optimizer.step() calls `step` with the same arguments."""

    def __init__(self, optimizer: Any, step: Callable[..., Any]):
        self._optimizer = optimizer
        self.apply: Callable[..., Any] = optimizer.step  # the optimizer's own

        def replaced(_: Any, *args: Any, **kwargs: Any) -> Any:
            return step(*args, **kwargs)

        # A scheduler that was made before has marked the method, and warns of one without its mark.
        for mark in _MARKS_OF_SCHEDULERS:
            if hasattr(optimizer.step, mark):
                setattr(replaced, mark, getattr(optimizer.step, mark))
        # Schedulers look for the optimizer behind the method.
        self._step = types.MethodType(replaced, optimizer)
        optimizer.step = self._step

    def restore(self) -> None:
        """A wrapper that was put around `step` since stays, and calls it on."""
        if self._optimizer.step is self._step:
            self._optimizer.step = self.apply


def check_optimizer(optimizer: Any, model: Any) -> None:
    """Errors: TarponError. Warns where others train parameters of `model`."""
    name = type(optimizer).__name__
    if isinstance(optimizer, (list, tuple)):
        raise TarponError(
            f"optimizer={[type(one).__name__ for one in optimizer]}: each step has one verdict; give one "
            "optimizer that has all parameters in its groups, or use bounded_hook(ddp) without one"
        )
    if not all(callable(getattr(optimizer, each, None)) for each in _METHODS):
        raise TarponError(f"optimizer={name}: give a torch.optim.Optimizer, or none")
    if "ZeroRedundancyOptimizer" in (each.__name__ for each in type(optimizer).__mro__):
        raise TarponError(
            f"optimizer={name}: each rank has a part of its state, and its step() has collectives of the "
            "process group; give an optimizer that is whole on each rank, or use bounded_hook(ddp) without "
            "one"
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TarponError(
            f"optimizer={name}: its step() takes several backward passes; use bounded_hook(ddp) without an "
            "optimizer"
        )
    _warn_of_others(optimizer, model)


def _warn_of_others(optimizer: Any, model: Any) -> None:
    groups = getattr(optimizer, "param_groups", [])
    own = {id(parameter) for group in groups for parameter in group["params"]}
    others = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in own
    ]
    if others:
        warnings.warn(
            f"{len(others)} parameters ({others[0]}, ...) are in no group of the optimizer: another one that "
            "trains them applies steps that are skipped here; give one optimizer for all",
            stacklevel=5,
        )
