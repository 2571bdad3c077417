// The control mesh on 127.0.0.1: frames, opening it among strangers, connections that break,
// processes that are killed, forked children.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <thread>

#include "collectives/membership/frame.h"
#include "collectives/membership/membership.h"
#include "collectives/membership/socket_network.h"
#include "collectives/rendezvous/connection.h"
#include "collectives/rendezvous/sockets.h"
#include "tests/support/sanitized.h"
#include "tests/support/secrets.h"
#include "transport/clock.h"

namespace tarpon::mesh::mesh_test {
namespace {

using rendezvous::append_u32;
using testing::HasSubstr;
using testing_support::kSanitizer;

// -- frames

TEST(FrameTest, fact__decode_inverts_encode_and_refuses_the_rest) {
  Fact fact{.rank = 63,
            .standing = Standing::left,
            .evidence = "why",
            .without_majority = true,
            .serves = true,
            .next_numbers = {{7, 1}, {0xffffffff, 2}}};
  const std::string body = encode(fact);
  const auto decoded = decode_fact(body);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->rank, 63);
  EXPECT_EQ(decoded->standing, Standing::left);
  EXPECT_EQ(decoded->evidence, "why");
  EXPECT_TRUE(decoded->without_majority);
  EXPECT_TRUE(decoded->serves);
  EXPECT_EQ(decoded->next_numbers, fact.next_numbers);
  for (std::size_t length = 0; length < body.size(); ++length) {
    const bool whole_numbers = length >= 19 && (length - 19) % 8 == 0;
    EXPECT_EQ(decode_fact(body.substr(0, length)).has_value(), whole_numbers) << length;
  }
  std::string wrong = body;
  wrong[4] = 4;  // no standing
  EXPECT_FALSE(decode_fact(wrong));
  wrong = body;
  wrong[13] = 2;  // 515 bytes of evidence
  EXPECT_FALSE(decode_fact(wrong));
}

TEST(FrameTest, reader__messages_cut_anywhere_arrive_whole) {
  std::string bytes;
  const std::vector<std::size_t> sizes{0, 1, 5000, kMaxFrameBody, kMaxFrameBody + 1, kMaxBody};
  for (const std::size_t size : sizes) {
    append_frames(bytes, FrameKind::abort, std::string(size, 'x'));
  }
  FrameReader reader;
  std::vector<std::size_t> got;
  std::size_t most = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t piece = std::min(bytes.size() - at, at < 50 ? std::size_t{1} : 30'000);
    reader.append(std::string_view(bytes).substr(at, piece));
    at += piece;
    while (const auto frame = reader.next()) got.push_back(frame->body.size());
    most = std::max(most, reader.buffered());
  }
  EXPECT_EQ(got, sizes);
  EXPECT_LE(most, kMaxBody + kMaxFrameBody + kFrameHeaderBytes);
}

TEST(FrameTest, reader__refuses_what_no_rank_sends) {
  const auto header = [](std::uint32_t length, std::uint32_t kind) {
    std::string bytes;
    append_u32(bytes, length);
    append_u32(bytes, kind);
    return bytes;
  };
  const std::vector<std::string> wrong{
      header(kMaxFrameBody + 1, 3),                   // too long
      header(0, 0),                                   // no kind
      header(0, 16),                                  // no kind
      header(0, 3 | 1u << 24),                        // a reserved bit
      header(0, 3 | kMore) + header(0, 4),            // another kind before the end of a message
      header(0, 3 | kMore) + header(0, 3 | 1u << 8),  // another communicator
  };
  for (const std::string& bytes : wrong) {
    FrameReader reader;
    reader.append(bytes);
    EXPECT_FALSE(reader.next());
    EXPECT_TRUE(reader.broken());
  }
  FrameReader endless;
  for (int i = 0; i < 100 && !endless.broken(); ++i) {
    endless.append(header(kMaxFrameBody, 3 | kMore) + std::string(kMaxFrameBody, 'x'));
    EXPECT_FALSE(endless.next());
    EXPECT_LE(endless.buffered(), kMaxBody + kMaxFrameBody + kFrameHeaderBytes);
  }
  EXPECT_TRUE(endless.broken());
}

// -- live ranks

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

constexpr std::uint32_t kJob = 7;

std::string hello(std::uint32_t job, std::uint32_t rank) {
  std::string bytes;
  append_u32(bytes, 0x4d505454);
  append_u32(bytes, 1);
  append_u32(bytes, job);
  append_u32(bytes, rank);
  return bytes;
}

/// Facts that a rank has been told of, and when.
struct Heard {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Fact> facts;

