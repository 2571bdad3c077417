// The answer of the status socket.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "collectives/allreduce.h"
#include "collectives/flight/flight.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

double ms(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

std::string list_of(std::uint64_t mask) {
  return fmt::format("[{}]", fmt::join(ranks_of(mask), ","));
}

std::string_view stage_name(const OperationSnapshot& operation) {
  if (operation.stage >= operation.stages) return "finishing";
  return operation.stage == 0 ? "scatter" : "gather";
}

std::string text_of(const OperationSnapshot& operation, Time now) {
  std::string text = fmt::format(
      R"({{"tag":{},"operation":{},"stage":"{}","age_ms":{:.3f},"waiting_for":{},"silent":{})",
      operation.tag, operation.operation, stage_name(operation), ms(now - operation.opened),
      list_of(operation.waiting), list_of(operation.silent));
  if (operation.deadline != kNever) {
    fmt::format_to(std::back_inserter(text), R"(,"deadline_in_ms":{:.3f})",
                   ms(operation.deadline - now));
  }
  return text + "}";
}

std::string text_of(const EndpointCounters& counters) {
  std::string text = fmt::format(
      R"({{"packets_in":{},"packets_out":{},"data_in":{},"data_out":{},"control_in":{},)"
      R"("credits_out":{},"repaired_slots":{},"repairs_requested":{},"parked":{},"dropped":{{)",
      counters.packets_in, counters.packets_out, counters.data_in, counters.data_out,
      counters.control_in, counters.credits_out, counters.repaired_slots,
      counters.repairs_requested, counters.parked);
  const char* comma = "";
  for (std::size_t i = 0; i < counters.dropped.size(); ++i) {
    if (counters.dropped[i] == 0) continue;
    fmt::format_to(std::back_inserter(text), R"({}"{}":{})", comma,
                   drop_reason_name(static_cast<DropReason>(i)), counters.dropped[i]);
    comma = ",";
  }
  return text + "}}";
}

std::string peers_of(const FlightIdentity& identity, const EndpointSnapshot& endpoint, Time now) {
  std::string text = "[";
  for (Rank peer = 0; peer < identity.world_size; ++peer) {
    if (peer == identity.rank) continue;
    const Time heard = endpoint.last_heard[peer];
    fmt::format_to(std::back_inserter(text), R"({}{{"rank":{},"last_heard_ms":{}}})",
                   text.size() > 1 ? "," : "", peer,
                   heard == Time{} ? "null" : fmt::format("{:.3f}", ms(now - heard)));
  }
  return text + "]";
}

/// Describes the end of the newest call that has ended.
std::string last_end(const Recorder& recorder) {
  const std::uint64_t end = recorder.written();
  for (std::uint64_t number = end; number > recorder.first(); --number) {
    RecordWords words;
    if (!recorder.read(number - 1, words)) continue;
    const Record record = unpack(words, end);
    if (record.kind != RecordKind::ended) continue;
    return fmt::format(R"({{"tag":{},"operation":{},"status":"{}","named":{}}})", record.tag,
                       record.operation, name(static_cast<Status>(record.detail)),
                       list_of(record.mask()));
  }
  return "null";
}

}  // namespace

std::string status_line(const FlightIdentity& identity, const FlightSnapshot& snapshot,
                        const Recorder& recorder, Time now) {
  const EndpointSnapshot& endpoint = snapshot.endpoint;
  std::string operations;
  const std::uint32_t shown = std::min(endpoint.open, EndpointSnapshot::kOperations);
  for (std::uint32_t i = 0; i < shown; ++i) {
    operations += (i > 0 ? "," : "") + text_of(endpoint.operations[i], now);
  }
  return fmt::format(
      R"({{"job":"{:08x}","rank":{},"world_size":{},"pid":{},"snapshot_age_ms":{:.3f},)"
      R"("outstanding":{},"open":{},"operations":[{}],"last_end":{},"peers":{},"counters":{},)"
      R"("events":{}}})"
      "\n",
      identity.public_id, identity.rank, identity.world_size, ::getpid(), ms(now - snapshot.taken),
      snapshot.outstanding, endpoint.open, operations, last_end(recorder),
      peers_of(identity, endpoint, now), text_of(endpoint.counters), recorder.written());
}

}  // namespace tarpon
