// The pieces of work of an engine (collectives/engine/call/piece.h) in virtual time.
#pragma once

#include <cstdint>
#include <optional>

#include "collectives/engine/engine.h"
#include "transport/time.h"

namespace tarpon {

/// Speed of a piece: what one core moves through memory, unless slow_down() says otherwise.
inline constexpr double kWorkBytesPerSecond = 5e9;

/// The piece that a rank is busy with. The rank is not driven until it has ended; other threads may
/// submit and abort meanwhile.
class SimulatedWork {
 public:
  /// Takes the next piece of `engine`, if it has one. `now` is the network's time, `local` the
  /// engine's.
  void start(Engine& engine, Time now, Time local) {
    if (!engine.pieces().any()) return;
    piece_ = engine.pieces().take(local);
    const double seconds = slower_ * static_cast<double>(piece_->bytes) / kWorkBytesPerSecond;
    const Duration takes(static_cast<std::int64_t>(seconds * 1e9) + 1);
    until_ = now + takes;
    total_ += takes;
    ++pieces_;
  }

  /// False while the piece takes longer than `now`. The buffers change at its end.
  bool end(Engine& engine, Time now, Time local) {
    if (!piece_) return true;
    if (now < until_) return false;
    piece_->run();
    piece_.reset();
    engine.pieces().ended(local);
    return true;
  }

  /// When the piece ends; nothing: the rank is not busy.
  std::optional<Time> until() const { return piece_ ? std::optional<Time>(until_) : std::nullopt; }

  /// From the next piece on each takes `times` as long.
  void slow_down(double times) { slower_ = times; }

  /// How long all pieces have taken, this one included.
  Duration total() const { return total_; }
  /// How many pieces have begun.
  std::uint32_t pieces() const { return pieces_; }

  /// Drops the piece, because the process has ended.
  void drop() { piece_.reset(); }

 private:
  std::optional<Piece> piece_;
  Time until_{};
  double slower_ = 1;
  Duration total_{};
  std::uint32_t pieces_ = 0;
};

}  // namespace tarpon
