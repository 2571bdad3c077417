// How ranks meet with a secret, and who does not get in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <mutex>

#include "collectives/rendezvous/control.h"
#include "tests/support/rendezvous_job.h"
#include "tests/support/secrets.h"

namespace tarpon::control_secret_test {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;

std::vector<RendezvousOptions> with_secret(const std::string& address, std::uint32_t world,
                                           Duration timeout = kPatience) {
  auto wanted = all_of(address, world, timeout);
  for (RendezvousOptions& one : wanted) one.secret = secret();
  return wanted;
}

TEST(ControlSecretTest, same_secret__ranks_meet_and_exchange__with_one_new_key) {
  std::optional<JobKey> earlier;
  for (const bool file : {false, true}) {
    const Directory directory;
    auto joined = join_all(with_secret(file ? directory.address() : free_address(), 5));
    for (const Joined& one : joined) ASSERT_TRUE(one) << one.error().message;
    const auto& key = (*joined[0])->packet_key();
    ASSERT_TRUE(key);
    EXPECT_NE(key, earlier) << "each job has a key of its own";
    earlier = key;
    for (const Joined& one : joined) EXPECT_EQ((*one)->packet_key(), key);
    std::vector<std::thread> threads;
    for (const Joined& one : joined) {
      threads.emplace_back([&channel = **one] {
        // Larger than a record of TLS and than the socket's buffers.
        const std::string mine(200'000 + channel.rank(), 'x');
        for (int round = 0; round < 3; ++round) {
          const auto all = channel.all_gather(mine, late());
          ASSERT_TRUE(all) << all.error().message;
          for (std::size_t rank = 0; rank < 5; ++rank) {
            EXPECT_EQ((*all)[rank].size(), 200'000 + rank);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(ControlSecretTest, without_a_secret__there_is_no_key) {
  Job job(2);
  EXPECT_FALSE(job[0].packet_key());
  EXPECT_FALSE(job[1].packet_key());
}

/// Collects the refusals of rank 0.
struct Refusals : RendezvousObserver {
  void on_refusal(const std::string& line) override { lines.push_back(line); }
  void on_wait(const std::string&, bool) override {}
  std::vector<std::string> lines;
};

TEST(ControlSecretTest, ranks_that_differ__refuse_each_other_by_name) {
  struct Case {
    std::shared_ptr<const JobSecret> of_host, of_guest;
    const char *at_host, *at_guest;
  };
  for (const Case& one : {Case{secret(1), secret(2), "another secret than rank 0",
                               "has another secret than this rank: give all ranks the same"},
                          Case{secret(1), nullptr, "a process has no secret, and rank 0 has one",
                               "rank 0 has a secret, and this rank has none: give all ranks"},
                          Case{nullptr, secret(1), "a process has a secret, and rank 0 has none",
                               "this rank has a secret, and rank 0 at"}}) {
    Refusals refusals;
    const std::string address = free_address();
    auto wanted = all_of(address, 2);
    wanted[0].secret = one.of_host;
    wanted[0].timeout = 2 * kShort;
    wanted[0].observer = &refusals;
    wanted[1].secret = one.of_guest;
    const auto joined = join_all(wanted);
    ASSERT_FALSE(joined[0] || joined[1]);
    EXPECT_EQ(joined[1].error().code, Error::Code::mismatch);
    EXPECT_THAT(joined[1].error().message, HasSubstr(one.at_guest));
    EXPECT_THAT(joined[0].error().message, AllOf(HasSubstr("rank 1 did not arrive"),
                                                 HasSubstr(one.at_host), HasSubstr("127.0.0.1")));
    EXPECT_THAT(refusals.lines, testing::Contains(HasSubstr(one.at_host)));
  }
}

/// A file that an earlier start has left names the port of another job by now.
TEST(ControlSecretTest, file_left_from_an_earlier_start__ends_no_join) {
  for (const auto& of_other : {secret(2), std::shared_ptr<const JobSecret>()}) {
    for (const auto& of_job : {secret(1), std::shared_ptr<const JobSecret>()}) {
      if (of_other == of_job) continue;
      const Directory directory;
      const std::string other_address = free_address();
      auto others = all_of(other_address, 2);
      for (RendezvousOptions& one : others) one.secret = of_other;
      Joined other;
      std::thread other_host([&] { other = ControlChannel::join(others[0]); });
      const auto target = loopback(rendezvous::parse_address(other_address)->port);
      ASSERT_TRUE(rendezvous::write_address_file(directory.file(), {target, 77}));
      auto wanted = all_of(directory.address(), 2);
      for (RendezvousOptions& one : wanted) one.secret = of_job;
      Joined guest, host;
      std::thread early([&] { guest = ControlChannel::join(wanted[1]); });
      std::this_thread::sleep_for(100ms);  // it has been refused by the other job
      std::thread late([&] { host = ControlChannel::join(wanted[0]); });
      early.join();
      late.join();
      EXPECT_TRUE(guest) << guest.error().message;
      EXPECT_TRUE(host) << host.error().message;
      EXPECT_TRUE(ControlChannel::join(others[1]));
      other_host.join();
    }
  }
}

TEST(ControlSecretTest, refused_rank__the_others_go_on_and_start_with_the_right_one) {
  const std::string address = free_address();
  auto wanted = with_secret(address, 2);
  Joined host;
  std::thread thread([&] { host = ControlChannel::join(wanted[0]); });
  for (const auto& wrong : {secret(7), std::shared_ptr<const JobSecret>()}) {
    RendezvousOptions guest = wanted[1];
    guest.secret = wrong;
    EXPECT_FALSE(ControlChannel::join(guest));
  }
  const Joined guest = ControlChannel::join(wanted[1]);
  thread.join();
  EXPECT_TRUE(guest) << guest.error().message;
  EXPECT_TRUE(host) << host.error().message;
}

TEST(ControlSecretTest, plain_hello_with_the_right_words__is_not_read) {
  const std::string address = free_address();
  auto wanted = with_secret(address, 2);
  Joined host;
  std::thread thread([&] { host = ControlChannel::join(wanted[0]); });
  // A hello that rank 0 would accept, were it not in plain.
  const rendezvous::Hello hello{TARPON_WIRE_VERSION, 1, 2, 0, wanted[1].agreed};
  const auto target = loopback(rendezvous::parse_address(address)->port);
  Result<FileDescriptor> socket = fail(Error::Code::timeout, "not tried");
  while (!socket) socket = rendezvous::connect_to(target, late());
  rendezvous::Connection stranger(*std::move(socket), rendezvous::kLargestHello);
  stranger.send(std::make_shared<const std::string>(rendezvous::encode(
      rendezvous::Frame{rendezvous::FrameKind::hello, 0, UINT32_MAX, rendezvous::encode(hello)})));
  const Time until = late();
  while (stranger.is_open() && stranger.frame() == nullptr && monotonic_now() < until) {
    std::vector<pollfd> entries{stranger.poll_entry()};
    rendezvous::poll_until(entries, until);
    stranger.receive();
  }
  ASSERT_NE(stranger.frame(), nullptr);
  const auto verdict = rendezvous::decode_verdict(stranger.take().body);
  ASSERT_TRUE(verdict && verdict->error);
  EXPECT_THAT(verdict->error->message, HasSubstr("rank 0 has a secret"));
  EXPECT_EQ(verdict->job, 0u) << "the cookie stays in TLS";
  const Joined guest = ControlChannel::join(wanted[1]);
  thread.join();
  EXPECT_TRUE(guest && host);
}

TEST(ControlSecretTest, silent_and_half_done_handshakes__hold_nobody_up) {
  const std::string address = free_address();
  auto wanted = with_secret(address, 2);
  Joined host;
  std::thread thread([&] { host = ControlChannel::join(wanted[0]); });
  const auto target = loopback(rendezvous::parse_address(address)->port);
  std::vector<FileDescriptor> strangers;
  while (strangers.size() < 100) {
    auto socket = rendezvous::connect_to(target, late());
    if (!socket) continue;
    const std::string begin("\x16\x03\x01\x02\x00\x01", strangers.size() % 7);
    (void)send(socket->get(), begin.data(), begin.size(), MSG_NOSIGNAL);
    strangers.push_back(*std::move(socket));
  }
  const Joined guest = ControlChannel::join(wanted[1]);
  thread.join();
  EXPECT_TRUE(guest && host);
}

}  // namespace
}  // namespace tarpon::control_secret_test
