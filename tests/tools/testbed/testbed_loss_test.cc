// What the bridge loses: single packets, bursts, above the rate of a port or of a flow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/udp.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/testbed_network.h"
#include "transport/clock.h"

namespace tarpon::testbed_loss_test {
namespace {

using test::drain;
using test::kPatience;
using test::make;
using test::receive_one;
using test::run_in;
using test::send_to;
using test::TestbedTest;
using test::udp_socket;
using ::testing::HasSubstr;

struct LossRun {
  std::uint64_t received = 0;
  TestbedLossCounters counters;
};

/// Sends `units` GSO trains of `segments` datagrams each from rank 0 to rank 1.
LossRun send_through_loss(const TestbedLoss& loss, std::uint64_t units, int segments) {
  TestbedOptions options;
  options.loss = loss;
  const Testbed testbed = make(options);
  const FileDescriptor from = udp_socket(testbed, 0, 7000);
  const FileDescriptor to = udp_socket(testbed, 1, 7000);
  const int segment = 1000;
  if (segments > 1) ::setsockopt(from.get(), IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment);
  const std::string data(static_cast<std::size_t>(segment * segments), 'x');
  const std::uint64_t total = units * static_cast<std::uint64_t>(segments);
  LossRun run;
  const auto send = [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      if (send_to(from, testbed, 1, 7000, data) != static_cast<ssize_t>(data.size())) {
        throw std::runtime_error("sendto failed");
      }
      run.received += drain(to);
    }
  };
  const auto settle = [&](std::uint64_t datagrams) {
    const Time end = monotonic_now() + kPatience;
    do {
      run.counters = testbed.loss_counters(0).value();
      run.received += drain(to);
      if (run.counters.passed + run.counters.dropped == datagrams &&
          run.received == run.counters.passed)
        break;
      ::usleep(1000);
    } while (monotonic_now() < end);
  };
  // The first unit finds the neighbour: until then the kernel keeps only some 200 KB.
  send(1);
  settle(static_cast<std::uint64_t>(segments));
  send(units - 1);
  settle(total);
  EXPECT_EQ(run.counters.passed + run.counters.dropped, total);
  EXPECT_EQ(run.counters.dropped, total - run.received);
  return run;
}

TEST_F(TestbedTest, loss__rate_and_counters) {
  constexpr double kCount = 20000;
  const LossRun run = send_through_loss({0.1, 42}, 20000, 1);
  const double sigma = std::sqrt(kCount * 0.1 * 0.9);
  EXPECT_NEAR(static_cast<double>(run.counters.dropped), kCount * 0.1, 5 * sigma);
}

TEST_F(TestbedTest, loss__is_per_packet_of_a_gso_train) {
  const LossRun run = send_through_loss({0.1, 42}, 500, 40);
  EXPECT_NEAR(static_cast<double>(run.counters.dropped), 2000, 5 * std::sqrt(20000 * 0.1 * 0.9));
}

TEST_F(TestbedTest, loss__repeats_with_its_seed) {
  const std::uint64_t first = send_through_loss({0.3, 7}, 3000, 1).counters.dropped;
  EXPECT_EQ(send_through_loss({0.3, 7}, 3000, 1).counters.dropped, first);
  EXPECT_NE(send_through_loss({0.3, 8}, 3000, 1).counters.dropped, first);
}

TEST_F(TestbedTest, loss__none_and_all) {
  EXPECT_EQ(send_through_loss({0, 1}, 100, 1).counters.dropped, 0u);
  EXPECT_EQ(send_through_loss({1, 1}, 100, 1).counters.passed, 0u);
}

/// Numbers of the datagrams that arrive at rank 1 of `count` sent by rank 0.
std::vector<std::uint64_t> survivors(const TestbedLoss& loss, std::uint64_t count) {
  TestbedOptions options;
  options.loss = loss;
  const Testbed testbed = make(options);
  const FileDescriptor from = udp_socket(testbed, 0, 7000);
  const FileDescriptor to = udp_socket(testbed, 1, 7000);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string number(reinterpret_cast<const char*>(&i), sizeof i);
    if (send_to(from, testbed, 1, 7000, number) != sizeof i) throw std::runtime_error("sendto");
  }
  std::vector<std::uint64_t> arrived;
  const Time end = monotonic_now() + kPatience;
  while (arrived.size() < testbed.loss_counters(0)->passed && monotonic_now() < end) {
    std::uint64_t number = 0;
    const std::string text = receive_one(to);
    if (text.size() == sizeof number) std::memcpy(&number, text.data(), sizeof number);
    arrived.push_back(number);
  }
  const TestbedLossCounters counters = testbed.loss_counters(0).value();
  EXPECT_EQ(counters.passed + counters.dropped, count);
  return arrived;
}

TEST_F(TestbedTest, bursts__share_and_length) {
  constexpr std::uint64_t kCount = 40'000;
  const auto arrived = survivors({0, 5, 0.1, 8}, kCount);
  std::uint64_t bursts = 0;
  std::uint64_t next = 0;
  for (const std::uint64_t number : arrived) {
    if (number != next) ++bursts;
    next = number + 1;
  }
  if (next != kCount) ++bursts;
  const auto lost = static_cast<double>(kCount - arrived.size());
  // Some 500 bursts of a length that varies as much as its mean.
  EXPECT_NEAR(lost / kCount, 0.1, 0.1 * 5 * std::sqrt(2.0 / 500));
  EXPECT_NEAR(lost / static_cast<double>(bursts), 8, 8 * 5 / std::sqrt(500.0));
}

