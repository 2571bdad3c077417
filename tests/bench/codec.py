#!/usr/bin/env python3
"""The codec: what lost packets cost with it, without it and with a transform of the whole vector, on
the gradients of this repository (or of --gradients DIR) and on made data; how fast it is on one core;
and what it costs a whole AllReduce.

Prints tables, writes codec.json and codec.html (plots), ends with the targets; exit code 1 when one is
missed. p is the share of packets that a trial really lost; an orthonormal transform with losses spread
evenly costs p / (1 - p) of the data's square."""
import argparse, collections, glob, html, json, os, re, subprocess

from figures import (Progress, at_least, at_most, finish, interval, judged, median,
                     not_beyond, ratios)
from tail_page import (BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, frame, legend, legend_height,
                       svg)

# Of the network whose gradients the repository has: convolutions, normalisations, linear layers.
LAYERS = 288, 32, 32, 32, 18432, 64, 64, 64, 262144, 256, 2560, 10
# Of a bucket that has left the caches (codec/layout.h).
FAR_LAYERS = 1728, 64, 36864, 64, 73728, 128, 147456, 128, 294912, 256, 32768, 256, 2560, 10
DEMO = "tools/demo/step100-rank*.npy"
SIZES = 1 << 12, 1 << 16, 25 << 18, 1 << 26  # elements; the last one is beyond any last-level cache
CACHED, BEYOND = SIZES[:2], SIZES[-1]
MEBIBYTES = 2, 25  # of the AllReduces
COLOURS = {"codec": "#1565c0", "without": "#d84315", "full length": "#2e7d32"}


def datasets(directory):
    """Options of codec_quality for each set of data, by name."""
    layers = ["--layers", ",".join(map(str, LAYERS))]
    if not directory:
        found = {"mean of 4 gradients": sorted(glob.glob(DEMO))}
    else:
        steps = collections.defaultdict(list)
        for path in sorted(glob.glob(os.path.join(directory, "*.npy"))):
            steps[re.sub(r"-?rank\d+\.npy$", "", os.path.basename(path))].append(path)
        found = {f"{step}, mean of {len(files)} gradients": files for step, files in steps.items()}
    if not all(found.values()) or not found:
        raise SystemExit(f"no .npy files in {directory or DEMO}")
    sets = {name: ["--files", *files, *layers] for name, files in found.items()}
    far = ["--layers", ",".join(map(str, FAR_LAYERS))]
    return sets | {"laplace": [], "lognormal": [], "laplace, 2.3 MiB": far}


def run_json(command):
    process = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} failed:\n{process.stderr}")
    return json.loads(process.stdout)


def over_even(cell):
    """Errors of the trials over what evenly spread losses of their share cost."""
    return [error / (p / (1 - p)) for error, p in zip(cell["error"], cell["share"])]


def bias(cell):
    """Of the mean estimate, squared, in units of one trial's error: what does not average out."""
    one = sum(cell["error"]) / len(cell["error"])
    return max(0.0, cell["error of the mean"] - one / len(cell["error"])) / one


def judge_quality(report):
    """Table and targets of stage 2."""
    print(f"\n{report['name']}: {report['elements']} elements, {report['workers']} workers, stage 2; "
          "error / (p / (1 - p))")
    print(f"{'pattern':<8} {'lost %':>6} | {'codec: mean':>11} {'worst':>6} {'worst layer':>11} "
          f"{'bias':>6} | {'without: mean':>13} {'worst':>7} {'worst layer':>11} | "
          f"{'full length: mean':>17} {'worst':>6}")
    cells = {(c["way"], c["pattern"], c["nominal"]): c for c in report["cells"] if c["stage"] == 2}
    targets = []
    for way, pattern, share in cells:
        if way != "codec":
            continue
        row = {name: cells[name, pattern, share] for name in COLOURS}
        scaled = {name: over_even(cell) for name, cell in row.items()}
        mean = {name: sum(values) / len(values) for name, values in scaled.items()}
        print(f"{pattern:<8} {100 * share:>6.1f} | {mean['codec']:>11.3f} "
              f"{max(scaled['codec']):>6.3f} {max(row['codec']['worst layers']):>11.3g} "
              f"{bias(row['codec']):>6.3f} | {mean['without']:>13.3f} {max(scaled['without']):>7.2f} "
              f"{max(row['without']['worst layers']):>11.3g} | {mean['full length']:>17.3f} "
              f"{max(scaled['full length']):>6.3f}")
        where = f"{report['name']}, {pattern}, {100 * share:g} %"
        for what, limit, value in (("mean", 1.05, mean["codec"]), ("worst", 1.3, max(scaled["codec"]))):
            targets.append(judged(f"{where}: {what} error / (p / (1 - p))", limit, value, (value, value),
                                  most=True))
    return targets


