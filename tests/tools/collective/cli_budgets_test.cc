// tarpon allreduce: loss budgets, rescaling, NaN in an input, and what the report says of each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/support/child_program.h"
#include "tools/collective/npy.h"

namespace tarpon::test::cli_budgets_test {
namespace {

using ::testing::HasSubstr;

/// A bounded benchmark that loses a tenth of its packets for good, with `more` options.
Ended lossy(const ScratchDirectory& scratch, const std::vector<std::string>& more) {
  Command command = tool({"allreduce",
                          "--local-ranks",
                          "3",
                          "-b",
                          "512K",
                          "-e",
                          "512K",
                          "-n",
                          "4",
                          "-w",
                          "1",
                          "--mode",
                          "bounded",
                          "--bound",
                          "100ms",
                          "--inject-loss",
                          "10%",
                          "--without",
                          "scatter-repair",
                          "--json",
                          scratch / "out.json"});
  command.arguments.insert(command.arguments.end(), more.begin(), more.end());
  return run(command);
}

nlohmann::json results_in(const ScratchDirectory& scratch) {
  return nlohmann::json::parse(content_of(scratch / "out.json")).at("results");
}

TEST(CliBudgets, skip_above__counts_skipped_steps) {
  const ScratchDirectory scratch;
  const Ended ended = lossy(scratch, {"--skip-above", "0%", "--halt-above", "100%"});
  EXPECT_EQ(ended.exit_code, 0) << ended.error << ended.out;
  EXPECT_THAT(ended.out, HasSubstr("skipped, 0 halted"));
  for (const nlohmann::json& result : results_in(scratch)) {
    EXPECT_EQ(result.at("verdicts").at("skip"), 5) << "4 calls and one of the warm-up";
    EXPECT_EQ(result.at("verdicts").at("halt"), 0);
    EXPECT_EQ(result.at("nwrong"), 0);
  }
}

TEST(CliBudgets, halt_above__ends_the_run) {
  const ScratchDirectory scratch;
  const Ended ended = lossy(scratch, {"--halt-above", "0%"});
  EXPECT_EQ(ended.exit_code, 3) << ended.error;
  EXPECT_THAT(lines_of(ended.error), testing::Contains(HasSubstr(": halted at step 2: ")));
  const nlohmann::json results = results_in(scratch);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].at("verdicts").at("skip"), 2) << "the third in a row halts";
  EXPECT_EQ(results[0].at("verdicts").at("halt"), 1);
}

TEST(CliBudgets, loss_budget__holds_from_its_step_on) {
  const ScratchDirectory scratch;
  const Ended ended = lossy(scratch, {"--loss-budget", "6:0%:0%", "--loss-budget", "0:100%:100%"});
  EXPECT_EQ(ended.exit_code, 3) << ended.error;
  EXPECT_THAT(ended.error, HasSubstr("halted at step 8: "));
  const nlohmann::json results = results_in(scratch);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].at("verdicts").at("apply"), 5);
  EXPECT_EQ(results[1].at("verdicts").at("apply"), 1);
  EXPECT_EQ(results[1].at("verdicts").at("skip"), 2);
  EXPECT_EQ(results[1].at("verdicts").at("halt"), 1);
}

TEST(CliBudgets, budgets__that_make_no_sense_are_refused_in_one_line) {
  const std::vector<std::string> job{"allreduce", "--local-ranks", "2", "--mode", "bounded"};
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong{
      {{"--loss-budget", "1%:2%"}, "has no three parts: write STEP:SKIP:HALT"},
      {{"--loss-budget", "x:1%:2%"}, "begins with no step"},
      {{"--loss-budget", "-1:1%:2%"}, "begins with no step"},
      {{"--loss-budget", ":1%:2%"}, "begins with no step"},
      {{"--loss-budget", "5:1:2%"}, "skips by no share"},
      {{"--loss-budget", "5:1%:200%"}, "halts by no share"},
      {{"--loss-budget", "5:2%:1%"}, "skips only above 2%: skip first"},
      {{"--skip-above", "30%", "--halt-above", "20%"}, "skips only above 30%"},
      {{"--loss-budget", "5:1%:2%", "--loss-budget", "5:1%:3%"}, "two loss budgets from step 5"},
      {{"--skip-above", "1"}, "has no unit"},
      {{"--halt-above", "-1%"}, "outside 0% to 100%"},
      {{"--skip-above", "1%", "--mode", "exact"}, "a loss budget needs --mode bounded"},
      {{"--rescale", "twice"}, "\"twice\" is not one of count, none"},
  };
  for (const auto& [options, message] : wrong) {
    Command command = tool(job);
    if (options.back() == "exact") command.arguments.resize(command.arguments.size() - 2);
    command.arguments.insert(command.arguments.end(), options.begin(), options.end());
    const Ended ended = run(command);
    EXPECT_EQ(ended.exit_code, 2) << options.back();
    EXPECT_THAT(ended.error, HasSubstr(message));
    EXPECT_EQ(lines_of(ended.error).size(), 1u) << ended.error;
  }
}

