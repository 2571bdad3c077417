// Calls whose shares follow the speed of the links (AllreduceArguments::learn_shares).
//
// Learning is by tag. Before the 7th call of a tag, and before every 6th one after it, the ranks
// exchange what they measured: a call of 32 bytes a rank, in the same tag. The third of these calls
// is the first one with the shares that follow (share_plan.h). So the ranks agree by the order of
// calls alone, and every rank has the measurements when it needs them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives/driver/driver.h"
#include "collectives/driver/share_plan.h"

namespace tarpon {

/// Any thread may call. Calls of one tag are submitted in the same order on all ranks, as always.
class LearntShares {
 public:
  /// Tags from here on do not learn: programs that take a fresh tag for every call learn nothing.
  static constexpr std::uint32_t kTags = 64;
  /// Smaller calls are even, and teach nothing.
  static constexpr std::uint64_t kSmallest = 1 << 20;  // bytes

  /// `driven` outlives this object.
  LearntShares(Driven& driven, Rank rank, std::uint32_t ranks);

  /// Driven::submit(), with the shares that the call's tag has learnt. One call in six waits until
  /// the exchange before it has ended. It has where calls are made one after another.
  std::shared_ptr<PendingCall> submit(AllreduceArguments arguments, bool waits);

  /// Returns the shares of the next call of `tag`.
  Shares of(std::uint32_t tag);

 private:
  struct Tag {
    std::mutex mutex;
    std::unique_ptr<SharePlan> plan;  // since the first call
    std::uint32_t calls = 0;
    std::vector<std::shared_ptr<PendingCall>> measured;  // calls with the present shares
    std::vector<std::uint64_t> samples;                  // input and output of `exchange`
    std::shared_ptr<PendingCall> exchange;               // null: none is on its way
  };

  bool learns(const AllreduceArguments& arguments) const;
  void begin_exchange(Tag& tag, const AllreduceArguments& arguments);
  void end_exchange(Tag& tag, const AllreduceArguments& arguments);

  Driven& driven_;
  const Rank rank_;
  const std::uint32_t ranks_;
  std::array<Tag, kTags> tags_;
};

}  // namespace tarpon
