#include "tools/scale/ticks.h"

#include <cmath>
#include <span>

namespace tarpon::scale {
namespace {

constexpr double kMostSteps = 5;
constexpr std::size_t kFewest = 3;
constexpr double kRounding = 1e-9;  // of a step

std::vector<double> decades(double low, double high, std::span<const double> factors) {
  std::vector<double> ticks;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  for (int power = first; power <= last; ++power) {
    for (const double factor : factors) {
      const double value = factor * std::pow(10.0, power);
      if (value >= low && value <= high) ticks.push_back(value);
    }
  }
  return ticks;
}

}  // namespace

std::vector<double> linear_ticks(double low, double high) {
  const double rough = (high - low) / kMostSteps;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough * (1 - kRounding)) step = factor * power;
  }
  std::vector<double> ticks;
  const double last = std::floor(high / step + kRounding);
  for (double at = std::ceil(low / step - kRounding); at <= last; ++at) {
    ticks.push_back(at * step + 0.0);  // not -0
  }
  return ticks;
}

std::vector<double> logarithmic_ticks(double low, double high) {
  constexpr double kPowers[] = {1}, kFine[] = {1, 2, 5};
  for (const std::span<const double> factors : {std::span<const double>(kPowers), {kFine}}) {
    std::vector<double> ticks = decades(low, high, factors);
    if (ticks.size() >= kFewest) return ticks;
  }
  return linear_ticks(low, high);
}

}  // namespace tarpon::scale
