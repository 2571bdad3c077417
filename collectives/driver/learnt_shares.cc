#include "collectives/driver/learnt_shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace tarpon {
namespace {

constexpr std::uint32_t kRound = 6;             // calls from one exchange to the next
constexpr std::uint32_t kReaches = 2;           // calls that begin while an exchange is on its way
constexpr std::size_t kNumbers = 5;             // that a rank tells in an exchange
constexpr std::size_t kMostGenerations = 1024;  // kept for a tag
constexpr std::uint64_t kWindows = 16;          // windows of the rate meter in a bucket
constexpr double kPicoseconds = 1e12;           // of a second

/// Whether the number `a` comes before `b`. Numbers wrap around.
bool before(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) < 0;
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
    bytes += static_cast<double>(bucket_bytes(call->arguments));
    whole += call->report.elapsed;
    lag += lag_of(call->report);
  }
  const auto each = [bytes](Duration sum) {
    const double picoseconds = std::chrono::duration<double, std::pico>(sum).count();
    return bytes > 0 ? static_cast<std::uint64_t>(picoseconds / bytes) : 0;
  };
  return {each(whole), each(lag)};
}

/// Makes sure that `count` more calls can be added without memory.
void make_room(std::vector<std::shared_ptr<PendingCall>>& calls, std::size_t count) {
  if (calls.capacity() - calls.size() >= count) return;
  calls.reserve(std::max(2 * calls.size(), calls.size() + count));
}

/// What a rank tells in an exchange.
struct Told {
  ShareSample sample;
  std::uint32_t from = 0;
};

Told told_by(std::size_t rank, const std::vector<std::uint64_t>& numbers) {
  const std::uint64_t* const its = &numbers[kNumbers * rank];
  return {{.rate = static_cast<double>(its[0]) / kPicoseconds,
           .time_a_byte = static_cast<double>(its[1]),
           .lag_a_byte = static_cast<double>(its[2]),
           .history = its[3]},
          static_cast<std::uint32_t>(its[4])};
}

}  // namespace

LearntShares::LearntShares(Engine& engine, RateMeter& meter, Rank rank, std::uint32_t ranks)
    : engine_(engine), meter_(meter), rank_(rank), ranks_(ranks) {}

bool LearntShares::learns(const AllreduceArguments& arguments) const {
  return arguments.learn_shares && ranks_ > 2 && arguments.tag < kLearningTags &&
         arguments.algorithm == Algorithm::tar && !may_run_bounded(arguments) &&
         arguments.shares.even() && arguments.count < UINT64_MAX / 8 &&
         bucket_bytes(arguments) >= kSmallest;
}

std::shared_ptr<PendingCall> LearntShares::submit(AllreduceArguments arguments, bool nonfinite,
                                                  Time asked, Time now) noexcept {
  const bool refused =
      engine_.rules().refusal(arguments).has_value();  // as it is: the engine says why
  if (!refused) arguments.learn_shares = learns(arguments);
  if (refused || !arguments.learn_shares) return engine_.submit(arguments, nonfinite, asked, now);
  bool held = false;
  try {
    held = prepare(arguments, now);
  } catch (const std::exception&) {
    arguments.refusal = AllreduceArguments::kNoMemory;
  }
  auto call = engine_.submit(arguments, false, asked, now, held);
  if (call->done) return call;
  Tag& tag = *tags_[arguments.tag];
  if (held) {
    tag.held.push_back(call);
  } else {
    begin_call(tag, call);
  }
  return call;
}

/// Gives the next call of a tag its shares, and makes room to note it. Returns whether it is held
/// instead. May begin an exchange. Throws std::bad_alloc.
bool LearntShares::prepare(AllreduceArguments& arguments, Time now) {
  Tag& tag = open(arguments.tag);
  tag.deadline = arguments.deadline;
  const std::uint32_t number = engine_.next_number(arguments.tag);
  std::deque<Generation>& generations = tag.generations;
  while (generations.size() > 1 && !before(number, generations[1].from)) generations.pop_front();
  end_exchange(arguments.tag);
  if (tag.exchange == nullptr && !ended_ && !before(number, tag.exchange_at)) {
    begin_exchange(arguments.tag, now);
    end_exchange(arguments.tag);
  }
  const bool held = tag.exchange != nullptr && !before(number, tag.exchange->from);
  if (!held) arguments.shares = shares_at(tag, number);
  make_room(held ? tag.held : tag.measured, 1);
  return held;
}

/// The first exchange follows the first 6 calls of the tag. Like later rounds, these have 2 calls
/// that are not measured.
LearntShares::Tag& LearntShares::open(std::uint32_t tag) {
  std::unique_ptr<Tag>& place = tags_[tag];
  if (place) return *place;
  auto opened = std::make_unique<Tag>(ranks_);
  const std::uint32_t number = engine_.next_number(tag);
  opened->generations.push_back({number + kReaches, Shares()});
  opened->exchange_at = number + kRound;
  place = std::move(opened);
  return *place;
}

Shares LearntShares::of(std::uint32_t tag) const {
  if (tag >= kLearningTags || !tags_[tag]) return {};
  return shares_at(*tags_[tag], engine_.next_number(tag));
}

