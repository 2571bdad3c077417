// What a user gets wrong: one line that names the thing and the remedy, a failing exit code, no
// file, no hang.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/child_program.h"
#include "tools/collective/npy.h"

namespace tarpon::test::cli_errors_test {
namespace {

using ::testing::HasSubstr;

/// Failed by itself, with nothing but one line that contains all of `parts`.
void expect_one_line(const Ended& ended, const std::vector<std::string>& parts) {
  EXPECT_FALSE(ended.hung);
  EXPECT_GT(ended.exit_code, 0) << "signal " << ended.signal;
  EXPECT_EQ(lines_of(ended.error).size(), 1u) << ended.error;
  EXPECT_THAT(ended.error, ::testing::MatchesRegex("(tarpon|ranks? [0-9, -]+): [^\n]+\n"));
  EXPECT_LT(ended.error.size(), 400u) << ended.error;
  for (const std::string& part : parts) EXPECT_THAT(ended.error, HasSubstr(part));
  EXPECT_EQ(ended.out, "");
}

struct Mistake {
  std::vector<std::string> arguments;
  std::vector<std::string> parts;
  int exit_code = 2;
};

/// Each on its own, without any rank.
void expect_refused(const std::vector<Mistake>& mistakes) {
  for (const Mistake& mistake : mistakes) {
    std::string line;
    for (const std::string& word : mistake.arguments) line += word + " ";
    SCOPED_TRACE(line);
    const Ended ended = run(tool(mistake.arguments));
    expect_one_line(ended, mistake.parts);
    EXPECT_EQ(ended.exit_code, mistake.exit_code);
  }
}

std::vector<Mistake> with_local_ranks(std::vector<Mistake> mistakes) {
  for (Mistake& mistake : mistakes) {
    mistake.arguments.insert(mistake.arguments.begin(), {"allreduce", "--local-ranks", "2"});
  }
  return mistakes;
}

TEST(CliErrors, values__named_with_an_example) {
  expect_refused(with_local_ranks({
      {{"--deadline", "5"}, {"--deadline", "\"5\" has no unit", "5s"}},
      {{"--deadline", "0s"}, {"--deadline", "10s"}},
      {{"--deadline", "soon"}, {"--deadline", "500ms"}},
      {{"--rendezvous-timeout", "0s"}, {"--rendezvous-timeout", "10s"}},
      {{"--mode", "bounded", "--bound", "0ms"}, {"--bound", "10s"}},
      {{"-b", "x"}, {"-b,--minbytes", "\"x\" is not a size", "25M"}},
      {{"-e", "5Q"}, {"--maxbytes", "use K, M, G or T"}},
      {{"-n", "0"}, {"--iters", "from 1 to 4294967295"}},
      {{"-n", "many"}, {"--iters", "many"}},
      {{"-w", "-1"}, {"--warmup_iters: \"-1\" is not a whole number from 0"}},
      {{"-f", "0"}, {"--stepfactor", "1 to"}},
      {{"-N", "0"}, {"--run_cycles", "1 to"}},
      {{"-T", "0"}, {"--timeout", "1 to"}},
      {{"-c", "perhaps"}, {"--check: \"perhaps\" is not 0 or 1"}},
      {{"--seed", "-1"}, {"--seed: \"-1\" is not a whole number from 0 to"}},
      {{"--flows", "3"}, {"--flows: \"3\" is not one of 1, 2, 4, 8, auto"}},
      {{"--json"}, {"--json needs a value: FILE"}},
      {{"--json", ""}, {"--json: \"\" is not a path"}},
      {{"--flight", ""}, {"--flight: \"\" is not a path"}},
      {{"--burst-loss", "1%/8"}, {"--burst-loss", "--net veth"}},
      {{"-d", "quad"}, {"--datatype", "\"quad\"", "float, double, half, bfloat16", "uint64, all"}},
      {{"-o", "median"}, {"--op", "\"median\"", "sum, avg, min, max, prod", "bxor, all"}},
      {{"-o", "custom"}, {"--op", "\"custom\" is not one of sum"}},
      {{"-o", "bxor"}, {"-o bxor needs integers: choose -d int8"}},
      {{"-o", "bxor", "-d", "half"}, {"-o bxor needs integers: choose -d int8"}},
      {{"--mode", "fast"}, {"--mode", "\"fast\" is not one of exact, bounded"}},
      {{"--datapath", "rdma"}, {"--datapath", "auto, mmsg, uring"}},
      {{"--inject-loss", "101%"}, {"--inject-loss", "outside 0% to 100%", "1%"}},
      {{"--inject-loss", "1"}, {"--inject-loss", "\"1\" has no unit", "1%"}},
      {{"--net", "veth", "--loss", "1"}, {"--loss", "\"1\" has no unit", "1%"}},
      {{"--net", "veth", "--rate", "5"}, {"--rate", "5gbit"}},
      {{"--net", "veth", "--mtu", "10"}, {"--mtu", "576 to 65535"}},
      {{"--gso-segments", "0"}, {"--gso-segments", "1 to 64"}},
      {{"--gso-segments", "65"}, {"--gso-segments", "1 to 64"}},
      {{"--flows", "3"}, {"--flows", "\"3\" is not one of 1, 2, 4, 8, auto"}},
      {{"--retain", "x"}, {"--retain", "25M"}},
      {{"--dead-after", "5"}, {"--dead-after", "\"5\" has no unit"}},
      {{"--silent-after", "9ms"}, {"(--silent-after) is 0.009 s: give 0.01 s or more"}},
      {{"--dead-after", "0s"}, {"--dead-after", "\"0s\" leaves no time"}},
      {{"--max-rate", "5"}, {"--max-rate", "5gbit"}},
      {{"--profile", "best"}, {"--profile", "\"best\" is not one of optireduce, tarpon"}},
      {{"--inflow", "none"}, {"--inflow", "incast, window"}},
      {{"--sending", "dctcp"}, {"--sending", "credit, timely"}},
      {{"--without", "repair,bound"}, {"--without", "\"bound\"", "repair, scatter-repair"}},
      {{"--order", "any"}, {"--order", "\"any\" is not one of rotating, fixed"}},
      {{"--secret-file", "/nope"}, {"'/nope' cannot be opened", "openssl rand -hex 32"}, 1},
      {{"--secret-file", "/dev/null"}, {"'/dev/null' is no regular file"}, 2},
  }));
}

TEST(CliErrors, combinations__refused_with_the_remedy) {
  expect_refused(with_local_ranks({
      {{"-b", "2K", "-e", "1K"}, {"-b 2K is above -e 1K"}},
      {{"-b", "0", "-e", "1K", "-f", "2"}, {"-b 0 with -f never grows"}},
      {{"--mode", "bounded", "--bound", "20s"},
       {"--bound 20s is above --deadline 10s: raise --deadline"}},
      {{"--mode", "bounded", "--bound", "0"},
       {"--bound", "\"0\" has no unit: write for example 500ms"}},
      {{"-b", "1K", "-e", "2K", "-i", "0"}, {"-i 0 never reaches -e"}},
      {{"--output", "/tmp/{rank}"}, {"--output needs --input"}},
      {{"--input", "/tmp/x.npy"}, {"--input /tmp/x.npy: put {rank}"}},
      {{"--input", "/tmp/{rank}.npy", "--output", "/tmp/y"}, {"--output /tmp/y: put {rank}"}},
      {{"--bound", "5ms"}, {"--bound needs --mode bounded"}},
      {{"--rescale", "none"}, {"--rescale needs --mode bounded"}},
      {{"--codec", "on"}, {"--codec needs --mode bounded"}},
      {{"--mode", "bounded", "--codec", "on", "-d", "double"}, {"--codec on needs -d float"}},
      {{"--mode", "bounded", "--codec", "on", "-o", "max"}, {"--codec on needs -d float"}},
      {{"--mode", "bounded", "--codec", "on", "-d", "half"}, {"--codec on needs -d float"}},
      {{"--mode", "bounded", "--codec", "on", "-o", "all"}, {"--codec on needs -d float"}},
      {{"--missing", "local"}, {"--missing needs --mode bounded"}},
      {{"--without", "repair"}, {"--without repair needs --mode bounded"}},
      {{"--order", "fixed", "--shares", "auto"},
       {"--shares auto changes the order of addition", "--order rotating"}},
      {{"--loss", "1%"}, {"add --local-ranks P --net veth"}},
      {{"--net", "veth", "--rate-of", "9=1gbit"}, {"a rate for rank 9 of 2"}},
      {{"--net", "veth", "--burst-loss", "1%/0"}, {"bursts of 0 packets"}},
      {{"--rank", "1"}, {"leave --rank and --world-size out"}},
      {{"--rendezvous", "localhost:1"}, {"leave --rendezvous out"}},
      {{"--bogus"}, {"not expected: --bogus (see --help)"}},
      {{"--mod", "bounded"}, {"--mod bounded: did you mean --mode? (see --help)"}},
      {{"--nthread", "1"}, {"not expected: --nthread 1 (see --help)"}},
      {{"--seed", "1", "--seed", "2"}, {"--seed: given 2 times: give it once"}},
      {{"surplus"}, {"surplus", "--help"}},
      {{"-Q", "1"}, {"not expected: -Q 1 (see --help)"}},
      {{"--input", "/tmp/{rank}.npy", "-b", "1K"}, {"-b is of the benchmark form", "leave it out"}},
      {{"--input", "/tmp/{rank}.npy", "--stepfactor", "2"}, {"-f is of the benchmark form"}},
      {{"--input", "/tmp/{rank}.npy", "-d", "float"}, {"-d is of the benchmark form"}},
      {{"--input", "/tmp/{rank}.npy", "-o", "all"}, {"-o all is of the benchmark form"}},
      {{"--input", "/tmp/{rank}.npy", "-o", "bor"}, {"-o bor needs integers"}},
  }));
}

TEST(CliErrors, flags_of_nccl_tests__refused_by_name_where_they_ask_for_something) {
  expect_refused(with_local_ranks({
      {{"-g", "4"}, {"tarpon: -g 4: a flag of nccl-tests", "--local-ranks", "or give 0 or 1"}},
      {{"--nthreads", "2"}, {"tarpon: -t 2: a flag of nccl-tests", "or give 1"}},
      {{"-m", "10"}, {"-m 10", "not aggregated"}},
      {{"-G", "1"}, {"-G 1", "no CUDA graphs"}},
      {{"-a", "0"}, {"-a 0", "slowest rank", "or give 1 or 3"}},
      {{"-F", "x.csv"}, {"-F x.csv", "--json FILE"}},
  }));
  const Ended good = run(tool({"allreduce", "--local-ranks",
                               "2",         "-b",
                               "8",         "-e",
                               "8",         "-n",
                               "1",         "-g",
                               "1",         "-t",
                               "1",         "-m",
                               "1",         "-p",
                               "0",         "-r",
                               "0",         "-y",
                               "0",         "-G",
                               "0",         "-C",
                               "0",         "-R",
                               "0",         "-z",
                               "0",         "-a"}));
  EXPECT_EQ(good.exit_code, 0) << good.error;
}

TEST(CliErrors, place__which_rank_of_which_job) {
  const std::string meet = "tcp://127.0.0.1:4444";
  expect_refused({
      {{}, {"a command is missing: use all_reduce, allreduce, all_gather", "--help"}},
      {{"alreduce", "-b", "1K"},
       {"\"alreduce\" is not a command: did you mean allreduce?", "--help"}},
      {{"allreduce"}, {"which rank is this?", "--local-ranks P", "mpirun"}},
      {{"check"}, {"which rank is this?"}},
      {{"testbed", "--", "true"}, {"--local-ranks P"}},
      {{"xdp"}, {"xdp needs a subcommand: load, serve, status, unload or clean"}},
      {{"xdp", "lod"}, {"\"xdp lod\" is not a command: did you mean load?"}},
      {{"xdp", "load"}, {"INTERFACE is missing: write tarpon xdp load"}},
      {{"testbed", "--local-ranks", "2"},
       {"PROGRAM is missing: write tarpon testbed [OPTION...] PROGRAM..."}},
      {{"flight", "/nope"}, {"/nope: No such file or directory", "--flight"}, 1},
      {{"testbed", "--local-ranks", "2", "--deadline", "5s", "--", "true"},
       {"--deadline", "not expected"}},
      {{"allreduce", "--local-ranks", "65"}, {"65 ranks on 1 host: start at most 64 on a host"}},
      {{"allreduce", "--rank", "0"}, {"--rank needs --world-size"}},
      {{"allreduce", "--rank", "5", "--world-size", "2", "--rendezvous", meet},
       {"--rank=5", "0 to 1"}},
      {{"allreduce", "--rank", "-1", "--world-size", "2", "--rendezvous", meet},
       {"--rank=-1", "0 to 1"}},
      {{"allreduce", "--rank", "0", "--world-size", "4097", "--rendezvous", meet},
       {"world size 4097", "4096"}},
      {{"allreduce", "--rank", "0", "--world-size", "2"}, {"--rendezvous HOST:PORT"}},
      {{"allreduce", "--rank", "0", "--world-size", "2", "--rendezvous", "tcp://x"},
       {"--rendezvous tcp://x", "file://PATH"}},
      {{"allreduce", "--rank", "0", "--world-size", "2", "--rendezvous", meet, "--interface",
        "nope"},
       {"--interface nope", "lo (127.0.0.1)"}},
  });
}

TEST(CliErrors, memory__none_for_the_size) {
  const auto ended = run_together({
      tool({"allreduce", "--local-ranks", "2", "-b", "100T", "-e", "100T"}),
      tool({"allreduce", "--local-ranks", "1", "-b", "8000000T", "-e", "8000000T"}),
      tool({"allreduce", "--rank", "0", "--world-size", "1", "--rendezvous", "localhost:4444", "-b",
            "100T", "-e", "100T"}),
      // Sweeps of sizes that nobody could list, or add up.
      tool({"allreduce", "--local-ranks", "1", "-e", "8000000T", "-i", "1M"}),
      tool({"allreduce", "--local-ranks", "1", "-b", "1", "-e", "8000000T", "-f", "5"}),
  });
  for (const Ended& one : ended) expect_one_line(one, {"no memory", "choose a smaller -e"});
}

TEST(CliErrors, json__not_writable) {
  const ScratchDirectory scratch;
  expect_one_line(
      run(tool({"allreduce", "--local-ranks", "2", "-b", "8", "-e", "8", "--json",
                scratch / "no/such.json"})),
      {"no/such.json: No such file or directory: create its directory, or choose another"});
  // Only the writing itself can tell.
  const Ended full = run(tool(
      {"allreduce", "--local-ranks", "2", "-b", "8", "-e", "8", "-n", "1", "--json", "/dev/full"}));
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_EQ(full.error, "rank 0: /dev/full: cannot write: No space left on device\n");
}

TEST(CliErrors, json__standard_output) {
  // A pipe, behind whatever links /dev/stdout is.
  const Ended ended = run(tool(
      {"allreduce", "--local-ranks", "2", "-b", "8", "-e", "8", "-n", "1", "-J", "/dev/stdout"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(ended.out, ::testing::ContainsRegex("# Avg bus bandwidth .*\n.*\\{\n"));
  EXPECT_THAT(ended.out, HasSubstr("\"results\""));
}

TEST(CliErrors, json__link_stays_a_link) {
  const ScratchDirectory scratch;
  std::filesystem::create_symlink("target.json", scratch / "link.json");
  std::ofstream(scratch / "target.json") << "old";
  EXPECT_EQ(run(tool({"allreduce", "--local-ranks", "1", "-b", "8", "-e", "8", "-n", "1", "--json",
                      scratch / "link.json"}))
                .exit_code,
            0);
  EXPECT_TRUE(std::filesystem::is_symlink(scratch / "link.json"));
  EXPECT_THAT(content_of(scratch / "target.json"), HasSubstr("\"results\""));
}

/// The shell starts `TOOL words` with `redirection` behind it.
Ended redirected(const std::string& words, const std::string& redirection) {
  return run(
      {{"sh", "-c", fmt::format("exec {} {} {}", TARPON_TOOL, words, redirection)}, {}, "."});
}

TEST(CliErrors, lost_output__fails_and_says_so) {
  for (const std::string words :
       {"allreduce --local-ranks 2 -b 8 -e 8 -n 1", "allreduce --rank 0 --world-size 1 -b 8 -e 8",
        "check --local-ranks 2 --probes 2", "info", "info --json", "status", "help --man allreduce",
        "doctor lo", "completion bash", "help", "--version", "allreduce --help"}) {
    for (const std::string redirection : {">/dev/full", ">&-"}) {
      SCOPED_TRACE(words + " " + redirection);
      const Ended ended = redirected(words, redirection);
      EXPECT_EQ(ended.exit_code, 1);
      EXPECT_EQ(lines_of(ended.error).size(), 1u) << ended.error;
      EXPECT_THAT(ended.error, HasSubstr("standard output"));
    }
  }
}

TEST(CliErrors, closed_descriptors__no_file_takes_the_place_of_the_output) {
  const ScratchDirectory scratch;
  const std::string words = "allreduce --local-ranks 1 -b 8 -e 8 -n 1 --json ";
  const Ended ended = redirected(words + (scratch / "j"), "<&- >&-");
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_TRUE(nlohmann::json::accept(content_of(scratch / "j"))) << content_of(scratch / "j");
  EXPECT_EQ(redirected("allreduce -b x", "2>/dev/full").exit_code, 2);
  EXPECT_EQ(redirected("allreduce -b x", "2>&-").exit_code, 2);
}

/// The shell, in a mount namespace of its own, runs `before` and then TOOL.
Ended with_mounts(const std::string& before, const std::string& words) {
  return run({{"unshare", "-m", "--propagation", "private", "sh", "-c",
               fmt::format("{} && exec {} {}", before, TARPON_TOOL, words)},
              {},
              "."});
}

TEST(CliErrors, no_temporary_directory__names_TMPDIR) {
  const ScratchDirectory scratch;
  for (const std::string place : {"/nope", "/proc"}) {
    Command command = tool({"allreduce", "--local-ranks", "2", "-b", "8", "-e", "8"});
    command.environment["TMPDIR"] = place;
    expect_one_line(run(command),
                    {place + "/tarpon-", "for the ranks to meet", "set TMPDIR to a directory"});
  }
}

TEST(CliErrors, no_proc__falls_back_or_says_so) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can hide /proc";
  const ScratchDirectory scratch;
  const std::string hide = "mount -t tmpfs none /proc";
  for (const char* command : {"status", "flight"}) {
    expect_one_line(with_mounts(hide, command), {"/proc/thread-self/net/unix", "mount /proc"});
  }
  const Ended info = with_mounts(hide, "info");
  EXPECT_EQ(info.exit_code, 0) << info.error;
  EXPECT_THAT(info.out, HasSubstr("unknown model"));
  const std::string file = scratch / "j";
  const Ended job = with_mounts(hide, "allreduce --local-ranks 2 -b 8 -e 8 -n 1 --json " + file);
  EXPECT_EQ(job.exit_code, 0) << job.error;
  EXPECT_TRUE(nlohmann::json::accept(content_of(file)));
}

/// One line a rank, each with all of `parts`: every rank's own process says it.
void expect_on_every_rank(const std::vector<Ended>& ranks, const std::vector<std::string>& parts) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    SCOPED_TRACE(fmt::format("process {}", rank));
    expect_one_line(ranks[rank], parts);
  }
}

class CliInputErrors : public ::testing::Test {
 protected:
  void save(int rank, NpyType type, const std::vector<std::size_t>& shape, std::size_t bytes) {
    const std::vector<std::byte> data(bytes);
    auto file = write_npy(scratch_ / fmt::format("in{}.npy", rank), type, shape, data);
    ASSERT_TRUE(file) << file.error().message;
    ASSERT_TRUE(file->commit());
  }

