// The work on the buffers of calls, in pieces that run outside of the engine: chooses the next
// piece, and goes on with a call whose piece has ended.
//
// Not thread-safe; a piece runs in any thread, beside the other functions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/engine/call/pending_call.h"
#include "collectives/engine/call/piece.h"
#include "collectives/engine/call/running_call.h"
#include "collectives/engine/coded/coded_calls.h"

namespace tarpon {

class CallPieces {
 public:
  using RunningCalls = std::vector<std::unique_ptr<RunningCall>>;

  /// Both outlive it. `piece_bytes`: EngineOptions::piece_bytes.
  CallPieces(CodedCalls& coded, const RunningCalls& running, std::uint64_t piece_bytes)
      : coded_(coded), running_(running), piece_bytes_(piece_bytes) {}

  /// Whether a piece waits, and none runs.
  bool any() const;
  /// The next piece, of the oldest call first. It runs until ended(). Throws std::bad_alloc, and
  /// changes nothing then. REQUIRES: any().
  Piece take(Time now);
  /// The piece has run. Engine::progress() goes on with its call.
  void ended(Time now);

  // -- for the engine

  /// Ends a call that has not begun, whose report is filled: at once, or when its piece has ended.
  void end_before_start(PendingCall& call);
  /// Whether a call may have become able to start since this was asked last: a bucket is encoded,
  /// or its call has ended.
  bool take_startable() { return std::exchange(startable_, false); }
  /// Calls that are over, and are done when their piece ends.
  std::size_t ending() const { return taken_ && taken_->call_over ? 1 : 0; }

 private:
  /// The piece that runs.
  struct Taken {
    Time since;
    RunningCall* operation = nullptr;  // set: the piece is of a running call
    Encoding* encoding = nullptr;      // set: it encodes `call`; neither: a buffer of the pool
    std::shared_ptr<PendingCall> call;
    std::unique_ptr<Encoding> ended;  // `encoding`, if `call` has ended meanwhile
    bool call_over = false;           // `call` has ended, and is done when the piece ends
  };

  CodedCalls& coded_;
  const RunningCalls& running_;
  const std::uint64_t piece_bytes_;
  std::optional<Taken> taken_;
  bool startable_ = false;
};

}  // namespace tarpon
