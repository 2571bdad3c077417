// The control channel with threads as ranks, over loopback TCP and over address files.
#include "collectives/rendezvous/control.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "bpf/wire.h"
#include "collectives/rendezvous/address.h"
#include "collectives/rendezvous/connection.h"
#include "collectives/rendezvous/hello.h"
#include "collectives/rendezvous/sockets.h"
#include "transport/clock.h"

namespace tarpon {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Joined = Result<std::unique_ptr<ControlChannel>>;

/// Long enough for every test that should succeed, even under a sanitizer.
constexpr Duration kPatience = 60s;
/// For waits that must end without success.
constexpr Duration kShort = 1s;

sockaddr_in loopback(std::uint16_t port) {
  return *rendezvous::resolve("127.0.0.1", port);
}

FileDescriptor listen_anywhere() {
  return *rendezvous::listen_at(loopback(0));
}

std::uint16_t port_of(const FileDescriptor& socket) {
  return ntohs(rendezvous::local_name(socket).sin_port);
}

/// A port that was free a moment ago.
std::string free_address() {
  return fmt::format("tcp://127.0.0.1:{}", port_of(listen_anywhere()));
}

class Directory {
 public:
  Directory() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tarpon-control-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() { std::filesystem::remove_all(path_); }

  std::string file() const { return (path_ / "rendezvous").string(); }
  std::string address() const { return "file://" + file(); }
  bool is_empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::filesystem::path path_;
};

RendezvousOptions options(const std::string& address, Rank rank, std::uint32_t world,
                          Duration timeout = kPatience) {
  RendezvousOptions options;
  options.rank = rank;
  options.world_size = world;
  options.address = address;
  options.timeout = timeout;
  options.agreed = "version=1\nmode=exact\n";
  return options;
}

/// Joins all of `wanted` at once, a thread each.
std::vector<Joined> join_all(const std::vector<RendezvousOptions>& wanted) {
  std::vector<Joined> joined(wanted.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    threads.emplace_back([&, i] { joined[i] = ControlChannel::join(wanted[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  return joined;
}

std::vector<RendezvousOptions> all_of(const std::string& address, std::uint32_t world,
                                      Duration timeout = kPatience) {
  std::vector<RendezvousOptions> wanted;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    wanted.push_back(options(address, static_cast<Rank>(rank), world, timeout));
  }
  return wanted;
}

/// A job whose ranks have joined; `run` gives every rank a thread.
class Job {
 public:
  explicit Job(std::uint32_t world, const std::string& address = free_address()) {
    for (Joined& joined : join_all(all_of(address, world))) {
      EXPECT_TRUE(joined.has_value()) << joined.error().message;
      channels_.push_back(*std::move(joined));
    }
  }

  void run(const std::function<void(ControlChannel&)>& body) {
    std::vector<std::thread> threads;
    for (auto& channel : channels_) {
      if (channel) threads.emplace_back([&] { body(*channel); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void kill(Rank rank) { channels_[rank].reset(); }
  ControlChannel& operator[](Rank rank) { return *channels_[rank]; }
  std::size_t size() const { return channels_.size(); }

 private:
  std::vector<std::unique_ptr<ControlChannel>> channels_;
};

Time soon() {
  return monotonic_now() + kShort;
}
Time late() {
  return monotonic_now() + kPatience;
}

/// Every one of `joined` failed with this code and the same text, which is returned.
std::string common_error(const std::vector<Joined>& joined, Error::Code code) {
  std::optional<std::string> text;
  for (const Joined& one : joined) {
    if (one.has_value()) {
      ADD_FAILURE() << "a rank joined";
      return "";
    }
    EXPECT_EQ(one.error().code, code) << one.error().message;
    EXPECT_EQ(text.value_or(one.error().message), one.error().message);
    text = one.error().message;
  }
  return text.value_or("");
}

/// A client that connects to rank 0 and sends `bytes`.
rendezvous::Connection foreign_client(const std::string& address, const std::string& bytes) {
  const auto parsed = *rendezvous::parse_address(address);
  const Time deadline = late();
  while (true) {
    auto socket = rendezvous::connect_to(loopback(parsed.port), deadline);
    if (socket) {
      rendezvous::Connection connection(*std::move(socket));
      if (!bytes.empty()) connection.send(std::make_shared<const std::string>(bytes));
      return connection;
    }
    if (monotonic_now() >= deadline) return {};
    rendezvous::sleep_until(monotonic_now() + 5ms);
  }
}

std::string hello_frame(const rendezvous::Hello& hello, std::uint32_t wait_ms = UINT32_MAX) {
  return encode(rendezvous::Frame{rendezvous::FrameKind::hello, 0, wait_ms, encode(hello)});
}

// join

class JoinTest : public testing::TestWithParam<std::uint32_t> {};

TEST_P(JoinTest, tcp__all_ranks_agree_on_size_and_job) {
  Job job(GetParam());
  for (Rank rank = 0; rank < job.size(); ++rank) {
    EXPECT_EQ(job[rank].rank(), rank);
    EXPECT_EQ(job[rank].world_size(), GetParam());
    EXPECT_EQ(job[rank].job(), job[0].job());
    EXPECT_NE(job[rank].job(), 0u);
    EXPECT_EQ(job[rank].public_id(), job[0].public_id());
    EXPECT_NE(job[rank].public_id(), job[rank].job()) << "one start in 2^32 may draw them alike";
    EXPECT_EQ(job[rank].local_address(), "127.0.0.1");
  }
}

TEST_P(JoinTest, file__all_ranks_meet_and_the_file_is_gone) {
  const Directory directory;
  Job job(GetParam(), directory.address());
  EXPECT_EQ(job[0].world_size(), GetParam());
  EXPECT_TRUE(directory.is_empty());
}

TEST_P(JoinTest, all_gather__everybody_gets_everything_by_rank) {
  Job job(GetParam());
  job.run([&](ControlChannel& channel) {
    for (int round = 0; round < 3; ++round) {
      const auto all = channel.all_gather(fmt::format("{}/{}", channel.rank(), round), late());
      ASSERT_TRUE(all.has_value()) << all.error().message;
      ASSERT_EQ(all->size(), GetParam());
      for (std::size_t rank = 0; rank < all->size(); ++rank) {
        EXPECT_EQ((*all)[rank], fmt::format("{}/{}", rank, round));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, JoinTest, testing::Values(1, 2, 3, 8, 64));

TEST(ControlJoinTest, rank_0_may_come_last) {
  const std::string address = free_address();
  Joined member;
  std::thread thread([&] { member = ControlChannel::join(options(address, 1, 2)); });
  // The member has been refused at least once when the port is seen not to be listened at.
  EXPECT_FALSE(rendezvous::connect_to(loopback(rendezvous::parse_address(address)->port), late()));
  const Joined host = ControlChannel::join(options(address, 0, 2));
  thread.join();
  ASSERT_TRUE(host.has_value()) << host.error().message;
  ASSERT_TRUE(member.has_value()) << member.error().message;
}

TEST(ControlJoinTest, missing_ranks__are_named_to_all_who_came) {
  const std::string address = free_address();
  auto wanted = all_of(address, 6, kShort);
  wanted.erase(wanted.begin() + 5);
  wanted.erase(wanted.begin() + 2);
  const std::string text = common_error(join_all(wanted), Error::Code::timeout);
  EXPECT_THAT(text, AllOf(HasSubstr("ranks 2, 5 did not arrive within 0.75 s at " + address),
                          HasSubstr("are they running")));
}

TEST(ControlJoinTest, missing_rank__one_is_named_in_the_singular) {
  const Joined host = ControlChannel::join(options(free_address(), 0, 2, 50ms));
  ASSERT_FALSE(host.has_value());
  EXPECT_THAT(host.error().message, AllOf(HasSubstr("rank 1 did not arrive within 0.0375 s"),
                                          HasSubstr("is it running"), Not(HasSubstr("dropped"))));
}

TEST(ControlJoinTest, missing_rank__an_impatient_rank_hears_it_before_it_gives_up) {
  const std::string address = free_address();
  const auto joined =
      join_all({options(address, 0, 3, 3 * kShort), options(address, 1, 3, kShort)});
  ASSERT_FALSE(joined[0] || joined[1]);
  EXPECT_EQ(joined[1].error().code, Error::Code::timeout);
  EXPECT_THAT(joined[1].error().message, HasSubstr("rank 2 did not arrive in time"));
  EXPECT_THAT(joined[0].error().message, AllOf(HasSubstr("rank 2 did not arrive within 2.25 s"),
                                               HasSubstr("(rank 1 came and left)")));
}

TEST(ControlJoinTest, missing_rank_0__is_named_with_the_reason) {
  const std::string address = free_address();
  const Joined member = ControlChannel::join(options(address, 1, 2, 50ms));
  ASSERT_FALSE(member.has_value());
  EXPECT_EQ(member.error().code, Error::Code::timeout);
  EXPECT_THAT(member.error().message, AllOf(HasSubstr("cannot reach rank 0 at " + address),
                                            HasSubstr("refused"), HasSubstr("is rank 0 running")));
}

TEST(ControlJoinTest, missing_rank_0__something_silent_listens_there) {
  const FileDescriptor silent = listen_anywhere();
  const std::string address = fmt::format("tcp://127.0.0.1:{}", port_of(silent));
  const Joined member = ControlChannel::join(options(address, 1, 2, 50ms));
  ASSERT_FALSE(member.has_value());
  EXPECT_THAT(member.error().message, HasSubstr("connected, and no answer"));
}

TEST(ControlJoinTest, missing_rank_0__no_address_file) {
  const Directory directory;
  const Joined member = ControlChannel::join(options(directory.address(), 1, 2, 50ms));
  ASSERT_FALSE(member.has_value());
  EXPECT_THAT(member.error().message, AllOf(HasSubstr("rank 0 has left no address in that file"),
                                            HasSubstr("does it see the same file")));
}

TEST(ControlJoinTest, missing_rank_0__the_address_file_belongs_to_another_user) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  const Directory directory;
  ASSERT_TRUE(rendezvous::write_address_file(directory.file(), {loopback(1), 1}));
  EXPECT_TRUE(rendezvous::read_address_file(directory.file()));
  ASSERT_EQ(chown(directory.file().c_str(), 65534, 65534), 0);
  EXPECT_FALSE(rendezvous::read_address_file(directory.file()));
}

// An address file proves that a guest belongs to the job: its contradiction ends the job.

TEST(ControlJoinTest, file__contradiction__rank_taken_twice) {
  const Directory directory;
  const std::string address = directory.address();
  const auto joined =
      join_all({options(address, 0, 3), options(address, 1, 3), options(address, 1, 3)});
  EXPECT_THAT(common_error(joined, Error::Code::invalid_argument),
              HasSubstr("rank 1 is taken twice"));
}

TEST(ControlJoinTest, file__contradiction__rank_out_of_range) {
  const Directory directory;
  const auto joined =
      join_all({options(directory.address(), 0, 2), options(directory.address(), 2, 2)});
  EXPECT_EQ(common_error(joined, Error::Code::invalid_argument),
            "rank 2 is out of range: 2 ranks are numbered 0 to 1");
}

TEST(ControlJoinTest, file__contradiction__world_sizes) {
  const Directory directory;
  const auto joined =
      join_all({options(directory.address(), 0, 2), options(directory.address(), 1, 4)});
  EXPECT_THAT(common_error(joined, Error::Code::mismatch),
              HasSubstr("rank 1 expects 4 ranks where rank 0 expects 2"));
}

TEST(ControlJoinTest, file__contradiction__options_are_named_with_both_values) {
  const Directory directory;
  auto wanted = all_of(directory.address(), 4);
  wanted[2].agreed = "version=1\nmode=bounded\n";
  wanted[3].agreed = "version=2\nmode=bounded\n";
  EXPECT_THAT(common_error(join_all(wanted), Error::Code::mismatch),
              HasSubstr("rank 2 runs with mode=bounded where rank 0 has mode=exact"));
}

TEST(ControlJoinTest, file__contradiction__an_option_that_one_side_lacks) {
  for (const auto& [host_text, member_text, words] :
       {std::tuple("a=1\nb=2", "a=1", "rank 1 runs with no b where rank 0 has b=2"),
        std::tuple("a=1", "a=1\nc=\x1b[2J", "rank 1 runs with c=?[2J where rank 0 has no c")}) {
    const Directory directory;
    auto wanted = all_of(directory.address(), 2);
    wanted[0].agreed = host_text;
    wanted[1].agreed = member_text;
    EXPECT_THAT(common_error(join_all(wanted), Error::Code::mismatch), HasSubstr(words));
  }
}

// tcp:// has no such proof: a guest that contradicts rank 0 is refused, and ends nothing.

/// Rank 0 of a job of two, in a thread; collects what it refuses.
class WaitingHost : public RefusalListener {
 public:
  explicit WaitingHost(RendezvousOptions wanted) : address_(wanted.address) {
    wanted.refusals = this;
    thread_ = std::thread([this, wanted] { joined_ = ControlChannel::join(wanted); });
  }
  WaitingHost(const WaitingHost&) = delete;
  ~WaitingHost() override { end(); }

  void on_refusal(const std::string& line) override { refusals_.push_back(line); }

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
  EXPECT_THAT(joined.error().message, HasSubstr("refused 20 processes in all"));
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

TEST(ControlJoinTest, agreed__the_order_of_lines_does_not_matter) {
  auto wanted = all_of(free_address(), 2);
  wanted[1].agreed = "mode=exact\nversion=1";
  for (const Joined& joined : join_all(wanted)) {
    EXPECT_TRUE(joined.has_value()) << joined.error().message;
  }
}

TEST(ControlJoinTest, foreign_clients__do_not_disturb) {
  const std::string garbage[] = {
      "",                                   // half-open: says nothing for ever
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",  // a length no frame has
      std::string(16, '\0'),                // a kind no frame has
      std::string("\x04\0\0\0", 4),         // stops in the middle of a header
      encode(rendezvous::Frame{rendezvous::FrameKind::hello, 0, 0, "not a hello at all"}),
      encode(rendezvous::Frame{rendezvous::FrameKind::gather, 7, 0, "too early"}),
      hello_frame({TARPON_WIRE_VERSION, 1, 2, 0x1234, ""}),  // of a job with an address file
  };
  const std::string address = free_address();
  Joined host, member;
  std::thread host_thread([&] { host = ControlChannel::join(options(address, 0, 2)); });
  std::vector<rendezvous::Connection> clients;
  for (const std::string& bytes : garbage) clients.push_back(foreign_client(address, bytes));
  std::thread member_thread([&] { member = ControlChannel::join(options(address, 1, 2)); });
  host_thread.join();
  member_thread.join();
  ASSERT_TRUE(host.has_value()) << host.error().message;
  ASSERT_TRUE(member.has_value()) << member.error().message;
}

TEST(ControlJoinTest, foreign_clients__are_counted_when_ranks_are_missing) {
  const std::string address = free_address();
  Joined host;
  std::thread thread([&] { host = ControlChannel::join(options(address, 0, 2, kShort)); });
  const auto client = foreign_client(address, "GET / HTTP/1.1\r\n\r\n");
  thread.join();
  ASSERT_FALSE(host.has_value());
  EXPECT_THAT(host.error().message, HasSubstr("(dropped 1 connection without a valid hello)"));
}

TEST(ControlJoinTest, foreign_clients__more_than_the_limit_of_strangers) {
  const std::string address = free_address();
  Joined host, member;
  std::thread host_thread([&] { host = ControlChannel::join(options(address, 0, 2)); });
  std::vector<rendezvous::Connection> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(foreign_client(address, ""));
  std::thread member_thread([&] { member = ControlChannel::join(options(address, 1, 2)); });
  host_thread.join();
  member_thread.join();
  EXPECT_TRUE(host.has_value());
  EXPECT_TRUE(member.has_value());
}

TEST(ControlJoinTest, leaver__its_rank_can_be_taken_again) {
  const std::string address = free_address();
  Joined host, first, second;
  std::thread host_thread([&] { host = ControlChannel::join(options(address, 0, 3)); });
  {
    const auto dead = foreign_client(
        address, hello_frame({TARPON_WIRE_VERSION, 1, 3, 0, options(address, 1, 3).agreed}));
  }
  std::thread first_thread([&] { first = ControlChannel::join(options(address, 1, 3)); });
  std::thread second_thread([&] { second = ControlChannel::join(options(address, 2, 3)); });
  host_thread.join();
  first_thread.join();
  second_thread.join();
  ASSERT_TRUE(host.has_value()) << host.error().message;
  ASSERT_TRUE(first.has_value()) << first.error().message;
}

TEST(ControlJoinTest, leaver__its_impatience_goes_with_it) {
  const std::string address = free_address();
  const std::vector<RendezvousOptions> wanted = all_of(address, 3);
  Joined host, member, last;
  std::thread host_thread([&] { host = ControlChannel::join(wanted[0]); });
  {
    const auto dead =
        foreign_client(address, hello_frame({TARPON_WIRE_VERSION, 1, 3, 0, wanted[1].agreed}, 200));
  }
  rendezvous::sleep_until(monotonic_now() + 300ms);
  std::thread member_thread([&] { member = ControlChannel::join(wanted[1]); });
  std::thread last_thread([&] { last = ControlChannel::join(wanted[2]); });
  host_thread.join();
  member_thread.join();
  last_thread.join();
  for (const Joined* joined : {&host, &member, &last}) {
    EXPECT_TRUE(joined->has_value()) << joined->error().message;
  }
}

TEST(ControlJoinTest, port_in_use__is_an_io_error_with_the_remedy) {
  const FileDescriptor taken = listen_anywhere();
  const std::string address = fmt::format("tcp://127.0.0.1:{}", port_of(taken));
  const Joined host = ControlChannel::join(options(address, 0, 2));
  ASSERT_FALSE(host.has_value());
  EXPECT_EQ(host.error().code, Error::Code::io);
  EXPECT_THAT(host.error().message, AllOf(HasSubstr(fmt::format("127.0.0.1:{}", port_of(taken))),
                                          HasSubstr("in use"), HasSubstr("choose another port")));
}

TEST(ControlJoinTest, foreign_address__rank_0_must_run_on_the_host_that_has_it) {
  const Joined host = ControlChannel::join(options("tcp://192.0.2.1:29500", 0, 2));
  ASSERT_FALSE(host.has_value());
  EXPECT_EQ(host.error().code, Error::Code::io);
  EXPECT_THAT(host.error().message, HasSubstr("start rank 0 on the host that has this address"));
}

TEST(ControlJoinTest, stale_file__refused_port) {
  const Directory directory;
  const std::uint16_t closed = port_of(listen_anywhere());
  ASSERT_TRUE(rendezvous::write_address_file(directory.file(), {loopback(closed), 1}));
  Joined member;
  std::thread thread([&] { member = ControlChannel::join(options(directory.address(), 1, 2)); });
  const Joined host = ControlChannel::join(options(directory.address(), 0, 2));
  thread.join();
  EXPECT_TRUE(host.has_value());
  ASSERT_TRUE(member.has_value()) << member.error().message;
  EXPECT_TRUE(directory.is_empty());
}

TEST(ControlJoinTest, stale_file__a_silent_stranger_has_the_port_now) {
  const Directory directory;
  const FileDescriptor stranger = listen_anywhere();
  ASSERT_TRUE(rendezvous::write_address_file(directory.file(), {loopback(port_of(stranger)), 1}));
  Joined member, host;
  std::thread thread([&] { member = ControlChannel::join(options(directory.address(), 1, 2)); });
  std::vector<pollfd> entries{{stranger.get(), POLLIN, 0}};
  rendezvous::poll_until(entries, late());  // the member is talking to the stranger
  host = ControlChannel::join(options(directory.address(), 0, 2));
  thread.join();
  EXPECT_TRUE(host.has_value());
  ASSERT_TRUE(member.has_value()) << member.error().message;
}

TEST(ControlJoinTest, stale_file__another_job_has_the_port_now_and_is_not_disturbed) {
  const std::string address = free_address();
  const Directory directory;
  const std::uint16_t port = rendezvous::parse_address(address)->port;
  ASSERT_TRUE(rendezvous::write_address_file(directory.file(), {loopback(port), 1}));
  Joined other;
  std::thread thread([&] { other = ControlChannel::join(options(address, 0, 2)); });
  const Joined lost = ControlChannel::join(options(directory.address(), 1, 2, kShort));
  EXPECT_FALSE(lost.has_value());
  const Joined member = ControlChannel::join(options(address, 1, 2));
  thread.join();
  EXPECT_TRUE(other.has_value());
  EXPECT_TRUE(member.has_value());
}

TEST(ControlJoinTest, file__in_a_folder_that_does_not_exist) {
  const Joined host = ControlChannel::join(options("file:///nonexistent/folder/file", 0, 2));
  ASSERT_FALSE(host.has_value());
  EXPECT_THAT(host.error().message, HasSubstr("/nonexistent/folder/file"));
}

TEST(ControlJoinTest, bad_input__one_line_that_names_it) {
  const auto text = [](const RendezvousOptions& wanted) {
    const Joined joined = ControlChannel::join(wanted);
    if (joined.has_value()) return std::string("joined");
    EXPECT_EQ(joined.error().code, Error::Code::invalid_argument);
    return joined.error().message;
  };
  for (const char* address :
       {"", "host:29500", "tcp://:29500", "tcp://10.0.0.1", "tcp://10.0.0.1:0", "tcp://h:65536",
        "tcp://h:29500x", "tcp://a:b:29500", "file://", "udp://h:1"}) {
    EXPECT_THAT(text(options(address, 1, 2)),
                HasSubstr(fmt::format("rendezvous address '{}'", address)));
  }
  EXPECT_THAT(text(options("tcp://127.0.0.1:1", 0, 0)), HasSubstr("world size 0"));
  EXPECT_THAT(text(options("tcp://127.0.0.1:1", 0, 70'000)), HasSubstr("world size 70000"));
  EXPECT_THAT(text(options("", 3, 1)), HasSubstr("rank 3 is out of range"));
  RendezvousOptions long_text = options("tcp://127.0.0.1:1", 0, 2);
  long_text.agreed.assign(100'000, 'x');
  EXPECT_THAT(text(long_text), HasSubstr("100000 bytes"));
  RendezvousOptions anywhere = options("file:///tmp/unused", 0, 2);
  anywhere.listen_address = "0.0.0.0";
  EXPECT_THAT(text(anywhere), HasSubstr("listen address '0.0.0.0'"));
}

TEST(ControlJoinTest, unknown_host__is_named) {
  // Whether the resolver denies the name or cannot be asked depends on the machine.
  const Joined member = ControlChannel::join(options("tcp://unknown.invalid:1", 1, 2, 50ms));
  ASSERT_FALSE(member.has_value());
  EXPECT_THAT(member.error().message,
              AllOf(HasSubstr("unknown.invalid"), HasSubstr("give an IPv4 address")));
}

TEST(ControlJoinTest, one_rank__needs_no_address) {
  const Joined alone = ControlChannel::join(options("", 0, 1));
  ASSERT_TRUE(alone.has_value());
  EXPECT_NE((*alone)->job(), 0u);
  std::vector<Rank> missing;
  EXPECT_THAT(*(*alone)->all_gather("x", soon()), ElementsAre("x"));
  EXPECT_THAT(*(*alone)->gather("y", soon(), missing), ElementsAre("y"));
  EXPECT_EQ(*(*alone)->broadcast("z", soon()), "z");
}

// exchanges

TEST(ControlExchangeTest, sizes__from_nothing_to_a_megabyte) {
  Job job(4);
  job.run([](ControlChannel& channel) {
    for (const std::size_t size : {0u, 1u, 15u, 16u, 17u, 65'536u, 1u << 20}) {
      const auto message = [&](std::size_t rank) {
        return std::string(size, static_cast<char>('a' + rank));
      };
      const auto all = channel.all_gather(message(channel.rank()), late());
      ASSERT_TRUE(all.has_value()) << all.error().message;
      EXPECT_THAT(*all, ElementsAre(message(0), message(1), message(2), message(3)));

      std::vector<Rank> missing{9};
      const auto gathered = channel.gather(message(channel.rank()), late(), missing);
      ASSERT_TRUE(gathered.has_value()) << gathered.error().message;
      EXPECT_THAT(missing, IsEmpty());
      if (channel.rank() == 0) {
        EXPECT_THAT(*gathered, ElementsAre(message(0), message(1), message(2), message(3)));
      } else {
        EXPECT_THAT(*gathered, IsEmpty());
      }

      const auto told = channel.broadcast(channel.rank() == 0 ? message(25) : "ignored", late());
      ASSERT_TRUE(told.has_value()) << told.error().message;
      EXPECT_EQ(*told, message(25));
    }
  });
}

TEST(ControlExchangeTest, message_over_the_limit__is_refused_and_the_others_hear_of_it) {
  Job job(2);
  job.run([](ControlChannel& channel) {
    const std::string mine(channel.rank() == 0 ? (16u << 20) + 1 : 1, 'x');
    const auto all = channel.all_gather(mine, late());
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code, Error::Code::invalid_argument);
    EXPECT_THAT(all.error().message, HasSubstr("16777217 bytes"));
  });
}

TEST(ControlExchangeTest, all_gather__absent_rank_is_named_on_every_rank_and_may_come_back) {
  Job job(4);
  job.run([](ControlChannel& channel) {
    if (channel.rank() == 2) return;
    const auto all = channel.all_gather("first", soon());
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code, Error::Code::timeout);
    EXPECT_THAT(all.error().message, HasSubstr("rank 2 did not answer"));
  });
  // What rank 2 missed is told to it at once, and what it says to that is not taken for an answer
  // to the next exchange.
  EXPECT_THAT(job[2].all_gather("late", late()).error().message,
              HasSubstr("rank 2 did not answer"));
  job.run([](ControlChannel& channel) {
    const auto all = channel.all_gather("second", late());
    ASSERT_TRUE(all.has_value()) << all.error().message;
    EXPECT_THAT(*all, ElementsAre("second", "second", "second", "second"));
  });
}

TEST(ControlExchangeTest, all_gather__dead_rank_is_named_at_once) {
  Job job(4);
  job.kill(3);
  job.run([](ControlChannel& channel) {
    for (int round = 0; round < 2; ++round) {
      const auto all = channel.all_gather("x", late());
      ASSERT_FALSE(all.has_value());
      EXPECT_EQ(all.error().code, Error::Code::unavailable);
      EXPECT_THAT(all.error().message, HasSubstr("the control channel of rank 3 ended"));
    }
  });
}

TEST(ControlExchangeTest, dead_rank_0__is_named) {
  Job job(3);
  job.kill(0);
  job.run([](ControlChannel& channel) {
    const auto all = channel.all_gather("x", late());
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code, Error::Code::unavailable);
    EXPECT_THAT(all.error().message, HasSubstr("the control channel of rank 0 ended"));
    const auto told = channel.broadcast("", late());
    ASSERT_FALSE(told.has_value());
    EXPECT_THAT(told.error().message, HasSubstr("the control channel of rank 0 ended"));
  });
}

TEST(ControlExchangeTest, absent_rank_0__ends_by_the_deadline) {
  Job job(2);
  const auto all = job[1].all_gather("x", monotonic_now() + 20ms);
  ASSERT_FALSE(all.has_value());
  EXPECT_THAT(all.error().message, HasSubstr("rank 0 did not answer by the deadline"));
  const auto told = job[1].broadcast("", monotonic_now() + 20ms);
  ASSERT_FALSE(told.has_value());
  EXPECT_EQ(told.error().code, Error::Code::timeout);
}

TEST(ControlExchangeTest, gather__lists_dead_and_absent_ranks) {
  Job job(5);
  job.kill(1);
  job.run([](ControlChannel& channel) {
    if (channel.rank() == 3) return;
    std::vector<Rank> missing;
    const auto all = channel.gather(fmt::format("{}", channel.rank()), soon(), missing);
    ASSERT_TRUE(all.has_value()) << all.error().message;
    if (channel.rank() != 0) return;
    EXPECT_THAT(*all, ElementsAre("0", "", "2", "", "4"));
    EXPECT_THAT(missing, ElementsAre(1, 3));
  });
}

TEST(ControlExchangeTest, gather__what_comes_late_is_not_taken_for_the_next_one) {
  Job job(2);
  std::vector<Rank> missing;
  EXPECT_TRUE(job[0].gather("", monotonic_now(), missing).has_value());
  EXPECT_THAT(missing, ElementsAre(1));
  std::vector<Rank> none;
  EXPECT_TRUE(job[1].gather("late", late(), none).has_value());
  EXPECT_TRUE(job[1].gather("next", late(), none).has_value());
  const auto all = job[0].gather("", late(), missing);
  EXPECT_THAT(*all, ElementsAre("", "next"));
  EXPECT_THAT(missing, IsEmpty());
}

TEST(ControlExchangeTest, gather__a_rank_may_leave_right_after_it) {
  Job job(2);
  std::vector<Rank> missing;
  EXPECT_TRUE(job[1].gather(std::string(1000, 'r'), late(), missing).has_value());
  job.kill(1);
  const auto all = job[0].gather("", late(), missing);
  EXPECT_THAT(*all, ElementsAre("", std::string(1000, 'r')));
  EXPECT_THAT(missing, IsEmpty());
}

TEST(ControlExchangeTest, broadcast__reaches_the_living_and_names_the_dead) {
  Job job(3);
  job.kill(1);
  // The first delivery may still meet an open connection: the kernel reports the loss afterwards.
  std::vector<Rank> missing;
  job.run([&](ControlChannel& channel) {
    std::vector<Rank> ignored;
    (void)channel.gather("", late(), channel.rank() == 0 ? missing : ignored);
  });
  EXPECT_THAT(missing, ElementsAre(1));
  const auto sent = job[0].broadcast("news", late());
  ASSERT_FALSE(sent.has_value());
  EXPECT_EQ(sent.error().code, Error::Code::unavailable);
  EXPECT_THAT(sent.error().message, HasSubstr("the control channel of rank 1 ended"));
  EXPECT_EQ(*job[2].broadcast("", late()), "news");
}

TEST(ControlExchangeTest, close__right_after_an_exchange_loses_nothing_of_it) {
  Job job(3);
  job.run([](ControlChannel& channel) {
    const auto values = channel.all_gather(std::to_string(channel.rank()), late());
    channel.close();
    ASSERT_TRUE(values) << values.error().message;
    EXPECT_THAT(*values, ElementsAre("0", "1", "2"));
    EXPECT_FALSE(channel.all_gather("more", late()));
    EXPECT_NE(channel.job(), 0u);
  });
}

TEST(ControlExchangeTest, different_calls__are_a_mismatch_on_all_ranks) {
  Job job(2);
  job.run([](ControlChannel& channel) {
    std::vector<Rank> missing;
    if (channel.rank() == 1) {
      EXPECT_TRUE(channel.gather("", late(), missing).has_value());
      return;
    }
    const auto all = channel.all_gather("", late());
    ASSERT_FALSE(all.has_value());
    EXPECT_EQ(all.error().code, Error::Code::mismatch);
    EXPECT_THAT(all.error().message,
                HasSubstr("rank 1 calls gather as exchange 1 where rank 0 calls "
                          "all_gather"));
  });
  Job other(2);
  ASSERT_TRUE(other[0].broadcast("x", late()).has_value());
  const auto all = other[1].all_gather("x", late());
  ASSERT_FALSE(all.has_value());
  EXPECT_EQ(all.error().code, Error::Code::mismatch);
}

TEST(ControlExchangeTest, slow_reader__is_cut_off_by_the_deadline_and_named) {
  Job job(2);
  // More than the socket buffers of loopback take.
  const std::string large(16u << 20, 'x');
  const auto sent = job[0].broadcast(large, monotonic_now() + 20ms);
  ASSERT_FALSE(sent.has_value());
  EXPECT_THAT(sent.error().message, HasSubstr("rank 1 did not take the message by the deadline"));
  const auto told = job[1].broadcast("", late());
  ASSERT_FALSE(told.has_value());
  EXPECT_EQ(told.error().code, Error::Code::unavailable);
}

}  // namespace
}  // namespace tarpon
