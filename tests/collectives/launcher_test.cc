// Which rank this is, by each launcher's variables, and where the ranks meet.
#include "collectives/environment/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace tarpon::launcher_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
namespace fs = std::filesystem;
using Variables = std::map<std::string, std::string>;

Environment environment(Variables variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end() || found->second.empty()) return std::nullopt;
    return found->second;
  };
}

JobPlace place(const Variables& variables, const LaunchFlags& flags = {}) {
  const auto found = find_job_place(flags, environment(variables));
  EXPECT_TRUE(found) << found.error().message;
  EXPECT_TRUE(found && *found);
  return found && *found ? **found : JobPlace{};
}

std::string refusal(const Variables& variables, const LaunchFlags& flags = {}) {
  const auto found = find_job_place(flags, environment(variables));
  return found ? "accepted" : found.error().message;
}

const Variables kTorchrun = {{"RANK", "3"},           {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "node"}, {"MASTER_PORT", "29500"}};

TEST(Launcher, find_job_place__nobody) {
  const auto found = find_job_place({}, environment({}));
  ASSERT_TRUE(found);
  EXPECT_FALSE(*found);
}

TEST(Launcher, find_job_place__flags_win) {
  const JobPlace found = place(kTorchrun, {5, 6, "10.0.0.1:7777"});
  EXPECT_EQ(found.launcher, "flags");
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.world_size, 6u);
  EXPECT_EQ(found.rendezvous, "tcp://10.0.0.1:7777");
}

TEST(Launcher, find_job_place__torchrun) {
  const JobPlace found = place(kTorchrun);
  EXPECT_EQ(found.launcher, "torchrun");
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.world_size, 8u);
  EXPECT_EQ(found.local_size, 2);
  EXPECT_EQ(found.rendezvous, "tcp://node:29501");
  EXPECT_FALSE(found.all_local());
}

TEST(Launcher, find_job_place__open_mpi) {
  const JobPlace found = place({{"OMPI_COMM_WORLD_RANK", "1"},
                                {"OMPI_COMM_WORLD_SIZE", "4"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                {"PMIX_NAMESPACE", "1234@host"},
                                {"PMIX_RANK", "1"}});
  EXPECT_EQ(found.launcher, "Open MPI");
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.world_size, 4u);
  EXPECT_TRUE(found.all_local());
  EXPECT_EQ(found.job_id, "1234@host");
  EXPECT_FALSE(found.rendezvous);
}

