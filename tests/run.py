#!/usr/bin/env python3
"""Builds presets and runs their tests: what ./dev test calls.

    tests/run.py [--all] PRESET...

--all also runs the tests with the label `long`. Prints the time of each build and of the slowest tests;
on a terminal a line shows how many tests have ended and how long the others take. Stops at the first
preset that fails, and shows the output of what failed. Exit code: 0 if every test passed or was skipped
with a reason.
"""
import argparse, os, re, subprocess, sys, time

SLOWEST = 20
# Many tests wait for packets and timers, so one more than there are processors.
JOBS = len(os.sched_getaffinity(0)) + 1
ENDED = re.compile(r"\s*(\d+)/(\d+) Test\s+#\d+: (\S+) \.*\s*(.+?)\s+([\d.]+) sec")
PASSED = re.compile(r"^ *Start +\d|[. ]Passed +[\d.]+ sec")


def build(preset, everything):
    """Configures and builds a preset. Whether it succeeded."""
    configure = ["cmake", "--preset", preset] + (["-D", "TARPON_SHORT=OFF"] if everything else [])
    configured = subprocess.run(configure, stdout=subprocess.DEVNULL, check=False)
    if configured.returncode != 0:
        return False
    build_preset = preset + ("-all" if everything else "")
    return subprocess.run(["cmake", "--build", "--preset", build_preset], check=False).returncode == 0


class Progress:
    """A line on a terminal: tests that have ended, and the time that the others take."""

    def __init__(self, preset):
        self._shown = sys.stdout.isatty()
        self._preset = preset
        self._start = time.monotonic()
        self._costs = costs_of(preset)
        self._done = 0.0

    def update(self, name, ended, tests):
        if not self._shown:
            return
        self._done += self._costs.get(name, 0)
        whole = sum(self._costs.values())
        share = max(self._done / whole if whole else 0, ended / tests if not whole else 0, 1e-3)
        passed = time.monotonic() - self._start
        left = passed * (1 - min(share, 1)) / share
        print(f"\r\033[K{self._preset}: {ended} of {tests} tests, {passed:.0f} s, about {left:.0f} s left",
              end="", flush=True)

    def clear(self):
        if self._shown:
            print("\r\033[K", end="", flush=True)


def costs_of(preset):
    """Seconds of each test in earlier runs, as ctest notes them; empty in a fresh clone."""
    costs = {}
    try:
        with open(f"build/{preset}/Testing/Temporary/CTestCostData.txt", encoding="utf-8") as file:
            for line in file:
                words = line.split()
                if len(words) == 3:
                    costs[words[0]] = float(words[2])
    except FileNotFoundError:
        pass
    return costs


def run_tests(preset, everything):
    """Whether all passed, and the seconds of each test."""
    progress = Progress(preset)
    command = ["ctest", "--preset", preset, "--parallel", str(JOBS)] + ([] if everything else ["-LE", "long"])
    seconds = {}
    with open(f"build/{preset}/ctest.log", "w", encoding="utf-8") as log, \
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             errors="replace") as ctest:
        for line in ctest.stdout:
            log.write(line)
            ended = ENDED.match(line)
            if ended:
                seconds[f"{preset}: {ended[3]}"] = float(ended[5])
                progress.update(ended[3], int(ended[1]), int(ended[2]))
    progress.clear()
    with open(f"build/{preset}/ctest.log", encoding="utf-8") as log:
        lines = log.read().splitlines()
    closing = next((i for i, line in enumerate(lines) if re.match(r"\d+% tests passed", line)), len(lines))
    if ctest.returncode != 0:
        print("\n".join(line for line in lines[:closing] if not PASSED.search(line)))
    print("\n".join(lines[closing:]))
    return ctest.returncode == 0, seconds


def slowest(seconds):
    lines = [f"the {min(SLOWEST, len(seconds))} slowest of {len(seconds)} tests:"]
    for name, one in sorted(seconds.items(), key=lambda item: -item[1])[:SLOWEST]:
        lines.append(f"{one:8.1f} s  {name}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="./dev test", allow_abbrev=False)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("preset", nargs="+")
    arguments = parser.parse_args()
    start = time.monotonic()
    all_seconds, times = {}, []
    for preset in arguments.preset:
        for step in ("build", "test"):
            print(f"== {step} {preset}", flush=True)
            began = time.monotonic()
            if step == "build":
                passed = build(preset, arguments.all)
            else:
                passed, seconds = run_tests(preset, arguments.all)
                all_seconds.update(seconds)
            times.append(f"{step} {preset}: {time.monotonic() - began:.0f} s")
            print(f"== {times[-1]}", flush=True)
            if not passed:
                return 1
    print(slowest(all_seconds))
    print("; ".join(times) + f"; in all {time.monotonic() - start:.0f} s")
    return 0


sys.exit(main())
