// Strangers at the meeting, and ranks that contradict it.
#include "collectives/rendezvous/control.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <ctime>
#include <memory>
#include <thread>

#include "bpf/wire.h"
#include "tests/support/rendezvous_job.h"

namespace tarpon::control_stranger_test {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// tcp:// has no proof that a guest belongs to the job: one that contradicts rank 0 is refused, and
// ends nothing.

/// Rank 0 of a job of two, in a thread of its own. Collects the texts of its refusals.
class WaitingHost : public RendezvousObserver {
 public:
  explicit WaitingHost(RendezvousOptions wanted) : address_(wanted.address) {
    wanted.observer = this;
    thread_ = std::thread([this, wanted] { joined_ = ControlChannel::join(wanted); });
  }
  WaitingHost(const WaitingHost&) = delete;
  ~WaitingHost() override { end(); }

  void on_refusal(const std::string& line) override { refusals_.push_back(line); }
  void on_wait(const std::string&, bool) override {}

  /// REQUIRES: the other rank joins, or the timeout is near.
  Joined& end() {
    if (thread_.joinable()) thread_.join();
    return joined_;
  }
  /// After end().
  const std::vector<std::string>& refusals() const { return refusals_; }
  const std::string& address() const { return address_; }

 private:
  std::string address_;
  std::vector<std::string> refusals_;
  Joined joined_;
  std::thread thread_;
};

/// The verdict that `client` gets.
std::optional<rendezvous::Verdict> verdict_for(rendezvous::Connection& client) {
  const Time until = late();
  while (client.is_open() && client.frame() == nullptr && monotonic_now() < until) {
    std::vector<pollfd> entries{client.poll_entry()};
    rendezvous::poll_until(entries, until);
    client.receive();
  }
  if (client.frame() == nullptr) return std::nullopt;
  return rendezvous::decode_verdict(client.take().body);
}

TEST(ControlStrangerTest, tcp__a_hello_that_contradicts__is_refused_and_the_job_starts) {
  RendezvousOptions of_host = options(free_address(), 0, 2);
  of_host.agreed = "version=1\nmode=exact\nsecret=forty-two\n";
  const rendezvous::Hello good{TARPON_WIRE_VERSION, 1, 2, 0, of_host.agreed};
  rendezvous::Hello version = good, world = good, rank = good, of_rank_0 = good, bare = good;
  version.version += 1;
  world.world_size = 3;
  rank.rank = 7;
  of_rank_0.rank = 0;
  bare.agreed = "";
  rendezvous::Hello bounded = good;
  bounded.agreed = "version=1\nmode=bounded\nsecret=forty-two\n";
  WaitingHost host(of_host);
  for (const auto& [hello, words] : {std::pair(version, "rank 1 speaks wire version"),
                                     {world, "rank 1 expects 3 ranks"},
                                     {rank, "rank 7 is out of range"},
                                     {of_rank_0, "rank 0 is taken"},
                                     {bare, "rank 1 lacks an option that rank 0 has"},
                                     {bounded, "rank 1 runs with mode=bounded, rank 0 does not"}}) {
    auto client = foreign_client(host.address(), hello_frame(hello, 0));
    const auto verdict = verdict_for(client);
    ASSERT_TRUE(verdict && verdict->error) << words;
    EXPECT_THAT(verdict->error->message, AllOf(HasSubstr(words), Not(HasSubstr("exact")),
                                               Not(HasSubstr("secret")), Not(HasSubstr("forty"))));
    EXPECT_EQ(verdict->job, 0u);
  }
  RendezvousOptions of_member = options(host.address(), 1, 2);
  of_member.agreed = of_host.agreed;
  const Joined member = ControlChannel::join(of_member);
  EXPECT_TRUE(member.has_value()) << member.error().message;
  EXPECT_TRUE(host.end().has_value()) << host.end().error().message;
  ASSERT_EQ(host.refusals().size(), 6u);
  EXPECT_THAT(host.refusals()[5],
              HasSubstr("rank 1 runs with mode=bounded where rank 0 has mode=exact"));
  EXPECT_THAT(host.refusals()[5], HasSubstr("(127.0.0.1)"));
}

TEST(ControlStrangerTest, tcp__a_rank_with_another_option__fails_at_once_and_rank_0_names_it) {
  WaitingHost host(options(free_address(), 0, 2, 3 * kShort));
  RendezvousOptions of_member = options(host.address(), 1, 2);  // waits far longer than rank 0
  of_member.agreed = "version=1\nmode=bounded\n";
  const Joined member = ControlChannel::join(of_member);
  ASSERT_FALSE(member.has_value());
  EXPECT_EQ(member.error().code, Error::Code::mismatch);
  EXPECT_EQ(member.error().message,
            "rank 1 runs with mode=bounded, rank 0 does not: start all ranks with the same version "
            "and options");
  const Joined& joined = host.end();
  ASSERT_FALSE(joined.has_value());
  EXPECT_EQ(joined.error().code, Error::Code::timeout);
  EXPECT_THAT(joined.error().message,
              AllOf(HasSubstr("rank 1 did not arrive"),
                    HasSubstr("refused: rank 1 runs with mode=bounded where rank 0 has "
                              "mode=exact")));
}

TEST(ControlStrangerTest, tcp__rank_taken_twice__the_first_one_keeps_its_place) {
  WaitingHost host(options(free_address(), 0, 3));
  auto first = foreign_client(
      host.address(), hello_frame({TARPON_WIRE_VERSION, 1, 3, 0, options("", 1, 3).agreed}));
  auto probe = foreign_client(
      host.address(), hello_frame({TARPON_WIRE_VERSION, 1, 3, 0, options("", 1, 3).agreed}));
  const auto verdict = verdict_for(probe);
  ASSERT_TRUE(verdict && verdict->error);
  EXPECT_THAT(verdict->error->message, HasSubstr("rank 1 is taken twice"));
  const Joined third = ControlChannel::join(options(host.address(), 2, 3));
  EXPECT_TRUE(third.has_value()) << third.error().message;
  EXPECT_TRUE(host.end().has_value()) << host.end().error().message;
  const auto seated = verdict_for(first);
  ASSERT_TRUE(seated);
  EXPECT_FALSE(seated->error);
}

TEST(ControlStrangerTest, tcp__an_impatient_guest__shortens_nothing) {
  WaitingHost host(options(free_address(), 0, 3));
  auto client = foreign_client(
      host.address(), hello_frame({TARPON_WIRE_VERSION, 1, 3, 0, options("", 1, 3).agreed}, 0));
  const auto verdict = verdict_for(client);
  ASSERT_TRUE(verdict && verdict->error);
  EXPECT_EQ(verdict->error->code, Error::Code::timeout);
  const auto members = join_all({options(host.address(), 1, 3), options(host.address(), 2, 3)});
  for (const Joined& member : members) EXPECT_TRUE(member) << member.error().message;
  EXPECT_TRUE(host.end().has_value()) << host.end().error().message;
}

TEST(ControlStrangerTest, tcp__a_flood_does_not_displace_a_rank_that_has_said_hello) {
  WaitingHost host(options(free_address(), 0, 3));
  std::vector<rendezvous::Connection> clients;
  for (int i = 0; i < 40; ++i) clients.push_back(foreign_client(host.address(), ""));
  clients.push_back(foreign_client(
      host.address(), hello_frame({TARPON_WIRE_VERSION, 1, 3, 0, options("", 1, 3).agreed})));
  rendezvous::Connection& rank = clients.back();
  std::vector<rendezvous::Connection> more;
  for (int i = 0; i < 200; ++i) more.push_back(foreign_client(host.address(), ""));
  // The meeting lasts until the flood is over.
  const Joined last = ControlChannel::join(options(host.address(), 2, 3));
  EXPECT_TRUE(last.has_value());
  const auto verdict = verdict_for(rank);
  ASSERT_TRUE(verdict);
  EXPECT_FALSE(verdict->error);
  EXPECT_TRUE(host.end().has_value());
}

TEST(ControlStrangerTest, tcp__many_refusals__are_told_a_bounded_number_of_times) {
  WaitingHost host(options(free_address(), 0, 2, 5 * kShort));
  for (std::uint32_t rank = 100; rank < 120; ++rank) {
    auto client =
        foreign_client(host.address(), hello_frame({TARPON_WIRE_VERSION, rank, 2, 0, "a=1"}));
    const auto verdict = verdict_for(client);
    ASSERT_TRUE(verdict && verdict->error);
  }
  const Joined& joined = host.end();
  ASSERT_FALSE(joined.has_value());
  EXPECT_EQ(host.refusals().size(), 16u);
  EXPECT_THAT(joined.error().message, HasSubstr("refused 20 connections in all"));
}

TEST(ControlStrangerTest, file__a_foreign_version_needs_the_nonce_too) {
  const Directory directory;
  WaitingHost host(options(directory.address(), 0, 2));
  std::optional<rendezvous::AddressFile> posted;
  while (!posted) posted = rendezvous::read_address_file(directory.file());
  const std::string at = fmt::format("tcp://127.0.0.1:{}", ntohs(posted->address.sin_port));
  auto client = foreign_client(
      at, hello_frame({TARPON_WIRE_VERSION + 1, 1, 2, posted->nonce + 1, "anything"}));
  EXPECT_FALSE(verdict_for(client)) << "dropped without an answer";
  const Joined member = ControlChannel::join(options(directory.address(), 1, 2));
  EXPECT_TRUE(member.has_value()) << member.error().message;
  EXPECT_TRUE(host.end().has_value()) << host.end().error().message;
}

TEST(ControlStrangerTest, hello__any_bytes) {
  const std::string good = encode(rendezvous::Hello{1, 2, 3, 4, "a=1"});
  for (std::size_t bytes = 0; bytes < 24; ++bytes) {
    EXPECT_FALSE(rendezvous::decode_hello(std::string_view(good).substr(0, bytes))) << bytes;
  }
  const auto hello = rendezvous::decode_hello(good);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->nonce, 4u);
  EXPECT_EQ(hello->agreed, "a=1");
}