def print_stage1(report):
    print(f"\n{report['name']}: stage 1, 5 % of the contributions of others lost; squared error, and the "
          "part of it that does not average out")
    for cell in report["cells"]:
        if cell["stage"] == 1:
            error = cell["error"]
            print(f"  {cell['way']:<8} rescale {cell['rescale']:<8} mean {sum(error) / len(error):.5f} "
                  f"worst {max(error):.5f} bias {bias(cell):.3f}")


def judge_speed(speed):
    """Table and targets; GB/s count the elements once."""
    print(f"\none core, {speed['instruction_set']}, GB/s of float32 (medians)")
    names = "copy", "blocks", "encode", "decode", "radix 2", "radix 8"
    print(f"{'elements':>10} " + " ".join(f"{name:>9}" for name in names) + f" {'padding %':>10}")
    # The plain transform is a peer where it has 0.15 of copy's rate, else the better one is.
    cached = next(size["seconds"] for size in speed["sizes"] if size["count"] == CACHED[1])
    share = median(cached["copy"]) / median(cached["radix 2"])
    peer = "radix 2" if share >= 0.15 else "radix 8"
    targets = []
    for size in speed["sizes"]:
        count, seconds = size["count"], size["seconds"]
        rate = {name: 4e-9 * count / median(values) for name, values in seconds.items()}
        print(f"{count:>10} " + " ".join(f"{rate.get(name, float('nan')):>9.2f}" for name in names) +
              f" {100 * size['padding']:>10.2f}")
        if count in CACHED:
            targets.append(at_least(2, f"{count} elements: full length, {peer} / encode, time",
                                    ratios(seconds[peer], seconds["encode"])))
        if count == BEYOND:
            for name in "encode", "decode":
                targets.append(at_most(2, f"{count} elements: {name} / copy, time",
                                       ratios(seconds[name], seconds["copy"])))
    print(f"transforms of the whole vector: radix 2 has {share:.2f}x of copy's rate at {CACHED[1]} elements; "
          f"{peer} counts")
    return targets


