#include "collectives/engine/flight_events.h"

#include <algorithm>
#include <limits>

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

/// Converts to microseconds, limited to 32 bits: 71 minutes.
std::uint32_t microseconds(Duration duration) {
  constexpr Duration::rep kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::clamp<Duration::rep>(duration / 1us, 0, kMost));
}

/// Writes RecordKind::lacked for each peer whose data is missing.
void record_lacked(Recorder& recorder, const Report& report, const Record& ended) {
  for (std::size_t peer = 0; peer < report.peers.size(); ++peer) {
    const PeerReport& of = report.peers[peer];
    Record record = ended;
    record.kind = RecordKind::lacked;
    record.peer = static_cast<std::uint8_t>(peer);
    record.detail = 0;
    for (std::size_t stage = 0; stage < of.bytes_expected.size(); ++stage) {
      if (of.bytes_received[stage] < of.bytes_expected[stage]) record.stage |= 1u << stage;
    }
    const std::uint64_t expected = of.bytes_expected[0] + of.bytes_expected[1];
    if (record.stage == 0) continue;
    record.detail = static_cast<std::uint8_t>(100 * (of.bytes_received[0] + of.bytes_received[1]) /
                                              std::max<std::uint64_t>(1, expected));
    record.value = of.last_heard ? microseconds(*of.last_heard) : ~0u;
    recorder.write(record);
  }
}

}  // namespace

void record_submitted(Recorder* recorder, const PendingCall& call, Time submitted) {
  if (recorder == nullptr) return;
  const AllreduceArguments& arguments = call.arguments;
  const unsigned algorithm =
      static_cast<unsigned>(call.report.algorithm) - static_cast<unsigned>(Algorithm::tar);
  Record record{.time = submitted,
                .kind = RecordKind::submitted,
                .stage = static_cast<std::uint8_t>(static_cast<unsigned>(arguments.type) << 4 |
                                                   static_cast<unsigned>(arguments.function)),
                .detail = static_cast<std::uint8_t>(static_cast<unsigned>(call.report.mode) << 4 |
                                                    algorithm << 1),
                .tag = call.report.tag,
                .operation = call.report.operation};
  record.set_mask(arguments.count);
  recorder->write(record);
}

OperationSignature submitted_signature(const Record& record) {
  OperationSignature signature;
  signature.type = static_cast<DataType>(record.stage >> 4);
  signature.function = static_cast<ReduceOp>(record.stage & 15);
  signature.mode = static_cast<Mode>(record.detail >> 4);
  signature.algorithm =
      static_cast<Algorithm>(static_cast<unsigned>(Algorithm::tar) + (record.detail >> 1 & 7u));
  signature.count = record.mask();
  return signature;
}

void record_ended(Recorder* recorder, const Report& report, Time now) {
  if (recorder == nullptr) return;
  Record record{.time = now,
                .kind = RecordKind::ended,
                .detail = static_cast<std::uint8_t>(report.status),
                .tag = report.tag,
                .operation = report.operation};
  if (report.nonfinite) {
    Record found = record;
    found.kind = RecordKind::nonfinite;
    found.set_mask(mask_of(report.nonfinite_ranks));
    recorder->write(found);
  }
  if (report.status != Status::complete) record_lacked(*recorder, report, record);
  record.set_mask(mask_of(report.late_ranks) | mask_of(report.blamed));
  recorder->write(record);
  if (report.status != Status::complete) recorder->note_incident();
}

void record_pause(Recorder* recorder, Time last, Time due, Time now) {
  if (recorder == nullptr || now - due < kShortestPause) return;
  recorder->write({.time = now,
                   .kind = RecordKind::pause,
                   .value = microseconds(now - last),
                   .extra = microseconds(now - std::max(last, due))});
}

void record_silence(Recorder* recorder, Rank peer, bool silent, Time now) {
  if (recorder == nullptr) return;
  recorder->write({.time = now,
                   .kind = RecordKind::silence,
                   .peer = static_cast<std::uint8_t>(peer),
                   .value = silent ? 1u : 0u});
}

void record_standing(Recorder* recorder, Rank rank, Standing standing, Time now) {
  if (recorder == nullptr) return;
  recorder->write({.time = now,
                   .kind = RecordKind::standing,
                   .peer = static_cast<std::uint8_t>(rank),
                   .detail = static_cast<std::uint8_t>(standing)});
}

void record_port_failed(Recorder* recorder, Time now) {
  if (recorder != nullptr) recorder->write({.time = now, .kind = RecordKind::port_failed});
}

void SendRefusals::look(Recorder& recorder, const PortStatistics& counts, Time now) {
  if (counts.tx_refused == noted_ || now < next_) return;
  const std::uint64_t more = counts.tx_refused - noted_;
  recorder.write({.time = now,
                  .kind = RecordKind::send_refused,
                  .detail = static_cast<std::uint8_t>(counts.send_error),
                  .value = static_cast<std::uint32_t>(std::min<std::uint64_t>(more, UINT32_MAX))});
  noted_ = counts.tx_refused;
  next_ = now + kInterval;
}

}  // namespace tarpon
