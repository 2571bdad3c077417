// Which interface a job uses and why.
#include "collectives/environment/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>

#include "tests/support/forbidden_call.h"
#include "tests/support/forked_child.h"
#include "tools/namespaces/network_namespace.h"
#include "tools/system/host_info.h"
#include "tools/system/subprocess.h"

namespace tarpon::interfaces_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<Interface> kHost = {
    {"lo", "127.0.0.1", 65536, "", InterfaceKind::loopback},
    {"eth0", "192.168.1.5", 1500, "virtio_net", InterfaceKind::device},
    {"eth1", "10.0.0.5", 9000, "mlx5_core", InterfaceKind::device},
    {"eth1", "10.1.0.5", 9000, "mlx5_core", InterfaceKind::device},
    {"docker0", "172.17.0.1", 1500, "bridge", InterfaceKind::bridge},
    {"veth7", "172.18.0.1", 1500, "veth", InterfaceKind::veth},
};

Environment environment(const std::map<std::string, std::string>& variables = {}) {
  return [variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

InterfaceRequest towards(const std::string& host, const std::string& source) {
  InterfaceRequest request;
  request.host = host;
  request.source = source;
  return request;
}

/// "name address: reason", or the refusal.
std::string choice(const InterfaceRequest& request, const Environment& variables = environment(),
                   const std::vector<Interface>& interfaces = kHost) {
  const auto chosen = choose_interface(interfaces, request, variables);
  if (!chosen) return "refused: " + chosen.error().message;
  return chosen->interface.name + " " + chosen->interface.address + ": " + chosen->reason;
}

TEST(Interfaces, choose_interface__without_carrier_is_refused) {
  std::vector<Interface> host = kHost;
  host[1].carrier = false;
  InterfaceRequest named;
  named.name = "eth0";
  named.named_by = "--interface";
  const InterfaceRequest routed = towards("192.168.1.1", "192.168.1.5");
  const auto by_variable = environment({{"TARPON_INTERFACE", "eth0"}});
  for (const std::string& refused :
       {choice(named, environment(), host), choice(routed, environment(), host),
        choice({}, by_variable, host)}) {
    EXPECT_THAT(refused, AllOf(HasSubstr("refused: eth0 ("), HasSubstr(") has no carrier"),
                               HasSubstr("connect its cable"), HasSubstr("--interface"),
                               HasSubstr("eth0 (192.168.1.5, no carrier), eth1")));
  }
  named.name = "eth1";
  EXPECT_EQ(choice(named, environment(), host), "eth1 10.0.0.5: named by --interface");
}

TEST(Interfaces, choose_interface__by_route) {
  EXPECT_EQ(choice(towards("10.0.0.1", "10.0.0.5")), "eth1 10.0.0.5: routes to 10.0.0.1");
  EXPECT_EQ(choice(towards("10.1.0.1", "10.1.0.5")), "eth1 10.1.0.5: routes to 10.1.0.1");
  EXPECT_EQ(choice(towards("localhost", "127.0.0.1")), "lo 127.0.0.1: routes to localhost");
}

TEST(Interfaces, choose_interface__bridge_and_veth_only_when_named) {
  EXPECT_THAT(choice(towards("172.17.0.9", "172.17.0.1")),
              AllOf(HasSubstr("through docker0, a bridge"), HasSubstr("--interface docker0")));
  EXPECT_THAT(choice(towards("172.18.0.9", "172.18.0.1")), HasSubstr("through veth7, a veth"));
  InterfaceRequest named = towards("172.18.0.9", "172.18.0.1");
  named.name = "veth7";
  EXPECT_EQ(choice(named), "veth7 172.18.0.1: named by interface");
  EXPECT_EQ(
      choice(towards("172.18.0.9", "172.18.0.1"), environment({{"TARPON_SOCKET_IFNAME", "veth"}})),
      "veth7 172.18.0.1: matches TARPON_SOCKET_IFNAME=veth");
}

TEST(Interfaces, choose_interface__named) {
  InterfaceRequest request = towards("10.1.0.1", "10.1.0.5");
  request.name = "eth1";
  request.named_by = "--interface";
  EXPECT_EQ(choice(request), "eth1 10.1.0.5: named by --interface");
  request.name = "eth0";
  EXPECT_EQ(choice(request), "eth0 192.168.1.5: named by --interface");
  request.name = "eth";
  EXPECT_THAT(choice(request), AllOf(HasSubstr("--interface eth: no such interface"),
                                     HasSubstr("lo (127.0.0.1), eth0 (192.168.1.5), eth1")));
}

TEST(Interfaces, choose_interface__by_its_address) {
  InterfaceRequest request = towards("10.0.0.1", "10.0.0.5");
  request.address = "192.168.1.5";
  EXPECT_EQ(choice(request), "eth0 192.168.1.5: has the address 192.168.1.5");
  request.address = "172.17.0.1";  // a bridge, but the caller means it
  EXPECT_THAT(choice(request), HasSubstr("docker0 172.17.0.1: "));
  request.address = "10.9.9.9";
  EXPECT_THAT(choice(request), AllOf(HasSubstr("no interface has the address 10.9.9.9"),
                                     HasSubstr("eth0 (192.168.1.5)")));
  request.name = "eth1";
  request.address = "10.1.0.5";
  EXPECT_EQ(choice(request), "eth1 10.1.0.5: named by interface");
  request.address = "192.168.1.5";
  EXPECT_THAT(choice(request), HasSubstr("eth1 does not have the address 192.168.1.5"));
}

TEST(Interfaces, choose_interface__the_veth_of_a_container_leads_out) {
  const std::vector<Interface> container = {
      {"lo", "127.0.0.1", 65536, "", InterfaceKind::loopback},
      {"eth0", "172.17.0.2", 1500, "veth", InterfaceKind::veth},
  };
  EXPECT_EQ(choice(towards("172.17.0.3", "172.17.0.2"), environment(), container),
            "eth0 172.17.0.2: routes to 172.17.0.3");
  EXPECT_THAT(choice({}, environment(), container), HasSubstr("no interface reaches other hosts"));
  auto bridged = container;
  bridged.push_back({"docker0", "172.18.0.1", 1500, "bridge", InterfaceKind::bridge});
  EXPECT_THAT(choice(towards("172.18.0.3", "172.18.0.1"), environment(), bridged),
              HasSubstr("through docker0, a bridge"));
}

TEST(Interfaces, choose_interface__tarpon_interface_is_a_whole_name) {
  const InterfaceRequest request = towards("10.0.0.1", "10.0.0.5");
  EXPECT_EQ(choice(request,
                   environment({{"TARPON_INTERFACE", "eth0"}, {"TARPON_SOCKET_IFNAME", "eth1"}})),
            "eth0 192.168.1.5: matches TARPON_INTERFACE=eth0");
  EXPECT_THAT(choice(request, environment({{"TARPON_INTERFACE", "eth"}})),
              AllOf(HasSubstr("refused: TARPON_INTERFACE=eth: no interface matches"),
                    HasSubstr("eth0 (192.168.1.5)")));
}

TEST(Interfaces, choose_interface__all_ranks_local) {
  InterfaceRequest request = towards("10.0.0.5", "10.0.0.5");
  request.all_local = true;
  EXPECT_EQ(choice(request), "lo 127.0.0.1: all ranks are on this host");
}

TEST(Interfaces, choose_interface__nccl_grammar) {
  const InterfaceRequest request = towards("10.0.0.1", "10.0.0.5");
  const auto with = [&](const std::string& value) {
    return choice(request, environment({{"TARPON_SOCKET_IFNAME", value}}));
  };
  EXPECT_THAT(with("eth0"), HasSubstr("eth0 "));
  EXPECT_THAT(with("eth"), HasSubstr("eth1 10.0.0.5: matches"));  // prefers the route
  EXPECT_THAT(with("ib,eth0"), HasSubstr("eth0 "));
  EXPECT_THAT(with("=eth0"), HasSubstr("eth0 "));
  EXPECT_THAT(with("=eth"), HasSubstr("refused: TARPON_SOCKET_IFNAME==eth: no interface matches"));
  EXPECT_THAT(with("=lo,eth1"), HasSubstr("eth1 10.0.0.5"));
  EXPECT_EQ(with("^docker,lo"),
            "eth1 10.0.0.5: routes to 10.0.0.1 (TARPON_SOCKET_IFNAME=^docker,lo)");
  EXPECT_THAT(with("^eth1"), HasSubstr("no allowed interface routes to 10.0.0.1"));
  EXPECT_THAT(with("^=eth"), HasSubstr("eth1 10.0.0.5"));  // excludes exactly "eth": nothing
  EXPECT_THAT(with("ib"), HasSubstr("no interface matches"));
}

TEST(Interfaces, choose_interface__gloo_variable_holds_exact_names) {
  const InterfaceRequest request = towards("10.0.0.1", "10.0.0.5");
  EXPECT_EQ(choice(request, environment({{"GLOO_SOCKET_IFNAME", "eth0"}})),
            "eth0 192.168.1.5: matches GLOO_SOCKET_IFNAME=eth0");
  EXPECT_THAT(choice(request, environment({{"GLOO_SOCKET_IFNAME", "eth"}})), HasSubstr("refused"));
  EXPECT_THAT(choice(request, environment({{"GLOO_SOCKET_IFNAME", "eth0"},
                                           {"TARPON_SOCKET_IFNAME", "eth1"}})),
              HasSubstr("eth1"));
}

TEST(Interfaces, choose_interface__without_a_host) {
  EXPECT_THAT(choice({}), HasSubstr("several interfaces could reach the other ranks"));
  const std::vector<Interface> one(kHost.begin() + 2, kHost.end());
  EXPECT_EQ(choice({}, environment(), one), "eth1 10.0.0.5: the only device");
  const std::vector<Interface> none(kHost.begin(), kHost.begin() + 1);
  EXPECT_THAT(choice({}, environment(), none), HasSubstr("no interface reaches other hosts"));
  EXPECT_THAT(choice({}, environment(), {}), HasSubstr("none has an IPv4 address"));
}

TEST(Interfaces, rendezvous_host) {
  EXPECT_EQ(rendezvous_host("tcp://10.0.0.1:99"), "10.0.0.1");
  EXPECT_EQ(rendezvous_host("tcp://node-1:99"), "node-1");
  EXPECT_EQ(rendezvous_host("tcp://0.0.0.0:99"), std::nullopt);
  EXPECT_EQ(rendezvous_host("file:///x"), std::nullopt);
}

TEST(Interfaces, list_interfaces__loopback_is_there) {
  const auto interfaces = list_interfaces();
  ASSERT_TRUE(interfaces) << interfaces.error().message;
  const auto loopback =
      std::find_if(interfaces->begin(), interfaces->end(),
                   [](const Interface& each) { return each.address == "127.0.0.1"; });
  ASSERT_NE(loopback, interfaces->end());
  EXPECT_EQ(loopback->kind, InterfaceKind::loopback);
  EXPECT_GT(loopback->mtu, 0);
}

TEST(Interfaces, source_address_towards__local_and_unknown) {
  EXPECT_EQ(source_address_towards("127.0.0.1"), "127.0.0.1");
  const auto newer = source_address_towards("[::1]");
  ASSERT_FALSE(newer);
  EXPECT_THAT(newer.error().message, HasSubstr("IPv6 is not supported yet"));
  const auto unknown = source_address_towards("256.0.0.1.invalid");
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message,
              AllOf(HasSubstr("256.0.0.1.invalid"), HasSubstr("give an IPv4 address, or")));
}

TEST(Interfaces, list_interfaces__kinds_and_drivers_in_a_namespace) {
  auto namespaces = make_network_namespaces(1);
  if (!namespaces) GTEST_SKIP() << namespaces.error().message;
  const int fd = namespaces->front().get();
  const std::string batch =
      "link set lo up\nlink add br7 mtu 1400 type bridge\naddress add 10.9.0.1/24 dev br7\nlink "
      "set br7 up\n"
      "link add va type veth peer name vb\naddress add 10.9.1.1/24 dev va\nlink set va up\n"
      "link set vb up\nlink add quiet type bridge\naddress add 10.9.2.1/24 dev quiet\n";
  ASSERT_TRUE(run_subprocess({{"ip", "-batch", "-"}, batch, fd}));
  std::vector<Interface> found;
  const auto done = in_network_namespace(fd, [&]() -> Result<void> {
    auto interfaces = list_interfaces();
    if (!interfaces) return fail(interfaces.error());
    found = *interfaces;
    EXPECT_EQ(source_address_towards("10.9.1.77"), "10.9.1.1");
    EXPECT_FALSE(source_address_towards("8.8.8.8"));
    return {};
  });
  ASSERT_TRUE(done) << done.error().message;
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].kind, InterfaceKind::loopback);
  EXPECT_EQ(found[1].name, "br7");
  EXPECT_EQ(found[1].kind, InterfaceKind::bridge);
  EXPECT_EQ(found[1].mtu, 1400);
  EXPECT_EQ(found[2].kind, InterfaceKind::veth);
  EXPECT_EQ(found[2].driver, "veth");
}

TEST(Interfaces, list_interfaces__without_netlink_too) {
  const auto all = list_interfaces();
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_EQ(testing_support::in_forked_child([&] {
              if (!testing_support::forbid_call(SYS_socket, EAFNOSUPPORT, AF_NETLINK)) return 1;
              const auto found = list_interfaces();
              if (!found || found->size() != all->size()) return 2;
              return ::socket(AF_NETLINK, SOCK_RAW, 0) < 0 ? 0 : 3;
            }),
            0);
}

TEST(HostInfo, read_host_info__says_something) {
  const HostInfo info = read_host_info();
  EXPECT_FALSE(info.kernel.empty());
  EXPECT_FALSE(info.hostname.empty());
  EXPECT_GE(info.cpus, 1);
}

}  // namespace
}  // namespace tarpon::interfaces_test
