// The clock of an operation. It starts when half of the ranks have begun, since one early rank must
// not cost the others their data. The bounds of bounded operations count from there.
//
// A value. No clock inside.
#pragma once

#include <cstdint>
#include <span>

#include "transport/operation/peer_exchange.h"
#include "transport/time.h"

namespace tarpon {

class BeginClock {
 public:
  /// A new operation, whose call began at this rank at `began`. This rank has begun.
  explicit BeginClock(Time began = {}) : began_(began) {}

  /// When the call began at this rank: when the operation was opened, or before.
  Time began() const { return began_; }
  bool has_started() const { return started_ != kNever; }
  /// kNever: it has not started.
  Time started() const { return started_; }
  /// Age of the packet that started it; kUnknownAge without an echo.
  Duration read_after() const { return read_after_; }

  /// Another rank has begun.
  void note_begun() { ++begun_; }
  /// Whether it has to start now: half of the `live` ranks have begun.
  bool is_due(std::uint32_t live) const { return !has_started() && 2 * begun_ >= live; }
  void start(Time at, Duration read_after) {
    started_ = at;
    read_after_ = read_after;
  }
  /// Starts it at the time when the last rank of the first half of `live` ranks began. `self`: this
  /// rank.
  void start_at_half(std::span<const PeerExchange> peers, std::uint32_t live, Rank self);
  /// The ranks that began first, up to half of them. Where the begin of a peer is not known, the
  /// time counts at which its packet was read. Bit r: rank r; all ranks where no such half started
  /// the clock.
  std::uint64_t first_half() const { return first_half_; }

 private:
  Time began_{};
  std::uint32_t begun_ = 1;  // ranks
  Time started_ = kNever;
  Duration read_after_{};
  std::uint64_t first_half_ = ~std::uint64_t{0};
};

}  // namespace tarpon
