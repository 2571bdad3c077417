"""Runs a function on several processes, each a rank of a job of PyTorch on loopback."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback


def _free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Failed(Exception):
    pass


def run(
    name,
    ranks,
    arguments=None,
    environment=None,
    timeout=120,
    backend="tarpon",
    signals=None,
    killed=(),
    said=None,
):
    """What the function `name` of the calling program returns on each rank, decoded from JSON.

    `backend`: of the process group; "gloo+tarpon": and "tarpon" is known, too.

    `environment`: variables for all ranks, or a function of the rank. `signals(processes)` may send
    some to the ranks while they run. Ranks that it kills are in `killed`, and return None. With
    `said` also what each rank wrote to standard error. Errors: Failed, with the output of the rank
    that failed.
    """
    with tempfile.TemporaryDirectory() as place:
        processes = _start(name, ranks, arguments, environment, backend, place)
        try:
            if signals is not None:
                signals(processes)
            results, errors = _collect(name, processes, timeout, killed, place)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
    return results if said is None else (results, errors)


def _start(name, ranks, arguments, environment, backend, directory):
    variables = environment if callable(environment) else lambda rank: environment or {}
    port = _free_port()
    processes = []
    for rank in range(ranks):
        place = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        processes.append(
            subprocess.Popen(
                [
                    sys.executable,
                    sys.argv[0],
                    "--rank",
                    name,
                    backend,
                    json.dumps(arguments or {}),
                    _result_file(directory, rank),
                ],
                env={**os.environ, **place, **variables(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def _result_file(directory, rank):
    return os.path.join(directory, f"{rank}.json")


def _collect(name, processes, timeout, killed, directory):
    results, errors = [], []
    for rank, process in enumerate(processes):
        out, error = process.communicate(timeout=timeout)
        if rank not in killed and process.returncode != 0:
            raise Failed(
                f"{name}: rank {rank}: code {process.returncode}\n{out[-3000:]}{error[-3000:]}"
            )
        errors.append(error)
        if rank in killed:
            results.append(None)
            continue
        with open(_result_file(directory, rank), encoding="utf-8") as file:
            results.append(json.load(file))
    return results, errors


def main(functions, tests):
    """Of a test program: one rank, or all tests, or those that are named."""
    if len(sys.argv) > 1 and sys.argv[1] == "--rank":
        import torch.distributed as dist

        name, backend, arguments, file = sys.argv[2:]
        backend, *others = backend.split("+")
        if "tarpon" in (backend, *others):
            import tarpon_torch  # noqa: F401 (registers the backend)
        dist.init_process_group(backend)
        result = functions[name](**json.loads(arguments))
        with open(file, "w", encoding="utf-8") as place:
            json.dump(result, place)
        dist.destroy_process_group()
        return 0
    wanted = sys.argv[1:] or list(tests)
    failures = 0
    for name in wanted:
        try:
            tests[name]()
            print(f"ok {name}", flush=True)
        except Exception:
            failures += 1
            print(f"FAIL {name}\n{traceback.format_exc()}", flush=True)
    return int(failures > 0)
