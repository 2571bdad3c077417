// What the kernel says of drivers.
#include "xdp/interface_features.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/private_network.h"
#include "xdp/socket_list.h"

namespace tarpon::xdp::interface_features_test {
namespace {

using testing::HasSubstr;
using testing_support::FarNamespace;
using testing_support::run_command;
using testing_support::VethPair;

TEST(InterfaceFeaturesTest, a_veth_has_native_xdp_and_no_zero_copy) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  const auto features = interface_features(pair.a());
  if (!features && features.error().code == Error::Code::unavailable) {
    GTEST_SKIP() << features.error().message;
  }
  ASSERT_TRUE(features) << features.error().message;
  EXPECT_TRUE(features->native_xdp);
  EXPECT_TRUE(features->multi_buffer);
  EXPECT_FALSE(features->zero_copy);
}

TEST(InterfaceFeaturesTest, a_veth_with_too_few_queues_has_none) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  run_command("ip link add va numtxqueues 2 numrxqueues 1 type veth peer name vb numtxqueues 2");
  const auto features = interface_features(::if_nametoindex("va"));
  run_command("ip link del va");
  if (!features && features.error().code == Error::Code::unavailable) {
    GTEST_SKIP() << features.error().message;
  }
  ASSERT_TRUE(features) << features.error().message;
  EXPECT_FALSE(features->native_xdp);
}

TEST(InterfaceFeaturesTest, loopback_has_nothing_and_an_unknown_index_is_named) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const auto loopback = interface_features(1);
  if (!loopback) GTEST_SKIP() << loopback.error().message;
  EXPECT_FALSE(loopback->native_xdp);
  EXPECT_FALSE(loopback->zero_copy);
  const auto unknown = interface_features(4711);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Error::Code::unavailable);
  EXPECT_THAT(unknown.error().message, HasSubstr("interface 4711"));
}

TEST(InterfaceFeaturesTest, veth_peer__only_in_this_namespace) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  EXPECT_FALSE(veth_peer(1));
  EXPECT_FALSE(veth_peer(4711));
  const FarNamespace far;
  const VethPair pair;
  EXPECT_EQ(veth_peer(pair.a()), pair.b());
  EXPECT_EQ(veth_peer(pair.b()), pair.a());
  far.take("vb");
  EXPECT_FALSE(veth_peer(pair.a()));
}

TEST(SocketListTest, none_are_bound_or_the_kernel_does_not_say) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const auto sockets = sockets_of(1);
  if (!sockets) {
    EXPECT_EQ(sockets.error().code, Error::Code::unavailable) << sockets.error().message;
    EXPECT_THAT(sockets.error().message, HasSubstr("CONFIG_XDP_SOCKETS_DIAG"));
    GTEST_SKIP() << sockets.error().message;
  }
  EXPECT_TRUE(sockets->empty());
}

}  // namespace
}  // namespace tarpon::xdp::interface_features_test
