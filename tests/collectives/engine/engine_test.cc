// AllReduce of whole jobs in virtual time: results, reports, blame and limits.
#include "collectives/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/simulated_job.h"

namespace tarpon {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::Buffers;
using testing_support::same_bits;
using testing_support::SimulatedJob;

template <typename T>
constexpr DataType type_of() {
  if constexpr (std::is_same_v<T, float>) return DataType::float32;
  if constexpr (std::is_same_v<T, double>) return DataType::float64;
  if constexpr (std::is_same_v<T, std::int32_t>) return DataType::int32;
  return DataType::int64;
}

constexpr ReduceOp kFunctions[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max,
                                   ReduceOp::prod};

template <typename T>
void expect_exact(std::uint16_t ranks, std::uint64_t count, ReduceOp function, bool in_place,
                  const FaultOptions& faults = {}) {
  SCOPED_TRACE(std::string(name(function)) + " of " + std::to_string(count) + " " +
               std::string(name(type_of<T>())) + " on " + std::to_string(ranks) + " ranks" +
               (in_place ? " in place" : ""));
  SimulatedJob job({.ranks = ranks, .faults = faults});
  Buffers<T> buffers(ranks, count, in_place);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < ranks; ++rank) {
    calls.push_back(job.submit(rank, buffers.arguments(rank, type_of<T>(), function)));
  }
  ASSERT_TRUE(job.finish());
  const std::vector<T> expected = buffers.expected(function, 0);
  const Buffers<T> untouched(ranks, count, in_place);
  for (Rank rank = 0; rank < ranks; ++rank) {
    const Report& report = calls[rank]->report;
    ASSERT_EQ(report.status, Status::complete) << report.detail;
    EXPECT_TRUE(report.missing.empty() && report.runs.empty() && report.late_ranks.empty());
    EXPECT_EQ(report.lost_fraction, 0);
    EXPECT_TRUE(same_bits(buffers.outputs[rank], expected)) << "rank " << rank;
    EXPECT_TRUE(same_bits(buffers.inputs[rank], untouched.inputs[rank]));
  }
}

template <typename T>
class EngineTypedTest : public testing::Test {};
using Elements = testing::Types<float, double, std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(EngineTypedTest, Elements);

