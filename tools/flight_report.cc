#include "tools/flight_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "collectives/allreduce.h"
#include "collectives/flight_events.h"

namespace tarpon {
namespace {

double ms(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

std::string_view closing_name(std::uint8_t closing) {
  switch (static_cast<Closing>(closing)) {
    case Closing::complete:
      return "complete";
    case Closing::given_up:
      return "given up";
    case Closing::early:
      return "early";
    case Closing::bound:
      return "by its bound";
  }
  return "?";
}

std::vector<unsigned> ranks_of(std::uint64_t mask) {
  std::vector<unsigned> ranks;
  for (unsigned rank = 0; rank < 64; ++rank) {
    if ((mask >> rank & 1) != 0) ranks.push_back(rank);
  }
  return ranks;
}

std::string naming(const Record& record) {
  const auto ranks = ranks_of(record.mask());
  return ranks.empty() ? "" : fmt::format(", naming rank {}", fmt::join(ranks, ", "));
}

std::string why_dumped(const FlightHeader& header) {
  switch (header.reason) {
    case DumpReason::status:
      return "after a status other than complete";
    case DumpReason::request:
      return "on request";
    case DumpReason::fatal:
      return fmt::format("on signal {} ({})", header.signal,
                         ::strsignal(static_cast<int>(header.signal)));
  }
  return "?";
}

std::string_view clock_name(FlightClock clock) {
  switch (clock) {
    case FlightClock::shared:
      return "shared";
    case FlightClock::estimated:
      return "estimated";
    case FlightClock::unrelated:
      return "unrelated";
  }
  return "?";
}

/// One event on the common time line.
struct Placed {
  Time time;
  Rank rank;
  const Record* record;
};

std::vector<Placed> placed_events(const FlightJob& job) {
  std::vector<Placed> events;
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const FlightRank& of = job.ranks[rank];
    if (!of.dump) continue;
    for (const Record& record : of.dump->records) {
      events.push_back({of.at(record), static_cast<Rank>(rank), &record});
    }
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const Placed& a, const Placed& b) { return a.time < b.time; });
  return events;
}

std::string rank_line(const FlightRank& rank, std::size_t number) {
  if (!rank.dump) return fmt::format("# rank {:<3} no recording\n", number);
  const FlightHeader& header = rank.dump->header;
  std::string clock;
  if (rank.clock == FlightClock::estimated) {
    clock = fmt::format(", clock moved by {:.3f} ms (estimated)", ms(rank.shift));
  } else if (rank.clock == FlightClock::unrelated) {
    clock = ", times are its own: no packets both ways to compare clocks by";
  }
  return fmt::format("# rank {:<3} process {} on {}, {} of {} events, recorded {}{}\n", number,
                     header.pid, header.host.data(), rank.dump->records.size(), header.written,
                     why_dumped(header), clock);
}

nlohmann::json rank_json(const FlightRank& rank, std::size_t number) {
  if (!rank.dump) return {{"rank", number}, {"recorded", false}};
  const FlightHeader& header = rank.dump->header;
  return {{"rank", number},
          {"recorded", true},
          {"pid", header.pid},
          {"host", header.host.data()},
          {"reason", why_dumped(header)},
          {"signal", header.signal},
          {"events", header.written},
          {"clock", clock_name(rank.clock)},
          {"clock_shift_ms", ms(rank.shift)}};
}

}  // namespace

std::string short_text(const OperationKey& key) {
  return key.first == kBarrierTag ? fmt::format("barrier {}", key.second)
                                  : fmt::format("{}:{}", key.first, key.second);
}