  /// The fact on `rank` above live; waits for it far longer than it takes.
  std::optional<Fact> of(Rank rank, Duration limit = 20s) {
    std::unique_lock lock(mutex);
    const auto found = [&] {
      return std::find_if(facts.begin(), facts.end(),
                          [&](const Fact& one) { return one.rank == rank; });
    };
    changed.wait_for(lock, limit, [&] { return found() != facts.end(); });
    return found() == facts.end() ? std::nullopt : std::optional(*found());
  }
};

class MeshTest : public testing::Test {
 protected:
  void make_doors(std::uint32_t ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      auto door = open_door("127.0.0.1");
      ASSERT_TRUE(door);
      addresses_.push_back(loopback(door->port));
      doors_.push_back(std::move(*door));
      heard_.emplace_back();
    }
    ranks_.resize(ranks);
  }

  std::unique_ptr<Membership> make(Rank rank) {
    auto network = SocketNetwork::make(std::move(doors_[rank]), addresses_, tls_);
    if (!network) return nullptr;
    return std::make_unique<Membership>(
        MembershipOptions{.rank = rank,
                          .world_size = static_cast<std::uint32_t>(addresses_.size()),
                          .job = kJob,
                          .dead_after = 1s},
        std::move(*network));
  }

  void start(Rank rank) {
    Heard& heard = heard_[rank];
    ranks_[rank]->start({.learned =
                             [&heard](const Fact& fact) {
                               const std::lock_guard lock(heard.mutex);
                               heard.facts.push_back(fact);
                               heard.changed.notify_all();
                             },
                         .aborted = [](Rank, const std::string&) {},
                         .last_heard = [](Rank) { return Time{}; },
                         .next_numbers = [] { return std::vector<EpochRecord::Start>(); },
                         .epoch_decided = [](const EpochRecord&) {},
                         .rejoining = [](std::uint64_t) {},
                         .send = [](const std::vector<AgreementPacket>&) {}});
  }

