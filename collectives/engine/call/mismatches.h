// The ranks that made another call than this rank under the same number.
//
// The first one that this rank hears of decides that the call ends. Others are collected for a
// while, to be reported with it. No clock. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collectives/engine/call/signature.h"
#include "transport/rank.h"
#include "transport/time.h"

namespace tarpon {

class Mismatches {
 public:
  /// Of rank `rank` in `world`.
  Mismatches(Rank rank, std::uint32_t world) : rank_(rank), world_(world) {}

  /// Notes that `peer` made the call `theirs`, and this rank `ours`. nullopt: a call that this
  /// version does not know.
  void add(Rank peer, const std::optional<OperationSignature>& theirs,
           const std::optional<OperationSignature>& ours);

  /// Notes that a peer ended its call because of a mismatch; `detail` says so. Has no effect once
  /// any(): the ranks that differ tell it themselves.
  void add_ended(std::string detail);

  /// Sets when the call ends, if any(); never later than before. `limit` is when it would end
  /// without mismatch. A peer that has seen no difference has to hear of one before its bound, or
  /// it calls this rank late: so the call ends halfway to `limit` if that is soon. Repeat after
  /// each added rank, and when `limit` changes.
  void collect(Time now, Time limit);

  bool any() const { return any_; }
  /// When the call ends; kNever unless any().
  Time end_at() const { return end_at_; }
  /// The ranks that differ; this rank alone if all others made one and the same other call. Empty
  /// if this rank has only heard that there are some.
  const std::vector<Rank>& blamed() const { return blamed_; }
  /// The first difference, in words.
  const std::string& detail() const { return detail_; }

 private:
  const Rank rank_;
  const std::uint32_t world_;
  bool any_ = false;
  Time end_at_ = kNever;
  std::vector<Rank> blamed_;
  std::string detail_;
  // The call of the first rank that differs, and whether all ranks that differ made the same one.
  std::optional<OperationSignature> others_;
  bool others_alike_ = true;
};

}  // namespace tarpon
