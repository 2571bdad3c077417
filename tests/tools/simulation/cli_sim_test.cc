// `tarpon-sim seeds` from outside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/allreduce_run.h"

namespace tarpon::test::cli_sim_test {
namespace {

using ::testing::HasSubstr;

TEST(CliSim, seed__repeats) {
  const auto hash = [](const char* seed) {
    const Ended ended = run(simulator({"seeds", "--seed", seed}));
    EXPECT_EQ(ended.exit_code, 0) << ended.out << ended.error;
    const auto at = ended.out.find("trace hash: ");
    return at == std::string::npos ? "" : ended.out.substr(at);
  };
  EXPECT_EQ(hash("7").size(), std::string("trace hash: 0123456789abcdef\n").size());
  EXPECT_EQ(hash("7"), hash("7"));
  EXPECT_NE(hash("7"), hash("8"));
  const Ended many = run(simulator({"seeds", "--seed", "3", "--seeds", "20"}));
  EXPECT_EQ(many.exit_code, 0) << many.out;
  EXPECT_THAT(many.out, HasSubstr("\n20 seeds, 0 failed\n"));
  EXPECT_THAT(many.out, HasSubstr("seeds by fault: loss "));
}

TEST(CliSim, marks__fail_where_they_are_not_reached) {
  const Ended ended = run(simulator({"seeds", "--seeds", "4", "--faults", "loss", "--marks", "1"}));
  EXPECT_EQ(ended.exit_code, 1) << ended.out;
  EXPECT_THAT(ended.out, HasSubstr("\n4 seeds, 0 failed\n"));
  EXPECT_THAT(ended.out, HasSubstr("reached too rarely: "));
  EXPECT_THAT(ended.out, HasSubstr("seeds by fault: jam 0, "));
}

TEST(CliSim, jobs__change_no_result) {
  const auto said = [](const char* jobs) {
    return run(simulator({"seeds", "--seed", "5", "--seeds", "30", "--jobs", jobs})).out;
  };
  EXPECT_EQ(said("1"), said("3"));
}

TEST(CliSim, failures__have_a_file) {
  const ScratchDirectory scratch;
  const std::string file = scratch / "failed.txt";
  EXPECT_EQ(run(simulator({"seeds", "--seeds", "2", "--failures", file})).exit_code, 0);
  EXPECT_EQ(content_of(file), "");
  const Ended refused = run(simulator({"seeds", "--seeds", "2", "--failures", "/nowhere/x"}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.error, HasSubstr("--failures /nowhere/x: No such file"));
}

TEST(CliSim, events__a_line_for_what_became_of_each_packet) {
  const ScratchDirectory scratch;
  const Ended ended = run(simulator(
      {"seeds", "--seed", "7", "--faults", "none", "--events", scratch.path() + "/events.csv"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.out << ended.error;
  EXPECT_THAT(ended.out, HasSubstr("faults: none"));
  const std::string text = content_of(scratch / "events.csv");
  EXPECT_EQ(text.find("time_ns,from,to,type,tag,operation,stage,slot,fate\n"), 0u);
  EXPECT_THAT(text, HasSubstr(",data,0,0,0,0,delivered\n"));
}

TEST(CliSim, mistakes__one_line_that_names_the_option) {
  struct Mistake {
    std::vector<std::string> arguments;
    std::string named;
    int exit_code = 2;
  };
  const std::vector<Mistake> mistakes = {
      {{}, "a command is missing: use seeds, scale or help"},
      {{"seeds"}, "give --seed N"},
      {{"seeds", "--seed", "4", "scale"}, "scale"},
      {{"seeds", "--seed", "-1"}, "--seed: \"-1\" is not a whole number from 0 to"},
      {{"seeds", "--seeds", "-1"}, "--seeds: \"-1\" is not a whole number from 1 to 4294967295"},
      {{"seeds", "--seed", "abc"}, "--seed: \"abc\" is not a whole number from 0 to"},
      {{"seeds", "--seeds", "0"}, "--seeds"},
      {{"seeds", "--faults", "los"}, "\"los\""},
      {{"seeds", "--events", "/nonexistent/x"}, "/nonexistent/x"},
      {{"seeds", "--events", "x", "--seeds", "2"}, "--events is for one seed"},
      {{"scale", "--json", "/nope/scale.json"}, "/nope/scale.json", 1}};
  for (const Mistake& mistake : mistakes) {
    const Ended ended = run(simulator(mistake.arguments));
    EXPECT_EQ(ended.exit_code, mistake.exit_code) << mistake.named;
    EXPECT_EQ(lines_of(ended.error).size(), 1u) << ended.error;
    EXPECT_THAT(ended.error, HasSubstr(mistake.named));
  }
}

TEST(CliSim, full_disk__is_an_error) {
  const std::string program = simulator({}).arguments[0];
  const Ended ended =
      run({{"sh", "-c", "exec " + program + " seeds --seeds 2 >/dev/full"}, {}, "."});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_NE(ended.error, "");
}

TEST(CliSim, a_signal_ends_it_with_the_seeds_so_far) {
  Process job(simulator({"seeds", "--seeds", "4000000000", "--jobs", "1"}));
  std::this_thread::sleep_for(300ms);  // a few seeds
  ::kill(job.pid(), SIGINT);
  const Ended ended = job.wait();
  EXPECT_FALSE(ended.hung);
  EXPECT_THAT(ended.out,
              testing::ContainsRegex("ended by a signal: [0-9]+ of 4000000000 seeds, 0 failed"));
}

}  // namespace
}  // namespace tarpon::test::cli_sim_test
