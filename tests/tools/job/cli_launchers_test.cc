// One rank a process: started by hand, by mpirun, or with the variables of torchrun, srun and PMI.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <span>
#include <utility>

#include "tests/support/child_program.h"
#include "tools/collective/npy.h"

namespace tarpon::test::cli_launchers_test {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kSmall{"-b", "10K", "-e", "10K", "-n", "3", "-w", "1"};

/// Rank 0 alone reports, and all end well.
void expect_one_report(const std::vector<Ended>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    SCOPED_TRACE(fmt::format("rank {}", rank));
    EXPECT_EQ(ranks[rank].exit_code, 0);
    EXPECT_EQ(ranks[rank].error, "");
    EXPECT_EQ(ranks[rank].out.empty(), rank > 0) << ranks[rank].out;
  }
  EXPECT_THAT(ranks[0].out,
              HasSubstr(fmt::format(" {} rank{}, ", ranks.size(), ranks.size() == 1 ? "" : "s")));
  EXPECT_THAT(ranks[0].out, HasSubstr("# Out of bounds values : 0 OK\n"));
}

/// One process a rank, told its place by variables alone.
std::vector<Ended> run_with_variables(
    int world, const std::function<std::map<std::string, std::string>(int)>& variables,
    const std::vector<std::string>& options = {}) {
  std::vector<Command> commands;
  for (int rank = 0; rank < world; ++rank) {
    Command command = tool({"allreduce"});
    command.arguments.insert(command.arguments.end(), kSmall.begin(), kSmall.end());
    command.arguments.insert(command.arguments.end(), options.begin(), options.end());
    command.environment = variables(rank);
    commands.push_back(std::move(command));
  }
  return run_together(commands);
}

std::string port_of(const std::string& meeting_point) {
  return meeting_point.substr(meeting_point.rfind(':') + 1);
}

TEST(CliByHand, tcp__and_json_of_rank_0_alone) {
  const ScratchDirectory scratch;
  auto commands = ranks_by_hand(2, free_meeting_point(), kSmall);
  for (std::size_t rank = 0; rank < commands.size(); ++rank) {
    commands[rank].arguments.insert(commands[rank].arguments.end(),
                                    {"--json", scratch / fmt::format("{}.json", rank)});
  }
  expect_one_report(run_together(commands));
  EXPECT_THAT(scratch.names(), ::testing::ElementsAre("0.json"));
}

TEST(CliByHand, file__used_twice) {
  const ScratchDirectory scratch;
  for (int round = 0; round < 2; ++round) {
    expect_one_report(run_together(ranks_by_hand(3, "file://" + scratch / "meet", kSmall)));
  }
  EXPECT_THAT(scratch.names(), ::testing::IsEmpty()) << "the address goes with the job";
}

TEST(CliByHand, late_rank_0__is_waited_for) {
  const auto commands = ranks_by_hand(2, free_meeting_point(), kSmall);
  Process rank_1(commands[1]);
  // Nothing to listen to yet: the rank has to try again.
  EXPECT_FALSE(rank_1.says("anything", 100ms));
  Process rank_0(commands[0]);
  std::vector<Ended> ended;
  ended.push_back(rank_0.wait());
  ended.push_back(rank_1.wait());
  expect_one_report(ended);
}

TEST(CliByHand, datapaths__may_differ) {
  auto commands = ranks_by_hand(2, free_meeting_point(), kSmall);
  commands[0].arguments.insert(commands[0].arguments.end(), {"--datapath", "mmsg"});
  expect_one_report(run_together(commands));
}