TYPED_TEST(EngineTypedTest, exact__every_function_count_and_world) {
  for (const ReduceOp function : kFunctions) {
    for (const std::uint16_t ranks : std::initializer_list<std::uint16_t>{1, 2, 3, 5}) {
      for (const std::uint64_t count : {0u, 1u, 2u, 4u, 16u, 17u, 129u, 5000u}) {
        expect_exact<TypeParam>(ranks, count, function, count % 2 == 0);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TYPED_TEST(EngineTypedTest, exact__under_loss_the_same_bits) {
  const FaultOptions faults{.loss = 0.1, .duplicate = 0.1, .reorder = 0.2, .corrupt = 0.02};
  for (const bool in_place : {false, true}) {
    expect_exact<TypeParam>(4, 5000, ReduceOp::avg, in_place, faults);
  }
}

TEST(EngineTest, exact__64_ranks) {
  expect_exact<float>(64, 63, ReduceOp::sum, true);
  expect_exact<float>(64, 10'000, ReduceOp::avg, false);
}

TEST(EngineTest, exact__shards_that_are_confirmed_rather_than_copied) {
  expect_exact<float>(2, 100'000, ReduceOp::sum, true);
  expect_exact<float>(2, 100'000, ReduceOp::sum, true, {.loss = 0.1});
}

TEST(EngineTest, submit__refuses_what_makes_no_sense) {
  SimulatedJob job({.ranks = 2});
  float element = 0;
  const AllreduceArguments good{.input = &element, .output = &element, .count = 1};
  AllreduceArguments bad = good;
  bad.input = nullptr;
  const auto detail = [&] { return job[0].submit(bad, job.now())->report.detail; };
  EXPECT_THAT(detail(), HasSubstr("input buffer is null"));
  bad = good;
  bad.output = nullptr;
  EXPECT_THAT(detail(), HasSubstr("output buffer is null"));
  bad = good;
  bad.deadline = 0s;
  EXPECT_THAT(detail(), HasSubstr("deadline"));
  bad = good;
  bad.bound = -1ns;
  EXPECT_THAT(detail(), HasSubstr("bound"));
  bad = good;
  bad.count = 1ull << 45;
  EXPECT_THAT(detail(), HasSubstr("split"));
  EXPECT_EQ(job[0].outstanding(), 0u);
}

TEST(EngineTest, submit__many_tags_each_beyond_its_window) {
  constexpr std::uint16_t kRanks = 3;
  constexpr std::uint32_t kTags = 7;
  constexpr std::uint32_t kCalls = 20;  // a tag; the window is 8
  SimulatedJob job({.ranks = kRanks, .faults = {.loss = 0.02, .reorder = 0.1}});
  std::vector<std::unique_ptr<Buffers<double>>> buffers;
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (std::uint32_t i = 0; i < kTags * kCalls; ++i) {
    buffers.push_back(std::make_unique<Buffers<double>>(kRanks, 10 * i, i % 2 == 0, i));
  }
  for (Rank rank = 0; rank < kRanks; ++rank) {
    for (std::uint32_t i = 0; i < kTags * kCalls; ++i) {
      // Ranks interleave the tags differently: only the order within a tag must agree.
      const std::uint32_t tag = rank % 2 == 0 ? i % kTags : kTags - 1 - i % kTags;
      const std::uint32_t index = i / kTags * kTags + tag;
      auto arguments = buffers[index]->arguments(rank, DataType::float64, ReduceOp::sum);
      arguments.tag = tag;
      calls.push_back(job.submit(rank, arguments));
    }
  }
  EXPECT_EQ(job[0].outstanding(), kTags * kCalls);
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(job[0].outstanding(), 0u);
  for (const auto& call : calls) EXPECT_EQ(call->report.status, Status::complete);
  for (std::uint32_t i = 0; i < kTags * kCalls; ++i) {
    const auto expected = buffers[i]->expected(ReduceOp::sum, i / kTags);
    for (Rank rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(same_bits(buffers[i]->outputs[rank], expected)) << "call " << i;
    }
  }
}

TEST(EngineTest, submit__alone_the_result_is_the_input_at_once) {
  SimulatedJob job({.ranks = 1});
  Buffers<float> buffers(1, 100, false);
  auto arguments = buffers.arguments(0, DataType::float32, ReduceOp::avg);
  arguments.tag = 9;
  const auto call = job.submit(0, arguments);
  EXPECT_TRUE(call->done);
  EXPECT_EQ(call->report.status, Status::complete);
  EXPECT_EQ(call->report.tag, 9u);
  EXPECT_TRUE(same_bits(buffers.outputs[0], buffers.inputs[0]));
}

TEST(EngineTest, retain__a_small_limit_does_not_hold_calls_back) {
  SimulatedJob job({.ranks = 3, .retain_bytes = 0});
  std::vector<std::unique_ptr<Buffers<float>>> buffers;
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (int i = 0; i < 8; ++i) {
    buffers.push_back(std::make_unique<Buffers<float>>(3, 1000, true));
    for (Rank rank = 0; rank < 3; ++rank) {
      calls.push_back(
          job.submit(rank, buffers.back()->arguments(rank, DataType::float32, ReduceOp::sum)));
    }
  }
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::complete);
    EXPECT_LT(call->report.elapsed, 1s);
  }
}

TEST(EngineTest, retain__calls_that_keep_nothing_need_no_room) {
  SimulatedJob job({.ranks = 3, .retain_bytes = 0});
  Buffers<float> buffers(3, 1000, true), nothing(3, 0, true);
  for (Rank rank = 0; rank < 3; ++rank) {
    job.submit(rank, buffers.arguments(rank, DataType::float32, ReduceOp::sum));
  }
  ASSERT_TRUE(job.finish());
  EXPECT_GT(job[0].endpoint().memory().retained_bytes, 0u);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 3; ++rank) {
    auto arguments = nothing.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.tag = 1;
    calls.push_back(job.submit(rank, arguments));
  }
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) EXPECT_LT(call->report.elapsed, 10ms);
}

// One of three ranks cannot exclude two silent ones: the memory for them has a limit all the same.
TEST(EngineTest, retain__calls_at_their_deadlines_keep_no_more_than_the_limit) {
  constexpr std::uint64_t kRetain = 100'000;
  SimulatedJob job({.ranks = 3, .retain_bytes = kRetain});
  Buffers<float> buffers(3, 12'000, false);
  const auto submit = [&](Rank rank, Duration deadline) {
    auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.mode = Mode::bounded;
    arguments.bound = 5ms;
    arguments.deadline = deadline;
    return job.submit(rank, arguments);
  };
  for (Rank rank = 0; rank < 3; ++rank) submit(rank, 1s);
  ASSERT_TRUE(job.finish());
  job.stop(1);
  job.stop(2);
  submit(0, 1s);
  job.run_for(2s);  // they count as silent
  for (int call = 0; call < 30; ++call) {
    const auto one = submit(0, 100ms);
    job.run_for(150ms);
    ASSERT_TRUE(one->done);
    EXPECT_EQ(one->report.status, Status::partial);
    EXPECT_LE(job[0].endpoint().memory().retained_bytes, kRetain);
  }
  EXPECT_NE(job[0].take_eviction_wish(), 0u);
}

// Nobody can have what is lost: the call does not ask for it until its deadline.
TEST(EngineTest, without_retention__a_lost_result_ends_a_bounded_call_at_once) {
  Mechanisms mechanisms;
  mechanisms.retention = false;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    FaultOptions faults;
    faults.loss = 0.05;
    SimulatedJob job({.ranks = 2, .faults = faults, .seed = seed, .mechanisms = mechanisms});
    Buffers<float> buffers(2, 20'000, false);
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (Rank rank = 0; rank < 2; ++rank) {
      auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
      arguments.mode = Mode::bounded;
      calls.push_back(job.submit(rank, arguments));
    }
    ASSERT_TRUE(job.finish());
    for (const auto& call : calls) EXPECT_LT(call->report.elapsed, 1s) << seed;
  }
}

// -- disagreement

struct Disagreement {
  const char* field;
  std::function<void(AllreduceArguments&)> change;
};

/// Rank 2 of `ranks` passes other arguments, `delay` after the others.
void expect_mismatch(std::uint16_t ranks, const Disagreement& one, Duration delay) {
  SCOPED_TRACE(std::string(one.field) + " on " + std::to_string(ranks) + " ranks, " +
               std::to_string(delay / 1ms) + " ms later");
  SimulatedJob job({.ranks = ranks});
  Buffers<double> buffers(ranks, 4000, false);
  std::vector<std::shared_ptr<PendingCall>> calls(ranks);
  const auto submit = [&](Rank rank) {
    auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.count = 2000;
    arguments.bound = 1s;
    if (rank == 2) one.change(arguments);
    calls[rank] = job.submit(rank, arguments);
  };
  for (Rank rank = 0; rank < ranks; ++rank) {
    if (rank != 2) submit(rank);
  }
  job.run_for(delay);
  submit(2);
  ASSERT_TRUE(job.finish());
  for (Rank rank = 0; rank < ranks; ++rank) {
    const Report& report = calls[rank]->report;
    EXPECT_EQ(report.status, Status::mismatch) << name(report.status) << ": " << report.detail;
    EXPECT_THAT(report.detail, HasSubstr(one.field));
    EXPECT_LT(report.elapsed, delay + 1s);
    if (rank == 2) {
      EXPECT_THAT(report.blamed, ElementsAre(2));
      EXPECT_THAT(report.detail, HasSubstr("this rank differs from all others"));
    } else {
      EXPECT_THAT(report.blamed, ElementsAre(2));
      EXPECT_THAT(report.detail, HasSubstr("rank 2"));
    }
  }
}

TEST(EngineTest, mismatch__names_the_field_and_the_rank_everywhere) {
  const std::vector<Disagreement> all{
      {"count", [](auto& a) { a.count = 1999; }},
      {"count", [](auto& a) { a.count = 1; }},
      {"count", [](auto& a) { a.count = 0; }},
      {"type", [](auto& a) { a.type = DataType::int32; }},
      {"type", [](auto& a) { a.type = DataType::float64; }},
      {"function", [](auto& a) { a.function = ReduceOp::max; }},
      {"mode", [](auto& a) { a.mode = Mode::bounded; }},
      {"algorithm", [](auto& a) { a.algorithm = Algorithm::ring; }},
  };
  for (const Disagreement& one : all) {
    for (const std::uint16_t ranks : std::initializer_list<std::uint16_t>{3, 8}) {
      for (const Duration delay : {Duration(0ms), Duration(5ms), Duration(300ms)}) {
        expect_mismatch(ranks, one, delay);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(EngineTest, mismatch__the_tag_works_on_afterwards) {
  SimulatedJob job({.ranks = 2});
  Buffers<float> buffers(2, 100, false);
  for (Rank rank = 0; rank < 2; ++rank) {
    auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.count -= rank;
    job.submit(rank, arguments);
  }
  ASSERT_TRUE(job.finish());
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 2; ++rank) {
    calls.push_back(job.submit(rank, buffers.arguments(rank, DataType::float32, ReduceOp::sum)));
  }
  ASSERT_TRUE(job.finish());
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(calls[rank]->report.status, Status::complete);
    EXPECT_EQ(calls[rank]->report.operation, 1u);
    EXPECT_TRUE(same_bits(buffers.outputs[rank], buffers.expected(ReduceOp::sum, 1)));
  }
}

TEST(EngineTest, abort__tells_the_peers_who_gave_up) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, 1000, false);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 2; ++rank) {
    calls.push_back(job.submit(rank, buffers.arguments(rank, DataType::float32, ReduceOp::sum)));
  }
  job.run_for(5ms);
  job[0].abort(job.now());
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::aborted);
    EXPECT_THAT(call->report.blamed, ElementsAre(0));
    EXPECT_LT(call->report.elapsed, 10ms);
  }
  EXPECT_EQ(job[0].outstanding(), 0u);
}

TEST(EngineTest, abort__calls_beyond_the_window_keep_their_numbers) {
  SimulatedJob job({.ranks = 2});
  Buffers<float> buffers(2, 100, true);
  const auto submit = [&](Rank rank) {
    return job.submit(rank, buffers.arguments(rank, DataType::float32, ReduceOp::sum));
  };
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (int i = 0; i < 11; ++i) calls.push_back(submit(0));
  job.run_for(5ms);
  job[0].abort(job.now());
  for (int i = 0; i < 11; ++i) calls.push_back(submit(1));
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) EXPECT_EQ(call->report.status, Status::aborted);
  const auto mine = submit(0), theirs = submit(1);
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(mine->report.status, Status::complete);
  EXPECT_EQ(mine->report.operation, 11u);
  EXPECT_EQ(theirs->report.operation, 11u);
}

