"""Collectives by Tarpon, by Gloo and by minimal_allreduce on the namespace testbed, by the same timing
rule."""
import collections, json, os, subprocess, sys, tempfile

from figures import KIB, fail

GLOO = ["ring", "bcube", "halving_doubling"]

# Of one size: the slowest rank's time of each iteration in us; CPU time of all ranks together in
# seconds; resident KiB of the largest rank beyond the two buffers, where it is known; what the busiest
# rank sent in a call: packets (segments of TCP) and bytes (datagrams without the headers of UDP, IP and
# Ethernet; of Gloo the bytes of its interface, with one header for each train of segments).
Run = collections.namedtuple("Run", "times cpu_s extra_kib packets bytes")

FIRST_TIME = 5  # of the fields that measure_gloo() prints


def run_tarpon(binaries, ranks, mtu, size, iterations, datapath, options=(), warmup=3):
    """In place."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [f"{binaries}/tarpon", "allreduce", "--local-ranks", str(ranks), "--net", "veth",
                   "--mtu", str(mtu), "--datapath", datapath, "-b", str(size), "-e", str(size),
                   "-n", str(iterations), "-w", str(warmup), "--json", report.name, *options]
        process = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if process.returncode != 0:
            fail(" ".join(command), process)
        result = json.load(open(report.name))
    taken = {rank["datapath"] for rank in result["config"]["ranks"]}
    assert taken == {datapath}, f"{datapath} was asked for, {taken} taken"
    entry = result["results"][-1]
    assert entry["place"] == "in" and entry["nwrong"] == 0 and entry["lost_fraction"] == 0
    # An old baseline counts no packets.
    return Run(entry["time_us"]["all"], entry["cpu_s"], entry["max_rss_kib"] - 2 * size // KIB,
               max(entry.get("sent_packets", [0])), max(entry.get("sent_bytes", [0])))


def run_gloo(binaries, ranks, mtu, size, iterations, algorithm, options=(), late=None):
    """`options`: of the testbed. `late`: a rank, and the seconds by which it is late for each call."""
    place = {}
    if late:
        place.update(LATE_RANK=str(late[0]), LATE_US=str(int(1e6 * late[1])))
    with tempfile.TemporaryDirectory() as store:
        program = [f"{binaries}/gloo_allreduce", store, "eth0", algorithm, str(iterations), "3", str(size)]
        return run_on_testbed(binaries, ranks, mtu, program, options, place)


def run_minimal(binaries, ranks, mtu, size, iterations):
    """Times of operations that lost data are left out."""
    program = [f"{binaries}/minimal_allreduce", str(iterations), "3", str(size)]
    run = run_on_testbed(binaries, ranks, mtu, program)
    if not run.times:
        sys.exit(f"{' '.join(program)}: all operations on {ranks} ranks at MTU {mtu} lost data")
    return run


def run_on_testbed(binaries, ranks, mtu, program, options=(), variables={}):
    """A program that prints a line for each rank, in the form of gloo_peer.h."""
    (run,) = runs_on_testbed(binaries, ranks, mtu, program, options, variables).values()
    return run


def runs_on_testbed(binaries, ranks, mtu, program, options=(), variables={}):
    """The same with a line for each rank and size. Returns a Run for each size."""
    command = [f"{binaries}/tarpon", "testbed", "--local-ranks", str(ranks), "--mtu", str(mtu), *options,
               "--", *program]
    process = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True,
                             timeout=300)
    if process.returncode != 0:
        fail(" ".join(command), process)
    rows = [line.split() for line in process.stdout.splitlines()]
    return {size: run_of([row for row in rows if int(row[0]) == size], ranks)
            for size in sorted({int(row[0]) for row in rows})}


def run_of(rows, ranks):
    """`rows`: the fields of each rank's line of one size."""
    assert len(rows) == ranks
    per_rank = [[float(value) for value in row[FIRST_TIME:]] for row in rows]
    return Run([max(values) for values in zip(*per_rank)], sum(float(row[1]) for row in rows), None,
               max(float(row[3]) for row in rows), max(float(row[4]) for row in rows))
