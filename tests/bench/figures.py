"""What the benchmarks share: medians, intervals, a line of progress, verdicts on targets, the report."""
import json, math, os, random, subprocess, sys, time


def percentile(values, q):
    """Nearest rank; None with too few samples to speak of it."""
    tail = min(q, 1 - q)
    if not values or (tail > 0 and len(values) * tail < 0.999999):
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered)) - 1))]


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def interval(values, statistic=median, draws=1000, seed=1):
    """95 % bootstrap interval."""
    generator = random.Random(seed)
    drawn = sorted(statistic([generator.choice(values) for _ in values]) for _ in range(draws))
    return drawn[int(0.025 * draws)], drawn[int(0.975 * draws) - 1]


class Progress:
    """A line with an ETA on a terminal, nothing elsewhere."""

    def __init__(self, steps):
        self.steps, self.done, self.started = steps, 0, time.monotonic()

    def step(self, text):
        self.done += 1
        if sys.stderr.isatty():
            left = (time.monotonic() - self.started) * (self.steps - self.done) / self.done
            print(f"\r\033[K{100 * self.done // self.steps:3d} %  {text}  ETA {left:.0f} s", end="",
                  file=sys.stderr)

    def end(self):
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)


def target(text, values, at_least=None, at_most=None):
    """A target is missed only when the whole interval of its median is."""
    low, high = interval(values)
    met = high >= at_least if at_most is None else low <= at_most
    limit = f"at least {at_least}" if at_most is None else f"at most {at_most}"
    return {"target": f"{text} {limit}", "value": median(values), "interval": [low, high], "met": met}


def print_targets(targets):
    for each in targets:
        low, high = each["interval"]
        print(f"{'met   ' if each['met'] else 'MISSED'} {each['target']}: {each['value']:.2f} "
              f"({low:.2f} .. {high:.2f})")


def write_report(path, content):
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    with open(path, "w") as file:
        json.dump({"date": time.strftime("%Y-%m-%d"), "kernel": os.uname().release,
                   "cpus": os.cpu_count(), "commit": commit.stdout.strip(), **content}, file, indent=1)
    print(f"\nwritten: {path}\n")
