"""One veth pair between two network namespaces, a sender's and a receiver's."""
import json, os, subprocess

from figures import fail

ADDRESS = ["10.78.0.1", "10.78.0.2"]  # sender, receiver


class VethPair:
    """The namespaces have no name: they go with two processes that end when our end of their pipe
    closes, whatever ends us."""

    def __init__(self, mtu):
        self.holders = [subprocess.Popen(["unshare", "--net", "sh", "-c", "echo there; exec cat"],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                        for _ in ADDRESS]
        for holder in self.holders:
            if holder.stdout.readline() != "there\n":
                raise SystemExit("no network namespaces here: run as root")
        self.run(0, ["ip", "link", "add", "eth0", "mtu", str(mtu), "type", "veth", "peer", "name",
                     "eth0", "mtu", str(mtu), "netns", str(self.holders[1].pid)])
        for side, address in enumerate(ADDRESS):
            self.run(side, ["ip", "link", "set", "eth0", "addrgenmode", "none"])
            self.run(side, ["ip", "link", "set", "eth0", "up"])
            self.run(side, ["ip", "address", "add", address + "/24", "dev", "eth0"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for holder in self.holders:
            holder.stdin.close()
            holder.wait()

    def inside(self, side, command):
        return ["nsenter", f"--net=/proc/{self.holders[side].pid}/ns/net", *command]

    def run(self, side, command):
        process = subprocess.run(self.inside(side, command), capture_output=True, text=True)
        if process.returncode != 0:
            fail(" ".join(command), process)

    def on_own_core(self, side, command):
        cores = sorted(os.sched_getaffinity(0))
        return self.inside(side, ["taskset", "-c", str(cores[side % len(cores)]), *command])

    def carry(self, command):
        """Runs `command send` and `command receive`, a list each, and returns their JSON."""
        receiver = subprocess.Popen(self.on_own_core(1, command("receive", ADDRESS[1], ADDRESS[0])),
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            if receiver.stdout.readline() == "ready\n":
                send = self.on_own_core(0, command("send", ADDRESS[0], ADDRESS[1]))
                sender = subprocess.run(send, capture_output=True, text=True, timeout=60)
                if sender.returncode != 0:
                    fail(" ".join(send), sender)
            output, complaint = receiver.communicate(timeout=60)
        finally:
            receiver.kill()
        if receiver.returncode != 0:
            raise SystemExit(f"{' '.join(receiver.args)} failed: {complaint}")
        return json.loads(sender.stdout), json.loads(output)
