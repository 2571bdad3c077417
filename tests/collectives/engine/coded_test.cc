// Coded calls in virtual time: what they give without loss, with it, in other epochs, and of ranks
// that are late.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "collectives/engine/coded/coded_calls.h"
#include "collectives/engine/coded/coding.h"
#include "tests/support/simulated_job.h"
#include "tools/reference/coded_reference.h"

namespace tarpon::testing_support::coded_test {
namespace {

constexpr Duration kBound = 50ms;

Mechanisms coded() {
  Mechanisms mechanisms;
  mechanisms.codec = CodecRule::on;
  return mechanisms;
}

class CodedTest : public testing::Test {
 protected:
  void make_job(SimulatedJobOptions options) {
    ranks_ = options.ranks;
    job_.emplace(options);
    job_->run_for(1us);
  }

  void make_buffers(std::uint64_t count, bool in_place = false) {
    buffers_.emplace(ranks_, count, in_place);
  }

  std::shared_ptr<PendingCall> submit(Rank rank, ReduceOp function = ReduceOp::avg) {
    auto arguments = buffers_->arguments(rank, DataType::float32, function);
    arguments.mode = Mode::bounded;
    arguments.bound = kBound;
    arguments.deadline = 4s;
    return job_->submit(rank, arguments);
  }

  std::vector<std::shared_ptr<PendingCall>> run(ReduceOp function = ReduceOp::avg) {
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (Rank rank = 0; rank < ranks_; ++rank) calls.push_back(submit(rank, function));
    EXPECT_TRUE(job_->finish());
    return calls;
  }

  /// Against the plain decoding of what each report names.
  void expect_decoded(const std::vector<std::shared_ptr<PendingCall>>& calls, ReduceOp function) {
    for (Rank rank = 0; rank < ranks_; ++rank) {
      const Report& report = calls[rank]->report;
      ASSERT_TRUE(report.coded);
      const CodedExpectation expected =
          coded_expectation(report, ranks_, rank, function, MissingFill::zero,
                            [&](Rank from, std::uint64_t i) { return buffers_->inputs[from][i]; });
      for (std::uint64_t i = 0; i < expected.values.size(); ++i) {
        ASSERT_NEAR(buffers_->outputs[rank][i], expected.values[i], expected.tolerances[i])
            << "rank " << rank << ", element " << i;
      }
    }
  }

