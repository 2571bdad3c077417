// Tells which calls of an engine are coded, keeps their buckets while they are encoded, and
// collects the codec evidence of ended calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <utility>
#include <vector>

#include "collectives/engine/call/float_buffer_pool.h"
#include "collectives/engine/call/pending_call.h"
#include "collectives/engine/coded/encoding.h"
#include "collectives/mechanisms.h"
#include "collectives/membership/epoch_history.h"

namespace tarpon {

/// Not thread-safe, except for the pieces of work (piece.h), which run outside.
class CodedCalls {
 public:
  struct Setting {
    Encoding::Setting encoding;
    Mechanisms mechanisms;
    std::pmr::memory_resource* memory = nullptr;  // of the buckets; outlives them
  };

  explicit CodedCalls(const Setting& setting);

  /// The epochs of operations. A caller that learns of another epoch adds it.
  EpochHistory& epochs() { return epochs_; }
  const EpochHistory& epochs() const { return epochs_; }

  /// Takes a record that all ranks have agreed on for later operations. If it turns the codec on,
  /// buffers are made, and touched in pieces, for as many calls as were recently open at once.
  void decided(const EpochRecord& record);

  /// Notes a call that was submitted while `open` others were outstanding.
  void note_submitted(const CallArguments& arguments, std::size_t open);

  /// Whether operation `number` can begin with `call`: it is not coded, or its bucket is encoded.
  /// Begins to encode the bucket if needed. An encoded bucket serves every coded epoch, and is
  /// dropped if the call is not coded any more. Throws std::bad_alloc.
  bool may_begin(const std::shared_ptr<PendingCall>& call, std::uint32_t number, Time submitted,
                 Time now);

  /// Returns the encoding of `call` and no longer keeps it; null if there is none.
  std::unique_ptr<Encoding> take(const PendingCall& call);

  /// Whether the bucket of `call` is, or was, encoded for its beginning.
  bool encodes(const PendingCall& call) const;

  /// Of the encodings that have a piece of work, the one whose call was submitted first; null if
  /// none has.
  Encoding* oldest_with_piece() const;

  /// The buffers of coded buckets; they have pieces of work of their own.
  FloatBufferPool& buffers() { return buffers_; }
  const FloatBufferPool& buffers() const { return buffers_; }

  /// Takes the evidence of an ended call.
  void note_ended(const PendingCall& call);

  /// Returns the evidence of the bounded calls that have ended since it was last called.
  std::vector<CallEvidence> take_evidence() { return std::exchange(evidence_, {}); }

 private:
  /// A call that may be coded.
  struct Latest {
    std::uint64_t count = 0;  // elements
    std::size_t open = 0;     // calls, this one included
  };

  const Setting setting_;
  EpochHistory epochs_;
  FloatBufferPool buffers_;
  std::vector<std::unique_ptr<Encoding>> encodings_;  // of calls that have not begun
  bool coded_lately_;                                 // setting of the record decided last
  std::array<Latest, 16> latest_{};
  std::size_t oldest_ = 0;  // index in latest_
  std::vector<CallEvidence> evidence_;
};

}  // namespace tarpon
