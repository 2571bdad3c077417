#include "collectives/membership/streams.h"

#include <algorithm>
#include <utility>

#include "bpf/wire.h"
#include "collectives/rendezvous/control_frame.h"

namespace tarpon::mesh {
namespace {

using rendezvous::append_u32;
using rendezvous::read_u32;

constexpr std::uint32_t kMagic = 0x4d505454;  // "TTPM"
constexpr std::size_t kHelloBytes = 16;

}  // namespace

Streams::Streams(Rank rank, std::uint32_t world_size, std::uint32_t job, Network& network)
    : rank_(rank), job_(job), network_(network), peers_(world_size) {}

std::string Streams::hello() const {
  std::string bytes;
  append_u32(bytes, kMagic);
  append_u32(bytes, TARPON_WIRE_VERSION);
  append_u32(bytes, job_);
  append_u32(bytes, rank_);
  return bytes;
}

/// Returns the sender's rank, or nullopt if no other rank of this job sends such a HELLO.
/// REQUIRES: kHelloBytes bytes.
std::optional<Rank> Streams::read_hello(std::string_view bytes) const {
  const std::uint32_t rank = read_u32(bytes.data() + 12);
  if (read_u32(bytes.data()) != kMagic || read_u32(bytes.data() + 4) != TARPON_WIRE_VERSION ||
      read_u32(bytes.data() + 8) != job_ || rank >= peers_.size() || rank == rank_) {
    return std::nullopt;
  }
  return static_cast<Rank>(rank);
}

// -- strangers
// -------------------------------------------------------------------------------------

void Streams::accepted(StreamId stream, Time now, std::uint64_t may_be) {
  if (may_be == 0) return network_.close(stream);
  if (strangers_.size() >= kMaxStrangers) {
    const auto silent = std::find_if(strangers_.begin(), strangers_.end(),
                                     [](const Stranger& one) { return !one.rank; });
    const auto oldest = silent == strangers_.end() ? strangers_.begin() : silent;
    drop_stranger(static_cast<std::size_t>(oldest - strangers_.begin()));
  }
  strangers_.push_back({stream, {}, now + kStrangerTime, may_be, std::nullopt});
}

void Streams::drop_stranger(std::size_t index) {
  network_.close(strangers_[index].stream);
  strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(index));
}

void Streams::take_hello(std::size_t index, Time now) {
  Stranger& stranger = strangers_[index];
  if (stranger.bytes.size() < kHelloBytes) return;
  // A rank sends nothing more before it has its answer.
  const auto rank = stranger.bytes.size() == kHelloBytes && !stranger.rank
                        ? read_hello(stranger.bytes)
                        : std::nullopt;
  if (!rank || (stranger.may_be & bit(*rank)) == 0) return drop_stranger(index);
  Peer& peer = peers_[*rank];
  if (connects_to(*rank)) {  // its end of our stream is broken, or it probes whether we live
    drop_stranger(index);
    peer.next_attempt = std::min(peer.next_attempt, now);
    return probe(*rank);
  }
  stranger.rank = rank;
  if (peer.stream == 0) return adopt_waiting(*rank, now);
  probe(*rank);
}

/// Makes a stranger that has named `rank` that rank's stream, if one waits.
void Streams::adopt_waiting(Rank rank, Time now) {
  const auto waiting = std::find_if(strangers_.begin(), strangers_.end(),
                                    [rank](const Stranger& one) { return one.rank == rank; });
  if (waiting == strangers_.end()) return;
  const StreamId stream = waiting->stream;
  strangers_.erase(waiting);
  establish(rank, stream, {}, now);
}

// -- attempts
// --------------------------------------------------------------------------------------

void Streams::start_attempt(Rank rank, Time now) {
  Peer& peer = peers_[rank];
  peer.attempt_accepted = false;
  peer.answer.clear();
  peer.attempt_until = now + kAttemptTime;
  peer.attempt = network_.connect(rank);
}

