"""A rank of `./dev bench groups`: groups that come and go, and what they leave behind.

Usage: groups_rank.py CELL COUNT; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them.
Prints one line of JSON."""
import gc, json, os, resource, sys, threading, time

import torch
import torch.distributed as dist

import tarpon_torch  # registers the backend
from tarpon_torch import library as lib
from tarpon_torch.calls import CallError
from tarpon_torch.communicator import Communicator

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CONNECT_S = 20.0
LONG_S = 60.0          # deadline of a call that only abort() ends
STUCK_ELEMENTS = 4 << 20
ABORT_AFTER_S = 0.03   # the calls are on their way by then


def usage():
    """What this process holds."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as statm:
        pages = int(statm.read().split()[1])
    opened = []
    for number in os.listdir("/proc/self/fd"):
        try:
            opened.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            pass  # that of listdir()
    return {"descriptors": len(opened),
            "rings": opened.count("anon_inode:[io_uring]"),
            "threads": len(os.listdir("/proc/self/task")),
            "rss_kib": pages * os.sysconf("SC_PAGE_SIZE") // 1024}


def store():
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), WORLD, RANK == 0)


def meet(place, name, number):
    """Returns when `number` processes are here."""
    place.add(name, 1)
    while place.add(name, 0) < number:
        time.sleep(0.002)


def abort_later(communicator, times):
    time.sleep(ABORT_AFTER_S)
    times["aborted"] = time.monotonic()
    communicator.abort("the members change")


def one_group(prefixed, members, stuck):
    """When its first call was over, when one member aborted it, and when the stuck call ended."""
    number = members.index(RANK)
    communicator = Communicator.connect(prefixed, number, len(members), CONNECT_S)
    value = torch.full((1000,), float(number))
    communicator.allreduce_now(value, lib.SUM, deadline=CONNECT_S)
    if float(value[0]) != sum(range(len(members))):
        raise SystemExit(f"rank {RANK}: wrong sum {float(value[0])}")
    times = {"stood": time.monotonic()}
    meet(prefixed, "stands", len(members))
    aborter = threading.Thread(target=abort_later, args=(communicator, times))
    if number == 1:
        aborter.start()
    # The last member makes another call than the others, so that no call can end.
    tag = int(number == len(members) - 1)
    try:
        communicator.allreduce_now(stuck, lib.SUM, tag=tag, deadline=LONG_S)
        raise SystemExit(f"rank {RANK}: a call ended without all of its ranks")
    except CallError as error:
        times["ended"] = time.monotonic()
        # Members that the abort has reached close, which others may hear first.
        if error.report.status != "aborted":
            raise SystemExit(f"rank {RANK}: not aborted: {error}") from None
    if number == 1:
        aborter.join()
    communicator.close(seconds=0)
    return times


def regroup(count):
    """All processes but one form a group; another one sits out in each round."""
    place = store()
    stuck = torch.zeros(STUCK_ELEMENTS)
    rounds, used = [], []
    for number in range(count):
        members = [rank for rank in range(WORLD) if rank != number % WORLD]
        times = {}
        if RANK in members:
            times = one_group(dist.PrefixStore(f"group{number}", place), members, stuck)
        rounds.append({**times, "over": time.monotonic()})
        meet(place, f"over{number}", WORLD)
        if (number + 1) % WORLD == 0:
            used.append({"round": number, **usage()})
    return {"rounds": rounds, "used": used}


def many(count):
    """`count` groups of all ranks at once, within 1024 descriptors; all are gone afterwards."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    dist.init_process_group("tarpon")
    dist.all_reduce(torch.ones(1))
    before = usage()
    groups = [dist.new_group() for _ in range(count)]
    for group in groups:
        value = torch.full((100,), float(RANK))
        dist.all_reduce(value, group=group)
        if float(value[0]) != sum(range(WORLD)):
            raise SystemExit(f"rank {RANK}: wrong sum {float(value[0])}")
    during = usage()
    dist.barrier()
    for group in groups:
        dist.destroy_process_group(group)
    del group, groups
    after = usage()
    dist.barrier()
    dist.destroy_process_group()
    return {"before": before, "during": during, "after": after}


def calls(count):
    """AllReduces of 4 KiB one after another."""
    dist.init_process_group("tarpon")
    value = torch.zeros(1024)
    blocks = []
    for _ in range(10):
        start = time.monotonic()
        for _ in range(count // 10):
            dist.all_reduce(value)
        blocks.append({"seconds": time.monotonic() - start, **usage()})
    dist.barrier()
    dist.destroy_process_group()
    return {"blocks": blocks}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"regroup": regroup, "many": many, "calls": calls}[sys.argv[1]](int(sys.argv[2]))))
