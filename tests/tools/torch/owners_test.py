"""Which ranks own parts of the next step's buckets, from the verdicts alone."""

import sys

import ranks

from tarpon_torch.communicator import Verdict
from tarpon_torch.owners import Owners


def verdict(reporters, late=(), rejoin=(), gone=()):
    return Verdict(
        step=1,
        decision="apply",
        decided_by=0,
        lost_fraction=0.0,
        reporters=tuple(reporters),
        rejoin=tuple(rejoin),
        differing=(),
        gone=tuple(gone),
        late=tuple(late),
        detail="",
    )


def after(owners, *verdicts):
    for one in verdicts:
        owners.take(one)
    return owners.shares


def test_still():
    """A rank that is late and does not report owns nothing until it reports again."""
    owners = Owners(4)
    assert after(owners, verdict(range(4))) is None
    assert after(owners, verdict(range(3), late=[3])) == [1, 1, 1, 0]
    assert after(owners, verdict([0, 1], late=[2, 3])) == [1, 1, 0, 0]
    assert after(owners, verdict(range(4), late=[3])) is None, "late, but it reports"
    assert after(Owners(4), verdict(range(3), rejoin=[3])) is None


def test_left_out():
    """A rank that leaves out step() takes no verdict. Its shares are those of the others all the same."""
    for before in verdict(range(4)), verdict(range(3), late=[3]):
        for left_out in verdict([0, 2], late=[3]), verdict([0, 2, 3]), verdict([0, 2, 3], late=[0]):
            others, rank_1 = Owners(4), Owners(4)
            assert after(others, before, left_out) == after(rank_1, before)
    others = Owners(4)
    after(others, verdict([0, 2], late=[3]))
    assert after(others, verdict(range(3), late=[3])) == [1, 1, 1, 0], "one step later"


def test_cut_off():
    """A rank that hears nobody names all others as late. It does not come to own all of the bucket."""
    assert after(Owners(4), verdict([3], late=[0, 1, 2])) is None
    assert after(Owners(5), verdict([3, 4], late=[0, 1, 2])) is None
    assert after(Owners(2), verdict([0], late=[1])) == [1, 0], "half of the ranks"


TESTS = {"still": test_still, "left_out": test_left_out, "cut_off": test_cut_off}

if __name__ == "__main__":
    sys.exit(ranks.main({}, TESTS))
