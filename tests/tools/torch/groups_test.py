"""Groups that share the job of the first one: what they cost, and that none ends another one."""

import datetime
import os
import resource
import sys

import ranks
import torch
import torch.distributed as dist


def _held():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def _sum_of(group, members):
    value = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(value, group=group)
    return float(value) == sum(members)


def _cost_of(number, **options):
    """Descriptors and threads of one of `number` groups of all ranks, the groups, and wrong sums."""
    everybody = range(dist.get_world_size())
    before = _held()
    groups = [dist.new_group(**options) for _ in range(number)]
    wrong = sum(not _sum_of(group, everybody) for group in groups for _ in range(2))
    after = _held()
    return [(after[what] - before[what]) / number for what in (0, 1)], groups, wrong


def many(count):
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    _sum_of(None, [])
    gloo, of_gloo, _ = _cost_of(4, backend="gloo")
    for group in of_gloo:
        dist.destroy_process_group(group)
    own, groups, wrong = _cost_of(count)
    return [gloo, own, wrong]


def test_many():
    for count, world in ((60, 2), (8, 8)):
        for gloo, own, wrong in ranks.run("many", world, {"count": count}, timeout=280):
            assert wrong == 0
            # One thread ends the calls of a group. Eight of these threads have a ring of io_uring.
            assert own[0] <= gloo[0] + 10 / count and own[1] <= gloo[1] + 1.5, (world, own, gloo)


def apart():
    """Each group ends alone."""
    wrong = []
    rank = dist.get_rank()

    def check(what, group, members):
        if rank in members and not _sum_of(group, members):
            wrong.append(what)

    lists = {"pair": [0, 1], "turned": [2, 0], "all": [0, 1, 2], "one": [1]}
    groups = {name: dist.new_group(members) for name, members in lists.items()}
    for name, members in lists.items():
        check(name, groups[name], members)
    if rank == 0:
        groups["pair"].abort()
    if rank in lists["pair"]:
        try:
            dist.all_reduce(torch.ones(1), group=groups["pair"])
            wrong.append("aborted, and goes on")
        except RuntimeError as error:
            if "abort" not in str(error):
                wrong.append(str(error))
    for name in ("turned", "all", "one"):
        check(f"{name} after an abort", groups[name], lists[name])
    check("the first after an abort", None, [0, 1, 2])
    first = dist.distributed_c10d._get_default_group()
    dist.barrier(groups["all"])  # all have their sums
    if rank == 1:
        first.abort()
    dist.barrier(groups["all"])
    for name in ("turned", "all", "one"):
        check(f"{name} after the first was aborted", groups[name], lists[name])
    first.communicator.close()
    for name in ("turned", "all", "one"):
        check(f"{name} after the first was closed", groups[name], lists[name])
    late = dist.new_group()
    check("made after that", late, [0, 1, 2])
    for name in ("all", "turned"):
        if rank in lists[name]:
            groups[name].communicator.close()
    check("one after others were closed", groups["one"], lists["one"])
    check("another first", late, [0, 1, 2])
    return wrong


def test_apart():
    for wrong in ranks.run("apart", 3):
        assert wrong == [], wrong


def not_shared():
    """Descriptors of further groups: where what they need is not in a common job, they connect."""
    everybody = [0, 1, 2]
    rank = dist.get_rank()
    wrong, costs = [], {}

    def make(what, members):
        before = _held()[0]
        group = dist.new_group(members, backend="tarpon")
        if rank in members:
            costs[what] = _held()[0] - before
            if not _sum_of(group, members):
                wrong.append(what)
        return group

    kept = [make("first", [0, 1]), make("with one more", everybody), make("shared", everybody)]
    os.environ["TARPON_DEADLINE"] = "7s"
    kept.append(make("another deadline", everybody))
    if rank < 2:
        os.environ["TARPON_CODEC"] = "off"
    del os.environ["TARPON_DEADLINE"]
    kept.append(make("another codec", [0, 1]))
    os.environ.pop("TARPON_CODEC", None)
    os.environ["TARPON_MULTICAST"] = "off"
    kept.append(make("multicast", everybody))
    return [wrong, costs]


def test_not_shared():
    for wrong, costs in ranks.run("not_shared", 3, backend="gloo+tarpon"):
        assert wrong == [], wrong
        shared = {"shared", "another deadline"}
        cheap = {what for what, cost in costs.items() if cost < costs["with one more"] - 5}
        assert cheap == shared, costs


def no_number():
    """All numbers of splits are used up."""
    from tarpon_torch import jobs

    jobs._MAX_NUMBER = 2
    groups = [dist.new_group() for _ in range(4)]
    return sum(not _sum_of(group, range(dist.get_world_size())) for group in groups)


def test_no_number():
    assert ranks.run("no_number", 2) == [0, 0]


def stale():
    """A store that outlives the ranks which wrote into it."""
    from tarpon_torch import Communicator, TarponError

    store = dist.PrefixStore("kept", dist.distributed_c10d._get_default_store())
    rank, world = dist.get_rank(), dist.get_world_size()
    Communicator.connect(store, rank, world, 30.0).close(seconds=0)
    dist.barrier()
    text = "no error"
    try:
        Communicator.connect(store, rank, world, 30.0)
    except TarponError as error:
        text = str(error)
    dist.barrier()  # the store ends with rank 0
    return text


def test_stale():
    for text in ranks.run("stale", 2):
        assert "did it outlive an earlier run" in text, text


def differ():
    """Groups of ranks whose options differ."""
    begin = datetime.datetime.now()
    try:
        dist.new_group(backend="tarpon")
        text = "no error"
    except RuntimeError as error:
        text = str(error)
    dist.barrier()
    return [text, (datetime.datetime.now() - begin).total_seconds()]


def test_differ():
    for mine, others, named in (
        ({"TARPON_MODE": "bounded"}, {}, "rank 1 has TARPON_MODE=bounded, and rank 0 exact"),
        ({}, {"TARPON_BOUND": "50ms"}, "TARPON_BOUND"),
        ({"TARPON_SHARES": "auto"}, {}, "TARPON_SHARES"),
        ({"TARPON_LOSS_TARGET": "1%"}, {"TARPON_LOSS_TARGET": "2%"}, "loss_target=0.01"),
        ({"TARPON_CODEC": "off"}, {}, "rank 1 has codec=off, and rank 0 auto"),
        ({"TARPON_LOSS_TARGET": "1%"}, {"TARPON_LOSS_TARGET": "1.0%"}, "no error"),
    ):
        for text, seconds in ranks.run(
            "differ",
            2,
            environment=lambda rank: mine if rank == 1 else others,
            backend="gloo+tarpon",
        ):
            assert named in text and seconds < 30, (text, seconds)


FUNCTIONS = {
    function.__name__: function for function in (many, apart, not_shared, no_number, stale, differ)
}
TESTS = {
    "many": test_many,
    "apart": test_apart,
    "not_shared": test_not_shared,
    "no_number": test_no_number,
    "stale": test_stale,
    "differ": test_differ,
}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
