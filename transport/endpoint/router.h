// Packets in. Checks each header, finds the tag and the operation, and hands the packet to the part
// that answers for it: OpenOperation, EarlyOperations or PastOperations. Every packet is applied,
// or counted under one reason.
//
// Ranks that remember the numbers of a tag differently. A rank that has forgotten a tag begins it
// with 0 again. A peer that remembers the tag answers with ABORT 8. From then on the tag is *lost*
// to the forgetful rank: it refuses its own calls of that tag, and answers those of its peers with
// ABORT 8. So every call of the tag ends as aborted on all ranks, and none is paired with a call
// that does not belong to it.
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "transport/endpoint/heartbeats.h"
#include "transport/endpoint/open_operations.h"
#include "transport/endpoint/passed_peers.h"
#include "transport/operation/sender.h"
#include "transport/tags/past_operations.h"

namespace tarpon {

class Router {
 public:
  /// All outlive it.
  struct Parts {
    const EndpointOptions& options;
    const Participants& participants;
    PeerClocks& clocks;
    Granter& granter;
    Sender& sender;
    TagHistory& tags;
    OpenOperations& operations;
    EarlyOperations& early;
    PastOperations& past;
    PassedPeers& passed;
    Heartbeats& heartbeats;
    Journal& journal;
    EndpointCounters& counters;
  };
  /// `max_entries`: tags that one HEARTBEAT carries.
  Router(const Parts& parts, std::size_t max_entries) : parts_(parts), max_entries_(max_entries) {}

  /// Takes a batch.
  void receive(std::span<const RxPacket> packets, Time now);
  /// The AGREEMENTs that have come since the last call.
  std::vector<AgreementPacket> take_agreements() { return std::exchange(agreements_, {}); }

 private:
  /// The operation that the last DATA of a batch belonged to: what was noted for it holds for the
  /// next packets of its sender.
  struct LatestData {
    OpenOperation* operation = nullptr;
    Rank sender = 0;
    std::uint16_t closed_below = 0;

    bool continues(const tarpon_header& header) const {
      return operation != nullptr && header.operation == operation->state().number &&
             header.tag == operation->state().tag && header.sender == sender &&
             header.closed_below == closed_below;
    }
  };

  std::size_t receive_train(std::span<const RxPacket> packets, LatestData& latest, Time now);
  bool is_sound(const tarpon_header& header, const RxPacket& packet);
  std::size_t take_data(const tarpon_header& header, std::span<const RxPacket> packets,
                        LatestData& latest, Time now);
  void take_control(const ControlPacket& packet, Time now);
  void take_agreement(const ControlPacket& packet);
  void note_clock(const tarpon_header& header, Time now);
  void note_advertised(Rank peer, std::uint32_t advertised);
  TagState* state_of(const tarpon_header& header);
  void take_told_forgotten(TagState& tag_state, const tarpon_header& header, Time now);
  bool take_forgotten(TagState& tag_state, Rank from, Time now);

  const Parts parts_;
  const std::size_t max_entries_;
  std::vector<AgreementPacket> agreements_;
};

}  // namespace tarpon
