// Live UDP ports whose kernel queue is full.
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/live_ports.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon::ports_pressure_test {
namespace {

using namespace test;

/// Brings up the loopback of a fresh network namespace, of this thread alone, with a shaped queue.
/// Empty when done, or why not.
std::string enter_slow_namespace() {
  if (::unshare(CLONE_NEWNET) != 0) return std::string("unshare: ") + std::strerror(errno);
  const FileDescriptor fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING | IFF_LOOPBACK;
  if (::ioctl(fd.get(), SIOCSIFFLAGS, &request) != 0) return "loopback cannot be brought up";
  if (std::system("tc qdisc add dev lo root tbf rate 200mbit burst 128k limit 64m") != 0) {
    return "no tc with tbf here";
  }
  return {};
}

/// Runs `test` in a thread of its own, within such a namespace. Empty when it ran, or why not.
std::string in_slow_namespace(const std::function<void()>& test) {
  std::string trouble;
  std::thread([&] {
    trouble = enter_slow_namespace();
    if (trouble.empty()) test();
  }).join();
  return trouble;
}

TEST_P(PortTest, back_pressure_loses_nothing) {
  const std::string skipped = in_slow_namespace([&] {
    auto ports = make_world(2, {}, {.send_buffer = 1});
    constexpr std::size_t kCount = 2000;
    constexpr std::uint32_t kLength = 1408;
    std::vector<std::byte> lent(kCount * kLength);
    for (std::uint32_t i = 0; i < kCount; ++i) fill(&lent[i * kLength], i, kLength);
    std::size_t pressed = 0;
    Inbox inbox;
    const auto on_pressure = [&] {
      ++pressed;
      EXPECT_GT(ports[0]->unsent(), 0u);
    };
    send(*ports[0], run_of(kCount, kLength, 1), {.lent = &lent, .on_back_pressure = on_pressure});
    drain(*ports[0]);
    collect(*ports[1], inbox, kCount);
    EXPECT_GT(pressed, 0u);
    EXPECT_TRUE(each_once(inbox, kCount));
    EXPECT_EQ(ports[0]->statistics().tx_packets, kCount);
    EXPECT_EQ(ports[0]->statistics().tx_dropped, 0u);
    EXPECT_EQ(ports[1]->statistics().rx_overruns, 0u);
  });
  if (!skipped.empty()) GTEST_SKIP() << skipped;
}

TEST_P(PortTest, drop_unsent__of_one_lender_leaves_the_packets_of_others) {
  const std::string skipped = in_slow_namespace([&] {
    auto ports = make_world(2, {}, {.send_buffer = 1});
    constexpr std::uint32_t kMost = 2000;
    constexpr std::uint32_t kLength = 1408;
    const auto lender_of_number = [](std::uint32_t number) { return number % 5 < 3 ? 7u : 9u; };
    std::vector<std::byte> lent(kMost * kLength);
    std::uint32_t count = 0;
    for (;;) {
      const auto frames = ports[0]->transmit_frames(std::min(kMost - count, 100u));
      if (frames.empty()) break;
      for (TxPacket& packet : frames) {
        fill(&lent[count * kLength], count, kLength);
        prepare(packet, {.peer = 1, .number = count, .length = kLength}, count,
                {.lent = &lent, .on_back_pressure = {}});
        packet.lender = lender_of_number(count++);
      }
      ports[0]->transmit(frames);
    }
    ASSERT_TRUE(ports[0]->holds(7) && ports[0]->holds(9)) << "of " << count << " packets";
    const std::size_t unsent = ports[0]->unsent();
    const std::uint64_t sent = ports[0]->statistics().tx_packets;
    ports[0]->drop_unsent(7);
    EXPECT_FALSE(ports[0]->holds(7));
    EXPECT_TRUE(ports[0]->holds(9));
    const std::uint64_t dropped = ports[0]->statistics().tx_dropped;
    EXPECT_GT(dropped, 0u);
    EXPECT_EQ(ports[0]->unsent(), unsent - dropped - (ports[0]->statistics().tx_packets - sent));
    // The memory is the lender's again: each byte of what arrives is checked.
    for (std::uint32_t i = 0; i < count; ++i) {
      if (lender_of_number(i) == 7) std::memset(&lent[i * kLength], 0xee, kLength);
    }
    drain(*ports[0]);
    Inbox inbox;
    collect(*ports[1], inbox, count - dropped);
    EXPECT_EQ(inbox.packets, count - dropped);
    EXPECT_EQ(inbox.seen.size(), count - dropped);
    for (std::uint32_t i = 0; i < count; ++i) {
      EXPECT_TRUE(lender_of_number(i) == 7 || inbox.seen.contains(i)) << i;
    }
  });
  if (!skipped.empty()) GTEST_SKIP() << skipped;
}

}  // namespace
}  // namespace tarpon::ports_pressure_test
