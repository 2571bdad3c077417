// The network of namespaces: that it carries, shapes and loses what it is told to, and vanishes.
#include "tools/namespaces/testbed.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <set>

#include "collectives/environment/interfaces.h"
#include "tests/support/testbed_network.h"
#include "tools/job/process_group.h"
#include "tools/namespaces/background_traffic.h"
#include "tools/namespaces/network_namespace.h"
#include "transport/clock.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon::testbed_test {
namespace {

using test::kPatience;
using test::make;
using test::receive_one;
using test::run_in;
using test::send_to;
using test::TestbedTest;
using test::udp_socket;
using ::testing::HasSubstr;
using ::testing::Not;

ino_t inode_of(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? status.st_ino : 0;
}

std::set<ino_t> inodes(const Testbed& testbed) {
  std::set<ino_t> out{inode_of(testbed.hub())};
  for (std::uint32_t rank = 0; rank < testbed.ranks(); ++rank) {
    out.insert(inode_of(testbed.network_namespace(static_cast<Rank>(rank))));
  }
  return out;
}

/// Whether any process lives in one of these namespaces or holds a descriptor of one.
bool anyone_holds(const std::set<ino_t>& wanted) {
  const auto is_wanted = [&](const std::filesystem::path& path) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(path, error).string();
    if (error || !target.starts_with("net:[")) return false;
    return wanted.contains(std::stoull(target.substr(5)));
  };
  std::error_code error;
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    const std::string name = process.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (is_wanted(process.path() / "ns/net")) return true;
    const auto fds = std::filesystem::directory_iterator(process.path() / "fd", error);
    for (const auto& fd : fds) {
      if (is_wanted(fd.path())) return true;
    }
  }
  return false;
}

std::set<int> children() {
  std::set<int> out;
  std::FILE* file = std::fopen("/proc/thread-self/children", "r");
  for (int pid = 0; file != nullptr && std::fscanf(file, "%d", &pid) == 1;) out.insert(pid);
  if (file != nullptr) std::fclose(file);
  return out;
}

std::string own_links() {
  return run_in(-1, {"ip", "-o", "link"});
}

TEST_F(TestbedTest, create__ranks_reach_each_other) {
  const Time start = monotonic_now();
  TestbedOptions options;
  options.ranks = 8;
  const Testbed testbed = make(options);
  std::printf("8 ranks made in %.0f ms\n",
              std::chrono::duration<double, std::milli>(monotonic_now() - start).count());
  std::vector<FileDescriptor> sockets;
  for (Rank rank = 0; rank < 8; ++rank) sockets.push_back(udp_socket(testbed, rank, 7000));
  for (Rank from = 0; from < 8; ++from) {
    for (Rank to = 0; to < 8; ++to) {
      const std::string text = "from " + std::to_string(from);
      ASSERT_EQ(send_to(sockets[from], testbed, to, 7000, text), static_cast<ssize_t>(text.size()));
      EXPECT_EQ(receive_one(sockets[to]), text) << from << " to " << to;
    }
  }
  EXPECT_EQ(testbed.address(0), "10.77.0.1");
  EXPECT_EQ(testbed.address(7), "10.77.0.8");
}

TEST_F(TestbedTest, create__mtu_and_queues) {
  TestbedOptions options;
  options.mtu = 9000;
  options.transmit_queues = 4;
  options.receive_queues = 3;
  const Testbed testbed = make(options);
  const std::string link =
      run_in(testbed.network_namespace(1), {"ip", "-d", "-o", "link", "show", "eth0"});
  EXPECT_THAT(link, HasSubstr("mtu 9000"));
  EXPECT_THAT(link, HasSubstr("numtxqueues 4 numrxqueues 3"));
  EXPECT_THAT(run_in(testbed.hub(), {"ip", "-o", "link", "show", "br0"}), HasSubstr("mtu 9000"));
  const FileDescriptor from = udp_socket(testbed, 0, 7000);
  const FileDescriptor to = udp_socket(testbed, 1, 7000);
  const int never_fragment = IP_PMTUDISC_PROBE;
  ::setsockopt(from.get(), IPPROTO_IP, IP_MTU_DISCOVER, &never_fragment, sizeof never_fragment);
  EXPECT_EQ(send_to(from, testbed, 1, 7000, std::string(9000 - 28, 'x')), 9000 - 28);
  EXPECT_EQ(receive_one(to).size(), 9000u - 28);
  EXPECT_EQ(send_to(from, testbed, 1, 7000, std::string(9000 - 27, 'x')), -1);
  EXPECT_EQ(errno, EMSGSIZE);
}

