// Exchanges of measurements for learnt shares, in virtual time: ranks that ask for different calls,
// exchanges that fail, and ranks that are ahead of others.
#include "collectives/driver/learnt_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/simulated_job.h"
#include "transport/ports/forwarding_port.h"
#include "transport/random.h"

namespace tarpon::learnt_rounds_test {
namespace {

using testing::HasSubstr;
using testing_support::SimulatedJob;

constexpr std::size_t kElements = LearntShares::kSmallest / sizeof(float) + 100;

float value(Rank rank, std::uint32_t tag, std::uint32_t call) {
  return static_cast<float>(1 + rank + 10 * call + 1000 * tag);
}

/// Loses the DATA that rank 2 sends in exchanges, while `*on`.
class LosingPort final : public ForwardingPort {
 public:
  LosingPort(std::unique_ptr<Port> inner, const bool* on)
      : ForwardingPort(std::move(inner)), on_(on) {}

  std::span<const RxPacket> receive(Time now) override {
    kept_.clear();
    for (const RxPacket& packet : ForwardingPort::receive(now)) {
      tarpon_header header;
      std::memcpy(&header, packet.data, sizeof header);
      const bool lost = *on_ && header.tag >= kFirstExchangeTag && header.sender == 2 &&
                        header.type == TARPON_DATA;
      if (!lost) kept_.push_back(packet);
    }
    return kept_;
  }

 private:
  const bool* const on_;
  std::vector<RxPacket> kept_;
};

/// A call of one rank.
struct Call {
  Rank rank = 0;
  std::uint32_t tag = 0;
  std::uint32_t index = 0;
  std::vector<float> values;
  std::shared_ptr<PendingCall> pending;
};

class LearningJob {
 public:
  explicit LearningJob(std::uint16_t ranks, std::uint64_t seed = 1,
                       const SimulatedJob::Wrap& wrap = nullptr)
      : job_({.ranks = ranks, .slot_bytes = 16384, .seed = seed}, wrap), meters_(ranks) {
    for (Rank rank = 0; rank < ranks; ++rank) {
      learners_.push_back(std::make_unique<LearntShares>(job_[rank], meters_[rank], rank, ranks));
    }
    job_.after_each_round([this](Rank rank) {
      // Rank 1 has a slow link.
      const double rate = rank == 1 ? 1e9 : 1e10;
      const double seconds = std::chrono::duration<double>(job_.now().time_since_epoch()).count();
      const auto bytes = static_cast<std::uint64_t>(rate * seconds);
      if (meters_[rank].on()) {
        meters_[rank].note({.tx_bytes = bytes, .rx_bytes = bytes}, job_.now());
      }
      return learners_[rank]->step(job_.now());
    });
  }

  SimulatedJob& job() { return job_; }
  LearntShares& learner(Rank rank) { return *learners_[rank]; }

  /// The next call of `tag` at `rank`. `change` may alter its arguments.
  std::shared_ptr<PendingCall> submit(
      Rank rank, std::uint32_t tag,
      const std::function<void(AllreduceArguments&)>& change = nullptr) {
    Call& call = calls_.emplace_back();
    call.rank = rank;
    call.tag = tag;
    call.index = next_[{rank, tag}]++;
    call.values.assign(kElements, value(rank, tag, call.index));
    AllreduceArguments arguments{.input = call.values.data(),
                                 .output = call.values.data(),
                                 .count = kElements,
                                 .tag = tag,
                                 .algorithm = Algorithm::tar,
                                 .learn_shares = true};
    if (change) change(arguments);
    call.pending =
        job_.watch(rank, learners_[rank]->submit(arguments, false, job_.now(), job_.now()));
    return call.pending;
  }

  /// All ranks make their next call of `tag`, and wait for it.
  std::vector<Report> call_all(std::uint32_t tag,
                               const std::function<void(Rank, AllreduceArguments&)>& change = {}) {
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (Rank rank = 0; rank < job_.ranks(); ++rank) {
      calls.push_back(submit(rank, tag, [&](AllreduceArguments& arguments) {
        if (change) change(rank, arguments);
      }));
    }
    EXPECT_TRUE(job_.finish());
    std::vector<Report> reports;
    for (const auto& call : calls) reports.push_back(call->report);
    check_sums();
    return reports;
  }

