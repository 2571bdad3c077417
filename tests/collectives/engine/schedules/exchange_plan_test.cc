// Collectives through the memory of a host, for 2 to 64 ranks, without memory: each element that an
// output needs is taken once, from where its sender has put it.
#include "collectives/engine/schedules/exchange_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tarpon::exchange_plan_test {
namespace {

constexpr Collective kAll[] = {
    Collective::reduce_scatter, Collective::all_gather, Collective::broadcast, Collective::reduce,
    Collective::gather,         Collective::scatter,    Collective::all_to_all};
constexpr std::uint64_t kPlace = 4096;

/// Calls body(parts, plan, world) for parts that are even, uneven with empty ones, all of one rank,
/// or empty.
template <typename Body>
void for_all(Body body) {
  for (const Collective collective : kAll) {
    for (std::uint32_t world = 2; world <= 64; world += world < 9 ? 1 : 11) {
      std::vector<std::uint64_t> uneven, one(world, 0);
      for (std::uint32_t rank = 0; rank < world; ++rank) uneven.push_back(rank % 3 * 117);
      one[world / 2] = 3000;
      for (const auto& counts : {std::vector<std::uint64_t>(world, 330), uneven, one,
                                 std::vector<std::uint64_t>(world, 0)}) {
        CollectiveArguments call{.collective = collective, .counts = counts};
        if (has_root(collective)) call.root = static_cast<Rank>(world - 1);
        const bool whole = !has_parts(collective) || collective == Collective::all_to_all;
        if (whole) {
          call.count = counts[world / 2];
          call.counts.clear();
        }
        SCOPED_TRACE(std::string(name(collective)) + ", world " + std::to_string(world) + ", " +
                     std::to_string(counts[0]));
        const CollectiveParts parts = CollectiveParts::of(call, world, 0);
        body(parts, ExchangePlan(parts, world, sizeof(float), kPlace), world);
      }
    }
  }
}

TEST(ExchangePlan, steps__take_each_element_of_the_output_once) {
  for_all([](const CollectiveParts& parts, const ExchangePlan& plan, std::uint32_t world) {
    for (Rank to = 0; to < world; ++to) {
      const Range output = parts.output(to);
      std::vector<int> taken(output.count, 0);
      for (Rank from = 0; from < world; ++from) {
        if (from == to || !plan.passes(from, to)) continue;
        const Range all = plan.target(from, to);
        for (std::uint32_t step = 0; step < plan.steps(); ++step) {
          const Range piece = plan.piece(all, step);
          ASSERT_EQ(piece.count, plan.piece(plan.source(from, to), step).count);
          ASSERT_EQ(plan.reached(all, step + 1) - plan.reached(all, step), piece.count);
          for (std::uint64_t i = piece.first; i < piece.first + piece.count; ++i) {
            ASSERT_GE(i, output.first);
            ++taken.at(i - output.first);
          }
        }
      }
      const auto own = parts.own_copy(to);
      for (std::uint64_t i = 0; i < own.count; ++i) ++taken.at(own.to - output.first + i);
      const int wanted = plan.adds() ? static_cast<int>(world) - 1 : 1;
      EXPECT_EQ(std::count(taken.begin(), taken.end(), wanted), std::ssize(taken));
    }
  });
}

TEST(ExchangePlan, areas__lie_in_the_place_side_by_side) {
  for_all([](const CollectiveParts&, const ExchangePlan& plan, std::uint32_t world) {
    for (Rank from = 0; from < world; ++from) {
      std::uint64_t end = 0;
      for (Rank to = 0; to < world; ++to) {
        if (from == to || !plan.passes(from, to)) continue;
        EXPECT_TRUE(plan.shares() ? plan.offset(to) == 0 : plan.offset(to) >= end);
        for (std::uint32_t step = 0; step < plan.steps(); ++step) {
          const std::uint64_t bytes = plan.piece(plan.source(from, to), step).count * sizeof(float);
          EXPECT_LE(plan.offset(to) + bytes, kPlace);
          end = std::max(end, plan.offset(to) + bytes);
        }
      }
    }
  });
}

}  // namespace
}  // namespace tarpon::exchange_plan_test