TEST_F(TestbedTest, create__quiet_and_complete_inside) {
  const Testbed testbed = make({});
  const int inside = testbed.network_namespace(0);
  EXPECT_THAT(run_in(inside, {"ip", "-6", "address"}), ::testing::IsEmpty());
  EXPECT_THAT(run_in(inside, {"ip", "-4", "-o", "address", "show", "lo"}), HasSubstr("127.0.0.1"));
  EXPECT_THAT(run_in(testbed.hub(), {"tc", "qdisc"}), Not(HasSubstr("tbf")));
  EXPECT_THAT(run_in(testbed.hub(), {"tc", "qdisc"}), Not(HasSubstr("clsact")));
  EXPECT_FALSE(testbed.loss_counters(0));
}

TEST_F(TestbedTest, create__rate_is_a_token_bucket_on_every_port) {
  TestbedOptions options;
  options.ranks = 3;
  options.rate = TestbedRate{};
  const Testbed testbed = make(options);
  for (const char* port : {"p0", "p1", "p2"}) {
    const std::string qdisc = run_in(testbed.hub(), {"tc", "qdisc", "show", "dev", port});
    EXPECT_THAT(qdisc, HasSubstr("tbf"));
    // The kernel keeps the burst as a time, so it reads back rounded.
    EXPECT_THAT(qdisc, ::testing::ContainsRegex("rate 2Gbit burst (128Kb|131[0-9]+b)"));
  }
  EXPECT_THAT(run_in(testbed.hub(), {"tc", "-r", "qdisc", "show", "dev", "p0"}),
              HasSubstr("limit 400Kb"));
}

