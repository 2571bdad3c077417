#include "tools/flight/flight_clock.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

namespace tarpon {
namespace {

// Crystals stay below a tenth of it; beyond it the pairs say nothing about drift.
constexpr double kMaxDrift = 1e-3;

bool same_clock(const FlightHeader& a, const FlightHeader& b) {
  return a.boot_id == b.boot_id && a.boot_id[0] != '\0' && a.time_namespace == b.time_namespace;
}

/// A packet, or the first of several alike: kind of its arrival, tag, operation, stage.
using PacketKey = std::tuple<RecordKind, std::uint32_t, std::uint32_t, std::uint8_t>;

/// The kind under which the receiver records what the sender records as `sent`.
RecordKind arrival_of(RecordKind sent) {
  switch (sent) {
    case RecordKind::opened:
      return RecordKind::first_packet;
    case RecordKind::ready_out:
      return RecordKind::ready_in;
    case RecordKind::repair_out:
      return RecordKind::repair_in;
    case RecordKind::closed_out:
      return RecordKind::closed_in;
    case RecordKind::abort_out:
      return RecordKind::abort_in;
    default:
      return RecordKind::none;
  }
}

struct Way {
  Time sent;      // by the sender's clock
  Time received;  // by the receiver's
  Duration length() const { return received - sent; }
};

/// The packets that went from one rank to the other. Each arrival is compared with the first packet
/// of its kind, so that it is never the earlier one.
std::vector<Way> ways(const FlightDump& from, const FlightDump& to) {
  std::map<PacketKey, Time> sent;
  for (const Record& record : from.records) {
    const RecordKind arrival = arrival_of(record.kind);
    const bool to_peer = record.peer == to.header.rank || record.kind == RecordKind::opened;
    if (arrival == RecordKind::none || !to_peer) continue;
    const PacketKey key{arrival, record.tag, record.operation, record.stage};
    const auto [known, added] = sent.emplace(key, record.time);
    if (!added) known->second = std::min(known->second, record.time);
  }
  std::vector<Way> found;
  for (const Record& record : to.records) {
    if (record.peer != from.header.rank) continue;
    const auto start = sent.find({record.kind, record.tag, record.operation, record.stage});
    if (start != sent.end()) found.push_back({start->second, record.time});
  }
  return found;
}

/// The shift is half of the difference of the shortest ways, as in NTP, and the uncertainty half of
/// their sum. Below 0 no shift fits both ways: a clock drifts or has jumped.
struct Estimate {
  Duration shift{};
  Duration uncertainty{};
  Time at{};  // of the rank's own clock
};

/// Estimates from the packets that this rank sent or received in [from, to) of its own clock.
std::optional<Estimate> estimate(const std::vector<Way>& there, const std::vector<Way>& back,
                                 Time from, Time to) {
  const Way* shortest_there = nullptr;
  const Way* shortest_back = nullptr;
  for (const Way& way : there) {
    if (way.received < from || way.received >= to) continue;
    if (shortest_there == nullptr || way.length() < shortest_there->length()) shortest_there = &way;
  }
  for (const Way& way : back) {
    if (way.sent < from || way.sent >= to) continue;
    if (shortest_back == nullptr || way.length() < shortest_back->length()) shortest_back = &way;
  }
  if (shortest_there == nullptr || shortest_back == nullptr) return std::nullopt;
  const Duration sum = shortest_there->length() + shortest_back->length();
  const Duration distance = shortest_back->sent - shortest_there->received;
  return Estimate{(shortest_back->length() - shortest_there->length()) / 2, sum / 2,
                  shortest_there->received + distance / 2};
}

/// Aligns `dump` with `reference`, which is on the axis already.
std::optional<ClockShift> align(const FlightDump& reference, const ClockShift& axis,
                                const FlightDump& dump) {
  auto there = ways(reference, dump), back = ways(dump, reference);
  for (Way& way : there) way.sent = axis.to_axis(way.sent);
  for (Way& way : back) way.received = axis.to_axis(way.received);
  const auto whole = estimate(there, back, Time::min(), kNever);
  if (!whole) return std::nullopt;
  const std::optional<ClockShift> constant =
      whole->uncertainty < Duration{}
          ? std::nullopt
          : std::optional(ClockShift{FlightClock::estimated, whole->shift,
                                     whole->uncertainty + axis.uncertainty, whole->at});
  const auto [first, last] = std::minmax_element(
      back.begin(), back.end(), [](const Way& a, const Way& b) { return a.sent < b.sent; });
  // Both ends of the recordings, in parts so short that a drifting clock keeps its shift in them.
  std::optional<Estimate> early, late;
  const Duration length = last->sent - first->sent;
  constexpr int kShortestPart = 256;
  for (int parts = 2; parts <= kShortestPart; parts *= 2) {
    early = estimate(there, back, Time::min(), first->sent + length / parts);
    late = estimate(there, back, last->sent - length / parts, kNever);
    if (!early || !late || late->at <= early->at) return constant;
    if (std::min(early->uncertainty, late->uncertainty) >= Duration{}) break;
  }
  const Duration least = std::min(early->uncertainty, late->uncertainty);
  // A drift is visible if the shift has changed by more than its uncertainty.
  const Duration change = late->shift - early->shift;
  if (least < Duration{} || std::chrono::abs(change) <= early->uncertainty + late->uncertainty) {
    return constant;
  }
  const double drift =
      static_cast<double>(change.count()) / static_cast<double>((late->at - early->at).count());
  if (std::abs(drift) > kMaxDrift) return constant;
  const Duration most = std::max(early->uncertainty, late->uncertainty);
  return ClockShift{FlightClock::estimated, late->shift, most + axis.uncertainty, late->at, drift};
}

}  // namespace

Time ClockShift::to_axis(Time local) const {
  if (local == Time::min() || local == kNever) return local;
  const double away = static_cast<double>((local - at).count()) * drift;
  return local + shift + Duration(static_cast<Duration::rep>(std::llround(away)));
}

std::vector<ClockShift> align_clocks(const std::vector<const FlightDump*>& dumps) {
  std::vector<ClockShift> shifts(dumps.size());
  std::vector<bool> aligned(dumps.size());
  if (dumps.empty()) return shifts;
  // Ranks that exchanged no packets are aligned through another rank. Ranks of one host have one
  // shift.
  std::vector<std::size_t> reached;
  const auto reach = [&](std::size_t rank, const ClockShift& shift) {
    for (std::size_t other = 0; other < dumps.size(); ++other) {
      const bool moves = other == rank || same_clock(dumps[rank]->header, dumps[other]->header);
      if (aligned[other] || !moves) continue;
      shifts[other] = shift;
      aligned[other] = true;
      reached.push_back(other);
    }
  };
  reach(0, {});
  for (std::size_t i = 0; i < reached.size(); ++i) {
    for (std::size_t rank = 0; rank < dumps.size(); ++rank) {
      if (aligned[rank]) continue;
      if (const auto shift = align(*dumps[reached[i]], shifts[reached[i]], *dumps[rank])) {
        reach(rank, *shift);
      }
    }
  }
  for (std::size_t rank = 0; rank < dumps.size(); ++rank) {
    if (aligned[rank]) continue;
    shifts[rank].clock = FlightClock::unrelated;
    if (dumps[rank]->records.empty() || dumps[0]->records.empty()) continue;
    shifts[rank].shift = dumps[0]->records.front().time - dumps[rank]->records.front().time;
  }
  return shifts;
}

}  // namespace tarpon