// -- lateness

TEST(EngineTest, late__exact_calls_name_exactly_the_ranks_that_never_submitted) {
  for (const std::uint64_t count : {1u, 100u, 20'000u}) {
    for (const std::vector<Rank>& absent : {std::vector<Rank>{3}, std::vector<Rank>{0, 2}}) {
      SimulatedJob job({.ranks = 5, .faults = {.loss = 0.05}});
      Buffers<float> buffers(5, count, true);
      std::vector<std::shared_ptr<PendingCall>> calls;
      for (Rank rank = 0; rank < 5; ++rank) {
        if (std::find(absent.begin(), absent.end(), rank) != absent.end()) continue;
        auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
        arguments.deadline = 2s;
        calls.push_back(job.submit(rank, arguments));
      }
      ASSERT_TRUE(job.finish());
      for (const auto& call : calls) {
        EXPECT_EQ(call->report.status, Status::peer_late);
        EXPECT_EQ(call->report.late_ranks, absent) << count << ": " << call->report.detail;
        EXPECT_EQ(call->report.elapsed, 2s);
      }
    }
  }
}

TEST(EngineTest, late__a_call_beyond_the_window_ends_by_its_own_deadline) {
  SimulatedJob job({.ranks = 2});
  Buffers<float> buffers(2, 100, true);
  auto arguments = buffers.arguments(0, DataType::float32, ReduceOp::sum);
  for (int i = 0; i < 8; ++i) job.submit(0, arguments);
  arguments.deadline = 1s;
  const auto queued = job.submit(0, arguments);
  job.run_for(1s + 1us);
  ASSERT_TRUE(queued->done);
  EXPECT_EQ(queued->report.status, Status::peer_late);
  EXPECT_EQ(queued->report.elapsed, 1s);
  ASSERT_TRUE(job.finish());
}

TEST(EngineTest, late__a_rank_that_submits_later_still_completes) {
  SimulatedJob job({.ranks = 4});
  Buffers<float> buffers(4, 10'000, false);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 4; ++rank) {
    job.run_for(700ms);
    calls.push_back(job.submit(rank, buffers.arguments(rank, DataType::float32, ReduceOp::sum)));
  }
  ASSERT_TRUE(job.finish());
  for (Rank rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(calls[rank]->report.status, Status::complete);
    EXPECT_TRUE(same_bits(buffers.outputs[rank], buffers.expected(ReduceOp::sum, 0)));
  }
  EXPECT_LT(calls[3]->report.elapsed, 50ms);
}

// -- bounded mode

/// Rank 1 of 4 is absent; the others run bounded.
std::vector<Report> run_without_rank_1(Buffers<float>& buffers, ReduceOp function,
                                       std::optional<Duration> bound, MissingFill fill) {
  SimulatedJob job({.ranks = 4});
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 4; ++rank) {
    if (rank == 1) continue;
    auto arguments = buffers.arguments(rank, DataType::float32, function);
    arguments.mode = Mode::bounded;
    arguments.bound = bound;
    arguments.missing = fill;
    arguments.deadline = 4s;
    calls.push_back(job.submit(rank, arguments));
  }
  EXPECT_TRUE(job.finish());
  std::vector<Report> reports;
  for (const auto& call : calls) reports.push_back(call->report);
  return reports;
}