def speeds(contenders, counts, rounds, progress):
    """Reports of codec_speed by contender. Contenders take turns; the times of all turns count."""
    reports = {}
    turns = 3 if len(contenders) > 1 else 1
    for _ in range(turns):
        for name, binaries in contenders.items():
            report = run_json([f"{binaries}/codec_speed", "--rounds", str(rounds // turns or 1),
                               "--counts", ",".join(map(str, counts))])
            for known, size in zip(reports.setdefault(name, report)["sizes"], report["sizes"]):
                if known is not size:
                    for way, values in size["seconds"].items():
                        known["seconds"][way] += values
            progress.step(f"speed, {name}")
    return reports


def judge_baseline(speed, times):
    """Times beside those of the other revision, from the same run."""
    pairs = {}
    for ours, theirs in zip(speed["here"]["sizes"], speed["baseline"]["sizes"]):
        for way in "encode", "decode":
            pairs[f"{ours['count']} elements: {way}"] = ratios(ours["seconds"][way], theirs["seconds"][way])
    for size in MEBIBYTES:
        for codec in "off", "on":
            pairs[f"AllReduce of {size} MiB, codec {codec}"] = ratios(times["here", size, codec],
                                                                      times["baseline", size, codec])
    return [not_beyond(f"{what}: time / the baseline's", 1, median(values), interval(values))
            for what, values in pairs.items()]


def allreduce_us(binaries, path, mebibytes, codec, iterations):
    """Median time on 4 local ranks over loopback, bounded, nothing lost."""
    subprocess.run([f"{binaries}/tarpon", "allreduce", "--local-ranks", "4", "-b", f"{mebibytes}M",
                    "-e", f"{mebibytes}M", "-n", str(iterations), "-w", "10", "-c", "0",
                    "--mode", "bounded", "--bound", "2s", "--codec", codec, "--json", path],
                   check=True, timeout=300, stdout=subprocess.DEVNULL)
    results = json.load(open(path))["results"]
    return [result["time_us"]["p50"] for result in results if result["place"] == "out"][0]


def allreduces(contenders, path, rounds, iterations, progress):
    """Times of AllReduce by contender, MiB and codec, in turn."""
    times = {(name, size, codec): [] for size in MEBIBYTES for codec in ("off", "on")
             for name in contenders}
    for number in range(rounds):
        for name, size, codec in list(times)[::1 if number % 2 == 0 else -1]:
            times[name, size, codec].append(
                allreduce_us(contenders[name], path, size, codec, iterations * 25 // size))
            progress.step(f"AllReduce of {size} MiB, codec {codec}, {name}")
    return times


def judge_allreduce(times):
    targets = []
    print()
    for size in MEBIBYTES:
        off, on = times["here", size, "off"], times["here", size, "on"]
        print(f"AllReduce of {size} MiB, 4 ranks: {median(off) / 1000:.2f} ms without the codec, "
              f"{median(on) / 1000:.2f} ms with it")
        targets.append(at_most(1.10, f"AllReduce of {size} MiB: time with the codec / without",
                               ratios(on, off)))
    return targets


def plot(report, pattern):
    """Mean and worst error over the share lost."""
    cells = [c for c in report["cells"] if c["stage"] == 2 and c["pattern"] == pattern]
    across = Axis([100 * c["nominal"] for c in cells], LEFT, WIDTH - RIGHT, log=True)
    up = Axis([error for c in cells for error in (max(c["error"]), sum(c["error"]) / len(c["error"]))],
              HEIGHT - BOTTOM, TOP, log=True)
    grid = [(across.place(tick), f"{tick:.6g}") for tick in across.ticks]
    parts = [frame(grid, up, "lost packets of stage 2, % (logarithmic)", "squared error / square")]
    for way, colour in COLOURS.items():
        mine = [c for c in cells if c["way"] == way]
        for value, dash in ((lambda e: sum(e) / len(e), ""), (max, 'stroke-dasharray="4 3"')):
            line = " ".join(f"{across.place(100 * c['nominal']):.1f},{up.place(value(c['error'])):.1f}"
                            for c in mine)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" {dash} '
                         'stroke-width="1.8"/>')
    names = [(f"{way}: mean, and worst (dashed)", colour) for way, colour in COLOURS.items()]
    return svg([*parts, legend(names)], height=HEIGHT + legend_height(names))


def write_page(path, reports):
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>The codec under loss</title>",
             "<style>body{font:14px sans-serif;margin:2em}svg{font:11px sans-serif;display:inline-block}"
             "</style><h1>Squared error against lost packets: mean, and worst (dashed)</h1>"]
    for report in reports:
        parts.append(f"<h2>{html.escape(report['name'])}</h2>")
        for pattern in "random", "burst", "tail":
            parts.append(f"<figure><figcaption>{pattern}</figcaption>{plot(report, pattern)}</figure>")
    with open(path, "w") as file:
        file.write("\n".join(parts) + "</html>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/bench", help="preset 'bench' built here; reports too")
    parser.add_argument("--gradients", metavar="DIR", help="of all workers: NAME-rankN.npy")
    parser.add_argument("--baseline", metavar="FOLDER", help="bin folder of another revision's build of the "
                        "preset 'bench': its speed and its AllReduce take turns with those of this one")
    parser.add_argument("--smoke", action="store_true", help="a few trials: does it run?")
    arguments = parser.parse_args()
    for program in "tarpon", "codec_speed":
        if arguments.baseline and not os.access(f"{arguments.baseline}/{program}", os.X_OK):
            parser.error(f"--baseline {arguments.baseline}: no program {program} there")
    binaries = os.path.join(arguments.build, "bin")
    contenders = {"here": binaries} | ({"baseline": arguments.baseline} if arguments.baseline else {})
    trials, rounds, turns = (3, 2, 2) if arguments.smoke else (60, 9, 7)
    sets = datasets(arguments.gradients)
    progress = Progress(len(sets) + (3 * 2 if arguments.baseline else 1) +
                        2 * len(MEBIBYTES) * turns * len(contenders))
    reports = []
    for name, options in sets.items():
        reports.append(run_json([f"{binaries}/codec_quality", "--name", name, "--trials", str(trials),
                                 *options]))
        progress.step(name)
    speed = speeds(contenders, SIZES if not arguments.smoke else CACHED, rounds, progress)
    times = allreduces(contenders, os.path.join(arguments.build, "codec-allreduce.json"), turns,
                       5 if arguments.smoke else 50, progress)
    progress.end()
    targets = [target for report in reports for target in judge_quality(report)]
    for report in reports:
        print_stage1(report)
    page = os.path.join(arguments.build, "codec.html")
    write_page(page, reports)
    targets += judge_speed(speed["here"]) + judge_allreduce(times)
    if arguments.baseline:
        targets += judge_baseline(speed, times)
    print(f"\nplots: {page}")
    finish(os.path.join(arguments.build, "codec.json"), targets, quality=reports, speed=speed,
           allreduce_us={f"{name}, {size} MiB, codec {codec}": values
                         for (name, size, codec), values in times.items()})


if __name__ == "__main__":
    main()
