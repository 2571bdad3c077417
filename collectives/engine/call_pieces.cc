#include "collectives/engine/call_pieces.h"

#include <algorithm>
#include <utility>

namespace tarpon {

bool CallPieces::any() const {
  if (taken_) return false;
  const auto waits = [](const auto& one) { return one->work().has_piece(); };
  return coded_.oldest_with_piece() != nullptr ||
         std::any_of(running_.begin(), running_.end(), waits) || coded_.buffers().has_piece();
}

Piece CallPieces::take(Time now) {
  RunningCall* operation = nullptr;
  for (const auto& one : running_) {
    if (!one->work().has_piece()) continue;
    if (operation == nullptr || one->submitted() < operation->submitted()) operation = one.get();
  }
  Encoding* encoding = coded_.oldest_with_piece();
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
                                       : coded_.buffers().take_piece(piece_bytes_);
  taken_ = std::move(taken);
  return piece;
}

void CallPieces::ended(Time now) {
  const Taken taken = std::move(*taken_);
  taken_.reset();
  const Duration took = now - taken.since;
  if (taken.operation != nullptr) {
    taken.operation->work().ended(took);
  } else if (taken.encoding == nullptr) {
    coded_.buffers().piece_ended();
  } else if (taken.call_over) {
    taken.call->end();
  } else {
    taken.encoding->piece_ended(took);
    startable_ |= taken.encoding->done();
  }
}

void CallPieces::end_before_start(PendingCall& call) {
  std::unique_ptr<Encoding> encoding = coded_.take(call);
  const bool encoded = encoding != nullptr;
  startable_ |= encoded;
  if (encoded && taken_ && taken_->encoding == encoding.get()) {
    taken_->ended = std::move(encoding);
    taken_->call_over = true;
  } else {
    call.end();
  }
}

}  // namespace tarpon
