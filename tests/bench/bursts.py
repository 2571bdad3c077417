#!/usr/bin/env python3
"""Short TCP bursts: a host sends several flows at once to a random node, again and again.

Bursts is the background of a benchmark, with the interface of tail_bed.Background. The programs:

bursts.py sink FIRST         prints its address and port, then reads whatever comes; FIRST: an
                             address of the testbed, which tells the interface
bursts.py send SEED SINK...  sends to the sinks (ADDRESS:PORT); answers each line of its standard
                             input with the bursts so far that are over, and their seconds together

Both end with their standard input, whatever ends the benchmark."""
import os, random, selectors, socket, subprocess, sys, time

FLOWS, FLOW_BYTES = 6, 512 << 10
MEAN_GAP_S = 0.12       # exponential gaps, from the start of a burst to that of the next one
MAX_OPEN_FLOWS = 240    # beyond them a burst is left out
START_S = 30


class Bursts:
    """Bursts from the first node behind the ranks of a tail_bed.Bed to the ranks' nodes, while this
    context lasts."""

    def __init__(self, bed, seed):
        self.bed, self.seed = bed, seed
        self.processes = []

    def __enter__(self):
        try:
            addresses = [self.start(node, "sink", self.bed.first) for node in range(self.bed.ranks)]
            lines = [self.line(process) for process in addresses]
            self.source = self.start(self.bed.ranks, "send", str(self.seed), *lines)
            self.done()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, node, *words):
        process = self.bed.start(node, [sys.executable, __file__, *words], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE)
        self.processes.append(process)
        return process

    @staticmethod
    def line(process):
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(START_S) or not (line := process.stdout.readline().strip()):
                from tail_bed import Failed
                raise Failed(f"{' '.join(process.args)}: no answer within {START_S} s")
        return line

    def __exit__(self, *_):
        for process in reversed(self.processes):  # the source first: a sink that goes resets its flows
            process.kill()
            process.communicate()

    def ask(self):
        """Bursts that are over, and their seconds together."""
        try:
            self.source.stdin.write("\n")
            self.source.stdin.flush()
        except BrokenPipeError:
            from tail_bed import Failed
            raise Failed("the bursts ended before the benchmark did") from None
        count, seconds = self.line(self.source).split()
        return int(count), float(seconds)

    def done(self):
        return self.ask()[0]

    def beside(self, work):
        """The result of work(), and the bursts per second meanwhile."""
        before, start = self.done(), time.monotonic()
        result = work()
        return result, (self.done() - before) / (time.monotonic() - start)


class Flow:
    """A connection of a burst: connects, sends all, and ends when the sink has read all."""

    def __init__(self, burst, address):
        self.burst, self.left = burst, FLOW_BYTES
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(address)

    def advance(self, data):
        """Whether it has ended."""
        if self.left > 0:
            self.left -= self.socket.send(memoryview(data)[:self.left])
            if self.left == 0:
                self.socket.shutdown(socket.SHUT_WR)
            return False
        return not self.socket.recv(1)


class Source:
    def __init__(self, seed, sinks):
        self.random, self.sinks = random.Random(seed), sinks
        self.selector, self.data = selectors.DefaultSelector(), bytes(FLOW_BYTES)
        self.ended, self.seconds = 0, 0.0
        self.selector.register(sys.stdin, selectors.EVENT_READ)

    def run(self):
        due = time.monotonic()
        while True:
            wait = due - time.monotonic()
            if wait <= 0:
                due += self.random.expovariate(1 / MEAN_GAP_S)
                self.begin(self.random.choice(self.sinks))
                continue
            for key, _ in self.selector.select(wait):
                if key.fileobj is sys.stdin:
                    if not os.read(0, 1):
                        return
                    print(self.ended, self.seconds, flush=True)
                else:
                    self.advance(key.data)

    def begin(self, sink):
        if len(self.selector.get_map()) > MAX_OPEN_FLOWS:
            return
        burst = {"start": time.monotonic(), "left": FLOWS}
        for _ in range(FLOWS):
            flow = Flow(burst, sink)
            self.selector.register(flow.socket, selectors.EVENT_WRITE, flow)

    def advance(self, flow):
        try:
            ended = flow.advance(self.data)
        except BlockingIOError:
            return
        if ended:
            self.selector.unregister(flow.socket)
            flow.socket.close()
            flow.burst["left"] -= 1
            if flow.burst["left"] == 0:
                self.ended += 1
                self.seconds += time.monotonic() - flow.burst["start"]
        elif flow.left == 0:
            self.selector.modify(flow.socket, selectors.EVENT_READ, flow)


def own_address(first):
    """That from which packets go to the testbed. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((first, 9))
        return probe.getsockname()[0]


def sink(first):
    listener = socket.create_server((own_address(first), 0), backlog=MAX_OPEN_FLOWS)
    listener.setblocking(False)
    print("{}:{}".format(*listener.getsockname()), flush=True)
    selector, buffer = selectors.DefaultSelector(), bytearray(1 << 18)
    selector.register(listener, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return
            if key.fileobj is listener:
                selector.register(listener.accept()[0], selectors.EVENT_READ)
            elif not key.fileobj.recv_into(buffer):
                selector.unregister(key.fileobj)
                key.fileobj.close()


def main():
    if sys.argv[1] == "sink":
        sink(sys.argv[2])
        return
    sinks = [(address, int(port)) for address, port in (word.split(":") for word in sys.argv[3:])]
    Source(int(sys.argv[2]), sinks).run()


if __name__ == "__main__":
    main()
