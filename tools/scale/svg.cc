#include "tools/scale/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/scale/quantiles.h"
#include "tools/scale/ticks.h"

namespace tarpon::scale {
namespace {

constexpr double kWidth = 820, kLeft = 70, kRight = 190;
constexpr double kLabelHeight = 14, kLabelWidth = 36;  // room that a number needs
constexpr std::string_view kNoColour = "#666";
constexpr double kTimeTop = 60, kTimeBottom = 400, kLostTop = 450, kLostBottom = 560;

/// Colours that stay apart for colour-blind readers (Okabe & Ito).
std::string_view colour_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::ring:
      return "#e69f00";
    case Algorithm::halving_doubling:
      return "#009e73";
    case Algorithm::tar:
      return "#cc79a7";
    case Algorithm::bounded:
      return "#0072b2";
    case Algorithm::circulant:
      return "#d55e00";
    case Algorithm::one_shot:
      return "#999999";
    case Algorithm::recursive_doubling:
      return "#56b4e9";
    case Algorithm::two_level_tar:
      return "#882255";
    case Algorithm::late_rank:
      return "#000000";
  }
  return "";
}

/// One axis: values, or their logarithms, to pixels.
struct Axis {
  double low, high, first, last;
  bool logarithmic;

  double at(double value) const {
    const auto scale = [this](double x) { return logarithmic ? std::log(x) : x; };
    const double share = (scale(value) - scale(low)) / (scale(high) - scale(low));
    return first + share * (last - first);
  }
};

struct Point {
  double x, y;
};

std::string text(double x, double y, std::string_view anchor, std::string_view words,
                 int size = 12) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y,
      anchor, size, words);
}

/// "25 MiB", "1000 B".
std::string size_text(std::uint64_t bytes) {
  if (bytes % (1 << 20) == 0) return fmt::format("{} MiB", bytes >> 20);
  if (bytes % (1 << 10) == 0) return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

std::string line(const std::vector<Point>& points, std::string_view colour, bool dashed) {
  std::string path, dots;
  for (const Point& point : points) {
    path += fmt::format("{:.1f},{:.1f} ", point.x, point.y);
    dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", point.x,
                        point.y, colour);
  }
  return fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{} points=\"{}\"/>\n",
                     colour, dashed ? " stroke-dasharray=\"6 4\"" : "", path) +
         dots;
}

std::string grid(double y, std::string_view label) {
  return fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n",
                     kLeft, kWidth - kRight, y, y) +
         text(kLeft - 8, y + 4, "end", label);
}

Axis rank_axis(const Plan& plan) {
  const auto [least, most] = std::minmax_element(plan.ranks.begin(), plan.ranks.end());
  const double low = *least, high = *most;
  // One rank count alone stands in the middle.
  if (low >= high) return {low / 2, high * 2, kLeft, kWidth - kRight, true};
  return {low, high, kLeft, kWidth - kRight, true};
}

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

/// Rank counts below the curves; those that would run into their neighbour stay without.
std::string rank_labels(std::vector<std::uint32_t> counts, const Axis& axis) {
  std::sort(counts.rbegin(), counts.rend());
  std::string out;
  double right = INFINITY;
  for (const std::uint32_t ranks : counts) {
    const double x = axis.at(ranks);
    if (right - x < kLabelWidth) continue;
    out += text(x, kLostBottom + 20, "middle", fmt::format("{}", ranks));
    right = x;
  }
  return out +
         text((kLeft + kWidth - kRight) / 2, kLostBottom + 42, "middle", "ranks (logarithmic)");
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
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} 620\" width=\"{0}\" "
      "height=\"620\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n",
      kWidth);
  const Network& network = plan.network;
  out += text(kLeft, 26, "start",
              fmt::format("AllReduce of {}, links of {:g} Gb/s, loss {:g} %, tail {:g}: a model",
                          size_text(plan.bytes), network.bits_per_second * 1e-9, network.loss * 100,
                          network.tail),
              16);
  out += time_grid(time);
  out += lost_grid(lost) + rank_labels(plan.ranks, x);
  return out + curves(plan, results, x, time, lost) + legend(plan, results) + "</svg>\n";
}

}  // namespace tarpon::scale