  /// Checks the sums of calls that are complete, and forgets the calls that are done.
  void check_sums() {
    for (const Call& call : calls_) {
      if (!call.pending->done || call.pending->report.status != Status::complete) continue;
      float sum = 0;
      for (Rank rank = 0; rank < job_.ranks(); ++rank) sum += value(rank, call.tag, call.index);
      const std::size_t count = call.pending->arguments.count;
      const auto right = std::count(call.values.begin(),
                                    call.values.begin() + static_cast<std::ptrdiff_t>(count), sum);
      ASSERT_EQ(static_cast<std::size_t>(right), count)
          << "rank " << call.rank << ", call " << call.index << " of tag " << call.tag;
      if (!call.pending->arguments.shares.even()) ++uneven_;
    }
    std::erase_if(calls_, [](const Call& call) { return call.pending->done.load(); });
  }

  /// Complete calls of single ranks whose shares were not even.
  int uneven() const { return uneven_; }

  void expect_equal_shares(std::uint32_t tag) {
    for (const auto& one : learners_) EXPECT_EQ(one->of(tag), learners_[0]->of(tag));
  }

 private:
  SimulatedJob job_;
  std::vector<RateMeter> meters_;
  std::vector<std::unique_ptr<LearntShares>> learners_;
  std::map<std::pair<Rank, std::uint32_t>, std::uint32_t> next_;
  std::deque<Call> calls_;  // not done, or not checked yet
  int uneven_ = 0;
};

void expect_complete(const std::vector<Report>& reports, const std::string& where) {
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    EXPECT_EQ(reports[rank].status, Status::complete)
        << "rank " << rank << ", " << where << ": " << reports[rank].detail;
  }
}

TEST(LearntRoundsTest, all_ranks_learn__an_exchange_takes_no_number_of_the_callers_tag) {
  LearningJob job(4);
  for (std::uint32_t call = 0; call < 40; ++call) {
    for (const Report& report : job.call_all(3)) {
      EXPECT_EQ(report.status, Status::complete) << report.detail;
      EXPECT_EQ(report.operation, call);
      EXPECT_EQ(report.detail, "");
    }
  }
  EXPECT_GT(job.uneven(), 0);
  EXPECT_EQ(job.job()[0].next_number(kFirstExchangeTag + 3), 6u);
  job.expect_equal_shares(3);
}

TEST(LearntRoundsTest, a_rank_learns_alone__mismatch_in_words_and_no_wait) {
  LearningJob job(3);
  const auto alone = [](Rank rank, AllreduceArguments& arguments) {
    arguments.learn_shares = rank == 0;
  };
  for (std::uint32_t call = 0; call < 20; ++call) {
    for (const Report& report : job.call_all(1, alone)) {
      EXPECT_EQ(report.status, Status::mismatch) << call << ": " << report.detail;
      EXPECT_THAT(report.detail, HasSubstr("learn_shares"));
      EXPECT_LT(report.elapsed, 1s) << call;
    }
  }
  for (std::uint32_t call = 0; call < 20; ++call) expect_complete(job.call_all(1), "after");
  job.expect_equal_shares(1);
}

TEST(LearntRoundsTest, ranks_ask_for_different_counts__later_calls_are_right) {
  LearningJob job(3);
  for (std::uint32_t call = 0; call < 30; ++call) {
    const bool differs = call == 3 || call == 4 || (call >= 11 && call < 14);
    const auto reports = job.call_all(1, [&](Rank rank, AllreduceArguments& arguments) {
      if (differs && rank == 0) arguments.count = 1000;
    });
    if (!differs) {
      expect_complete(reports, "call " + std::to_string(call));
      continue;
    }
    for (const Report& report : reports) {
      EXPECT_EQ(report.status, Status::mismatch) << report.detail;
      EXPECT_LT(report.elapsed, 1s) << call;
    }
  }
  EXPECT_GT(job.uneven(), 0);
}

TEST(LearntRoundsTest, a_rank_stands_still__the_exchange_waits_for_it_as_calls_do) {
  LearningJob job(3);
  for (std::uint32_t call = 0; call < 6; ++call) expect_complete(job.call_all(1), "before");
  for (Rank rank = 0; rank < 2; ++rank) job.submit(rank, 1);
  job.job().stop(2);
  job.job().run_for(9s);
  job.job().resume(2);
  job.submit(2, 1);
  ASSERT_TRUE(job.job().finish());
  for (std::uint32_t call = 0; call < 20; ++call) expect_complete(job.call_all(1), "after");
  job.expect_equal_shares(1);
}

TEST(LearntRoundsTest, an_exchange_fails__the_report_says_so_and_the_next_one_follows) {
  LearningJob job(3);
  for (std::uint32_t call = 0; call < 6; ++call) expect_complete(job.call_all(1), "before");
  // Rank 2 stands still for longer than the deadline.
  for (Rank rank = 0; rank < 2; ++rank) job.submit(rank, 1);
  job.job().stop(2);
  job.job().run_for(11s);
  job.job().resume(2);
  job.submit(2, 1);
  ASSERT_TRUE(job.job().finish());
  const std::vector<Report> told = job.call_all(1);
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(told[rank].detail, HasSubstr("measurements were not exchanged"));
    EXPECT_THAT(told[rank].detail, HasSubstr("rank 2"));
  }
  // Rank 2 may have the measurements: calls may end as mismatch until all ranks know it.
  for (std::uint32_t call = 0; call < 3; ++call) job.call_all(1);
  for (std::uint32_t call = 0; call < 20; ++call) expect_complete(job.call_all(1), "after");
  EXPECT_GT(job.uneven(), 0);
  job.expect_equal_shares(1);
}

