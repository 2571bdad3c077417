// Bounded reduce_scatter in virtual time: what a part holds, how long a call takes, and which ranks
// it waits for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <vector>

#include "tests/support/simulated_job.h"

namespace tarpon::testing_support::bounded_reduce_scatter_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using Counts = std::vector<std::uint64_t>;
using Calls = std::vector<std::shared_ptr<PendingCall>>;
using Delays = std::vector<Duration>;

/// Ranks whose input is 1 + the rank everywhere.
class BoundedReduceScatter : public testing::Test {
 protected:
  static constexpr std::uint16_t kRanks = 4;

  void open(Counts counts, FaultOptions faults = {}) {
    counts_ = std::move(counts);
    job_.emplace(SimulatedJobOptions{
        .ranks = kRanks,
        .slot_bytes = 1408,
        .faults = faults,
        .links = FabricOptions{.ingress = {.bits_per_second = 1e9, .queue_bytes = 1 << 20}}});
    const std::uint64_t all = std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
    for (Rank rank = 0; rank < kRanks; ++rank) {
      inputs_.emplace_back(all, 1.0f + rank);
      outputs_.emplace_back(counts_[rank], -1.0f);
    }
  }

  CollectiveArguments arguments(Rank rank) {
    CollectiveArguments call;
    call.counts = counts_;
    call.input = inputs_[rank].data();
    call.output = outputs_[rank].data();
    call.mode = Mode::bounded;
    call.bound = bound_;
    return call;
  }

  std::shared_ptr<PendingCall> submit(Rank rank, const CollectiveArguments& call) {
    const CallArguments arguments(call, kRanks, rank);
    return job_->watch(rank, (*job_)[rank].submit(arguments, job_->now()));
  }
  std::shared_ptr<PendingCall> submit(Rank rank) { return submit(rank, arguments(rank)); }

  /// One call, in which rank r begins `late`[r] after the first ones. REQUIRES: ascending delays.
  Calls run(const Delays& late = Delays(kRanks, Duration::zero())) {
    Calls calls;
    const Time start = job_->now();
    for (Rank rank = 0; rank < kRanks; ++rank) {
      if (start + late[rank] > job_->now()) job_->run_for(start + late[rank] - job_->now());
      calls.push_back(submit(rank));
    }
    EXPECT_TRUE(job_->finish());
    return calls;
  }

  std::optional<SimulatedJob> job_;
  Counts counts_;
  std::optional<Duration> bound_;
  std::vector<std::vector<float>> inputs_, outputs_;
};

