// How much of a bucket each rank owns, and so sends and receives, in TAR.
//
// Of N ranks, one that owns the part w of a bucket of S bytes sends S (1 + (N - 2) w) bytes and
// receives as many. If the links of the ranks differ, shares let all ranks finish together. A rank
// that owns nothing still sends and receives the whole bucket once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/rank.h"

namespace tarpon {

/// A value. Alike on all ranks of a call.
class Shares {
 public:
  static constexpr std::uint32_t kWhole = 65'536;
  static constexpr std::size_t kMostRanks = 64;

  /// Even shares, for any number of ranks.
  Shares() = default;

  /// In proportion to `weights`, one for each rank in order: parts of kWhole by largest remainder,
  /// ties to the lower rank. Not valid() where there are no weights or more than kMostRanks, where
  /// one is negative, infinite or no number, or where all are 0.
  explicit Shares(std::span<const double> weights);

  /// Those with which all ranks finish together where a packet takes a rank's link the longer the
  /// slower its speed is, in and out: `speeds`, one for each rank in order, in any unit. A rank
  /// with a link below about half of the others' speed owns nothing. Two ranks own alike. Not
  /// valid() as above, or where a speed is 0.
  static Shares for_speeds(std::span<const double> speeds);

  /// The same where ranks do not begin together. `leads`: how much earlier than the last rank each
  /// one begins, in times of a bucket over a link of speed 1. What the others can exchange before
  /// the last one comes costs no time. So the last one owns less, or nothing. REQUIRES: as many
  /// leads as speeds, none negative, one of them 0.
  static Shares for_speeds(std::span<const double> speeds, std::span<const double> leads);

  bool even() const { return ranks_ == 0 && valid_; }
  bool valid() const { return valid_; }

  /// 0: even.
  std::uint32_t ranks() const { return ranks_; }

  /// REQUIRES: rank < ranks(), valid().
  std::uint32_t part(Rank rank) const { return parts_[rank]; }

  /// How many of `units` each rank owns, by rank, by largest remainder as above. REQUIRES: valid(),
  /// not even().
  std::array<std::uint64_t, kMostRanks> divide(std::uint64_t units) const;

  /// Returns 0 for even shares. The hashes of others differ in all but 1 of 65,535 cases if the
  /// parts differ.
  std::uint16_t hash() const;

  bool operator==(const Shares&) const = default;

 private:
  std::array<std::uint32_t, kMostRanks> parts_{};
  std::uint32_t ranks_ = 0;
  bool valid_ = true;
};

}  // namespace tarpon
