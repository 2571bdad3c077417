// What the pictures of the scale model are made of: shapes of SVG, axes, and the colours of the
// algorithms.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/scale/experiment.h"

namespace tarpon::scale {

inline constexpr double kWidth = 820, kLeft = 70, kRight = 190;  // of a picture; of its margins

/// One that colour-blind readers can tell from the others (Okabe & Ito).
std::string_view colour_of(Algorithm algorithm);

/// One axis: values, or their logarithms, to pixels.
struct Axis {
  double low = 0, high = 1, first = 0, last = 1;
  bool logarithmic = false;

  double at(double value) const;
};

struct Point {
  double x, y;
};

std::string text(double x, double y, std::string_view anchor, std::string_view words,
                 int size = 12);

/// "25 MiB", "1000 B".
std::string size_text(std::uint64_t bytes);

/// A curve with a dot at each point.
std::string line(const std::vector<Point>& points, std::string_view colour, bool dashed);

/// A line over the width of the curves, and the number of its height.
std::string grid(double y, std::string_view label);

/// Of the numbers of ranks, from left to right.
Axis rank_axis(const Plan& plan);

/// The labels of the rank axis, below the curves, which end at `bottom`. A label that would overlap
/// its neighbour is left out.
std::string rank_labels(std::vector<std::uint32_t> counts, const Axis& axis, double bottom);

/// The head of a picture with a white ground and a title. The file ends with "</svg>\n".
std::string begin_svg(double height, std::string_view title);

}  // namespace tarpon::scale
