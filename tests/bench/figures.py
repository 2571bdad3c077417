"""What the benchmarks share: statistics, targets, the progress line, the report's file."""
import json, math, os, random, subprocess, sys, time

KIB, MIB = 1 << 10, 1 << 20


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


def mean(values):
    return sum(values) / len(values)


def p99(values):
    return percentile(values, 0.99)


def bootstrap(statistic, *samples, block=1, draws=1000):
    """95 % interval of a statistic of one or more samples, each drawn by itself. Values of a sample
    are drawn in runs of `block` neighbours, which keep what neighbours have in common."""
    generator = random.Random(1)

    def drawn(values):
        length = min(block, len(values))
        starts = generator.choices(range(len(values) - length + 1), k=-(-len(values) // length))
        return [value for start in starts for value in values[start:start + length]][:len(values)]

    found = sorted(statistic(*map(drawn, samples)) for _ in range(draws))
    return found[int(0.025 * draws)], found[int(0.975 * draws) - 1]


def shown(value, unit, decimals=1):
    return "-" if value is None else f"{value / unit:.{decimals}f}"


def ratios(over, under):
    """Round by round."""
    return [a / b for a, b in zip(over, under)]


def human(size):
    return f"{size // MIB}M" if size % MIB == 0 else f"{size // KIB}K"


def fail(what, process):
    sys.exit(f"{what} failed (exit {process.returncode}):\n{process.stderr[-2000:]}")


def judged(text, limit, value, bounds, most=False):
    """A target with the interval of its value: met by the value, open where only the interval
    reaches it, else missed. `most`: the limit is an upper one."""
    low, high = bounds
    met = value <= limit if most else value >= limit
    near = low <= limit if most else high >= limit
    return {"target": f"{text} at {'most' if most else 'least'} {limit:g}", "value": value,
            "interval": [low, high], "verdict": "met" if met else "open" if near else "MISSED"}


def not_beyond(text, limit, value, bounds):
    """A target that is missed only where the whole interval of its value is above the limit."""
    target = judged(text, limit, value, bounds, most=True)
    return {**target, "verdict": "met" if target["verdict"] == "open" else target["verdict"]}


def at_least(limit, text, values):
    """Of the rounds' values: by their median."""
    return judged(text, limit, median(values), interval(values))


def at_most(limit, text, values):
    return judged(text, limit, median(values), interval(values), most=True)


class Progress:
    """A line on the terminal; nothing elsewhere. Steps count in whatever takes alike long."""

    def __init__(self, steps):
        self.steps, self.done, self.started = steps, 0, time.monotonic()

    def step(self, what, count=1):
        self.done += count
        if sys.stderr.isatty():
            rest = max(0, self.steps - self.done)
            left = (time.monotonic() - self.started) * rest / self.done
            print(f"\r\033[K{100 * self.done // self.steps:3d} %  {what}  ETA {left:.0f} s", end="",
                  file=sys.stderr)

    def say(self, line):
        """A line on standard output, above that of the terminal."""
        self.end()
        print(line, flush=True)

    def end(self):
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)


def finish(path, targets, **parts):
    """Writes the report, prints the targets, ends the program: 1 when one is missed."""
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    with open(path, "w") as file:
        json.dump({"date": time.strftime("%Y-%m-%d"), "kernel": os.uname().release,
                   "cpus": os.cpu_count(), "commit": commit.stdout.strip(), **parts,
                   "targets": targets}, file, indent=1)
    print(f"\nwritten: {path}\n")
    for target in targets:
        low, high = target["interval"]
        print(f"{target['verdict']:<6} {target['target']}: {target['value']:.2f} "
              f"({low:.2f} .. {high:.2f})")
    sys.exit(1 if any(target["verdict"] == "MISSED" for target in targets) else 0)
