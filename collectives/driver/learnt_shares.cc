#include "collectives/driver/learnt_shares.h"

#include <algorithm>
#include <utility>

namespace tarpon {
namespace {

constexpr std::uint32_t kRound = 6;     // calls from one exchange to the next
constexpr std::uint32_t kReaches = 2;   // calls that begin while an exchange is on its way
constexpr std::size_t kNumbers = 4;     // of a rank in an exchange
constexpr std::uint64_t kWindows = 16;  // windows of the rate meter in a bucket
constexpr double kPicoseconds = 1e12;   // of a second

std::uint64_t bytes_of(const AllreduceArguments& arguments) {
  return arguments.count * element_bytes(arguments.type);
}

/// How much later this rank began a call than half of the ranks: too short by the time from the end
/// of its last stage to the end of the call.
Duration lag_of(const Report& report) {
  return std::max(Duration::zero(), report.stages.back().elapsed - report.elapsed);
}

/// Of the calls that have ended, on average, in picoseconds for a byte of the bucket; 0: none has.
struct TimesAByte {
  std::uint64_t whole = 0;
  std::uint64_t lag = 0;
};

TimesAByte times_a_byte(const std::vector<std::shared_ptr<PendingCall>>& calls) {
  double bytes = 0;
  Duration whole{}, lag{};
  for (const auto& call : calls) {
    if (!call->done || call->report.status != Status::complete) continue;
    bytes += static_cast<double>(bytes_of(call->arguments));
    whole += call->report.elapsed;
    lag += lag_of(call->report);
  }
  const auto each = [bytes](Duration sum) {
    const double picoseconds = std::chrono::duration<double, std::pico>(sum).count();
    return bytes > 0 ? static_cast<std::uint64_t>(picoseconds / bytes) : 0;
  };
  return {each(whole), each(lag)};
}

}  // namespace

LearntShares::LearntShares(Driven& driven, Rank rank, std::uint32_t ranks)
    : driven_(driven), rank_(rank), ranks_(ranks) {}

/// Alike on all ranks of the call.
bool LearntShares::learns(const AllreduceArguments& arguments) const {
  return arguments.learn_shares && ranks_ > 2 && arguments.tag < kTags &&
         arguments.algorithm == Algorithm::tar && !may_run_bounded(arguments) &&
         arguments.shares.even() && arguments.count < UINT64_MAX / 8 &&
         bytes_of(arguments) >= kSmallest;
}

std::shared_ptr<PendingCall> LearntShares::submit(AllreduceArguments arguments, bool waits) {
  if (!learns(arguments)) return driven_.submit(arguments, waits);
  Tag& tag = tags_[arguments.tag];
  const std::lock_guard lock(tag.mutex);
  if (!tag.plan) tag.plan = std::make_unique<SharePlan>(ranks_);
  const std::uint32_t place = tag.calls % kRound;
  if (place == 0 && tag.calls > 0) begin_exchange(tag, arguments);
  if (place == kReaches) end_exchange(tag, arguments);
  ++tag.calls;
  arguments.shares = tag.plan->shares();
  auto call = driven_.submit(arguments, waits);
  if (tag.exchange == nullptr) tag.measured.push_back(call);
  return call;
}

void LearntShares::begin_exchange(Tag& tag, const AllreduceArguments& arguments) {
  tag.samples.assign(kNumbers * ranks_, 0);
  std::uint64_t* const mine = &tag.samples[kNumbers * rank_];
  mine[0] = static_cast<std::uint64_t>(driven_.link_rate());
  const TimesAByte times = times_a_byte(tag.measured);
  mine[1] = times.whole;
  mine[2] = times.lag;
  mine[3] = tag.plan->history();
  AllreduceArguments exchange{.input = tag.samples.data(),
                              .output = tag.samples.data(),
                              .count = tag.samples.size(),
                              .type = DataType::uint64,
                              .function = ReduceOp::max,
                              .tag = arguments.tag,
                              .deadline = arguments.deadline};
  exchange.algorithm = choose_algorithm(exchange, ranks_);
  tag.exchange = driven_.submit(exchange, false);
}

/// Without the measurements, since a rank did not come in time, the shares stay. If other ranks
/// have them, calls fail until the next exchange tells that the plans differ.
void LearntShares::end_exchange(Tag& tag, const AllreduceArguments& arguments) {
  if (tag.exchange != nullptr) {
    driven_.driver().wait(tag.exchange);
    if (tag.exchange->report.status == Status::complete) {
      std::vector<ShareSample> samples;
      for (std::size_t rank = 0; rank < ranks_; ++rank) {
        const std::uint64_t* const its = &tag.samples[kNumbers * rank];
        samples.push_back({.rate = static_cast<double>(its[0]) / kPicoseconds,
                           .time_a_byte = static_cast<double>(its[1]),
                           .lag_a_byte = static_cast<double>(its[2]),
                           .history = its[3]});
      }
      tag.plan->end_round(samples);
    }
    tag.exchange.reset();
  }
  tag.measured.clear();
  driven_.measure_link(std::max<std::uint64_t>(1, bytes_of(arguments) / kWindows));
}

Shares LearntShares::of(std::uint32_t tag) {
  if (tag >= kTags) return {};
  const std::lock_guard lock(tags_[tag].mutex);
  return tags_[tag].plan ? tags_[tag].plan->shares() : Shares();
}

}  // namespace tarpon
