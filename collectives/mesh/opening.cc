// Opening the mesh.
#include "collectives/mesh/opening.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "bpf/wire.h"
#include "collectives/rendezvous/connection.h"
#include "collectives/rendezvous/rank_list.h"
#include "collectives/rendezvous/sockets.h"
#include "transport/clock.h"

namespace tarpon::mesh {
namespace {

using rendezvous::append_u32;
using rendezvous::read_u32;

constexpr std::uint32_t kMagic = 0x4d505454;  // "TTPM"
constexpr std::size_t kHelloBytes = 16;
constexpr std::size_t kMostStrangers = 128;
constexpr Duration kPause = 20ms;  // between attempts to connect

/// A connection that has not said yet whose it is.
struct Stranger {
  FileDescriptor socket;
  std::array<char, kHelloBytes> hello{};
  std::size_t filled = 0;
};

/// Whether it still may become a rank; `filled` tells whether all has come.
bool hear(Stranger& stranger) {
  while (stranger.filled < kHelloBytes) {
    const ssize_t got = recv(stranger.socket.get(), stranger.hello.data() + stranger.filled,
                             kHelloBytes - stranger.filled, 0);
    if (got > 0) {
      stranger.filled += static_cast<std::size_t>(got);
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) {
      return false;
    } else if (errno != EINTR) {
      return true;
    }
  }
  return true;
}

class Opening {
 public:
  Opening(const Seat& seat, Door door, Time deadline)
      : seat_(seat), door_(std::move(door)), deadline_(deadline), links_(seat.doors.size()) {}

  Result<std::vector<Link>> run() {
    for (Rank rank = 0; rank < seat_.rank; ++rank) {
      if (auto connected = connect(rank); !connected) return fail(connected.error());
    }
    while (!missing().empty()) {
      if (auto let_in = this->let_in(); !let_in) return fail(let_in.error());
      greet();
      if (missing().empty()) break;
      if (monotonic_now() >= deadline_) return fail(missing_error());
      std::vector<pollfd> entries{{door_.listener.get(), POLLIN, 0}};
      for (const Stranger& one : strangers_) entries.push_back({one.socket.get(), POLLIN, 0});
      rendezvous::poll_until(entries, deadline_);
    }
    return std::move(links_);
  }

 private:
  /// Every rank listens by now, so that the kernel completes this whatever the peer is doing.
  Result<void> connect(Rank rank) {
    while (true) {
      auto socket = rendezvous::connect_to(seat_.doors[rank], deadline_);
      if (socket) {
        std::string hello;
        append_u32(hello, kMagic);
        append_u32(hello, TARPON_WIRE_VERSION);
        append_u32(hello, seat_.job);
        append_u32(hello, seat_.rank);
        // A few bytes into an empty socket buffer always fit.
        const ssize_t sent = ::send(socket->get(), hello.data(), hello.size(), MSG_NOSIGNAL);
        if (sent == static_cast<ssize_t>(hello.size())) {
          links_[rank] = Link(*std::move(socket));
          return {};
        }
      }
      if (monotonic_now() + kPause >= deadline_) {
        const std::string why = socket ? "it hung up" : socket.error().message;
        return fail(Error::Code::unavailable,
                    fmt::format("cannot reach rank {} at TCP {}: {}: allow TCP between the hosts "
                                "of the ranks, on all ports that the kernel hands out",
                                rank, rendezvous::host_port_text(seat_.doors[rank]), why));
      }
      rendezvous::sleep_until(monotonic_now() + kPause);
    }
  }

  Result<void> let_in() {
    while (true) {
      auto socket = rendezvous::accept_one(door_.listener);
      if (!socket) return fail(socket.error());
      if (!*socket) return {};
      if (strangers_.size() == kMostStrangers) strangers_.erase(strangers_.begin());
      strangers_.push_back(Stranger{.socket = *std::move(socket)});
    }
  }

  void greet() {
    std::erase_if(strangers_, [this](Stranger& one) {
      if (!hear(one)) return true;
      if (one.filled < kHelloBytes) return false;
      const std::uint32_t rank = read_u32(one.hello.data() + 12);
      const bool ours = read_u32(one.hello.data()) == kMagic &&
                        read_u32(one.hello.data() + 4) == TARPON_WIRE_VERSION &&
                        read_u32(one.hello.data() + 8) == seat_.job;
      if (ours && rank > seat_.rank && rank < links_.size() && !links_[rank].is_open()) {
        links_[rank] = Link(std::move(one.socket));
      }
      return true;
    });
  }

  std::vector<Rank> missing() const {
    std::vector<Rank> ranks;
    for (std::size_t rank = seat_.rank + 1u; rank < links_.size(); ++rank) {
      if (!links_[rank].is_open()) ranks.push_back(static_cast<Rank>(rank));
    }
    return ranks;
  }

  Error missing_error() const {
    return Error::make(
        Error::Code::timeout,
        fmt::format("no control connection from {}: allow TCP to port {} of rank {}'s host",
                    rendezvous::rank_list(missing()), door_.port, seat_.rank));
  }

  const Seat& seat_;
  Door door_;
  Time deadline_;
  std::vector<Link> links_;
  std::vector<Stranger> strangers_;  // oldest first
};

}  // namespace

Result<Door> open_door(const std::string& address) {
  auto wanted = rendezvous::resolve(address, 0);
  if (!wanted) return fail(wanted.error());
  auto listener = rendezvous::listen_at(*wanted);
  if (!listener) return fail(listener.error());
  const std::uint16_t port = ntohs(rendezvous::local_name(*listener).sin_port);
  return Door{*std::move(listener), port};
}

Result<std::vector<Link>> open_mesh(const Seat& seat, Door door, Time deadline) {
  return Opening(seat, std::move(door), deadline).run();
}

}  // namespace tarpon::mesh
