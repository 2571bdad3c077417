// What happens to operations: events for the caller, and records for the flight recorder, where
// there is one.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "bpf/wire.h"
#include "transport/endpoint.h"
#include "transport/operation/operation.h"
#include "transport/peers/control_queue.h"
#include "transport/recorder.h"
#include "transport/wire/control_packet.h"

namespace tarpon {

/// OperationHandle::index of events that belong to no operation.
inline constexpr std::uint32_t kNoOperation = 0xffffffff;

class Journal {
 public:
  /// `recorder` outlives the journal; nullptr: nothing is recorded.
  Journal(Recorder* recorder, std::uint32_t world_size)
      : recorder_(recorder), repairs_in_(world_size) {}

  /// Records `event`, whose handle is filled in, and keeps it for poll().
  void tell(const Operation& operation, Event event, Time now);
  /// Keeps an event of no operation.
  void tell(Event event);
  /// As Endpoint::poll_event().
  bool poll(Event& event);
  /// Drops the events of an operation that has ended.
  void forget(OperationHandle handle);

  void note(RecordKind kind, const Operation& operation, Rank peer, Time now,
            std::uint32_t value = 0, std::uint8_t stage = 0);
  void note_in(const ControlPacket& packet, Time now);
  /// `asks`: how often the slots of a REPAIR were asked for in a row.
  void note_out(const ControlDue& due, std::uint32_t asks, Time now);

 private:
  /// How often a peer has asked in a row for slots of one operation.
  struct RepairsAsked {
    std::uint32_t tag = 0;
    std::uint32_t number = 0;
    std::uint32_t count = 0;
  };
  void record(const Operation& operation, const Event& event, Time now);
  std::uint32_t count_repair(const tarpon_header& header);

  Recorder* const recorder_;
  std::deque<Event> events_;
  std::vector<RepairsAsked> repairs_in_;  // by peer
};

}  // namespace tarpon
