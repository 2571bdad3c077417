// --algorithm: what runs, on which ranks, and what the report says of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/allreduce_run.h"

namespace tarpon::test {
namespace {

using ::testing::HasSubstr;

TEST(CliAlgorithm, every_one__is_right_for_all_types_and_functions) {
  for (const char* algorithm : {"tar", "circulant", "one-shot", "ring", "recursive-doubling"}) {
    const ScratchDirectory scratch;
    const Ended ended =
        run(local(3, {"-b", "20000", "-e", "20000", "-d", "all", "-o", "all", "-n", "2", "-w", "1",
                      "--algorithm", algorithm, "-J", scratch / "j"}));
    expect_good(ended);
    const auto results = json_of(scratch / "j")["results"];
    EXPECT_GT(results.size(), 100u);
    for (const auto& result : results) {
      EXPECT_EQ(result["algorithm"], algorithm);
      EXPECT_EQ(result["nwrong"], 0);
    }
  }
}

TEST(CliAlgorithm, every_one__on_either_datapath_and_any_number_of_ranks) {
  for (const char* algorithm : {"circulant", "one-shot", "ring", "recursive-doubling"}) {
    for (const int ranks : {1, 2, 7}) {
      const Ended ended = run(local(
          ranks, {"-b", "1", "-e", "256K", "-f", "64", "-n", "3", "-w", "1", "--algorithm",
                  algorithm, "--datapath", ranks == 7 ? "mmsg" : "auto", "--inject-loss", "1%"}));
      expect_good(ended);
      EXPECT_THAT(ended.out, HasSubstr(std::string("exact by ") + algorithm));
    }
  }
}

TEST(CliAlgorithm, bounded__is_refused) {
  const Ended ended = run(local(2, {"--algorithm", "circulant", "--mode", "bounded"}));
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.error,
              HasSubstr("--algorithm circulant is of exact calls: leave out --mode bounded"));
}

TEST(CliAlgorithm, unknown__is_refused_with_the_choices) {
  const Ended ended = run(local(2, {"--algorithm", "tree"}));
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.error, HasSubstr("tar, circulant, one-shot, ring"));
}

}  // namespace
}  // namespace tarpon::test
