#!/usr/bin/env python3
"""pictures_test.py TOOL SIMULATOR SOURCE: the pictures that the project makes, read by svg_boxes.py: no text is
clipped, overlaps another one, or lies under a curve or a bar. Those of the tool are drawn by it, those
of the benchmarks from made figures. `--keep DIR` leaves them there, to be looked at."""
import glob, os, re, subprocess, sys, tempfile, unittest

from svg_boxes import faults, pictures_of

SOURCE, TOOL, SIMULATOR = sys.argv[1:4]
KEEP = sys.argv[5] if len(sys.argv) > 5 and sys.argv[4] == "--keep" else None
sys.path.insert(0, os.path.join(SOURCE, "tests/bench"))
import codec, tail_page  # noqa: E402

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 200 100" font-size="10">'


def run(*arguments, fails=False):
    program = SIMULATOR if arguments[0] == "scale" else TOOL
    ended = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    if (ended.returncode != 0) != fails:
        raise AssertionError(f"{arguments}: {ended.stdout}{ended.stderr}")


def row(cell, who, target, times):
    ordered = sorted(times)
    return {"cell": cell, "who": who, "target": target, "times_us": times, "mean_us": sum(times) / len(times),
            "p99_over_p50": ordered[-1] / ordered[len(ordered) // 2],
            "calls": len(times), "p50_us": ordered[len(ordered) // 2], "p99_us": ordered[-1],
            "max_us": ordered[-1], "lost": 0.001, "counted": 0.001, "bound_us": 1000, "bound_max_us": 2000,
            "oracle_us": None, "cpu_s": 0.1, "beside_keeps": None}


def tail_rows():
    """Two networks, as tail.py writes them; the times of one spread widely."""
    rows = []
    for cell, spread in (("4 ranks, quiet", 1.02), ("8 ranks, rings of 4 beside, loss 0.1 %", 1.4)):
        for number, (who, target) in enumerate((("Gloo ring", None), ("Tarpon exact", None),
                                                ("Tarpon 0.1 %", 0.001), ("Tarpon 0.5 %", 0.005),
                                                ("Tarpon 2 %", 0.02))):
            rows.append(row(cell, who, target, [(110_000 + 9000 * number) * spread ** (i % 9)
                                                for i in range(100)]))
    return rows


def codec_report():
    cells = [{"way": way, "pattern": pattern, "nominal": share, "stage": 2,
              "error": [share * factor * (1 + i / 5) for i in range(5)]}
             for way, factor in (("codec", 1), ("without", 1.1), ("full length", 0.98))
             for pattern in ("random", "burst", "tail") for share in (0.001, 0.005, 0.01, 0.05, 0.1)]
    return {"name": "mean of 4 gradients", "cells": cells}


class Helper(unittest.TestCase):
    """It finds what it is for."""

    def expect(self, body, part):
        self.assertTrue(any(part in fault for fault in faults(HEAD + body + "</svg>")),
                        faults(HEAD + body + "</svg>"))

    def test_good(self):
        self.assertEqual(faults(HEAD + '<rect width="200" height="100" fill="white"/><text x="10" y="20">a'
                                '</text><text x="10" y="40">b</text></svg>'), [])

    def test_clipped(self):
        self.expect('<text x="150" y="20">a text too long</text>', "is clipped")
        self.expect('<text x="5" y="20" text-anchor="end">12345</text>', "is clipped")
        self.expect('<text x="5" y="105">low</text>', "is clipped")
        self.expect('<text transform="translate(10,10) rotate(-90)">turned up</text>', "is clipped")
        self.expect('<text x="9" y="9">a</text><polyline points="1,1 300,5"/>', "a curve is clipped")

    def test_overlap(self):
        self.expect('<text x="10" y="20">first</text><text x="30" y="22">second</text>', "overlaps")
        self.expect('<g transform="translate(0,-40)"><text x="10" y="60">first</text></g>'
                    '<text x="10" y="20">second</text>', "overlaps")

    def test_under(self):
        self.expect('<text x="10" y="20">legend</text><polyline points="0,0 100,40"/>', "under a curve")
        self.expect('<text x="10" y="20">legend</text><circle cx="20" cy="18" r="3"/>', "under a curve")
        self.expect('<text x="10" y="20">legend</text><rect x="15" y="10" width="9" height="9"/>', "under a bar")


class Pictures(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)

    def check(self, name, svg):
        if KEEP:
            with open(os.path.join(KEEP, name + ".svg"), "w", encoding="utf-8") as file:
                file.write(svg)
        self.assertEqual(faults(svg), [], name)
        for number in re.findall(r">(-?[\d.]+)</text>", svg):  # the ticks
            self.assertRegex(number, r"^(0|[1-9]\d{0,2}0*|[1-9]?\d*\.0*[1-9]\d{0,2})$", name)

    def drawn(self, *arguments, fails=False):
        path = os.path.join(self.scratch.name, "picture.svg")
        run(*arguments, "--svg", path, fails=fails)
        with open(path, encoding="utf-8") as file:
            return file.read()

    def test_scale(self):
        for name, options in (
                ("usual", ["--ranks", "8..64", "--bytes", "1M", "--tail", "1.5", "--loss", "0.1%"]),
                ("one-count", ["--ranks", "16", "--bytes", "1M", "--algorithms", "bounded"]),
                ("near-counts", ["--ranks", "8..70", "--algorithms", "tar,bounded", "--bytes", "12345678"]),
                ("late", ["--ranks", "4..64", "--algorithms", "ring,stragglar,late-rank,tar-shares", "--bytes", "4M",
                          "--late", "50ms", "--loss", "0%", "--tail", "1", "--delay", "1us", "--queue", "0"]),
                ("late-one-count", ["--ranks", "4", "--algorithms", "tar", "--bytes", "1M", "--late", "50ms"]),
                ("lossy", ["--ranks", "4..16", "--bytes", "1M", "--loss", "5%", "--bound", "20ms"])):
            with self.subTest(name):
                self.check("scale-" + name, self.drawn("scale", "--operations", "4", *options))

    def test_flight(self):
        for name, options in (("cut", ["-b", "16M", "-e", "16M", "--max-rate", "80mbit"]),
                              ("good", ["-b", "1M", "-e", "1M"])):
            with self.subTest(name):
                recordings = os.path.join(self.scratch.name, name)
                os.mkdir(recordings)
                job = ["allreduce", "--local-ranks", "4", "-n", "3", "--deadline", "1s", "--flight", recordings, *options]
                run(*job, fails=name == "cut")
                if glob.glob(recordings + "/*.flight"):
                    self.check("flight-" + name, self.drawn("flight", recordings))
                else:
                    self.assertEqual(name, "good")  # nothing is recorded of a job that ends well

    def page(self, name, write, *arguments):
        path = os.path.join(KEEP or self.scratch.name, name + ".html")
        write(path, *arguments)
        with open(path, encoding="utf-8") as file:
            pictures = pictures_of(file.read())
        self.assertTrue(pictures)
        for number, picture in enumerate(pictures):
            self.check(f"{name}-{number}", picture)

    def test_tail(self):
        self.page("tail", tail_page.write_page, tail_rows())

    def test_codec(self):
        self.page("codec", codec.write_page, [codec_report()])

    def test_pages(self):
        """The pictures that the pages show."""
        found = glob.glob(os.path.join(SOURCE, "tools/*.svg"))
        self.assertTrue(found)
        for path in found:
            with open(path, encoding="utf-8") as file:
                self.check(os.path.basename(path).removesuffix(".svg"), file.read())


class Ticks(unittest.TestCase):
    """Round numbers, inside of the axis."""

    def test_logarithmic(self):
        for low, high, ticks in ((0.001, 0.02, [0.001, 0.002, 0.005, 0.01, 0.02]), (1.2, 970, [10, 100]),
                                 (113, 131, [115, 120, 125, 130]), (0.001, 1000, [10.0 ** i for i in range(-3, 4)])):
            got = tail_page.Axis([low, high], 0, 500, log=True).ticks
            self.assertEqual([tick for tick in got if tick not in (2, 5, 20, 50, 200, 500)],
                             [tick for tick in map(float, ticks)])

    def test_linear(self):
        self.assertEqual(tail_page.Axis([0, 4.3], 0, 500).ticks, [0, 1, 2, 3, 4, 5])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
