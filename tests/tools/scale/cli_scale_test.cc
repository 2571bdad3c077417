// `tarpon-sim scale` from outside: table, files, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/child_program.h"

namespace tarpon::test::cli_scale_test {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> small(std::vector<std::string> more) {
  std::vector<std::string> all = {"scale", "--ranks",      "4..12", "--bytes",
                                  "1M",    "--operations", "5"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(CliScale, table_json_and_svg) {
  const ScratchDirectory scratch;
  const Ended ended =
      run(simulator(small({"--json", scratch / "a.json", "--svg", scratch / "a.svg"})));
  ASSERT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(ended.out, HasSubstr("P99/P50"));
  const auto rows = rows_of(ended.out);
  ASSERT_EQ(rows.size(), 12u) << ended.out;  // 4, 8 and 12 ranks
  EXPECT_EQ(rows[0][1], "ring");
  EXPECT_EQ(rows[11][0], "12");
  EXPECT_EQ(rows[11][1], "bounded");

  const auto json = nlohmann::json::parse(content_of(scratch / "a.json"));
  ASSERT_EQ(json["results"].size(), 12u);
  for (const auto& cell : json["results"]) {
    EXPECT_EQ(cell["completions_ms"].size(), 5u);
    EXPECT_LE(cell["p50_ms"], cell["p99_ms"]);
  }
  EXPECT_EQ(json["config"]["network"]["loss"], 0.001);

  const std::string svg = content_of(scratch / "a.svg");
  EXPECT_TRUE(svg.starts_with("<svg xmlns="));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  for (const char* name : {"ring", "halving-doubling", "tar", "bounded"}) {
    EXPECT_THAT(svg, HasSubstr(">" + std::string(name) + "<"));
  }
  // Self-contained: the name space is the only address in it.
  EXPECT_EQ(svg.find("http", svg.find("http") + 1), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(CliScale, testbed__all_parameters_of_the_link) {
  const ScratchDirectory scratch;
  const Ended ended = run(simulator({"scale",
                                     "--ranks",
                                     "4",
                                     "--algorithms",
                                     "ring,bounded",
                                     "--bytes",
                                     "1M",
                                     "--operations",
                                     "5",
                                     "--rate",
                                     "2gbit",
                                     "--egress-rate",
                                     "none",
                                     "--queue",
                                     "400k",
                                     "--burst",
                                     "128k",
                                     "--delay",
                                     "20us",
                                     "--mtu",
                                     "1500",
                                     "--frame",
                                     "14",
                                     "--core",
                                     "9gbit",
                                     "--background",
                                     "500mbit",
                                     "--background-burst",
                                     "16K",
                                     "--loss",
                                     "0",
                                     "--tail",
                                     "1",
                                     "--stragglers",
                                     "1%",
                                     "--bound",
                                     "20ms",
                                     "--repair",
                                     "none",
                                     "--tail-loss",
                                     "rto",
                                     "--train",
                                     "1",
                                     "--threads",
                                     "1",
                                     "--json",
                                     scratch / "a.json"}));
  ASSERT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_EQ(rows_of(ended.out).size(), 2u);
  const auto network = nlohmann::json::parse(content_of(scratch / "a.json"))["config"]["network"];
  EXPECT_EQ(network["bits_per_second"], 2e9);
  EXPECT_EQ(network["egress_bits_per_second"], 0);
  EXPECT_EQ(network["queue_bytes"], 400 << 10);
  EXPECT_EQ(network["burst_bytes"], 128 << 10);
  EXPECT_EQ(network["core_bits_per_second"], 9e9);
  EXPECT_EQ(network["delay_us"], 20);
  EXPECT_EQ(network["frame_bytes"], 14);
  EXPECT_EQ(network["background_bits_per_second"], 5e8);
  EXPECT_EQ(network["background_burst_bytes"], 16 << 10);
}

/// As REPRODUCE.md has it.
TEST(CliScale, late__the_published_times_beside_the_modelled) {
  const ScratchDirectory scratch;
  const Ended ended = run(simulator({"scale",
                                     "--ranks",
                                     "4..16",
                                     "--algorithms",
                                     "ring,stragglar,late-rank,tar-shares",
                                     "--late",
                                     "100ms",
                                     "--loss",
                                     "0%",
                                     "--tail",
                                     "1",
                                     "--delay",
                                     "1us",
                                     "--queue",
                                     "0",
                                     "--bytes",
                                     "5M",
                                     "--operations",
                                     "3",
                                     "--svg",
                                     scratch / "a.svg",
                                     "--json",
                                     scratch / "a.json"}));
  ASSERT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(ended.out, HasSubstr("buckets  published"));
  const auto rows = rows_of(ended.out);
  ASSERT_EQ(rows.size(), 12u) << ended.out;
  const auto json = nlohmann::json::parse(content_of(scratch / "a.json"));
  const double bucket = json["config"]["bucket_ms"];
  EXPECT_EQ(json["config"]["network"]["late_ms"], 100);
  std::size_t stragglar = 1;
  for (const double published : {1.333, 1.286, 1.200}) {
    EXPECT_NEAR(json["results"][stragglar]["p50_ms"].get<double>() / bucket, published,
                0.05 * published);
    EXPECT_NEAR(std::stod(rows[stragglar][11]), published, 0.05 * published);
    EXPECT_NEAR(std::stod(rows[stragglar][12]), published, 0.001);
    EXPECT_EQ(rows[stragglar + 2][12], "-");
    stragglar += 4;
  }
  const std::string svg = content_of(scratch / "a.svg");
  EXPECT_THAT(svg, HasSubstr(">stragglar<"));
  EXPECT_THAT(svg, HasSubstr("arXiv 2505.23523"));
  EXPECT_EQ(svg.find("http", svg.find("http") + 1), std::string::npos);
}

TEST(CliScale, seed__repeats) {
  const std::string first = run(simulator(small({"--seed", "7"}))).out;
  EXPECT_EQ(first, run(simulator(small({"--seed", "7", "--threads", "1"}))).out);
  EXPECT_NE(first, run(simulator(small({"--seed", "8"}))).out);
}

TEST(CliScale, refused__one_line_that_names_it) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--ranks", "1..8"}, "--ranks"},
      {{"--ranks", "8..x"}, "\"x\" is no rank count"},
      {{"--ranks", "16..8"}, "--ranks"},
      {{"--rate", "10"}, "--rate"},
      {{"--core", "fast"}, "--core"},
      {{"--queue", "1k"}, "--queue 1024"},
      {{"--loss", "0.1"}, "--loss"},
      {{"--bound", "soon"}, "--bound"},
      {{"--delay", "2s"}, "--delay"},
      {{"--algorithms", "star"}, "--algorithms"},
      {{"--tail", "0.5"}, "--tail"},
      {{"--stragglers", "20%"}, "--stragglers"},
      {{"--train", "65"}, "--train"},
      {{"--mtu", "100"}, "--mtu"},
      {{"--operations", "2000000"}, "--operations"},
      {{"--operations", "-1"}, "\"-1\" is not a whole number from 0 to 1000000"},
      {{"--operations", "5x"}, "--operations"},
      {{"--operations", "1.5"}, "--operations"},
      {{"--ranks", "-8"}, "--ranks"},
      {{"--ranks", "2..5000"}, "--ranks"},
      {{"--ranks", ""}, "--ranks"},
      {{"--train", "-1"}, "--train"},
      {{"--threads", "-1"}, "--threads"},
      {{"--threads", "2000"}, "--threads"},
      {{"--seed", "-1"}, "--seed"},
      {{"--seed", "now"}, "--seed"},
      {{"--frame", "-1"}, "--frame"},
      {{"--mtu", "-1"}, "--mtu"},
      {{"--bytes", "-1"}, "--bytes"},
      {{"--tail", "nan"}, "--tail"},
      {{"--loss", "-1%"}, "--loss"},
      {{"--bound", "0"}, "--bound"},
      {{"--bound", "-5ms"}, "--bound"},
      {{"--egress-rate", "slow"}, "--egress-rate"},
      {{"--burst", "much"}, "--burst"},
      {{"--background", "1"}, "--background"},
      {{"--background", "1gbit", "--background-burst", "0"}, "--background-burst"},
      {{"--algorithms", ""}, "--algorithms"},
      {{"--delay-trace", "/nowhere.csv"}, "cannot read /nowhere.csv"},
      {{"--straggler-trace", "/dev/null"}, "/dev/null:1: \"\": expected the line"},
      {{"--repair", "scatter"}, "--repair"},
      {{"--loss-target", "1"}, "--loss-target \"1\" has no unit"},
      {{"--loss-target", "0"}, "--loss-target 0%"},
      {{"--loss-target", "1%", "--bound", "20ms"}, "leave it or --bound out"},
      {{"--tail-loss", "never"}, "--tail-loss"},
      {{"--late", "20"}, "--late \"20\" has no unit"},
      {{"--late", "20ms"}, "--late: bounded does not wait"},
      {{"--late", "2h", "--algorithms", "ring"}, "--late and --bound at most 1h"},
      {{"--ranks", "9", "--algorithms", "stragglar"}, "choose 2, 4, 8, ... 64"},
      {{"--ranks", "65", "--algorithms", "tar-shares"}, "choose 2, 3, ... 64"},
      {{"--bytes", "0"}, "--bytes"},
  };
  for (const auto& [arguments, named] : cases) {
    std::vector<std::string> all = {"scale"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Ended ended = run(simulator(all));
    EXPECT_EQ(ended.exit_code, 2) << named;
    EXPECT_EQ(lines_of(ended.error).size(), 1u) << ended.error;
    EXPECT_THAT(ended.error, HasSubstr(named));
  }
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

double p50(const ScratchDirectory& scratch) {
  return nlohmann::json::parse(content_of(scratch / "a.json"))["results"][0]["p50_ms"];
}

TEST(CliScale, traces__delay_and_stop_ranks) {
  const ScratchDirectory scratch;
  const std::vector<std::string> quiet = {
      "scale",           "--ranks", "4",      "--bytes", "1M",     "--operations", "4",
      "--algorithms",    "ring",    "--tail", "1",       "--loss", "0%",           "--json",
      scratch / "a.json"};
  const auto median = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = quiet;
    all.insert(all.end(), more.begin(), more.end());
    const Ended ended = run(simulator(all));
    EXPECT_EQ(ended.exit_code, 0) << ended.error;
    return p50(scratch);
  };
  const double before = median({});
  // 6 steps, each delayed by a millisecond.
  write(scratch / "delays.csv", "time_us,rank,delay_us\n0,*,1000\n0,9,1000000\n");
  EXPECT_NEAR(median({"--delay-trace", scratch / "delays.csv"}), before + 6, 1);
  // Rank 2 begins all four operations 20 ms late.
  write(scratch / "late.csv",
        "operation,rank,from_us,length_us\n0,2,0,20000\n1,2,0,20000\n2,2,0,20000\n3,*,0,20000\n");
  EXPECT_NEAR(median({"--straggler-trace", scratch / "late.csv"}), before + 20, 1);
}

TEST(CliSim, traces__are_refused_with_their_line_or_run) {
  const ScratchDirectory scratch;
  write(scratch / "wrong.csv", "time_us,rank,delay_us\n5,1\n");
  write(scratch / "long.csv", "time_us,rank,delay_us\n5,1,2000000\n");
  write(scratch / "good.csv", "time_us,rank,delay_us\n100,1,3000\n5000,*,700\n");
  for (const char* option : {"--delays", "--stragglers"}) {
    for (const auto& [file, message] :
         {std::pair("wrong.csv", "wrong.csv:2: \"5,1\""),
          std::pair("long.csv", "a delay of 2000000 us"), std::pair("none.csv", "cannot read")}) {
      const Ended ended = run(simulator({"seeds", option, scratch / file}));
      EXPECT_EQ(ended.exit_code, 2);
      EXPECT_EQ(lines_of(ended.error).size(), 1u) << ended.error;
      EXPECT_THAT(ended.error, HasSubstr(message));
    }
    const Ended without = run(simulator({"seeds", "--seeds", "40", "--faults", "none"}));
    const Ended ended = run(
        simulator({"seeds", "--seeds", "40", "--faults", "none", option, scratch / "good.csv"}));
    EXPECT_EQ(ended.exit_code, 0) << ended.out;
    EXPECT_NE(ended.out, without.out) << option << " changes nothing";
  }
}

TEST(CliScale, file__not_writable) {
  const Ended ended = run(simulator(small({"--svg", "/nowhere/a.svg"})));
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.error, HasSubstr("/nowhere/a.svg: No such file"));
}

}  // namespace
}  // namespace tarpon::test::cli_scale_test
