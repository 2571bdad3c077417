// The fixture of the tests that run on every live UDP port.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/support/port_traffic.h"

namespace tarpon::test {

class PortTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    std::vector<sockaddr_in> self = {*ipv4_address("127.0.0.1", 9)};
    auto port = GetParam().make(open_socket(), self, {}, {});
    if (!port && port.error().code == Error::Code::unavailable) {
      GTEST_SKIP() << port.error().message;
    }
    ASSERT_TRUE(port) << port.error().message;
  }

  std::unique_ptr<Port> make(UdpSocket socket, const std::vector<sockaddr_in>& peers,
                             UdpPortOptions options = {}, UdpFlows flows = {}) {
    options.lanes = GetParam().lanes;
    auto port = GetParam().make(std::move(socket), peers, options, std::move(flows));
    if (!port) throw std::runtime_error(port.error().message);
    return std::move(*port);
  }

  /// Ports of ranks 0 to count - 1 that know each other.
  std::vector<std::unique_ptr<Port>> make_world(std::size_t count, UdpPortOptions options = {},
                                                UdpSocketOptions socket_options = {}) {
    std::vector<UdpSocket> sockets;
    std::vector<sockaddr_in> peers;
    for (std::size_t i = 0; i < count; ++i) {
      sockets.push_back(open_socket(socket_options));
      peers.push_back(sockets.back().local());
    }
    std::vector<std::unique_ptr<Port>> ports;
    for (UdpSocket& socket : sockets) ports.push_back(make(std::move(socket), peers, options));
    return ports;
  }

  struct JobPair {
    sockaddr_in to{};  // where `receiver` receives
    std::unique_ptr<Port> sender, receiver;
  };
  /// Two ports that know each other; `receiver` gets `target` and takes only packets of kTestJob.
  JobPair make_pair_of_job(UdpSocket target) {
    UdpSocket friendly = open_socket();
    const sockaddr_in to = target.local();
    const std::vector<sockaddr_in> peers = {friendly.local(), to};
    return {to, make(std::move(friendly), peers),
            make(std::move(target), peers, {.job = kTestJob})};
  }
};

}  // namespace tarpon::test
