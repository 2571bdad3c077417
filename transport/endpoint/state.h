// The parts of an Endpoint, and how they are connected.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "transport/endpoint.h"
#include "transport/endpoint/control_writer.h"
#include "transport/endpoint/heartbeats.h"
#include "transport/endpoint/open_operations.h"
#include "transport/endpoint/passed_peers.h"
#include "transport/endpoint/router.h"
#include "transport/operation/announcer.h"
#include "transport/operation/sender.h"
#include "transport/operation/stage_bounds.h"
#include "transport/tags/early_operations.h"
#include "transport/tags/past_operations.h"

namespace tarpon {

struct Endpoint::State {
  State(const EndpointOptions& options, const PortCapabilities& port);

  /// The state of an open operation; nullptr: no such operation is open.
  Operation* find(OperationHandle handle) const {
    OpenOperation* const operation = operations.find(handle);
    return operation == nullptr ? nullptr : &operation->state();
  }
  /// Whether `peer` is another rank of the job, and not dead.
  bool is_live_peer(Rank peer) const {
    return peer < options.world_size && peer != options.rank && !participants.is_dead(peer);
  }
  /// Takes the number for a prepared operation, and opens it. A failure from here on would leave
  /// this rank one number ahead of its peers: it ends the process.
  void begin(OpenOperation& operation, const OperationSpec& spec, Time now) noexcept;
  /// Ends an operation. `ranks`: those of which nothing has come; with `abort_reason`, those to
  /// blame.
  void end(OpenOperation& operation, std::unique_ptr<Retained> retained, std::uint64_t ranks,
           std::optional<std::uint32_t> abort_reason = std::nullopt);

  /// Entries of 8 bytes, ranges of a REPAIR or tags of a HEARTBEAT, that one packet carries.
  std::size_t max_entries() const;

  const EndpointOptions options;
  const std::uint32_t max_payload;
  Time latest{};  // the time of the call in hand
  EndpointCounters counters;
  Alarm alarm;
  PeerClocks clocks;
  Participants participants;
  TagHistory tags;
  ControlQueue control;
  Journal journal;
  EarlyOperations early;
  PastOperations past;
  OpenOperations operations;
  PassedPeers passed;
  Granter granter;
  PacketWriter writer;
  Sender sender;
  Receiver receiver;
  LatenessCheck lateness;
  StageBounds bounds;
  Announcer announcer;
  const OperationParts parts;
  Heartbeats heartbeats;
  ControlWriter control_writer;
  Router router;
};

}  // namespace tarpon
