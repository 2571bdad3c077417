"""PyTorch's backend gloo with libtarpon_gloo.so in front: unchanged programs, and who decides."""

import os
import re
import signal
import sys
import tempfile
import time

import ranks
import torch
import torch.distributed as dist
from models import train

SHIM = os.environ["TARPON_GLOO_SHIM"]
CARRIED = re.compile(
    r"^tarpon: rank (\d+) carried (\d+) allreduces, (\d+) bytes, datapath (\w+), mode (\w+), "
    r"lost ([0-9.e-]+)%$",
    re.MULTILINE,
)


def training(steps):
    result = train(steps)
    dist.barrier()
    return result


def several_groups():
    rank = dist.get_rank()
    wrong = []
    for number in range(8):
        members = [number % 3, (number + 1) % 3]
        group = dist.new_group(members)
        if rank in members:
            for dtype in (torch.float32, torch.float16, torch.int64, torch.uint8):
                value = torch.full((100,), rank + 1, dtype=dtype)
                dist.all_reduce(value, group=group)
                if not bool((value == sum(members) + 2).all()):
                    wrong.append([number, str(dtype)])
            dist.destroy_process_group(group)
    dist.barrier()
    return wrong


def large_sum():
    value = torch.ones(1 << 20) * (dist.get_rank() + 1)
    dist.all_reduce(value)
    small = torch.ones(16) * (dist.get_rank() + 1)
    dist.all_reduce(small)
    dist.barrier()
    return [float(value.min()), float(value.max()), float(small[0])]


def killed():
    """How long rank 0 waits for rank 1, which kills itself, and what it is told."""
    value = torch.ones(1000)
    dist.all_reduce(value)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        for _ in range(100):
            dist.all_reduce(value)
    except RuntimeError as error:
        return [time.monotonic() - start, str(error)]
    return [0, "no error"]


def differing_counts():
    try:
        dist.all_reduce(torch.ones(10 + dist.get_rank()))
    except RuntimeError as error:
        return str(error)
    return "no error"


def _carried(**more):
    return {"LD_PRELOAD": SHIM, "TARPON_DEBUG": "INFO", **more}


def _run(name, world, arguments=None, environment=None, **more):
    return ranks.run(name, world, arguments, environment, backend="gloo", said=True, fresh=True, **more)


def test_training():
    """DDP: the bits of stock Gloo at 2 ranks, equal within rounding at 3; all of it carried."""
    for world in (2, 3):
        stock, _ = _run("training", world, {"steps": 50})
        ours, said = _run("training", world, {"steps": 50}, _carried())
        assert all(one["digest"] == ours[0]["digest"] for one in ours), "the ranks' models differ"
        if world == 2:
            assert ours[0]["digest"] == stock[0]["digest"], "not the bits of Gloo"
        apart = max(abs(a - b) for a, b in zip(ours[0]["sums"], stock[0]["sums"]))
        assert apart < 1e-3, apart
        for rank, text in enumerate(said):
            found = CARRIED.search(text)
            assert found and int(found[1]) == rank and int(found[2]) >= 50, text
            assert found[5] == "exact" and float(found[6]) == 0, text
        assert f"tarpon: carries AllReduce of {world} ranks by " in said[0], said[0]


def test_groups():
    wrong, said = _run("several_groups", 3, environment=_carried())
    assert wrong == [[], [], []], wrong
    # Each rank is in five or six of the eight groups, with four calls in each.
    assert sum(int(CARRIED.search(text)[2]) for text in said) == 8 * 2 * 4, said


def test_bounded():
    results, said = _run("large_sum", 3, environment=_carried(TARPON_MODE="bounded"))
    assert all(one == [6, 6, 6] for one in results), results
    assert all(CARRIED.search(text)[5] == "bounded" for text in said), said


def test_one_rank_without_it():
    """Gloo carries everything, on all ranks, and rank 0 says why."""
    for lacking in (0, 2):
        results, said = _run(
            "large_sum", 3, environment=lambda rank: {} if rank == lacking else _carried()
        )
        assert all(one == [6, 6, 6] for one in results), results
        assert not any(CARRIED.search(text) for text in said), said
        if lacking == 2:
            assert "AllReduce stays with Gloo: rank 2: runs without Tarpon" in said[0], said[0]


def test_refusals():
    wrong = _carried(TARPON_INTERFACE="nope7")
    results, said = _run(
        "large_sum", 2, environment=lambda rank: wrong if rank == 1 else _carried()
    )
    assert all(one == [3, 3, 3] for one in results), results
    assert "stays with Gloo: rank 1: TARPON_INTERFACE=nope7: no interface" in said[0], said[0]
    try:
        _run("large_sum", 2, environment=_carried(TARPON_MODE="fast", TARPON_REQUIRE="1"))
    except ranks.Failed as error:
        assert "TARPON_REQUIRE=1" in str(error) and "TARPON_MODE=fast" in str(error), error
    else:
        raise AssertionError("TARPON_REQUIRE=1 has no effect")
    with tempfile.TemporaryDirectory() as place:
        secrets = [os.path.join(place, str(rank)) for rank in range(2)]
        for secret, mode in zip(secrets, (0o600, 0o644)):
            with open(secret, "w", encoding="ascii") as file:
                file.write("s" * 64)
            os.chmod(secret, mode)
        try:
            _run("large_sum", 2, environment=lambda rank: _carried(TARPON_SECRET_FILE=secrets[rank]))
        except ranks.Failed as error:
            assert f"rank 1: the secret file '{secrets[1]}' is open to other users" in str(error), error
            assert "stays with Gloo" not in str(error), error
        else:
            raise AssertionError("a secret that others can read is taken")


def test_faults():
    results, _ = _run("killed", 3, environment=_carried(), killed=(1,))
    for rank in (0, 2):
        seconds, text = results[rank]
        assert seconds < 2 and "rank 1" in text and "peer_dead" in text, results
    results, _ = _run("differing_counts", 2, environment=_carried())
    for text in results:
        assert "mismatch" in text and "count" in text, results


FUNCTIONS = {
    function.__name__: function
    for function in (training, several_groups, large_sum, killed, differing_counts)
}
TESTS = {
    "training": test_training,
    "groups": test_groups,
    "bounded": test_bounded,
    "one_rank_without_it": test_one_rank_without_it,
    "refusals": test_refusals,
    "faults": test_faults,
}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
