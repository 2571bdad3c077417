// --algorithm: what runs, on which ranks, and what the report says of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/allreduce_run.h"

namespace tarpon::test::cli_algorithm_test {
namespace {

using ::testing::HasSubstr;

/// Of local ranks: wrong usage, with `text` among the errors.
void expect_refused(int ranks, const std::vector<std::string>& arguments, const char* text) {
  const Ended ended = run(local(ranks, arguments));
  EXPECT_EQ(ended.exit_code, 2) << text;
  EXPECT_THAT(ended.error, HasSubstr(text));
}

TEST(CliAlgorithm, every_one__is_right_for_all_types_and_functions) {
  for (const char* algorithm :
       {"tar", "circulant", "one-shot", "ring", "recursive-doubling", "2d-tar"}) {
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
  for (const char* algorithm : {"circulant", "one-shot", "ring", "recursive-doubling", "2d-tar"}) {
    for (const int ranks : {1, 2, 7}) {
      const Ended ended = run(local(
          ranks, {"-b", "1", "-e", "256K", "-f", "64", "-n", "3", "-w", "1", "--algorithm",
                  algorithm, "--datapath", ranks == 7 ? "mmsg" : "auto", "--inject-loss", "1%"}));
      expect_good(ended);
      EXPECT_THAT(ended.out, HasSubstr(std::string("exact by ") + algorithm));
    }
  }
}

TEST(CliAlgorithm, late_rank__of_powers_of_two_any_rank_may_be_late) {
  for (const char* late : {"0", "3", "7"}) {
    const Ended ended =
        run(local(8, {"-b", "64", "-e", "128K", "-f", "2048", "-n", "3", "-w", "1", "-d", "all",
                      "--algorithm", "late-rank", "--late-rank", late}));
    expect_good(ended);
    EXPECT_THAT(unwrapped(ended.out),
                HasSubstr(std::string("exact by late-rank with rank ") + late + " late"));
  }
}

TEST(CliAlgorithm, inject_late__one_rank_makes_its_calls_late) {
  const ScratchDirectory scratch;
  const Ended ended = run(local(4, {"-b", "1K", "-e", "1K", "-n", "3", "-w", "0", "--inject-late",
                                    "2=20ms", "-J", scratch / "j"}));
  expect_good(ended);
  const auto times = json_of(scratch / "j")["results"][0]["time_us"];
  // Of the slowest rank of each call. The late rank may leave the barrier before it earlier than
  // others.
  EXPECT_GE(times["min"], 10000.0);
  for (const char* text : {"2", "x=1ms", "2=", "2=5", "4=1ms", "65536=1ms"}) {
    EXPECT_EQ(run(local(4, {"--inject-late", text})).exit_code, 2) << text;
  }
}

TEST(CliAlgorithm, late_rank__is_refused_where_it_makes_no_sense) {
  expect_refused(3, {"--algorithm", "late-rank"},
                 "needs 2, 4, 8, ... ranks, not 3: give --shares with 0");
  expect_refused(2, {"--algorithm", "late-rank", "--late-rank", "2"},
                 "--late-rank 2 of 2 ranks: ranks count from 0");
  expect_refused(2, {"--late-rank", "1"}, "--late-rank works with --algorithm late-rank only");
}

TEST(CliAlgorithm, bounded__is_refused) {
  expect_refused(2, {"--algorithm", "circulant", "--mode", "bounded"},
                 "--algorithm circulant works with exact calls only: leave out --mode bounded");
}

TEST(CliAlgorithm, two_levels__groups_by_option_else_by_the_largest_divisor) {
  const std::vector<std::string> small{"-b", "64K", "-e", "64K",         "-n",
                                       "2",  "-w",  "1",  "--algorithm", "2d-tar"};
  for (const auto& [given, used] :
       {std::pair{"", "2"}, std::pair{"1", "1"}, std::pair{"3", "3"}, std::pair{"6", "6"}}) {
    std::vector<std::string> arguments = small;
    if (*given != 0) arguments.insert(arguments.end(), {"--group-size", given});
    const Ended ended = run(local(6, arguments));
    expect_good(ended);
    EXPECT_THAT(ended.out, HasSubstr(std::string("exact by 2d-tar in groups of ") + used));
  }
}

TEST(CliAlgorithm, two_levels__send_as_many_bytes_as_tar) {
  for (const std::vector<std::string>& algorithm :
       {std::vector<std::string>{"2d-tar", "--group-size", "4"}, {"tar"}}) {
    const ScratchDirectory scratch;
    std::vector<std::string> arguments{"-b", "8M", "-e", "8M",          "-n",         "4",
                                       "-w", "1",  "-J", scratch / "j", "--algorithm"};
    arguments.insert(arguments.end(), algorithm.begin(), algorithm.end());
    expect_good(run(local(8, arguments)));
    const auto json = json_of(scratch / "j");
    const double slot = json["config"]["slot_bytes"];
    const double expected = 2.0 * 7 / 8 * (8 << 20) * (slot + 64) / slot;  // headers of 64 bytes
    for (const double sent : json["results"][0]["sent_bytes"]) {
      EXPECT_GT(sent, expected);
      EXPECT_LT(sent, 1.1 * expected);  // control packets, and what a busy machine sends again
    }
  }
}

TEST(CliAlgorithm, group_size__is_refused_where_it_makes_no_sense) {
  expect_refused(4, {"--algorithm", "2d-tar", "--group-size", "3"},
                 "--group-size 3 does not divide 4 ranks: give a divisor");
  expect_refused(4, {"--group-size", "2"}, "--group-size works with --algorithm 2d-tar only");
}

TEST(CliAlgorithm, shares__are_normalised_and_results_right) {
  const Ended ended = run(local(4, {"-b", "64", "-e", "1M", "-f", "128", "-n", "3", "-w", "1", "-d",
                                    "all", "--shares", "0,1,1.5,2.5"}));
  expect_good(ended);
  EXPECT_THAT(unwrapped(ended.out), HasSubstr("exact, shares 0.0000,0.2000,0.3000,0.5000"));
}

TEST(CliAlgorithm, shares__hold_in_bounded_mode) {
  const Ended ended =
      run(local(4, {"-b", "1M", "-e", "1M", "-n", "3", "-w", "1", "--mode", "bounded", "--bound",
                    "5s", "--silent-after", "5s", "--shares", "0,1,1.5,2.5"}));
  expect_good(ended);
  EXPECT_THAT(unwrapped(ended.out), AllOf(HasSubstr("bounded, shares 0.0000,0.2000,0.3000,0.5000"),
                                          HasSubstr("nothing lost")));
}

TEST(CliAlgorithm, shares__are_learnt_and_results_right) {
  const Ended ended = run(local(4, {"-b", "1M", "-e", "1M", "-n", "20", "-d", "int32", "--max-rate",
                                    "3gbit", "--shares", "auto"}));
  expect_good(ended);
  EXPECT_THAT(unwrapped(ended.out),
              AllOf(HasSubstr("exact, shares learnt"), HasSubstr("# Shares, learnt        : ")));
  expect_refused(2, {"--shares", "auto", "--mode", "bounded"}, "give a list of weights");
  expect_refused(2, {"--shares", "auto", "--algorithm", "ring"}, "leave out --algorithm ring");
}

TEST(CliAlgorithm, shares__are_refused_where_they_make_no_sense) {
  for (const char* list : {"", "1,", "1,x", "-1,2", "0,0", "nan,1", "1;1", "learnt"}) {
    SCOPED_TRACE(list);
    expect_refused(2, {"--shares", list}, "not a list of weights, one for each rank");
  }
  expect_refused(4, {"--shares", "1,1"}, "--shares has 2 for 4 ranks: give one for each rank");
  expect_refused(2, {"--shares", "1,2", "--mode", "bounded", "--codec", "on"},
                 "--shares changes no coded call");
  expect_refused(2, {"--shares", "1,2", "--algorithm", "ring"}, "leave out --algorithm ring");
}

TEST(CliAlgorithm, link_speeds__give_the_shares_and_results_right) {
  const Ended ended =
      run(local(4, {"-b", "1M", "-e", "1M", "-n", "2", "-w", "1", "--link-speeds", "0.75,1,1,1"}));
  expect_good(ended);
  EXPECT_THAT(unwrapped(ended.out), HasSubstr("exact, shares 0.1000,0.3000,0.3000,0.3000"));
}

TEST(CliAlgorithm, link_speeds__are_refused_where_they_make_no_sense) {
  for (const char* list : {"", "even", "1,", "0,1,1", "-1,2,3"}) {
    SCOPED_TRACE(list);
    expect_refused(3, {"--link-speeds", list}, "not a list of speeds above 0, one for each rank");
  }
  expect_refused(4, {"--link-speeds", "1,1,2"}, "--link-speeds has 3 for 4 ranks");
  expect_refused(3, {"--link-speeds", "1,1,2", "--shares", "1,2,3"}, "--shares");
  expect_refused(3, {"--link-speeds", "1,1,2", "--algorithm", "ring"},
                 "--link-speeds works with --algorithm tar only");
}

TEST(CliAlgorithm, unknown__is_refused_with_the_choices) {
  expect_refused(2, {"--algorithm", "tree"}, "tar, circulant, one-shot, ring");
}

}  // namespace
}  // namespace tarpon::test::cli_algorithm_test
