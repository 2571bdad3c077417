// One receive queue of an interface, with its UMEM, frames and socket.
//
// Frames to send are taken, written and sent; frames received are lent until they are given back.
// Both live in the same UMEM, which only this queue uses. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "xdp/base/result.h"
#include "xdp/frame_pool.h"
#include "xdp/socket.h"
#include "xdp/umem.h"

namespace tarpon::xdp {

struct QueueOptions {
  SocketOptions socket;
  std::uint32_t receive_frames = 2048;  // in the fill ring, the receive ring, or lent
  std::uint32_t transmit_frames = 512;
  std::uint32_t transmit_bytes = kFrameBytes;  // of the largest frame; may be several chunks
};

/// A received chunk: a whole frame, or the next part of one.
struct ReceivedChunk {
  std::uint32_t frame = 0;
  std::span<const std::byte> bytes;
  bool continues = false;  // the frame goes on in the next chunk
};

class Queue {
 public:
  /// Fills the fill ring before the socket binds. Errors: those of Socket.
  static Result<Queue> open(const QueueOptions& options);

  int fd() const { return socket_.fd(); }
  const SocketGrant& grant() const { return grant_; }
  bool huge_pages() const { return umem_.huge_pages(); }
  Result<SocketStatistics> statistics() const { return socket_.statistics(); }
  /// Frames that the kernel handed back twice or never had.
  std::uint64_t violations() const {
    return violations_ + receive_.violations() + transmit_.violations();
  }
  int error() const { return socket_.error(); }

  // -- sending

  /// Takes a free frame of `transmit_bytes` to write; kNone when all are on their way.
  std::uint32_t take() { return transmit_.take(FrameState::filling); }
  std::byte* data(std::uint32_t frame) const { return umem_.frame(frame); }
  void give_back_unsent(std::uint32_t frame) {
    transmit_.move(frame, FrameState::filling, FrameState::free);
  }
  std::size_t free_frames() const { return transmit_.available(); }

  /// Puts bytes [offset, offset + bytes) of `frame` into the transmit ring. Returns false, and
  /// frees the frame, when they do not fit the ring or the frame: nothing invalid reaches the
  /// kernel.
  bool send(std::uint32_t frame, std::uint32_t offset, std::uint32_t bytes) {
    const bool one_chunk = bytes - 1 < kFrameBytes && offset <= kFrameBytes - bytes;
    if (!one_chunk || socket_.transmit.room(written_ + 1) <= written_) {
      return send_chunks(frame, offset, bytes);
    }
    if (!transmit_.move(frame, FrameState::filling, FrameState::sending)) return false;
    write(frame, frame, offset, bytes, 0);
    chunks_[frame - first_transmit_].uncompleted = 1;
    ++in_flight_;
    return true;
  }

  /// Submits what was sent to the kernel, and wakes the kernel when it asks for that.
  Kick kick();

  /// Frees the frames that the kernel has sent.
  void reap();

  /// Whether sent frames still wait for the kernel to look at them.
  bool waits_for_kick() { return written_ > 0 || socket_.transmit.pending() > 0; }

  /// Sent frames that the kernel has not completed.
  std::size_t in_flight() const { return in_flight_; }

  // -- receiving

  /// Fills a prefix of `chunks` and returns its length.
  std::uint32_t receive(std::span<ReceivedChunk> chunks);
  void give_back(std::uint32_t frame) {
    receive_.move(frame, FrameState::received, FrameState::free);
  }
  /// Moves free frames to the fill ring.
  void refill();

 private:
  Queue(Umem umem, Socket socket, const QueueOptions& options, std::uint32_t span);
  bool send_chunks(std::uint32_t frame, std::uint32_t offset, std::uint32_t bytes);

  /// Writes a descriptor for bytes [offset, offset + bytes) of `chunk`, a part of `frame`.
  void write(std::uint32_t frame, std::uint32_t chunk, std::uint32_t offset, std::uint32_t bytes,
             std::uint32_t options) {
    socket_.transmit.at(written_++) = {
        .addr = std::uint64_t{chunk} * kFrameBytes + offset, .len = bytes, .options = options};
    chunks_[chunk - first_transmit_].frame = frame;
  }

  Umem umem_;
  Socket socket_;  // after the UMEM: closed first
  SocketGrant grant_;
  FramePool receive_;
  FramePool transmit_;
  std::uint32_t first_transmit_;  // first chunk of transmit_
  std::uint32_t span_;            // chunks of a frame to send
  struct Chunk {
    std::uint32_t frame = FramePool::kNone;  // whose part it is; kNone: not in flight
    std::uint32_t uncompleted = 0;           // of a frame's first chunk: descriptors in flight
  };
  std::vector<Chunk> chunks_;  // by chunk, from first_transmit_ on
  std::uint32_t written_ = 0;  // descriptors not submitted yet
  std::size_t in_flight_ = 0;
  std::uint64_t violations_ = 0;
  bool multi_buffer_ = false;
};

}  // namespace tarpon::xdp
