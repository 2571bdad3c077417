// How ranks meet over the control channel.
#include "collectives/rendezvous/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "bpf/wire.h"
#include "tests/support/rendezvous_job.h"

namespace tarpon::control_test {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

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

/// Greets each client, and says nothing more.
class Greeter {
 public:
  explicit Greeter(std::string words)
      : words_(std::move(words)), thread_([this] {
          for (Time until = late(); !over_ && monotonic_now() < until;) {
            std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
            rendezvous::poll_until(entries, monotonic_now() + 10ms);
            auto client = rendezvous::accept_one(listener_);
            if (!client || !*client) continue;
            (void)::send(client->get(), words_.data(), words_.size(), MSG_NOSIGNAL);
            clients_.push_back(*std::move(client));
          }
        }) {}
  Greeter(const Greeter&) = delete;
  Greeter& operator=(const Greeter&) = delete;
  ~Greeter() {
    over_ = true;
    thread_.join();
  }
  std::string address() const { return fmt::format("tcp://127.0.0.1:{}", port_of(listener_)); }

 private:
  const FileDescriptor listener_ = listen_anywhere();
  const std::string words_;
  std::vector<FileDescriptor> clients_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

TEST(ControlJoinTest, missing_rank_0__a_foreign_service_is_named_with_its_first_words) {
  // The second one says less than the header of a frame.
  for (const auto& [words, quoted] :
       {std::pair("SSH-2.0-OpenSSH_9.2p1 Debian\r\n", "\"SSH-2.0-OpenSSH_\": choose"),
        {"220 ok\r\n", "\"220 ok??\": choose another port, or stop that service"},
        {"HTTP/1.1 400 Bad Request\r\n\r\n", "\"HTTP/1.1 400 Bad"}}) {
    const Greeter service(words);
    const Joined member = ControlChannel::join(options(service.address(), 1, 2, kShort));
    ASSERT_FALSE(member.has_value());
    EXPECT_THAT(member.error().message,
                AllOf(HasSubstr("another service answers there, not rank 0 of a Tarpon job"),
                      HasSubstr(quoted)));
  }
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

TEST(ControlJoinTest, unknown_host__is_named_after_the_timeout) {
  // Whether the resolver denies the name or cannot be asked depends on the machine.
  const Joined member = ControlChannel::join(options("tcp://unknown.invalid:1", 1, 2, 300ms));
  ASSERT_FALSE(member.has_value());
  EXPECT_EQ(member.error().code, Error::Code::timeout);
  EXPECT_THAT(member.error().message,
              AllOf(HasSubstr("within 0.3 s: host unknown.invalid is not known ("),
                    HasSubstr("give an IPv4 address"), Not(HasSubstr("the same file"))));
  const Joined host = ControlChannel::join(options("tcp://unknown.invalid:1", 0, 2, 300ms));
  ASSERT_FALSE(host.has_value());
  EXPECT_THAT(host.error().message,
              AllOf(HasSubstr("host unknown.invalid is not known ("), HasSubstr("; asked for ")));
}

/// The lines about waiting of the ranks of a job.
class Waits : public RendezvousObserver {
 public:
  void on_refusal(const std::string&) override {}
  void on_wait(const std::string& line, bool known_to_rank_0) override {
    const std::lock_guard lock(mutex_);
    lines_.push_back((known_to_rank_0 ? "known: " : "") + line);
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST(ControlJoinTest, waiting__every_rank_says_for_what) {
  const std::string address = free_address(), nowhere = free_address();
  Waits waits;
  const auto watched = [&](const std::string& at, Rank rank, std::uint32_t world,
                           Duration timeout) {
    RendezvousOptions wanted = options(at, rank, world, timeout);
    wanted.observer = &waits;
    return wanted;
  };
  std::thread lost([&] { (void)ControlChannel::join(watched(nowhere, 1, 2, 5s)); });
  std::thread waiting([&] {
    (void)join_all({watched(address, 0, 4, kPatience), watched(address, 2, 4, kPatience)});
  });
  const Time until = late();
  while (waits.lines().size() < 3 && monotonic_now() < until) {
    rendezvous::sleep_until(monotonic_now() + 10ms);
  }
  (void)join_all({options(address, 1, 4), options(address, 3, 4)});
  waiting.join();
  lost.join();
  EXPECT_THAT(waits.lines(),
              testing::IsSupersetOf({"waiting for ranks 1, 3 at " + address,
                                     "known: connected to " + address +
                                         ": waiting for rank 0 to meet the other ranks",
                                     "waiting for rank 0 at " + nowhere + ": Connection refused"}));
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

}  // namespace
}  // namespace tarpon::control_test
