#include "collectives/membership/facts.h"

#include <gtest/gtest.h>

namespace tarpon::facts_test {
namespace {

Fact fact(Rank rank, Standing standing, std::string evidence = "") {
  Fact result;
  result.rank = rank;
  result.standing = standing;
  result.evidence = std::move(evidence);
  return result;
}

TEST(Facts, learn__raises_a_row_and_never_lowers_it) {
  Facts facts(3);
  EXPECT_TRUE(facts.learn(fact(1, Standing::evicted, "too far behind")));
  EXPECT_FALSE(facts.learn(fact(1, Standing::left)));
  EXPECT_FALSE(facts.learn(fact(1, Standing::evicted, "again")));
  EXPECT_EQ(facts.of(1).evidence, "too far behind");
  EXPECT_TRUE(facts.learn(fact(1, Standing::dead, "reset")));
  EXPECT_EQ(facts.standing(1), Standing::dead);
}

TEST(Facts, learn__a_rank_that_left_stops_serving_and_not_the_reverse) {
  Facts facts(2);
  Fact leaves = fact(1, Standing::left);
  leaves.serves = true;
  leaves.next_numbers = {{7, 3}};
  EXPECT_TRUE(facts.learn(leaves));
  EXPECT_EQ(facts.of(1).next_numbers.size(), 1u);
  EXPECT_FALSE(facts.learn(leaves));
  EXPECT_TRUE(facts.learn(fact(1, Standing::left)));
  EXPECT_FALSE(facts.of(1).serves);
  EXPECT_TRUE(facts.of(1).next_numbers.empty());
  EXPECT_FALSE(facts.learn(leaves));
}

TEST(Facts, learn__ignores_ranks_out_of_range) {
  Facts facts(2);
  EXPECT_FALSE(facts.learn(fact(2, Standing::dead)));
}

TEST(Facts, learn__any_order_gives_the_same_rows) {
  const std::vector<Fact> news = {fact(1, Standing::left), fact(1, Standing::dead, "reset"),
                                  fact(2, Standing::evicted, "behind")};
  Facts forward(3), backward(3);
  for (auto it = news.begin(); it != news.end(); ++it) forward.learn(*it);
  for (auto it = news.rbegin(); it != news.rend(); ++it) backward.learn(*it);
  EXPECT_EQ(forward.text(), backward.text());
}

TEST(Facts, ranks__by_standing) {
  Facts facts(64);
  EXPECT_EQ(facts.live(), ~0ull);
  facts.learn(fact(63, Standing::dead, "reset"));
  facts.learn(fact(1, Standing::left));
  facts.learn(fact(2, Standing::evicted, "behind"));
  EXPECT_EQ(facts.live(), ~0ull & ~(1ull << 63) & ~6ull);
  EXPECT_EQ(facts.can_rejoin(), (~0ull >> 1) & ~2ull);
  EXPECT_EQ(facts.ranks(Standing::left), 2u);
}

TEST(Facts, decider__is_the_lowest_live_rank) {
  Facts facts(2);
  EXPECT_EQ(facts.decider(), 0);
  facts.learn(fact(0, Standing::left));
  EXPECT_EQ(facts.decider(), 1);
  facts.learn(fact(1, Standing::dead, "reset"));
  EXPECT_EQ(facts.decider(), 2);
}

TEST(Fact, text__says_how_it_is_known) {
  Fact one = fact(2, Standing::dead, "silent for 5 s");
  EXPECT_EQ(one.text(), "rank 2 is dead: silent for 5 s");
  one.without_majority = true;
  EXPECT_EQ(one.text(), "rank 2 is dead: silent for 5 s (without majority)");
  EXPECT_EQ(fact(1, Standing::left).text(), "rank 1 left the communicator");
}

TEST(Facts, text__of_some_ranks) {
  Facts facts(4);
  facts.learn(fact(1, Standing::left));
  facts.learn(fact(3, Standing::dead, "reset"));
  EXPECT_EQ(facts.text(), "rank 1 left the communicator; rank 3 is dead: reset");
  EXPECT_EQ(facts.text(0b1100), "rank 3 is dead: reset");
  EXPECT_EQ(facts.text(0b0101), "");
}

}  // namespace
}  // namespace tarpon::facts_test
