// Ranks that make different calls: which ones are blamed, and when the call ends.
#include "collectives/engine/call/mismatches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tarpon::mismatches_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Time kStart = Time{} + 1s;

OperationSignature of_count(std::uint64_t count) {
  OperationSignature signature;
  signature.count = count;
  return signature;
}

TEST(MismatchesTest, add__blames_the_ranks_that_differ_and_words_the_first_difference) {
  Mismatches mismatches(0, 4);
  EXPECT_FALSE(mismatches.any());
  EXPECT_EQ(mismatches.end_at(), kNever);
  mismatches.add(2, of_count(20), of_count(10));
  mismatches.add(1, of_count(30), of_count(10));
  EXPECT_TRUE(mismatches.any());
  EXPECT_THAT(mismatches.blamed(), ElementsAre(2, 1));
  EXPECT_EQ(mismatches.detail(), "rank 2 differs: count 20 instead of 10");
}

TEST(MismatchesTest, add__blames_this_rank_if_all_others_made_the_same_call) {
  Mismatches mismatches(3, 4);
  for (const Rank peer : {Rank{0}, Rank{1}, Rank{2}}) {
    mismatches.add(peer, of_count(20), of_count(10));
    EXPECT_EQ(mismatches.blamed().size(), peer < 2 ? peer + 1u : 1u);
  }
  EXPECT_THAT(mismatches.blamed(), ElementsAre(3));
  EXPECT_EQ(mismatches.detail(), "this rank differs from all others: count 10 instead of 20");
}

TEST(MismatchesTest, add__does_not_blame_this_rank_if_the_others_differ_or_are_one) {
  Mismatches mismatches(2, 3);
  mismatches.add(0, of_count(20), of_count(10));
  mismatches.add(1, of_count(30), of_count(10));
  EXPECT_THAT(mismatches.blamed(), ElementsAre(0, 1));
  Mismatches pair(1, 2);
  pair.add(0, of_count(20), of_count(10));
  EXPECT_THAT(pair.blamed(), ElementsAre(0));
}

TEST(MismatchesTest, add__knows_of_unknown_calls_only_that_they_differ) {
  Mismatches mismatches(2, 3);
  mismatches.add(0, std::nullopt, of_count(10));
  mismatches.add(1, std::nullopt, of_count(10));
  EXPECT_THAT(mismatches.blamed(), ElementsAre(0, 1));
  EXPECT_EQ(mismatches.detail(), "rank 0 differs: unknown operation");
}

TEST(MismatchesTest, add_ended__blames_no_rank_and_yields_to_a_mismatch_seen_here) {
  Mismatches mismatches(0, 4);
  mismatches.add_ended("rank 1 met another operation");
  EXPECT_TRUE(mismatches.any());
  EXPECT_THAT(mismatches.blamed(), IsEmpty());
  EXPECT_EQ(mismatches.detail(), "rank 1 met another operation");
  mismatches.add(2, of_count(20), of_count(10));
  mismatches.add_ended("rank 3 met another operation");
  EXPECT_THAT(mismatches.blamed(), ElementsAre(2));
  EXPECT_EQ(mismatches.detail(), "rank 2 differs: count 20 instead of 10");
}

TEST(MismatchesTest, collect__ends_the_call_after_50_ms_or_halfway_to_its_limit) {
  Mismatches mismatches(0, 4);
  mismatches.collect(kStart, kStart + 1ms);
  EXPECT_EQ(mismatches.end_at(), kNever) << "no mismatch yet";
  mismatches.add(2, of_count(20), of_count(10));
  mismatches.collect(kStart, kStart + 10s);
  EXPECT_EQ(mismatches.end_at(), kStart + 50ms);
  mismatches.collect(kStart + 40ms, kStart + 10s);
  EXPECT_EQ(mismatches.end_at(), kStart + 50ms) << "never later than before";
  mismatches.collect(kStart + 40ms, kStart + 44ms);
  EXPECT_EQ(mismatches.end_at(), kStart + 42ms);
}

}  // namespace
}  // namespace tarpon::mismatches_test
