"""A secret from the store where the ranks meet: only where the user says so, alike on all ranks."""

import datetime
import os
import stat
import sys
import tempfile
from unittest import mock

import ranks
import torch
import torch.distributed as dist
from models import ddp_and_sgd

import tarpon_torch
from tarpon_torch import meeting, store_secret

FROM_STORE = {store_secret.VARIABLE: "1"}


def _expect_error(text, function, *arguments):
    try:
        function(*arguments)
    except RuntimeError as error:
        assert text in str(error), error
        return
    raise AssertionError(f"no error: {text}")


def test_source():
    """A named secret wins; else the argument, else the variable."""
    of = store_secret.source
    named = {"TARPON_SECRET_FILE": "/x"}
    assert of(None, {}) == of(None, {store_secret.VARIABLE: "0"}) == of(False, FROM_STORE) == store_secret.NONE
    assert of(None, FROM_STORE) == of(True, {}) == store_secret.FROM_STORE
    for one in (named, {"TARPON_SECRET_FD": "7"}):
        assert of(None, one) == of(True, {**one, **FROM_STORE}) == store_secret.GIVEN
    keyed, sealed = ({"TARPON_INTEGRITY": value} for value in ("keyed", "sealed"))
    assert store_secret.integrity(store_secret.GIVEN, keyed) == store_secret.integrity(store_secret.NONE, {})
    assert store_secret.integrity(store_secret.NONE, keyed) == "keyed"
    assert store_secret.integrity(store_secret.GIVEN, sealed) == "sealed"
    _expect_error("TARPON_SECRET_FROM_STORE=yes: use 1, or 0", of, None, {store_secret.VARIABLE: "yes"})


