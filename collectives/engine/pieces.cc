// The work on the buffers of calls, in pieces that run outside of the engine: chooses the next
// piece, and goes on with a call whose piece has ended.
#include <algorithm>

#include "collectives/engine/call/running_call.h"
#include "collectives/engine/coded/coded_calls.h"
#include "collectives/engine/engine.h"

namespace tarpon {

/// Ends a call whose report is filled. REQUIRES: it has not begun.
void Engine::end_before_start(PendingCall& call) {
  std::unique_ptr<Encoding> encoding = coded_calls_->take(call);
  startable_ |= encoding != nullptr;
  if (encoding && taken_ && taken_->encoding == encoding.get()) {
    taken_->ended = std::move(encoding);
    taken_->call_over = true;
  } else {
    call.end();
  }
}

bool Engine::has_piece() const {
  if (taken_) return false;
  const auto waits = [](const auto& one) { return one->work().has_piece(); };
  return coded_calls_->oldest_with_piece() != nullptr ||
         std::any_of(running_.begin(), running_.end(), waits) ||
         coded_calls_->buffers().has_piece();
}

Piece Engine::take_piece(Time now) {
  RunningCall* operation = nullptr;
  for (const auto& one : running_) {
    if (!one->work().has_piece()) continue;
    if (operation == nullptr || one->submitted() < operation->submitted()) operation = one.get();
  }
  Encoding* encoding = coded_calls_->oldest_with_piece();
  if (operation != nullptr && encoding != nullptr &&
      operation->submitted() <= encoding->submitted()) {
    encoding = nullptr;
  }
  Taken taken;
  taken.since = now;
  if (encoding != nullptr) {
    taken.encoding = encoding;
    taken.call = encoding->call();
  } else {
    taken.operation = operation;
  }
  Piece piece = encoding != nullptr    ? encoding->take_piece()
                : operation != nullptr ? operation->work().take()
                                       : coded_calls_->buffers().take_piece(options_.piece_bytes);
  taken_ = std::move(taken);
  return piece;
}

void Engine::piece_ended(Time now) {
  const Taken taken = std::move(*taken_);
  taken_.reset();
  const Duration took = now - taken.since;
  if (taken.operation != nullptr) return taken.operation->work().ended(took);
  if (taken.encoding == nullptr) return coded_calls_->buffers().piece_ended();
  if (taken.call_over) {
    taken.call->end();
    return;
  }
  taken.encoding->piece_ended(took);
  startable_ |= taken.encoding->done();
}

}  // namespace tarpon