TEST(EngineTest, bounded__an_absent_rank_is_named_and_the_others_have_the_rest) {
  constexpr std::uint64_t kCount = 4000;  // shards of 1008 elements
  for (const MissingFill fill : {MissingFill::zero, MissingFill::local}) {
    Buffers<float> buffers(4, kCount, fill == MissingFill::zero);
    const auto reports = run_without_rank_1(buffers, ReduceOp::sum, 20ms, fill);
    ASSERT_EQ(reports.size(), 3u);
    const ShardLayout layout{kCount, 4, 4};
    const Range lost = layout.elements(shard_of(1, 0, 4));
    for (std::size_t i = 0; i < 3; ++i) {
      const Rank rank = i == 0 ? Rank{0} : static_cast<Rank>(i + 1);
      const Report& report = reports[i];
      EXPECT_EQ(report.status, Status::partial);
      EXPECT_EQ(report.mode, Mode::bounded);
      EXPECT_THAT(report.late_ranks, ElementsAre(1)) << report.detail;
      EXPECT_LT(report.elapsed, 50ms);
      EXPECT_EQ(report.missing,
                (std::vector<std::uint64_t>{lost.count, kCount, lost.count, lost.count}));
      const double whole = 4.0 * static_cast<double>(kCount);
      EXPECT_NEAR(report.lost_stage2, 4.0 * static_cast<double>(lost.count) / whole, 1e-12);
      EXPECT_NEAR(report.lost_stage1, static_cast<double>(kCount - lost.count) / whole, 1e-12);
      EXPECT_NEAR(report.lost_fraction, report.lost_stage1 + report.lost_stage2, 1e-12);
      for (std::uint64_t e = 0; e < kCount; ++e) {
        const float mine = buffers.inputs[rank][e];
        const bool filled = e >= lost.first && e < lost.end();
        const float others = buffers.inputs[0][e] + buffers.inputs[2][e] + buffers.inputs[3][e];
        const float expected = !filled ? others * 4 / 3 : fill == MissingFill::zero ? 0 : mine * 4;
        ASSERT_NEAR(buffers.outputs[rank][e], expected, 1e-3f) << "element " << e;
      }
    }
  }
}

