#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/scale/quantiles.h"
#include "tools/scale/svg.h"
#include "tools/scale/svg_shapes.h"
#include "tools/scale/ticks.h"

namespace tarpon::scale {
namespace {

constexpr double kPictureHeight = 480, kCurvesTop = 60, kCurvesBottom = 380;
constexpr double kRingRadius = 6;

double buckets(const Plan& plan, const CellResult& cell) {
  return ms(quantile(cell.completions, 0.5)) / ms(bucket_time(plan));
}

/// Around the dot of a modelled time, where that is the published one.
std::string ring(const Point& point, std::string_view colour) {
  return fmt::format(
      "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"none\" stroke=\"{}\" "
      "stroke-width=\"1.5\"/>\n",
      point.x, point.y, kRingRadius, colour);
}

Axis bucket_axis(const Plan& plan, const std::vector<CellResult>& results) {
  double low = INFINITY, high = 0;
  for (const CellResult& cell : results) {
    const double modelled = buckets(plan, cell);
    const double published = published_after_arrival(cell.algorithm, cell.ranks).value_or(modelled);
    low = std::min({low, modelled, published});
    high = std::max({high, modelled, published});
  }
  return {low * 0.95, high * 1.05, kCurvesBottom, kCurvesTop, false};
}

std::string bucket_grid(const Axis& axis) {
  std::string out;
  for (const double value : linear_ticks(axis.low, axis.high)) {
    out += grid(axis.at(value), fmt::format("{:.6g}", value));
  }
  return out +
         text(kLeft, kCurvesTop - 10, "start", "time after the arrival (buckets over a link)");
}

std::string late_curves(const Plan& plan, const std::vector<CellResult>& results, const Axis& x,
                        const Axis& y) {
  std::string out;
  for (const Algorithm algorithm : plan.algorithms) {
    const std::string_view colour = colour_of(algorithm);
    std::vector<Point> modelled;
    for (const CellResult& cell : results) {
      if (cell.algorithm != algorithm) continue;
      modelled.push_back({x.at(cell.ranks), y.at(buckets(plan, cell))});
      const auto published = published_after_arrival(algorithm, cell.ranks);
      if (published) out += ring({x.at(cell.ranks), y.at(*published)}, colour);
    }
    out += line(modelled, colour, false);
  }
  return out;
}

std::string late_legend(const Plan& plan) {
  const double left = kWidth - kRight + 15;
  double y = kCurvesTop + 10;
  std::string out;
  for (const Algorithm algorithm : plan.algorithms) {
    out += line({{left, y}, {left + 24, y}}, colour_of(algorithm), false);
    out += text(left + 32, y + 4, "start", name_of(algorithm));
    y += 22;
  }
  y += 12;
  return out + ring({left + 12, y}, "#666") + text(left + 32, y + 4, "start", "as published");
}

}  // namespace

std::string draw_after_arrival(const Plan& plan, const std::vector<CellResult>& results) {
  const Axis x = rank_axis(plan);
  const Axis y = bucket_axis(plan, results);
  std::string out = begin_svg(
      kPictureHeight, fmt::format("AllReduce of {} with one late rank, links of {:g} Gb/s: a model",
                                  size_text(plan.bytes), plan.network.bits_per_second * 1e-9));
  out += bucket_grid(y) + rank_labels(plan.ranks, x, kCurvesBottom);
  out +=
      text(kLeft, kPictureHeight - 20, "start",
           "published (arXiv 2505.23523): stragglar (n - 2 + log2 n) / (n - 1), a ring that waits "
           "2 (n - 1) / n",
           11);
  return out + late_curves(plan, results, x, y) + late_legend(plan) + "</svg>\n";
}

}  // namespace tarpon::scale