/// The shares of call `number`, which is not submitted yet or held.
Shares LearntShares::shares_at(const Tag& tag, std::uint32_t number) {
  const auto later = std::find_if(
      tag.generations.begin() + 1, tag.generations.end(),
      [number](const Generation& generation) { return before(number, generation.from); });
  return std::prev(later)->shares;
}

/// Notes a call that begins, whose time tells how good its shares are. REQUIRES: room in
/// `tag.measured`.
void LearntShares::begin_call(Tag& tag, const std::shared_ptr<PendingCall>& call) {
  call->note = std::exchange(tag.trouble, {});
  if (tag.exchange != nullptr || before(call->report.operation, tag.generations.back().from)) {
    return;
  }
  if (!std::exchange(tag.measures_link, true)) {
    meter_.begin(std::max<std::uint64_t>(1, bucket_bytes(call->arguments) / kWindows));
  }
  tag.measured.push_back(call);
}

bool LearntShares::step(Time now) {
  bool acted = false;
  for (const std::uint32_t tag : std::vector(exchanging_)) acted |= end_exchange(tag);
  if (ended_ || ranks_ <= 2) return acted;
  for (const std::uint32_t exchanges :
       engine_.endpoint().tags().begun_by_peers(kFirstExchangeTag)) {
    const std::uint32_t tag = exchanges - kFirstExchangeTag;
    if (tag >= kLearningTags || open(tag).exchange != nullptr) continue;
    const std::uint32_t number = engine_.next_number(exchanges);
    begin_exchange(tag, now);
    acted = true;
    // An engine whose calls all end at once takes no more numbers.
    if (engine_.next_number(exchanges) == number) ended_ = true;
  }
  return acted;
}

void LearntShares::begin_exchange(std::uint32_t number_of_tag, Time now) {
  Tag& tag = *tags_[number_of_tag];
  auto exchange = std::make_unique<Exchange>();
  exchange->numbers.assign(kNumbers * ranks_, 0);
  exchange->from = engine_.next_number(number_of_tag) + kReaches;
  const std::uint32_t latest = tag.generations.back().from;
  if (before(exchange->from, latest)) exchange->from = latest;
  const TimesAByte times = times_a_byte(tag.measured);
  std::uint64_t* const mine = &exchange->numbers[kNumbers * rank_];
  mine[0] = static_cast<std::uint64_t>(meter_.rate());
  mine[1] = times.whole;
  mine[2] = times.lag;
  mine[3] = tag.plan.history();
  mine[4] = exchange->from;
  AllreduceArguments arguments{.input = exchange->numbers.data(),
                               .output = exchange->numbers.data(),
                               .count = exchange->numbers.size(),
                               .type = DataType::uint64,
                               .function = ReduceOp::max,
                               .tag = kFirstExchangeTag + number_of_tag,
                               .deadline = tag.deadline};
  arguments.algorithm = choose_algorithm(arguments, ranks_);
  exchanging_.push_back(number_of_tag);
  tag.exchange = std::move(exchange);
  tag.exchange->call = engine_.submit(arguments, false, now, now);
}

/// Returns false unless the tag had an exchange that has ended. Throws std::bad_alloc; the next
/// call goes on where this one stopped.
bool LearntShares::end_exchange(std::uint32_t number_of_tag) {
  Tag& tag = *tags_[number_of_tag];
  if (tag.exchange != nullptr) {
    if (!tag.exchange->call->done) return false;
    const Report& report = tag.exchange->call->report;
    if (report.status == Status::complete) {
      apply(tag);
    } else {
      tag.trouble = fmt::format(
          "shares stay as they were, since measurements were not exchanged: {}", report.detail);
      tag.exchange_at = engine_.next_number(number_of_tag);
    }
    tag.exchange.reset();
    tag.measured.clear();
    tag.measures_link = false;
  } else if (tag.held.empty()) {
    return false;
  }
  make_room(tag.measured, tag.held.size());
  for (const auto& call : std::exchange(tag.held, {})) {
    if (call->done) continue;
    call->arguments.shares = shares_at(tag, call->report.operation);
    begin_call(tag, call);
  }
  std::erase(exchanging_, number_of_tag);
  engine_.release(number_of_tag);
  return true;
}

/// Learns from an exchange that is complete, as all ranks do. Changes nothing if it throws.
void LearntShares::apply(Tag& tag) {
  std::vector<ShareSample> samples;
  std::uint32_t from = tag.exchange->from;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const Told told = told_by(rank, tag.exchange->numbers);
    samples.push_back(told.sample);
    if (before(from, told.from)) from = told.from;
  }
  const bool alike = std::all_of(samples.begin(), samples.end(), [&](const ShareSample& sample) {
    return sample.history == samples[0].history;
  });
  std::string trouble =
      alike ? "" : "shares are even again, since ranks missed an exchange of measurements";
  SharePlan plan = tag.plan;
  plan.end_round(samples);
  tag.generations.push_back({from, plan.shares()});
  if (tag.generations.size() > kMostGenerations) tag.generations.pop_front();
  tag.plan = std::move(plan);
  if (!alike) tag.trouble = std::move(trouble);
  tag.exchange_at = from + kRound - kReaches;
}

}  // namespace tarpon
