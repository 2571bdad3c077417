#!/usr/bin/env python3
"""AllReduce of tensors of a GPU: the backend "tarpon" beside gloo and NCCL over sockets.

All ranks share one GPU and loopback. NCCL refuses that unless the ranks seem to be on several hosts:
each gets a host's name of its own, and neither shared memory nor direct copies. One rule of time for
all: a barrier on the host before each call, one call outstanding, until the GPU is idle, the slowest
rank counts. Contenders run in turn within each round.

Prints a table, writes cuda.json. Has no targets. Needs a PyTorch with CUDA: `SKIP: ` where there is none."""
import argparse, datetime, json, os, socket, subprocess, sys, tempfile, time

from figures import KIB, MIB, Progress, finish, human, interval, median

HERE = os.path.dirname(os.path.abspath(__file__))
CONTENDERS = ["tarpon", "gloo", "nccl"]
LIMIT_S = 120


def plan(quick):
    """Ranks, sizes with the calls of each in a round, rounds."""
    sizes = {64 * KIB: 100, 1 * MIB: 50, 25 * MIB: 10}
    return ([2, 4], sizes, 2) if quick else ([2, 4, 8], {**sizes, 100 * MIB: 5}, 3)


def rank_main(backend, sizes):
    """Of one rank: prints the seconds of each call, by size, as JSON."""
    import torch
    import torch.distributed as dist

    if backend == "tarpon":
        import tarpon_torch  # noqa: F401 (registers the backend)
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=LIMIT_S))
    host = dist.new_group(backend="gloo")
    times = {}
    for size, calls in sizes.items():
        tensor = torch.ones(int(size) // 4, device="cuda")
        times[size] = []
        for call in range(calls + 3):
            torch.cuda.synchronize()
            dist.barrier(host)
            began = time.monotonic()
            dist.all_reduce(tensor)
            torch.cuda.synchronize()
            if call >= 3:
                times[size].append(time.monotonic() - began)
            if float(tensor[-1]) != dist.get_world_size():
                sys.exit(f"wrong result: {float(tensor[-1])}")
            tensor.fill_(1)
    print(json.dumps(times), flush=True)
    os._exit(0)  # ends without waiting for the others' groups


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def await_all(processes, what):
    """Until all have ended, or one has failed."""
    end = time.monotonic() + LIMIT_S
    while any(process.poll() is None for process in processes):
        if any(process.poll() not in (None, 0) for process in processes):
            return
        if time.monotonic() > end:
            sys.exit(f"{what}: did not end within {LIMIT_S} s")
        time.sleep(0.02)


def measure(library, backend, ranks, sizes):
    """Seconds of the slowest rank for each call, by size."""
    port = str(free_port())
    processes, outputs = [], []
    for rank in range(ranks):
        place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                 "PYTHONPATH": f"{HERE}/../../tools/torch", "TARPON_LIBRARY": library,
                 "NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1",
                 "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
        outputs.append((tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")))
        processes.append(subprocess.Popen(
            [sys.executable, __file__, "--rank", backend, json.dumps(sizes)],
            env={**os.environ, **place}, stdout=outputs[-1][0], stderr=outputs[-1][1]))
    try:
        await_all(processes, f"{backend}, {ranks} ranks")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for out, error in outputs:
        out.seek(0), error.seek(0)
    # Killed ones: another rank had failed.
    failed = [rank for rank, process in enumerate(processes) if process.returncode not in (0, -9)]
    if failed:
        sys.exit(f"{backend}, {ranks} ranks: rank {failed[0]} failed:\n"
                 f"{outputs[failed[0]][1].read()[-2000:]}")
    told = [json.loads(out.read().splitlines()[-1]) for out, _ in outputs]
    return {size: [max(times) for times in zip(*(one[str(size)] for one in told))] for size in sizes}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="folder with collectives/libtarpon.so.0")
    parser.add_argument("--quick", action="store_true", help="2 and 4 ranks, up to 25 MiB: a minute")
    arguments = parser.parse_args()
    try:
        import torch
        found = torch.cuda.is_available()
    except ImportError:
        found = False
    if not found:
        print(f"SKIP: {sys.executable} has no PyTorch that finds a GPU")
        return
    library = os.path.abspath(f"{arguments.build}/collectives/libtarpon.so.0")
    worlds, sizes, rounds = plan(arguments.quick)
    samples = {}  # (ranks, size, contender) -> rounds, each a list of seconds
    progress = Progress(rounds * len(worlds) * len(CONTENDERS))
    for turn in range(rounds):
        for ranks in worlds:
            for each in range(len(CONTENDERS)):
                contender = CONTENDERS[(turn + each) % len(CONTENDERS)]
                for size, times in measure(library, contender, ranks, sizes).items():
                    samples.setdefault((ranks, size, contender), []).append(times)
                progress.step(f"{ranks} ranks, {contender}")
    progress.end()
    print(f"{torch.cuda.get_device_name()}, {os.cpu_count()} cores, PyTorch {torch.__version__}")
    print(f"{'ranks':>5} {'size':>5} {'backend':>8} {'p50 ms':>8} {'95 % interval':>17} {'worst ms':>9}")
    for (ranks, size, contender), told in sorted(samples.items(), key=lambda one: one[0]):
        medians = [1e3 * median(times) for times in told]
        low, high = interval(medians)
        print(f"{ranks:>5} {human(size):>5} {contender:>8} {median(medians):>8.2f} "
              f"{low:>8.2f} {high:>8.2f} {1e3 * max(map(max, told)):>9.2f}")
    finish(f"{arguments.build}/cuda.json", [], samples=[
        {"ranks": ranks, "size": size, "contender": contender, "seconds": told}
        for (ranks, size, contender), told in samples.items()])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(sys.argv[2], json.loads(sys.argv[3]))
    else:
        main()