TEST_F(BoundedReduceScatter, in_time__each_rank_has_the_sum_of_its_part) {
  for (const Counts& counts : {Counts{5, 5, 5, 5}, Counts{7, 0, 40'000, 333}, Counts{0, 0, 0, 0},
                               Counts{0, 0, 100'000, 0}}) {
    inputs_.clear(), outputs_.clear();
    bound_ = 1s;
    open(counts);
    for (const auto& call : run()) {
      EXPECT_EQ(call->report.status, Status::complete) << call->report.detail;
      EXPECT_EQ(call->report.mode, Mode::bounded);
      EXPECT_EQ(call->report.collective, Collective::reduce_scatter);
      EXPECT_LT(call->report.elapsed, 10ms);
    }
    for (const auto& output : outputs_) EXPECT_THAT(output, Each(10.0f));
  }
}

TEST_F(BoundedReduceScatter, given_bound__ends_the_call_and_the_part_lacks_the_late_rank) {
  bound_ = 20ms;
  open({1000, 1000, 1000, 1000});
  const Calls calls = run({0ms, 0ms, 0ms, 100ms});
  for (Rank rank = 0; rank < 3; ++rank) {
    const Report& report = calls[rank]->report;
    EXPECT_EQ(report.status, Status::partial) << report.detail;
    EXPECT_LE(report.elapsed, 21ms);
    EXPECT_THAT(report.late_ranks, ElementsAre(3));
    EXPECT_THAT(report.missing, ElementsAre(0, 0, 0, 1000));
    EXPECT_DOUBLE_EQ(report.lost_fraction, 0.25);
    EXPECT_DOUBLE_EQ(report.causes.late_ranks, 0.25);
    ASSERT_EQ(report.runs.size(), 1u);
    EXPECT_EQ(report.runs[0], (ContributorRun{.first = 0, .count = 1000, .contributors = 0x7}));
    // The sum of three ranks, scaled to four.
    EXPECT_THAT(outputs_[rank], Each(8.0f));
  }
}

TEST_F(BoundedReduceScatter, rank_behind_the_end__has_what_had_come_and_is_late_itself) {
  bound_ = 20ms;
  open({100'000, 100'000, 100'000, 100'000});
  run();  // the ranks learn how their clocks differ
  const Report report = run({0ms, 0ms, 0ms, 100ms})[3]->report;
  EXPECT_EQ(report.status, Status::late_self) << report.detail;
  EXPECT_THAT(report.late_ranks, ElementsAre(3));
  EXPECT_LT(report.elapsed, 20ms);
  EXPECT_GT(report.lost_fraction, 0);
  EXPECT_DOUBLE_EQ(report.causes.of_network(), 0);
  for (const float value : {outputs_[3].front(), outputs_[3].back()}) {
    EXPECT_THAT(value, testing::AnyOf(10.0f, 16.0f));  // of all ranks, or of its own
  }
}

TEST_F(BoundedReduceScatter, rank_behind_the_end__lacks_nothing_if_its_data_has_come) {
  bound_ = 20ms;
  open({100, 100, 100, 100});
  const Report report = run({0ms, 0ms, 0ms, 100ms})[3]->report;
  EXPECT_EQ(report.status, Status::complete) << report.detail;
  EXPECT_THAT(outputs_[3], Each(10.0f));
}

TEST_F(BoundedReduceScatter, learnt_bound__waits_for_a_late_rank_and_serves_it) {
  open({50'000, 50'000, 50'000, 50'000});
  Duration usual{};
  for (int call = 0; call < 60; ++call) usual = run()[0]->report.elapsed;
  for (const int times : {1, 5, 20}) {
    for (auto& output : outputs_) std::fill(output.begin(), output.end(), -1.0f);
    const Calls calls = run({0ms, 0ms, 0ms, usual * times});
    for (const auto& call : calls) {
      EXPECT_EQ(call->report.status, Status::complete) << times << ": " << call->report.detail;
    }
    EXPECT_LE(calls[0]->report.elapsed, usual * times + usual * 3 / 2);
    EXPECT_LE(calls[3]->report.elapsed, usual * 3 / 2);
    for (const auto& output : outputs_) EXPECT_THAT(output, Each(10.0f));
  }
}

TEST_F(BoundedReduceScatter, learnt_bound__ranks_without_a_part_serve_the_late_one_too) {
  open({0, 0, 0, 100'000});
  Duration usual{};
  for (int call = 0; call < 60; ++call) usual = run()[3]->report.elapsed;
  for (const auto& call : run({0ms, 0ms, 0ms, usual * 10})) {
    EXPECT_EQ(call->report.status, Status::complete) << call->report.detail;
  }
  EXPECT_THAT(outputs_[3], Each(10.0f));
}

TEST_F(BoundedReduceScatter, lossy_network__is_repaired_within_the_bound) {
  bound_ = 1s;
  open({20'000, 20'000, 20'000, 20'000}, {.loss = 0.02});
  for (const auto& call : run()) {
    EXPECT_EQ(call->report.status, Status::complete) << call->report.detail;
    EXPECT_LT(call->report.elapsed, 200ms);
  }
}

TEST_F(BoundedReduceScatter, ranks_that_end_without_some_data__do_not_wait_for_each_other) {
  open({50'000, 50'000, 50'000, 50'000}, {.loss = 0.2});
  Duration longest{};
  std::uint64_t partial = 0;
  for (int call = 0; call < 120; ++call) {
    for (const auto& one : run()) {
      longest = std::max(longest, one->report.elapsed);
      partial += one->report.status == Status::partial ? 1 : 0;
    }
  }
  EXPECT_GT(partial, 0u);
  EXPECT_LT(longest, 1s);
}

TEST_F(BoundedReduceScatter, infinite_input__makes_every_part_nan) {
  bound_ = 1s;
  open({10, 10, 10, 10});
  inputs_[1][35] = std::numeric_limits<float>::infinity();
  for (const auto& call : run()) {
    EXPECT_TRUE(call->report.nonfinite);
    EXPECT_THAT(call->report.nonfinite_ranks, ElementsAre(1));
  }
  for (const auto& output : outputs_) {
    for (const float value : output) EXPECT_TRUE(std::isnan(value));
  }
}

TEST_F(BoundedReduceScatter, integers__run_exact) {
  open({1, 1, 1, 1});
  Calls calls;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    CollectiveArguments call = arguments(rank);
    call.type = DataType::int32;
    calls.push_back(submit(rank, call));
  }
  ASSERT_TRUE(job_->finish());
  for (const auto& call : calls) EXPECT_EQ(call->report.mode, Mode::exact);
}

TEST_F(BoundedReduceScatter, exact_at_one_rank__is_a_mismatch) {
  open({10, 10, 10, 10});
  Calls calls;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    CollectiveArguments call = arguments(rank);
    if (rank == 2) call.mode = Mode::exact;
    calls.push_back(submit(rank, call));
  }
  ASSERT_TRUE(job_->finish());
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::mismatch);
    EXPECT_THAT(call->report.detail, testing::HasSubstr("mode"));
  }
  for (const auto& call : run()) EXPECT_EQ(call->report.status, Status::complete);
}

TEST_F(BoundedReduceScatter, allreduce_at_one_rank__is_a_mismatch_in_every_epoch) {
  for (const bool coded : {false, true}) {
    bound_ = 1s;
    inputs_.clear(), outputs_.clear();
    open({500, 500, 500, 500});
    for (Rank rank = 0; rank < kRanks; ++rank) {
      (*job_)[rank].coded_calls().decided({.setting = {64, coded}, .starts = {{0, 0}}});
    }
    std::vector<float> result(2000);
    Calls calls;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      if (rank != 2) {
        calls.push_back(submit(rank));
        continue;
      }
      AllreduceArguments call;
      call.input = inputs_[rank].data();
      call.output = result.data();
      call.count = result.size();
      call.mode = Mode::bounded;
      call.bound = bound_;
      calls.push_back(job_->submit(rank, call));
    }
    ASSERT_TRUE(job_->finish());
    for (const auto& call : calls) {
      EXPECT_EQ(call->report.status, Status::mismatch) << call->report.detail;
      EXPECT_THAT(call->report.blamed, ElementsAre(2));
      EXPECT_THAT(call->report.detail, testing::HasSubstr("reduce_scatter"));
      EXPECT_EQ(call->report.epoch, 64);
    }
  }
}

