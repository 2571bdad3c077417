// What the commands of collectives count and expect: nccl-tests' sizes and bandwidths, and the
// check of a result, which must find each wrong one.
#include "tools/collective/measured_collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tools/collective/pattern.h"
#include "tools/collective/pattern_buffers.h"

namespace tarpon::measured_collective_test {
namespace {

constexpr std::uint32_t kRanks = 3;
constexpr Rank kRoot = 1;
constexpr std::uint64_t kPart = 4096;  // elements: a size that users take

using Floats = std::vector<float>;

/// Elements of the input of `rank`, out of place.
Floats input_of(const MeasuredCollective& row, Rank rank) {
  const std::uint64_t whole = row.divided ? kRanks * kPart : kPart;
  if (row.input == Holds::root && rank != kRoot) return {};
  Floats input(row.input == Holds::part ? kPart : whole);
  fill_pattern(std::as_writable_bytes(std::span(input)), DataType::float32, ReduceOp::sum, rank);
  return input;
}

Floats part_of(const Floats& whole, Rank rank) {
  const auto first = whole.begin() + static_cast<std::ptrdiff_t>(rank * kPart);
  return {first, first + kPart};
}

Floats sum_of(const MeasuredCollective& row) {
  Floats sum = input_of(row, 0);
  for (Rank rank = 1; rank < kRanks; ++rank) {
    const Floats more = input_of(row, rank);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }
  return sum;
}

/// By the definition of each collective. Empty: the rank has no output.
Floats right_output(const MeasuredCollective& row, Rank rank) {
  Floats output;
  const auto append = [&](const Floats& more) {
    output.insert(output.end(), more.begin(), more.end());
  };
  switch (row.collective) {
    case Collective::allreduce:
      return sum_of(row);
    case Collective::reduce:
      return rank == kRoot ? sum_of(row) : Floats();
    case Collective::reduce_scatter:
      return part_of(sum_of(row), rank);
    case Collective::broadcast:
      return input_of(row, kRoot);
    case Collective::scatter:
      return part_of(input_of(row, kRoot), rank);
    case Collective::gather:
      if (rank != kRoot) return {};
      [[fallthrough]];
    case Collective::all_gather:
      for (Rank from = 0; from < kRanks; ++from) append(input_of(row, from));
      return output;
    case Collective::send:
      return input_of(row, static_cast<Rank>((rank + kRanks - 1) % kRanks));
    case Collective::all_to_all:
    case Collective::receive:
      break;
  }
  for (Rank from = 0; from < kRanks; ++from) append(part_of(input_of(row, from), rank));
  return output;
}

std::uint64_t wrong_in(const MeasuredCollective& row, Rank rank, const Floats& output) {
  const CallShape shape{kPart, rank, kRoot, kRanks};
  return count_wrong(std::as_bytes(std::span(output)), DataType::float32, ReduceOp::sum, kRanks,
                     expected_output(row, shape));
}

TEST(MeasuredCollective, rows__names_and_bandwidths_of_nccl_tests) {
  const std::map<std::string, double> factors{
      {"all_reduce", 1.5}, {"all_gather", 0.75}, {"reduce_scatter", 0.75},
      {"broadcast", 1},    {"reduce", 1},        {"alltoall", 0.75},
      {"gather", 0.75},    {"scatter", 0.75},    {"sendrecv", 1}};
  EXPECT_EQ(measured_collectives().size(), factors.size());
  for (const MeasuredCollective& row : measured_collectives()) {
    EXPECT_DOUBLE_EQ(row.bus_factor(4), factors.at(row.command)) << row.command;
    EXPECT_EQ(&row_of(row.collective), &row);
    EXPECT_EQ(row.has_in_place(), row.command != std::string("sendrecv"));
  }
}

TEST(MeasuredCollective, count__of_one_part_in_steps_of_16_bytes_where_the_whole_is_divided) {
  for (const MeasuredCollective& row : measured_collectives()) {
    SCOPED_TRACE(row.command);
    EXPECT_EQ(row.count_in(4096, 4, 3), row.divided ? 340u : 1024u);
    EXPECT_EQ(row.count_in(4096, 1, 3), row.divided ? 1360u : 4096u);
    EXPECT_EQ(row.count_in(4100, 8, 2), row.divided ? 256u : 512u);
    EXPECT_EQ(row.count_in(40, 4, 4), row.divided ? 0u : 10u);
    EXPECT_EQ(row.whole_of(340, 3), row.divided ? 1020u : 340u);
  }
}

TEST(MeasuredCollective, check__accepts_the_right_output_alone) {
  for (const MeasuredCollective& row : measured_collectives()) {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(std::string(row.command) + ", rank " + std::to_string(rank));
      Floats output = right_output(row, rank);
      EXPECT_EQ(wrong_in(row, rank, output), 0u);
      if (output.empty()) continue;
      for (const std::size_t at : {std::size_t{0}, output.size() / 2, output.size() - 1}) {
        output[at] += 1;
      }
      EXPECT_EQ(wrong_in(row, rank, output), 3u);
    }
  }
}

TEST(MeasuredCollective, check__finds_the_output_of_another_rank) {
  for (const MeasuredCollective& row : measured_collectives()) {
    const bool differs = row.output == Holds::part || row.collective == Collective::all_to_all ||
                         row.collective == Collective::send;
    if (!differs) continue;
    const Floats others = right_output(row, 2);
    EXPECT_GT(wrong_in(row, 0, others), others.size() / 2) << row.command;
  }
}

TEST(MeasuredCollective, peers_of_messages__ring_of_all_ranks) {
  EXPECT_EQ(rank_after(0, 3), 1);
  EXPECT_EQ(rank_after(2, 3), 0);
  EXPECT_EQ(rank_before(0, 3), 2);
  EXPECT_EQ(rank_before(1, 2), rank_after(1, 2));
}

TEST(MeasuredCollective, check__finds_parts_in_the_wrong_order) {
  for (const MeasuredCollective& row : measured_collectives()) {
    Floats output = right_output(row, kRoot);
    if (!row.divided || row.output == Holds::part) continue;
    std::swap_ranges(output.begin(), output.begin() + kPart, output.begin() + kPart);
    EXPECT_GT(wrong_in(row, kRoot, output), kPart) << row.command;
  }
}

/// The buffers of all ranks, ready for a call.
std::vector<PatternBuffers> buffers_for_a_call(const MeasuredCollective& row, bool in_place) {
  const SweepKind kind{DataType::float32, ReduceOp::sum, kRoot};
  const std::uint64_t bytes = (row.divided ? kRanks : 1) * kPart * sizeof(float);
  std::vector<PatternBuffers> buffers;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    PatternBuffers& one = buffers.emplace_back(row, rank, kRanks);
    one.allocate(bytes, {kind}, false);
    one.begin(kind, bytes, in_place);
    one.refill();
    EXPECT_EQ(one.size(), bytes);
    EXPECT_EQ(one.count(), kPart);
  }
  return buffers;
}