TEST(LearntRoundsTest, an_exchange_fails_at_one_rank__mismatch_until_all_begin_anew) {
  bool losing = false;
  LearningJob job(3, 1, [&losing](Rank rank, std::unique_ptr<Port> port) -> std::unique_ptr<Port> {
    if (rank != 1) return port;
    return std::make_unique<LosingPort>(std::move(port), &losing);
  });
  losing = true;
  std::uint32_t call = 0;
  for (; call < 6; ++call) expect_complete(job.call_all(1), "before");
  bool failed = false, in_words = false;
  int mismatches = 0;
  for (; call < 16; ++call) {
    for (const Report& report : job.call_all(1)) {
      failed |= report.detail.find("measurements were not exchanged") != std::string::npos;
      if (report.status == Status::complete) continue;
      ++mismatches;
      EXPECT_EQ(report.status, Status::mismatch) << report.detail;
      in_words |= report.detail.find("hash of the learnt shares") != std::string::npos;
    }
    if (failed) losing = false;
  }
  EXPECT_TRUE(failed);
  EXPECT_TRUE(in_words);
  EXPECT_GT(mismatches, 0);
  EXPECT_LE(mismatches, 4 * 3);  // until the exchange that follows at once
  for (; call < 40; ++call) expect_complete(job.call_all(1), "call " + std::to_string(call));
  job.expect_equal_shares(1);
}

TEST(LearntRoundsTest, a_rank_far_ahead__its_calls_queue_behind_the_exchange) {
  LearningJob job(3);
  std::vector<std::shared_ptr<PendingCall>> ahead;
  for (int call = 0; call < 30; ++call) ahead.push_back(job.submit(0, 1));
  job.job().run_for(1s);
  for (std::size_t call = 0; call < ahead.size(); ++call) {
    EXPECT_FALSE(ahead[call]->done);
    EXPECT_EQ(ahead[call]->report.operation, call);
  }
  for (int call = 0; call < 30; ++call) {
    for (const Rank rank : {Rank{1}, Rank{2}}) job.submit(rank, 1);
    if (call % 3 == 0) job.job().run_for(10ms);
  }
  ASSERT_TRUE(job.job().finish());
  for (const auto& call : ahead) EXPECT_EQ(call->report.status, Status::complete);
  job.check_sums();
  for (std::uint32_t call = 0; call < 10; ++call) expect_complete(job.call_all(1), "after");
  job.expect_equal_shares(1);
}

TEST(LearntRoundsTest, abort__ends_held_calls_and_the_exchange) {
  LearningJob job(3);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (int call = 0; call < 12; ++call) calls.push_back(job.submit(0, 1));
  job.job().run_for(1ms);
  job.job()[0].abort_for_good(0, "a test says so", job.job().now());
  calls.push_back(job.submit(0, 1));
  ASSERT_TRUE(job.job().finish(1s));
  for (const auto& call : calls) EXPECT_EQ(call->report.status, Status::aborted);
}

/// An exchange that rank 0 begins by itself. The others join it. They learn that rank 0 has another
/// history, and begin anew with even shares from call `from` on.
void exchange(LearningJob& job, std::uint32_t from) {
  std::vector<std::uint64_t> numbers(5 * job.job().ranks());
  numbers[3] = 1;  // history of rank 0
  numbers[4] = from;
  AllreduceArguments arguments{.input = numbers.data(),
                               .output = numbers.data(),
                               .count = numbers.size(),
                               .type = DataType::uint64,
                               .function = ReduceOp::max,
                               .tag = kFirstExchangeTag + 1};
  arguments.algorithm = choose_algorithm(arguments, job.job().ranks());
  const auto call = job.job().submit(0, arguments);
  ASSERT_TRUE(job.job().finish());
  ASSERT_EQ(call->report.status, Status::complete) << call->report.detail;
  job.job().run_for(1ms);
}