/// Ranks in `late` submit one after the other when the others have ended.
void expect_late_ranks_fetch(const std::vector<Rank>& late) {
  constexpr std::uint64_t kCount = 40'000;
  SimulatedJob job({.ranks = 4});
  Buffers<float> buffers(4, kCount, true);
  const auto submit = [&](Rank rank) {
    auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.mode = Mode::bounded;
    arguments.bound = 20ms;
    arguments.deadline = 4s;
    return job.submit(rank, arguments);
  };
  std::vector<Rank> on_time;
  for (Rank rank = 0; rank < 4; ++rank) {
    if (std::find(late.begin(), late.end(), rank) == late.end()) on_time.push_back(rank);
  }
  for (const Rank rank : on_time) submit(rank);
  ASSERT_TRUE(job.finish());
  const ShardLayout layout{kCount, 4, 4};
  for (const Rank rank : late) {
    const auto call = submit(rank);
    ASSERT_TRUE(job.finish());
    EXPECT_EQ(call->report.status, Status::late_self) << call->report.detail;
    EXPECT_LT(call->report.elapsed, 200ms);
    EXPECT_EQ(call->report.missing[rank], kCount);
    EXPECT_EQ(buffers.outputs[rank], buffers.outputs[on_time.front()]) << "rank " << rank;
    const Range own = layout.elements(shard_of(rank, 0, 4));
    EXPECT_EQ(buffers.outputs[rank][own.first], 0);
  }
}

