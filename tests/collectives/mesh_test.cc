// The control mesh on 127.0.0.1: opening it among strangers, frames, ends of connections.
#include "collectives/mesh/mesh.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "collectives/mesh/opening.h"
#include "collectives/rendezvous/connection.h"
#include "collectives/rendezvous/sockets.h"
#include "transport/clock.h"

namespace tarpon::mesh {
namespace {

using rendezvous::append_u32;
using testing::HasSubstr;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

std::pair<Link, FileDescriptor> pair() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  return {Link(FileDescriptor(ends[0])), FileDescriptor(ends[1])};
}

void put(const FileDescriptor& socket, std::uint32_t kind, const std::string& body) {
  std::string bytes;
  append_u32(bytes, static_cast<std::uint32_t>(body.size()));
  append_u32(bytes, kind);
  bytes += body;
  ASSERT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

/// A mesh of rank 1 in a job of 4, whose peers a test plays.
class MeshTest : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<Link> links(4);
    for (const std::size_t rank : {0u, 2u, 3u}) {
      auto [link, end] = pair();
      links[rank] = std::move(link);
      ends_[rank] = std::move(end);
    }
    auto made = Mesh::make(1, std::move(links));
    ASSERT_TRUE(made) << made.error().message;
    mesh_ = std::move(*made);
    mesh_->start({.gone =
                      [this](Rank rank, const std::string& why) {
                        const std::lock_guard lock(mutex_);
                        EXPECT_FALSE(gone_.contains(rank)) << "twice";
                        gone_[rank] = why;
                        changed_.notify_all();
                      },
                  .frame =
                      [this](Rank from, const Frame& frame) {
                        const std::lock_guard lock(mutex_);
                        frames_.emplace_back(from, frame.body);
                        changed_.notify_all();
                      },
                  .tick = [](Time) { return kNever; }});
  }

  /// Waits for it, far longer than it takes.
  std::string end_of(Rank rank) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 20s, [&] { return gone_.contains(rank); }));
    return gone_[rank];
  }
  std::vector<std::pair<Rank, std::string>> frames(std::size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, 20s, [&] { return frames_.size() >= count; }));
    return frames_;
  }
  std::size_t gone_count() {
    const std::lock_guard lock(mutex_);
    return gone_.size();
  }

  std::array<FileDescriptor, 4> ends_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Rank, std::string> gone_;
  std::vector<std::pair<Rank, std::string>> frames_;
  std::unique_ptr<Mesh> mesh_;
};

constexpr auto kAbort = static_cast<std::uint32_t>(FrameKind::abort);
constexpr auto kGoodbye = static_cast<std::uint32_t>(FrameKind::goodbye);
constexpr auto kLost = static_cast<std::uint32_t>(FrameKind::lost);

TEST_F(MeshTest, end__without_goodbye_is_death_after_what_was_said) {
  put(ends_[2], kAbort, "last words");
  ends_[2].reset();
  EXPECT_EQ(end_of(2), "control connection reset");
  EXPECT_EQ(frames(1)[0], std::pair(Rank{2}, std::string("last words")));
}

TEST_F(MeshTest, end__after_goodbye_is_none) {
  put(ends_[3], kGoodbye, "");
  EXPECT_EQ(end_of(3), "");
  ends_[3].reset();
  ends_[0].reset();
  EXPECT_NE(end_of(0), "");
  EXPECT_EQ(gone_count(), 2u);
}

TEST_F(MeshTest, frames__cut_anywhere_and_of_every_size_arrive_whole) {
  std::string bytes;
  for (const std::size_t size : {0u, 1u, 5000u, kLargestBody}) {
    append_u32(bytes, static_cast<std::uint32_t>(size));
    append_u32(bytes, kAbort);
    bytes += std::string(size, 'x');
  }
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t piece = std::min(bytes.size() - at, at < 50 ? std::size_t{1} : 30'000);
    const ssize_t sent = send(ends_[2].get(), bytes.data() + at, piece, MSG_NOSIGNAL);
    if (sent > 0) at += static_cast<std::size_t>(sent);
  }
  const auto got = frames(4);
  EXPECT_EQ(got[2].second.size(), 5000u);
  EXPECT_EQ(got[3].second.size(), kLargestBody);
}

TEST_F(MeshTest, frames__that_no_rank_sends_end_the_connection) {
  std::string huge;
  append_u32(huge, kLargestBody + 1);
  append_u32(huge, kAbort);
  ASSERT_GT(send(ends_[0].get(), huge.data(), huge.size(), MSG_NOSIGNAL), 0);
  EXPECT_THAT(end_of(0), HasSubstr("what no rank sends"));
  put(ends_[2], 99, "");
  EXPECT_THAT(end_of(2), HasSubstr("what no rank sends"));
}

