"""The page of tail.py: distributions and the frontier as SVG, in files that load nothing."""
import html, itertools, math

from figures import shown
from tables import table

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 55, 15, 15, 45  # margins
COLOURS = ["#1565c0", "#d84315", "#2e7d32", "#6a1b9a", "#f9a825", "#00838f", "#ad1457", "#5d4037",
           "#546e7a", "#9e9d24"]


NEAR = 34, 16  # px that two labels need: beside each other, below each other


def round_step(span):
    """1, 2 or 5 times a power of ten: a fifth of `span`, or a little more."""
    power = 10 ** math.floor(math.log10(span / 5))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span / 5 * 0.999)


def round_numbers(low, high):
    step = round_step(high - low)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def round_logarithms(low, high):
    """Powers of ten where there are three, else 1, 2 and 5 times those, else even steps."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in (1,), (1, 2, 5):
        ticks = [factor * 10.0 ** power for power in powers for factor in factors]
        ticks = [tick for tick in ticks if low * 0.999999 <= tick <= high * 1.000001]
        if len(ticks) >= 3:
            return ticks
    return round_numbers(low, high)


class Axis:
    """From values to places, with round numbers as `ticks`. A linear axis ends at round numbers, a
    logarithmic one at its values."""

    def __init__(self, values, start, end, log=False):
        self.low, self.high, self.log = min(values), max(values), log
        self.start, self.end = start, end
        if self.high == self.low:
            self.low, self.high = self.low * 0.9, self.high * 1.1 or 1
        if log:
            self.ticks = self.apart(round_logarithms(self.low, self.high))
            return
        step = round_step(self.high - self.low)
        first, last = math.floor(self.low / step + 1e-9), math.ceil(self.high / step - 1e-9)
        self.ticks = [step * i for i in range(first, last + 1)]
        self.low, self.high = self.ticks[0], self.ticks[-1]

    def apart(self, ticks):
        """Those whose labels do not run into the one before."""
        kept, near = [], NEAR[0] if self.end > self.start else NEAR[1]
        for tick in ticks:
            if not kept or abs(self.place(tick) - self.place(kept[-1])) >= near:
                kept.append(tick)
        return kept

    def place(self, value):
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def across(x, text):
    """A line of the grid, and its text."""
    return (f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>'
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{text}</text>')


def frame(grid, up, across_title, up_title):
    """`grid`: (place, text) of the axis across."""
    parts = [f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
             f'height="{HEIGHT - TOP - BOTTOM}" fill="none" stroke="#999"/>']
    parts += [across(x, text) for x, text in grid]
    for value in up.ticks:
        y = up.place(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                     f'stroke="#eee"/><text x="{LEFT - 6}" y="{y + 4:.1f}" '
                     f'text-anchor="end">{value:.6g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
                 f'{across_title}</text>')
    parts.append(f'<text transform="translate(13,{(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
                 f'text-anchor="middle">{up_title}</text>')
    return "".join(parts)


def legend(names):
    """Below the frame, a line a curve: (name, colour)."""
    return "".join(f'<text x="{LEFT}" y="{HEIGHT + 15 + 15 * number}" fill="{colour}">● '
                   f'{html.escape(name)}</text>' for number, (name, colour) in enumerate(names))


def legend_height(names):
    return 15 * len(names) + 10


def svg(parts, width=WIDTH, height=HEIGHT):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" font-family="sans-serif" font-size="11">'
            f'<rect width="{width}" height="{height}" fill="white"/>{"".join(parts)}</svg>')


def distribution(rows):
    """Of each contender the share of calls that took at most so long."""
    curves = [sorted(time / 1000 for time in row["times_us"]) for row in rows]
    time = Axis([value for curve in curves for value in curve], LEFT, WIDTH - RIGHT, log=True)
    up = Axis([0, 1], HEIGHT - BOTTOM, TOP)
    parts = [frame([(time.place(tick), f"{tick:.6g}") for tick in time.ticks], up,
                   "time of a call, ms (logarithmic)", "share of calls")]
    names = []
    for number, (row, curve) in enumerate(zip(rows, curves)):
        points = [(curve[0], 0)]
        for i, value in enumerate(curve):
            points += [(value, i / len(curve)), (value, (i + 1) / len(curve))]
        line = " ".join(f"{time.place(x):.1f},{up.place(y):.1f}" for x, y in points)
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        names.append((row["who"], colour))
    return svg([*parts, legend(names)], height=HEIGHT + legend_height(names))


def exceeded(rows):
    """Of each contender the share of calls that take longer, so that the slowest calls are what is seen."""
    curves = [sorted(time / 1000 for time in row["times_us"]) for row in rows]
    time = Axis([value for curve in curves for value in curve], LEFT, WIDTH - RIGHT, log=True)
    up = Axis([100 / max(map(len, curves)), 100], HEIGHT - BOTTOM, TOP, log=True)
    parts = [frame([(time.place(tick), f"{tick:.6g}") for tick in time.ticks], up,
                   "time, ms (logarithmic)", "calls that take longer, % (logarithmic)")]
    names = []
    for number, (row, curve) in enumerate(zip(rows, curves)):
        points = []
        for i, value in enumerate(curve):
            points += [(value, 100 - 100 * i / len(curve))]
            points += [(value, 100 - 100 * (i + 1) / len(curve))] * (i + 1 < len(curve))
        line = " ".join(f"{time.place(x):.1f},{up.place(y):.1f}" for x, y in points)
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        names.append((f'{row["who"]}: P99 {shown(row["p99_us"], 1000)} ms', colour))
    return svg([*parts, legend(names)], height=HEIGHT + legend_height(names))


def by_cell(rows):
    return [(name, list(group)) for name, group in
            itertools.groupby(rows, key=lambda row: row["cell"])]


def frontier_panel(cells, key, unit, title):
    """One figure over the loss target: a curve a cell, dots for Gloo and for exact calls."""
    known = [row for _, rows in cells for row in rows if row[key] and row["who"] != "baseline"]
    if not known:
        return f'<text x="{LEFT}" y="{HEIGHT / 2}">{title}: too few calls</text>'
    targets = sorted({row["target"] for row in known if row["target"]}) or [0.001]
    target = Axis(targets, LEFT + 130, WIDTH - RIGHT - 30, log=True)
    places = {"Gloo": LEFT + 35, "exact": LEFT + 85}
    up = Axis([row[key] / unit for row in known], HEIGHT - BOTTOM, TOP)
    grid = [(x, {"Gloo": "Gloo's best"}.get(name, name)) for name, x in places.items()]
    grid += [(target.place(share), f"{100 * share:g} %") for share in targets]
    parts = [frame(grid, up, "loss target (logarithmic)", title)]
    for number, (name, rows) in enumerate(cells):
        colour, points = COLOURS[number % len(COLOURS)], []
        for row in (row for row in rows if row in known):
            x = target.place(row["target"]) if row["target"] else \
                places["exact" if row["who"].endswith("exact") else "Gloo"]
            y = up.place(row[key] / unit)
            points += [f"{x:.1f},{y:.1f}"] if row["target"] else []
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"><title>'
                         f'{html.escape(name)}, {html.escape(row["who"])}: {row[key] / unit:.4g}'
                         '</title></circle>')
        if len(points) > 1:
            parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" '
                         'stroke-width="1.8"/>')
    return "".join(parts)


def frontier(rows):
    """P99 / P50 and mean over the loss target, one below the other."""
    cells = by_cell(rows)
    parts = [frontier_panel(cells, "p99_over_p50", 1, "P99 / P50"),
             f'<g transform="translate(0,{HEIGHT})">'
             f'{frontier_panel(cells, "mean_us", 1000, "mean, ms")}</g>']
    for number, (name, _) in enumerate(cells):
        parts.append(f'<text x="{LEFT}" y="{2 * HEIGHT + 15 + 15 * number}" '
                     f'fill="{COLOURS[number % len(COLOURS)]}">● {html.escape(name)}</text>')
    return svg(parts, height=2 * HEIGHT + 15 * len(cells) + 10)


def write_picture(path, picture):
    with open(path, "w", encoding="utf-8") as file:
        file.write(picture + "\n")


# Of the tables: title, key of the row, unit, decimals.
COLUMNS = [("calls", "calls", 1, 0), ("P50", "p50_us", 1000, 1), ("mean", "mean_us", 1000, 1),
           ("P99", "p99_us", 1000, 1), ("max", "max_us", 1000, 1),
           ("P99 / P50", "p99_over_p50", 1, 2), ("lost %", "lost", 0.01, 3),
           ("counted %", "counted", 0.01, 3), ("bound", "bound_us", 1000, 1),
           ("largest", "bound_max_us", 1000, 1), ("oracle's D", "oracle_us", 1000, 1),
           ("CPU s a call", "cpu_s", 1, 2), ("beside keeps", "beside_keeps", 1, 2)]


def write_page(path, rows):
    """`rows` as in tail.json."""
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>Tail of AllReduce</title>",
             "<style>body{font:14px sans-serif;margin:2em}svg{display:block}"
             "td,th{padding:2px 10px;text-align:right}</style><h1>Tail of AllReduce</h1>"
             "<p>Times in ms.</p>"]
    for name, group in by_cell(rows):
        parts.append(f"<h2>{html.escape(name)}</h2>{distribution(group)}"
                     f"{exceeded(group)}{table(COLUMNS, group)}")
    parts.append(f"<h2>P99 / P50 and mean over the loss target</h2>{frontier(rows)}</html>")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(parts))