class PatternBuffersTest : public testing::TestWithParam<bool> {};

TEST_P(PatternBuffersTest, check__accepts_what_the_call_should_write_and_nothing_stale) {
  for (const MeasuredCollective& row : measured_collectives()) {
    if (GetParam() && !row.has_in_place()) continue;
    std::vector<PatternBuffers> buffers = buffers_for_a_call(row, GetParam());
    for (Rank rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(std::string(row.command) + ", rank " + std::to_string(rank));
      PatternBuffers& one = buffers[rank];
      const Floats input = input_of(row, rank), output = right_output(row, rank);
      ASSERT_EQ(one.input() != nullptr, !input.empty());
      ASSERT_EQ(one.output() != nullptr, !output.empty());
      if (!input.empty()) {
        EXPECT_EQ(std::memcmp(one.input(), input.data(), input.size() * sizeof(float)), 0);
      }
      if (output.empty()) continue;
      // In place, the output of the root of a broadcast or scatter is in its input already.
      const bool there = GetParam() && row.input == Holds::root && rank == kRoot;
      const std::uint64_t stale = there ? 0 : kPart / 2;
      EXPECT_GE(one.check(Report(), {}).wrong, stale);
      std::memcpy(one.output(), output.data(), output.size() * sizeof(float));
      EXPECT_EQ(one.check(Report(), {}).wrong, 0u);
      one.refill();
      EXPECT_GE(one.check(Report(), {}).wrong, stale);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Places, PatternBuffersTest, testing::Values(false, true),
                         [](const auto& in_place) {
                           return std::string(in_place.param ? "in_place" : "out_of_place");
                         });

}  // namespace
}  // namespace tarpon::measured_collective_test