TEST_F(MeshTest, lost__is_believed_of_lower_ranks_only) {
  std::string body;
  append_u32(body, 0);
  put(ends_[2], kLost, body + "2 speaks of 0");
  put(ends_[2], kLost, "xy");  // too short
  body.clear();
  append_u32(body, 3);
  put(ends_[2], kLost, body + "2 speaks of 3");
  EXPECT_EQ(end_of(3), "2 speaks of 3");
  body.clear();
  append_u32(body, 1);
  put(ends_[0], kLost, body + "0 speaks of us");
  append_u32(body = "", 77);
  put(ends_[0], kLost, body);
  put(ends_[0], kAbort, "still here");
  EXPECT_EQ(frames(1)[0].first, 0);
  EXPECT_EQ(gone_count(), 1u);
  char byte = 0;  // rank 3 sees us gone as well, behind what it is told
  while (recv(ends_[3].get(), &byte, 1, 0) > 0) continue;
  EXPECT_EQ(recv(ends_[3].get(), &byte, 1, 0), 0);
}

TEST_F(MeshTest, send__to_a_peer_that_does_not_read_neither_blocks_nor_grows_for_ever) {
  const std::string body(kLargestBody, 'x');
  for (int i = 0; i < 100; ++i) mesh_->send(2, FrameKind::abort, body);
  std::size_t got = 0;
  std::vector<char> buffer(1 << 20);
  const Time limit = monotonic_now() + 20s;
  while (got < 10u * body.size() && monotonic_now() < limit) {
    const ssize_t piece = recv(ends_[2].get(), buffer.data(), buffer.size(), 0);
    if (piece > 0) got += static_cast<std::size_t>(piece);
  }
  EXPECT_GE(got, 10u * body.size());
  mesh_->send(2, FrameKind::abort, "after");  // there is room again
  put(ends_[2], kAbort, "answer");
  EXPECT_EQ(frames(1)[0].second, "answer");
}

TEST_F(MeshTest, destroy__says_goodbye) {
  mesh_.reset();
  std::array<char, 64> bytes{};
  const ssize_t got = recv(ends_[0].get(), bytes.data(), bytes.size(), 0);
  ASSERT_EQ(got, 8);
  EXPECT_EQ(rendezvous::read_u32(bytes.data() + 4), kGoodbye);
  EXPECT_EQ(recv(ends_[0].get(), bytes.data(), bytes.size(), 0), 0);
}

// -- opening

std::string hello(std::uint32_t job, std::uint32_t rank) {
  std::string bytes;
  append_u32(bytes, 0x4d505454);
  append_u32(bytes, 1);
  append_u32(bytes, job);
  append_u32(bytes, rank);
  return bytes;
}

TEST(MeshOpeningTest, strangers__cost_nothing_but_their_place) {
  std::vector<Door> doors;
  Seat seat{0, 7, {}};
  for (int rank = 0; rank < 3; ++rank) {
    auto door = open_door("127.0.0.1");
    ASSERT_TRUE(door);
    seat.doors.push_back(loopback(door->port));
    doors.push_back(std::move(*door));
  }
  std::vector<FileDescriptor> strangers;
  for (const std::string& words :
       {std::string(), std::string("GET / HTTP/1.0\r\n\r\n"), hello(8, 1), hello(7, 0), hello(7, 3),
        hello(7, 1).substr(0, 15)}) {
    auto socket = rendezvous::connect_to(seat.doors[0], monotonic_now() + 10s);
    ASSERT_TRUE(socket);
    ASSERT_EQ(send(socket->get(), words.data(), words.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(words.size()));
    strangers.push_back(std::move(*socket));
  }
  std::array<std::vector<Link>, 3> links;
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Seat own = seat;
      own.rank = rank;
      auto opened = open_mesh(own, std::move(doors[rank]), monotonic_now() + 20s);
      ASSERT_TRUE(opened) << opened.error().message;
      links[rank] = std::move(*opened);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Rank rank = 0; rank < 3; ++rank) {
    for (Rank peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(links[rank][peer].is_open(), rank != peer) << rank << " " << peer;
    }
  }
}

TEST(MeshOpeningTest, missing__ranks_are_named) {
  auto door = open_door("127.0.0.1");
  ASSERT_TRUE(door);
  const Seat seat{0, 7, {loopback(door->port), loopback(1), loopback(1)}};
  const auto opened = open_mesh(seat, std::move(*door), monotonic_now() + 50ms);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Error::Code::timeout);
  EXPECT_THAT(opened.error().message, HasSubstr("no control connection from ranks 1, 2"));
}

TEST(MeshOpeningTest, unreachable__a_lower_rank_is_named_with_the_reason) {
  auto door = open_door("127.0.0.1");
  ASSERT_TRUE(door);
  const Seat seat{1, 7, {loopback(1), loopback(door->port)}};
  const auto opened = open_mesh(seat, std::move(*door), monotonic_now() + 100ms);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Error::Code::unavailable);
  EXPECT_THAT(opened.error().message, HasSubstr("cannot reach rank 0 at TCP 127.0.0.1:1"));
}

}  // namespace
}  // namespace tarpon::mesh
