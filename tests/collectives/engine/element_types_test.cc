// All element types and functions in jobs: exact results bit by bit, half precision in bounded
// calls, the caller's own functions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/simulated_job.h"

namespace tarpon::element_types_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::Buffers;
using testing_support::same_bits;
using testing_support::SimulatedJob;
using testing_support::sum_without_rank_1;

template <typename T>
class ElementTypesTest : public testing::Test {
 protected:
  /// One exact call; its results have to be those of the plain reduction.
  static void expect_exact(std::uint16_t ranks, std::uint64_t count, ReduceOp function,
                           bool in_place, const FaultOptions& faults = {}) {
    SCOPED_TRACE(std::string(name(function)) + " of " + std::to_string(count) + " on " +
                 std::to_string(ranks) + " ranks");
    SimulatedJob job({.ranks = ranks, .faults = faults});
    Buffers<T> buffers(ranks, count, in_place);
    const auto calls = job.submit_all(
        [&](Rank rank) { return buffers.arguments(rank, data_type_of<T>(), function); });
    ASSERT_TRUE(job.finish());
    const std::vector<T> expected = buffers.expected(function, 0);
    for (Rank rank = 0; rank < ranks; ++rank) {
      ASSERT_EQ(calls[rank]->report.status, Status::complete) << calls[rank]->report.detail;
      EXPECT_TRUE(same_bits(buffers.outputs[rank], expected)) << "rank " << rank;
    }
  }
};

using Elements =
    testing::Types<float, double, std::int32_t, std::int64_t, Float16, Bfloat16, std::int8_t,
                   std::uint8_t, std::int16_t, std::uint16_t, std::uint32_t, std::uint64_t>;
TYPED_TEST_SUITE(ElementTypesTest, Elements);

