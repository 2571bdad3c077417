// Bounded all_gather in virtual time: what the output holds, how long a call takes, and what the
// report says is missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/support/simulated_job.h"

namespace tarpon::testing_support::bounded_all_gather_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using Counts = std::vector<std::uint64_t>;
using Calls = std::vector<std::shared_ptr<PendingCall>>;
using Delays = std::vector<Duration>;
using Words = std::vector<std::uint16_t>;

/// The elements of the part of a rank are 1 + the rank. Outputs hold kOld before a call.
class BoundedAllGather : public testing::Test {
 protected:
  static constexpr std::uint16_t kRanks = 4;
  static constexpr std::uint16_t kOld = 99;

  void open(Counts counts, FaultOptions faults = {}) {
    counts_ = std::move(counts);
    job_.emplace(SimulatedJobOptions{
        .ranks = kRanks,
        .slot_bytes = 1408,
        .faults = faults,
        .links = FabricOptions{.ingress = {.bits_per_second = 1e9, .queue_bytes = 1 << 20}}});
    const std::uint64_t all = std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
    inputs_.clear(), outputs_.clear();
    for (Rank rank = 0; rank < kRanks; ++rank) {
      inputs_.emplace_back(counts_[rank], static_cast<std::uint16_t>(1 + rank));
      outputs_.emplace_back(all, kOld);
    }
  }

  CollectiveArguments arguments(Rank rank) {
    CollectiveArguments call;
    call.collective = Collective::all_gather;
    call.counts = counts_;
    call.type = DataType::uint16;
    call.output = outputs_[rank].data();
    call.input = inputs_[rank].data();
    if (in_place_) {
      std::uint16_t* const own = outputs_[rank].data() + first_of(rank);
      std::copy(inputs_[rank].begin(), inputs_[rank].end(), own);
      call.input = own;
    }
    call.mode = Mode::bounded;
    call.bound = bound_;
    return call;
  }