  std::vector<Ended> run_ranks(std::uint32_t world) {
    return run_together(ranks_by_hand(
        world, free_meeting_point(),
        {"--input", scratch_ / "in{rank}.npy", "--output", scratch_ / "out{rank}.npy"}));
  }

  void expect_no_output() {
    for (const std::string& name : scratch_.names()) EXPECT_THAT(name, ::testing::StartsWith("in"));
  }

  ScratchDirectory scratch_;
};

TEST_F(CliInputErrors, missing__named_everywhere) {
  save(0, NpyType::float32, {4}, 16);
  expect_on_every_rank(run_ranks(2), {"rank 1: ", "in1.npy", "No such file or directory"});
  expect_no_output();
}

TEST_F(CliInputErrors, truncated__named_everywhere) {
  for (const int rank : {0, 1, 2}) save(rank, NpyType::float32, {4}, 16);
  const std::string broken = scratch_ / "in1.npy";
  std::filesystem::resize_file(broken, std::filesystem::file_size(broken) - 3);
  expect_on_every_rank(run_ranks(3), {"rank 1: ", "in1.npy: truncated", "promises 4", "holds 3"});
  expect_no_output();
}

TEST_F(CliInputErrors, shapes_differ__named_everywhere) {
  save(0, NpyType::float32, {4}, 16);
  save(1, NpyType::float32, {4}, 16);
  save(2, NpyType::float32, {2, 2}, 16);
  expect_on_every_rank(run_ranks(3), {"rank 2 has float32 (2, 2)", "rank 0 has float32 (4)",
                                      "the same type and shape"});
  expect_no_output();
}

TEST_F(CliInputErrors, types_differ__named_everywhere) {
  save(0, NpyType::float32, {4}, 16);
  save(1, NpyType::float64, {4}, 32);
  expect_on_every_rank(run_ranks(2), {"rank 1 has float64 (4)", "rank 0 has float32 (4)"});
  expect_no_output();
}

TEST_F(CliInputErrors, no_array__named_everywhere) {
  save(0, NpyType::float32, {4}, 16);
  std::ofstream(scratch_ / "in1.npy") << "hello";
  expect_on_every_rank(run_ranks(2), {"rank 1: ", "in1.npy", "not a .npy file"});
  expect_no_output();
}

TEST_F(CliInputErrors, output_directory__missing) {
  for (const int rank : {0, 1}) save(rank, NpyType::float32, {4}, 16);
  const auto ended = run_together(ranks_by_hand(
      2, free_meeting_point(),
      {"--input", scratch_ / "in{rank}.npy", "--output", scratch_ / "no/out{rank}.npy"}));
  expect_on_every_rank(ended, {"rank 0: ", "no/out0.npy", "rank 1: ", "No such file or directory"});
}

// Ranks that meet through a file know that they belong together.

TEST(CliJobErrors, file__options_differ__named_everywhere) {
  const ScratchDirectory scratch;
  const std::string meet = "file://" + scratch / "meet";
  const auto differ = [&](const std::vector<std::string>& of_rank_1) {
    auto commands = ranks_by_hand(2, meet, {"-b", "1K", "-e", "1K"});
    auto& arguments = commands[1].arguments;
    arguments.insert(arguments.end(), of_rank_1.begin(), of_rank_1.end());
    return run_together(commands);
  };
  auto commands = ranks_by_hand(2, meet, {});
  commands[0].arguments[1] = "check";
  expect_on_every_rank(run_together(commands), {"rank 1", "command=check", "command=all_reduce"});
  expect_on_every_rank(differ({"-n", "7"}), {"rank 1", "iters=7", "rank 0", "iters=20"});
  expect_on_every_rank(differ({"--op", "max"}), {"rank 1", "op=max", "rank 0", "op=sum"});
  expect_on_every_rank(differ({"--mode", "bounded"}), {"mode=bounded", "mode=exact"});
  expect_on_every_rank(differ({"-d", "int32"}), {"datatype=int32", "datatype=float"});
  expect_on_every_rank(differ({"--deadline", "9s"}), {"deadline=9s", "deadline=10s"});
}

TEST(CliJobErrors, file__world_sizes_differ__named_everywhere) {
  const ScratchDirectory scratch;
  const std::string meet = "file://" + scratch / "meet";
  const auto of_two = ranks_by_hand(2, meet, {"-b", "8", "-e", "8"});
  const auto of_three = ranks_by_hand(3, meet, {"-b", "8", "-e", "8"});
  expect_on_every_rank(run_together({of_two[0], of_three[1]}),
                       {"rank 1 expects 3 ranks", "rank 0 expects 2"});
}

TEST(CliJobErrors, file__rank_twice__named_everywhere) {
  const ScratchDirectory scratch;
  const auto commands = ranks_by_hand(3, "file://" + scratch / "meet", {"-b", "8", "-e", "8"});
  expect_on_every_rank(run_together({commands[0], commands[1], commands[1]}),
                       {"rank 1 is taken twice"});
}

// Over TCP the odd rank ends at once. Rank 0 says so at once, and waits for the right rank.
TEST(CliJobErrors, tcp__options_differ__named_on_both_sides) {
  auto commands = ranks_by_hand(2, free_meeting_point(),
                                {"-b", "1K", "-e", "1K", "--rendezvous-timeout", "4s"});
  commands[1].arguments.insert(commands[1].arguments.end(), {"-n", "7"});
  const auto ended = run_together(commands);
  expect_one_line(ended[1], {"rank 1 runs with iters=7, rank 0 does not", "the same version"});
  EXPECT_EQ(ended[0].exit_code, 1) << ended[0].error;
  const auto lines = lines_of(ended[0].error);
  ASSERT_EQ(lines.size(), 3u) << ended[0].error;
  EXPECT_THAT(lines[0], HasSubstr("refused: rank 1 runs with iters=7 where rank 0 has iters=20"));
  EXPECT_THAT(lines[1], HasSubstr("waiting for rank 1 at "));
  EXPECT_THAT(lines[2], HasSubstr("rank 1 did not arrive within 3 s"));
  EXPECT_THAT(lines[2], HasSubstr("refused: rank 1 runs with iters=7"));
}

TEST(CliJobErrors, rank_absent__named_after_the_timeout) {
  const auto commands = ranks_by_hand(3, free_meeting_point(),
                                      {"-b", "8", "-e", "8", "--rendezvous-timeout", "500ms"});
  const auto ended = run_together({commands[0], commands[2]});
  // Where rank 0 starts late, the timeout of rank 2 ends first, and its line says "in time".
  expect_on_every_rank(ended, {"rank 1 did not arrive ", "is it running", "TCP port"});
  EXPECT_THAT(ended[0].error, HasSubstr("rank 1 did not arrive within 0.375 s"));
  expect_on_every_rank(run_together({commands[1], commands[2]}),
                       {"cannot reach rank 0 at tcp://127.0.0.1:", "is rank 0 running"});
}

TEST(CliJobErrors, interrupted_rendezvous__a_line_and_an_empty_report) {
  const ScratchDirectory scratch;
  for (const char* command : {"allreduce", "check"}) {
    SCOPED_TRACE(command);
    const std::string meet = scratch / fmt::format("meet-{}", command);
    Process waiting(tool({command, "--rank", "0", "--world-size", "2", "--rendezvous",
                          "file://" + meet, "-J", scratch / "j"}));
    while (!std::filesystem::exists(meet)) ::usleep(10'000);  // rank 0 listens
    ::kill(waiting.pid(), SIGINT);
    const Ended ended = waiting.wait();
    EXPECT_EQ(ended.signal, SIGINT);
    EXPECT_EQ(ended.error, "tarpon: interrupted before all 2 ranks were connected\n");
    const auto report = nlohmann::json::parse(content_of(scratch / "j"), nullptr, false);
    EXPECT_EQ(report["interrupted"], true) << report.dump();
    EXPECT_EQ(report["results"], nlohmann::json::array());
  }
}

TEST(CliJobErrors, port_in_use__named) {
  const FileDescriptor taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* general = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(taken.get(), general, length), 0);
  ASSERT_EQ(::listen(taken.get(), 8), 0);
  ASSERT_EQ(::getsockname(taken.get(), general, &length), 0);
  const std::string place = fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
  const auto ended = run_together(
      ranks_by_hand(2, "tcp://" + place, {"-b", "8", "-e", "8", "--rendezvous-timeout", "500ms"}));
  expect_one_line(
      ended[0], {place, "Address already in use", "choose another port", "perhaps another rank 0"});
  expect_one_line(ended[1], {"cannot reach rank 0 at tcp://" + place, "is rank 0 running"});
}

TEST(CliJobErrors, namespaces__need_root) {
  const std::vector<std::string> arguments{"allreduce", "--local-ranks", "2", "--net", "veth"};
  Command command = tool(arguments);
  if (::geteuid() == 0) {
    // As somebody who may read the tool.
    command.arguments.insert(command.arguments.begin(),
                             {"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"});
    if (run({{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", TARPON_TOOL,
              "--version"},
             {},
             "."})
            .exit_code != 0) {
      GTEST_SKIP() << "nobody cannot run the tool here";
    }
  }
  expect_one_line(run(command), {"network namespaces need root", "--net loopback"});
}

}  // namespace
}  // namespace tarpon::test::cli_errors_test