TEST_F(BoundedReduceScatter, wrong_arguments__are_named) {
  open({10, 10, 10, 10});
  const auto refusal = [&](CollectiveArguments call) {
    const auto refused = submit(0, call);
    EXPECT_EQ(refused->report.status, Status::aborted);
    return refused->report.detail;
  };
  CollectiveArguments call = arguments(0);
  call.bound = -1ms;
  EXPECT_EQ(refusal(call), "reduce_scatter: the bound must be positive, not -1000 us");
  call.bound = 20s;
  EXPECT_EQ(refusal(call), "reduce_scatter: the bound of 20 s is above the deadline of 10 s");
  call.bound = std::nullopt;
  call.collective = Collective::gather;
  EXPECT_EQ(refusal(call), "gather: it runs exact alone; give mode exact");
  call.mode = static_cast<Mode>(7);
  EXPECT_EQ(refusal(call), "gather: mode 7 is unknown");
}

TEST_F(BoundedReduceScatter, dead_rank__its_contributions_are_missing_and_no_rank_waits) {
  bound_ = 1s;
  open({1000, 1000, 1000, 1000});
  for (Rank rank = 0; rank < 3; ++rank) (*job_)[rank].learn(dead(3), job_->now());
  Calls calls;
  for (Rank rank = 0; rank < 3; ++rank) calls.push_back(submit(rank));
  ASSERT_TRUE(job_->finish());
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::partial);
    EXPECT_DOUBLE_EQ(call->report.causes.gone, 0.25);
    EXPECT_LT(call->report.elapsed, 10ms);
  }
}

}  // namespace
}  // namespace tarpon::testing_support::bounded_reduce_scatter_test
