// A host with two interfaces in one subnet: by which of them the packets of a job leave.
#include "collectives/driver/outgoing_interface.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <linux/if_link.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <thread>

#include "collectives/communicator.h"
#include "tools/namespaces/network_namespace.h"
#include "tools/system/subprocess.h"
#include "transport/ports/uring/uring_port.h"

namespace tarpon::outgoing_interface_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

/// Where a rank runs, and what it names.
struct Place {
  int host;  // 0: at 10.7.0.1, with one interface; 1: with va1 (10.7.0.11) and va2 (10.7.0.12)
  std::string interface;
  std::string address;
};

/// Bytes sent by each interface of this network namespace.
std::map<std::string, std::uint64_t> bytes_sent() {
  std::map<std::string, std::uint64_t> sent;
  ifaddrs* head = nullptr;
  EXPECT_EQ(::getifaddrs(&head), 0);
  for (const ifaddrs* each = head; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_PACKET) continue;
    sent[each->ifa_name] = static_cast<const rtnl_link_stats*>(each->ifa_data)->tx_bytes;
  }
  ::freeifaddrs(head);
  return sent;
}

class OutgoingInterfaceTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kCount = 1'000'000;  // each of two ranks sends 4 MB

  void SetUp() override {
    auto made = make_network_namespaces(3);
    if (!made) GTEST_SKIP() << made.error().message;
    hosts_ = std::move(*made);
    const auto at = [&](int host) {
      return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(hosts_[host].get());
    };
    run(2, {"ip", "-batch", "-"},
        "link add hub type bridge\nlink set hub up\n"
        "link add p0 type veth peer name va netns " +
            at(0) + "\nlink add p1 type veth peer name va1 netns " + at(1) +
            "\nlink add p2 type veth peer name va2 netns " + at(1) +
            "\nlink set p0 master hub up\nlink set p1 master hub up\nlink set p2 master hub up\n");
    run(0, {"ip", "-batch", "-"},
        "link set lo up\naddress add 10.7.0.1/24 dev va\nlink set va up\n");
    run(1, {"ip", "-batch", "-"},
        "link set lo up\naddress add 10.7.0.11/24 dev va1\nlink set va1 up\n"
        "address add 10.7.0.12/24 dev va2\nlink set va2 up\n");
  }

  void run(int host, const std::vector<std::string>& command, const std::string& input = "") {
    const auto done = run_subprocess({command, input, hosts_[host].get()});
    ASSERT_TRUE(done) << done.error().message;
  }

  void set_reverse_path_filter(int mode) {
    run(1, {"sh", "-c",
            "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo " + std::to_string(mode) +
                " > $f; done"});
  }

  /// Runs a call of kCount elements, rank r at places[r]. Returns the reason of the last rank's
  /// data path.
  std::string run_job(const std::vector<Place>& places, Datapath datapath) {
    std::vector<std::string> errors(places.size());
    std::string reason;
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < places.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto body = [&]() -> Result<void> {
          auto options = CommunicatorOptions::for_rank(
              static_cast<Rank>(rank), static_cast<std::uint32_t>(places.size()), "10.7.0.1:29500");
          options.interface = places[rank].interface;
          options.address = places[rank].address;
          options.datapath = datapath;
          options.hosts = false;  // all ranks exchange packets
          options.rendezvous.timeout = 20s;
          auto job = Communicator::connect(options);
          if (!job) return fail(job.error());
          std::vector<float> values(kCount, static_cast<float>(rank + 1));
          const auto report = (*job)->allreduce({.input = values.data(),
                                                 .output = values.data(),
                                                 .count = values.size(),
                                                 .deadline = 20s});
          if (!report) return fail(report.error());
          if (report->status != Status::complete) return fail(Error::Code::io, report->detail);
          const std::size_t ranks = places.size();
          if (values.back() != static_cast<float>(ranks * (ranks + 1) / 2)) {
            return fail(Error::Code::io, "wrong sum");
          }
          if (rank + 1 == ranks) reason = (*job)->ranks().back().datapath_reason;
          return (*job)->close(20s);
        };
        const auto done = in_network_namespace(hosts_[places[rank].host].get(), body);
        if (!done) errors[rank] = done.error().message;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(errors, Each(""));
    return reason;
  }

  /// Bytes that the host with two interfaces sends by each of them during `job`.
  template <typename Job>
  std::map<std::string, std::uint64_t> sent_during(Job job) {
    std::map<std::string, std::uint64_t> before, after;
    const auto look = [&](auto& sent) {
      ASSERT_TRUE(in_network_namespace(hosts_[1].get(), [&]() -> Result<void> {
        sent = bytes_sent();
        return {};
      }));
    };
    look(before);
    job();
    look(after);
    for (auto& [name, bytes] : after) bytes -= before[name];
    return after;
  }

  std::vector<FileDescriptor> hosts_;
};

