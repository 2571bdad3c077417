// Calls whose shares follow the speed of the links (AllreduceArguments::learn_shares).
//
// Learning is by tag. About every 6 calls the ranks exchange what they measured: an operation of 40
// bytes a rank, in a tag that no caller can use (collectives/reserved_tags.h). So an exchange takes
// no number of the caller's tag, and a rank that makes it early or late pairs no other calls.
//
// - A rank begins an exchange before a call that learns. The other ranks take part as soon as they
//   hear of it, whatever their callers do. So exchanges pair even if ranks count calls differently.
// - Each rank tells the number of its next call plus two. The largest of these numbers is the first
//   call with the shares that follow from the measurements (share_plan.h). A rank holds its calls
//   from its own number on until the exchange ends.
// - If an exchange fails at a rank, its shares stay, and the report of its next call says so. The
//   next exchange follows at once. It shows whether other ranks have the measurements: then all
//   ranks begin anew with even shares. Until then calls may end as mismatch, since shares differ.
// - A rank that makes no calls of the tag still takes part in the exchanges of the others. It
//   remembers the shares of the latest 1024. If it makes earlier calls after that, they have the
//   earliest shares that it remembers, and may end as mismatch.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "collectives/driver/rate_meter.h"
#include "collectives/driver/share_plan.h"
#include "collectives/engine/engine.h"
#include "collectives/reserved_tags.h"

namespace tarpon {

/// No thread or clock. Not thread-safe: the lock that guards the engine guards this object too.
/// Never blocks.
class LearntShares {
 public:
  /// Smaller calls are even, and teach nothing.
  static constexpr std::uint64_t kSmallest = 1 << 20;  // bytes

  /// `engine` is that of rank `rank` of `ranks`; `meter` measures its link. Both outlive this
  /// object, which outlives the use of `engine`.
  LearntShares(Engine& engine, RateMeter& meter, Rank rank, std::uint32_t ranks);

  /// Engine::submit(), with the shares that the call's tag has learnt. May begin an exchange. If
  /// memory of this class is refused, the call ends as aborted on all ranks (Engine::submit()).
  std::shared_ptr<PendingCall> submit(AllreduceArguments arguments, bool nonfinite, Time asked,
                                      Time now) noexcept;

  /// Joins the exchanges that peers have begun, and applies the exchanges that have ended.
  /// REQUIRES: the driver calls this after each Engine::progress(). Returns whether the engine has
  /// new work. Throws std::bad_alloc; the next step() goes on where this one stopped.
  bool step(Time now);

  /// Begins no exchange from now on, since this rank makes no further calls.
  void end() { ended_ = true; }

  /// Returns the shares of the next call of `tag`.
  Shares of(std::uint32_t tag) const;

 private:
  struct Exchange {
    std::vector<std::uint64_t> numbers;  // input and output
    std::shared_ptr<PendingCall> call;
    std::uint32_t from = 0;  // calls of this rank are held from here on
  };
  /// Shares, and the first call that has them.
  struct Generation {
    std::uint32_t from = 0;
    Shares shares;
  };
  struct Tag {
    explicit Tag(std::uint32_t ranks) : plan(ranks) {}
    SharePlan plan;
    std::deque<Generation> generations;  // the last one is `plan`'s; earlier ones may still be due
    std::uint32_t exchange_at = 0;       // the call before which the next exchange begins
    std::unique_ptr<Exchange> exchange;  // on its way
    std::vector<std::shared_ptr<PendingCall>> measured;  // calls of the last generation
    std::vector<std::shared_ptr<PendingCall>> held;      // in order
    bool measures_link = false;                          // since the first call of `measured`
    Duration deadline = AllreduceArguments().deadline;   // of the latest call
    std::string trouble;                                 // for the report of the next call
  };

  bool learns(const AllreduceArguments& arguments) const;
  bool prepare(AllreduceArguments& arguments, Time now);
  Tag& open(std::uint32_t tag);
  void begin_exchange(std::uint32_t tag, Time now);
  bool end_exchange(std::uint32_t tag);
  void apply(Tag& tag);
  static Shares shares_at(const Tag& tag, std::uint32_t number);
  void begin_call(Tag& tag, const std::shared_ptr<PendingCall>& call);

  Engine& engine_;
  RateMeter& meter_;
  const Rank rank_;
  const std::uint32_t ranks_;
  bool ended_ = false;
  std::array<std::unique_ptr<Tag>, kLearningTags> tags_;  // null: no call or exchange so far
  std::vector<std::uint32_t> exchanging_;                 // tags with an exchange on its way
};

}  // namespace tarpon
