// The table of `tarpon allreduce`.
#include "tools/collective/result_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <sstream>

namespace tarpon::result_table_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(FlowsLine, flows__once_where_alike_else_by_rank) {
  EXPECT_EQ(flows_line({2, 2}, FlowsBy::option), "# Flows to each rank   : 2\n");
  EXPECT_EQ(flows_line({4, 1, 4}, FlowsBy::option),
            "# Flows to each rank   : 4 1 4, of ranks 0 to 2\n");
  EXPECT_EQ(flows_line({1}, FlowsBy::trial),
            "# Flows to each rank   : 1, by trial; messages below 1 MiB take 1\n");
  EXPECT_THAT(flows_line({1}, FlowsBy::no_trial), HasSubstr(": 1, without a trial: that takes 9"));
}

TEST(FlowsLine, choice__by_trial_where_one_can_have_ended) {
  constexpr std::uint64_t kMiB = 1 << 20;
  EXPECT_EQ(large_calls(4 * kMiB, 4, 20), 20u);
  EXPECT_EQ(large_calls(4 * kMiB - 4, 4, 20), 0u);
  EXPECT_EQ(choice_of_flows(0, 9), FlowsBy::trial);
  EXPECT_EQ(choice_of_flows(0, 8), FlowsBy::no_trial);
  EXPECT_EQ(choice_of_flows(2, 9), FlowsBy::option);
}

TEST(Table, p99__says_how_many_calls_it_needs) {
  EXPECT_THAT(columns_line(*parse_columns("in,p99"), 40),
              HasSubstr("needs 100 calls of a size, not 40"));
  EXPECT_EQ(columns_line(*parse_columns("in,p99"), 100), "");
  EXPECT_EQ(columns_line(*parse_columns("in,max"), 40), "");
}

TEST(Table, footer__says_where_nothing_was_checked) {
  EXPECT_THAT(table_footer(0, 1), HasSubstr("# Out of bounds values : 0 OK\n"));
  EXPECT_THAT(table_footer(2, 1), HasSubstr("# Out of bounds values : 2 FAILED\n"));
  EXPECT_THAT(table_footer(std::nullopt, 1), HasSubstr("# Out of bounds values : not checked\n"));
}

TEST(Table, row__words_at_the_places_of_nccl_tests) {
  Measurement in;
  in.size = 4096;
  in.count = 1024;
  in.time_us = {10};
  in.in_place = true;
  in.late = {1, 3};
  const auto words = [](const std::string& row) {
    std::istringstream text(row);
    return std::vector<std::string>{std::istream_iterator<std::string>(text), {}};
  };
  Measurement out = in;
  out.time_us = {20};
  const TableShape all = *parse_columns("in,p50,p99,max,lost,late");
  EXPECT_THAT(words(table_row(default_shape(Mode::exact), out, in, 4, true)),
              ElementsAre("4096", "1024", "float", "sum", "-1", "20.00", "0.205", "0.307", "0",
                          "10.00", "0.410", "0.614", "0", "20.00"));
  EXPECT_THAT(words(table_row(all, out, in, 4, true)),
              ElementsAre("4096", "1024", "float", "sum", "-1", "10.00", "0.410", "0.614", "0",
                          "10.00", "-", "20.00", "0.0000", "1,3"));
  const auto halted = words(table_row(all, out, std::nullopt, 4, true));
  EXPECT_THAT(std::vector(halted.begin() + 5, halted.end()),
              ElementsAre("-", "-", "-", "-", "20.00", "-", "20.00", "0.0000", "1,3"));
  EXPECT_THAT(table_header(all), HasSubstr("in-place"));
  EXPECT_THAT(table_header(all), HasSubstr("both"));
  const auto lone = words(table_row(default_shape(Mode::exact), std::nullopt, in, 4, false));
  EXPECT_EQ(lone.size(), 14u);
  EXPECT_EQ(lone[5], "-");
  EXPECT_EQ(lone[12], "N/A");
}

TEST(Table, row__not_applicable_where_no_call_is_in_place) {
  Measurement out;
  out.collective = Collective::send;
  out.time_us = {20};
  const std::string row = table_row(default_shape(Mode::exact), out, std::nullopt, 4, true);
  EXPECT_THAT(row, HasSubstr("N/A     N/A     N/A    N/A    20.00"));
}

TEST(Table, lines__fit_120_columns) {
  Measurement huge;
  huge.size = 1ull << 33;
  huge.count = 1ull << 31;
  huge.time_us = {123'456'789.123, 1.5e9};
  huge.wrong = 123'456'789;
  huge.lost_fraction = 1;
  for (Rank rank = 0; rank < 64; ++rank) huge.late.push_back(rank);
  for (const TableShape& shape : {default_shape(Mode::exact), default_shape(Mode::bounded),
                                  *parse_columns("in,p50,p99,max,lost,late")}) {
    std::istringstream lines(table_header(shape) + table_row(shape, huge, huge, 64, true));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
  }
}

TEST(Table, parse_columns__refuses_what_does_not_exist_or_fit) {
  EXPECT_THAT(parse_columns("in,p95").error().message, HasSubstr("\"p95\" is not one of out, in"));
  EXPECT_THAT(parse_columns("").error().message, HasSubstr("\"\" is not one of"));
  EXPECT_THAT(parse_columns("out,in,p50,p99,max").error().message, HasSubstr("columns of 120"));
}

}  // namespace
}  // namespace tarpon::result_table_test