  std::uint16_t ranks_ = 0;
  std::optional<SimulatedJob> job_;
  std::optional<Buffers<float>> buffers_;
};

TEST_F(CodedTest, without_loss_it_is_the_sum_on_all_ranks_alike) {
  for (const int ranks : {2, 3, 4, 7}) {
    make_job({.ranks = static_cast<std::uint16_t>(ranks), .mechanisms = coded()});
    for (const std::uint64_t count : {1u, 5u, 100u, 4096u, 20'001u}) {
      for (const bool in_place : {false, true}) {
        make_buffers(count, in_place);
        const auto calls = run(ReduceOp::sum);
        for (const auto& call : calls) {
          EXPECT_EQ(call->report.status, Status::complete) << call->report.detail;
          EXPECT_EQ(call->report.lost_fraction, 0);
        }
        expect_decoded(calls, ReduceOp::sum);
        const auto exact = buffers_->expected(ReduceOp::sum, 0);
        for (Rank rank = 0; rank < ranks_; ++rank) {
          EXPECT_TRUE(same_bits(buffers_->outputs[rank], buffers_->outputs[0]));
          for (std::uint64_t i = 0; i < count; ++i) {
            ASSERT_NEAR(buffers_->outputs[rank][i], exact[i], 2e-3);
          }
        }
      }
    }
  }
}

TEST_F(CodedTest, with_loss_it_is_what_the_report_says) {
  for (const Rescale rescale : {Rescale::count, Rescale::none}) {
    Mechanisms mechanisms = coded();
    mechanisms.rescale = rescale;
    mechanisms.repair = mechanisms.scatter_repair = false;
    make_job({.ranks = 4, .faults = {.loss = 0.05}, .mechanisms = mechanisms});
    for (int call = 0; call < 5; ++call) {
      make_buffers(50'000);
      const auto calls = run();
      for (const auto& one : calls) {
        EXPECT_EQ(one->report.status, Status::partial);
        EXPECT_GT(one->report.lost_stage1, 0);
        EXPECT_GT(one->report.lost_stage2, 0);
      }
      expect_decoded(calls, ReduceOp::avg);
    }
  }
}

/// Rows that lie further apart than they are long: the last shards' begin a row later in memory.
TEST_F(CodedTest, with_loss_and_rows_apart_it_is_what_the_report_says) {
  Mechanisms mechanisms = coded();
  mechanisms.repair = mechanisms.scatter_repair = false;
  make_job({.ranks = 7, .slot_bytes = 40 * 4, .faults = {.loss = 0.03}, .mechanisms = mechanisms});
  make_buffers(5 * 4096);
  const auto calls = run();
  const codec::CodedLayout& layout = calls[0]->report.coded->layout;
  EXPECT_GE(6 * (layout.row_pitch() - layout.row_elements()), layout.row_elements());
  for (const auto& one : calls) EXPECT_GT(one->report.lost_stage2, 0);
  expect_decoded(calls, ReduceOp::avg);
}

TEST_F(CodedTest, a_loss_of_stage_2_costs_its_share_of_the_square) {
  Mechanisms mechanisms = coded();
  mechanisms.repair = false;
  make_job({.ranks = 4, .faults = {.loss = 0.05}, .mechanisms = mechanisms});
  make_buffers(100'000);
  const auto calls = run(ReduceOp::sum);
  const auto exact = buffers_->expected(ReduceOp::sum, 0);
  for (Rank rank = 0; rank < 4; ++rank) {
    double error = 0, energy = 0;
    for (std::uint64_t i = 0; i < exact.size(); ++i) {
      error += std::pow(buffers_->outputs[rank][i] - exact[i], 2);
      energy += std::pow(exact[i], 2);
    }
    const double share = calls[rank]->report.lost_stage2;
    ASSERT_GT(share, 0.01);
    EXPECT_NEAR(error / energy, share / (1 - share), 0.3 * share);
  }
}

TEST_F(CodedTest, a_rank_that_is_gone_costs_all_blocks_alike) {
  Mechanisms mechanisms = coded();
  make_job({.ranks = 4, .mechanisms = mechanisms});
  make_buffers(50'000);
  job_->kill(3);
  job_->tell_dead(3);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 3; ++rank) calls.push_back(submit(rank));
  ASSERT_TRUE(job_->finish());
  ranks_ = 3;
  const std::uint32_t world = 4;
  for (Rank rank = 0; rank < 3; ++rank) {
    const Report& report = calls[rank]->report;
    EXPECT_EQ(report.status, Status::partial);
    EXPECT_THAT(report.void_shards, testing::ElementsAre(3));
    const CodedExpectation expected =
        coded_expectation(report, world, rank, ReduceOp::avg, MissingFill::zero,
                          [&](Rank from, std::uint64_t i) { return buffers_->inputs[from][i]; });
    for (std::uint64_t i = 0; i < expected.values.size(); ++i) {
      ASSERT_NEAR(buffers_->outputs[rank][i], expected.values[i], expected.tolerances[i]);
    }
    // A quarter of each block is lost, none of it whole.
    double kept = 0, energy = 0;
    for (std::uint64_t i = 0; i < expected.values.size(); ++i) {
      double mean = 0;
      for (Rank from = 0; from < 3; ++from) mean += buffers_->inputs[from][i] / 3.0;
      kept += buffers_->outputs[rank][i] * mean;
      energy += mean * mean;
    }
    EXPECT_NEAR(kept / energy, 1, 0.05);
  }
}

TEST_F(CodedTest, a_late_rank_fetches_and_decodes) {
  make_job({.ranks = 4, .mechanisms = coded()});
  make_buffers(9'000, true);
  std::vector<std::shared_ptr<PendingCall>> calls(4);
  for (const Rank rank : std::array<Rank, 3>{0, 2, 3}) calls[rank] = submit(rank);
  ASSERT_TRUE(job_->finish());
  calls[1] = submit(1);
  ASSERT_TRUE(job_->finish());
  EXPECT_EQ(calls[1]->report.status, Status::late_self) << calls[1]->report.detail;
  expect_decoded(calls, ReduceOp::avg);
  EXPECT_TRUE(same_bits(buffers_->outputs[1], buffers_->outputs[0]));
}

TEST_F(CodedTest, nonfinite_input_makes_all_of_it_nan) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Mechanisms mechanisms = coded();
    mechanisms.repair = mechanisms.scatter_repair = false;
    make_job({.ranks = 4, .faults = {.loss = 0.02}, .mechanisms = mechanisms});
    make_buffers(30'000);
    buffers_->inputs[2][17'000] = bad;
    for (const auto& call : run()) {
      EXPECT_TRUE(call->report.nonfinite);
      EXPECT_THAT(call->report.nonfinite_ranks, testing::ElementsAre(2));
    }
    for (const auto& output : buffers_->outputs) {
      EXPECT_TRUE(std::all_of(output.begin(), output.end(), [](float x) { return std::isnan(x); }));
    }
  }
}

TEST_F(CodedTest, exact_calls_and_other_types_are_not_coded) {
  make_job({.ranks = 2, .mechanisms = coded()});
  Buffers<double> doubles(2, 100, false);
  Buffers<float> floats(2, 100, false);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 2; ++rank) {
    auto of_doubles = doubles.arguments(rank, DataType::float64, ReduceOp::sum);
    of_doubles.mode = Mode::bounded;
    calls.push_back(job_->submit(rank, of_doubles));
    auto exact = floats.arguments(rank, DataType::float32, ReduceOp::sum);
    exact.tag = 1;
    calls.push_back(job_->submit(rank, exact));
  }
  ASSERT_TRUE(job_->finish());
  for (const auto& call : calls) EXPECT_FALSE(call->report.coded);
}

// -- epochs
// ------------------------------------------------------------------------------------------

class EpochTest : public CodedTest {
 protected:
  void SetUp() override {
    make_job({.ranks = 3});
    make_buffers(3'000);
  }
  void decide(Rank rank, std::uint16_t number, bool coded, std::uint32_t from) {
    (*job_)[rank].coded_calls().decided({{number, coded}, {{0, from}}});
  }
};

TEST_F(EpochTest, calls_are_coded_from_the_agreed_one_on_and_until_the_next) {
  for (Rank rank = 0; rank < 3; ++rank) {
    decide(rank, 64, true, 2);
    decide(rank, 128, false, 4);
  }
  for (int call = 0; call < 6; ++call) {
    for (const auto& one : run()) {
      EXPECT_EQ(one->report.coded.has_value(), call == 2 || call == 3);
      EXPECT_EQ(one->report.epoch, call < 2 ? 0 : call < 4 ? 64 : 128);
      EXPECT_EQ(one->report.status, Status::complete);
    }
  }
}

/// Who has not heard of it loses that call, is not summed with the others, and learns.
TEST_F(EpochTest, a_rank_that_missed_the_record_learns_from_the_packets) {
  decide(0, 64, true, 1);
  decide(1, 64, true, 1);
  for (const auto& call : run()) EXPECT_EQ(call->report.status, Status::complete);
  const auto split = run();
  EXPECT_TRUE(split[0]->report.coded && split[1]->report.coded && !split[2]->report.coded);
  for (const Rank rank : std::array<Rank, 2>{0, 1}) {
    EXPECT_EQ(split[rank]->report.status, Status::partial);
    for (const ContributorRun& one : split[rank]->report.runs) {
      EXPECT_EQ(one.contributors & 0b100, 0u);
    }
  }
  EXPECT_EQ(split[2]->report.status, Status::partial);
  EXPECT_LT(split[2]->report.elapsed, 4 * kBound) << "there is nothing to fetch";
  EXPECT_GT((*job_)[2].endpoint().counters()[DropReason::epoch], 0u);
  for (const auto& call : run()) {
    EXPECT_TRUE(call->report.coded);
    EXPECT_EQ(call->report.status, Status::complete) << call->report.detail;
  }
}

/// No rank encodes that call, but its packets have the setting all the same.
TEST_F(EpochTest, a_call_of_doubles_tells_a_rank_that_missed_the_record_the_setting) {
  decide(0, 64, true, 0);
  decide(1, 64, true, 0);
  Buffers<double> doubles(3, 3'000, false);
  std::vector<std::shared_ptr<PendingCall>> split;
  for (Rank rank = 0; rank < 3; ++rank) {
    auto arguments = doubles.arguments(rank, DataType::float64, ReduceOp::sum);
    arguments.mode = Mode::bounded;
    arguments.bound = kBound;
    split.push_back(job_->submit(rank, arguments));
  }
  ASSERT_TRUE(job_->finish());
  for (const auto& call : split) EXPECT_EQ(call->report.status, Status::partial);
  for (const auto& call : run()) {
    EXPECT_TRUE(call->report.coded);
    EXPECT_EQ(call->report.status, Status::complete) << call->report.detail;
  }
}

/// The same, begun after the others have closed it; and the others are not held up by it.
TEST_F(EpochTest, a_rank_that_comes_late_in_the_wrong_epoch_ends_soon) {
  decide(0, 64, true, 1);
  decide(1, 64, true, 1);
  for (const auto& call : run()) EXPECT_EQ(call->report.status, Status::complete);
  std::vector<std::shared_ptr<PendingCall>> calls(3);
  for (const Rank rank : std::array<Rank, 2>{0, 1}) calls[rank] = submit(rank);
  ASSERT_TRUE(job_->finish());
  calls[2] = submit(2);
  ASSERT_TRUE(job_->finish());
  for (const auto& call : calls) EXPECT_LT(call->report.elapsed, 5 * kBound);
  for (const Rank rank : std::array<Rank, 2>{0, 1}) {
    EXPECT_EQ(calls[rank]->report.status, Status::partial);
  }
  for (const auto& call : run()) EXPECT_EQ(call->report.status, Status::complete);
}

/// The old epoch's rank ends first, and knows nothing of what the others have of whom.
TEST_F(EpochTest, two_ranks_in_two_epochs_both_end_by_their_bounds) {
  make_job({.ranks = 2});
  make_buffers(3'000);
  decide(0, 64, true, 1);
  run();
  for (int call = 0; call < 3; ++call) {
    const auto calls = run();
    for (const auto& one : calls) EXPECT_LT(one->report.elapsed, 5 * kBound) << "call " << call;
    EXPECT_EQ(calls[1]->report.status == Status::complete, call > 0);
  }
}

TEST_F(EpochTest, next_numbers_count_what_waits) {
  run();
  for (int call = 0; call < 10; ++call) submit(0);  // beyond the window
  const auto numbers = (*job_)[0].next_numbers();
  ASSERT_EQ(numbers.size(), 1u);
  EXPECT_EQ(numbers[0], (EpochRecord::Start{0, 11}));
}

}  // namespace
}  // namespace tarpon::testing_support::coded_test
