"""Runs a function on several processes, each a rank of a job of PyTorch on loopback.

A rank is a fork of the test program, because `import torch` costs more than most tests; or, if it has to
read its environment when it starts, a process of its own.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

_functions = {}  # that ranks run, by name

may_fork = True  # a program that uses CUDA sets it to False: CUDA does not work in a fork


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def directory():
    """A temporary directory. That of tempfile would be removed when a fork ends, too."""
    place = tempfile.mkdtemp()
    try:
        yield place
    finally:
        shutil.rmtree(place)


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
    fresh=False,
):
    """What the function `name` of the calling program returns on each rank, decoded from JSON.

    `backend`: of the process group; "gloo+tarpon": and "tarpon" is known, too.

    `environment`: variables for all ranks, or a function of the rank. `signals(processes)` may send
    some to the ranks while they run. Ranks that it kills are in `killed`, and return None. With
    `said` also what each rank wrote to standard error. `fresh`: ranks are no forks. Errors: Failed,
    with the output of the rank that failed.
    """
    start = _fork if may_fork and not fresh else _start
    with directory() as place:
        processes = _start_all(start, name, ranks, arguments, environment, backend, place)
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


def _start_all(start, name, ranks, arguments, environment, backend, directory):
    variables = environment if callable(environment) else lambda rank: environment or {}
    port = free_port()
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
        asked = [name, backend, json.dumps(arguments or {}), _result_file(directory, rank)]
        processes.append(start(asked, {**place, **variables(rank)}))
    return processes


def _start(asked, variables):
    return subprocess.Popen(
        [sys.executable, sys.argv[0], "--rank", *asked],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class _Forked:
    """What is used here of subprocess.Popen. Output goes to files without names."""

    def __init__(self, pid, files):
        self.pid, self.returncode, self._files = pid, None, files

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid != 0:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=120):
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"rank {self.pid}", timeout)
            time.sleep(0.01)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout):
        self.wait(timeout)
        texts = []
        for file in self._files:
            with file:
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        return texts


def _fork(asked, variables):
    files = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid != 0:
        return _Forked(pid, files)
    code = 1
    try:
        for number, file in enumerate(files, 1):
            os.dup2(file.fileno(), number)
        os.environ.update(variables)
        import torch

        torch.set_num_threads(1)
        code = _be_rank(*asked)
    except BaseException:
        traceback.print_exc()
    ctypes.pythonapi.Py_Exit(code)  # ends as a program does, but for the frames of the parent


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


def _be_rank(name, backend, arguments, file):
    import torch.distributed as dist

    backend, *others = backend.split("+")
    if "tarpon" in (backend, *others):
        import tarpon_torch  # noqa: F401 (registers the backend)
    dist.init_process_group(backend)
    result = _functions[name](**json.loads(arguments))
    with open(file, "w", encoding="utf-8") as place:
        json.dump(result, place)
    dist.destroy_process_group()
    return 0


def main(functions, tests):
    """Of a test program: one rank, or all tests, or those that are named."""
    _functions.update(functions)
    if len(sys.argv) > 1 and sys.argv[1] == "--rank":
        return _be_rank(*sys.argv[2:])
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