TEST(CliBudgets, json__says_what_bounded_the_calls_and_how_replicas_differ) {
  const ScratchDirectory scratch;
  int diverged = 0;
  for (const std::string rescale : {"count", "none"}) {
    const Ended ended = lossy(scratch, {"--without", "repair", "--rescale", rescale});
    EXPECT_EQ(ended.exit_code, 0) << ended.error << ended.out;
    for (const nlohmann::json& result : results_in(scratch)) {
      EXPECT_EQ(result.at("bound_us"), 100'000);
      EXPECT_EQ(result.at("bound_rule"), "100ms");
      EXPECT_GT(result.at("closed_early").get<int>() + result.at("closed_by_bound").get<int>(), 0)
          << "a tenth is lost, and nothing asked for";
      EXPECT_EQ(result.at("nwrong"), 0) << rescale;
      // On a busy machine a rank may come so late that no two results can be compared.
      diverged += result.at("divergence").at("differing_share") > 0 &&
                  result.at("divergence").at("max_relative") > 0;
      EXPECT_EQ(result.at("verdicts").at("apply"), 0) << "nobody asked";
    }
  }
  EXPECT_GT(diverged, 0) << "a tenth of stage 2 is lost";
}

TEST(CliBudgets, json__exact_calls_have_no_bound) {
  const ScratchDirectory scratch;
  const Ended ended = run(tool({"allreduce", "--local-ranks", "2", "-b", "4K", "-e", "4K", "-n",
                                "2", "--json", scratch / "out.json"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  for (const nlohmann::json& result : results_in(scratch)) {
    EXPECT_TRUE(result.at("bound_us").is_null());
    EXPECT_TRUE(result.at("bound_rule").is_null());
    EXPECT_TRUE(result.at("divergence").is_null());
  }
}

TEST(CliBudgets, nonfinite__the_result_is_nan_and_the_step_skipped) {
  const ScratchDirectory scratch;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<float> values(1000, 1.0f);
    if (rank == 1) values[500] = std::numeric_limits<float>::infinity();
    auto file = write_npy(scratch / ("in" + std::to_string(rank) + ".npy"), NpyType::float32,
                          {values.size()}, std::as_bytes(std::span(values)));
    ASSERT_TRUE(file && file->commit());
  }
  const Ended ended =
      run(tool({"allreduce", "--local-ranks", "2", "--input", scratch / "in{rank}.npy", "--output",
                scratch / "out{rank}.npy", "--mode", "bounded", "--bound", "1s", "--skip-above",
                "1%", "--json", scratch / "out.json"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error << ended.out;
  EXPECT_THAT(unwrapped(ended.out),
              HasSubstr("the whole result is NaN: NaN or infinity in the input of rank 1"));
  const nlohmann::json result = results_in(scratch).at(0);
  EXPECT_EQ(result.at("nonfinite_ranks"), std::vector<int>{1});
  EXPECT_EQ(result.at("verdicts").at("skip"), 1);
  EXPECT_EQ(result.at("divergence").at("differing_share"), 0);
  for (int rank = 0; rank < 2; ++rank) {
    const auto out = read_npy(scratch / ("out" + std::to_string(rank) + ".npy"));
    ASSERT_TRUE(out) << out.error().message;
    const auto* const values = reinterpret_cast<const float*>(out->data.data());
    for (std::size_t i = 0; i < 1000; ++i) ASSERT_TRUE(std::isnan(values[i])) << i;
  }
}

}  // namespace
}  // namespace tarpon::test::cli_budgets_test
