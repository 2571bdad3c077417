"""Programs of PyTorch under torchrun on several hosts, under mpirun, and restarted by torchrun."""

import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "launched.py")
TARPON = os.environ["TARPON_TOOL"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "-r", "1", "-t", "1"]
CARRIED = re.compile(r"rank (\d+) carried (\d+) allreduces")
LIMIT_S = 150


def run(command, **variables):
    """What the command says on both outputs. Errors: AssertionError, with that."""
    ended = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    assert ended.returncode == 0, f"{command}: code {ended.returncode}\n{ended.stdout[-4000:]}"
    return ended.stdout


def expect_done(said, world, restarts=0):
    total = world * (world + 1) // 2
    for rank in range(world):
        line = f"DONE rank {rank} of {world}, sum {total}, restarts {restarts}"
        assert said.count(line) == 1, f"{line}: {said.count(line)} times in\n{said[-4000:]}"


def test_hosts():
    """torchrun on two hosts (network namespaces) with two ranks each: the backend, and the shim."""
    if os.geteuid() != 0:
        print("SKIP: hosts: network namespaces need root")
        return
    agents = [TARPON, "testbed", "--local-ranks", "2", "--"]
    # Each host has an agent of torchrun; the first one is the rendezvous.
    node = (
        "export GLOO_SOCKET_IFNAME=$TARPON_SOCKET_IFNAME; unset LOCAL_RANK; node=$RANK; "
        "unset RANK WORLD_SIZE LOCAL_WORLD_SIZE; "
        'exec "$@" --nnodes 2 --nproc_per_node 2 --node_rank $node '
        "--master_addr $MASTER_ADDR --master_port $MASTER_PORT $PROGRAM_ARGUMENTS"
    )
    shell = agents + ["bash", "-c", node, "node"]
    expect_done(run(shell + TORCHRUN, PROGRAM_ARGUMENTS=f"{PROGRAM} tarpon"), 4)
    said = run(
        shell + [TARPON, "run", "--verbose", "--"] + TORCHRUN, PROGRAM_ARGUMENTS=f"{PROGRAM} gloo"
    )
    expect_done(said, 4)
    carried = {int(rank): int(calls) for rank, calls in CARRIED.findall(said)}
    assert carried == {rank: 10 for rank in range(4)}, said[-4000:]


def test_mpirun():
    """Open MPI starts the ranks; PyTorch's store is at MASTER_ADDR."""
    mpirun = shutil.which("mpirun")
    assert mpirun is not None, "mpirun is not installed: install openmpi-bin"
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "3"]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29521", "GLOO_SOCKET_IFNAME": "lo"}
    expect_done(run(command + [sys.executable, PROGRAM, "tarpon"], **place), 3)
    said = run(
        command + [TARPON, "run", "--verbose", "--", sys.executable, PROGRAM, "gloo"], **place
    )
    expect_done(said, 3)
    assert len(CARRIED.findall(said)) == 3, said[-4000:]


def test_restart():
    """A rank is killed: the others get their error at once, and the job that torchrun starts again
    works."""
    for backend, before in (("tarpon", []), ("gloo", [TARPON, "run", "--"])):
        said = run(
            before
            + TORCHRUN
            + ["--standalone", "--nproc_per_node", "3", "--max_restarts", "1"]
            + [PROGRAM, backend, "killed"],
            GLOO_SOCKET_IFNAME="lo",
        )
        expect_done(said, 3, restarts=1)
        lost = re.findall(r"LOST rank \d after ([0-9.]+) s: (.*)", said)
        assert len(lost) == 2, said[-4000:]
        for seconds, error in lost:
            assert float(seconds) < 5 and "rank 1" in error, lost


TESTS = {"hosts": test_hosts, "mpirun": test_mpirun, "restart": test_restart}

if __name__ == "__main__":
    for name in sys.argv[1:] or TESTS:
        TESTS[name]()
        print(f"ok {name}", flush=True)