TEST(Launcher, find_job_place__pmi) {
  const JobPlace found = place(
      {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(found.launcher, "PMI");
  EXPECT_TRUE(found.all_local());
  EXPECT_EQ(found.job_id, "parent-" + std::to_string(::getppid()));
}

TEST(Launcher, find_job_place__pmix_takes_its_size_where_it_is) {
  EXPECT_EQ(place({{"PMIX_RANK", "2"}, {"PMIX_SIZE", "3"}}).world_size, 3u);
  const JobPlace found = place({{"PMIX_RANK", "2"},
                                {"PMIX_NAMESPACE", "slurm.pmix.7.0"},
                                {"SLURM_NTASKS", "4"},
                                {"SLURM_STEP_NUM_NODES", "1"}});
  EXPECT_EQ(found.launcher, "PMIx");
  EXPECT_EQ(found.world_size, 4u);
  EXPECT_TRUE(found.all_local());
  const auto none = find_job_place({}, environment({{"PMIX_RANK", "2"}}));
  ASSERT_TRUE(none);
  EXPECT_FALSE(*none);
}

TEST(Launcher, find_job_place__slurm) {
  Variables variables = {{"SLURM_PROCID", "5"},         {"SLURM_NTASKS", "8"},
                         {"SLURM_LOCALID", "1"},        {"SLURM_NTASKS_PER_NODE", "4"},
                         {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_JOB_ID", "77"},
                         {"SLURM_STEP_ID", "3"}};
  const JobPlace found = place(variables);
  EXPECT_EQ(found.launcher, "Slurm");
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.local_size, 4);
  EXPECT_EQ(found.job_id, "77.3");
  // The limit per node does not make tasks of two nodes local.
  variables["SLURM_NTASKS_PER_NODE"] = "8";
  EXPECT_FALSE(place(variables).all_local());
  variables["SLURM_STEP_NUM_NODES"] = "1";
  EXPECT_TRUE(place(variables).all_local());
}

TEST(Launcher, find_job_place__pmi_below_slurm) {
  // srun --mpi=pmi2 sets no count of the ranks on this host.
  Variables variables = {{"PMI_RANK", "1"},     {"PMI_SIZE", "4"},
                         {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"},
                         {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_NUM_NODES", "1"}};
  const JobPlace found = place(variables);
  EXPECT_EQ(found.launcher, "PMI");
  EXPECT_TRUE(found.all_local());
  variables["SLURM_STEP_NUM_NODES"] = "2";
  EXPECT_FALSE(place(variables).all_local());
}

TEST(Launcher, find_job_place__first_complete_set) {
  // RANK without WORLD_SIZE is somebody else's variable.
  const JobPlace found = place({{"RANK", "9"},
                                {"PMI_RANK", "1"},
                                {"PMI_SIZE", "2"},
                                {"SLURM_PROCID", "0"},
                                {"SLURM_NTASKS", "7"}});
  EXPECT_EQ(found.launcher, "PMI");
  EXPECT_EQ(found.rank, 1);
}

TEST(Launcher, half_set_launcher__names_what_is_set_and_what_is_not) {
  const auto half = [](const Variables& variables) {
    return half_set_launcher(environment(variables));
  };
  EXPECT_EQ(half({}), "");
  EXPECT_EQ(half({{"RANK", "0"}}), "RANK=0 is set, WORLD_SIZE is not");
  EXPECT_EQ(half({{"WORLD_SIZE", "2"}}), "WORLD_SIZE=2 is set, RANK is not");
  EXPECT_EQ(half({{"OMPI_COMM_WORLD_RANK", "\x1b[2J"}}),
            "OMPI_COMM_WORLD_RANK=?[2J is set, OMPI_COMM_WORLD_SIZE is not");
  EXPECT_EQ(half({{"PMIX_RANK", "1"}}), "PMIX_RANK=1 is set, PMIX_SIZE is not");
  // A shell in an allocation, where srun has not started this process.
  EXPECT_THAT(half({{"SLURM_NTASKS", "4"}}),
              AllOf(HasSubstr("Slurm has reserved 4 tasks"), HasSubstr("srun --ntasks=4 PROGRAM")));
}

TEST(Launcher, find_job_place__slurm_without_srun) {
  // The script of sbatch is task 0 of as many as were asked for.
  const Variables script = {
      {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "77"}, {"SLURM_NNODES", "1"}};
  EXPECT_THAT(refusal(script), AllOf(HasSubstr("SLURM_NTASKS=8: Slurm has reserved 8 tasks"),
                                     HasSubstr("`srun --ntasks=8 PROGRAM`")));
  // The place that the user names counts.
  EXPECT_EQ(place(script, {1, 2, "h:1"}).rank, 1);
  Variables alone = script;
  alone["SLURM_NTASKS"] = "1";
  EXPECT_EQ(place(alone).world_size, 1u);
  Variables step = script;
  step["SLURM_STEP_ID"] = "0";
  EXPECT_EQ(place(step).world_size, 8u);
}

TEST(Launcher, usual_rendezvous_timeout__is_longer_where_a_launcher_starts_several_hosts) {
  EXPECT_EQ(usual_rendezvous_timeout(place({}, {0, 2, "h:1"})), 30s) << "by hand";
  EXPECT_EQ(usual_rendezvous_timeout(place(kTorchrun)), 5min);
  Variables local = kTorchrun;
  local["LOCAL_WORLD_SIZE"] = "8";
  EXPECT_EQ(usual_rendezvous_timeout(place(local)), 30s);
}

TEST(Launcher, find_job_place__bad_values) {
  EXPECT_EQ(refusal({{"RANK", "abc"}, {"WORLD_SIZE", "4"}}), "RANK=abc: not a number from 0 to 3");
  EXPECT_EQ(refusal({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), "RANK=4: must be 0 to 3");
  EXPECT_EQ(refusal({{"RANK", "-1"}, {"WORLD_SIZE", "4"}}), "RANK=-1: must be 0 to 3");
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), "WORLD_SIZE=0: must be 1 to 65535");
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "99999999999999999999"}}),
              StartsWith("WORLD_SIZE="));
  EXPECT_THAT(refusal({{"RANK", "1 "}, {"WORLD_SIZE", "4"}}), StartsWith("RANK=1 :"));
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "5"}}),
            "LOCAL_WORLD_SIZE=5: must be 1 to 4");
  EXPECT_EQ(refusal({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_NODES", "x"}}),
            "SLURM_STEP_NUM_NODES=x: not a number from 1 to 65535");
  EXPECT_EQ(refusal({}, {0, {}, {}}), "--rank needs --world-size too");
  EXPECT_EQ(refusal({}, {{}, 2, {}}), "--world-size needs --rank too");
  EXPECT_EQ(refusal({}, {2, 2, {}}), "--rank=2: must be 0 to 1");
  EXPECT_EQ(refusal({}, {0, 0, {}}), "--world-size=0: must be 1 to 65535");
}

TEST(Launcher, find_job_place__master_port) {
  Variables variables = kTorchrun;
  variables["TARPON_PORT"] = "4000";
  EXPECT_EQ(place(variables).rendezvous, "tcp://node:4000");
  variables["TARPON_PORT"] = "port";
  EXPECT_EQ(refusal(variables), "TARPON_PORT=port: not a number from 1 to 65535");
  variables.erase("TARPON_PORT");
  variables["MASTER_PORT"] = "65535";
  EXPECT_EQ(refusal(variables), "MASTER_PORT=65535: must be 1 to 65534");
  variables.erase("MASTER_PORT");
  EXPECT_FALSE(place(variables).rendezvous);
}

TEST(Launcher, find_job_place__explicit_rendezvous) {
  EXPECT_EQ(place({}, {0, 2, "host:1"}).rendezvous, "tcp://host:1");
  EXPECT_EQ(place({}, {0, 2, "tcp://host:1"}).rendezvous, "tcp://host:1");
  EXPECT_EQ(place({}, {0, 2, "file:///x/y"}).rendezvous, "file:///x/y");
  EXPECT_EQ(place(kTorchrun, {{}, {}, "host:1"}).rendezvous, "tcp://host:1");
  for (const char* text :
       {"host", "", ":5", "tcp://", "file://", "udp://host:1", "host:0", "host:x", "host:70000"}) {
    EXPECT_THAT(refusal({}, {0, 2, text}), StartsWith("--rendezvous")) << text;
  }
}

TEST(Launcher, find_job_place__a_malformed_rendezvous_is_no_ipv6_address) {
  for (const char* text : {"tcp:/10.7.0.1:29500", "tcp:10.7.0.1:29500", "file:/x/y", "a:b:29500",
                           "http:/h:1", "tcp://10.7.0.1/:29500"}) {
    EXPECT_THAT(refusal({}, {0, 2, text}),
                AllOf(StartsWith(std::string("--rendezvous ") + text),
                      HasSubstr("write HOST:PORT, tcp://HOST:PORT or file://PATH"),
                      Not(HasSubstr("IPv6"))));
  }
  for (const char* text : {"[::1]:29500", "tcp://[fe80::7]:29500", "fe80::7:29500"}) {
    EXPECT_THAT(refusal({}, {0, 2, text}), HasSubstr("IPv6 is not supported yet")) << text;
  }
}

TEST(Launcher, find_job_place__tarpon_rendezvous) {
  Variables variables = kTorchrun;
  variables["TARPON_RENDEZVOUS"] = "host:1";
  EXPECT_EQ(place(variables).rendezvous, "tcp://host:1");
  EXPECT_EQ(place(variables, {{}, {}, "flag:2"}).rendezvous, "tcp://flag:2");
  variables["TARPON_RENDEZVOUS"] = "file:///x/y";
  EXPECT_EQ(place(variables).rendezvous, "file:///x/y");
  variables["TARPON_RENDEZVOUS"] = "host";
  EXPECT_EQ(refusal(variables),
            "TARPON_RENDEZVOUS=host: write HOST:PORT, tcp://HOST:PORT or file://PATH");
  variables["TARPON_RENDEZVOUS"] = "host:99999";
  EXPECT_THAT(refusal(variables), StartsWith("TARPON_RENDEZVOUS=host:99999: port=99999:"));
}

class PrivateDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "tarpon-launcher-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    place_.world_size = 4;
    place_.local_size = 4;
    place_.launcher = "Open MPI";
    place_.named_by = "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE";
    place_.job_id = "12/../34@host";
  }
  void TearDown() override { fs::remove_all(root_); }

  Result<std::string> find() const {
    return find_rendezvous(place_, environment({{"XDG_RUNTIME_DIR", root_.string()}}));
  }
  std::string directory() const {
    return (root_ / ("tarpon-" + std::to_string(::geteuid()) + "-12_.._34_host")).string();
  }

  fs::path root_;
  JobPlace place_;
};

