"""Arguments of the hook that it refuses: each with one line that names argument, value and remedy."""

import sys
import warnings

import ranks
import torch
import torch.distributed as dist
from models import ddp_and_sgd
from torch.distributed.optim import ZeroRedundancyOptimizer

import tarpon_torch


def refused():
    texts = []
    ddp, optimizer = ddp_and_sgd()
    for wrong in (torch.optim.LBFGS(ddp.parameters()), optimizer):
        own_step = wrong.step
        try:
            tarpon_torch.bounded_hook(ddp, wrong).finish()
            tarpon_torch.bounded_hook(ddp, wrong)  # a second hook, which DDP refuses
        except RuntimeError as error:
            texts.append(str(error))
        assert wrong.step == own_step, "the optimizer's step() is not its own"
    return texts


def test_refused():
    for texts in ranks.run("refused", 2, backend="gloo"):
        assert len(texts) == 2 and "LBFGS" in texts[0], texts


WRONG = [
    ({"deadline": "10s"}, "deadline='10s': give seconds"),
    ({"deadline": 0}, "deadline=0: give seconds"),
    ({"bound": -1.0}, "bound=-1.0: give seconds"),
    ({"bound": True}, "bound=True: give seconds"),
    ({"rejoin_deadline": None}, "rejoin_deadline=None: give seconds"),
    ({"rejoin_deadline": float("nan")}, "rejoin_deadline=nan: give seconds"),
    ({"loss_target": "0.1%"}, "loss_target='0.1%': give a share"),
    ({"loss_target": 1}, "loss_target=1: give a share above 0 and below 1"),
    ({"loss_target": lambda step: step}, "loss_target(0)=0: give a share"),
    ({"loss_target": len}, "loss_target(0): TypeError: object of type 'int' has no len()"),
    ({"silent_after": 0.009}, "silent_after=0.009: give seconds from 0.01 on"),
    ({"skip_above": 0}, "skip_above=0: give a share"),
    ({"halt_above": 2.0}, "halt_above=2.0: give a share"),
    ({"retain_bytes": -5}, "retain_bytes=-5: give bytes"),
    ({"retain_bytes": 0}, "retain_bytes=0: give bytes"),
    ({"retain_bytes": 1.5}, "retain_bytes=1.5: give bytes"),
    ({"compare_every": -1}, "compare_every=-1: give a whole number"),
    ({"compare_every": 0.5}, "compare_every=0.5: give a whole number"),
    ({"largest_distance": -1}, "largest_distance=-1: give a number"),
    ({"codec": "on"}, "codec='on': give True"),
    ({"secret_from_store": "yes"}, "secret_from_store='yes': give True"),
    ({"interface": 3}, "interface=3: give the name"),
    ({"allow_pickle": 1}, "allow_pickle=1: give True or False"),
    ({"on_report": "print"}, "on_report='print': give a function"),
    ({"log": 7}, "log=7: give the path"),
    ({"log": "/nowhere/log"}, "log=/nowhere/log: No such file"),
    ({"state": "scheduler"}, "state=str: give a list"),
    ({"state": [3]}, "state[0]=int: give an object with state_dict()"),
]


def wrong_arguments():
    """The argument, and what the error says of it."""
    ddp, optimizer = ddp_and_sgd()
    said = []

    def attempt(what, model, *arguments, **options):
        try:
            tarpon_torch.bounded_hook(model, *arguments, **options).finish()
            said.append([what, "accepted"])
        except Exception as error:
            said.append([what, f"{type(error).__name__}: {error}"])

    for options, expected in WRONG:
        attempt(expected, ddp, optimizer, **options)
    attempt("model=Sequential: give the DistributedDataParallel", ddp.module, optimizer)
    attempt("optimizer=['SGD', 'SGD']: each step has one verdict", ddp, [optimizer, optimizer])
    attempt("optimizer=str: give a torch.optim.Optimizer", ddp, "SGD")
    zero = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)
    attempt("optimizer=ZeroRedundancyOptimizer: each rank has a part", ddp, zero)
    return said


def wrong_on_one():
    """Rank 1 alone gives a wrong argument, or another one than rank 0."""
    ddp, optimizer = ddp_and_sgd()
    rank = dist.get_rank()
    said = []
    for options in (
        {"deadline": "10s"} if rank == 1 else {},
        {"compare_every": 50 + rank},
        {"bound": [None, 0.5][rank]},
        {"silent_after": [0.3, 0.2][rank]},
        {"loss_target": [0.01, lambda step: 0.01][rank]},
    ):
        try:
            tarpon_torch.bounded_hook(ddp, optimizer, **options).finish()
            said.append("accepted")
        except RuntimeError as error:
            said.append(str(error))
    return said


def partly_trained():
    """What is warned of where parameters belong to another optimizer."""
    ddp, _ = ddp_and_sgd()
    optimizer = torch.optim.SGD(list(ddp.parameters())[:2], lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tarpon_torch.bounded_hook(ddp, optimizer).finish()
    return [f"{one.filename}: {one.message}" for one in caught]


def test_wrong_arguments():
    for said in ranks.run("wrong_arguments", 1, backend="gloo"):
        assert len(said) == len(WRONG) + 4
        wrong = [one for one in said if not one[1].startswith("TarponError: " + one[0])]
        assert wrong == [], wrong


def test_wrong_on_one():
    """All ranks get the same error."""
    for said in ranks.run("wrong_on_one", 2, backend="gloo"):
        assert said == [
            "rank 1: deadline='10s': give seconds above 0, as a number: 0.5 for example",
            "compare_every: 50 on rank 0, 51 on rank 1: give all ranks the same",
            "bound: None on rank 0, 0.5 on rank 1: give all ranks the same",
            "rank 1 has silent_after=0.2s, and rank 0 0.3s: give all ranks the same",
            "loss_target (1: a function): 0 on rank 0, 1 on rank 1: give all ranks the same",
        ], said


def test_partly_trained():
    (said,) = ranks.run("partly_trained", 1, backend="gloo")
    assert len(said) == 1 and "4 parameters (2.weight, ...) are in no group" in said[0], said
    assert "hook_options_test.py" in said[0], said


FUNCTIONS = {
    function.__name__: function
    for function in (refused, wrong_arguments, wrong_on_one, partly_trained)
}
TESTS = {
    "refused": test_refused,
    "wrong_arguments": test_wrong_arguments,
    "wrong_on_one": test_wrong_on_one,
    "partly_trained": test_partly_trained,
}

if __name__ == "__main__":
    sys.exit(ranks.main(FUNCTIONS, TESTS))
