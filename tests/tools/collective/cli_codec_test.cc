// --codec: what is coded, and what the report says of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/allreduce_run.h"

namespace tarpon::test::cli_codec_test {
namespace {

using ::testing::HasSubstr;

std::vector<nlohmann::json> results_of(const std::vector<std::string>& more,
                                       Ended* said = nullptr) {
  const ScratchDirectory scratch;
  std::vector<std::string> arguments{"-w", "1", "--mode", "bounded", "-J", scratch / "j"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Ended ended = run(local(3, arguments));
  expect_good(ended);
  if (said != nullptr) *said = ended;
  return json_of(scratch / "j")["results"];
}

const std::vector<std::string> kLossy{"-b",
                                      "1M",
                                      "-e",
                                      "1M",
                                      "-n",
                                      "3",
                                      "--bound",
                                      "50ms",
                                      "--without",
                                      "repair,scatter-repair",
                                      "--inject-loss",
                                      "5%"};

TEST(CliCodec, on__what_is_lost_costs_its_share_of_the_square) {
  std::vector<std::string> arguments = kLossy;
  arguments.insert(arguments.end(), {"--codec", "on"});
  Ended said;
  for (const auto& result : results_of(arguments, &said)) {
    EXPECT_EQ(result["coded"], 3);
    EXPECT_EQ(result["nwrong"], 0);
    EXPECT_GT(result["lost_fraction"], 0.0);
    EXPECT_GT(result["squared_error"], 0.0);
    // A rank without the processor until the bound loses more than 5 %: the error goes by the loss.
    EXPECT_LT(result["squared_error"], 2.0 * result["lost_fraction"].get<double>());
  }
  EXPECT_THAT(said.out, HasSubstr("; 3 of 3 coded; squared error "));
}

TEST(CliCodec, on__without_loss_rounding_is_all) {
  for (const auto& result :
       results_of({"-b", "1M", "-e", "1M", "-n", "3", "--bound", "5s", "--codec", "on"})) {
    EXPECT_EQ(result["coded"], 3);
    EXPECT_EQ(result["nwrong"], 0);
    EXPECT_EQ(result["lost_fraction"], 0.0);
    EXPECT_LT(result["squared_error"], 1e-12);
  }
}

TEST(CliCodec, off__as_it_says) {
  std::vector<std::string> arguments = kLossy;
  arguments.insert(arguments.end(), {"--codec", "off"});
  for (const auto& result : results_of(arguments)) {
    EXPECT_EQ(result["coded"], 0);
    EXPECT_EQ(result["nwrong"], 0);
    EXPECT_GT(result["squared_error"], 0.0);
  }
}

/// As soon as the ranks have agreed, over the mesh.
TEST(CliCodec, auto__turns_itself_on_by_loss_and_not_without) {
  const auto coded = [](const char* loss, const char* bound) {
    const auto results = results_of({"-b", "64K", "-e", "64K", "-n", "100", "--bound", bound,
                                     "--without", "repair,scatter-repair", "--inject-loss", loss});
    std::uint64_t calls = 0;
    for (const auto& result : results) {
      EXPECT_EQ(result["nwrong"], 0);
      calls += result["coded"].get<std::uint64_t>();
    }
    return calls;
  };
  EXPECT_GT(coded("20%", "3ms"), 0u);
  EXPECT_EQ(coded("0", "5s"), 0u);
}

TEST(CliCodec, on__a_file_job_is_checked_against_its_inputs) {
  const ScratchDirectory scratch;
  // No warm-up: the first call touches its memory. A short bound would cut that rank off.
  const Ended ended = run(tool({"allreduce",
                                "--local-ranks",
                                "4",
                                "--input",
                                std::string(TARPON_DEMO) + "/step100-rank{rank}.npy",
                                "--op",
                                "avg",
                                "-n",
                                "3",
                                "-w",
                                "0",
                                "--mode",
                                "bounded",
                                "--bound",
                                "400ms",
                                "--without",
                                "repair",
                                "--inject-loss",
                                "3%",
                                "--codec",
                                "on",
                                "-J",
                                scratch / "j"}));
  expect_good(ended);
  const auto result = json_of(scratch / "j")["results"][0];
  EXPECT_EQ(result["coded"], 3);
  EXPECT_EQ(result["nwrong"], 0);
  EXPECT_GT(result["squared_error"], 0.0);
  EXPECT_LT(result["squared_error"], 0.5);
}

}  // namespace
}  // namespace tarpon::test::cli_codec_test