const Place kFar{0, "va", ""};

TEST_F(OutgoingInterfaceTest, an_interface_that_is_named__carries_all_packets) {
  for (const Datapath datapath : {Datapath::mmsg, Datapath::uring, Datapath::xdp}) {
    if (datapath == Datapath::uring && !check_uring()) continue;
    for (const auto& [mine, other] : {std::pair{"va2", "va1"}, std::pair{"va1", "va2"}}) {
      SCOPED_TRACE(std::string(name(datapath)) + ", " + mine);
      auto sent = sent_during([&] {
        const std::string reason = run_job({kFar, {1, mine, ""}}, datapath);
        // The routes choose va1 by themselves.
        if (std::string_view(mine) == "va2") {
          EXPECT_THAT(reason, HasSubstr("packets leave by va2"));
        } else {
          EXPECT_THAT(reason, Not(HasSubstr("packets")));
        }
        EXPECT_THAT(reason, Not(HasSubstr("through the kernel")));
      });
      EXPECT_GE(sent[mine], kCount * 4);
      EXPECT_LT(sent[other], 300'000u);  // control connections, ARP
    }
  }
}

TEST_F(OutgoingInterfaceTest, a_strict_rp_filter__leaves_sockets_to_the_routes) {
  set_reverse_path_filter(1);
  const char* const remedy =
      "not va2 alone: its rp_filter would drop what rank 0 answers: sysctl -w "
      "net.ipv4.conf.va2.rp_filter=2";
  EXPECT_THAT(run_job({kFar, {1, "va2", ""}}, Datapath::mmsg), HasSubstr(remedy));
  const auto by_va2 = HasSubstr("packets leave by va2");
  EXPECT_THAT(run_job({kFar, {1, "va1", ""}}, Datapath::mmsg), Not(HasSubstr("packets")));
  // AF_XDP comes before the filter.
  EXPECT_THAT(run_job({kFar, {1, "va2", ""}}, Datapath::xdp), by_va2);
  set_reverse_path_filter(2);
  EXPECT_THAT(run_job({kFar, {1, "va2", ""}}, Datapath::mmsg), by_va2);
}

TEST_F(OutgoingInterfaceTest, ranks_of_one_host__reach_each_other_over_loopback) {
  const Place near{1, "va2", ""};
  for (const Datapath datapath : {Datapath::mmsg, Datapath::uring}) {
    if (datapath == Datapath::uring && !check_uring()) continue;
    SCOPED_TRACE(name(datapath));
    auto sent = sent_during([&] {
      EXPECT_THAT(run_job({kFar, near, near}, datapath), HasSubstr("packets leave by va2"));
    });
    EXPECT_GE(sent["lo"], kCount * 4);
    EXPECT_LT(sent["va1"], 300'000u);
  }
}

TEST_F(OutgoingInterfaceTest, ranks_of_one_host_with_different_interfaces__take_the_routes) {
  const std::string reason = run_job({kFar, {1, "va1", ""}, {1, "va2", ""}}, Datapath::mmsg);
  EXPECT_THAT(reason,
              HasSubstr("take the kernel's routes, not va2 alone: rank 1 of this host has va1"));
}

TEST_F(OutgoingInterfaceTest, an_interface_without_a_route__is_not_forced) {
  run(1, {"ip", "-batch", "-"},
      "link add side type veth peer name beside\nlink set beside up\naddress add 10.9.0.1/32 dev "
      "side\nlink set side up\n");
  run(0, {"ip", "route", "add", "10.9.0.1/32", "via", "10.7.0.11"});
  const std::string reason = run_job({kFar, {1, "side", ""}}, Datapath::mmsg);
  EXPECT_THAT(reason, HasSubstr("not side alone: it has no route to rank 0 (10.7.0.1)"));
}

TEST_F(OutgoingInterfaceTest, xdp__says_where_the_kernel_carries_packets) {
  // Chosen by its address alone: the kernel's routes hold, and they leave by va1.
  EXPECT_THAT(run_job({kFar, {1, "", "10.7.0.12"}}, Datapath::xdp),
              HasSubstr("to rank 0 through the kernel: the route does not leave by va2"));
}

}  // namespace
}  // namespace tarpon::outgoing_interface_test