void Streams::end_attempt(Rank rank, bool refused, const std::string& why, Time now) {
  Peer& peer = peers_[rank];
  if (std::exchange(peer.attempt_accepted, false)) peer.broken = now;
  peer.attempt = 0;
  peer.attempt_until = kNever;
  peer.refused = refused ? now : kNever;
  peer.trouble = why;
  peer.next_attempt = peer.gone ? kNever : now + peer.pause;
  peer.pause = std::min(2 * peer.pause, kLongestPause);
}

void Streams::connected(StreamId stream, Time now) {
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if (peer.attempt != stream) continue;
    peer.attempt_accepted = true;
    peer.refused = kNever;
    const std::string bytes = hello();
    if (network_.write(stream, bytes) == bytes.size()) return;
    network_.close(stream);  // an empty send buffer did not take 16 bytes
    return end_attempt(rank, false, "it takes no bytes", now);
  }
}

void Streams::take_answer(Rank rank, std::string_view bytes, Time now) {
  Peer& peer = peers_[rank];
  const std::size_t missing = kHelloBytes - peer.answer.size();
  peer.answer += bytes.substr(0, missing);
  if (peer.answer.size() < kHelloBytes) return;
  const StreamId stream = peer.attempt;
  if (!connects_to(rank) || read_hello(peer.answer) != rank) {
    network_.close(stream);
    return end_attempt(rank, false, "another program answers at its address", now);
  }
  establish(rank, stream, bytes.substr(std::min(missing, bytes.size())), now);
}

Streams::Event& Streams::tell(Event::Kind kind, Rank rank) {
  Event& event = events_.emplace_back();
  event.kind = kind;
  event.rank = rank;
  return event;
}

// -- working streams
// -------------------------------------------------------------------------------

void Streams::establish(Rank rank, StreamId stream, std::string_view rest, Time now) {
  Peer& peer = peers_[rank];
  if (peer.attempt != 0 && peer.attempt != stream) network_.close(peer.attempt);
  peer.attempt = 0;
  peer.attempt_until = peer.next_attempt = kNever;
  peer.pause = kFirstPause;
  peer.stream = stream;
  peer.reader = {};
  peer.unsent.clear();
  peer.known = true;
  peer.refused = kNever;
  peer.trouble.clear();
  if (!connects_to(rank)) peer.unsent = hello();
  tell(Event::Kind::up, rank);
  flush(rank);
  peer.reader.append(rest);
  read_frames(rank, now);
}

void Streams::break_stream(Rank rank, const std::string& why, Time now) {
  Peer& peer = peers_[rank];
  peer.stream = 0;
  peer.reader = {};
  peer.unsent = {};
  peer.broken = now;
  peer.refused = kNever;
  peer.next_attempt = peer.gone ? kNever : now;
  peer.trouble = why;
  adopt_waiting(rank, now);
}

void Streams::read_frames(Rank rank, Time now) {
  Peer& peer = peers_[rank];
  while (auto frame = peer.reader.next()) {
    tell(Event::Kind::frame, rank).frame = *std::move(frame);
  }
  if (!peer.reader.broken()) return;
  network_.close(peer.stream);
  break_stream(rank, "control connection sent what no rank sends", now);
}

/// Sends a frame that needs no answer: a stream whose other end is gone breaks by it.
void Streams::probe(Rank rank) {
  send(rank, FrameKind::here, {});
}

void Streams::send(Rank to, FrameKind kind, std::string_view body, std::uint16_t communicator) {
  Peer& peer = peers_[to];
  if (peer.stream == 0 || peer.unsent.size() > kMaxUnsent) return;  // tick() ends the latter
  append_frames(peer.unsent, kind, body, communicator);
  flush(to);
}

void Streams::flush(Rank rank) {
  Peer& peer = peers_[rank];
  if (peer.stream == 0 || peer.unsent.empty()) return;
  peer.unsent.erase(0, network_.write(peer.stream, peer.unsent));
}

// -- events of the network
// --------------------------------------------------------------------------------