TEST_F(TestbedTest, create__rate_of_one_port) {
  TestbedOptions options;
  options.ranks = 3;
  options.rate_of[1] = TestbedRate{1'000'000'000};
  const auto qdisc = [](const Testbed& testbed, const char* port) {
    return run_in(testbed.hub(), {"tc", "qdisc", "show", "dev", port});
  };
  {
    const Testbed testbed = make(options);
    EXPECT_THAT(qdisc(testbed, "p0"), Not(HasSubstr("tbf")));
    EXPECT_THAT(qdisc(testbed, "p1"), HasSubstr("rate 1Gbit"));
  }
  options.rate = TestbedRate{};
  const Testbed testbed = make(options);
  EXPECT_THAT(qdisc(testbed, "p0"), HasSubstr("rate 2Gbit"));
  EXPECT_THAT(qdisc(testbed, "p1"), HasSubstr("rate 1Gbit"));
}

TEST_F(TestbedTest, create__several_ranks_on_a_host) {
  TestbedOptions options;
  options.ranks = 5;
  options.places = {.per_host = 2, .round_robin = true};
  options.rate_of[4] = TestbedRate{1'000'000'000};  // on host 1, with rank 1
  const Testbed testbed = make(options);
  EXPECT_EQ(testbed.hosts(), 3u);
  for (Rank rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(testbed.address(rank), "10.77.0." + std::to_string(rank % 3 + 1));
    EXPECT_EQ(inode_of(testbed.network_namespace(rank)),
              inode_of(testbed.network_namespace(rank % 3)));
  }
  EXPECT_THAT(run_in(testbed.hub(), {"tc", "qdisc", "show", "dev", "p1"}), HasSubstr("rate 1Gbit"));
  EXPECT_THAT(run_in(testbed.hub(), {"tc", "qdisc", "show", "dev", "p0"}), Not(HasSubstr("tbf")));
}

TEST_F(TestbedTest, create__uplinks) {
  TestbedOptions options;
  options.uplink = TestbedRate{1'000'000'000};
  const Testbed testbed = make(options);
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    EXPECT_THAT(run_in(testbed.network_namespace(rank), {"tc", "qdisc", "show", "dev", "eth0"}),
                HasSubstr("rate 1Gbit"));
  }
  EXPECT_THAT(run_in(testbed.hub(), {"tc", "qdisc", "show", "dev", "p0"}), Not(HasSubstr("tbf")));
}

TEST_F(TestbedTest, create__tcp_congestion_is_that_of_the_route) {
  TestbedOptions options;
  options.tcp_congestion = "reno";  // every kernel has it
  const Testbed testbed = make(options);
  EXPECT_THAT(run_in(testbed.network_namespace(1), {"ip", "route", "get", "10.77.0.1"}),
              HasSubstr("congctl reno"));
}

TEST_F(TestbedTest, create__bad_options) {
  const auto refusal = [](const TestbedOptions& options) {
    const auto testbed = Testbed::create(options);
    return testbed ? "accepted" : testbed.error().message;
  };
  TestbedOptions options;
  options.ranks = 0;
  EXPECT_THAT(refusal(options), HasSubstr("0 ranks"));
  options.ranks = 251;
  EXPECT_THAT(refusal(options), HasSubstr("1 to 250"));
  options = {};
  options.mtu = 100;
  EXPECT_THAT(refusal(options), HasSubstr("MTU 100"));
  options = {};
  options.loss = TestbedLoss{1.5, 1};
  EXPECT_THAT(refusal(options), HasSubstr("loss of 1.5"));
  options = {};
  options.rate = TestbedRate{0};
  EXPECT_THAT(refusal(options), HasSubstr("rate of 0"));
  options = {};
  options.rate = TestbedRate{1000, 1000};
  EXPECT_THAT(refusal(options), HasSubstr("rate with bursts of 1000 bytes: 1518 (a frame)"));
  options.rate = TestbedRate{1000, 4096, 4095};
  EXPECT_THAT(refusal(options), HasSubstr("queue of 4095 bytes"));
  options = {};
  options.uplink = TestbedRate{0};
  EXPECT_THAT(refusal(options), HasSubstr("rate of 0"));
  options = {};
  options.rate_of[2] = TestbedRate{};
  EXPECT_THAT(refusal(options), HasSubstr("rank 2 of 2"));
  options = {};
  options.police_of[7] = TestbedLimit{};
  EXPECT_THAT(refusal(options), HasSubstr("rank 7 of 2"));
  options = {};
  options.police = TestbedLimit{0};
  EXPECT_THAT(refusal(options), HasSubstr("policer of 0 bits"));
  options = {};
  options.flow_limit = TestbedLimit{1000, 2u << 30};
  EXPECT_THAT(refusal(options), HasSubstr("flow limit with bursts of 2147483648"));
  options = {};
  options.loss = TestbedLoss{0, 1, 0.9, 8};
  EXPECT_THAT(refusal(options), HasSubstr("loss of 0.9 in bursts of 8 packets"));
  options.loss = TestbedLoss{0, 1, 0.1, 0.5};
  EXPECT_THAT(refusal(options), HasSubstr("bursts of 0.5 packets"));
  options = {};
  options.receive_queues = 0;
  EXPECT_THAT(refusal(options), HasSubstr("0 receive queues"));
  options = {};
  options.tcp_congestion = "nonesuch";
  EXPECT_THAT(refusal(options), HasSubstr("\"nonesuch\": this kernel has "));
  const Testbed testbed = make({});
  EXPECT_FALSE(testbed.enter(2));
}

TEST_F(TestbedTest, create__without_privileges_names_the_remedy) {
  const auto result = run_process_group(1, [](Rank) {
    if (::setresuid(65534, 65534, 65534) != 0) return 1;
    const auto testbed = Testbed::create({});
    if (testbed || testbed.error().code != Error::Code::permission) return 2;
    return testbed.error().message.find("run as root") == std::string::npos ? 3 : 0;
  });
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->ok()) << result->summary();
}

TEST_F(TestbedTest, enter__ranks_of_a_process_group) {
  TestbedOptions options;
  options.ranks = 3;
  const Testbed testbed = make(options);
  const auto result = run_process_group(3, [&](Rank rank) {
    if (!testbed.enter(rank)) return 1;
    const auto interfaces = list_interfaces();
    if (!interfaces || interfaces->size() != 2) return 2;
    const Interface& link = interfaces->back();
    return link.name == testbed.interface() && link.address == testbed.address(rank) ? 0 : 3;
  });
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->ok()) << result->summary();
}