TYPED_TEST(ElementTypesTest, exact__every_function) {
  for (std::size_t op = 0; op < kReduceOps; ++op) {
    const auto function = static_cast<ReduceOp>(op);
    if (function == ReduceOp::custom || !is_defined(data_type_of<TypeParam>(), function)) continue;
    for (const std::uint16_t ranks : std::initializer_list<std::uint16_t>{1, 2, 3, 5}) {
      for (const std::uint64_t count : {1u, 33u, 5001u}) {
        this->expect_exact(ranks, count, function, count == 33);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TYPED_TEST(ElementTypesTest, exact__under_loss_the_same_bits) {
  const FaultOptions faults{.loss = 0.1, .duplicate = 0.1, .reorder = 0.2, .corrupt = 0.02};
  for (const bool in_place : {false, true}) {
    this->expect_exact(4, 5000, ReduceOp::avg, in_place, faults);
  }
}

/// Reports of the ranks that run one bounded call; those in `absent` do not.
template <typename T>
std::vector<Report> run_bounded(SimulatedJob& job, Buffers<T>& buffers, ReduceOp function,
                                const std::vector<Rank>& absent, MissingFill fill) {
  const auto submitted = [&](Rank rank) {
    auto arguments = buffers.bounded_arguments(rank, function);
    arguments.missing = fill;
    return arguments;
  };
  const auto calls = job.submit_all(submitted, absent);
  EXPECT_TRUE(job.finish());
  std::vector<Report> reports;
  for (const auto& call : calls) reports.push_back(call->report);
  return reports;
}

template <typename T>
class HalfJobTest : public testing::Test {};
using Halves = testing::Types<Float16, Bfloat16>;
TYPED_TEST_SUITE(HalfJobTest, Halves);

TYPED_TEST(HalfJobTest, bounded__sums_are_rounded_once) {
  using T = TypeParam;
  for (const ReduceOp function : {ReduceOp::sum, ReduceOp::avg}) {
    SimulatedJob job({.ranks = 4});
    // The sum of the small values is one unit in the last place of the large one and a half; added
    // to it one by one they would vanish.
    const double large = std::ldexp(1, T::kMantissa);
    Buffers<T> buffers(4, 1000, false);
    for (Rank rank = 0; rank < 4; ++rank) {
      std::fill(buffers.inputs[rank].begin(), buffers.inputs[rank].end(),
                T(rank == 0 ? large : 0.5));
    }
    for (const Report& report : run_bounded(job, buffers, function, {}, MissingFill::zero)) {
      EXPECT_EQ(report.status, Status::complete) << report.detail;
      EXPECT_EQ(report.mode, Mode::bounded);
      EXPECT_FALSE(report.coded);
    }
    const T expected(function == ReduceOp::sum ? large + 1.5 : (large + 1.5) / 4);
    for (Rank rank = 0; rank < 4; ++rank) {
      for (const T got : buffers.outputs[rank]) ASSERT_EQ(float{got}, float{expected});
    }
  }
}

TYPED_TEST(HalfJobTest, bounded__lacking_contributions_are_scaled_and_holes_filled) {
  using T = TypeParam;
  constexpr std::uint64_t kCount = 4000;
  for (const MissingFill fill : {MissingFill::zero, MissingFill::local}) {
    for (const bool in_place : {false, true}) {
      SimulatedJob job({.ranks = 4});
      Buffers<T> buffers(4, kCount, in_place);
      const auto reports = run_bounded(job, buffers, ReduceOp::sum, {1}, fill);
      for (const Report& report : reports) EXPECT_THAT(report.late_ranks, ElementsAre(1));
      for (const Rank rank : {Rank{0}, Rank{2}, Rank{3}}) {
        for (std::uint64_t e = 0; e < kCount; ++e) {
          const double expected = sum_without_rank_1(buffers, rank, e, fill);
          const double slack = std::abs(expected) * epsilon_of<T>() + 1e-4;
          ASSERT_NEAR(float{buffers.outputs[rank][e]}, expected, slack)
              << "element " << e << " of rank " << rank;
        }
      }
    }
  }
}

TYPED_TEST(HalfJobTest, bounded__of_two_ranks_alone) {
  using T = TypeParam;
  for (const bool in_place : {false, true}) {
    SimulatedJob job({.ranks = 2});
    Buffers<T> buffers(2, 300, in_place);
    run_bounded(job, buffers, ReduceOp::avg, {1}, MissingFill::local);
    for (std::uint64_t e = 0; e < 300; ++e) {
      ASSERT_EQ(float{buffers.outputs[0][e]}, float{buffers.inputs[0][e]}) << "of itself alone";
    }
  }
}

TYPED_TEST(HalfJobTest, bounded__infinity_in_an_input_makes_the_result_nan) {
  using T = TypeParam;
  SimulatedJob job({.ranks = 3});
  Buffers<T> buffers(3, 700, false);
  buffers.inputs[1][699] = T(std::numeric_limits<float>::infinity());
  for (const Report& report : run_bounded(job, buffers, ReduceOp::avg, {}, MissingFill::zero)) {
    EXPECT_THAT(report.nonfinite_ranks, ElementsAre(1));
  }
  for (Rank rank = 0; rank < 3; ++rank) {
    for (const T got : buffers.outputs[rank]) ASSERT_TRUE(std::isnan(float{got}));
  }
}

// -- the caller's own function

/// Keeps the larger of two pairs by their first element; counts its calls.
void larger_pair(void* out, const void* a, const void* b, std::size_t elements,
                 void* calls) noexcept {
  ++*static_cast<int*>(calls);
  for (std::size_t i = 0; i < elements; ++i) {
    std::uint64_t first = 0, second = 0;
    std::memcpy(&first, static_cast<const std::byte*>(a) + 8 * i, 8);
    std::memcpy(&second, static_cast<const std::byte*>(b) + 8 * i, 8);
    const std::uint64_t larger = (first >> 32) >= (second >> 32) ? first : second;
    std::memcpy(static_cast<std::byte*>(out) + 8 * i, &larger, 8);
  }
}

struct CustomJob {
  explicit CustomJob(std::uint16_t ranks) : job({.ranks = ranks}), buffers(ranks, 3000, false) {}

  AllreduceArguments arguments(Rank rank, std::uint32_t id) {
    auto result = buffers.arguments(rank, DataType::uint64, ReduceOp::custom);
    result.custom = {id, larger_pair, &calls};
    return result;
  }

  SimulatedJob job;
  Buffers<std::uint64_t> buffers;
  int calls = 0;
};

TEST(CustomFunctionTest, runs_on_the_owners) {
  for (const std::uint16_t ranks : std::initializer_list<std::uint16_t>{2, 5}) {
    CustomJob custom(ranks);
    for (Rank rank = 0; rank < ranks; ++rank) {
      for (std::uint64_t e = 0; e < 3000; ++e) {
        custom.buffers.inputs[rank][e] = ((e * 7 + rank * 31) % 61) << 32 | rank;
      }
    }
    const auto pending = custom.job.submit_all([&](Rank rank) {
      AllreduceArguments arguments = custom.arguments(rank, 42);
      arguments.mode = rank == 0 ? Mode::exact : Mode::bounded;  // runs exact
      return arguments;
    });
    ASSERT_TRUE(custom.job.finish());
    EXPECT_GT(custom.calls, 0);
    for (Rank rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(pending[rank]->report.status, Status::complete) << pending[rank]->report.detail;
      EXPECT_EQ(pending[rank]->report.mode, Mode::exact);
      for (std::uint64_t e = 0; e < 3000; ++e) {
        std::uint64_t highest = 0;
        for (Rank from = 0; from < ranks; ++from) {
          highest = std::max(highest, custom.buffers.inputs[from][e] >> 32);
        }
        ASSERT_EQ(custom.buffers.outputs[rank][e] >> 32, highest) << e;
      }
    }
  }
}

TEST(CustomFunctionTest, different_ids_are_a_mismatch) {
  CustomJob custom(3);
  const auto pending =
      custom.job.submit_all([&](Rank rank) { return custom.arguments(rank, rank == 2 ? 8 : 7); });
  ASSERT_TRUE(custom.job.finish());
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(pending[rank]->report.status, Status::mismatch);
    EXPECT_THAT(pending[rank]->report.detail, HasSubstr("custom function 8 instead of 7"));
  }
}

TEST(CustomFunctionTest, refuses_a_call_without_one) {
  CustomJob custom(2);
  AllreduceArguments arguments = custom.arguments(0, 1);
  arguments.custom.combine = nullptr;
  const auto call = custom.job.submit(0, arguments);
  ASSERT_TRUE(custom.job.finish());
  EXPECT_EQ(call->report.status, Status::aborted);
  EXPECT_EQ(call->report.abort_reason, AbortReason::argument);
  EXPECT_THAT(call->report.detail, HasSubstr("(custom_combine of tarpon_arguments)"));
}

TEST(CustomFunctionTest, bits_of_floats_are_not_combined) {
  SimulatedJob job({.ranks = 2});
  for (const DataType type : {DataType::float32, DataType::float64, DataType::float16}) {
    Buffers<double> buffers(2, 10, false);
    const auto call = job.submit(0, buffers.arguments(0, type, ReduceOp::bxor));
    ASSERT_TRUE(job.finish());
    EXPECT_EQ(call->report.abort_reason, AbortReason::argument);
    EXPECT_EQ(call->report.detail,
              "allreduce: bxor needs integers; the elements are " + std::string(name(type)));
  }
}

}  // namespace
}  // namespace tarpon::element_types_test
