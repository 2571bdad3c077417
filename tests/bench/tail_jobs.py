"""Jobs of `tail_rank` that stay alive on a testbed between their turns, and so learn once."""
import contextlib, json, queue, subprocess, tempfile, threading, time

from tail_bed import Calls, Failed, Stopper

START_S = 60
LIMIT_S = 60, 3   # of a turn: at least, and more for each call
LAST_WORDS_S = 2  # the other ranks tell what they saw


class Job:
    """`number`: differs between the jobs of a testbed."""

    def __init__(self, bed, name, number, options=(), pause=None):
        self.name, self.pause = name, pause
        self.complaints = tempfile.TemporaryFile("w+")
        command = [f"{bed.binaries}/tail_rank", "--ranks", str(bed.ranks), "--rendezvous",
                   f"tcp://{bed.first}:{29501 + number}", "--interface", "eth0", *options]
        self.processes = [bed.start(rank, [*command, "--rank", str(rank)], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, stderr=self.complaints)
                          for rank in range(bed.ranks)]
        self.lines = [queue.Queue() for _ in self.processes]
        for process, lines in zip(self.processes, self.lines):
            threading.Thread(target=self.read, args=(process.stdout, lines), daemon=True).start()

    @staticmethod
    def read(output, lines):
        for line in output:
            lines.put(line)
        lines.put(None)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        self.complaints.close()

    def run(self, mode, calls):
        """A turn of `calls` calls, "bounded" or "exact"."""
        stopper = Stopper(self.processes[self.pause.rank], self.pause) if self.pause else \
            contextlib.nullcontext()
        end = time.monotonic() + LIMIT_S[0] + LIMIT_S[1] * calls
        with stopper:
            for rank, process in enumerate(self.processes):
                try:
                    process.stdin.write(f"{mode} {calls}\n")
                    process.stdin.flush()
                except BrokenPipeError:
                    self.fail(rank)
            rows = [self.turn_of(rank, end) for rank in range(len(self.processes))]
        return calls_of([row[:-1] for row in rows], sum(row[-1]["cpu_s"] for row in rows))

    def turn_of(self, rank, end):
        """The lines of one rank up to the end of the command."""
        row = []
        while not row or "done" not in row[-1]:
            try:
                line = self.lines[rank].get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                raise Failed(f"{self.name}: rank {rank} does not end its calls in time") from None
            if line is None or not line.endswith("\n"):
                self.fail(rank)
            row.append(json.loads(line))
        return row

    def fail(self, rank):
        time.sleep(LAST_WORDS_S)
        codes = {rank: process.poll() for rank, process in enumerate(self.processes)}
        ended = ", ".join(f"rank {rank}: {code}" for rank, code in codes.items()
                          if code is not None)
        self.complaints.seek(0)
        raise Failed(f"{self.name}: rank {rank} is gone (exit codes: {ended}):\n"
                     f"{self.complaints.read()[-2000:]}")


def calls_of(rows, cpu_s):
    """`rows`: of each rank the lines of its calls."""
    found = Calls([], [[call["us"] for call in row] for row in rows], cpu_s)
    for call in zip(*rows):
        late = set().union(*(rank["late"] for rank in call))
        late |= {number for number, rank in enumerate(call) if rank["status"] == "late_self"}
        in_time = [rank for number, rank in enumerate(call) if number not in late]
        found.times.append(max(rank["us"] for rank in in_time or call))
        worst = max(call, key=lambda rank: rank["lost"])
        found.lost.append(worst["lost"])
        found.causes.append(worst["causes"])
        # A late rank does not know whether it was gone for the others.
        found.counted.append(max(rank["counted"] for rank in in_time or call))
        found.bounds.append(max(rank["bound_us"] for rank in call))
        after = [(rank["us"] - rank["clock_start_us"] - rank["bound_us"] - rank["held_us"],
                  rank["in_doubt"])
                 for rank in in_time if rank["bound_us"] > 0]
        found.overruns += [max(after)] if after else []
    return found
