// Calls whose shares follow the speed of the links (AllreduceArguments::learn_shares).
//
// Learning is by tag. Every 6th call of a tag is followed by a call of 16 bytes a rank, in the same
// tag, by which all ranks learn of each other's measurements; the second call after it runs with
// the shares that follow from them (share_plan.h). So the ranks agree without a message of its own
// kind, and every rank has the measurements when it needs them.
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

  /// `driver` outlives this object.
  LearntShares(Driver& driver, Rank rank, std::uint32_t ranks);

  /// Driver::submit(), with the shares that the call's tag has learnt. Every 6th call waits until
  /// the measurements have come, which takes no time where calls are made one after another.
  std::shared_ptr<PendingCall> submit(AllreduceArguments arguments, bool waits);

  /// Of the next call of `tag`.
  Shares of(std::uint32_t tag);

 private:
  struct Tag {
    std::mutex mutex;
    std::unique_ptr<SharePlan> plan;  // since the first call
    std::uint32_t calls = 0;
    std::vector<std::shared_ptr<PendingCall>> measured;  // those that the present shares have
    std::vector<std::uint64_t> samples;                  // in and out of `exchange`
    std::shared_ptr<PendingCall> exchange;
  };

  bool learns(const AllreduceArguments& arguments) const;
  void begin_exchange(Tag& tag, const AllreduceArguments& arguments);
  void end_exchange(Tag& tag, const AllreduceArguments& arguments);

  Driver& driver_;
  const Rank rank_;
  const std::uint32_t ranks_;
  std::array<Tag, kTags> tags_;
};

}  // namespace tarpon
