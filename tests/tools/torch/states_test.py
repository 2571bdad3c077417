"""The states that ranks take from each other: what they hold, and what they may not hold."""

import collections
import io
import pickle
import sys

import numpy
import ranks
import torch
from models import small_model

from tarpon_torch import states
from tarpon_torch.library import TarponError


class Part:
    """Has any state."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


ran = []


def run(what):
    ran.append(what)


class Evil:
    """Runs code where it is loaded."""

    def __reduce__(self):
        return run, ("code",)


def _through_bytes(*parts):
    return states.load(states.save(parts), allow_pickle=False)


def test_round_trip():
    """Tensors of all kinds, and what optimizers and schedulers keep beside them."""
    tensors = [
        torch.arange(6, dtype=torch.float32).reshape(2, 3).t(),
        torch.tensor(3.5, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.empty(0, 3),
        torch.tensor([1 + 2j], dtype=torch.complex64),
        torch.tensor([-(1 << 62)]),
    ]
    plain = {
        "tuple": (0.1, float("inf"), None, True, "text", 1 << 70),
        "counter": collections.Counter([3, 3]),
        "size": torch.Size([2]),
        "type": torch.float64,
    }
    loaded_tensors, loaded = _through_bytes(Part(tensors), Part(plain))
    for ours, theirs in zip(tensors, loaded_tensors):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), (ours, theirs)
    assert loaded == plain and type(loaded["counter"]) is collections.Counter, loaded
    (rate,) = _through_bytes(Part(numpy.float32(0.25)))
    assert rate == 0.25 and type(rate) is float

    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5])
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    ours = (model, optimizer, scheduler)
    for number, part in enumerate(ours):
        states.check(f"state[{number}]", part, allow_pickle=False)
    for part, state in zip(ours, _through_bytes(*ours)):
        part.load_state_dict(state)
    assert _through_bytes(model)[0]._metadata == model.state_dict()._metadata


def test_foreign_code():
    """Code that the bytes name does not run, unless that is permitted."""
    evil = states.save([Part({"a": torch.ones(3), "b": Evil()})])
    try:
        states.load(evil, allow_pickle=False)
        raise AssertionError("loaded")
    except TarponError as error:
        assert "allow_pickle=True" in str(error), error
    assert ran == []
    try:
        states.check("state[0]", Part(Evil()), allow_pickle=False)
        raise AssertionError("permitted")
    except TarponError as error:
        assert "state[0]=Part" in str(error) and "allow_pickle=True" in str(error), error
    assert ran == []
    states.check("state[0]", Part(Evil()), allow_pickle=True)
    assert ran == []
    states.load(evil, allow_pickle=True)
    assert ran == ["code"]


def test_damaged():
    """Bytes that are no state end in one clear error."""
    good = states.save([Part([torch.ones(3), 0.5])])
    for damage in range(good.numel() - 8, good.numel()):
        bad = good.clone()
        bad[damage] ^= 0x55
        try:
            states.load(bad, allow_pickle=False)
            raise AssertionError("loaded")
        except TarponError as error:
            assert "cannot be read" in str(error), error


def _refused(pickled, tensors=64):
    """What load() says of `tensors` bytes of tensors and this pickle."""
    data = torch.zeros(tensors, dtype=torch.uint8)
    tail = pickled + len(pickled).to_bytes(8, "little")
    data = torch.cat([data, torch.frombuffer(bytearray(tail), dtype=torch.uint8)])
    try:
        states.load(data, allow_pickle=False)
    except TarponError as error:
        return str(error)
    raise AssertionError("loaded")


class _Named(pickle.Pickler):
    """Writes ("tensor", TYPE, SHAPE, OFFSET) as the name of a tensor."""

    def persistent_id(self, obj):
        return obj if isinstance(obj, tuple) and obj[:1] == ("tensor",) else None


def test_sizes():
    """A tensor has bytes among those that came, and of its own."""
    for shape, offset, count in (
        ((300_000_000,), 0, 1),  # its one byte would be repeated
        ((65,), 0, 1),
        ((8,), 1_000_000, 1),
        ((8,), -8, 1),
        ((-8,), 0, 1),
        ((1 << 40, 1 << 40), 0, 1),
        ((64,), 0, 100),  # the same bytes again and again
    ):
        file = io.BytesIO()
        _Named(file, 4).dump([("tensor", "torch.uint8", shape, offset) for _ in range(count)])
        assert "cannot be read" in _refused(file.getvalue()), (shape, offset)


def test_named():
    """A part whose state cannot be given is named."""
    for part, part_of_text in (
        (Part(lambda: None), "cannot be saved"),
        (object(), "give an object with state_dict()"),
    ):
        try:
            states.check("state[1]", part, allow_pickle=False)
            raise AssertionError("permitted")
        except TarponError as error:
            assert "state[1]=" in str(error) and part_of_text in str(error), error


TESTS = {
    "round_trip": test_round_trip,
    "foreign_code": test_foreign_code,
    "damaged": test_damaged,
    "sizes": test_sizes,
    "named": test_named,
}

if __name__ == "__main__":
    sys.exit(ranks.main({}, TESTS))