TEST_F(TestbedTest, background__moves_bytes_both_ways_and_ends) {
  const Testbed testbed = make({});
  const std::set<int> before = children();
  {
    const auto traffic = BackgroundTraffic::start(testbed, 3);
    ASSERT_TRUE(traffic) << traffic.error().message;
    EXPECT_EQ(children().size(), before.size() + 2);
    // Acknowledgements alone stay far below this many bytes in either direction.
    const auto bytes = [&](const char* direction) {
      const std::string text = run_in(testbed.hub(), {"ip", "-s", "-o", "link", "show", "p0"});
      const std::size_t at = text.find(direction);
      const std::size_t line = text.find('\\', at);
      return at == std::string::npos ? 0ull : std::stoull(text.substr(line + 1));
    };
    const Time end = monotonic_now() + kPatience;
    while ((bytes("RX:") < 100'000'000 || bytes("TX:") < 100'000'000) && monotonic_now() < end) {
      ::usleep(10'000);
    }
    EXPECT_GE(bytes("RX:"), 100'000'000u);
    EXPECT_GE(bytes("TX:"), 100'000'000u);
  }
  EXPECT_EQ(children(), before);
}

TEST_F(TestbedTest, background__that_dies_is_noticed) {
  const Testbed testbed = make({});
  const std::set<int> before = children();
  const auto traffic = BackgroundTraffic::start(testbed, 2);
  ASSERT_TRUE(traffic) << traffic.error().message;
  const Time soon = monotonic_now() + kPatience;
  while (traffic->rate().value_or(1) == 0 && monotonic_now() < soon) ::usleep(1000);
  ASSERT_TRUE(traffic->rate()) << traffic->rate().error().message;
  EXPECT_GT(*traffic->rate(), 0.0);
  for (const int pid : children()) {
    if (!before.contains(pid)) ::kill(pid, SIGKILL);
    if (!before.contains(pid)) break;
  }
  const Time end = monotonic_now() + kPatience;
  while (traffic->rate() && monotonic_now() < end) ::usleep(1000);
  ASSERT_FALSE(traffic->rate());
  EXPECT_THAT(traffic->rate().error().message, HasSubstr("repeat the run"));
}

TEST_F(TestbedTest, background__bad_arguments) {
  TestbedOptions options;
  options.ranks = 1;
  EXPECT_FALSE(BackgroundTraffic::start(make(options), 1));
  EXPECT_FALSE(BackgroundTraffic::start(make({}), 0));
  EXPECT_FALSE(BackgroundTraffic::start(make({}), 257));
}

TEST_F(TestbedTest, destruction__leaves_nothing) {
  const std::string links = own_links();
  std::set<ino_t> held;
  {
    TestbedOptions options;
    options.loss = TestbedLoss{0.5, 1};
    options.rate = TestbedRate{};
    const Testbed testbed = make(options);
    const auto traffic = BackgroundTraffic::start(testbed, 1);
    held = inodes(testbed);
    EXPECT_TRUE(anyone_holds(held));
    EXPECT_EQ(own_links(), links);
  }
  EXPECT_FALSE(anyone_holds(held));
  EXPECT_EQ(own_links(), links);
}

TEST_F(TestbedTest, sigkill__leaves_nothing) {
  const std::string links = own_links();
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const FileDescriptor from_child(pipe[0]);
  FileDescriptor to_parent(pipe[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    TestbedOptions options;
    options.ranks = 3;
    options.loss = TestbedLoss{0.01, 1};
    const Testbed testbed = make(options);
    const auto traffic = BackgroundTraffic::start(testbed, 2);
    for (const ino_t inode : inodes(testbed)) {
      if (::write(pipe[1], &inode, sizeof inode) != sizeof inode) ::_exit(1);
    }
    for (;;) ::pause();
  }
  std::set<ino_t> held;
  for (ino_t inode = 0;
       held.size() < 4 && ::read(from_child.get(), &inode, sizeof inode) == sizeof inode;) {
    held.insert(inode);
  }
  ASSERT_EQ(held.size(), 4u);
  EXPECT_TRUE(anyone_holds(held));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  // The background processes get their signal as their parent dies; the kernel ends them soon
  // after.
  const Time end = monotonic_now() + kPatience;
  while (anyone_holds(held) && monotonic_now() < end) ::usleep(1000);
  EXPECT_FALSE(anyone_holds(held));
  EXPECT_EQ(own_links(), links);
}

}  // namespace
}  // namespace tarpon::testbed_test