TEST(LearntRoundsTest, a_rank_makes_no_calls__it_forgets_early_shares_and_adds_up_nothing_wrong) {
  LearningJob job(3);
  std::uint32_t call = 0;
  for (; call < 60 && job.learner(2).of(1).even(); ++call) job.call_all(1);
  const Shares learnt = job.learner(2).of(1);
  ASSERT_FALSE(learnt.even());
  std::uint32_t exchanges = 0;
  for (; exchanges < 1000; ++exchanges) exchange(job, call + 10 + exchanges);
  EXPECT_EQ(job.learner(2).of(1), learnt) << "that call comes before the others";
  for (; exchanges < 1100; ++exchanges) exchange(job, call + 10 + exchanges);
  EXPECT_TRUE(job.learner(2).of(1).even());
  for (const Report& report : job.call_all(1)) {
    EXPECT_EQ(report.status, Status::mismatch) << report.detail;
    EXPECT_THAT(report.detail, HasSubstr("hash of the learnt shares"));
  }
}

TEST(LearntRoundsTest, an_exchange_fails__a_call_that_ends_in_the_queue_says_so_as_well) {
  LearningJob job(3);
  for (std::uint32_t call = 0; call < 6; ++call) expect_complete(job.call_all(1), "before");
  for (const Rank rank : {Rank{1}, Rank{2}}) job.job().stop(rank);
  for (int call = 0; call < 8; ++call) {  // as many as run at once
    job.submit(0, 1, [](AllreduceArguments& arguments) {
      arguments.count = 1000;
      arguments.deadline = 60s;
    });
  }
  job.submit(0, 1);
  job.job().run_for(11s);
  const auto told = job.submit(0, 1);
  ASSERT_FALSE(told->done);
  job.job()[0].abort_for_good(0, "a test says so", job.job().now());
  ASSERT_TRUE(job.job().finish(1s));
  EXPECT_EQ(told->report.status, Status::aborted);
  EXPECT_EQ(told->report.stage, CallStage::queued);
  EXPECT_THAT(told->report.detail, HasSubstr("a test says so"));
  EXPECT_THAT(told->report.detail, HasSubstr("measurements were not exchanged"));
}

/// Ranks that learn alone, ask for other counts, stand still, and are ahead of others, at random.
void run_random(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const auto ranks = static_cast<std::uint16_t>(3 + random.below(3));
  LearningJob job(ranks, seed);
  const auto faulty = static_cast<Rank>(random.below(ranks));
  const std::uint32_t from = static_cast<std::uint32_t>(random.below(20));
  const std::uint32_t to = from + static_cast<std::uint32_t>(random.below(12));
  const bool learns_alone = random.chance(0.5);
  const bool stands_still = random.chance(0.3);
  const auto in_flight = 1 + random.below(12);
  const auto change = [&](Rank rank, std::uint32_t call) {
    return [=](AllreduceArguments& arguments) {
      if (call < from || call >= to) return;
      if (learns_alone) arguments.learn_shares = rank == faulty;
      if (!learns_alone && rank == faulty && call % 2 == 0) arguments.count = 1000;
    };
  };
  for (std::uint32_t call = 0; call < 36; ++call) {
    const std::uint64_t first = random.below(ranks);
    for (std::uint32_t i = 0; i < ranks; ++i) {
      const auto rank = static_cast<Rank>((first + i) % ranks);
      job.submit(rank, 1, change(rank, call));
      if (random.chance(0.3)) job.job().run_for(Duration(random.below(300'000)));
    }
    if (stands_still && call == from) {
      job.job().stop(faulty);
      job.job().run_for(Duration(random.below(8'000'000'000)));
      job.job().resume(faulty);
    }
    if (call % in_flight == 0) {
      ASSERT_TRUE(job.job().finish());
    }
    job.check_sums();
  }
  ASSERT_TRUE(job.job().finish());
  job.check_sums();
  // At most one more round may show that ranks missed an exchange.
  for (std::uint32_t call = 0; call < 8; ++call) job.call_all(1);
  for (std::uint32_t call = 0; call < 14; ++call) {
    expect_complete(job.call_all(1), "call " + std::to_string(44 + call));
  }
  job.expect_equal_shares(1);
}

TEST(LearntRoundsTest, random_faults__no_wrong_sum_and_all_learn_again) {
  for (std::uint64_t seed = 1; seed <= 8 && !testing::Test::HasFailure(); ++seed) run_random(seed);
}

}  // namespace
}  // namespace tarpon::learnt_rounds_test