void Streams::received(StreamId stream, std::string_view bytes, Time now) {
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    if (peer.stream == stream) {
      peer.reader.append(bytes);
      return read_frames(rank, now);
    }
    if (peer.attempt == stream) return take_answer(rank, bytes, now);
  }
  for (std::size_t i = 0; i < strangers_.size(); ++i) {
    if (strangers_[i].stream != stream) continue;
    strangers_[i].bytes += bytes.substr(0, kHelloBytes + 1 - strangers_[i].bytes.size());
    return take_hello(i, now);
  }
}

void Streams::writable(StreamId stream) {
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].stream == stream) return flush(rank);
  }
}

void Streams::ended(StreamId stream, const std::string& why, bool refused, Time now) {
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].stream == stream) return break_stream(rank, why, now);
    if (peers_[rank].attempt == stream) return end_attempt(rank, refused, why, now);
  }
  std::erase_if(strangers_, [stream](const Stranger& one) { return one.stream == stream; });
}

// -- time
// ------------------------------------------------------------------------------------------

/// When it is proven that `peer` is gone; kNever: it is not.
Time Streams::proven_at(const Peer& peer) const {
  if (peer.stream != 0 || !peer.known || peer.gone || peer.refused == kNever) return kNever;
  if (peer.asked < peer.refused) return kNever;  // `last_heard` may be old
  return peer.refused >= std::max(peer.broken, peer.last_heard) + kQuiet ? peer.refused : kNever;
}

void Streams::tick_peer(Rank rank, Time now) {
  Peer& peer = peers_[rank];
  if (peer.stream != 0) {
    if (peer.unsent.size() <= kMaxUnsent) return;
    network_.close(peer.stream);
    return break_stream(rank, "it does not read what is sent", now);
  }
  if (peer.attempt != 0 && now >= peer.attempt_until) {
    network_.close(peer.attempt);
    end_attempt(rank, false, "no answer", now);
  }
  if (now >= proven_at(peer)) {
    peer.gone = true;
    if (peer.attempt != 0) network_.close(std::exchange(peer.attempt, 0));
    peer.attempt_until = peer.next_attempt = kNever;
    tell(Event::Kind::gone, rank).evidence =
        "its control connection ended and connecting again is refused";
  }
  if (peer.attempt == 0 && now >= peer.next_attempt) start_attempt(rank, now);
}

void Streams::tick(Time now) {
  if (!std::exchange(started_, true)) {
    for (Rank rank = 0; rank < rank_; ++rank) peers_[rank].next_attempt = now;
  }
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    if (rank != rank_) tick_peer(rank, now);
  }
  for (std::size_t i = strangers_.size(); i-- > 0;) {
    if (now >= strangers_[i].until) drop_stranger(i);
  }
}

Time Streams::next_deadline() const {
  if (!started_) return Time{};
  Time next = kNever;
  for (const Peer& peer : peers_) {
    if (peer.stream != 0) {
      if (peer.unsent.size() > kMaxUnsent) return Time{};
      continue;
    }
    next = std::min(next, peer.attempt != 0 ? peer.attempt_until : peer.next_attempt);
    next = std::min(next, proven_at(peer));
  }
  for (const Stranger& one : strangers_) next = std::min(next, one.until);
  return next;
}

// -- state
// -----------------------------------------------------------------------------------------

std::uint64_t Streams::up() const {
  std::uint64_t ranks = 0;
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].stream != 0) ranks |= bit(rank);
  }
  return ranks;
}

std::uint64_t Streams::gone() const {
  std::uint64_t ranks = 0;
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].gone) ranks |= bit(rank);
  }
  return ranks;
}

std::uint64_t Streams::doubted() const {
  std::uint64_t ranks = 0;
  for (Rank rank = 0; rank < peers_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.stream == 0 && peer.known && !peer.gone) ranks |= bit(rank);
  }
  return ranks;
}

std::optional<Streams::Event> Streams::next_event() {
  if (events_.empty()) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

std::size_t Streams::buffered() const {
  std::size_t bytes = 0;
  for (const Peer& peer : peers_) bytes += peer.reader.buffered() + peer.unsent.size();
  for (const Stranger& one : strangers_) bytes += one.bytes.size();
  return bytes;
}

}  // namespace tarpon::mesh
