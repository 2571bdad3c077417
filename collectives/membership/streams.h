// The connections of the control mesh as a state machine: one byte stream between every two ranks,
// opened, opened again when it breaks, and the proof that a rank is gone. No socket, clock or
// thread: a Network moves the bytes, and the caller passes the time.
//
// Opening. The higher rank connects to the lower one and says HELLO (16 bytes: magic, version, job,
// own rank). The lower rank answers with a HELLO of its own; only then does the higher rank use the
// stream. An accepted stream is a *stranger* until its HELLO is whole and names the job, and a rank
// that has the address from which the stream comes: nothing that it sends is believed. There are at
// most kMaxStrangers, each for at most kStrangerTime. A further one displaces the one that has been
// silent longest, since a rank says HELLO at once. A stream from an address that no rank has is
// closed: so only processes on the hosts of the job can take a place.
//
// Breaking. Nothing is kept for a broken stream. When a stream works (again), an `up` event asks
// the caller to send its state; all messages of the mesh are therefore idempotent. A new stream
// replaces a rank's old one only when the old one is broken: it waits as a stranger while the old
// one is probed. The lower rank does not open streams. When its end breaks, it connects to the
// higher rank's door and sends a HELLO; the higher rank then probes its own end.
//
// Proof of death. It takes three events: a stream to the rank that worked has ended, no packet of
// the rank came on the data path for kQuiet, and connecting is refused after that. Then there is a
// `gone` event, once per rank. It waits until the data path has been asked for packets after the
// refusal (set_last_heard()). A later attempt that the peer's kernel accepted counts as a stream:
// kQuiet starts again when it ends. A timeout, an unreachable network or another error proves
// nothing. If another program takes the port of a dead rank, there is no proof: the rank is dead by
// silence (votes.h). A rank with proof does not connect to the other rank any more. It still
// accepts the other rank's connections, and answers each HELLO of that rank with one attempt: a
// rank that runs after all has to learn that it is out of the job.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/membership/frame.h"
#include "transport/port.h"
#include "transport/time.h"

namespace tarpon::mesh {

/// Names a byte stream; never used twice. 0: none.
using StreamId = std::uint64_t;

/// Moves bytes for Streams; implemented by sockets and by the simulation.
class Network {
 public:
  virtual ~Network() = default;
  /// Begins to connect to the door of `peer`. Streams::connected() or ended() follows.
  virtual StreamId connect(Rank peer) = 0;
  /// Sends a prefix of `bytes` and returns its length. When it is shorter, Streams::writable()
  /// follows, or ended().
  virtual std::size_t write(StreamId stream, std::string_view bytes) = 0;
  /// Closes `stream`; no call about it follows.
  virtual void close(StreamId stream) = 0;
};

class Streams {
 public:
  static constexpr std::size_t kMaxStrangers = 64;
  static constexpr Duration kStrangerTime = 1s;
  static constexpr Duration kAttemptTime = 1s;   // to connect, and to be answered
  static constexpr Duration kFirstPause = 20ms;  // between attempts; doubles
  static constexpr Duration kLongestPause = 1s;
  static constexpr Duration kQuiet = 100ms;
  static constexpr std::size_t kMaxUnsent = 4u << 20;  // bytes; a peer that reads less is cut off

  struct Event {
    enum class Kind : std::uint8_t {
      up,     // a stream to `rank` works; nothing that was sent before counts as received
      frame,  // `frame` of `rank`
      gone,   // `evidence`: proof that the process of `rank` is gone
    };
    Kind kind = Kind::up;
    Rank rank = 0;
    Frame frame;
    std::string evidence;
  };

  /// `network` outlives the machine. The first attempts begin with the first tick().
  Streams(Rank rank, std::uint32_t world_size, std::uint32_t job, Network& network);

  // -- events of the network
  /// `may_be`: the ranks that have the address from which it comes. Bit r: rank r; all bits if the
  /// address is not known.
  void accepted(StreamId stream, Time now, std::uint64_t may_be = ~std::uint64_t{0});
  void connected(StreamId stream, Time now);
  void received(StreamId stream, std::string_view bytes, Time now);
  void writable(StreamId stream);
  /// `refused`: no process listens there.
  void ended(StreamId stream, const std::string& why, bool refused, Time now);

  void tick(Time now);
  Time next_deadline() const;

  /// Sends a frame. Does nothing if `to` has no working stream.
  void send(Rank to, FrameKind kind, std::string_view body, std::uint16_t communicator = 0);

  /// Ranks with a working stream. Bit r: rank r.
  std::uint64_t up() const;

  /// Ranks that had a `gone` event. Bit r: rank r.
  std::uint64_t gone() const;

  /// Ranks whose death may soon be proven: the caller calls set_last_heard() for them. Bit r:
  /// rank r.
  std::uint64_t doubted() const;
  /// Sets when the last packet of `rank` came on the data path, as known at `asked`; Time{}: never.
  void set_last_heard(Rank rank, Time when, Time asked) {
    peers_[rank].last_heard = when;
    peers_[rank].asked = asked;
  }
  Time last_heard(Rank rank) const { return peers_[rank].last_heard; }

  /// Why `rank` cannot be reached, one line; empty while no attempt has failed.
  const std::string& trouble(Rank rank) const { return peers_[rank].trouble; }

  std::optional<Event> next_event();

  /// Bytes held for peers and strangers.
  std::size_t buffered() const;

 private:
  struct Stranger {
    StreamId stream = 0;
    std::string bytes;  // its HELLO, and at most one byte more
    Time until{};
    std::uint64_t may_be = 0;  // ranks that have its address
    std::optional<Rank> rank;  // named by its HELLO: it waits for that rank's stream to break
  };
  struct Peer {
    StreamId stream = 0;  // the working one; 0: none works
    FrameReader reader;
    std::string unsent;
    StreamId attempt = 0;           // connects, or waits for the answer to its HELLO; 0: none
    bool attempt_accepted = false;  // it is connected, and the HELLO is sent
    std::string answer;             // to the HELLO, as far as it has come
    Time attempt_until = kNever;
    Time next_attempt = kNever;
    Duration pause = kFirstPause;
    bool known = false;     // a stream has worked
    Time refused = kNever;  // when the last attempt since the break was refused; kNever: it was not
    bool gone = false;
    Time broken{};  // when the last accepted stream ended, whether it worked or not
    Time last_heard{};
    Time asked{};  // when `last_heard` was known
    std::string trouble;
  };

  bool connects_to(Rank peer) const { return peer < rank_; }
  std::string hello() const;
  std::optional<Rank> read_hello(std::string_view bytes) const;
  void start_attempt(Rank peer, Time now);
  void end_attempt(Rank peer, bool refused, const std::string& why, Time now);
  void take_answer(Rank peer, std::string_view bytes, Time now);
  void take_hello(std::size_t index, Time now);
  void establish(Rank peer, StreamId stream, std::string_view rest, Time now);
  void break_stream(Rank peer, const std::string& why, Time now);
  void adopt_waiting(Rank peer, Time now);
  void read_frames(Rank peer, Time now);
  Event& tell(Event::Kind kind, Rank peer);
  void probe(Rank peer);
  void flush(Rank peer);
  void drop_stranger(std::size_t index);
  void tick_peer(Rank peer, Time now);
  Time proven_at(const Peer& peer) const;

  const Rank rank_;
  const std::uint32_t job_;
  Network& network_;
  std::vector<Peer> peers_;
  std::vector<Stranger> strangers_;
  std::deque<Event> events_;
  bool started_ = false;
};

}  // namespace tarpon::mesh
