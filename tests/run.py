#!/usr/bin/env python3
"""Builds presets and runs their tests: what ./dev test calls.

    tests/run.py [--all] PRESET...

The next preset is built, at the lowest priority, while the tests of the one before run: tests wait
more than they compute. --all also runs the tests with the label `long`. Prints the time of each build
and of the slowest tests; on a terminal a line shows how many tests have ended and how long the others
take. Stops at the first preset that fails, and shows the output of what failed. Exit code: 0 if every
test passed or was skipped with a reason.
"""
import argparse, os, re, signal, subprocess, sys, time

SLOWEST = 20
ENDED = re.compile(r"\s*(\d+)/(\d+) Test\s+#\d+: (\S+) \.*\s*(.+?)\s+([\d.]+) sec")
PASSED = re.compile(r"^ *Start +\d|[. ]Passed +[\d.]+ sec")


class Build:
    """Configures and builds a preset from its construction on."""

    def __init__(self, preset, everything, beside_tests):
        self.log = f"build/{preset}.build.log"
        self._start = time.monotonic()
        os.makedirs("build", exist_ok=True)
        build = preset + ("-all" if everything else "")
        command = f"cmake --preset {preset} >/dev/null && cmake --build --preset {build}"
        if beside_tests:
            with open(self.log, "w", encoding="utf-8") as log:
                # In this session: the kernel compares priorities within one.
                self._process = subprocess.Popen(["nice", "-n", "19", "sh", "-c", command], stdout=log,
                                                 stderr=log, process_group=0)
        else:
            self.log = ""
            self._process = subprocess.Popen(["sh", "-c", command])

    def wait(self):
        """Whether it succeeded. Shows the output of one that failed."""
        failed = self._process.wait() != 0
        self.seconds = time.monotonic() - self._start
        if failed and self.log:
            with open(self.log, encoding="utf-8") as log:
                print(log.read())
        return not failed

    def stop(self):
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()


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
    """Exit code 0 and the seconds of each test."""
    progress = Progress(preset)
    command = ["ctest", "--preset", preset] + ([] if everything else ["-LE", "long"])
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
    return ctest.returncode, seconds


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
    build = Build(arguments.preset[0], arguments.all, beside_tests=False)
    try:
        for preset, after in zip(arguments.preset, arguments.preset[1:] + [None]):
            print(f"== build {preset}", flush=True)
            if not build.wait():
                return 1
            times.append(f"build {preset}: {build.seconds:.0f} s" + (" beside tests" if build.log else ""))
            print(f"== {times[-1]}\n== test {preset}", flush=True)
            if after:
                build = Build(after, arguments.all, beside_tests=True)
            began = time.monotonic()
            code, seconds = run_tests(preset, arguments.all)
            times.append(f"test {preset}: {time.monotonic() - began:.0f} s")
            print(f"== {times[-1]}", flush=True)
            if code != 0:
                return 1
            all_seconds.update(seconds)
    finally:
        build.stop()
    print(slowest(all_seconds))
    print("; ".join(times) + f"; in all {time.monotonic() - start:.0f} s")
    return 0


sys.exit(main())
