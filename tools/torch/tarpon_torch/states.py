"""The states of models, optimizers and schedulers as bytes, for a rank that takes those of another one.

The bytes are the tensors, then a pickle of everything around them, then the size of the pickle (8 bytes,
little-endian). They come over a network on which nothing proves their origin, and a pickle may run any
code when it is loaded. So load() refuses a pickle that names anything but the classes of _PERMITTED.
torch.load() cannot do that in all versions: in PyTorch 1.13 it ignores `pickle_module`, and
`weights_only` reads no floats.
"""

import io
import math
import pickle
from typing import Any, List, Sequence, Tuple

import torch

from .library import TarponError

_PERMITTED = (
    ("collections", "OrderedDict"),
    ("collections", "Counter"),  # of MultiStepLR
    ("torch", "Size"),
    ("torch", "device"),
)
_PROTOCOL = 4
_SIZE_BYTES = 8
_ALIGNED = 64  # bytes; where tensors begin


class _Pickler(pickle.Pickler):
    """Puts tensors aside. Numbers of NumPy become those of Python."""

    def __init__(self, file: io.BytesIO):
        super().__init__(file, _PROTOCOL)
        self.tensors: List[Tuple[int, torch.Tensor]] = []  # with the offsets of their bytes
        self.size = 0  # of all of them

    def persistent_id(self, obj: Any) -> Any:
        if type(obj).__module__ == "numpy" and hasattr(obj, "item") and obj.shape == ():
            return ("number", obj.item())
        if not isinstance(obj, torch.Tensor) or obj.layout != torch.strided or obj.is_quantized:
            return None
        offset = self.size
        self.tensors.append((offset, obj))
        self.size += -(-obj.numel() * obj.element_size() // _ALIGNED) * _ALIGNED
        return ("tensor", str(obj.dtype), tuple(obj.shape), offset)


class _Foreign(Exception):
    """A pickle names a class that is not permitted."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: torch.Tensor, allow_pickle: bool):
        super().__init__(file)
        self._tensors = tensors
        self._allow_pickle = allow_pickle
        self._left = tensors.numel()  # bytes that no tensor has taken

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if self._allow_pickle or is_dtype or (module, name) in _PERMITTED:
            return super().find_class(module, name)
        raise _Foreign(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        kind, *place = pid
        return place[0] if kind == "number" else self._tensor(*place)

    def _tensor(self, dtype: str, shape: Tuple[int, ...], offset: int) -> torch.Tensor:
        kind = getattr(torch, dtype.split(".")[-1])
        size = math.prod(shape) * torch.empty(0, dtype=kind).element_size()
        if min(shape, default=0) < 0 or not 0 <= offset <= self._tensors.numel() - size:
            raise ValueError(f"a tensor of {size} bytes at {offset} is not among its bytes")
        self._left -= size  # save() gives each tensor bytes of its own
        if self._left < 0:
            raise ValueError("its tensors have more bytes than it has")
        tensor = torch.empty(shape, dtype=kind, device="cpu")
        tensor.reshape(-1).view(torch.uint8).copy_(self._tensors[offset : offset + size])
        return tensor


class _NoTensors(_Unpickler):
    def _tensor(self, dtype: str, shape: Tuple[int, ...], offset: int) -> torch.Tensor:
        return torch.empty(0, device="cpu")


def check(name: str, part: Any, allow_pickle: bool) -> None:
    """Whether the state of `part`, which the caller calls `name`, can be given to another rank.

    Errors: TarponError. Copies no tensor.
    """
    if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
        raise TarponError(
            f"{name}={type(part).__name__}: give an object with state_dict() and load_state_dict()"
        )
    file = io.BytesIO()
    try:
        _Pickler(file).dump(part.state_dict())
    except Exception as error:
        raise TarponError(
            f"{name}={type(part).__name__}: its state_dict() cannot be saved ({error}): leave it out"
        ) from error
    if allow_pickle:
        return
    file.seek(0)
    try:
        _NoTensors(file, torch.empty(0), allow_pickle).load()
    except _Foreign as error:
        raise _refused(f"{name}={type(part).__name__}: its state", error) from error


def save(parts: Sequence[Any]) -> torch.Tensor:
    """The states of all parts, as bytes on the CPU."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump([part.state_dict() for part in parts])
    pickled = file.getvalue() + file.tell().to_bytes(_SIZE_BYTES, "little")
    data = torch.empty(pickler.size + len(pickled), dtype=torch.uint8, device="cpu")
    for offset, tensor in pickler.tensors:
        size = tensor.numel() * tensor.element_size()
        place = data[offset : offset + size].view(tensor.dtype).reshape(tensor.shape)
        place.copy_(tensor.detach())
    data[pickler.size :] = torch.frombuffer(bytearray(pickled), dtype=torch.uint8)
    return data


def load(data: torch.Tensor, allow_pickle: bool) -> List[Any]:
    """What save() has saved; all tensors are on the CPU.

    Unless `allow_pickle`, runs no code that the bytes name. Errors: TarponError.
    """
    end = data.numel() - _SIZE_BYTES
    size = int.from_bytes(bytes(data[end:].tolist()), "little")
    if size > end:
        raise TarponError("the state of another rank cannot be read: its bytes are damaged")
    file = io.BytesIO(memoryview(data[end - size : end].numpy()))
    try:
        return _Unpickler(file, data[: end - size], allow_pickle).load()
    except _Foreign as error:
        raise _refused("the state of another rank", error) from error
    except Exception as error:
        raise TarponError(f"the state of another rank cannot be read: {error}") from error


def _refused(holder: str, error: _Foreign) -> TarponError:
    return TarponError(
        f"{holder} holds {error}, and to load that may run any code: keep it out of state_dict(), or give "
        "allow_pickle=True where no stranger can send packets to the ranks"
    )
