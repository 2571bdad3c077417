// The guest as its init made it: the namespaces "a" and "b", each with one virtio-net card, joined
// by a hub.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sys/utsname.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "tools/namespaces/network_namespace.h"

namespace tarpon::guest {

struct Host {
  const char* name;  // of its namespace, as `ip netns` has it
  const char* interface;
  const char* address;
};

inline constexpr Host kHosts[] = {{"a", "eth0", "10.0.0.1"}, {"b", "eth1", "10.0.0.2"}};

/// Whether virtio_net of this kernel has AF_XDP zero-copy in both directions.
inline bool has_zero_copy() {
  utsname name{};
  ::uname(&name);
  int major = 0, minor = 0;
  EXPECT_EQ(std::sscanf(name.release, "%d.%d", &major, &minor), 2) << name.release;
  return std::pair(major, minor) >= std::pair(6, 13);
}

/// The best mode of AF_XDP on the guest's cards, as the tool names it.
inline std::string best_copy_mode() {
  return has_zero_copy() ? "zero-copy" : "copy mode";
}

/// For the tests that need zero-copy.
class ZeroCopyTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_zero_copy()) GTEST_SKIP() << "virtio_net has zero-copy since kernel 6.13";
  }
};

/// What can be named as a file: /run/netns/NAME.
inline std::string namespace_file(const Host& host) {
  return std::string("/run/netns/") + host.name;
}

/// Moves the calling thread to `host`; returns the interface's index there.
inline unsigned enter(const Host& host) {
  const FileDescriptor file(::open(namespace_file(host).c_str(), O_RDONLY | O_CLOEXEC));
  const auto entered = enter_network_namespace(file.get());
  EXPECT_TRUE(entered) << entered.error().message;
  return ::if_nametoindex(host.interface);
}

inline void set_mtu(int mtu) {
  for (const Host& host : kHosts) {
    enter(host);
    const std::string command =
        std::string("ip link set ") + host.interface + " mtu " + std::to_string(mtu);
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
}

}  // namespace tarpon::guest
