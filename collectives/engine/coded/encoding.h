// The bucket of a coded call while it is encoded: before the call begins.
#pragma once

#include <memory>

#include "collectives/engine/call/pending_call.h"
#include "collectives/engine/call/work.h"
#include "collectives/engine/coded/coding.h"
#include "collectives/membership/epoch_history.h"

namespace tarpon {

/// Whether a call may ever be coded.
bool can_be_coded(const CallArguments& arguments);

/// Whether a call that runs as operation `number` of its tag, in `epoch`, is coded.
bool is_coded(const CallArguments& arguments, EpochSetting epoch, std::uint32_t number);

class Encoding {
 public:
  /// Alike for all calls of an engine.
  struct Setting {
    std::uint16_t world = 1;
    std::uint32_t slot_bytes = 0;
    std::uint64_t seed = 0;         // of the signs, alike on all ranks
    std::uint64_t piece_bytes = 0;  // of the work on buffers
  };
  /// The call is to run as operation `number`. It was submitted at `submitted`, and begins `now`.
  struct Start {
    std::uint32_t number = 0;
    Time submitted{};
    Time now{};
  };

  /// Encodes the bucket at once if it fits one piece. `buffers` outlives it. Throws std::bad_alloc.
  Encoding(const Setting& setting, std::shared_ptr<PendingCall> call, const Start& start,
           FloatBufferPool& buffers);

  const std::shared_ptr<PendingCall>& call() const { return call_; }
  Time submitted() const { return start_.submitted; }
  /// When encoding began, which is when the call began.
  Time began() const { return start_.now; }
  std::uint32_t number() const { return start_.number; }

  bool done() const { return work_.idle(); }
  bool has_piece() const { return work_.has_piece(); }
  Piece take_piece() { return work_.take(); }
  void piece_ended(Duration took);

  /// The encoded bucket. REQUIRES: done().
  std::unique_ptr<Coding> release() { return std::move(coding_); }

 private:
  void clear_nonfinite();

  std::shared_ptr<PendingCall> call_;
  const Start start_;
  std::unique_ptr<Coding> coding_;
  Work work_;
  bool cleared_ = false;
};

}  // namespace tarpon