TEST(CliLaunchers, torchrun__variables) {
  const std::string port = std::to_string(std::stoi(port_of(free_meeting_point())) - 1);
  expect_one_report(run_with_variables(2, [&](int rank) {
    return std::map<std::string, std::string>{
        {"RANK", std::to_string(rank)},       {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", "2"},
        {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", port}};
  }));
}

/// The groups of 2d-tar are the ranks of a host, where they divide the job.
TEST(CliLaunchers, torchrun__groups_of_2d_tar) {
  for (const auto& [here, size] : {std::pair{"3", "3"}, {"4", "2"}, {"6", "2"}}) {
    const std::string port = port_of(free_meeting_point());
    const auto ended = run_with_variables(6,
                                          [&](int rank) {
                                            return std::map<std::string, std::string>{
                                                {"RANK", std::to_string(rank)},
                                                {"WORLD_SIZE", "6"},
                                                {"LOCAL_WORLD_SIZE", here},
                                                {"MASTER_ADDR", "localhost"},
                                                {"TARPON_PORT", port}};
                                          },
                                          {"--algorithm", "2d-tar"});
    expect_one_report(ended);
    EXPECT_THAT(ended[0].out, HasSubstr(std::string("exact by 2d-tar in groups of ") + size));
  }
}

TEST(CliLaunchers, master_address__with_our_port) {
  const std::string port = port_of(free_meeting_point());
  expect_one_report(run_with_variables(2, [&](int rank) {
    return std::map<std::string, std::string>{{"RANK", std::to_string(rank)},
                                              {"WORLD_SIZE", "2"},
                                              {"MASTER_ADDR", "localhost"},
                                              {"MASTER_PORT", "1"},
                                              {"TARPON_PORT", port}};
  }));
}

TEST(CliLaunchers, srun__variables_on_one_node) {
  const ScratchDirectory scratch;
  expect_one_report(run_with_variables(3, [&](int rank) {
    return std::map<std::string, std::string>{{"SLURM_PROCID", std::to_string(rank)},
                                              {"SLURM_NTASKS", "3"},
                                              {"SLURM_LOCALID", std::to_string(rank)},
                                              {"SLURM_JOB_ID", "77"},
                                              {"SLURM_STEP_ID", "0"},
                                              {"SLURM_STEP_NUM_NODES", "1"},
                                              {"XDG_RUNTIME_DIR", scratch.path()}};
  }));
  EXPECT_THAT(scratch.names(), ::testing::IsEmpty()) << "the meeting place goes with the job";
}

TEST(CliLaunchers, srun__several_nodes_need_an_address) {
  const auto ended = run_with_variables(2, [&](int rank) {
    return std::map<std::string, std::string>{{"SLURM_PROCID", std::to_string(rank)},
                                              {"SLURM_NTASKS", "2"},
                                              {"SLURM_STEP_NUM_NODES", "2"}};
  });
  for (const Ended& one : ended) {
    EXPECT_NE(one.exit_code, 0);
    EXPECT_THAT(one.error, HasSubstr("come from SLURM_PROCID and SLURM_NTASKS)"));
    EXPECT_THAT(one.error, HasSubstr("--rendezvous HOST:PORT"));
  }
}

/// Variables of srun for a job of two on this node.
std::map<std::string, std::string> slurm_of_two(int rank, const ScratchDirectory& scratch) {
  return {{"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_NTASKS", "2"},
          {"SLURM_JOB_ID", "77"},
          {"SLURM_STEP_NUM_NODES", "1"},
          {"XDG_RUNTIME_DIR", scratch.path()}};
}

TEST(CliLaunchers, failed_rendezvous__leaves_nothing) {
  const ScratchDirectory scratch;
  for (const char* command : {"allreduce", "check"}) {
    for (const int rank : {0, 1}) {
      Command alone = tool({command, "--rendezvous-timeout", "100ms"});
      alone.environment = slurm_of_two(rank, scratch);
      EXPECT_EQ(run(alone).exit_code, 1);
      EXPECT_THAT(scratch.names(), ::testing::IsEmpty()) << command << " as rank " << rank;
    }
  }
  Command lost = tool({"allreduce", "--interface", "nope"});
  lost.environment = slurm_of_two(0, scratch);
  EXPECT_EQ(run(lost).exit_code, 2);
  EXPECT_THAT(scratch.names(), ::testing::IsEmpty()) << "no such interface";
}

TEST(CliLaunchers, one_rank__needs_no_meeting_point) {
  const ScratchDirectory scratch;
  Command by_hand = tool({"allreduce", "--rank", "0", "--world-size", "1"});
  by_hand.arguments.insert(by_hand.arguments.end(), kSmall.begin(), kSmall.end());
  expect_one_report({run(by_hand)});
  expect_one_report(run_with_variables(1, [&](int) {
    return std::map<std::string, std::string>{
        {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"XDG_RUNTIME_DIR", scratch.path()}};
  }));
  EXPECT_THAT(scratch.names(), ::testing::IsEmpty());
}

TEST(CliLaunchers, pmi__variables) {
  const ScratchDirectory scratch;
  expect_one_report(run_with_variables(2, [&](int rank) {
    return std::map<std::string, std::string>{{"PMI_RANK", std::to_string(rank)},
                                              {"PMI_SIZE", "2"},
                                              {"MPI_LOCALRANKID", std::to_string(rank)},
                                              {"MPI_LOCALNRANKS", "2"},
                                              {"XDG_RUNTIME_DIR", scratch.path()}};
  }));
}

/// Variables of torchrun for a job of two on this host.
Command torchrun_of_two(int rank, const std::string& meet, const std::vector<std::string>& more) {
  Command command = tool({"allreduce", "--rendezvous", meet});
  command.arguments.insert(command.arguments.end(), more.begin(), more.end());
  command.environment = {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"}};
  return command;
}

// A launcher mixes the standard error of its ranks.
TEST(CliLaunchers, errors__begin_with_the_rank_and_appear_once) {
  const Ended alone =
      run(torchrun_of_two(1, free_meeting_point(), {"--rendezvous-timeout", "100ms"}));
  EXPECT_THAT(alone.error, ::testing::StartsWith("rank 1: cannot reach rank 0 at "));
  const std::string meet = free_meeting_point();
  const std::vector<std::string> large{"-b", "100T", "-e", "100T"};
  const auto both =
      run_together({torchrun_of_two(0, meet, large), torchrun_of_two(1, meet, large)});
  EXPECT_THAT(both[0].error, ::testing::StartsWith("ranks 0, 1: no memory for "));
  EXPECT_EQ(both[1].error, "");
  EXPECT_EQ(both[1].exit_code, 1);
}

TEST(CliLaunchers, variables__nonsense_is_named) {
  Command command = tool({"allreduce"});
  command.environment = {{"RANK", "2"}, {"WORLD_SIZE", "2"}};
  EXPECT_EQ(run(command).error, "tarpon: RANK=2: must be 0 to 1\n");
}

TEST(CliLaunchers, variables__no_meeting_point) {
  Command command = tool({"allreduce"});
  command.environment = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  EXPECT_THAT(run(command).error,
              HasSubstr("(rank and world size come from RANK and WORLD_SIZE): set "
                        "TARPON_RENDEZVOUS=HOST:PORT or give --rendezvous HOST:PORT, with"));
}

TEST(CliLaunchers, variables__half_a_set_is_named) {
  Command command = tool({"allreduce"});
  command.environment = {{"RANK", "1"}};
  Ended ended = run(command);
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.error,
              ::testing::StartsWith("tarpon: which rank is this? RANK=1 is set, WORLD_SIZE is not: "
                                    "give --local-ranks P, or "));
  command.environment = {{"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_THAT(run(command).error,
              HasSubstr("OMPI_COMM_WORLD_SIZE=2 is set, OMPI_COMM_WORLD_RANK is not: "));
}

Command mpirun(int ranks, const std::vector<std::string>& arguments) {
  Command command{{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", std::to_string(ranks),
                   TARPON_TOOL},
                  {},
                  "."};
  command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
  return command;
}

bool have_mpirun() {
  return run({{"mpirun", "--version"}, {}, "."}).exit_code == 0;
}

TEST(CliLaunchers, mpirun__one_report) {
  if (!have_mpirun()) GTEST_SKIP() << "no mpirun: install openmpi-bin";
  std::vector<std::string> arguments{"allreduce"};
  arguments.insert(arguments.end(), kSmall.begin(), kSmall.end());
  const Ended ended = run(mpirun(4, arguments));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_THAT(ended.out, HasSubstr(" 4 ranks, "));
  EXPECT_THAT(ended.out, HasSubstr("# Out of bounds values : 0 OK\n"));
  EXPECT_EQ(rows_of(ended.out).size(), 1u) << ended.out;
}

TEST(CliLaunchers, mpirun__check) {
  if (!have_mpirun()) GTEST_SKIP() << "no mpirun: install openmpi-bin";
  const ScratchDirectory scratch;
  Command command = mpirun(3, {"check", "--probes", "5"});
  command.environment = {{"XDG_RUNTIME_DIR", scratch.path()}};
  const Ended ended = run(command);
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  EXPECT_EQ(lines_of(ended.out).back(), "# all 6 pairs work") << ended.out;
  EXPECT_THAT(scratch.names(), ::testing::IsEmpty()) << "the meeting place goes with the job";
}

TEST(CliLaunchers, mpirun__files) {
  if (!have_mpirun()) GTEST_SKIP() << "no mpirun: install openmpi-bin";
  const ScratchDirectory scratch;
  for (const float rank : {0.f, 1.f}) {
    const std::vector<float> values{rank, 2 * rank, 8};
    auto file = write_npy(scratch / fmt::format("in{:.0f}.npy", rank), NpyType::float32, {3},
                          std::as_bytes(std::span(values)));
    ASSERT_TRUE(file && file->commit());
  }
  const Ended ended = run(mpirun(2, {"allreduce", "--input", scratch / "in{rank}.npy", "--output",
                                     scratch / "out{rank}.npy", "--op", "avg"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  const std::vector<float> expected{0.5, 1, 8};
  for (const char* name : {"out0.npy", "out1.npy"}) {
    const auto result = read_npy(scratch / name);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_THAT(result->data, ::testing::ElementsAreArray(std::as_bytes(std::span(expected))));
  }
  // Only the launcher knows that there are several ranks.
  const Ended one_path = run(mpirun(2, {"allreduce", "--input", scratch / "in0.npy"}));
  EXPECT_NE(one_path.exit_code, 0);
  EXPECT_THAT(one_path.error, HasSubstr("in0.npy: put {rank} where the rank's number belongs"));
}

}  // namespace
}  // namespace tarpon::test::cli_launchers_test
