#include "tests/support/hostile_guests.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "bpf/wire.h"
#include "collectives/membership/facts.h"
#include "collectives/membership/frame.h"
#include "collectives/membership/streams.h"
#include "collectives/rendezvous/connection.h"
#include "collectives/rendezvous/hello.h"
#include "collectives/rendezvous/sockets.h"
#include "transport/clock.h"

namespace tarpon::hostile {
namespace {

constexpr std::uint32_t kRanks = 2;
constexpr std::size_t kHalf = 8;  // bytes of a hello

/// Keeps what the mesh writes.
class Wire final : public mesh::Network {
 public:
  mesh::StreamId connect(Rank) override { return kStream; }
  std::size_t write(mesh::StreamId, std::string_view bytes) override {
    written.append(bytes);
    return bytes.size();
  }
  void close(mesh::StreamId) override {}

  static constexpr mesh::StreamId kStream = 1;
  std::string written;
};

/// HELLO of `rank`, as the mesh writes it: a higher rank when it is connected to rank 0, rank 0
/// when it answers rank 1.
std::string mesh_hello(Rank rank, std::uint32_t job) {
  constexpr Time kNow{1s};
  Wire wire;
  mesh::Streams streams(rank, rank == 0 ? kRanks : rank + 1u, job, wire);
  if (rank == 0) {
    streams.accepted(Wire::kStream, kNow);
    streams.received(Wire::kStream, mesh_hello(1, job), kNow);
  } else {
    streams.tick(kNow);
    streams.connected(Wire::kStream, kNow);
  }
  return wire.written;
}

std::string rendezvous_hello(const rendezvous::Hello& hello) {
  return encode(rendezvous::Frame{.kind = rendezvous::FrameKind::hello, .body = encode(hello)});
}

}  // namespace

std::vector<Speech> mesh_speeches(std::uint32_t job, Rank at) {
  const auto other = static_cast<Rank>(kRanks - 1 - at);
  const std::string hello = mesh_hello(other, job);
  std::string dead, aborted;
  append_frames(
      dead, mesh::FrameKind::fact,
      mesh::encode(Fact{.rank = other, .standing = Standing::dead, .evidence = "hostile"}));
  append_frames(aborted, mesh::FrameKind::abort, "hostile");
  return {
      {"nothing", ""},
      {"garbage", std::string(64, '\xa5')},
      {"half a hello", hello.substr(0, kHalf)},
      {"hello of another job", mesh_hello(other, ~job)},
      {"hello of a rank that is up", hello},
      {"hello of the rank itself", mesh_hello(at, job)},
      {"hello of a rank out of range", mesh_hello(kRanks, job)},
      {"hello, and news of a death", hello + dead},
      {"hello, and an abort", hello + aborted},
      {"an abort without hello", aborted},
  };
}

std::vector<Speech> rendezvous_speeches() {
  const rendezvous::Hello plain{
      .version = TARPON_WIRE_VERSION, .rank = 1, .world_size = kRanks, .agreed = "hostile=1\n"};
  auto version = plain, world = plain, range = plain, taken = plain;
  ++version.version;
  ++world.world_size;
  range.rank = kRanks;
  taken.rank = 0;
  return {
      {"nothing", ""},
      {"garbage", std::string(64, '\xa5')},
      {"half a hello", rendezvous_hello(plain).substr(0, kHalf)},
      {"a hello of 1 MiB", encode(rendezvous::Frame{.body = std::string(1u << 20, '\0')})},
      {"an exchange",
       encode(rendezvous::Frame{.kind = rendezvous::FrameKind::all_gather, .body = {}})},
      // kRefusedSpeeches
      {"other options", rendezvous_hello(plain)},
      {"another version", rendezvous_hello(version)},
      {"another world size", rendezvous_hello(world)},
      {"a rank out of range", rendezvous_hello(range)},
      {"a rank that is taken", rendezvous_hello(taken)},
  };
}

Result<void> Guests::visit(const sockaddr_in& door, const Speech& speech, Time deadline) {
  auto socket = rendezvous::connect_to(door, deadline);
  if (!socket) return fail(socket.error());
  // A door may close before all is said.
  [[maybe_unused]] const ssize_t sent =
      ::send(socket->get(), speech.bytes.data(), speech.bytes.size(), MSG_NOSIGNAL);
  visits_.push_back({speech.name, std::move(*socket)});
  return {};
}

bool Guests::is_closed(Visit& visit) {
  std::array<char, 4096> bytes;
  for (;;) {
    const ssize_t got = ::recv(visit.socket.get(), bytes.data(), bytes.size(), 0);
    if (got == 0) return true;
    if (got < 0) return errno != EAGAIN && errno != EINTR;
    if (!std::exchange(visit.heard, true)) answered_.push_back(visit.name);
  }
}

std::vector<std::string_view> Guests::wait_closed(Time deadline) {
  for (;;) {
    std::erase_if(visits_, [this](Visit& visit) { return is_closed(visit); });
    if (visits_.empty() || monotonic_now() >= deadline) break;
    rendezvous::sleep_until(monotonic_now() + 10ms);
  }
  std::vector<std::string_view> open;
  for (const Visit& visit : visits_) open.push_back(visit.name);
  return open;
}

}  // namespace tarpon::hostile
