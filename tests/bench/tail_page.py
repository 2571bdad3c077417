"""The page of tail.py: distributions and the frontier as SVG in one file that loads nothing."""
import html, itertools, math

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 55, 15, 15, 45  # margins
COLOURS = ["#1565c0", "#d84315"]           # Tarpon, Gloo


class Axis:
    """From values to places, logarithmic where the values span much."""

    def __init__(self, values, start, end, log):
        low, high = min(values), max(values)
        self.log = log and low > 0
        if not self.log:
            low, high = min(0, low), high or 1
        elif high == low:
            high = low * 1.1
        self.low, self.high, self.start, self.end = low, high, start, end

    def place(self, value):
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self):
        if not self.log:
            return [self.low + (self.high - self.low) * i / 5 for i in range(6)]
        return [self.low * (self.high / self.low) ** (i / 5) for i in range(6)]


def frame(across, up, across_title, up_title):
    """Axes, their ticks and titles."""
    parts = [f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
             f'height="{HEIGHT - TOP - BOTTOM}" fill="none" stroke="#999"/>']
    for value in across.ticks():
        x = across.place(value)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" '
                     f'stroke="#eee"/><text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" '
                     f'text-anchor="middle">{value:.3g}</text>')
    for value in up.ticks():
        y = up.place(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                     f'stroke="#eee"/><text x="{LEFT - 6}" y="{y + 4:.1f}" '
                     f'text-anchor="end">{value:.3g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
                 f'{across_title}</text>')
    parts.append(f'<text transform="translate(13,{(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
                 f'text-anchor="middle">{up_title}</text>')
    return parts


def svg(parts):
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}">{"".join(parts)}</svg>'


def distribution(rows):
    """Of each contender the share of operations that took at most so long."""
    curves = [sorted(time / 1000 for time in row["times_us"]) for row in rows]
    across = Axis([value for curve in curves for value in curve], LEFT, WIDTH - RIGHT, log=True)
    up = Axis([0, 1], HEIGHT - BOTTOM, TOP, log=False)
    parts = frame(across, up, "ms (logarithmic)", "share of operations")
    for number, (row, curve) in enumerate(zip(rows, curves)):
        points = [(curve[0], 0)]
        for i, value in enumerate(curve):
            points += [(value, i / len(curve)), (value, (i + 1) / len(curve))]
        line = " ".join(f"{across.place(x):.1f},{up.place(y):.1f}" for x, y in points)
        colour, y = COLOURS[number % len(COLOURS)], HEIGHT - BOTTOM - 10 - 16 * number
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
                     f'<text x="{WIDTH - RIGHT - 8}" y="{y}" fill="{colour}" text-anchor="end">'
                     f'{html.escape(row["who"])}</text>')
    return svg(parts)


def frontier_plot(rows):
    """Lost share over time; one point a bound."""
    across = Axis([row["p50_us"] / 1000 for row in rows], LEFT, WIDTH - RIGHT - 60, log=False)
    up = Axis([100 * row["lost"] for row in rows], HEIGHT - BOTTOM, TOP + 10, log=False)
    parts = frame(across, up, "median, ms", "lost, %")
    for row in rows:
        x, y = across.place(row["p50_us"] / 1000), up.place(100 * row["lost"])
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[0]}"/>'
                     f'<text x="{x + 6:.1f}" y="{y - 6:.1f}">{html.escape(row["bound"])}</text>')
    return svg(parts)


def table(rows):
    def cell(value, unit=1.0, decimals=1):
        return f"<td>{'-' if value is None else f'{value / unit:.{decimals}f}'}</td>"

    head = ["", "operations", "P50 ms", "mean ms", "P99 ms", "max ms", "P99 / P50", "lost %",
            "CPU s an operation", "the ring keeps"]
    lines = ["<tr>" + "".join(f"<th>{title}</th>" for title in head) + "</tr>"]
    for row in rows:
        lines.append(
            f"<tr><td>{html.escape(row['who'])}</td><td>{row['operations']}</td>" +
            cell(row["p50_us"], 1000) + cell(row["mean_us"], 1000) + cell(row["p99_us"], 1000) +
            cell(row["max_us"], 1000) + cell(row["p99_over_p50"], 1, 2) +
            cell(row["lost"], 0.01, 3) + cell(row["cpu_s"], 1, 3) +
            cell(row["ring_keeps"], 1, 2) + "</tr>")
    return f"<table>{''.join(lines)}</table>"


def write_page(path, rows, frontier):
    """`rows` and `frontier` as in tail.json."""
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>Tail of AllReduce</title>",
             "<style>body{font:14px sans-serif;margin:2em}svg{font:11px sans-serif;display:block}"
             "td,th{padding:2px 10px;text-align:right}</style><h1>Tail of AllReduce</h1>"]
    for name, group in itertools.groupby(rows, key=lambda row: row["cell"]):
        group = list(group)
        parts.append(f"<h2>{html.escape(name)}</h2>{distribution(group)}{table(group)}")
    parts.append(f"<h2>Lost share against the bound of a stage</h2>{frontier_plot(frontier)}")
    parts.append("</html>")
    with open(path, "w") as file:
        file.write("\n".join(parts))
