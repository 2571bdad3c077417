// Packets of operations that are over here: answers that say how the operations ended, and slots of
// results that are still kept. Peers that come late send such packets; so do ranks that have
// forgotten a tag.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstdint>
#include <vector>

#include "bpf/wire.h"
#include "transport/endpoint.h"
#include "transport/peers/control_queue.h"
#include "transport/peers/peer_clocks.h"
#include "transport/tags/tag_history.h"
#include "transport/wire/control_packet.h"

namespace tarpon {

class PastOperations {
 public:
  /// All outlive it.
  struct Parts {
    const EndpointOptions& options;
    const PeerClocks& clocks;
    TagHistory& tags;
    ControlQueue& control;
    EndpointCounters& counters;
  };
  explicit PastOperations(const Parts& parts)
      : parts_(parts), answered_(parts.options.world_size) {}

  /// Counts a DATA packet as dropped, and answers it if its sender may wait for an answer.
  void take_data(TagState& tag_state, const tarpon_header& header, Time now);
  /// The same for a tag that this rank has used. `tag_state`: nullptr where the tag is not active;
  /// else this rank has forgotten its numbers.
  void take_data_of_unknown(const TagState* tag_state, const tarpon_header& header, Time now);
  void take_control(TagState& tag_state, const ControlPacket& packet);

  /// Tells the absent owners that this rank has closed `operation`. One of them may be late, and
  /// end it without asking again. An older open operation keeps `closed_below` from telling it.
  void tell_owners(const TagState& tag_state, std::uint32_t operation, std::uint64_t absent);
  /// Tells the sender of `header` that `forgetful` does not know the numbers of the tag.
  void tell_forgotten(const tarpon_header& header, Rank forgetful);

 private:
  /// The last message of a peer that was answered.
  struct Answered {
    bool known = false;
    std::uint32_t tag = 0;
    std::uint32_t operation = 0;
    std::uint8_t stage = 0;
    Time at{};
  };

  bool was_answered(const tarpon_header& header, Time now);
  std::uint64_t missed(TagState& tag_state, std::uint32_t number, Rank peer);
  void answer(TagState& tag_state, const tarpon_header& header, bool other_signature,
              std::uint64_t gone);
  void take_repair(TagState& tag_state, const ControlPacket& packet);

  const Parts parts_;
  std::vector<Answered> answered_;  // by peer
};

}  // namespace tarpon
