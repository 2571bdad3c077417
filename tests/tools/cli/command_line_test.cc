// Rows of options, and the parser: the values that it takes, and its messages about mistakes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/cli/program/parser.h"
#include "tools/cli/program/suggestion.h"
#include "tools/job/options/mechanism_options.h"

namespace tarpon::cli::command_line_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// suggestion.h

TEST(Suggestion, edit_distance__counts_letters_and_exchanges) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("mode", "mode"), 0u);
  EXPECT_EQ(edit_distance("mod", "mode"), 1u);
  EXPECT_EQ(edit_distance("mdoe", "mode"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Suggestion, suggestions__nearest_first_and_nothing_far) {
  const std::vector<std::string> known{"--mode", "--rate", "--rate-of", "--inject-loss"};
  EXPECT_THAT(suggestions("--mod", known), ElementsAre("--mode"));
  EXPECT_THAT(suggestions("--ratte", known), ElementsAre("--rate"));
  EXPECT_THAT(suggestions("--inject", known), ElementsAre("--inject-loss"));
  EXPECT_THAT(suggestions("--bogus", known), IsEmpty());
  EXPECT_THAT(suggestions("-m", known), IsEmpty());
  EXPECT_THAT(suggestions(std::string(100'000, 'x'), known), IsEmpty());
}

TEST(Suggestion, did_you_mean__names_them) {
  EXPECT_EQ(did_you_mean("lod", {"load", "status"}), ": did you mean load?");
  EXPECT_EQ(did_you_mean("ab1", {"ab2", "ab3"}), ": did you mean ab2 or ab3?");
  EXPECT_EQ(did_you_mean("zzz", {"load", "status"}), "");
}

// option.h

/// Variables of every kind, and a table over them.
struct Sample {
  std::uint32_t count = 3;
  std::int64_t rank = -1;
  std::optional<std::uint64_t> marks;
  double tail = 1.5;
  std::uint64_t bytes = 32 << 20;
  std::uint64_t cap = 0;
  Duration deadline = 10s;
  std::optional<Duration> timeout;
  double loss = 0;
  bool check = true, watch = false;
  int mode = 2;
  std::string file, name = "x";
  std::vector<std::string> parts{"ring", "tar"}, phases, rest;

  OptionTable table() {
    OptionTable table;
    table.add("Values", {{"-c,--count", whole(count, 1u, 64u), "ranks"},
                         {"--rank", whole(rank), "this rank"},
                         {"--marks", whole(marks), "how often"},
                         {"--tail", number(tail, 1, 50), "ratio"},
                         {"--bytes", size(bytes), "of a bucket", Scope::job},
                         {"--cap", rate(cap), "at most"},
                         {"--deadline", duration(deadline), "limit"},
                         {"--timeout", otherwise(duration(timeout), "30s"), "of the start"},
                         {"--loss", share(loss), "share"},
                         {"--check", switched(check), "results"}});
    const Choices<int> modes{{"exact", 1}, {"bounded", 2}};
    table.add("Words",
              {{"--mode", choice(mode, modes), "how"},
               {.names = "--watch", .value = flag(watch), .help = "again", .excludes = {"--file"}},
               {"--file", cli::file(file), "path"},
               {"--name", given(text(name, "NAME"), Times::last), "any"},
               {"--parts", words(parts, "NAME,...", Times::list, {"ring", "tar", "dbt"}), "which"},
               {"--phase", words(phases, "STEP:SHARE", Times::each), "repeated"}});
    return table;
  }
};

std::string initial(Sample& sample, const char* name) {
  return sample.table().find(name)->value.initial;
}

TEST(Option, initial__is_the_text_of_the_variable) {
  Sample sample;
  EXPECT_EQ(initial(sample, "--count"), "3");
  EXPECT_EQ(initial(sample, "--bytes"), "32M");
  EXPECT_EQ(initial(sample, "--deadline"), "10s");
  EXPECT_EQ(initial(sample, "--tail"), "1.5");
  EXPECT_EQ(initial(sample, "--check"), "1");
  EXPECT_EQ(initial(sample, "--mode"), "bounded");
  EXPECT_EQ(initial(sample, "--parts"), "ring,tar");
  EXPECT_EQ(initial(sample, "--timeout"), "30s");
  // Variables that hold nothing have no default.
  for (const char* name : {"--marks", "--cap", "--loss", "--file", "--phase", "--watch"}) {
    EXPECT_EQ(initial(sample, name), "") << name;
  }
  sample.bytes = 1 << 10;
  sample.mode = 1;
  EXPECT_EQ(initial(sample, "--bytes"), "1K");
  EXPECT_EQ(initial(sample, "--mode"), "exact");
}

TEST(Option, names_of__splits) {
  EXPECT_THAT(names_of({"-c,--count", {}, ""}), ElementsAre("-c", "--count"));
  EXPECT_THAT(names_of({"FILE", {}, ""}), ElementsAre("FILE"));
}

TEST(Option, without__takes_every_switch_of_the_mechanisms) {
  MechanismOptions options;
  OptionTable table;
  add_mechanism_options(table, options);
  EXPECT_THAT(table.find("--without")->value.choices, ::testing::SizeIs(5));
  for (const std::string& name : table.find("--without")->value.choices) {
    EXPECT_TRUE(Mechanisms().take_out(name)) << name;
    EXPECT_THAT(table.find("--without")->help, HasSubstr(name));
  }
}

// parser.h: one table

TEST(ParseOptions, values__reach_their_variables) {
  Sample sample;
  const OptionTable table = sample.table();
  const ParsedOptions parsed = parse_options(
      table, {"-c4",          "--rank=-7", "--marks", "9",       "--tail",     "2.5",
              "--bytes",      "4K",        "--cap",   "1gbit",   "--deadline", "500ms",
              "--timeout=1m", "--loss",    "1%",      "--check", "off",        "--mode",
              "EXACT",        "--watch",   "--name",  "a",       "--name",     "b"});
  EXPECT_EQ(parsed.mistake, "");
  EXPECT_EQ(sample.count, 4u);
  EXPECT_EQ(sample.rank, -7);
  EXPECT_EQ(sample.marks, 9u);
  EXPECT_EQ(sample.tail, 2.5);
  EXPECT_EQ(sample.bytes, 4096u);
  EXPECT_EQ(sample.cap, 1'000'000'000u);
  EXPECT_EQ(sample.deadline, 500ms);
  EXPECT_EQ(sample.timeout, 1min);
  EXPECT_EQ(sample.loss, 0.01);
  EXPECT_FALSE(sample.check);
  EXPECT_TRUE(sample.watch);
  EXPECT_EQ(sample.mode, 1);
  EXPECT_EQ(sample.name, "b");
  EXPECT_TRUE(parsed.names.contains("-c") && parsed.names.contains("--count"));
  EXPECT_FALSE(parsed.names.contains("--file"));
}

TEST(ParseOptions, lists__replace_the_default) {
  Sample sample;
  const OptionTable table = sample.table();
  EXPECT_EQ(
      parse_options(table, {"--parts", "dbt,tar", "ring", "--phase", "1:1%", "--phase", "2:2%"})
          .mistake,
      "");
  EXPECT_THAT(sample.parts, ElementsAre("dbt", "tar", "ring"));
  EXPECT_THAT(sample.phases, ElementsAre("1:1%", "2:2%"));
}

TEST(ParseOptions, mistakes__name_the_option_and_the_remedy) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--count", "0"}, "-c,--count: \"0\" is not a whole number from 1 to 64"},
      {{"--count", "65"}, "from 1 to 64"},
      {{"--count", "4x"}, "\"4x\" is not a whole number"},
      {{"--count", "4", "-c", "5"}, "-c,--count: given 2 times: give it once"},
      {{"--rank", "1.5"}, "--rank: \"1.5\" is not a whole number"},
      {{"--marks", "-1"}, "--marks: \"-1\" is not a whole number from 0 to"},
      {{"--tail", "nan"}, "--tail: \"nan\" is not a number from 1 to 50"},
      {{"--bytes", "x"}, "--bytes: \"x\" is not a size"},
      {{"--deadline", "0s"}, "--deadline: \"0s\" leaves no time"},
      {{"--check", "perhaps"}, "--check: \"perhaps\" is not 0 or 1"},
      {{"--mode", "fast"}, "--mode: \"fast\" is not one of exact, bounded"},
      {{"--parts", "ring,star"}, "--parts: \"star\" is not one of ring, tar, dbt"},
      {{"--file"}, "--file needs a value: FILE"},
      {{"--watch", "--file", "x"}, "--watch excludes --file"},
      {{"--mod", "exact"}, "not expected: --mod exact: did you mean --mode?"},
      {{"--dedaline=5s"}, "not expected: --dedaline=5s: did you mean --deadline?"},
      {{"--bogus"}, "not expected: --bogus"},
      {{"surplus"}, "not expected: surplus"},
  };
  for (const auto& [words, message] : cases) {
    Sample sample;
    EXPECT_THAT(parse_options(sample.table(), words).mistake, HasSubstr(message)) << words[0];
  }
}

TEST(ParseOptions, rest__belongs_to_the_program_that_it_names) {
  Sample sample;
  OptionTable table = sample.table();
  Value rest = words(sample.rest, "PROGRAM", Times::rest);
  table.add("Program", {{"PROGRAM", std::move(rest), "it", Scope::rank, true}});
  EXPECT_EQ(parse_options(table, {"--count", "2"}).missing, "PROGRAM");
  EXPECT_EQ(parse_options(table, {"--count", "2", "--", "ls", "--mode", "x", "-l"}).mistake, "");
  EXPECT_THAT(sample.rest, ElementsAre("ls", "--mode", "x", "-l"));
  EXPECT_EQ(sample.mode, 2);
}

// parser.h: commands

struct NoOptions {
  std::string interface;
};
void no_options(OptionTable&, NoOptions&) {}
void interface_options(OptionTable& table, NoOptions& options) {
  table.add("Options", {{"INTERFACE", interface_name(options.interface), "it", Scope::rank, true},
                        {"--name", text(options.interface, "NAME"), "any"}});
}
void seed_options(OptionTable& table, NoOptions& options) {
  table.add("Options", {{"--seed", text(options.interface, "N"), "any"}});
}
int run_nothing(const NoOptions&) {
  return 0;
}

Catalogue catalogue() {
  return {{.name = "tarpon",
           .version = "1",
           .build = "abc",
           .summary = "",
           .exit_codes = "",
           .environment = {}},
          {command("allreduce", "a", no_options, run_nothing),
           command("sim", "s", seed_options, run_nothing),
           command("sim scale", "c", no_options, run_nothing), family("xdp", "x"),
           command("xdp load", "l", interface_options, run_nothing),
           command("xdp clean", "u", no_options, run_nothing)}};
}

std::string mistake_of(const std::vector<std::string>& words) {
  const Catalogue all = catalogue();
  const Parsed parsed = parse(all, words);
  const auto* const mistake = std::get_if<Mistake>(&parsed);
  return mistake == nullptr ? "none" : mistake->text;
}

TEST(Parse, commands__mistakes) {
  EXPECT_EQ(mistake_of({}), "a command is missing: use allreduce, sim or xdp");
  EXPECT_EQ(mistake_of({"alreduce"}), "\"alreduce\" is not a command: did you mean allreduce?");
  EXPECT_EQ(mistake_of({"fly"}), "\"fly\" is not a command: use allreduce, sim or xdp");
  EXPECT_EQ(mistake_of({"--seed", "4"}),
            "not expected: --seed: a command comes first: allreduce, sim or xdp");
  EXPECT_EQ(mistake_of({"xdp"}), "xdp needs a subcommand: load or clean");
  EXPECT_EQ(mistake_of({"xdp", "lod"}), "\"xdp lod\" is not a command: did you mean load?");
  EXPECT_EQ(mistake_of({"xdp", "load"}),
            "INTERFACE is missing: write tarpon xdp load [OPTION...] INTERFACE");
  EXPECT_EQ(mistake_of({"sim", "--seed", "4", "scale"}),
            "--seed before scale belongs to sim: write the options of sim scale after it");
}

TEST(Parse, commands__the_longest_name_counts) {
  const Catalogue all = catalogue();
  const Parsed parsed = parse(all, {"sim", "scale"});
  ASSERT_TRUE(std::holds_alternative<Call>(parsed));
  EXPECT_EQ(std::get<Call>(parsed).entry->name, "sim scale");
  const Parsed load = parse(all, {"xdp", "load", "eth0"});
  ASSERT_TRUE(std::holds_alternative<Call>(load));
  EXPECT_TRUE(std::get<Call>(load).invocation.given("INTERFACE"));
}

TEST(Parse, help__of_what_was_named_before_it) {
  const Catalogue all = catalogue();
  EXPECT_EQ(std::get<ShowHelp>(parse(all, {"--help"})).entry, nullptr);
  EXPECT_EQ(std::get<ShowHelp>(parse(all, {"xdp", "-h"})).entry->name, "xdp");
  EXPECT_EQ(std::get<ShowHelp>(parse(all, {"xdp", "load", "--help"})).entry->name, "xdp load");
  EXPECT_EQ(std::get<ShowHelp>(parse(all, {"sim", "--seed", "1", "-h"})).entry->name, "sim");
  EXPECT_TRUE(std::holds_alternative<ShowVersion>(parse(all, {"--version"})));
}

}  // namespace
}  // namespace tarpon::cli::command_line_test