  std::uint64_t first_of(Rank rank) const {
    return std::accumulate(counts_.begin(), counts_.begin() + rank, std::uint64_t{0});
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

  /// The part of `rank` in the output of `at`.
  Words part(Rank at, Rank rank) const {
    const auto first = outputs_[at].begin() + static_cast<std::ptrdiff_t>(first_of(rank));
    return {first, first + static_cast<std::ptrdiff_t>(counts_[rank])};
  }

  void expect_all_parts() {
    for (Rank at = 0; at < kRanks; ++at) {
      for (Rank rank = 0; rank < kRanks; ++rank) {
        EXPECT_EQ(part(at, rank), inputs_[rank]) << "part of " << rank << " at " << at;
      }
    }
  }

  /// Every element of the output of `at` is as its runs say.
  void expect_as_reported(Rank at, const Report& report) {
    ASSERT_FALSE(report.runs.empty());
    std::uint64_t next = 0;
    std::vector<std::uint64_t> missing(kRanks);
    for (const ContributorRun& run : report.runs) {
      ASSERT_EQ(run.first, next);
      for (; next < run.first + run.count; ++next) {
        Rank owner = 0;
        while (next >= first_of(owner) + counts_[owner]) ++owner;
        const bool here = run.contributors != 0;
        if (here) {
          ASSERT_EQ(run.contributors, bit(owner));
        } else {
          ++missing[owner];
        }
        ASSERT_EQ(outputs_[at][next], here ? 1 + owner : kOld) << "element " << next;
      }
    }
    EXPECT_EQ(next, outputs_[at].size());
    EXPECT_EQ(report.missing, missing);
    const auto lost = std::accumulate(missing.begin(), missing.end(), std::uint64_t{0});
    EXPECT_DOUBLE_EQ(report.lost_fraction,
                     static_cast<double>(lost) / static_cast<double>(outputs_[at].size()));
    EXPECT_NEAR(report.causes.of_live_ranks() + report.causes.gone, report.lost_fraction, 1e-12);
  }

  std::optional<SimulatedJob> job_;
  Counts counts_;
  bool in_place_ = false;
  std::optional<Duration> bound_;
  std::vector<Words> inputs_, outputs_;
};

TEST_F(BoundedAllGather, in_time__each_rank_has_all_parts) {
  bound_ = 1s;
  for (const bool in_place : {false, true}) {
    in_place_ = in_place;
    for (const Counts& counts : {Counts{5, 5, 5, 5}, Counts{7, 0, 40'000, 333}, Counts{0, 0, 0, 0},
                                 Counts{0, 0, 100'000, 0}}) {
      open(counts);
      for (const auto& call : run()) {
        const Report& report = call->report;
        EXPECT_EQ(report.status, Status::complete) << report.detail;
        EXPECT_EQ(report.mode, Mode::bounded);
        EXPECT_EQ(report.collective, Collective::all_gather);
        EXPECT_LT(report.elapsed, 10ms);
        for (Rank rank = 0; rank < kRanks; ++rank) {
          EXPECT_EQ(report.peers[rank].contributors, bit(rank));
        }
      }
      expect_all_parts();
    }
  }
}

TEST_F(BoundedAllGather, given_bound__ends_the_call_and_leaves_the_part_of_a_late_rank) {
  bound_ = 20ms;
  open({1000, 1000, 0, 3000});
  const Calls calls = run({0ms, 0ms, 0ms, 100ms});
  for (Rank rank = 0; rank < 3; ++rank) {
    const Report& report = calls[rank]->report;
    EXPECT_EQ(report.status, Status::partial) << report.detail;
    EXPECT_LE(report.elapsed, 21ms);
    EXPECT_THAT(report.late_ranks, ElementsAre(3));
    EXPECT_THAT(report.void_shards, ElementsAre(3));
    EXPECT_THAT(report.missing, ElementsAre(0, 0, 0, 3000));
    EXPECT_DOUBLE_EQ(report.lost_fraction, 0.6);
    EXPECT_DOUBLE_EQ(report.causes.late_ranks, 0.6);
    EXPECT_THAT(report.detail, HasSubstr("60.0000 % of the elements are missing"));
    EXPECT_THAT(part(rank, 3), Each(kOld));
    expect_as_reported(rank, report);
  }
}

TEST_F(BoundedAllGather, rank_behind_the_end__has_what_had_come_and_is_late_itself) {
  bound_ = 20ms;
  open({200'000, 200'000, 200'000, 200'000});
  run();  // the ranks learn how their clocks differ
  for (auto& output : outputs_) std::fill(output.begin(), output.end(), kOld);
  const Report report = run({0ms, 0ms, 0ms, 100ms})[3]->report;
  EXPECT_EQ(report.status, Status::late_self) << report.detail;
  EXPECT_THAT(report.late_ranks, ElementsAre(3));
  EXPECT_LT(report.elapsed, 20ms);
  EXPECT_EQ(part(3, 3), inputs_[3]);
  EXPECT_DOUBLE_EQ(report.causes.of_network(), 0);
  expect_as_reported(3, report);
  for (const auto& call : run()) EXPECT_EQ(call->report.status, Status::complete);
  expect_all_parts();
}

TEST_F(BoundedAllGather, rank_behind_the_end__lacks_nothing_if_all_had_come) {
  bound_ = 20ms;
  open({100, 100, 100, 100});
  const Report report = run({0ms, 0ms, 0ms, 100ms})[3]->report;
  EXPECT_EQ(report.status, Status::complete) << report.detail;
  for (Rank rank = 0; rank < kRanks; ++rank) EXPECT_EQ(part(3, rank), inputs_[rank]);
}

TEST_F(BoundedAllGather, learnt_bound__waits_for_a_late_rank_and_serves_it) {
  open({50'000, 50'000, 50'000, 50'000});
  Duration usual{};
  for (int call = 0; call < 60; ++call) usual = run()[0]->report.elapsed;
  for (const int times : {1, 5, 20}) {
    for (auto& output : outputs_) std::fill(output.begin(), output.end(), kOld);
    const Calls calls = run({0ms, 0ms, 0ms, usual * times});
    for (const auto& call : calls) {
      EXPECT_EQ(call->report.status, Status::complete) << times << ": " << call->report.detail;
    }
    EXPECT_LE(calls[0]->report.elapsed, usual * times + usual * 3 / 2);
    EXPECT_LE(calls[3]->report.elapsed, usual * 3 / 2);
    expect_all_parts();
  }
}

TEST_F(BoundedAllGather, learnt_bound__rank_with_an_empty_part_is_served_too) {
  open({100'000, 0, 0, 0});
  Duration usual{};
  for (int call = 0; call < 60; ++call) usual = run()[3]->report.elapsed;
  for (const auto& call : run({0ms, 0ms, 0ms, usual * 10})) {
    EXPECT_EQ(call->report.status, Status::complete) << call->report.detail;
  }
  expect_all_parts();
}

TEST_F(BoundedAllGather, lossy_network__is_repaired_within_the_bound) {
  bound_ = 1s;
  open({40'000, 40'000, 40'000, 40'000}, {.loss = 0.02});
  for (const auto& call : run()) {
    EXPECT_EQ(call->report.status, Status::complete) << call->report.detail;
    EXPECT_LT(call->report.elapsed, 200ms);
  }
  expect_all_parts();
}

TEST_F(BoundedAllGather, lost_packets__cost_their_elements_alone) {
  bound_ = 4ms;
  open({60'000, 60'000, 60'000, 60'000}, {.loss = 0.3});
  std::uint64_t partial = 0, late = 0;
  for (int call = 0; call < 20; ++call) {
    for (auto& output : outputs_) std::fill(output.begin(), output.end(), kOld);
    const Calls calls = run();
    for (Rank rank = 0; rank < kRanks; ++rank) {
      const Report& report = calls[rank]->report;
      EXPECT_LT(report.elapsed, 6ms);
      if (report.status == Status::complete) continue;
      ASSERT_EQ(report.status, Status::partial) << report.detail;
      expect_as_reported(rank, report);
      EXPECT_EQ(part(rank, rank), inputs_[rank]);
      ++partial;
      late += report.late_ranks.size();
    }
  }
  EXPECT_GT(partial, 0u);
  EXPECT_EQ(late, 0u);
}

TEST_F(BoundedAllGather, dead_rank__its_part_is_missing_and_no_rank_waits) {
  bound_ = 1s;
  open({1000, 1000, 1000, 1000});
  for (Rank rank = 0; rank < 3; ++rank) (*job_)[rank].learn(dead(3), job_->now());
  Calls calls;
  for (Rank rank = 0; rank < 3; ++rank) calls.push_back(submit(rank));
  ASSERT_TRUE(job_->finish());
  for (Rank rank = 0; rank < 3; ++rank) {
    const Report& report = calls[rank]->report;
    EXPECT_EQ(report.status, Status::partial);
    EXPECT_DOUBLE_EQ(report.causes.gone, 0.25);
    EXPECT_LT(report.elapsed, 10ms);
    expect_as_reported(rank, report);
  }
}

TEST_F(BoundedAllGather, exact_at_one_rank__is_a_mismatch) {
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
    EXPECT_THAT(call->report.detail, HasSubstr("mode"));
  }
  for (const auto& call : run()) EXPECT_EQ(call->report.status, Status::complete);
  expect_all_parts();
}

TEST_F(BoundedAllGather, other_counts_at_one_rank__are_a_mismatch) {
  bound_ = 1s;
  open({10, 10, 10, 10});
  Calls calls;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    CollectiveArguments call = arguments(rank);
    if (rank == 2) call.counts = {9, 11, 10, 10};
    calls.push_back(submit(rank, call));
  }
  ASSERT_TRUE(job_->finish());
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::mismatch);
    EXPECT_THAT(call->report.detail, HasSubstr("hash of the counts"));
  }
}

}  // namespace
}  // namespace tarpon::testing_support::bounded_all_gather_test