TEST_F(TestbedTest, bursts__a_pause_ends_them) {
  TestbedOptions options;
  options.loss = TestbedLoss{0, 1, 0.99, 1000};
  const Testbed testbed = make(options);
  const FileDescriptor from = udp_socket(testbed, 0, 7000);
  const Time end = monotonic_now() + kPatience;
  // The first burst begins within some 10 packets; without the pause all of the others were lost.
  while (testbed.loss_counters(0)->dropped == 0 && monotonic_now() < end) {
    send_to(from, testbed, 1, 7000, "x");
  }
  const std::uint64_t before = testbed.loss_counters(0)->passed;
  for (int i = 0; i < 200 && testbed.loss_counters(0)->passed == before; ++i) {
    ::usleep(20'000);
    send_to(from, testbed, 1, 7000, "x");
  }
  EXPECT_GT(testbed.loss_counters(0)->passed, before);
}

/// One shape of traffic from rank 0 to rank 1: what the bridge made of it.
struct LimitRun {
  TestbedLossCounters sender, receiver;
  std::uint64_t received = 0;
  double seconds = 0;  // within which all datagrams were decided upon
};

/// Sends `count` datagrams that make frames of 1042 bytes, from each of `flows` ports in turn.
LimitRun send_through_limit(const TestbedOptions& options, std::uint64_t count,
                            std::uint16_t flows) {
  const Testbed testbed = make(options);
  std::vector<FileDescriptor> from;
  for (std::uint16_t i = 0; i < flows; ++i) {
    from.push_back(udp_socket(testbed, 0, static_cast<std::uint16_t>(7000 + i)));
  }
  const FileDescriptor to = udp_socket(testbed, 1, 7000);
  EXPECT_EQ(send_to(to, testbed, 0, 7000, "hello"), 5);  // ARP is through before time counts
  EXPECT_EQ(receive_one(from[0]), "hello");
  const std::string data(1000, 'x');
  LimitRun run;
  const Time start = monotonic_now();
  for (std::uint64_t i = 0; i < count; ++i) {
    if (send_to(from[i % flows], testbed, 1, 7000, data) != 1000)
      throw std::runtime_error("sendto");
  }
  const Time end = monotonic_now() + kPatience;
  do {
    run.received += drain(to);
    run.sender = testbed.loss_counters(0).value();
    run.receiver = testbed.loss_counters(1).value();
    const std::uint64_t decided = run.received + run.sender.limited + run.receiver.policed;
    if (decided == count) break;
    ::usleep(1000);
  } while (monotonic_now() < end);
  run.seconds = std::chrono::duration<double>(monotonic_now() - start).count();
  return run;
}

/// Frames of 1042 bytes that a bucket lets pass within `seconds`.
double frames(const TestbedLimit& limit, double seconds) {
  return (static_cast<double>(limit.burst_bytes) +
          static_cast<double>(limit.bits_per_second) / 8 * seconds) /
         1042;
}

TEST_F(TestbedTest, police__passes_the_burst_and_the_rate) {
  TestbedOptions options;
  options.police_of[1] = TestbedLimit{8'000'000, 104'200};
  const LimitRun run = send_through_limit(options, 5000, 1);
  EXPECT_EQ(run.received + run.receiver.policed, 5000u);
  EXPECT_EQ(run.sender.policed, 0u) << "the other rank's port is not policed";
  EXPECT_GE(run.received, 100u);
  EXPECT_LE(static_cast<double>(run.received), frames(options.police_of[1], run.seconds) + 2);
}

TEST_F(TestbedTest, police__of_all_but_one) {
  TestbedOptions options;
  options.police = TestbedLimit{8'000, 2'000};
  options.police_of[1] = TestbedLimit{10'000'000'000, 1 << 30};
  const LimitRun run = send_through_limit(options, 1000, 1);
  EXPECT_EQ(run.received, 1000u);
}

TEST_F(TestbedTest, flow_limit__each_flow_has_its_own) {
  TestbedOptions options;
  options.flow_limit = TestbedLimit{8'000, 20'840};  // 20 frames, and next to nothing after them
  for (const std::uint16_t flows : {std::uint16_t{1}, std::uint16_t{4}}) {
    const LimitRun run = send_through_limit(options, 1000, flows);
    EXPECT_EQ(run.received + run.sender.limited, 1000u);
    EXPECT_GE(run.received, 20u * flows);
    EXPECT_LE(static_cast<double>(run.received),
              flows * (frames(*options.flow_limit, run.seconds) + 2));
  }
}

TEST_F(TestbedTest, flow_limit__is_for_udp_alone) {
  TestbedOptions options;
  options.flow_limit = TestbedLimit{8'000, 2'000};
  const Testbed testbed = make(options);
  EXPECT_THAT(run_in(testbed.network_namespace(0),
                     {"ping", "-q", "-c", "20", "-i", "0.002", "-s", "1000", testbed.address(1)}),
              HasSubstr(" 0% packet loss"));
}

}  // namespace
}  // namespace tarpon::testbed_loss_test
