// Which ranks take part in operations, as far as this rank knows: live, silent, left or dead.
//
// A dead rank takes part in nothing. A rank that has left takes part in the operations that it made
// before. A silent rank may come back; bounded operations do not wait for it meanwhile. In
// operations of a tag of two ranks (transport/pair_tag.h) no other rank takes part.
//
// Ranks are below 64. Not thread-safe.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "transport/endpoint.h"
#include "transport/rank_mask.h"

namespace tarpon {

class Participants {
 public:
  explicit Participants(std::uint32_t world_size) : world_size_(world_size), left_(world_size) {}

  bool is_dead(Rank rank) const { return (dead_ & bit(rank)) != 0; }
  bool is_silent(Rank rank) const { return (silent_ & bit(rank)) != 0; }
  bool has_left(Rank rank) const { return left_[rank].has_value(); }
  /// Whether `rank` waits in rejoin(): it begins no operation.
  bool is_rejoining(Rank rank) const { return (rejoining_ & bit(rank)) != 0; }
  /// Bit r: rank r.
  std::uint64_t silent() const { return silent_; }
  std::uint64_t rejoining() const { return rejoining_; }

  /// Marks `rank` as dead for good, whatever it was before.
  void set_dead(Rank rank);
  /// `made`: by tag, the number after the last operation that the rank made. Tags that are not
  /// listed are over at every rank.
  void set_left(Rank rank, std::vector<NextNumber> made);
  /// Returns false when that changes nothing: it was known, or the rank is dead.
  bool set_silent(Rank rank, bool silent);
  /// Replaces the set: bit r: rank r. This rank is not among them.
  void set_rejoining(std::uint64_t ranks) { rejoining_ = ranks; }

  /// Whether `rank` takes no part in the operation: it is dead, left before the operation, or is no
  /// rank of the tag.
  bool excludes(Rank rank, std::uint32_t tag, std::uint32_t number) const;
  /// The number after the last operation of the tag that `rank` made. REQUIRES: it has left, and
  /// the tag is listed.
  std::uint32_t made(Rank rank, std::uint32_t tag) const;
  /// Ranks that take part in the operation, are heard and do not wait in rejoin(), this one
  /// included.
  std::uint32_t live_in(std::uint32_t tag, std::uint32_t number) const;

 private:
  const NextNumber* find(Rank rank, std::uint32_t tag) const;

  const std::uint32_t world_size_;
  std::uint64_t dead_ = 0;
  std::uint64_t silent_ = 0;  // none of them dead
  std::uint64_t rejoining_ = 0;
  std::vector<std::optional<std::vector<NextNumber>>> left_;  // by rank; by tag
};

}  // namespace tarpon
