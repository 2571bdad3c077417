"""The page of training.py: accuracy against time and times of steps, as SVG; it loads nothing."""
import html

from figures import mean
from tables import table
from tail_page import (BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, frame, legend,
                       legend_height, svg)
from training_run import TARGET

LOWEST = 0.85  # accuracies below it are cut off, where some are above


def polyline(points, colour, width, opacity=1.0):
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="{width}" '
            f'stroke-opacity="{opacity}"/>')


def average(runs):
    """(seconds, accuracy) of the evaluations, means over the runs."""
    rows = zip(*(run.evaluations for run in runs))
    return [(mean([seconds for _, seconds, _ in row]), mean([good for _, _, good in row]))
            for row in rows]


def accuracy_plot(groups):
    """`groups`: (contender, its runs). A thin line a seed, a thick one for their mean."""
    everything = [each for _, runs in groups for run in runs for each in run.evaluations]
    best = max(accuracy for _, _, accuracy in everything)
    low = LOWEST if best > LOWEST + 0.05 else min(accuracy for _, _, accuracy in everything)
    time = Axis([0, max(seconds for _, seconds, _ in everything)], LEFT, WIDTH - RIGHT)
    up = Axis([100 * low, 100 if low == LOWEST else 100 * best], HEIGHT - BOTTOM, TOP)
    parts = [frame([(time.place(tick), f"{tick:g}") for tick in time.ticks], up,
                   "time of training, s", "accuracy, %")]
    parts.append('<clipPath id="inside"><rect x="{}" y="{}" width="{}" height="{}"/></clipPath>'
                 .format(LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM))
    if low == LOWEST:
        y = up.place(100 * TARGET)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                     'stroke="#999" stroke-dasharray="4 3"/>')
    names, lines = [], []
    for number, (contender, runs) in enumerate(groups):
        colour = COLOURS[number % len(COLOURS)]
        for run in runs if len(runs) > 1 else []:
            lines.append(polyline([(time.place(seconds), up.place(100 * accuracy))
                                   for _, seconds, accuracy in run.evaluations], colour, 0.7, 0.4))
        lines.append(polyline([(time.place(seconds), up.place(100 * accuracy))
                               for seconds, accuracy in average(runs)], colour, 2))
        names.append((contender.name, colour))
    parts.append(f'<g clip-path="url(#inside)">{"".join(lines)}</g>')
    return svg([*parts, legend(names)], height=HEIGHT + legend_height(names))


def step_plot(rows):
    """The share of steps that take longer."""
    curves = [sorted(1000 * step for step in row["steps_s"]) for row in rows]
    time = Axis([value for curve in curves for value in curve], LEFT, WIDTH - RIGHT, log=True)
    up = Axis([100 / max(map(len, curves)), 100], HEIGHT - BOTTOM, TOP, log=True)
    parts = [frame([(time.place(tick), f"{tick:.6g}") for tick in time.ticks], up,
                   "time of a step, ms (logarithmic)", "steps that take longer, % (logarithmic)")]
    names = []
    for number, (row, curve) in enumerate(zip(rows, curves)):
        points = []
        for i, value in enumerate(curve):
            points.append((time.place(value), up.place(100 - 100 * i / len(curve))))
            if i + 1 < len(curve):
                points.append((time.place(value), up.place(100 - 100 * (i + 1) / len(curve))))
        colour = COLOURS[number % len(COLOURS)]
        parts.append(polyline(points, colour, 1.8))
        names.append((row["who"], colour))
    return svg([*parts, legend(names)], height=HEIGHT + legend_height(names))


# Title, key of the row, unit, decimals.
COLUMNS = [("seeds", "seeds", 1, 0), ("reached", "reached", 1, 0),
           ("time to 97 %, s", "reached_s", 1, 1), ("its step", "reached_step", 1, 0),
           ("/ Gloo's time", "time_over_gloo", 1, 2), ("mean step / Gloo's", "step_over_gloo", 1, 2),
           ("final accuracy, %", "final_accuracy", 0.01, 2), ("step P50, ms", "step_p50_s", 1e-3, 1),
           ("P99", "step_p99_s", 1e-3, 1), ("max", "step_max_s", 1e-3, 1),
           ("lost %", "lost", 0.01, 3), ("skipped steps", "skipped", 1, 0),
           ("beside per s", "beside_per_s", 1, 2)]


def target_lines(targets):
    lines = [f"<tr><td>{target['verdict']}</td><td style='text-align:left'>"
             f"{html.escape(target['target'])}</td><td>{target['value']:.2f}</td><td>"
             f"{target['interval'][0]:.2f} .. {target['interval'][1]:.2f}</td></tr>"
             for target in targets]
    return f"<h2>Targets</h2><table>{''.join(lines)}</table>" if lines else ""


def write_page(path, results, rows, targets, notes):
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>Training</title>",
             "<style>body{font:14px sans-serif;margin:2em}svg{display:block;margin:1em 0}"
             "td,th{padding:2px 10px;text-align:right}</style><h1>Training</h1>"]
    parts += [f"<p>{html.escape(note)}</p>" for note in notes]
    for cell in results.cells:
        own = [row for row in rows if row["cell"] == cell.name]
        if own:
            groups = [(contender, results.of(cell, contender)) for contender in cell.contenders]
            parts.append(f"<h2>{html.escape(cell.name)}</h2>"
                         f"{accuracy_plot([(who, runs) for who, runs in groups if runs])}"
                         f"{step_plot(own)}{table(COLUMNS, own)}")
    parts.append(f"{target_lines(targets)}</html>")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(parts))
