// Threads that wait at a live UDP port, wake it, and take turns at it.
#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/live_ports.h"
#include "transport/clock.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon::ports_drivers_test {
namespace {

using namespace test;

TEST_P(PortTest, wake_ends_the_next_wait) {
  auto ports = make_world(1);
  for (int round = 0; round < 3; ++round) {
    ports[0]->wake();
    ports[0]->wake();
    EXPECT_TRUE(ports[0]->receive(monotonic_now()).empty());
    const Time start = monotonic_now();
    ports[0]->wait(start, start + 900ms);
    EXPECT_LT(monotonic_now() - start, 900ms);
  }
}

TEST_P(PortTest, ring__ends_one_wait_of_the_other_port) {
  auto ports = make_world(2);
  for (int round = 0; round < 50; ++round) {
    ports[1]->ring(ports[0]->bell());
    const Time start = monotonic_now();
    ports[0]->wait(start, start + 60s);
    EXPECT_LT(monotonic_now() - start, 60s);
  }
  EXPECT_LE(ports[0]->statistics().waits, 50u);
}

TEST_P(PortTest, full_bell__blocks_nobody_and_ends_the_wait) {
  auto ports = make_world(2);
  for (int i = 0; i < 10'000; ++i) ports[1]->ring(ports[0]->bell());
  ports[0]->wake();
  const Time start = monotonic_now();
  ports[0]->wait(start, start + 60s);
  EXPECT_LT(monotonic_now() - start, 60s);
}

TEST_P(PortTest, bell_of_a_port_that_is_gone__does_nothing) {
  auto ports = make_world(2);
  const BellName gone = ports[0]->bell();
  EXPECT_NE(gone, BellName{});
  ports[0].reset();
  ports[1]->ring(gone);
  EXPECT_FALSE(ports[1]->failure());
}

TEST_P(PortTest, wait__returns_when_a_lent_packet_has_been_sent) {
  constexpr std::uint32_t kLength = 1408, kPackets = 100;  // some trains, which lanes send
  auto ports = make_world(2);
  const std::vector<std::byte> lent(kPackets * kLength);
  const Lender lender = 1;
  for (int round = 0; round < 5; ++round) {
    send(*ports[0], run_of(kPackets, kLength, 1), {.lent = &lent, .on_back_pressure = {}});
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // they may be gone before the wait
    while (ports[0]->holds(lender)) {
      const Time start = monotonic_now();
      ports[0]->wait(start, start + 900ms);
      EXPECT_LT(monotonic_now() - start, 900ms);
    }
  }
}

TEST_P(PortTest, wake_from_another_thread) {
  auto ports = make_world(1);
  std::atomic<int> asked = 0;
  std::atomic<bool> stop = false;
  int answered = 0;
  std::thread other([&] {
    while (!stop) {
      asked.fetch_add(1);
      ports[0]->wake();
      std::this_thread::yield();
    }
  });
  for (int round = 0; round < 2000; ++round) {
    const Time now = monotonic_now();
    ports[0]->wait(now, kNever);
    answered = asked.load();
    ports[0]->receive(now);
  }
  stop = true;
  other.join();
  EXPECT_GT(answered, 0);
  EXPECT_TRUE(ports[0]->receive(monotonic_now()).empty());
}

TEST_P(PortTest, wait_is_bounded) {
  auto ports = make_world(1);
  const Time now = monotonic_now();
  ports[0]->wait(now, now - 1ms);
  ports[0]->wait(now, now);
  ports[0]->wait(now, now + 1ms);
  EXPECT_LE(ports[0]->statistics().waits, 1u);
}

TEST_P(PortTest, driver_exits) {
  auto ports = make_world(2);
  Inbox inbox;
  for (std::uint32_t round = 0; round < 20; ++round) {
    std::thread driver([&] {
      // Leaves its receive and its wake-up read armed behind.
      ports[1]->receive(monotonic_now());
      ports[1]->wait(monotonic_now(), monotonic_now() + 1ms);
    });
    driver.join();
    send(*ports[0], {{.peer = 1, .number = round, .length = 1408}});
    if (round % 2 == 0) {
      std::thread([&] { collect(*ports[1], inbox, round + 1); }).join();
    } else {
      collect(*ports[1], inbox, round + 1);
    }
    ASSERT_EQ(inbox.packets, round + 1);
  }
  EXPECT_TRUE(each_once(inbox, 20));
}

TEST_P(PortTest, drivers_take_turns) {
  constexpr std::size_t kCount = 4000;
  auto ports = make_world(2);
  std::mutex lock;
  Inbox inbox;
  std::atomic<bool> stop = false;
  const auto drive_in_turn = [&] {
    while (!stop) {
      {
        std::lock_guard guard(lock);
        drive(*ports[1], inbox, 2ms);
        if (inbox.packets >= kCount) stop = true;
      }
      std::this_thread::yield();
    }
  };
  std::thread first(drive_in_turn);
  std::thread second(drive_in_turn);
  const auto messages = run_of(kCount, 1408, 1);
  for (std::size_t at = 0; at < kCount; at += 100) {
    send(*ports[0], {messages.begin() + static_cast<std::ptrdiff_t>(at),
                     messages.begin() + static_cast<std::ptrdiff_t>(at + 100)});
    ports[1]->wake();
    std::this_thread::yield();
  }
  for (const Time end = monotonic_now() + kPatience; !stop && monotonic_now() < end;) {
    std::this_thread::yield();
  }
  stop = true;
  first.join();
  second.join();
  EXPECT_TRUE(each_once(inbox, kCount));
}

// More threads than a port keeps rings for, all of them alive.
TEST_P(PortTest, drivers__many_threads_take_turns) {
  constexpr std::size_t kThreads = 11;
  constexpr std::size_t kTurns = 3 * kThreads;
  auto ports = make_world(2);
  Inbox inbox;
  std::atomic<std::size_t> turn = 0;
  std::vector<std::thread> threads;
  for (std::size_t me = 0; me < kThreads; ++me) {
    threads.emplace_back([&, me] {
      for (std::size_t mine = me; mine < kTurns; mine += kThreads) {
        for (std::size_t now = turn; now != mine; now = turn) turn.wait(now);
        const auto number = static_cast<std::uint32_t>(mine);
        send(*ports[0], {{.peer = 1, .number = number, .length = 1408}});
        collect(*ports[1], inbox, mine + 1);
        ++turn;
        turn.notify_all();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(each_once(inbox, kTurns));
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator listed("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(listed), end(listed)));
}

TEST_P(PortTest, drivers__that_have_exited_keep_no_descriptor) {
  auto ports = make_world(1);
  const auto drive_from_another_thread = [&] {
    std::thread([&] { ports[0]->receive(monotonic_now()); }).join();
  };
  for (int i = 0; i < 2; ++i) drive_from_another_thread();  // the second ring is open already
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 5; ++i) drive_from_another_thread();
  EXPECT_LE(open_descriptors(), before);
}

// In a thread of its own: rings of earlier tests that the kernel takes apart interrupt the threads
// that used them, once each.
TEST_P(PortTest, drivers__later_system_calls_are_not_interrupted) {
  auto ports = make_world(2);
  const FileDescriptor nothing(::epoll_create1(EPOLL_CLOEXEC));
  Inbox inbox;
  constexpr std::uint32_t kRounds = 10;
  const auto take_over = [&](std::uint32_t round) {
    std::this_thread::sleep_for(2ms);
    send(*ports[0], {{.peer = 1, .number = round, .length = 1408}});
    std::this_thread::sleep_for(2ms);
    drive(*ports[1], inbox, 1ms);
    ports[1]->wake();
  };
  std::thread([&] {
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      drive(*ports[1], inbox, 1ms);  // arms whatever it needs
      std::thread other(take_over, round);
      epoll_event event{};
      errno = 0;
      EXPECT_EQ(::epoll_wait(nothing.get(), &event, 1, 20), 0) << std::strerror(errno);
      other.join();
      collect(*ports[1], inbox, round + 1);
    }
  }).join();
  EXPECT_TRUE(each_once(inbox, kRounds));
}

TEST_P(PortTest, wake__is_kept_for_the_next_wait) {
  auto ports = make_world(1);
  for (int round = 0; round < 3; ++round) {
    const Time start = monotonic_now();
    ports[0]->receive(start);
    ports[0]->wait(start, start + 1ms);
    ports[0]->wake();
    const Time again = monotonic_now();
    ports[0]->wait(again, again + 900ms);
    EXPECT_LT(monotonic_now() - again, 900ms);
  }
}

}  // namespace
}  // namespace tarpon::ports_drivers_test