TEST(EngineTest, bounded__a_late_rank_fetches_the_others_result) {
  expect_late_ranks_fetch({1});
}

TEST(EngineTest, bounded__a_late_rank_for_which_everything_waits_already_has_no_shard_either) {
  constexpr std::uint64_t kCount = 4000;  // within the initial credit
  SimulatedJob job({.ranks = 4});
  Buffers<float> first(4, kCount, true), second(4, kCount, true);
  const auto submit = [&](Rank rank, Buffers<float>& buffers) {
    auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.mode = Mode::bounded;
    arguments.bound = 20ms;
    arguments.deadline = 4s;
    return job.submit(rank, arguments);
  };
  Buffers<float> before(4, kCount, true);
  for (Rank rank = 0; rank < 4; ++rank) submit(rank, before);
  ASSERT_TRUE(job.finish());
  // The packets of the second call say that the first one is closed.
  for (Buffers<float>* buffers : {&first, &second}) {
    for (const int rank : {0, 2, 3}) submit(static_cast<Rank>(rank), *buffers);
    ASSERT_TRUE(job.finish());
  }
  const auto call = submit(1, first);
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(call->report.status, Status::late_self) << call->report.detail;
  EXPECT_EQ(first.outputs[1], first.outputs[0]);
}

TEST(EngineTest, bounded__late_ranks_do_not_wait_for_each_other) {
  expect_late_ranks_fetch({1, 2});
}

TEST(EngineTest, bounded__after_being_late_a_rank_takes_part_again) {
  SimulatedJob job({.ranks = 4});
  Buffers<float> buffers(4, 4000, true);
  const auto submit = [&](Rank rank) {
    auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.mode = Mode::bounded;
    arguments.bound = 20ms;
    return job.submit(rank, arguments);
  };
  for (const int rank : {0, 1, 3}) submit(static_cast<Rank>(rank));
  ASSERT_TRUE(job.finish());
  submit(2);
  ASSERT_TRUE(job.finish());
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 4; ++rank) calls.push_back(submit(rank));
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) EXPECT_EQ(call->report.status, Status::complete);
}

TEST(EngineTest, bounded__without_a_bound_the_deadline_still_gives_a_result) {
  Buffers<float> buffers(4, 4000, true);
  for (const Report& report :
       run_without_rank_1(buffers, ReduceOp::avg, std::nullopt, MissingFill::zero)) {
    EXPECT_EQ(report.status, Status::partial) << name(report.status) << ": " << report.detail;
    EXPECT_THAT(report.late_ranks, ElementsAre(1));
    EXPECT_LE(report.elapsed, 4s + 10ms);
  }
}

