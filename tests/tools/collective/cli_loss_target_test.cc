// --loss-target: which values it takes, and what the report says of bound, target and loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/allreduce_run.h"

namespace tarpon::test::cli_loss_target_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Said {
  std::string out;
  nlohmann::json results;
};

/// A good run of three ranks on `size`.
Said run_with(std::vector<std::string> more, const std::string& size = "256K") {
  const ScratchDirectory scratch;
  more.insert(more.end(), {"-b", size, "-e", size, "-J", scratch / "j"});
  const bool counted = std::find(more.begin(), more.end(), "-n") != more.end();
  if (!counted) more.insert(more.end(), {"-n", "3"});
  const Ended ended = run(local(3, more));
  expect_good(ended);
  return {ended.out, json_of(scratch / "j")["results"]};
}

TEST(CliLossTarget, given__is_the_target_of_the_learnt_bound) {
  const Said said = run_with({"--mode", "bounded", "--loss-target", "2%", "-w", "10"});
  EXPECT_EQ(count(said.out, "\n# bounded: bound "), 1u) << said.out;
  EXPECT_THAT(said.out, ContainsRegex("# bounded: bound [^\n]*, target 2 %, (nothing )?lost"));
  ASSERT_EQ(said.results.size(), 2u);
  for (const auto& result : said.results) {
    EXPECT_EQ(result["loss_target"], 0.02);
    EXPECT_EQ(result["bound_rule"], "learnt");
    EXPECT_GE(result["bound_max_us"], result["bound_us"]);
    EXPECT_EQ(result["coded"], 0) << "the loss decides, not the target";
  }
}

TEST(CliLossTarget, with_bound__the_bound_is_learnt_up_to_it) {
  const Said said =
      run_with({"--mode", "bounded", "--loss-target", "0.2%", "--bound", "3s", "-w", "1"});
  EXPECT_THAT(said.out, HasSubstr(", target 0.2 %"));
  for (const auto& result : said.results) {
    EXPECT_EQ(result["bound_rule"], "learnt, at most 3s");
    EXPECT_LE(result["bound_max_us"], 3e6);
  }
}

TEST(CliLossTarget, default__a_thousandth) {
  const Said said = run_with({"--mode", "bounded", "-w", "1"});
  EXPECT_THAT(said.out, HasSubstr(", target 0.1 %"));
  EXPECT_EQ(said.results[0]["loss_target"], 0.001);
}

TEST(CliLossTarget, without__a_given_or_published_bound_has_no_target) {
  for (const std::vector<std::string>& bound :
       {std::vector<std::string>{"--bound", "5s", "-w", "1"},
        {"--profile", "optireduce", "-w", "21"}}) {
    std::vector<std::string> more{"--mode", "bounded"};
    more.insert(more.end(), bound.begin(), bound.end());
    const Said said = run_with(more);
    EXPECT_THAT(said.out, HasSubstr("# bounded: bound "));
    EXPECT_THAT(said.out, Not(HasSubstr(", target "))) << said.out;
    for (const auto& result : said.results) EXPECT_TRUE(result["loss_target"].is_null());
  }
}

/// The sum of a result's causes, all of which add up to the mean of lost_all.
double expect_causes_add_up(const nlohmann::json& result) {
  double sum = 0;
  for (const auto& cause : result["causes"]) sum += cause.get<double>();
  double lost = 0;
  for (const auto& of_iteration : result["lost_all"]) lost += of_iteration.get<double>();
  EXPECT_GT(lost, 0.0);
  EXPECT_NEAR(sum, lost / static_cast<double>(result["lost_all"].size()), 1e-9);
  return sum;
}

TEST(CliLossTarget, causes__of_lost_packets) {
  // Enough packets that each stage of each call loses some.
  const Said said = run_with({"--mode", "bounded", "--bound", "1s", "--without",
                              "repair,scatter-repair", "--inject-loss", "20%", "-w", "1"},
                             "4M");
  EXPECT_THAT(said.out, ContainsRegex("# bounded: bound 1.0 s, lost [0-9.]+ %: [^\n]* at owner"));
  for (const auto& result : said.results) {
    EXPECT_GT(result["causes"]["network"], 0.0);
    EXPECT_GT(result["causes"]["at_owner"], 0.0);
    const double sum = expect_causes_add_up(result);
    EXPECT_GT(result["mean_loss"], 0.0);
    // Without silent ranks and late ones' results, which a busy machine may have.
    EXPECT_LE(result["mean_loss"], sum + 1e-9);
  }
}

TEST(CliLossTarget, causes__of_a_bound_too_short) {
  const Said said = run_with({"--mode", "bounded", "--bound", "100us", "-w", "1"});
  for (const auto& result : said.results) expect_causes_add_up(result);
}

TEST(CliLossTarget, late_rank__is_waited_for) {
  const Said said =
      run_with({"--mode", "bounded", "--inject-late", "2=10ms", "-w", "60", "-n", "20"});
  for (const auto& result : said.results) {
    EXPECT_LE(result["mean_loss"], 0.003);
    EXPECT_LE(result["causes"]["late_ranks"], 0.003);
  }
}

TEST(CliLossTarget, exact_mode__prints_no_bound_and_no_loss) {
  const Said said = run_with({"-w", "1"});
  EXPECT_THAT(said.out, Not(HasSubstr("# bounded")));
  for (const auto& result : said.results) {
    for (const char* name : {"bound_us", "bound_max_us", "loss_target", "mean_loss", "causes"}) {
      ASSERT_TRUE(result.contains(name)) << name;
      EXPECT_TRUE(result[name].is_null()) << name;
    }
  }
}

TEST(CliLossTarget, wrong__one_line_with_the_value_and_the_remedy) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"0"}, "--loss-target 0%: give a share above 0% and below 100%, such as 0.1%"},
      {{"0%"}, "calls that may lose nothing need --mode exact"},
      {{"100%"}, "--loss-target 100%: give a share above 0% and below 100%"},
      {{"101%"}, "--loss-target: \"101%\" is outside 0% to 100%"},
      {{"-1%"}, "--loss-target: \"-1%\" is outside 0% to 100%"},
      {{"0.001"}, "--loss-target: \"0.001\" has no unit"},
      {{"1%", "--bound", "optireduce"}, "--loss-target and --bound optireduce: leave one out"},
      {{"1%", "--mode", "exact"}, "--loss-target needs --mode bounded"},
  };
  for (const auto& [options, message] : wrong) {
    std::vector<std::string> arguments{"--loss-target"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    if (options.back() != "exact") arguments.insert(arguments.end(), {"--mode", "bounded"});
    const Ended ended = run(local(2, arguments));
    EXPECT_EQ(ended.exit_code, 2) << message;
    EXPECT_EQ(ended.out, "");
    EXPECT_THAT(ended.error, HasSubstr(message));
    EXPECT_EQ(lines_of(ended.error).size(), 1u) << ended.error;
  }
}

}  // namespace
}  // namespace tarpon::test::cli_loss_target_test
