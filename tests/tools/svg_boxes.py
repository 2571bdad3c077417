"""Where the texts of an SVG lie, without a browser: what is clipped, what overlaps.

Widths are those of DejaVu Sans, the widest of the usual sans-serif fonts, so that a text which fits
here fits anywhere. Understands what this project draws: text, line, polyline, rect, circle, g;
transforms translate() and rotate(); attributes, no style sheets."""
import math, re
import xml.etree.ElementTree as ElementTree

SVG = "{http://www.w3.org/2000/svg}"
# Advance widths by em; all others are as wide as a digit.
WIDTHS = {characters: width for group, width in
          (("iljI|'.,:;! ", 0.32), ("ft()[]r-/", 0.41), ("mwMW%@●", 0.95), ("ABCDEGHKNOPQRSUVX", 0.73))
          for characters in group}
DIGIT = 0.636
ASCENT, DESCENT = 0.76, 0.2  # of letters, by em
SLACK = 0.5  # px that may overlap: rounding


def text_width(words, size):
    return size * sum(WIDTHS.get(character, DIGIT) for character in words)


class Place:
    """An affine map from an element to the picture."""

    def __init__(self, a=1.0, b=0.0, c=0.0, d=1.0, e=0.0, f=0.0):
        self.parts = a, b, c, d, e, f

    def then(self, inner):
        a, b, c, d, e, f = self.parts
        g, h, i, j, k, l = inner.parts
        return Place(a * g + c * h, b * g + d * h, a * i + c * j, b * i + d * j,
                     a * k + c * l + e, b * k + d * l + f)

    def at(self, x, y):
        a, b, c, d, e, f = self.parts
        return a * x + c * y + e, b * x + d * y + f


def place_of(element):
    place = Place()
    for name, numbers in re.findall(r"(\w+)\(([^)]*)\)", element.get("transform", "")):
        values = [float(value) for value in re.split(r"[ ,]+", numbers.strip())]
        if name == "translate":
            place = place.then(Place(e=values[0], f=values[1] if len(values) > 1 else 0))
        elif name == "rotate" and len(values) == 1:
            sine, cosine = math.sin(math.radians(values[0])), math.cos(math.radians(values[0]))
            place = place.then(Place(cosine, sine, -sine, cosine))
        else:
            raise ValueError(f"transform {name}({numbers}) is unknown here")
    return place


def box_of(place, left, top, right, bottom):
    corners = [place.at(x, y) for x in (left, right) for y in (top, bottom)]
    return (min(x for x, _ in corners), min(y for _, y in corners),
            max(x for x, _ in corners), max(y for _, y in corners))


def text_box(element, place, inherited):
    size = float(inherited["font-size"])
    x, y = float(element.get("x", 0)), float(element.get("y", 0))
    width = text_width("".join(element.itertext()), size)
    left = x - {"start": 0, "middle": width / 2, "end": width}[inherited["text-anchor"]]
    return box_of(place, left, y - ASCENT * size, left + width, y + DESCENT * size)


def walk(element, place, inherited):
    """(tag, element, place, inherited attributes) of all below, in their order."""
    for child in element:
        if not isinstance(child.tag, str):
            continue
        known = {key: child.get(key, inherited[key]) for key in inherited}
        there = place.then(place_of(child))
        yield child.tag.removeprefix(SVG), child, there, known
        yield from walk(child, there, known)


def segments(tag, element, place):
    """Lines of a curve, and the corners of its dots."""
    if tag == "polyline":
        points = [place.at(*map(float, pair.split(","))) for pair in element.get("points").split()]
        return list(zip(points, points[1:]))
    x, y, r = (float(element.get(key)) for key in ("cx", "cy", "r"))
    left, top, right, bottom = box_of(place, x - r, y - r, x + r, y + r)
    return [((left, top), (right, bottom)), ((left, bottom), (right, top))]


def crosses(segment, box):
    """Whether a segment has a point inside of a box (Liang and Barsky)."""
    (x0, y0), (x1, y1) = segment
    low, high = 0.0, 1.0
    for step, near, far in ((x1 - x0, box[0] - x0, box[2] - x0), (y1 - y0, box[1] - y0, box[3] - y0)):
        if step == 0:
            if near >= 0 or far <= 0:
                return False
            continue
        first, last = sorted((near / step, far / step))
        low, high = max(low, first), min(high, last)
    return low < high


def overlap(a, b):
    return (min(a[2], b[2]) - max(a[0], b[0]) > SLACK and min(a[3], b[3]) - max(a[1], b[1]) > SLACK)


def inside(box, view):
    return (box[0] >= view[0] - SLACK and box[1] >= view[1] - SLACK and
            box[2] <= view[2] + SLACK and box[3] <= view[3] + SLACK)


def faults(svg, font_size=16):
    """One line for each text that is clipped or under something, and each curve that is clipped.
    `font_size`: of the page around it."""
    root = svg if isinstance(svg, ElementTree.Element) else ElementTree.fromstring(svg)
    x, y, width, height = map(float, root.get("viewBox").split())
    view = (x, y, x + width, y + height)
    inherited = {"font-size": root.get("font-size", str(font_size)), "text-anchor": "start"}
    texts, curves, bars, found = [], [], [], []
    for tag, element, place, known in walk(root, Place(), inherited):
        if tag == "text":
            texts.append(("".join(element.itertext()), text_box(element, place, known)))
        elif tag in ("polyline", "circle"):
            curves += segments(tag, element, place)
        elif tag == "rect" and "%" not in element.get("width") and element.get("fill") != "none":
            left, top = float(element.get("x", 0)), float(element.get("y", 0))
            bars.append(box_of(place, left, top, left + float(element.get("width")),
                               top + float(element.get("height"))))
    bars = [bar for bar in bars if bar != view]  # the background
    for number, (words, box) in enumerate(texts):
        if not inside(box, view):
            found.append(f'"{words}" is clipped: {[round(edge) for edge in box]}')
        found += [f'"{words}" overlaps "{other}"' for other, there in texts[:number]
                  if overlap(box, there)]
        if any(crosses(segment, box) for segment in curves):
            found.append(f'"{words}" is under a curve')
        if any(overlap(box, bar) for bar in bars):
            found.append(f'"{words}" is under a bar')
    for one in curves:
        if not all(inside((*point, *point), view) for point in one):
            found.append(f"a curve is clipped: {one}")
    if not texts:
        found.append("no text at all")
    return found


def pictures_of(page):
    """The SVG elements in an HTML page, as text."""
    return re.findall(r"<svg.*?</svg>", page, re.DOTALL)
