// A testbed and UDP sockets of its ranks, for the tests of what it carries and loses.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tools/namespaces/network_namespace.h"
#include "tools/namespaces/testbed.h"
#include "tools/system/subprocess.h"
#include "transport/time.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon::test {

inline constexpr Duration kPatience = 10s;  // a bound, never an assertion on time

class TestbedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto probe = make_network_namespaces(1);
    if (!probe) GTEST_SKIP() << probe.error().message;
  }
};

inline Testbed make(const TestbedOptions& options) {
  auto testbed = Testbed::create(options);
  if (!testbed) throw std::runtime_error(testbed.error().message);
  return std::move(*testbed);
}

inline std::string run_in(int network_namespace, std::vector<std::string> arguments) {
  const auto output = run_subprocess({std::move(arguments), "", network_namespace});
  return output ? *output : "failed: " + output.error().message;
}

/// A UDP socket of a rank, bound to its address on `port`.
inline FileDescriptor udp_socket(const Testbed& testbed, Rank rank, std::uint16_t port) {
  FileDescriptor fd;
  const auto done = in_network_namespace(testbed.network_namespace(rank), [&]() -> Result<void> {
    fd = FileDescriptor(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int bytes = 64 << 20;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    ::inet_pton(AF_INET, testbed.address(rank).c_str(), &address.sin_addr);
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      return fail_system(errno, "bind");
    }
    return {};
  });
  if (!done) throw std::runtime_error(done.error().message);
  return fd;
}

inline ssize_t send_to(const FileDescriptor& fd, const Testbed& testbed, Rank rank,
                       std::uint16_t port, const std::string& data) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, testbed.address(rank).c_str(), &address.sin_addr);
  return ::sendto(fd.get(), data.data(), data.size(), 0, reinterpret_cast<sockaddr*>(&address),
                  sizeof address);
}

/// Datagrams that wait now.
inline std::uint64_t drain(const FileDescriptor& fd) {
  std::array<char, 65536> buffer{};
  std::uint64_t count = 0;
  while (::recv(fd.get(), buffer.data(), buffer.size(), 0) >= 0) ++count;
  return count;
}

/// Waits for one datagram; empty when none comes.
inline std::string receive_one(const FileDescriptor& fd) {
  pollfd ready{fd.get(), POLLIN, 0};
  std::string buffer(65536, '\0');
  if (::poll(&ready, 1, 10000) != 1) return "";
  const ssize_t got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
  buffer.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return buffer;
}

}  // namespace tarpon::test
