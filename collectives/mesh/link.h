// One connection of the mesh: framed messages over a non-blocking TCP socket.
//
// Frame, little-endian: u32 length of the body, u32 kind, body. Nothing blocks. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "xdp/file_descriptor.h"

namespace tarpon::mesh {

/// Their numbers travel and never change.
enum class FrameKind : std::uint32_t {
  goodbye = 1,      // the sender ends the connection: it is not dead
  lost = 2,         // u32 rank, text: the sender's connection to that rank has ended by itself
  abort = 3,        // text: why the sender has aborted the communicator
  agreement = 4,    // an AgreementMessage
  shrink = 5,       // the sender has entered shrink()
  shrink_plan = 6,  // a ShrinkPlan
  ping = 7,         // answered by pong at once
  pong = 8,
  evict_wish = 9,       // u64 mask: who holds the sender's calls back
  evict = 10,           // u32 who decided it, u64 mask: these ranks are evicted
  rejoin = 11,          // the sender has entered rejoin()
  rejoin_plan = 12,     // a ShrinkPlan
  epoch_level = 13,     // u32: the sender's results are calm (0), between (1), lossy (2)
  epoch_question = 14,  // u32 round: how far have your calls come?
  epoch_answer = 15,    // u32 round, u32 latest epoch, u32 tag and u32 next operation of each
  epoch_record = 16,    // u32 epoch, u32 whether coded, u32 tag and u32 first operation of each
};

struct Frame {
  FrameKind kind = FrameKind::goodbye;
  std::string body;
};

inline constexpr std::uint32_t kLargestBody = 64u << 10;

class Link {
 public:
  Link() = default;  // ended
  explicit Link(FileDescriptor socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  bool is_open() const { return static_cast<bool>(socket_); }
  /// Why it ended: one line.
  const std::string& end() const { return end_; }
  void close() { socket_.reset(); }

  /// Reads what has arrived. What came before an end can still be taken.
  void read();
  std::optional<Frame> take();

  /// Sends, or keeps for flush(). Over 1 MiB that the peer does not take, nothing more is kept.
  /// REQUIRES: a body of at most kLargestBody.
  void send(FrameKind kind, std::string_view body);
  void flush();
  bool sending() const { return is_open() && !out_.empty(); }

 private:
  void finish(std::string why);

  FileDescriptor socket_;
  std::string in_, out_;
  std::size_t taken_ = 0;  // of in_
  std::string end_;
  bool mute_ = false;  // sending failed; what the peer said before can still be read
};

}  // namespace tarpon::mesh
