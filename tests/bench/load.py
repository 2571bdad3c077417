#!/usr/bin/env python3
"""Bounded training beside a burst of load on the processors: busy loops run for some seconds.

Ranks of this host train a layer of 4096 x 4096 (64 MB of gradients) by DistributedDataParallel over
loopback: bounded by `tarpon_torch.bounded_hook` with its defaults, and exact under `tarpon run`, in
turn within each round. The load begins after the first fifth of the steps.

Prints a line a run and the targets: a bounded run neither halts nor skips a step, every rank ends,
and it takes at most 1.1 times what exact runs take. Writes load.json. Needs Debian's python3-torch."""
import argparse, json, os, subprocess, sys, tempfile, time

from figures import Progress, at_most, finish, ratios

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = "/usr/bin/python3"  # with Debian's torch
CONTENDERS = ["exact", "bounded"]
LIMIT_S = 240


def rank_main(kind, steps, mark):
    """Of one rank: prints seconds, skipped steps and the lost share as JSON."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import tarpon_torch

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(4096, 4096), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    hook = tarpon_torch.bounded_hook(model, optimizer) if kind == "bounded" else None
    batch = torch.randn(4, 4096)
    began = time.monotonic()
    for step in range(steps):
        if step == steps // 5 and dist.get_rank() == 0:
            open(mark, "w").close()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    told = {"seconds": time.monotonic() - began, "skipped": 0, "lost": 0.0}
    if hook is not None:
        reports = list(hook.reports)
        told["skipped"] = sum(report.decision != "apply" for report in reports)
        told["lost"] = sum(report.lost_fraction for report in reports) / max(1, len(reports))
        hook.finish()
    print(json.dumps(told), flush=True)
    dist.barrier()


def run(build, kind, ranks, steps, load):
    """One run. Returns what rank 0 told; ends the program when a rank fails or does not end."""
    with tempfile.TemporaryDirectory() as folder:
        mark = f"{folder}/begun"
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 9000),
                       "WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                       "PYTHONPATH": f"{HERE}/../../tools/torch", "PYTHONDONTWRITEBYTECODE": "1",
                       "TARPON_LIBRARY": f"{build}/collectives/libtarpon.so.0",
                       "TARPON_GLOO_SHIM": f"{build}/collectives/gloo/libtarpon_gloo.so"}
        launcher = [f"{build}/bin/tarpon", "run", "--require", "--"] if kind == "exact" else []
        command = [*launcher, PYTHON, __file__, "--rank", kind, str(steps), mark]
        processes = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                     for rank in range(ranks)]
        loops = []
        try:
            end = time.monotonic() + LIMIT_S
            while not os.path.exists(mark) and time.monotonic() < end:
                time.sleep(0.01)
                if any(process.poll() is not None for process in processes):
                    break
            # They end by themselves, also when this program is killed.
            if all(process.poll() is None for process in processes):
                loops = [subprocess.Popen(["timeout", str(load.seconds), "sh", "-c", "while :; do :; done"])
                         for _ in range(load.loops)]
            outputs = [process.communicate(timeout=max(1, end - time.monotonic())) for process in processes]
        except subprocess.TimeoutExpired:
            sys.exit(f"{kind}, {ranks} ranks: a rank did not end within {LIMIT_S} s")
        finally:
            for loop in loops:
                loop.terminate()  # timeout passes it on
            for process in [*processes, *loops]:
                if process in processes:
                    process.kill()
                process.wait()
    for rank, process in enumerate(processes):
        if process.returncode != 0:
            sys.exit(f"{kind}, {ranks} ranks: rank {rank} failed:\n{outputs[rank][1][-2000:]}")
    return json.loads(outputs[0][0].splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="preset 'bench' built here")
    parser.add_argument("--rounds", type=int, default=10, help="runs of each contender for 2 ranks, and for 4")
    parser.add_argument("--loops", type=int, default=8, help="busy loops")
    parser.add_argument("--seconds", type=float, default=6, help="how long they run")
    parser.add_argument("--quick", action="store_true", help="one round: 2 minutes; else 15")
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    rounds = 1 if arguments.quick else arguments.rounds
    steps = {2: 150, 4: 80}
    runs = {(ranks, kind): [] for ranks in steps for kind in CONTENDERS}
    progress = Progress(rounds * len(runs))
    for turn in range(rounds):
        for ranks in steps:
            for kind in CONTENDERS if turn % 2 == 0 else reversed(CONTENDERS):
                told = run(build, kind, ranks, steps[ranks], arguments)
                runs[ranks, kind].append(told)
                progress.say(f"{ranks} ranks, {kind}: {told['seconds']:.1f} s, skipped {told['skipped']}, "
                             f"lost {100 * told['lost']:.3f} %")
                progress.step(f"{ranks} ranks")
    progress.end()
    targets = []
    for ranks in steps:
        seconds = {kind: [told["seconds"] for told in runs[ranks, kind]] for kind in CONTENDERS}
        targets.append(at_most(1.1, f"{ranks} ranks: seconds / exact",
                               ratios(seconds["bounded"], seconds["exact"])))
        targets.append(at_most(0, f"{ranks} ranks: skipped steps",
                               [sum(told["skipped"] for told in runs[ranks, "bounded"])]))
    finish(f"{build}/load.json", targets, runs=[{"ranks": ranks, "contender": kind, "runs": told}
                                                for (ranks, kind), told in runs.items()])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank_main(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
