"""One testbed that lives through many runs: AllReduces by Tarpon and by Gloo in turn, a Gloo ring
beside them, and a rank that is stopped now and then."""
import argparse, collections, dataclasses, functools, json, os, random, re, signal, subprocess
import tempfile, threading, time

from contenders import FIRST_TIME, GLOO

RING_BYTES = 8_200_000  # of the ring beside


@dataclasses.dataclass
class Calls:
    """Calls of one contender, in order. Times are in us. Shares are those of the rank that lost
    most."""
    times: list    # of the slowest rank that was not late
    ranks: list    # of each rank its times
    cpu_s: float   # of all ranks and calls together
    lost: list = dataclasses.field(default_factory=list)
    counted: list = dataclasses.field(default_factory=list)   # of it: against the loss target
    causes: list = dataclasses.field(default_factory=list)    # of it: a dict, by cause
    bounds: list = dataclasses.field(default_factory=list)    # the longest of the ranks'
    # Of each call, the rank that returned latest, late ones apart: how long after its bound, and
    # whether it was in doubt.
    overruns: list = dataclasses.field(default_factory=list)

    def __add__(self, other):
        return Calls(self.times + other.times, [a + b for a, b in zip(self.ranks, other.ranks)],
                     self.cpu_s + other.cpu_s, self.lost + other.lost,
                     self.counted + other.counted, self.causes + other.causes,
                     self.bounds + other.bounds, self.overruns + other.overruns)


# Stops rank `rank` for `low` to `high` seconds, again and again.
Pause = collections.namedtuple("Pause", "rank low high")
BETWEEN_S = 0.2, 1.0  # it runs for so long between two stops


def parse_pause(text):
    """RANK:20ms-200ms"""
    match = re.fullmatch(r"([0-3]):(\d+)ms-(\d+)ms", text)
    if not match or int(match[2]) > int(match[3]):
        raise argparse.ArgumentTypeError(f'"{text}": write RANK:20ms-200ms, RANK from 0 to 3')
    return Pause(int(match[1]), int(match[2]) / 1000, int(match[3]) / 1000)


class Failed(Exception):
    """A run that ended badly, or not within its limit."""


