// `tarpon check` from outside.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/allreduce_run.h"

namespace tarpon::test::cli_check_test {
namespace {

using ::testing::HasSubstr;

TEST(CliCheck, matrix__all_pairs) {
  const ScratchDirectory scratch;
  const Ended ended = run(tool({"check", "--local-ranks", "3", "--probes", "5", "--integrity",
                                "keyed", "--json", scratch / "j"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_EQ(ended.error, "");
  EXPECT_EQ(count(ended.out, "  from 0 "), 5u) << ended.out;
  EXPECT_EQ(count(ended.out, "yes"), 6u) << ended.out;
  EXPECT_THAT(ended.out, HasSubstr("one other at a time, so rates do not add up"));
  EXPECT_THAT(ended.out, HasSubstr("# all 6 pairs work"));
  EXPECT_THAT(ended.out, HasSubstr("# secret: connections are TLS 1.3, packets carry tags"));
  const auto json = json_of(scratch / "j");
  EXPECT_EQ(json["config"]["probes"], 5);
  EXPECT_EQ(json["config"]["ranks"].size(), 3u);
  const auto pairs = json["results"];
  ASSERT_EQ(pairs.size(), 6u);
  for (const auto& pair : pairs) {
    EXPECT_TRUE(pair["reachable"].get<bool>());
    EXPECT_GT(pair["rtt_us"], 0.0);
    EXPECT_NE(pair["from"], pair["to"]);
  }
}

TEST(CliCheck, silent_rank__failing_pairs_and_their_cause) {
  const ScratchDirectory scratch;
  auto ranks = ranks_by_hand(3, free_meeting_point(), {"--probes", "5", "--json", scratch / "j"});
  for (Command& rank : ranks) rank.arguments[1] = "check";
  ranks[1].arguments.insert(ranks[1].arguments.end(), {"--inject-loss", "100%"});
  const auto ended = run_together(ranks);
  for (const Ended& one : ended) {
    EXPECT_EQ(one.exit_code, 1);
    EXPECT_EQ(one.error, "");
  }
  const std::string out = unwrapped(ended[0].out);
  EXPECT_EQ(count(out, "FAILING: "), 4u) << out;
  for (const char* other : {"0", "2"}) {
    EXPECT_THAT(out, ::testing::ContainsRegex(
                         fmt::format("FAILING: rank {} \\(.*\\) -> rank 1 \\(.*\\): nothing "
                                     "arrives: open UDP to rank 1 \\(port [0-9]+ in this run\\)",
                                     other)));
    EXPECT_THAT(out, ::testing::ContainsRegex(
                         fmt::format("FAILING: rank 1 \\(.*\\) -> rank {} .*: probes arrive and no "
                                     "reply comes back: UDP from rank {} to rank 1 is blocked",
                                     other, other)));
  }
  const nlohmann::json rows = json_of(scratch / "j")["results"];
  for (const auto& pair : rows) {
    EXPECT_EQ(pair["reachable"].get<bool>(), pair["from"] != 1 && pair["to"] != 1) << pair;
    EXPECT_EQ(pair["loss"], pair["to"] == 1 ? 1.0 : 0.0) << pair;
    for (const char* figure : {"flood_loss", "rate_gbps"}) {
      EXPECT_EQ(pair[figure].is_null(), !pair["reachable"].get<bool>()) << pair;
    }
  }
}

TEST(CliCheck, lossy_path__fails_with_its_figures) {
  const Ended ended =
      run(tool({"check", "--local-ranks", "2", "--probes", "100", "--inject-loss", "30%"}));
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(count(unwrapped(ended.out), "of 100 probes were lost: a congested or faulty link"), 2u)
      << ended.out;
}

TEST(CliCheck, more_ranks_than_one_communicator_has__end_with_one_line) {
  const char* const wanted =
      "65 ranks: it probes each pair of at most 64: start one rank on each host, whose link its "
      "ranks share";
  for (const auto& arguments :
       {std::vector<std::string>{"check", "--local-ranks", "65"},
        {"check", "--rank", "3", "--world-size", "65", "--rendezvous", "tcp://127.0.0.1:1"}}) {
    const Ended ended = run(tool(arguments));
    EXPECT_EQ(ended.exit_code, 2);
    EXPECT_EQ(ended.out, "");
    EXPECT_EQ(count(ended.error, "\n"), 1u) << ended.error;
    EXPECT_THAT(ended.error, HasSubstr(wanted));
  }
}

}  // namespace
}  // namespace tarpon::test::cli_check_test
