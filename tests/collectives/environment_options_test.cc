// From variables and the network of this host to options: what is found, and what is refused.
#include "collectives/environment/environment_options.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "tests/support/rendezvous_job.h"

namespace tarpon::environment_options_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Variables = std::map<std::string, std::string>;

Environment environment(const Variables& variables) {
  return [variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end() || found->second.empty()) return std::nullopt;
    return found->second;
  };
}

const Variables kTwoHosts = {
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"TARPON_RENDEZVOUS", "127.0.0.1:29500"}};

Variables with(const std::string& name, const std::string& value) {
  Variables variables = kTwoHosts;
  variables[name] = value;
  return variables;
}

std::string refusal(const Variables& variables) {
  const auto options = find_options(LaunchFlags(), InterfaceRequest(), environment(variables));
  return options ? "accepted" : options.error().message;
}

TEST(FromEnvironment, place_and_network__are_found) {
  const auto options = find_options(LaunchFlags(), InterfaceRequest(), environment(kTwoHosts));
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_EQ(options->rendezvous.rank, 1);
  EXPECT_EQ(options->rendezvous.world_size, 2u);
  EXPECT_EQ(options->rendezvous.address, "tcp://127.0.0.1:29500");
  EXPECT_EQ(options->address, "127.0.0.1");
  EXPECT_EQ(options->interface, "lo");
  EXPECT_GT(options->mtu, 1500u);
  EXPECT_EQ(options->datapath, Datapath::automatic);
  EXPECT_EQ(options->flight.directory, "");
  EXPECT_EQ(options->flight.signals, FlightSignals::none);
  EXPECT_EQ(options->mechanisms, Mechanisms());
}

TEST(FromEnvironment, settings__override_defaults) {
  Variables variables = kTwoHosts;
  variables["TARPON_DATAPATH"] = "mmsg";
  variables["TARPON_CODEC"] = "off";
  variables["TARPON_LOSS_TARGET"] = "2%";
  variables["TARPON_ORDER"] = "fixed";
  variables["TARPON_MULTICAST"] = "on";
  variables["TARPON_HOSTS"] = "off";
  variables["TARPON_LANES"] = "3";
  variables["TARPON_SHARES"] = "auto";
  variables["TARPON_FLIGHT"] = "/tmp/flight";
  variables["TARPON_RENDEZVOUS_TIMEOUT"] = "1.5m";
  variables["TARPON_PORTS"] = "29600-29699";
  const auto options = find_options(LaunchFlags(), InterfaceRequest(), environment(variables));
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_EQ(options->datapath, Datapath::mmsg);
  EXPECT_EQ(options->mechanisms.codec, CodecRule::off);
  EXPECT_EQ(options->mechanisms.loss_target, 0.02);
  EXPECT_FALSE(options->mechanisms.rotation);
  EXPECT_TRUE(options->multicast);
  EXPECT_FALSE(options->hosts);
  EXPECT_EQ(options->lanes, 3u);
  EXPECT_TRUE(options->learn_shares);
  EXPECT_EQ(options->flight.directory, "/tmp/flight");
  EXPECT_EQ(options->rendezvous.timeout, 90s);
  EXPECT_EQ(options->ports, (PortRange{29600, 29699}));
  EXPECT_EQ(options->flight.signals, FlightSignals::unhandled);
}

TEST(FromEnvironment, secret__from_a_file_or_a_descriptor) {
  const testing_support::Directory directory;
  const std::string content(32, 's');
  std::ofstream(directory.file()) << content;
  ASSERT_EQ(chmod(directory.file().c_str(), 0600), 0);
  const int descriptor = open(directory.file().c_str(), O_RDONLY | O_CLOEXEC);
  for (const auto& [name, value] : {std::pair("TARPON_SECRET_FILE", directory.file()),
                                    std::pair("TARPON_SECRET_FD", std::to_string(descriptor))}) {
    Variables variables = with(name, value);
    variables["TARPON_INTEGRITY"] = "sealed";
    const auto options = find_options(LaunchFlags(), InterfaceRequest(), environment(variables));
    ASSERT_TRUE(options) << options.error().message;
    ASSERT_NE(options->rendezvous.secret, nullptr);
    EXPECT_EQ(options->rendezvous.secret->bytes().size(), content.size());
    EXPECT_EQ(options->integrity, TARPON_INTEGRITY_SEALED);
  }
  Variables both = with("TARPON_SECRET_FILE", directory.file());
  both["TARPON_SECRET_FD"] = "7";
  EXPECT_EQ(refusal(both), "TARPON_SECRET_FILE and TARPON_SECRET_FD are both set: keep one");
  for (const char* wrong : {"x", "-1", "7x"}) {
    EXPECT_EQ(refusal(with("TARPON_SECRET_FD", wrong)),
              std::string("TARPON_SECRET_FD=") + wrong + ": give the number of an open descriptor");
  }
  EXPECT_EQ(refusal(with("TARPON_INTEGRITY", "udp")), "TARPON_INTEGRITY=udp: use keyed or sealed");
}

TEST(FromEnvironment, rendezvous_timeout__that_the_caller_gives_counts) {
  LaunchFlags flags;
  flags.rendezvous_timeout = 7s;
  const auto options = find_options(flags, InterfaceRequest(),
                                    environment(with("TARPON_RENDEZVOUS_TIMEOUT", "100ms")));
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_EQ(options->rendezvous.timeout, 7s);
  const auto usual = find_options(LaunchFlags(), InterfaceRequest(), environment(kTwoHosts));
  ASSERT_TRUE(usual) << usual.error().message;
  EXPECT_EQ(usual->rendezvous.timeout, 5min) << "the ranks are on two hosts";
}

