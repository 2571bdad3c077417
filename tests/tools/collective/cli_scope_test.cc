// The * of options in the help, held to what ranks compare when they meet: a job in which rank 1
// alone has such an option is refused, and one in which it has any other option runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/child_program.h"

namespace tarpon::test::cli_scope_test {
namespace {

using ::testing::HasSubstr;

using Samples = std::map<std::string, std::vector<std::string>>;

/// Of each option that ranks compare, a value other than its default.
const Samples& compared() {
  static const Samples samples{{"--deadline", {"19s"}},
                               {"--timeout", {"19"}},
                               {"--integrity", {"crc32c"}},
                               {"--silent-after", {"200ms"}},
                               {"--dead-after", {"6s"}},
                               {"--op", {"avg"}},
                               {"--mode", {"exact"}},
                               {"--bound", {"1s"}},
                               {"--loss-target", {"1%"}},
                               {"--algorithm", {"circulant"}},
                               {"--group-size", {"2"}},
                               {"--late-rank", {"1"}},
                               {"--shares", {"1,2"}},
                               {"--link-speeds", {"1,2"}},
                               {"--order", {"fixed"}},
                               {"--missing", {"local"}},
                               {"--multicast", {}},
                               {"--hosts", {"off"}},
                               {"--minbytes", {"512"}},
                               {"--maxbytes", {"2K"}},
                               {"--stepbytes", {"2M"}},
                               {"--stepfactor", {"2"}},
                               {"--iters", {"3"}},
                               {"--warmup_iters", {"1"}},
                               {"--check", {"0"}},
                               {"--run_cycles", {"2"}},
                               {"--datatype", {"double"}},
                               {"--skip-above", {"6%"}},
                               {"--halt-above", {"60%"}},
                               {"--loss-budget", {"5:1%:2%"}},
                               {"--profile", {"optireduce"}},
                               {"--inflow", {"incast"}},
                               {"--sending", {"timely"}},
                               {"--rescale", {"none"}},
                               {"--codec", {"off"}},
                               {"--without", {"repair"}}};
  return samples;
}

/// Compared by other means: the world size is in the greeting itself, the secret proves itself, and
/// files have no place in a benchmark.
const std::set<std::string> kOtherwise{"--world-size", "--secret-file", "--input"};

/// Of each option that one rank may have alone.
Samples alone(const ScratchDirectory& scratch) {
  return {{"--flows", {"2"}},
          {"--lanes", {"2"}},
          {"--gso-segments", {"1"}},
          {"--retain", {"1M"}},
          {"--max-rate", {"1gbit"}},
          {"--inject-loss", {"1%"}},
          {"--inject-duplicate", {"1%"}},
          {"--inject-reorder", {"1%"}},
          {"--inject-corrupt", {"1%"}},
          {"--inject-late", {"1=1ms"}},
          {"--seed", {"5"}},
          {"--columns", {"in"}},
          {"--json", {scratch / "out"}},
          {"--flight", {scratch / "f"}},
          {"--busy-poll", {}},
          {"--datapath", {"mmsg"}},
          {"--interface", {"lo"}},
          {"--ports", {"24360-24460"}},
          {"--rendezvous-timeout", {"20s"}}};
}

/// What places a rank or makes its network, and what needs files.
const std::set<std::string> kNotTried{
    "--local-ranks", "--rank",       "--rendezvous",     "--net",        "--mtu",        "--rate",
    "--per-host",    "--rate-of",    "--uplink",         "--loss",       "--burst-loss", "--police",
    "--police-of",   "--flow-limit", "--tcp-congestion", "--background", "--output"};

bool same_on_all(const std::string& text) {
  return text.ends_with(" *");
}

/// Two ranks, of which the second one has the option.
std::vector<Ended> run_with(const std::string& option, const std::vector<std::string>& values) {
  const ScratchDirectory scratch;
  const bool exact = option == "--algorithm" || option == "--group-size" || option == "--late-rank";
  std::vector<std::string> both{"-b", "1K", "-e", "1K", "-n", "2", "-w", "0"};
  both.insert(both.end(), {"--mode", exact ? "exact" : "bounded"});
  if (option == "--late-rank") both.insert(both.end(), {"--algorithm", "late-rank"});
  if (option == "--group-size") both.insert(both.end(), {"--algorithm", "2d-tar"});
  auto commands = ranks_by_hand(2, "file://" + scratch / "meet", both);
  auto& words = commands[1].arguments;
  // Options that are given already change their value in place.
  const std::map<std::string, std::string> known{
      {"--minbytes", "-b"},     {"--maxbytes", "-e"}, {"--iters", "-n"},
      {"--warmup_iters", "-w"}, {"--mode", "--mode"}, {"--interface", "--interface"}};
  const auto short_name = known.find(option);
  const auto given = short_name == known.end()
                         ? words.end()
                         : std::find(words.begin(), words.end(), short_name->second);
  if (given != words.end()) {
    *(given + 1) = values[0];
  } else {
    words.push_back(option);
    words.insert(words.end(), values.begin(), values.end());
  }
  return run_together(commands);
}

TEST(CliScope, help__has_a_sample_for_each_option_and_says_the_same) {
  const ScratchDirectory scratch;
  const Samples free = alone(scratch);
  const auto options = options_in_help({"allreduce"});
  ASSERT_GT(options.size(), 50u);
  for (const auto& [option, text] : options) {
    const bool agreed = compared().contains(option) || kOtherwise.contains(option);
    EXPECT_TRUE(agreed || free.contains(option) || kNotTried.contains(option)) << option;
    EXPECT_EQ(same_on_all(text), agreed) << option << ": " << text;
  }
}

TEST(CliScope, starred__is_refused_where_one_differs) {
  for (const auto& [option, values] : compared()) {
    const auto ended = run_with(option, values);
    for (const Ended& rank : ended) {
      EXPECT_GT(rank.exit_code, 0) << option << ": " << rank.out;
      EXPECT_THAT(rank.error, HasSubstr("rank 1")) << option;
      EXPECT_THAT(rank.error, HasSubstr("rank 0")) << option;
    }
  }
}

TEST(CliScope, check__compares_what_allreduce_does_and_the_probes) {
  for (const auto& [option, text] : options_in_help({"check"})) {
    const bool agreed =
        compared().contains(option) || kOtherwise.contains(option) || option == "--probes";
    EXPECT_EQ(same_on_all(text), agreed) << option << ": " << text;
  }
  const ScratchDirectory scratch;
  auto commands = ranks_by_hand(2, "file://" + scratch / "meet", {});
  for (Command& command : commands) command.arguments[1] = "check";
  commands[1].arguments.insert(commands[1].arguments.end(), {"--probes", "3"});
  for (const Ended& rank : run_together(commands)) {
    EXPECT_THAT(rank.error, HasSubstr("probes=3")) << rank.out;
  }
}

TEST(CliScope, others__may_differ) {
  const ScratchDirectory scratch;
  for (const auto& [option, values] : alone(scratch)) {
    for (const Ended& rank : run_with(option, values)) {
      EXPECT_EQ(rank.exit_code, 0) << option << ": " << rank.error;
    }
  }
}

}  // namespace
}  // namespace tarpon::test::cli_scope_test