def test_store():
    """Rank 0 deletes the key; a store that may keep it in a file is refused."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    part = dist.PrefixStore("part", store)
    secret = store_secret.give(part, "key")
    assert len(secret) == 64 and secret != store_secret.give(part, "other")
    assert store_secret.take(part, "key") == secret
    assert store_secret.take(part, "key") == secret
    store_secret.forget(part, "key")
    _expect_error("is gone, as rank 0 has given up", store_secret.take, part, "key")
    _expect_error("imeout", part.wait, ["key"], datetime.timedelta(seconds=0.1))
    part.wait(["other"], datetime.timedelta(seconds=0.1))
    assert secret not in repr(meeting.Place("job", secret=secret))
    store_secret.check_store(part)
    with tempfile.TemporaryDirectory() as place:
        file = dist.PrefixStore("part", dist.FileStore(os.path.join(place, "store"), 2))
        _expect_error("a FileStore may keep it in a file", store_secret.check_store, file)
    _expect_error("has no store", store_secret.check_store, None)


def test_memory():
    """The file is gone with the block, and nobody else may open it."""
    before = len(os.listdir("/proc/self/fd"))
    with store_secret.in_memory("x" * 64) as path:
        facts = os.stat(path)
        assert stat.S_IMODE(facts.st_mode) == 0o600 and facts.st_size == 64
        assert not os.get_inheritable(int(path.rsplit(b"/", 1)[1]))
        with open(path, encoding="ascii") as file:
            assert file.read() == "x" * 64
    assert len(os.listdir("/proc/self/fd")) == before


def _sum(group=None):
    value = torch.ones(1000)
    dist.all_reduce(value, group=group)
    return value[0].item()


_drawn = []


def _recorded():
    """While it lasts, ranks that start keep the secrets that they give and take in _drawn."""

    def recording(function):
        def recorded(*arguments):
            _drawn.append(function(*arguments))
            return _drawn[-1]

        return recorded

    names = ("give", "take")
    return mock.patch.multiple(
        store_secret, **{name: recording(getattr(store_secret, name)) for name in names}
    )


def secrets_of_groups():
    """The secrets that this rank has given or taken, for groups that do and do not share a job."""
    first = list(_drawn)
    sums = [_sum(), _sum(dist.new_group())]
    split = list(_drawn)
    os.environ["TARPON_CODEC"] = "on"  # a group that cannot share the job of the first one
    sums.append(_sum(dist.new_group()))
    return [sums, first, split, _drawn]


def test_shared():
    """Each job has one secret, alike on all ranks; a group that is split from it has no own one."""
    with _recorded():
        results, said = ranks.run("secrets_of_groups", 3, environment=FROM_STORE, said=True)
    for sums, first, split, drawn in results:
        assert sums == [3.0] * 3, sums
        assert first == split == drawn[:1] and len(set(drawn)) == 2, drawn
        assert drawn == results[0][3], "ranks have different secrets"
    assert [text.count("comes from the store") for text in said] == [2, 0, 0], said
    assert not any(secret in text for secret in drawn for text in said)


def sum_of_group():
    return _sum()


def test_told():
    """TARPON_DEBUG=INFO: each rank tells how its packets are protected, and not the secret."""
    variables = {**FROM_STORE, "TARPON_DEBUG": "INFO", "TARPON_INTEGRITY": "sealed"}
    sums, said = ranks.run("sum_of_group", 2, environment=variables, said=True)
    assert sums == [2.0, 2.0], sums
    for rank, text in enumerate(said):
        assert f"tarpon: rank {rank} of 2: data path " in text, text
        assert " over lo, integrity sealed, secret: one from the store" in text, text
    _, said = ranks.run("sum_of_group", 2, environment={}, said=True)
    assert not any("data path" in text for text in said), said


def test_used():
    """The connections prove it: a rank with another one is refused."""
    own = store_secret.take
    variables = {**FROM_STORE, "TARPON_RENDEZVOUS_TIMEOUT": "3s"}
    with mock.patch.object(store_secret, "take", lambda *arguments: own(*arguments)[::-1]):
        try:
            ranks.run("secrets_of_groups", 2, environment=variables)
        except ranks.Failed as error:
            assert "a process has another secret than rank 0" in str(error), error
        else:
            raise AssertionError("ranks with different secrets have connected")


def refused():
    """What init_process_group("tarpon") says of a group of these ranks."""
    try:
        dist.new_group(backend="tarpon")
        return "accepted"
    except RuntimeError as error:
        return str(error)


def test_differ():
    """One rank has the setting, another one not, or a file: all are told which."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x" * 32)
        file.flush()
        named = {"TARPON_SECRET_FILE": file.name}
        for first, second, text in (
            (FROM_STORE, {}, f"rank 1 has secret=none, and rank 0 {store_secret.FROM_STORE}"),
            ({}, FROM_STORE, f"rank 1 has secret={store_secret.FROM_STORE}, and rank 0 none"),
            (FROM_STORE, named, f"rank 1 has secret={store_secret.GIVEN}, and rank 0 one from"),
        ):
            for said in ranks.run(
                "refused", 2, environment=lambda rank: (first, second)[rank], backend="gloo+tarpon"
            ):
                assert text in said, said
        # A file on all of them wins.
        both = {**FROM_STORE, **named}
        with _recorded():
            results, said = ranks.run("secrets_of_groups", 2, environment=both, said=True)
        assert all(sums == [2.0] * 3 and drawn == [] for sums, _, _, drawn in results), results
        assert "comes from the store" not in said[0]


def hook_takes_it():
    ddp, optimizer = ddp_and_sgd()
    hook = tarpon_torch.bounded_hook(ddp, optimizer, secret_from_store=True)
    for _ in range(2):
        optimizer.zero_grad()
        ddp(torch.randn(4, 64)).sum().backward()
        optimizer.step()
    hook.finish()
    return _drawn


def test_hook():
    with _recorded():
        first, second = ranks.run("hook_takes_it", 2, backend="gloo")
    assert len(first) == 1 and first == second, (first, second)


FUNCTIONS = {
    function.__name__: function
    for function in (secrets_of_groups, sum_of_group, refused, hook_takes_it)
}
TESTS = {
    "source": test_source,
    "store": test_store,
    "memory": test_memory,
    "shared": test_shared,
    "told": test_told,
    "used": test_used,
    "differ": test_differ,
    "hook": test_hook,
}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
