#include "collectives/rendezvous/multicast_probe.h"

#include <fmt/format.h>

#include "transport/clock.h"
#include "transport/probe_packet.h"
#include "transport/rank_mask.h"
#include "xdp/base/printable.h"

namespace tarpon::rendezvous {
namespace {

constexpr std::uint32_t kBeacons = 4;  // a network loses packets
constexpr Duration kBeaconInterval = 2ms;
constexpr Duration kSettleBeacons = 20ms;
constexpr std::size_t kLongestReason = 200;  // bytes, of another rank

/// Collects the ranks whose beacons this rank hears.
class Beacons {
 public:
  Beacons(Port& port, const ControlChannel& control, std::uint32_t slot_bytes)
      : port_(port), control_(control), slot_bytes_(slot_bytes) {}

  void send() {
    const ProbePacket beacon{TARPON_PROBE, TARPON_PROBE_PATH, TARPON_PROBE_TO_ALL, slot_bytes_};
    for (std::uint32_t i = 0; i < kBeacons; ++i) {
      send_probe(port_, beacon, control_.job(), control_.rank(), kAllRanks);
      hear_until(monotonic_now() + kBeaconInterval, false);
    }
  }

  /// Listens until `end`, or until all are heard.
  void hear_until(Time end, bool or_all) {
    for (Time now = monotonic_now(); now < end; now = monotonic_now()) {
      receive(now);
      if (or_all && missing() == 0) return;
      port_.wait(now, end);
    }
    receive(monotonic_now());
  }

  /// The ranks that were not heard. Bit r: rank r.
  std::uint64_t missing() const {
    const std::uint32_t world = control_.world_size();
    const std::uint64_t all = first_ranks(world);
    return all & ~heard_ & ~bit(control_.rank());
  }

 private:
  void receive(Time now) {
    for (const RxPacket& packet : port_.receive(now)) {
      const auto probe = read_probe(packet, control_.job());
      const bool beacon = probe && probe->type == TARPON_PROBE &&
                          probe->kind == TARPON_PROBE_PATH &&
                          probe->number == TARPON_PROBE_TO_ALL && probe->bytes == slot_bytes_;
      if (beacon && packet.source < control_.world_size()) heard_ |= bit(packet.source);
    }
  }

  Port& port_;
  const ControlChannel& control_;
  const std::uint32_t slot_bytes_;
  std::uint64_t heard_ = 0;
};

/// The first reason that a rank gives; empty if none gives one.
Result<std::string> share_reason(ControlChannel& control, const std::string& mine, Time deadline) {
  auto reasons = control.all_gather(mine, deadline);
  if (!reasons) return fail(reasons.error());
  for (std::size_t rank = 0; rank < reasons->size(); ++rank) {
    const std::string reason = printable((*reasons)[rank], kLongestReason);
    if (!reason.empty()) return fmt::format("rank {} {}", rank, reason);
  }
  return std::string();
}

std::string silence_of(std::uint64_t missing) {
  const std::vector<Rank> ranks = ranks_of(missing);
  if (ranks.empty()) return "";
  const std::string more = ranks.size() > 1 ? fmt::format(" and of {} more", ranks.size() - 1) : "";
  return fmt::format("hears no multicast of rank {}{}: the network between them drops it",
                     ranks.front(), more);
}

}  // namespace

Result<std::string> probe_multicast(Port& port, ControlChannel& control, std::uint32_t slot_bytes,
                                    const std::string& refusal, Time deadline) {
  auto refused = share_reason(control, refusal, deadline);
  if (!refused || !refused->empty()) return refused;
  Beacons beacons(port, control, slot_bytes);
  beacons.send();
  auto all_have_sent = control.all_gather("", deadline);
  if (!all_have_sent) return fail(all_have_sent.error());
  beacons.hear_until(monotonic_now() + kSettleBeacons, true);
  return share_reason(control, silence_of(beacons.missing()), deadline);
}

}  // namespace tarpon::rendezvous