TEST(EngineTest, bounded__nothing_lost_is_complete_and_needs_no_bound) {
  SimulatedJob job({.ranks = 4});
  Buffers<float> buffers(4, 4000, true);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (Rank rank = 0; rank < 4; ++rank) {
    auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::avg);
    arguments.mode = Mode::bounded;
    arguments.bound = 2s;
    calls.push_back(job.submit(rank, arguments));
  }
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::complete);
    EXPECT_LT(call->report.elapsed, 10ms);
  }
}

TEST(EngineTest, bounded__one_lost_packet_does_not_take_the_rest_of_the_message) {
  std::uint64_t lost_more = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SimulatedJob job({.ranks = 2, .slot_bytes = 64, .faults = {.loss = 0.01}, .seed = seed});
    Buffers<float> buffers(2, 500'000, true);  // 15625 slots a shard: several windows
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (Rank rank = 0; rank < 2; ++rank) {
      auto arguments = buffers.arguments(rank, DataType::float32, ReduceOp::avg);
      arguments.mode = Mode::bounded;
      arguments.bound = 500ms;
      calls.push_back(job.submit(rank, arguments));
    }
    ASSERT_TRUE(job.finish());
    for (const auto& call : calls) lost_more += call->report.lost_fraction > 0.03;
  }
  EXPECT_EQ(lost_more, 0u) << "of 60 results";
}

TEST(EngineTest, bounded__integers_min_max_and_prod_run_exact) {
  SimulatedJob job({.ranks = 2});
  Buffers<double> buffers(2, 100, false);
  for (const auto& [type, function] :
       std::vector<std::pair<DataType, ReduceOp>>{{DataType::int32, ReduceOp::sum},
                                                  {DataType::float64, ReduceOp::min},
                                                  {DataType::float32, ReduceOp::max},
                                                  {DataType::float64, ReduceOp::prod}}) {
    std::vector<std::shared_ptr<PendingCall>> calls;
    for (Rank rank = 0; rank < 2; ++rank) {
      auto arguments = buffers.arguments(rank, type, function);
      arguments.mode = Mode::bounded;
      calls.push_back(job.submit(rank, arguments));
    }
    ASSERT_TRUE(job.finish());
    for (const auto& call : calls) EXPECT_EQ(call->report.mode, Mode::exact);
  }
}

// -- ports that misbehave

/// A port that can fail, or be flooded with junk.
class RoughPort : public Port {
 public:
  explicit RoughPort(std::unique_ptr<Port> inner) : inner_(std::move(inner)) {}
  const PortCapabilities& capabilities() const override { return inner_->capabilities(); }
  std::span<TxPacket> transmit_frames(std::size_t n) override { return inner_->transmit_frames(n); }
  void transmit(std::span<TxPacket> packets) override { inner_->transmit(packets); }
  std::size_t unsent() const override { return held_unsent; }
  bool holds(Lender) const override { return held_unsent > 0; }
  void drop_unsent(Lender) override {
    held_unsent = 0;
    if (on_drop) on_drop();
  }
  std::span<const RxPacket> receive(Time now) override {
    if (!flooded) return inner_->receive(now);
    return {&junk_, 1};
  }
  void wait(Time now, Time until) override { inner_->wait(now, until); }
  void wake() override { inner_->wake(); }
  PortStatistics statistics() const override { return inner_->statistics(); }
  std::optional<Error> failure() const override { return broken; }

  std::optional<Error> broken;
  bool flooded = false;
  std::size_t held_unsent = 0;  // of every lender
  std::function<void()> on_drop;

 private:
  std::unique_ptr<Port> inner_;
  std::byte byte_{};
  RxPacket junk_{&byte_, 1, kUnknownRank};
};

/// Two ranks on rough ports.
class RoughJob {
 public:
  RoughPort& port(Rank rank) { return *ports_[rank]; }
  Engine& operator[](Rank rank) { return job_[rank]; }
  SimulatedJob* operator->() { return &job_; }

 private:
  std::vector<RoughPort*> ports_;
  SimulatedJob job_{{.ranks = 2}, [this](Rank, std::unique_ptr<Port> inner) {
                      auto port = std::make_unique<RoughPort>(std::move(inner));
                      ports_.push_back(port.get());
                      return port;
                    }};
};