TEST_F(PrivateDirectory, find_rendezvous__made_private_and_shared_by_the_ranks) {
  const auto address = find();
  ASSERT_TRUE(address) << address.error().message;
  EXPECT_EQ(*address, "file://" + directory() + "/rendezvous");
  struct stat status {};
  ASSERT_EQ(::stat(directory().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  EXPECT_EQ(find().value(), *address);
}

TEST_F(PrivateDirectory, find_rendezvous__refuses_what_others_could_have_made) {
  fs::create_directory(directory());
  fs::permissions(directory(), fs::perms::all);
  EXPECT_THAT(find().error().message,
              AllOf(HasSubstr(directory()), HasSubstr("TARPON_RENDEZVOUS")));
  EXPECT_EQ(find().error().code, Error::Code::permission);
  fs::remove(directory());
  fs::create_directory(root_ / "elsewhere");
  fs::permissions(root_ / "elsewhere", fs::perms::owner_all);
  fs::create_directory_symlink(root_ / "elsewhere", directory());
  EXPECT_FALSE(find());
  fs::remove(directory());
  std::ofstream(directory()) << "file";
  EXPECT_FALSE(find());
}

TEST_F(PrivateDirectory, find_rendezvous__unusable_runtime_directory_gives_tmp) {
  const auto address =
      find_rendezvous(place_, environment({{"XDG_RUNTIME_DIR", (root_ / "none").string()}}));
  ASSERT_TRUE(address);
  EXPECT_THAT(*address, StartsWith("file:///tmp/tarpon-"));
  remove_rendezvous(*address);
}

TEST_F(PrivateDirectory, find_rendezvous__asks_when_nothing_tells) {
  place_.local_size = 2;
  EXPECT_THAT(find().error().message,
              AllOf(HasSubstr("come from OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE)"),
                    HasSubstr("set TARPON_RENDEZVOUS=HOST:PORT, with")));
  place_.rendezvous_remedy = " or give --rendezvous HOST:PORT";
  EXPECT_THAT(
      find().error().message,
      AllOf(HasSubstr("set TARPON_RENDEZVOUS=HOST:PORT or give --rendezvous HOST:PORT, with"),
            HasSubstr("(`mpirun -x TARPON_RENDEZVOUS=10.0.0.1:29500 ...`)")));
  place_.local_size = -1;
  EXPECT_FALSE(find());
  place_.rendezvous = "tcp://node:1";
  EXPECT_EQ(find(), "tcp://node:1");
}

TEST_F(PrivateDirectory, find_rendezvous__one_rank_meets_nobody) {
  const JobPlace alone = place({}, {0, 1, {}});
  EXPECT_TRUE(alone.all_local());
  EXPECT_EQ(find_rendezvous(alone, environment({})), "");
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(PrivateDirectory, remove_rendezvous__only_ours) {
  const std::string address = find().value();
  std::ofstream(address.substr(7)) << "x";
  remove_rendezvous(address);
  EXPECT_TRUE(fs::exists(address.substr(7))) << "rank 0 may still be meeting others";
  fs::remove(address.substr(7));
  remove_rendezvous(address);
  EXPECT_FALSE(fs::exists(directory()));
  remove_rendezvous(address);
  fs::create_directory(root_ / "users");
  remove_rendezvous("file://" + (root_ / "users/rendezvous").string());
  remove_rendezvous("tcp://host:1");
  remove_rendezvous("");
  EXPECT_TRUE(fs::exists(root_ / "users"));
}

}  // namespace
}  // namespace tarpon::launcher_test
