#include "collectives/shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace tarpon {
namespace {

/// Ranks with the largest remainders first, ties to the lower rank.
template <typename Remainder>
std::vector<std::uint32_t> by_remainder(const std::vector<Remainder>& remainders) {
  std::vector<std::uint32_t> order(remainders.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return remainders[a] > remainders[b]; });
  return order;
}

bool are_weights(std::span<const double> weights) {
  if (weights.empty() || weights.size() > Shares::kMostRanks) return false;
  double sum = 0;
  for (const double weight : weights) {
    if (!(weight >= 0)) return false;
    sum += weight;
  }
  return sum > 0 && std::isfinite(sum);
}

}  // namespace

Shares::Shares(std::span<const double> weights) : valid_(are_weights(weights)) {
  if (!valid_) return;
  ranks_ = static_cast<std::uint32_t>(weights.size());
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> remainders;
  std::uint32_t left = kWhole;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    const double exact = weights[rank] / sum * kWhole;
    parts_[rank] = std::min(static_cast<std::uint32_t>(exact), left);
    remainders.push_back(exact - parts_[rank]);
    left -= parts_[rank];
  }
  const std::vector<std::uint32_t> order = by_remainder(remainders);
  for (std::uint32_t i = 0; i < left; ++i) ++parts_[order[i % ranks_]];
}

Shares Shares::for_speeds(std::span<const double> speeds) {
  return for_speeds(speeds, std::vector<double>(speeds.size(), 0));
}

/// With the share w a rank of N sends and receives 1 + (N - 2) w buckets. Let T be the time from
/// the start of the last rank on, in times of a bucket over a link of speed 1. All finish at T
/// where w = ((T + lead) speed - 1) / (N - 2), and all w add up to 1.
Shares Shares::for_speeds(std::span<const double> speeds, std::span<const double> leads) {
  Shares shares(speeds);
  const bool stands = std::any_of(speeds.begin(), speeds.end(), [](double s) { return s == 0; });
  shares.valid_ = shares.valid_ && !stands;
  if (!shares.valid_) return shares;
  if (speeds.size() <= 2) return Shares(std::vector<double>(speeds.size(), 1));
  const auto others = static_cast<double>(speeds.size() - 2);
  std::vector<double> weights(speeds.size());
  const auto sum_at = [&](double time) {
    std::transform(speeds.begin(), speeds.end(), leads.begin(), weights.begin(),
                   [&](double speed, double lead) {
                     return std::max(0.0, ((time + lead) * speed - 1) / others);
                   });
    return std::accumulate(weights.begin(), weights.end(), 0.0);
  };
  // The fastest rank alone could own all: no more time is needed than that takes. T is negative
  // where the leads are longer than what the others have to exchange.
  double low = -*std::max_element(leads.begin(), leads.end());
  double high = (1 + others) / *std::max_element(speeds.begin(), speeds.end());
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (sum_at(middle) < 1 ? low : high) = middle;
  }
  sum_at(high);
  return Shares(weights);
}

std::array<std::uint64_t, Shares::kMostRanks> Shares::divide(std::uint64_t units) const {
  std::array<std::uint64_t, kMostRanks> owned{};
  std::vector<std::uint64_t> remainders;
  std::uint64_t left = units;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    // units * part / kWhole, without its overflow.
    const std::uint64_t rest = units % kWhole * parts_[rank];
    owned[rank] = units / kWhole * parts_[rank] + rest / kWhole;
    remainders.push_back(rest % kWhole);
    left -= owned[rank];
  }
  const std::vector<std::uint32_t> order = by_remainder(remainders);
  for (std::uint64_t i = 0; i < left; ++i) ++owned[order[i]];
  return owned;
}

std::uint16_t Shares::hash() const {
  if (ranks_ == 0) return 0;
  std::uint32_t sum = 2166136261u;  // FNV-1a
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    for (const int shift : {0, 8, 16}) sum = (sum ^ (parts_[rank] >> shift & 0xff)) * 16777619u;
  }
  const auto folded = static_cast<std::uint16_t>(sum >> 16 ^ sum);
  return folded == 0 ? 1 : folded;
}

}  // namespace tarpon