  void open_all(std::uint32_t ranks) {
    if (doors_.empty()) make_doors(ranks);
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < ranks; ++rank) {
      ranks_[rank] = make(rank);
      ASSERT_TRUE(ranks_[rank]);
      threads.emplace_back([this, rank] {
        const auto opened = ranks_[rank]->open(monotonic_now() + 20s);
        EXPECT_TRUE(opened) << opened.error().message;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (Rank rank = 0; rank < ranks; ++rank) start(rank);
  }

  FileDescriptor call(Rank rank, const std::string& words) {
    auto socket = rendezvous::connect_to(addresses_[rank], monotonic_now() + 10s);
    EXPECT_TRUE(socket);
    (void)send(socket->get(), words.data(), words.size(), MSG_NOSIGNAL);
    return std::move(*socket);
  }

  std::vector<Door> doors_;
  std::vector<sockaddr_in> addresses_;
  std::shared_ptr<const TlsContext> tls_;  // null: plain
  std::deque<Heard> heard_;
  std::vector<std::unique_ptr<Membership>> ranks_;
};

TEST_F(MeshTest, open__strangers_cost_nothing) {
  make_doors(3);
  std::vector<FileDescriptor> strangers;
  for (const std::string& words :
       {std::string(), std::string("GET / HTTP/1.0\r\n\r\n"), hello(8, 1), hello(kJob, 0),
        hello(kJob, 3), hello(kJob, 1).substr(0, 15), hello(kJob, 1) + "x"}) {
    strangers.push_back(call(0, words));
  }
  open_all(3);
}

/// More of them than there are places, before any rank: the oldest of them make room.
TEST_F(MeshTest, open__a_burst_of_strangers_displaces_nobody) {
  make_doors(3);
  std::vector<FileDescriptor> strangers;
  for (std::size_t i = 0; i < 2 * Streams::kMaxStrangers; ++i) strangers.push_back(call(0, "TTPM"));
  open_all(3);
  std::vector<FileDescriptor> more;
  for (std::size_t i = 0; i < 2 * Streams::kMaxStrangers; ++i) {
    more.push_back(call(0, i % 2 == 0 ? "" : hello(kJob, 2)));  // rank 2 is there already
  }
  std::thread other([this] { EXPECT_TRUE(ranks_[2]->leave({}, monotonic_now() + 20s)); });
  std::thread third([this] { EXPECT_TRUE(ranks_[1]->leave({}, monotonic_now() + 20s)); });
  EXPECT_TRUE(ranks_[0]->leave({}, monotonic_now() + 20s));
  other.join();
  third.join();
}

/// Ranks with a secret; a stranger that knows the cookie, and a rank, but not the secret.
TEST_F(MeshTest, secret__opens__serves__and_lets_nobody_else_in) {
  tls_ = *TlsContext::make(testing_support::secret().get());
  make_doors(3);
  std::vector<FileDescriptor> strangers;
  for (const std::string& words :
       {std::string(), hello(kJob, 1), hello(kJob, 2), std::string("\x16\x03\x01\x02"),
        "\x16\x03\x01\x00\x10" + hello(kJob, 1)}) {
    strangers.push_back(call(0, words));
  }
  open_all(3);
  // A rank that is gone is proven gone over TLS too.
  ranks_[2].reset();
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    const auto fact = heard_[rank].of(2);
    ASSERT_TRUE(fact);
    EXPECT_EQ(fact->standing, Standing::dead);
  }
  std::thread other([this] { EXPECT_TRUE(ranks_[1]->leave({}, monotonic_now() + 20s)); });
  EXPECT_TRUE(ranks_[0]->leave({}, monotonic_now() + 20s));
  other.join();
}

/// Two ranks with different secrets never connect, and say why.
TEST_F(MeshTest, other_secret__is_the_reason_of_the_error) {
  make_doors(2);
  std::vector<std::string> errors(2);
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    tls_ = *TlsContext::make(testing_support::secret(rank + 1).get());
    ranks_[rank] = make(rank);
  }
  std::vector<std::thread> threads;
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    threads.emplace_back([this, rank, &errors] {
      const auto opened = ranks_[rank]->open(monotonic_now() + 1s);
      if (!opened) errors[rank] = opened.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(errors[1], testing::HasSubstr("it has another secret"));
  EXPECT_NE(errors[0], "");
}

TEST_F(MeshTest, accept__so_many_in_one_round) {
  constexpr int kMore = 8;
  constexpr int kPlaces = static_cast<int>(Streams::kMaxStrangers);
  make_doors(2);
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 3 * SocketNetwork::kAccepts + kMore; ++i) strangers.push_back(call(0, ""));
  auto network = SocketNetwork::make(std::move(doors_[0]), addresses_);
  ASSERT_TRUE(network);
  Streams streams(0, 2, kJob, **network);
  for (int accepted = 0; accepted < std::ssize(strangers);) {
    accepted = std::min(accepted + SocketNetwork::kAccepts, static_cast<int>(strangers.size()));
    (*network)->wait(Time{1s}, Time{11s});
    (*network)->dispatch(streams, Time{1s});
    const int closed = static_cast<int>(
        std::count_if(strangers.begin(), strangers.end(), [](const FileDescriptor& one) {
          char byte = 0;
          return recv(one.get(), &byte, 1, MSG_DONTWAIT) == 0;
        }));
    EXPECT_EQ(closed, std::max(0, accepted - kPlaces));
  }
  // The oldest ones have made room.
  char byte = 0;
  EXPECT_EQ(recv(strangers.front().get(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_LT(recv(strangers.back().get(), &byte, 1, MSG_DONTWAIT), 0);
}

/// Such a stranger knows the job, and is no process of a host of the job.
TEST_F(MeshTest, accept__closes_what_comes_from_the_address_of_no_rank) {
  make_doors(2);
  FileDescriptor stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in elsewhere = loopback(0);
  elsewhere.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 7);
  ASSERT_EQ(bind(stranger.get(), reinterpret_cast<sockaddr*>(&elsewhere), sizeof elsewhere), 0);
  ASSERT_EQ(
      ::connect(stranger.get(), reinterpret_cast<sockaddr*>(&addresses_[0]), sizeof addresses_[0]),
      0);
  const std::string words = hello(kJob, 1);
  ASSERT_EQ(send(stranger.get(), words.data(), words.size(), MSG_NOSIGNAL), 16);
  auto network = SocketNetwork::make(std::move(doors_[0]), addresses_);
  ASSERT_TRUE(network);
  Streams streams(0, 2, kJob, **network);
  (*network)->wait(Time{1s}, Time{11s});
  (*network)->dispatch(streams, Time{1s});
  std::vector<pollfd> ending{{stranger.get(), POLLIN, 0}};
  rendezvous::poll_until(ending, monotonic_now() + 20s);
  EXPECT_NE(ending[0].revents, 0);
  char byte = 0;
  EXPECT_LE(recv(stranger.get(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(streams.up(), 0u);
}

TEST_F(MeshTest, open__ends_when_another_rank_has_failed) {
  make_doors(2);
  ranks_[1] = make(1);
  ASSERT_TRUE(ranks_[1]);
  const auto opened = ranks_[1]->open(kNever, [] { return true; });
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Error::Code::unavailable);
  EXPECT_THAT(opened.error().message, HasSubstr("another rank has failed"));
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

TEST_F(MeshTest, open__ends_when_no_descriptor_is_left) {
  make_doors(2);
  // Rank 1 lacks one to connect, rank 0 to accept.
  const FileDescriptor caller = call(0, "");
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    auto membership = make(rank);
    ASSERT_TRUE(membership);
    const NoDescriptors none;
    const auto opened = membership->open(kNever);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Error::Code::io);
    EXPECT_EQ(opened.error().system_errno, EMFILE);
    EXPECT_THAT(opened.error().message, HasSubstr("Too many open files"));
  }
}

TEST_F(MeshTest, open__missing_ranks_are_named_with_the_reason) {
  make_doors(3);
  doors_[0].listener.reset();
  ranks_[1] = make(1);
  ASSERT_TRUE(ranks_[1]);
  const auto opened = ranks_[1]->open(monotonic_now() + 200ms);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Error::Code::timeout);
  EXPECT_THAT(opened.error().message, HasSubstr("with rank 0 (Connection refused)"));
  EXPECT_THAT(opened.error().message, HasSubstr("no control connection with rank 2"));
}

/// start() and stop() wake the thread at nearly the same time: it takes both wake-ups as one.
TEST_F(MeshTest, stop__ends_the_thread_whenever_it_comes) {
  for (int i = 0; i < 100; ++i) {
    open_all(2);
    ranks_.clear();
    doors_.clear();
    addresses_.clear();
    heard_.clear();
  }
}

TEST_F(MeshTest, end__without_goodbye_is_death_within_300_ms) {
  open_all(3);
  const Time reset = monotonic_now();
  ranks_[1].reset();
  for (const Rank rank : {Rank{0}, Rank{2}}) {
    const auto fact = heard_[rank].of(1);
    const Duration known = monotonic_now() - reset;
    ASSERT_TRUE(fact);
    EXPECT_LE(known, kSanitizer ? 2s : 300ms) << "at rank " << rank;
    EXPECT_EQ(fact->text(),
              "rank 1 is dead: its control connection ended and connecting again is refused");
  }
}

TEST_F(MeshTest, end__after_goodbye_is_leaving) {
  open_all(3);
  std::thread answers([this] {
    for (const Rank rank : {Rank{0}, Rank{2}}) {
      const auto fact = heard_[rank].of(1);
      ASSERT_TRUE(fact);
      EXPECT_TRUE(fact->serves);
      EXPECT_EQ(fact->next_numbers, (std::vector<NextNumber>{{3, 9}}));
      ranks_[rank]->passed(0b010);
    }
  });
  EXPECT_TRUE(ranks_[1]->leave({{3, 9}}, monotonic_now() + 20s));
  answers.join();
  ranks_[1].reset();
  for (const Rank rank : {Rank{0}, Rank{2}}) {
    std::unique_lock lock(heard_[rank].mutex);
    EXPECT_TRUE(
        heard_[rank].changed.wait_for(lock, 20s, [&] { return heard_[rank].facts.size() == 2; }));
    EXPECT_EQ(heard_[rank].facts[1].text(), "rank 1 left the communicator");
    EXPECT_FALSE(heard_[rank].facts[1].serves);
  }
}

/// A list that no single frame holds.
TEST_F(MeshTest, goodbye__of_65536_tags_arrives_whole) {
  open_all(2);
  std::vector<NextNumber> numbers;
  for (std::uint32_t tag = 0; tag < 65'536; ++tag) numbers.push_back({tag, tag + 1});
  EXPECT_FALSE(ranks_[0]->leave(numbers, monotonic_now()));
  const auto fact = heard_[1].of(0);
  ASSERT_TRUE(fact);
  EXPECT_EQ(fact->next_numbers, numbers);
}

TEST_F(MeshTest, silent__ranks_are_dead_by_votes) {
  open_all(3);
  ranks_[0]->set_silent(0b100, 0b100);
  EXPECT_FALSE(heard_[1].of(2, 1500ms));  // one vote of three
  ranks_[1]->set_silent(0b100, 0b100);
  for (Rank rank = 0; rank < 3; ++rank) {
    const auto fact = heard_[rank].of(2);
    ASSERT_TRUE(fact) << rank;
    EXPECT_THAT(fact->text(), HasSubstr("silent for 1 s: 2 of 3 live ranks do not hear it"));
  }
  EXPECT_EQ(ranks_[2]->agree(0, {}, 20s).verdict, Verdict::halt);
}

/// Both ends of all connections of this process to a door are reset, as by a firewall.
void reset_connections(const std::vector<sockaddr_in>& doors) {
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    const bool ours = std::any_of(doors.begin(), doors.end(), [&](const sockaddr_in& door) {
      return door.sin_port == peer.sin_port;
    });
    if (ours) (void)shutdown(fd, SHUT_RDWR);
  }
}

TEST_F(MeshTest, broken__connections_are_opened_again_and_kill_nobody) {
  open_all(3);
  for (int round = 0; round < 5; ++round) {
    reset_connections(addresses_);
    std::array<StepVerdict, 3> verdicts;
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        verdicts[rank] = ranks_[rank]->agree(static_cast<std::uint64_t>(round), {}, 20s);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const StepVerdict& verdict : verdicts) {
      EXPECT_EQ(verdict.verdict, Verdict::apply) << verdict.detail;
      EXPECT_EQ(verdict.reporters, 0b111u);
    }
  }
  for (Heard& heard : heard_) {
    const std::lock_guard lock(heard.mutex);
    EXPECT_TRUE(heard.facts.empty());
  }
}

/// Rank 1 is a process that forks a child and is killed; the child lives on.
TEST_F(MeshTest, killed__while_a_forked_child_lives_is_noticed_all_the_same) {
  make_doors(2);
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  FileDescriptor from_child(pipe_ends[0]), to_parent(pipe_ends[1]);
  const pid_t process = fork();
  ASSERT_GE(process, 0);
  if (process == 0) {
    doors_[0].listener.reset();
    ranks_[1] = make(1);
    if (!ranks_[1] || !ranks_[1]->open(monotonic_now() + 20s)) _exit(1);
    const pid_t child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
    (void)!write(to_parent.get(), &child, sizeof child);
    pause();
    _exit(0);
  }
  doors_[1].listener.reset();
  ranks_[0] = make(0);
  ASSERT_TRUE(ranks_[0]);
  const auto opened = ranks_[0]->open(monotonic_now() + 20s);
  pid_t child = 0;
  const bool told = read(from_child.get(), &child, sizeof child) == sizeof child;
  EXPECT_TRUE(told && opened);
  start(0);
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
  const auto fact = heard_[0].of(1);
  EXPECT_TRUE(fact);
  if (told) {
    EXPECT_EQ(kill(child, 0), 0) << "the child is gone: nothing was tested";
    kill(child, SIGKILL);
  }
}

}  // namespace
}  // namespace tarpon::mesh::mesh_test
