// Rank 0 collects the hellos of all ranks.
#include "collectives/rendezvous/meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "collectives/rendezvous/rank_list.h"
#include "transport/clock.h"

namespace tarpon::rendezvous {
namespace {

constexpr Duration kGrace = 1s;         // between the first contradiction and its announcement
constexpr Duration kFarewell = 1s;      // for the announcement to leave
constexpr std::size_t kStrangers = 64;  // beside one for each rank
constexpr std::size_t kGuests = 64;     // beside one for each rank: double or out of range

}  // namespace

Meeting::Meeting(Plan plan, FileDescriptor listener)
    : plan_(std::move(plan)), listener_(std::move(listener)) {}

Result<std::vector<Connection>> Meeting::hold(Time deadline) {
  deadline_ = deadline;
  Time grace_ends = kNever;
  while (true) {
    if (std::optional<Error> error = let_in()) return fail(announce(*std::move(error)));
    hear_strangers();
    forget_leavers();

    const bool all_here = missing().empty();
    const std::optional<Error> error = contradiction();
    if (all_here && !error) return seat();
    if (!error) {
      grace_ends = kNever;
    } else if (grace_ends == kNever) {
      grace_ends = monotonic_now() + kGrace;
    }
    const Time until = std::min(verdict_due(), grace_ends);
    if (error && (all_here || monotonic_now() >= until)) return fail(announce(*error));
    if (monotonic_now() >= until) return fail(announce(missing_error()));
    sleep(until);
  }
}

std::optional<Error> Meeting::let_in() {
  while (true) {
    Result<FileDescriptor> socket = accept_one(listener_);
    if (!socket) return socket.error();
    if (!*socket) return std::nullopt;
    // A rank says hello at once; whoever has been silent longest is none.
    if (strangers_.size() == plan_.own.world_size + kStrangers) {
      strangers_.erase(strangers_.begin());
      ++dropped_;
    }
    strangers_.emplace_back(*std::move(socket), kLargestHello);
  }
}

void Meeting::hear_strangers() {
  std::vector<Connection> silent;
  for (Connection& stranger : strangers_) {
    stranger.receive();
    if (stranger.frame() != nullptr) {
      const Frame frame = stranger.take();
      greet(std::move(stranger), frame);
    } else if (stranger.is_open()) {
      silent.push_back(std::move(stranger));
    } else {
      ++dropped_;
    }
  }
  strangers_ = std::move(silent);
}

void Meeting::greet(Connection connection, const Frame& frame) {
  std::optional<Hello> hello =
      frame.kind == FrameKind::hello ? decode_hello(frame.body) : std::nullopt;
  // Another version may lay out what follows its number differently, the nonce included.
  const bool foreign =
      !hello || (hello->version == plan_.own.version && hello->nonce != plan_.own.nonce);
  if (foreign || guests_.size() == plan_.own.world_size + kGuests) {
    ++dropped_;
    return;
  }
  const auto place = std::upper_bound(
      guests_.begin(), guests_.end(), hello->rank,
      [](std::uint32_t rank, const Guest& guest) { return rank < guest.hello.rank; });
  guests_.insert(place, Guest{*std::move(hello), std::move(connection), answer_by(frame.wait_ms)});
}

/// The verdict has to reach the most impatient of those who are here before it gives up.
Time Meeting::verdict_due() const {
  Time due = deadline_;
  for (const Guest& guest : guests_) due = std::min(due, guest.answer_by);
  return due;
}

// A rank that dies before all are here may be started again. Guests have nothing to say by now.
void Meeting::forget_leavers() {
  for (Guest& guest : guests_) guest.connection.receive();
  std::erase_if(guests_, [](const Guest& guest) {
    return !guest.connection.is_open() || guest.connection.frame() != nullptr;
  });
}

void Meeting::sleep(Time until) {
  std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
  for (const Connection& stranger : strangers_) entries.push_back(stranger.poll_entry());
  for (const Guest& guest : guests_) entries.push_back(guest.connection.poll_entry());
  poll_until(entries, until);
}

std::optional<Error> Meeting::contradiction() const {
  std::uint32_t previous = plan_.own.rank;
  for (const Guest& guest : guests_) {
    if (auto error = difference(plan_.own, guest.hello)) return error;
    if (guest.hello.rank == previous) {
      return Error::make(Error::Code::invalid_argument,
                         fmt::format("rank {} is taken twice: give every process a rank of its own",
                                     guest.hello.rank));
    }
    previous = guest.hello.rank;
  }
  return std::nullopt;
}

std::vector<std::uint32_t> Meeting::missing() const {
  std::vector<std::uint32_t> ranks;
  auto guest = guests_.begin();
  for (std::uint32_t rank = 1; rank < plan_.own.world_size; ++rank) {
    while (guest != guests_.end() && guest->hello.rank < rank) ++guest;
    if (guest == guests_.end() || guest->hello.rank != rank) ranks.push_back(rank);
  }
  return ranks;
}

Error Meeting::missing_error() const {
  const std::vector<std::uint32_t> ranks = missing();
  const bool one = ranks.size() == 1;
  std::string text = fmt::format(
      "{} did not arrive within {} at {}: {} running, and is TCP port {} of rank 0's host open to "
      "{}?",
      rank_list(ranks), duration_text(plan_.timeout), plan_.place, one ? "is it" : "are they",
      plan_.port, one ? "it" : "them");
  if (dropped_ > 0) {
    text += fmt::format(" (dropped {} connection{} without a valid hello)", dropped_,
                        dropped_ == 1 ? "" : "s");
  }
  return Error::make(Error::Code::timeout, std::move(text));
}

// Tells everybody who is here, and returns `error`.
Error Meeting::announce(Error error) {
  const auto bytes = std::make_shared<const std::string>(
      encode(Frame{FrameKind::verdict, 0, UINT32_MAX, encode(Verdict{error, 0})}));
  for (Guest& guest : guests_) guest.connection.send(bytes);
  const Time until = monotonic_now() + kFarewell;
  while (monotonic_now() < until) {
    std::vector<pollfd> entries;
    for (Guest& guest : guests_) {
      guest.connection.flush();
      if (!guest.connection.sending()) continue;
      entries.push_back(guest.connection.poll_entry_for_sending());
    }
    if (entries.empty()) break;
    poll_until(entries, until);
  }
  return error;
}

std::vector<Connection> Meeting::seat() {
  const auto bytes = std::make_shared<const std::string>(
      encode(Frame{FrameKind::verdict, 0, UINT32_MAX, encode(Verdict{std::nullopt, plan_.job})}));
  std::vector<Connection> peers(plan_.own.world_size);
  for (Guest& guest : guests_) {
    guest.connection.allow(kLargestBody);
    // A few bytes into an empty socket buffer always fit.
    guest.connection.send(bytes);
    peers[guest.hello.rank] = std::move(guest.connection);
  }
  return peers;
}

}  // namespace tarpon::rendezvous
