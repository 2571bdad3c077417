"""Gloo's AllReduce with the shim in front of it gives what it gives without.

    differential_test.py PROGRAM SHIM [CASE]     PROGRAM: gloo_differential, SHIM: libtarpon_gloo.so
"""

import difflib
import os
import re
import subprocess
import sys

# What stays with Gloo by mistake would be equal as well.
CARRIED = re.compile(
    r"tarpon: rank \d+ carried (\d+) allreduces, (\d+) bytes, datapath \w+, mode exact, lost 0%"
)


def run(words, attempts=1, **variables):
    for left in reversed(range(attempts)):
        ended = subprocess.run(
            words, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300
        )
        if ended.returncode == 0:
            return ended
        if left > 0:
            print(f"{' '.join(words)}: code {ended.returncode}, once more: {ended.stderr[-300:]}")
    sys.exit(f"FAIL: {' '.join(words)} {variables}: code {ended.returncode}\n"
             f"{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}")


def main():
    program, shim, *case = sys.argv[1:]
    # Stock Gloo alone has waited for a message in vain, once in hundreds of runs.
    plain = run([program, *case], attempts=2)
    carried = run([program, *case], LD_PRELOAD=shim, TARPON_DEBUG="INFO")
    difference = list(
        difflib.unified_diff(
            plain.stdout.splitlines(), carried.stdout.splitlines(), "Gloo", "Tarpon", lineterm=""
        )
    )
    if difference:
        sys.exit("FAIL:\n" + "\n".join(difference[:40]))
    said = CARRIED.search(carried.stderr)
    expected = re.search(r"^carried are (\d+)$", carried.stderr, re.MULTILINE)
    if not said or said.group(1) != expected.group(1):
        sys.exit(f"FAIL: Tarpon did not carry all that it should: {carried.stderr[-2000:]}")
    if case == ["failures"]:
        for rank in (0, 1):
            text = re.search(rf"^rank {rank}: (.*)$", carried.stderr, re.MULTILINE)
            if not text or "Timed out after 300 ms" not in text[1] or "rank 2" not in text[1]:
                sys.exit(f"FAIL: rank {rank} does not name the missing rank: {carried.stderr}")
        left = run(
            [program, "leave"], LD_PRELOAD=shim, TARPON_MODE="bounded", TARPON_BOUNDED_MIN="0"
        )
        if "without a rank: IoException, IoException\n" not in left.stdout:
            sys.exit(f"FAIL: a call goes on after one that may have a result: {left.stdout}")
        memory = run([program, "memory"], LD_PRELOAD=shim).stdout
        if not re.search(r"memory refused [1-9] times: alike: (aborted ){1,3}(3 ){9,11}$", memory):
            sys.exit(f"FAIL: refused memory unpairs calls: {memory}")
    if case == ["contexts"]:
        children = run([program, "children"], LD_PRELOAD=shim, TARPON_DEBUG="INFO").stderr
        ends = re.findall(r"rank (\d) carried (\d+) allreduces, (\d+) bytes", children)
        # The parent had no call, each child one; they end in any order.
        made = sorted(one for one in ends if one[1] != "0")
        if made != [("0", "1", "4000"), ("1", "1", "4000")]:
            sys.exit(f"FAIL: the children carried something else: {children}")
        if "rank 1 left the communicator" not in children:
            sys.exit(f"FAIL: a child has not said goodbye: {children}")
    lines = plain.stdout.count("\n")
    print(f"{lines} results are equal; Tarpon carried {said.group(1)} calls of {said.group(2)} bytes")


main()