std::string event_detail(const Record& record) {
  switch (record.kind) {
    case RecordKind::submitted: {
      const OperationSignature call = submitted_signature(record);
      return fmt::format("{} {} of {}, {}", call.count, name(call.type), name(call.function),
                         name(call.mode));
    }
    case RecordKind::stage_closed:
      return fmt::format("stage {} {}", record.stage + 1, closing_name(record.detail));
    case RecordKind::acknowledged:
      return fmt::format("stage {}", record.stage + 1);
    case RecordKind::repair_out:
    case RecordKind::repair_in:
      return fmt::format("rank {}, stage {}{}", record.peer, record.stage + 1,
                         record.value > 1 ? fmt::format(", {} times", record.value) : "");
    case RecordKind::credit:
      return fmt::format("rank {}, stage {}, {} slots", record.peer, record.stage + 1,
                         record.value);
    case RecordKind::closed_out:
    case RecordKind::closed_in:
      return fmt::format("rank {}{}", record.peer, naming(record));
    case RecordKind::abort_out:
    case RecordKind::abort_in:
      return fmt::format("rank {}, begun by {}", record.peer,
                         record.detail < 64 ? fmt::format("rank {}", record.detail) : "itself");
    case RecordKind::ended:
      return fmt::format("{}{}", name(static_cast<Status>(record.detail)), naming(record));
    case RecordKind::first_packet:
    case RecordKind::ready_out:
    case RecordKind::ready_in:
    case RecordKind::mismatch:
    case RecordKind::late:
      return fmt::format("rank {}", record.peer);
    case RecordKind::epoch:
      return fmt::format("rank {}, in epoch {}", record.peer, record.value);
    case RecordKind::none:
    case RecordKind::opened:
    case RecordKind::deadline:
    case RecordKind::count:
      break;
  }
  return "";
}

std::string flight_text(const FlightJob& job, const FlightVerdict& verdict, bool all) {
  std::string text = fmt::format("# job {:08x}, {} ranks\n", job.job, job.ranks.size());
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    text += rank_line(job.ranks[rank], rank);
  }
  if (job.others > 0) text += fmt::format("# {} recordings of other jobs left out\n", job.others);
  text += fmt::format("# verdict: {}\n", verdict.line);
  const std::vector<Placed> events = placed_events(job);
  if (events.empty()) return text;
  const Record& last = *events.back().record;
  const OperationKey shown = verdict.operation.value_or(OperationKey{last.tag, last.operation});
  const auto begins = std::find_if(events.begin(), events.end(), [&](const Placed& event) {
    return all || OperationKey{event.record->tag, event.record->operation} == shown;
  });
  fmt::format_to(std::back_inserter(text), "{:>12} {:>4}  {:<14} {}\n", "ms", "rank", "operation",
                 "event");
  for (const Placed& event : events) {
    const OperationKey key{event.record->tag, event.record->operation};
    if (!all && key != shown) continue;
    const std::string operation = short_text(key);
    const std::string detail = event_detail(*event.record);
    fmt::format_to(std::back_inserter(text), "{:>12.3f} {:>4}  {:<14} {}\n",
                   ms(event.time - begins->time), event.rank, operation,
                   detail.empty()
                       ? std::string(record_kind_name(event.record->kind))
                       : fmt::format("{:<13} {}", record_kind_name(event.record->kind), detail));
  }
  return text;
}

nlohmann::json flight_json(const FlightJob& job, const FlightVerdict& verdict) {
  nlohmann::json ranks = nlohmann::json::array(), events = nlohmann::json::array();
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    ranks.push_back(rank_json(job.ranks[rank], rank));
  }
  for (const Placed& event : placed_events(job)) {
    nlohmann::json json{{"time_ns", event.time.time_since_epoch().count()},
                        {"rank", event.rank},
                        {"tag", event.record->tag},
                        {"operation", event.record->operation},
                        {"kind", record_kind_name(event.record->kind)},
                        {"detail", event_detail(*event.record)}};
    if (event.record->peer != kNoPeer) json["peer"] = event.record->peer;
    events.push_back(std::move(json));
  }
  nlohmann::json found{{"line", verdict.line}, {"guilty", nlohmann::json::array()}};
  if (verdict.operation) {
    found["tag"] = verdict.operation->first;
    found["operation"] = verdict.operation->second;
  }
  for (const FlightBlame& one : verdict.guilty) {
    found["guilty"].push_back({{"rank", one.rank}, {"why", one.why}});
  }
  return {{"job", fmt::format("{:08x}", job.job)},
          {"world_size", job.ranks.size()},
          {"ranks", std::move(ranks)},
          {"verdict", std::move(found)},
          {"events", std::move(events)}};
}

}  // namespace tarpon