TEST(EngineTest, port__its_failure_ends_all_calls_and_refuses_further_ones) {
  RoughJob job;
  Buffers<float> buffers(2, 100, true);
  auto arguments = buffers.arguments(0, DataType::float32, ReduceOp::sum);
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (int i = 0; i < 10; ++i) calls.push_back(job->submit(0, arguments));
  job.port(0).broken = Error::make(Error::Code::io, "eth9: the interface is gone");
  job->run_for(1ms);
  for (const auto& call : calls) {
    ASSERT_TRUE(call->done);
    EXPECT_EQ(call->report.status, Status::failed);
    EXPECT_THAT(call->report.detail, HasSubstr("eth9"));
  }
  const auto after = job->submit(0, arguments);
  job->run_for(1ms);
  ASSERT_TRUE(after->done);
  EXPECT_EQ(after->report.status, Status::failed);
  EXPECT_THAT(after->report.detail, HasSubstr("eth9"));
}

TEST(EngineTest, port__a_flood_of_junk_does_not_hold_back_a_deadline) {
  RoughJob job;
  Buffers<float> buffers(2, 100, true);
  auto arguments = buffers.arguments(0, DataType::float32, ReduceOp::sum);
  arguments.deadline = 1s;
  const auto call = job[0].submit(arguments, Time(1s));
  job.port(0).flooded = true;
  Time now(1s);
  while (now < Time(2s) + 10ms) {
    job[0].progress(now);
    now += 1ms;
  }
  ASSERT_TRUE(call->done);
  EXPECT_EQ(call->report.status, Status::peer_late);
}

TEST(EngineTest, port__a_call_is_over_when_the_port_has_let_go_of_its_buffers) {
  RoughJob job;
  Buffers<float> buffers(2, 100, true);
  job.port(0).held_unsent = 3;
  const auto a = job->submit(0, buffers.arguments(0, DataType::float32, ReduceOp::sum));
  const auto b = job->submit(1, buffers.arguments(1, DataType::float32, ReduceOp::sum));
  job->run_for(100ms);
  EXPECT_TRUE(b->done);
  EXPECT_FALSE(a->done);
  job.port(0).held_unsent = 0;
  job[0].progress(job->now());
  EXPECT_TRUE(a->done);
  EXPECT_EQ(a->report.status, Status::complete);
}

TEST(EngineTest, port__what_it_cannot_send_does_not_hold_a_call_beyond_its_deadline) {
  for (const bool complete : {true, false}) {
    RoughJob job;
    Buffers<float> buffers(2, 100, true);
    job.port(0).held_unsent = 3;
    auto arguments = buffers.arguments(0, DataType::float32, ReduceOp::sum);
    arguments.deadline = 500ms;
    const auto call = job->submit(0, arguments);
    if (complete) job->submit(1, buffers.arguments(1, DataType::float32, ReduceOp::sum));
    job->run_for(499ms);
    EXPECT_FALSE(call->done);
    job->run_for(2ms);
    EXPECT_TRUE(call->done);
    EXPECT_EQ(call->report.status, complete ? Status::complete : Status::peer_late);
    EXPECT_EQ(job.port(0).held_unsent, 0u);
  }
}

TEST(EngineTest, port__missing_parts_are_filled_once_their_memory_is_no_longer_lent) {
  RoughJob job;
  Buffers<float> buffers(2, 100, true);
  const std::vector<float> before = buffers.outputs[0];
  auto arguments = buffers.arguments(0, DataType::float32, ReduceOp::sum);
  arguments.mode = Mode::bounded;
  arguments.bound = 10ms;
  const auto call = job->submit(0, arguments);
  const ShardLayout layout{100, 4, 2};
  const Range theirs = layout.elements(shard_of(1, 0, 2));
  std::vector<float> when_dropped;
  job.port(0).held_unsent = 3;
  job.port(0).on_drop = [&] { when_dropped = buffers.outputs[0]; };
  ASSERT_TRUE(job->finish());
  ASSERT_EQ(when_dropped.size(), before.size());
  for (std::uint64_t e = theirs.first; e < theirs.end(); ++e) {
    EXPECT_EQ(when_dropped[e], before[e]);
    EXPECT_EQ(buffers.outputs[0][e], 0);
  }
}

}  // namespace
}  // namespace tarpon
