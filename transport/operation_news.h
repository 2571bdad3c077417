// What the endpoint tells its caller about operations.
#pragma once

#include <cstdint>

#include "transport/closing.h"
#include "transport/operation_spec.h"
#include "transport/time.h"

namespace tarpon {

struct Event {
  enum class Kind : std::uint8_t {
    stage_closed,  // nothing more will be delivered in `stage`; `closing` says why
    acknowledged,  // all messages of `stage` that ask for it are confirmed by their receivers
    mismatch,      // `peer` runs another operation under this number: `signature`
    aborted,       // the operation is given up: `reason`, `ranks`; `peer` says so
    deadline,      // the deadline passed
    epoch,         // `peer` runs the operation in a later epoch
    silent,        // nothing comes from `peer`, although it is asked; of no operation
    heard,         // `peer` was silent, and is heard again; of no operation
    clock,         // bounded: half of the ranks have begun, the last of them at `at`: the caller
                   // says when the stages end, by set_ends()
    extended,      // bounded: the end of the last stage has moved by `elapsed`: HoldPolicy
    late,          // bounded: `peer` has closed without anything of our last stage; we send no
                   // more of it, and the deadline alone ends what we still fetch. `peer` is this
                   // rank after NearWork::left_out(), which may open the last stage again
  };
  Kind kind = Kind::stage_closed;
  OperationHandle operation;
  std::uint8_t stage = 0;
  Closing closing = Closing::complete;
  Duration elapsed{};  // stage_closed: since the clock started; extended: by how much
  Time at{};           // clock
  Rank peer = 0;
  std::uint32_t reason = 0;  // tarpon_abort_reason
  std::uint64_t ranks = 0;   // aborted: bit r: rank r is to blame
  bool begun_late = false;   // aborted: this rank began after some peer had ended it
  Signature signature{};     // mismatch
  OperationEpoch epoch;      // epoch
};

/// Progress of one incoming message.
struct MessageProgress {
  bool heard = false;           // its sender has begun this operation, with the same signature
  Time begun = kNever;          // when its sender began, as far as known
  std::uint32_t slots = 0;      // in the message
  std::uint32_t received = 0;   // slots that are here
  std::uint32_t end = 0;        // one above the last slot that is here, or known to be lost
  std::uint64_t bytes = 0;      // payload of the received slots
  std::uint64_t all_bytes = 0;  // payload of the whole message
};

/// Which ranks of a bounded operation have set OperationSpec::marked, as far as known.
struct Marks {
  bool heard = false;       // a packet from a peer has said that some rank has set it
  std::uint64_t ranks = 0;  // bit r: rank r has set it, this rank included. Names may be lost: with
                            // `heard`, 0 stands for some rank
  bool any() const { return heard || ranks != 0; }
};

/// The next number of a tag at a rank: that rank has made the operations below it.
struct NextNumber {
  std::uint32_t tag = 0;
  std::uint32_t number = 0;
  bool operator==(const NextNumber&) const = default;
};

}  // namespace tarpon
