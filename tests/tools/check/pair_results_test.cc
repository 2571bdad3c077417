// Texts of other ranks: joined where they fit together, else refused.
#include "tools/check/pair_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tarpon::pair_results_test {
namespace {

/// The text of rank `rank` of `world`. In each round it has sent 100 * rank + round probes, and has
/// heard one more.
std::string text_of(std::size_t rank, std::size_t world) {
  std::vector<RoundLog> rounds;
  for (std::size_t round = 1; round < world; ++round) {
    RoundLog log;
    log.pair.sent = static_cast<std::uint32_t>(100 * rank + round);
    log.pair.send_error = static_cast<int>(10 * rank + round);
    log.heard_full = log.pair.sent + 1;
    log.heard_flood = 1'000'000;
    log.flood_seconds = 0.1;
    rounds.push_back(log);
  }
  return encode(rounds);
}

TEST(PairResultsTest, pairs__join_the_prober_and_the_probed_of_the_same_round) {
  const auto pairs = joined_pairs({text_of(0, 3), text_of(1, 3), text_of(2, 3)}, 1000);
  ASSERT_TRUE(pairs) << pairs.error().message;
  ASSERT_EQ(pairs->size(), 6u);
  const PairProbe& last = pairs->back();  // round 2 of rank 2
  EXPECT_EQ(last.from, 2);
  EXPECT_EQ(last.to, 1);
  EXPECT_EQ(last.sent, 202u);
  EXPECT_EQ(last.arrived, 103u);
  EXPECT_EQ(last.reply_error, 11);  // rank 1 probes rank 2 in round 1
  EXPECT_DOUBLE_EQ(last.rate_gbps, 80.0);
}

void expect_refused(const std::string& text) {
  const auto pairs = joined_pairs({text_of(0, 2), text}, 1000);
  ASSERT_FALSE(pairs) << text;
  EXPECT_EQ(pairs.error().message, "a rank sent no valid probe results");
}

TEST(PairResultsTest, other_texts__are_refused) {
  expect_refused("");
  expect_refused("[]");
  expect_refused("[7]");
  expect_refused(text_of(1, 3));  // of two rounds
  expect_refused(std::string(1'000'000, '['));
  for (const char* name : {"sent", "heard_flood", "rtt_us", "send_error"}) {
    for (const nlohmann::json& value :
         {nlohmann::json(-1), nlohmann::json("1"), nlohmann::json()}) {
      auto rounds = nlohmann::json::parse(text_of(1, 2));
      rounds[0][name] = value;
      expect_refused(rounds.dump());
    }
    auto rounds = nlohmann::json::parse(text_of(1, 2));
    rounds[0].erase(name);
    expect_refused(rounds.dump());
  }
  auto rounds = nlohmann::json::parse(text_of(1, 2));
  rounds[0]["sent"] = std::uint64_t{1} << 32;
  expect_refused(rounds.dump());
}

TEST(PairResultsTest, slices__come_back_or_are_refused) {
  SliceCounts counts{};
  counts[10] = 5;
  const auto again = decode_slices(encode(counts));
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, counts);
  for (const char* text : {"", "[]", "[0,0,0,0,0,0,0,0,0,0,-1]", "{}"}) {
    EXPECT_FALSE(decode_slices(text)) << text;
  }
}

}  // namespace
}  // namespace tarpon::pair_results_test
