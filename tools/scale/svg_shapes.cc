#include "tools/scale/svg_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tarpon::scale {
namespace {

constexpr double kLabelWidth = 36;  // room that a number needs

}  // namespace

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
    case Algorithm::tar_shares:
      return "#332288";
    case Algorithm::stragglar:
      return "#c51b1b";
  }
  return "";
}

double Axis::at(double value) const {
  const auto scale = [this](double x) { return logarithmic ? std::log(x) : x; };
  const double share = (scale(value) - scale(low)) / (scale(high) - scale(low));
  return first + share * (last - first);
}

std::string text(double x, double y, std::string_view anchor, std::string_view words, int size) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y,
      anchor, size, words);
}

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

std::string rank_labels(std::vector<std::uint32_t> counts, const Axis& axis, double bottom) {
  std::sort(counts.rbegin(), counts.rend());
  std::string out;
  double right = INFINITY;
  for (const std::uint32_t ranks : counts) {
    const double x = axis.at(ranks);
    if (right - x < kLabelWidth) continue;
    out += text(x, bottom + 20, "middle", fmt::format("{}", ranks));
    right = x;
  }
  return out + text((kLeft + kWidth - kRight) / 2, bottom + 42, "middle", "ranks (logarithmic)");
}

std::string begin_svg(double height, std::string_view title) {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
             "height=\"{1}\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" "
             "fill=\"white\"/>\n",
             kWidth, height) +
         text(kLeft, 26, "start", title, 16);
}

}  // namespace tarpon::scale
