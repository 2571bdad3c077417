#include "tools/scale/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/scale/quantiles.h"
#include "tools/scale/svg_shapes.h"
#include "tools/scale/ticks.h"

namespace tarpon::scale {
namespace {

constexpr double kLabelHeight = 14;  // room that a number needs
constexpr std::string_view kNoColour = "#666";
constexpr double kTimeTop = 60, kTimeBottom = 400, kLostTop = 450, kLostBottom = 560;

Axis time_axis(const std::vector<CellResult>& results) {
  double low = INFINITY, high = 0;
  for (const CellResult& cell : results) {
    low = std::min(low, ms(quantile(cell.completions, 0.5)));
    high = std::max(high, ms(quantile(cell.completions, 0.99)));
  }
  low = std::max(low, 1e-6);
  return {low / 1.2, std::max(high, low) * 1.2, kTimeBottom, kTimeTop, true};
}

std::string time_grid(const Axis& axis) {
  std::string out;
  double below = INFINITY;
  for (const double value : logarithmic_ticks(axis.low, axis.high)) {
    const double y = axis.at(value);
    if (below - y < kLabelHeight) continue;
    out += grid(y, fmt::format("{:.6g}", value));
    below = y;
  }
  return out + text(kLeft, kTimeTop - 10, "start", "completion time (ms, logarithmic)");
}

std::string lost_grid(const Axis& axis) {
  std::string out;
  for (const double value : linear_ticks(axis.low, axis.high)) {
    out += grid(axis.at(value), fmt::format("{:.6g}", value));
  }
  return out + text(kLeft, kLostTop - 10, "start", "lost share of the contributions (%), mean");
}

/// Beside the curves: the algorithms, and what solid and dashed lines are.
std::string legend(const Plan& plan, const std::vector<CellResult>& results) {
  const double left = kWidth - kRight + 15;
  double y = kTimeTop + 10;
  std::string out;
  const auto row = [&](std::string_view colour, bool dashed, std::string_view words) {
    out += line({{left, y}, {left + 24, y}}, colour, dashed);
    out += text(left + 32, y + 4, "start", words);
    y += 22;
  };
  for (const Algorithm algorithm : plan.algorithms) {
    row(colour_of(algorithm), false, name_of(algorithm));
  }
  y += 12;
  const bool enough = std::all_of(results.begin(), results.end(), [](const CellResult& cell) {
    return cell.completions.size() >= kEnoughForTail;
  });
  row(kNoColour, false, "P50, lost share");
  row(kNoColour, true, enough ? "P99" : "P99, or longest");
  return out;
}

std::string curves(const Plan& plan, const std::vector<CellResult>& results, const Axis& x,
                   const Axis& time, const Axis& lost) {
  std::string out;
  for (const Algorithm algorithm : plan.algorithms) {
    std::vector<Point> half, tail, share;
    for (const CellResult& cell : results) {
      if (cell.algorithm != algorithm) continue;
      const double at = x.at(cell.ranks);
      half.push_back({at, time.at(ms(quantile(cell.completions, 0.5)))});
      tail.push_back({at, time.at(ms(quantile(cell.completions, 0.99)))});
      share.push_back({at, lost.at(cell.lost_mean * 100)});
    }
    const std::string_view colour = colour_of(algorithm);
    out += line(half, colour, false) + line(tail, colour, true) + line(share, colour, false);
  }
  return out;
}

}  // namespace

std::string draw(const Plan& plan, const std::vector<CellResult>& results) {
  const Axis x = rank_axis(plan);
  const Axis time = time_axis(results);
  double most = 0;
  for (const CellResult& cell : results) most = std::max(most, cell.lost_mean * 100);
  const Axis lost{0, most > 0 ? most * 1.2 : 1, kLostBottom, kLostTop, false};
  const Network& network = plan.network;
  std::string out = begin_svg(
      620, fmt::format("AllReduce of {}, links of {:g} Gb/s, loss {:g} %, tail {:g}: a model",
                       size_text(plan.bytes), network.bits_per_second * 1e-9, network.loss * 100,
                       network.tail));
  out += time_grid(time);
  out += lost_grid(lost) + rank_labels(plan.ranks, x, kLostBottom);
  return out + curves(plan, results, x, time, lost) + legend(plan, results) + "</svg>\n";
}

}  // namespace tarpon::scale
