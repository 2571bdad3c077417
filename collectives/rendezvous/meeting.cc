// Rank 0 collects the hellos of all ranks.
#include "collectives/rendezvous/meeting.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>

#include "collectives/rank_list.h"
#include "transport/clock.h"
#include "transport/wipe.h"
#include "xdp/base/system_limits.h"

namespace tarpon::rendezvous {
namespace {

constexpr Duration kGrace = 1s;         // between the first contradiction and its announcement
constexpr Duration kFarewell = 1s;      // for the announcement to leave
constexpr Duration kShortage = 10ms;    // between two tries to let ranks in without descriptors
constexpr std::size_t kStrangers = 64;  // beside one for each rank
constexpr std::size_t kGuests = 64;     // beside one for each rank: double or out of range
constexpr std::size_t kRefusals = 16;   // lines that are kept for the error
constexpr const char* kAlike = "give all ranks the same --secret-file (TARPON_SECRET_FILE)";
constexpr int kAccepts = 256;  // in one round, so that a flood cannot hold up the deadline

/// When to dismiss a guest that waits for `wait_ms`: after rank 0's own verdict if both have the
/// same timeout and started at about the same time, so that all ranks end alike.
Time dismissal(std::uint32_t wait_ms) {
  if (wait_ms == UINT32_MAX) return kNever;
  const Duration wait = std::chrono::milliseconds(wait_ms);
  return monotonic_now() + wait - std::min<Duration>(wait / 8, 500ms);
}

std::string peer_text(const Connection& connection) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  if (getpeername(connection.socket().get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return "a process that has gone";
  }
  return host_text(address);
}

/// Tells a guest without TLS, by a verdict of the code permission, or one that wants TLS where
/// there is none, why it cannot come. What it has sent is read and forgotten: else the kernel would
/// reset the connection.
void tell_in_plain(const FileDescriptor& socket, const Error& error) {
  std::array<char, 4096> forgotten;
  for (int reads = 0; reads < 32; ++reads) {
    if (recv(socket.get(), forgotten.data(), forgotten.size(), MSG_DONTWAIT) <= 0) break;
  }
  const std::string bytes =
      encode(Frame{FrameKind::verdict, 0, UINT32_MAX, encode(Verdict{.error = error})});
  // It fits an empty socket buffer; a guest that is gone needs no answer.
  (void)send(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

/// Whether a malformed connection began with a handshake of TLS.
bool wants_tls(const Connection& connection) {
  return connection.beginning().starts_with("\x16\x03");
}

/// Text that may have a key.
struct WipedText {
  explicit WipedText(std::string content) : text(std::move(content)) {}
  std::string text;
  WipeAtEnd<std::string> wipe{text};
};

std::shared_ptr<const std::string> verdict_frame(const Verdict& verdict) {
  Frame frame{FrameKind::verdict, 0, UINT32_MAX, encode(verdict)};
  const WipeAtEnd wipe(frame.body);
  const auto bytes = std::make_shared<const WipedText>(encode(frame));
  return {bytes, &bytes->text};
}

}  // namespace

Meeting::Meeting(Plan plan, FileDescriptor listener)
    : plan_(std::move(plan)), listener_(std::move(listener)), notice_(plan_.observer) {}

Result<std::vector<Connection>> Meeting::hold(Time deadline) {
  deadline_ = answer_by(wait_ms(deadline));  // guests with the same timeout hear of it in time
  Time grace_ends = kNever;
  while (true) {
    if (const std::optional<Error> error = let_in()) return fail(announce_shortage(*error));
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
    const Time until = std::min(deadline_, grace_ends);
    if (error && (all_here || monotonic_now() >= until)) return fail(announce(*error));
    if (monotonic_now() >= until) return fail(announce(missing_error()));
    dismiss_impatient(error);
    notice_.look([&] {  // a rank is missing
      return fmt::format("waiting for {} at {}", rank_list(missing()), plan_.place);
    });
    sleep(std::min({until, next_dismissal(), notice_.due()}));
  }
}

std::optional<Error> Meeting::let_in() {
  for (int accepted = 0; accepted < kAccepts; ++accepted) {
    Result<FileDescriptor> socket = accept_one(listener_.descriptor());
    if (!socket) return socket.error();
    if (!*socket) return std::nullopt;
    if (strangers_.size() == plan_.own.world_size + kStrangers) make_room();
    strangers_.emplace_back(SecureSocket(*std::move(socket), plan_.tls, SecureSocket::End::server),
                            kLargestHello);
  }
  return std::nullopt;
}

/// Rank 0 can open no more connections. Tells all guests, and closes their connections, so that the
/// ranks that wait in the kernel's queue can be let in and hear the same.
Error Meeting::announce_shortage(const Error& error) {
  Error named = Error::make(error.code, "rank 0: " + with_limit(error).message);
  const Time until = monotonic_now() + kGrace;
  strangers_.clear();
  for (std::size_t told = 0; monotonic_now() < until;) {
    announce(named);
    told += guests_.size();
    guests_.clear();
    if (told + 1 >= plan_.own.world_size) break;
    sleep(until);
    // If it fails again, a rank still waits: poll() would return at once.
    if (let_in()) sleep_until(std::min(until, monotonic_now() + kShortage));
    hear_strangers();
  }
  return named;
}

// A rank says hello at once. The stranger that has been silent longest goes.
void Meeting::make_room() {
  Connection oldest = std::move(strangers_.front());
  strangers_.erase(strangers_.begin());
  oldest.receive();
  if (oldest.frame() == nullptr) {
    ++dropped_;
    return;
  }
  const Frame frame = oldest.take();
  greet(std::move(oldest), frame);
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
      drop(stranger);
    }
  }
  strangers_ = std::move(silent);
}

/// Forgets a connection that has ended without a hello; says why if it may be a rank's.
void Meeting::drop(const Connection& stranger) {
  const SecureSocket::Trouble trouble = stranger.trouble();
  if (plan_.tls == nullptr && wants_tls(stranger)) {
    note_refusal(stranger, fmt::format("a process has a secret, and rank 0 has none: {}", kAlike));
    return tell_in_plain(stranger.socket(),
                         Error::make(Error::Code::permission, "rank 0 has no secret"));
  }
  if (trouble == SecureSocket::Trouble::plain) {
    note_refusal(stranger, fmt::format("a process has no secret, and rank 0 has one: {}", kAlike));
    return tell_in_plain(
        stranger.socket(),
        Error::make(Error::Code::permission,
                    fmt::format("rank 0 has a secret, and this rank has none: {}", kAlike)));
  }
  if (trouble == SecureSocket::Trouble::other_secret) {
    return note_refusal(stranger,
                        fmt::format("a process has another secret than rank 0: {}", kAlike));
  }
  ++dropped_;
}

void Meeting::greet(Connection connection, const Frame& frame) {
  std::optional<Hello> hello =
      frame.kind == FrameKind::hello ? decode_hello(frame.body) : std::nullopt;
  if (!hello || hello->nonce != plan_.own.nonce ||
      guests_.size() == plan_.own.world_size + kGuests) {
    ++dropped_;
    return;
  }
  if (plan_.own.nonce == 0) {
    if (const auto why = difference(plan_.own, *hello)) return refuse(std::move(connection), *why);
    if (is_taken(hello->rank)) {
      const Error taken = Error::make(
          Error::Code::invalid_argument,
          fmt::format("rank {} is taken twice: give every process a rank of its own", hello->rank));
      return refuse(std::move(connection), {taken, taken});
    }
  }
  left_.erase(hello->rank);
  const auto place = std::upper_bound(
      guests_.begin(), guests_.end(), hello->rank,
      [](std::uint32_t rank, const Guest& guest) { return rank < guest.hello.rank; });
  guests_.insert(place, Guest{*std::move(hello), std::move(connection), dismissal(frame.wait_ms)});
}

bool Meeting::is_taken(std::uint32_t rank) {
  if (rank == plan_.own.rank) return true;
  forget_leavers();  // a restarted rank may come before its old connection is seen to end
  return std::any_of(guests_.begin(), guests_.end(),
                     [rank](const Guest& guest) { return guest.hello.rank == rank; });
}

void Meeting::note_refusal(const Connection& connection, const std::string& why) {
  ++refused_;
  const std::string line = fmt::format("{} ({})", why, peer_text(connection));
  const bool known = std::find(refusals_.begin(), refusals_.end(), line) != refusals_.end();
  if (!known && refusals_.size() < kRefusals) {
    refusals_.push_back(line);
    if (plan_.observer != nullptr) plan_.observer->on_refusal(line);
  }
}

void Meeting::refuse(Connection connection, const Difference& why) {
  note_refusal(connection, why.for_host.message);
  // A few bytes into an empty socket buffer always fit.
  connection.send(verdict_frame({.error = why.for_guest}));
}

Time Meeting::next_dismissal() const {
  Time due = kNever;
  for (const Guest& guest : guests_) due = std::min(due, guest.dismiss_at);
  return due;
}

/// Dismisses the guests whose own timeout is about to pass, with `error` or else the list of
/// missing ranks. REQUIRES: a rank is missing.
void Meeting::dismiss_impatient(const std::optional<Error>& error) {
  const Time now = monotonic_now();
  const auto impatient = [now](const Guest& guest) { return guest.dismiss_at <= now; };
  if (std::none_of(guests_.begin(), guests_.end(), impatient)) return;
  const auto verdict = verdict_frame(
      {.error = error.value_or(Error::make(Error::Code::timeout, missing_text("in time")))});
  for (Guest& guest : guests_) {
    if (!impatient(guest)) continue;
    guest.connection.send(verdict);
    if (guest.hello.rank < plan_.own.world_size) left_.insert(guest.hello.rank);
  }
  std::erase_if(guests_, impatient);
}

// Removes guests that have left, since a rank that dies before all are here may be started again,
// and guests that send more, since a guest has nothing more to say.
void Meeting::forget_leavers() {
  const auto gone = [](const Guest& guest) {
    return !guest.connection.is_open() || guest.connection.frame() != nullptr;
  };
  for (Guest& guest : guests_) {
    guest.connection.receive();
    if (gone(guest) && guest.hello.rank < plan_.own.world_size) left_.insert(guest.hello.rank);
  }
  std::erase_if(guests_, gone);
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
    if (auto why = difference(plan_.own, guest.hello)) return why->for_host;
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

/// Whether refusals may explain all missing ranks.
bool Meeting::is_missing_refused() const {
  return !refusals_.empty() && refused_ >= missing().size() && left_.empty();
}

/// `when`: "within 30 s". REQUIRES: a rank is missing.
std::string Meeting::missing_text(const std::string& when) const {
  std::vector<std::uint32_t> never, left;
  for (const std::uint32_t rank : missing()) (left_.contains(rank) ? left : never).push_back(rank);
  const std::string gone = left.empty() ? "" : rank_list(left) + " came and left";
  if (never.empty()) return fmt::format("{} before all ranks were at {}", gone, plan_.place);
  const std::string absent =
      fmt::format("{} did not arrive {} at {}", rank_list(never), when, plan_.place);
  if (is_missing_refused()) return absent;
  const bool one = never.size() == 1;
  std::string text =
      fmt::format("{}: {} running, and is TCP port {} of rank 0's host open to {}?", absent,
                  one ? "is it" : "are they", plan_.port, one ? "it" : "them");
  if (plan_.loopback) {
    text +=
        " No other host reaches that loopback address: for ranks on several hosts give an "
        "address of rank 0 that all of them reach.";
  }
  return gone.empty() ? text : text + " (" + gone + ")";
}

Error Meeting::missing_error() const {
  std::string notes;
  const auto note = [&notes](const std::string& one) {
    notes += (notes.empty() ? "" : "; ") + one;
  };
  for (const std::string& refusal : refusals_) note("refused: " + refusal);
  if (refused_ > refusals_.size()) note(fmt::format("refused {} connections in all", refused_));
  if (dropped_ > 0) {
    note(fmt::format("dropped {} connection{} without a valid hello", dropped_,
                     dropped_ == 1 ? "" : "s"));
  }
  std::string text = missing_text("within " + duration_text(answer_within(plan_.timeout)));
  if (!notes.empty()) text += " (" + notes + ")";
  return Error::make(Error::Code::timeout, std::move(text));
}

// Tells all guests, and returns `error`.
Error Meeting::announce(Error error) {
  const auto bytes = verdict_frame({.error = error});
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
  const auto bytes = verdict_frame(
      {.job = plan_.job, .public_id = plan_.public_id, .packet_key = plan_.packet_key});
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