class Stopper:
    """Stops and continues a process while this context lasts."""

    random = random.Random(1)  # of all: no chunk repeats the stops of another

    def __init__(self, process, pause):
        self.process, self.pause = process, pause
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over.wait(self.random.uniform(*BETWEEN_S)):
            self.process.send_signal(signal.SIGSTOP)
            self.over.wait(self.random.uniform(self.pause.low, self.pause.high))
            self.process.send_signal(signal.SIGCONT)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class Bed:
    """A node a rank, and `others` behind them. The namespaces go with `tarpon testbed`, which ends
    when our end of a pipe closes, whatever ends us."""

    def __init__(self, binaries, ranks, shape, others=0):
        self.binaries, self.ranks = binaries, ranks
        nodes = ranks + others
        command = [f"{binaries}/tarpon", "testbed", "--local-ranks", str(nodes), *shape, "--", "sh",
                   "-c", "echo {rank} $$ $MASTER_ADDR; exec cat"]
        self.holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       text=True)
        rows = [self.holder.stdout.readline().split() for _ in range(nodes)]
        if any(len(row) != 3 for row in rows):
            raise SystemExit(f"{' '.join(command)} failed")
        self.pids = {int(rank): pid for rank, pid, _ in rows}
        self.first = rows[0][2]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.holder.stdin.close()
        self.said = self.holder.stdout.read()  # what the bridge has lost
        self.holder.wait()

    def start(self, node, command, environment=None, **options):
        """A process in the namespace of a rank; its id is the command's own."""
        return subprocess.Popen(["nsenter", f"--net=/proc/{self.pids[node]}/ns/net", *command],
                                env={**os.environ, **(environment or {})}, text=True, **options)

    def run(self, commands, limit, pause=None, environment=lambda rank: None):
        """One command a rank; their standard outputs."""
        processes = [self.start(rank, command, environment(rank), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE) for rank, command in enumerate(commands)]
        end = time.monotonic() + limit
        try:
            if pause is None:
                return self.wait(processes, end)
            with Stopper(processes[pause.rank], pause):
                return self.wait(processes, end)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{' '.join(commands[0])}: not done after {limit} s") from late
        finally:
            for process in processes:
                process.kill()
                process.wait()

    @staticmethod
    def wait(processes, end):
        said = [process.communicate(timeout=max(0, end - time.monotonic()))
                for process in processes]
        if any(process.returncode != 0 for process in processes):
            complaints = "".join(complaint for _, complaint in said)
            raise Failed(f"{' '.join(processes[0].args)} failed:\n{complaints}")
        return [output for output, _ in said]

    def tarpon(self, binaries, size, calls, warmup, pause=None, limit=300):
        """A bounded job of `tarpon allreduce`, which learns its bound anew; half of its calls are
        out of place."""
        with tempfile.NamedTemporaryFile(suffix=".json") as report:
            shared = [f"{binaries}/tarpon", "allreduce", "--world-size", str(self.ranks),
                      "--rendezvous", f"tcp://{self.first}:29500", "--interface", "eth0",
                      "-b", str(size), "-e", str(size), "-n", str(max(1, calls // 2)),
                      "-w", str(warmup), "--json", report.name, "--mode", "bounded",
                      *learnt_bound(binaries)]
            self.run([[*shared, "--rank", str(rank)] for rank in range(self.ranks)], limit, pause)
            entries = json.load(open(report.name))["results"]
        if len(entries) != 2 or any(entry["nwrong"] for entry in entries):
            raise Failed("wrong results: " + str([entry["nwrong"] for entry in entries]))
        ranks = [first + second for first, second in zip(*(e["time_us"]["ranks"] for e in entries))]
        return Calls(sum((e["time_us"]["all"] for e in entries), []), ranks,
                     sum(e["cpu_s"] for e in entries),
                     sum((e["lost_all"] for e in entries), []))

    def gloo(self, size, iterations, warmup, algorithm, pause=None, limit=300):
        assert algorithm in GLOO
        with tempfile.TemporaryDirectory() as store:
            command = [f"{self.binaries}/gloo_allreduce", store, "eth0", algorithm,
                       str(iterations), str(warmup), str(size)]
            outputs = self.run([command] * self.ranks, limit, pause, lambda rank: {
                "RANK": str(rank), "WORLD_SIZE": str(self.ranks)})
        rows = [output.split() for output in outputs]
        ranks = [[float(value) for value in row[FIRST_TIME:]] for row in rows]
        return Calls([max(values) for values in zip(*ranks)], ranks,
                     sum(float(row[1]) for row in rows))


def known_congestion(names):
    """Those of the congestion controls `names` that the kernel has; the others are told."""
    with open("/proc/sys/net/ipv4/tcp_available_congestion_control", encoding="utf-8") as file:
        known = file.read().split()
    names = set(names)
    for name in sorted(names.difference(known)):
        print(f"SKIP: {name}: this kernel has {' '.join(known)}; try: modprobe tcp_{name}")
    return names.intersection(known)


@functools.cache
def learnt_bound(binaries):
    """Options: revisions that have --bound adaptive learn no bound without it."""
    text = subprocess.run([f"{binaries}/tarpon", "allreduce", "--help"], capture_output=True,
                          text=True, check=True).stdout
    return ["--bound", "adaptive"] if re.search("--bound .*adaptive", text) else []


class Background:
    """Ring AllReduces by `ranks` processes on the first two nodes in turn, so that every hop
    crosses the links. They end with their input, whatever ends us."""

    def __init__(self, bed, ranks):
        self.processes, self.store = [], tempfile.TemporaryDirectory()
        for rank in range(ranks):
            command = [f"{bed.binaries}/gloo_allreduce", self.store.name, "eth0", "ring", "endless",
                       str(RING_BYTES)]
            environment = {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
            self.processes.append(bed.start(rank % 2, command, environment, stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))

    def __enter__(self):
        end = time.monotonic() + 30
        while self.processes and self.done() == 0:
            if time.monotonic() > end:
                raise Failed("the ring beside does not start")
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()
        self.store.cleanup()

    def done(self):
        """Operations so far; 0 without a ring."""
        if not self.processes:
            return 0
        first = self.processes[0]
        try:
            first.stdin.write("\n")
            first.stdin.flush()
            return int(first.stdout.readline())
        except (BrokenPipeError, ValueError):
            raise Failed("the ring beside ended before the benchmark did") from None

    def beside(self, work):
        """The result of work(), and the ring's operations per second meanwhile."""
        before, start = self.done(), time.monotonic()
        result = work()
        return result, (self.done() - before) / (time.monotonic() - start)
