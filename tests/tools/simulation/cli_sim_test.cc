// `tarpon sim` from outside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/allreduce_run.h"

namespace tarpon::test::cli_sim_test {
namespace {

using ::testing::HasSubstr;

TEST(CliSim, seed__repeats) {
  const auto hash = [](const char* seed) {
    const Ended ended = run(tool({"sim", "--seed", seed}));
    EXPECT_EQ(ended.exit_code, 0) << ended.out << ended.error;
    const auto at = ended.out.find("trace hash: ");
    return at == std::string::npos ? "" : ended.out.substr(at);
  };
  EXPECT_EQ(hash("7").size(), std::string("trace hash: 0123456789abcdef\n").size());
  EXPECT_EQ(hash("7"), hash("7"));
  EXPECT_NE(hash("7"), hash("8"));
  const Ended many = run(tool({"sim", "--seed", "3", "--seeds", "20"}));
  EXPECT_EQ(many.exit_code, 0) << many.out;
  EXPECT_THAT(many.out, HasSubstr("\n20 seeds, 0 failed\n"));
  EXPECT_THAT(many.out, HasSubstr("seeds by fault: loss "));
}

TEST(CliSim, marks__fail_where_they_are_not_reached) {
  const Ended ended = run(tool({"sim", "--seeds", "4", "--faults", "loss", "--marks", "1"}));
  EXPECT_EQ(ended.exit_code, 1) << ended.out;
  EXPECT_THAT(ended.out, HasSubstr("\n4 seeds, 0 failed\n"));
  EXPECT_THAT(ended.out, HasSubstr("reached too rarely: "));
  EXPECT_THAT(ended.out, HasSubstr("seeds by fault: jam 0, "));
}

TEST(CliSim, jobs__change_no_result) {
  const auto said = [](const char* jobs) {
    return run(tool({"sim", "--seed", "5", "--seeds", "30", "--jobs", jobs})).out;
  };
  EXPECT_EQ(said("1"), said("3"));
}

TEST(CliSim, failures__have_a_file) {
  const ScratchDirectory scratch;
  const std::string file = scratch / "failed.txt";
  EXPECT_EQ(run(tool({"sim", "--seeds", "2", "--failures", file})).exit_code, 0);
  EXPECT_EQ(content_of(file), "");
  const Ended refused = run(tool({"sim", "--seeds", "2", "--failures", "/nowhere/x"}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.error, HasSubstr("--failures /nowhere/x: No such file"));
}

TEST(CliSim, events__a_line_for_what_became_of_each_packet) {
  const ScratchDirectory scratch;
  const Ended ended = run(
      tool({"sim", "--seed", "7", "--faults", "none", "--events", scratch.path() + "/events.csv"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.out << ended.error;
  EXPECT_THAT(ended.out, HasSubstr("faults: none"));
  const std::string text = content_of(scratch / "events.csv");
  EXPECT_EQ(text.find("time_ns,from,to,type,tag,operation,stage,slot,fate\n"), 0u);
  EXPECT_THAT(text, HasSubstr(",data,0,0,0,0,delivered\n"));
}

}  // namespace
}  // namespace tarpon::test::cli_sim_test
