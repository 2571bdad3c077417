// Settings of an endpoint.
#pragma once

#include <cstdint>
#include <span>

#include "bpf/wire.h"
#include "transport/recorder.h"
#include "transport/time.h"
#include "transport/traffic_rules.h"

namespace tarpon {

/// Flows that a trial compares with one (EndpointOptions::flows).
inline constexpr std::uint32_t kTrialFlows = 4;

struct EndpointOptions {
  Rank rank = 0;
  std::uint16_t world_size = 1;
  std::uint32_t job = 0;
  std::uint16_t communicator = 0;
  tarpon_integrity integrity = TARPON_INTEGRITY_UDP;
  /// Operations per tag that may be open, or have packets parked, at once (W).
  std::uint32_t window = 8;
  /// Slots that a sender may have in flight to a peer that has not announced the operation.
  std::uint32_t initial_credit = 32;
  /// Operations whose early packets are parked at once, over all tags.
  std::uint32_t early_operations = 64;
  /// Memory of retained results, bookkeeping included; one result is always retained. At most
  /// 65,536 results.
  std::uint64_t retain_bytes = 64ull << 20;
  /// Tags whose next numbers are remembered once every peer has passed them, the oldest out first.
  std::uint32_t remembered_tags = 65'536;
  /// Tags that are never forgotten; outlive the endpoint.
  std::span<const std::uint32_t> kept_tags = {};
  /// Whether peers that operations lack are asked for a sign of life, and count as silent without
  /// one. Off where no thread drives the endpoint between calls: then peers would not answer.
  bool detects_silence = true;
  /// A peer that an operation lacks is silent after so long without a packet.
  Duration silent_after = 300ms;
  /// Number of the port's flows that a message goes over, a power of two; 0: by trial, and only for
  /// messages of 1 MiB and more.
  std::uint32_t flows = 0;
  /// Whether stages in which all peers get the same are sent by multicast. REQUIRES: the port
  /// multicasts, and all ranks of this endpoint's communicator hear it.
  bool multicast = false;
  InflowRule inflow = InflowRule::window;
  /// Ranks of the job, this one included, that receive over the same link.
  std::uint32_t siblings = 1;
  SendRule sending = SendRule::credit;
  /// Cap on the DATA that this rank sends, headers included; 0: none.
  double max_bytes_per_second = 0;
  /// Delay before the slots of a gap are asked for; a silent message is asked for after
  /// `quiet_delay`. Both double from request to request, up to `repair_delay_max`. The defaults
  /// allow for scheduling, which alone delays packets by milliseconds with 8 ranks on 2 cores. In
  /// bounded operations the three are at most a 64th, a 32nd (for a silent message an eighth) and
  /// an eighth of the bound.
  Duration gap_delay = 2ms;
  Duration quiet_delay = 10ms;
  Duration repair_delay_max = 100ms;
  Recorder* recorder = nullptr;  // outlives the endpoint; without it nothing is recorded
};

}  // namespace tarpon