TEST(ControlStrangerTest, verdict__text_of_a_stranger_is_printable_and_bounded) {
  const auto decode = [](std::string text) {
    return rendezvous::decode_verdict(encode(rendezvous::Verdict{
        .error = Error::make(Error::Code::io, std::move(text)), .job = 0, .public_id = 0}));
  };
  EXPECT_EQ(decode("a\x1b[2J\n\x9b")->error->message, "a?[2J??");
  EXPECT_LE(decode(std::string(60'000, 'x'))->error->message.size(), 2100u);
  EXPECT_FALSE(rendezvous::decode_verdict(std::string(11, '\0')));
}

/// Of the process, while it lives: no descriptor is left.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const FileDescriptor lowest(fcntl(0, F_DUPFD_CLOEXEC, 0));
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(lowest.get());
    setrlimit(RLIMIT_NOFILE, &none);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

/// The rank that cannot be let in stays in the kernel's queue.
TEST(ControlStrangerTest, tcp__no_descriptor_for_a_rank__rank_0_sleeps_until_it_gives_up) {
  FileDescriptor listener = listen_anywhere();
  const sockaddr_in address = rendezvous::local_name(listener);
  RendezvousOptions of_host = options("tcp://" + rendezvous::host_port_text(address), 0, 2);
  of_host.listener = std::make_shared<FileDescriptor>(std::move(listener));
  const FileDescriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  Joined joined = fail(Error::Code::io, "did not run");
  timespec busy{};
  {
    const NoDescriptors none;
    std::thread([&] {
      joined = ControlChannel::join(of_host);
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &busy);
    }).join();
  }
  ASSERT_FALSE(joined);
  EXPECT_THAT(joined.error().message, HasSubstr("ulimit -n"));
  EXPECT_EQ(busy.tv_sec, 0);
  EXPECT_LT(busy.tv_nsec, 200'000'000) << "of a second in which it may still tell ranks";
}

}  // namespace
}  // namespace tarpon::control_stranger_test
