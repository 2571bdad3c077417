// Next hops and MACs as the kernel finds them, between two namespaces.
#include "xdp/neighbours.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/private_network.h"

namespace tarpon::xdp::neighbours_test {
namespace {

using testing_support::FarNamespace;
using testing_support::run_command;
using testing_support::VethPair;

in_addr ip(const char* text) {
  in_addr result{};
  EXPECT_EQ(::inet_pton(AF_INET, text, &result), 1);
  return result;
}

/// Asks until the kernel knows, as a port does: woken by fd().
Result<std::optional<Mac>> find(Neighbours& neighbours, const char* host) {
  for (int i = 0; i < 100; ++i) {
    if (auto read = neighbours.read(); !read) return fail(read.error());
    const auto way = neighbours.way_to(ip(host));
    if (!way) return fail(way.error());
    if (way->mac) return way->mac;
    pollfd entry{neighbours.fd(), POLLIN, 0};
    ::poll(&entry, 1, 100);
    neighbours.changed();
  }
  return std::optional<Mac>();
}

constexpr Mac kFirst{2, 0, 0, 0, 0, 1};
constexpr Mac kSecond{2, 0, 0, 0, 0, 2};

TEST(NeighboursTest, macs_are_found_without_privileges) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  run_command("ip link set lo up");
  const FarNamespace far;
  const VethPair pair;
  run_command("ip addr add 10.5.0.1/24 dev va");
  far.take("vb");
  far.run("ip link set vb address 02:00:00:00:00:01 up");
  far.run("ip addr add 10.5.0.2/24 dev vb");
  far.run("ip addr add 10.5.0.3/24 dev vb");
  run_command("ip route add 10.6.0.0/16 via 10.5.0.3");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    auto neighbours = Neighbours::open(pair.a());
    for (const char* host : {"10.5.0.2", "10.6.7.8"}) {
      const auto mac = neighbours ? find(*neighbours, host) : fail(neighbours.error());
      if (!mac || *mac != kFirst) ::_exit(1);
    }
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(NeighboursTest, macs_of_neighbours_and_gateways_are_found_and_followed) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  run_command("ip link set lo up");
  const FarNamespace far;
  const VethPair pair;
  run_command("ip addr add 10.5.0.1/24 dev va");
  far.take("vb");
  far.run("ip link set vb address 02:00:00:00:00:01 up");
  far.run("ip addr add 10.5.0.2/24 dev vb");
  run_command("ip route add 10.6.0.0/16 via 10.5.0.2");

  auto neighbours = Neighbours::open(pair.a());
  ASSERT_TRUE(neighbours) << neighbours.error().message;
  auto mac = find(*neighbours, "10.5.0.2");
  ASSERT_TRUE(mac) << mac.error().message;
  EXPECT_EQ(*mac, kFirst);
  mac = find(*neighbours, "10.6.7.8");  // through the gateway
  ASSERT_TRUE(mac) << mac.error().message;
  EXPECT_EQ(*mac, kFirst);

  neighbours->changed();
  run_command("ip neigh replace 10.5.0.2 lladdr 02:00:00:00:00:02 dev va");
  EXPECT_TRUE(neighbours->changed());
  mac = find(*neighbours, "10.5.0.2");
  ASSERT_TRUE(mac) << mac.error().message;
  EXPECT_EQ(*mac, kSecond);
}

TEST(NeighboursTest, what_stays_here_or_leaves_elsewhere_is_told_apart) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  run_command("ip link set lo up");
  const VethPair pair;
  run_command("ip addr add 10.5.0.1/24 dev va");
  run_command("ip addr add 10.7.0.1/24 dev vb");
  auto neighbours = Neighbours::open(pair.a());
  ASSERT_TRUE(neighbours) << neighbours.error().message;
  EXPECT_TRUE(neighbours->way_to(ip("10.5.0.1"))->elsewhere);
  EXPECT_TRUE(neighbours->way_to(ip("127.0.0.1"))->elsewhere);
  EXPECT_TRUE(neighbours->way_to(ip("10.7.0.9"))->elsewhere);
  EXPECT_FALSE(neighbours->way_to(ip("10.5.0.9"))->elsewhere);
  const auto nowhere = neighbours->way_to(ip("192.0.2.1"));
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, Error::Code::unavailable);
}

TEST(NeighboursTest, those_of_other_interfaces_are_not_mistaken) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  run_command("ip addr add 10.5.0.1/24 dev va");
  run_command("ip neigh replace 10.5.0.3 lladdr 02:00:00:00:00:02 dev vb");
  auto neighbours = Neighbours::open(pair.a());
  ASSERT_TRUE(neighbours) << neighbours.error().message;
  ASSERT_TRUE(neighbours->read());
  EXPECT_FALSE(neighbours->way_to(ip("10.5.0.3"))->mac);
  run_command("ip neigh replace 10.5.0.3 lladdr 02:00:00:00:00:01 dev va");
  ASSERT_TRUE(neighbours->read());
  EXPECT_EQ(neighbours->way_to(ip("10.5.0.3"))->mac, kFirst);
}

TEST(NeighboursTest, link_changes_are_seen) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  auto neighbours = Neighbours::open(pair.a());
  ASSERT_TRUE(neighbours) << neighbours.error().message;
  auto link = neighbours->link();
  ASSERT_TRUE(link) << link.error().message;
  EXPECT_EQ(link->mtu, 1500u);
  EXPECT_TRUE(link->up);
  EXPECT_TRUE(link->carrier);
  neighbours->changed();
  run_command("ip link set va mtu 1400");
  EXPECT_TRUE(neighbours->changed());
  EXPECT_EQ(neighbours->link()->mtu, 1400u);
  run_command("ip link set vb down");
  EXPECT_TRUE(neighbours->changed());
  EXPECT_TRUE(neighbours->link()->up);
  EXPECT_FALSE(neighbours->link()->carrier);
  run_command("ip link set va down");
  EXPECT_TRUE(neighbours->changed());
  EXPECT_FALSE(neighbours->link()->up);
}

TEST(NeighboursTest, an_interface_that_is_gone_is_told_from_a_question_that_failed) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  auto neighbours = [] {
    const VethPair pair;
    return Neighbours::open(pair.a());
  }();
  ASSERT_TRUE(neighbours) << neighbours.error().message;
  const auto link = neighbours->link();
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().code, Error::Code::unavailable);
}

}  // namespace
}  // namespace tarpon::xdp::neighbours_test