TEST(FromEnvironment, unknown_name_of_rank_0__is_asked_for_until_the_timeout) {
  Variables variables = with("TARPON_RENDEZVOUS", "unknown.invalid:1");
  variables.erase("TARPON_INTERFACE");
  variables["TARPON_RENDEZVOUS_TIMEOUT"] = "300ms";
  EXPECT_THAT(refusal(variables),
              AllOf(HasSubstr("host unknown.invalid is not known ("), HasSubstr("; asked for ")));
}

TEST(FromEnvironment, one_rank__needs_no_rendezvous) {
  const auto options = find_options(LaunchFlags(), InterfaceRequest(),
                                    environment({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_EQ(options->rendezvous.address, "");
  EXPECT_EQ(options->interface, "lo");
}

TEST(FromEnvironment, local_ranks__meet_in_a_private_directory_on_loopback) {
  std::string root = (std::filesystem::temp_directory_path() / "tarpon-found-XXXXXX").string();
  ASSERT_NE(::mkdtemp(root.data()), nullptr);
  const auto options = find_options(LaunchFlags(), InterfaceRequest(),
                                    environment({{"OMPI_COMM_WORLD_RANK", "1"},
                                                 {"OMPI_COMM_WORLD_SIZE", "2"},
                                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                                 {"PMIX_NAMESPACE", "7"},
                                                 {"XDG_RUNTIME_DIR", root}}));
  EXPECT_TRUE(options) << options.error().message;
  if (options) {
    EXPECT_THAT(options->rendezvous.address, StartsWith("file://" + root + "/tarpon-"));
    EXPECT_EQ(options->interface, "lo");
  }
  std::filesystem::remove_all(root);
}

TEST(FromEnvironment, refusals__name_the_variable_its_value_and_the_remedy) {
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("which rank"), HasSubstr("torchrun"),
                                 HasSubstr("RANK, WORLD_SIZE and TARPON_RENDEZVOUS")));
  EXPECT_EQ(refusal(with("RANK", "2")), "RANK=2: must be 0 to 1");
  EXPECT_THAT(refusal({{"RANK", "0"}}),
              AllOf(StartsWith("RANK=0 is set, WORLD_SIZE is not: start it with torchrun, "),
                    HasSubstr("TARPON_RENDEZVOUS=HOST:PORT")));
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
            "nothing says where the ranks meet (rank and world size come from RANK and "
            "WORLD_SIZE): set TARPON_RENDEZVOUS=HOST:PORT, with an address of rank 0");
  EXPECT_THAT(refusal(with("TARPON_RENDEZVOUS", "nowhere")),
              AllOf(StartsWith("TARPON_RENDEZVOUS=nowhere: "), HasSubstr("HOST:PORT")));
  EXPECT_EQ(refusal(with("TARPON_DATAPATH", "rdma")),
            "TARPON_DATAPATH=rdma: use auto, xdp, uring or mmsg");
  EXPECT_EQ(refusal(with("TARPON_CODEC", "fast")), "TARPON_CODEC=fast: use auto, on or off");
  EXPECT_EQ(refusal(with("TARPON_ORDER", "any")), "TARPON_ORDER=any: use rotating or fixed");
  EXPECT_EQ(refusal(with("TARPON_MULTICAST", "1")), "TARPON_MULTICAST=1: use on or off");
  EXPECT_EQ(refusal(with("TARPON_SHARES", "1,2")), "TARPON_SHARES=1,2: use even or auto");
  for (const char* text : {"90", "0s", "-1s", "1d", "s", "1e3s", "nan", "99999999h"}) {
    EXPECT_EQ(refusal(with("TARPON_RENDEZVOUS_TIMEOUT", text)),
              std::string("TARPON_RENDEZVOUS_TIMEOUT=") + text +
                  ": give a duration above 0, such as 90s or 5m");
  }
  EXPECT_THAT(refusal(with("TARPON_PORTS", "29699-29600")),
              StartsWith("TARPON_PORTS: \"29699-29600\" is not a range of ports"));
  EXPECT_EQ(refusal(with("TARPON_LOSS_TARGET", "0.01")),
            "TARPON_LOSS_TARGET: \"0.01\" has no unit, and a percentage is meant: write for "
            "example 1%");
  EXPECT_EQ(refusal(with("TARPON_LOSS_TARGET", "100%")),
            "TARPON_LOSS_TARGET=100%: give a share above 0% and below 100%, such as 0.1%");
  EXPECT_THAT(refusal(with("TARPON_INTERFACE", "nope7")),
              AllOf(StartsWith("TARPON_INTERFACE=nope7: no interface matches"),
                    HasSubstr("lo (127.0.0.1)")));
}

TEST(FromEnvironment, refused_interface__leaves_no_directory) {
  std::string root = (std::filesystem::temp_directory_path() / "tarpon-found-XXXXXX").string();
  ASSERT_NE(::mkdtemp(root.data()), nullptr);
  EXPECT_THAT(refusal({{"PMI_RANK", "0"},
                       {"PMI_SIZE", "2"},
                       {"MPI_LOCALNRANKS", "2"},
                       {"TARPON_INTERFACE", "nope7"},
                       {"XDG_RUNTIME_DIR", root}}),
              StartsWith("TARPON_INTERFACE=nope7"));
  EXPECT_TRUE(std::filesystem::is_empty(root));
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace tarpon::environment_options_test
