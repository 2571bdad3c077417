#include "tools/flight/flight_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "collectives/allreduce.h"
#include "collectives/engine/flight_events.h"
#include "collectives/reserved_tags.h"
#include "tools/cli/wrapped_text.h"
#include "tools/job/rank_names.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

// Without --all the table shows this many events of the operation: its beginning and its end.
constexpr std::size_t kShownEvents = 40;

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

std::string naming(const Record& record) {
  const auto ranks = ranks_of(record.mask());
  return ranks.empty() ? "" : ", naming " + rank_names(ranks);
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
  if (rank.clock.clock == FlightClock::estimated) {
    clock = fmt::format(", clock moved by {:.3f} ms (+- {:.3f})", to_ms(rank.clock.shift),
                        to_ms(rank.clock.uncertainty));
  } else if (rank.clock.clock == FlightClock::unrelated) {
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
          {"clock", clock_name(rank.clock.clock)},
          {"clock_shift_ms", to_ms(rank.clock.shift)},
          {"clock_uncertainty_ms", to_ms(rank.clock.uncertainty)}};
}

}  // namespace

std::string short_text(const OperationKey& key) {
  const std::string reserved = reserved_name(key.first);
  return reserved.empty() ? fmt::format("{}:{}", key.first, key.second)
                          : fmt::format("{} {}", reserved, key.second);
}

std::string event_detail(const Record& record) {
  switch (record.kind) {
    case RecordKind::submitted: {
      const OperationSignature call = submitted_signature(record);
      const bool tar = call.algorithm == Algorithm::tar;
      return fmt::format("{} {} of {}, {}{}{}", call.count, name(call.type), name(call.function),
                         name(call.mode), tar ? "" : ", ", tar ? "" : name(call.algorithm));
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
      return fmt::format("rank {}, {}{}", record.peer, abort_reason(record.detail).text,
                         naming(record));
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
    case RecordKind::nonfinite:
      return fmt::format("the result is NaN{}", naming(record));
    case RecordKind::lacked:
      return fmt::format("rank {}: {} % here, {}", record.peer, record.detail,
                         record.value == ~0u
                             ? "never heard"
                             : fmt::format("last heard {:.3f} ms before", record.value / 1e3));
    case RecordKind::pause:
      return fmt::format("did not run for {:.3f} ms, {:.3f} ms longer than it meant to",
                         record.value / 1e3, record.extra / 1e3);
    case RecordKind::silence:
      return fmt::format("rank {} {}", record.peer,
                         record.value != 0 ? "no longer answers" : "is heard again");
    case RecordKind::standing:
      return fmt::format("rank {} is {}", record.peer, name(static_cast<Standing>(record.detail)));
    case RecordKind::send_refused:
      return fmt::format("{} packets: {}", record.value, ::strerror(record.detail));
    case RecordKind::none:
    case RecordKind::opened:
    case RecordKind::deadline:
    case RecordKind::port_failed:
    case RecordKind::count:
      break;
  }
  return "";
}

namespace {

/// The events to show: all, or those of the verdict's operation and the rank-wide ones during it.
std::vector<Placed> shown_events(const FlightJob& job, const FlightVerdict& verdict, bool all) {
  std::vector<Placed> events = placed_events(job);
  if (all || events.empty()) return events;
  const auto newest = std::find_if(events.rbegin(), events.rend(), [](const Placed& event) {
    return !is_rank_wide(event.record->kind);
  });
  if (newest == events.rend()) return events;
  const OperationKey shown =
      verdict.operation.value_or(OperationKey{newest->record->tag, newest->record->operation});
  const auto of_it = [&shown](const Placed& event) {
    return !is_rank_wide(event.record->kind) &&
           OperationKey{event.record->tag, event.record->operation} == shown;
  };
  const auto first = std::find_if(events.begin(), events.end(), of_it);
  const auto last = std::find_if(events.rbegin(), events.rend(), of_it);
  const Time from = first == events.end() ? kNever : first->time;
  const Time to = last == events.rend() ? kNever : last->time;
  std::erase_if(events, [&](const Placed& event) {
    const bool meanwhile =
        is_rank_wide(event.record->kind) && event.time >= from && event.time <= to;
    return !of_it(event) && !meanwhile;
  });
  return events;
}

void append_event(std::string& text, const Placed& event, Time zero) {
  const Record& record = *event.record;
  const std::string detail = event_detail(record);
  const std::string operation =
      is_rank_wide(record.kind) ? "-" : short_text({record.tag, record.operation});
  fmt::format_to(std::back_inserter(text), "{:>12.3f} {:>4}  {:<14} {}\n", to_ms(event.time - zero),
                 event.rank, operation,
                 detail.empty() ? std::string(record_kind_name(record.kind))
                                : fmt::format("{:<13} {}", record_kind_name(record.kind), detail));
}

std::string events_text(const FlightJob& job, const FlightVerdict& verdict, bool all) {
  const std::vector<Placed> events = shown_events(job, verdict, all);
  if (events.empty()) return "";
  const Time zero = verdict.operation ? verdict.zero : events.front().time;
  std::string text = fmt::format("{:>12} {:>4}  {:<14} {}\n", "ms", "rank", "operation", "event");
  const std::size_t left_out =
      all || events.size() <= kShownEvents ? 0 : events.size() - kShownEvents;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (left_out > 0 && i == kShownEvents / 2) {
      text += fmt::format("{:>12} {:>4}  {} more events: see --all\n", "...", "", left_out);
      i += left_out;
    }
    append_event(text, events[i], zero);
  }
  return text;
}

/// What the verdict rests on, and what else went wrong.
std::string evidence_text(const FlightVerdict& verdict) {
  std::string text;
  if (!verdict.evidence.empty()) {
    text += "# evidence, in ms since the first rank made the call:\n";
  }
  constexpr std::size_t kShownEvidence = 12;
  const std::string indent(16, ' ');
  for (std::size_t i = 0; i < std::min(verdict.evidence.size(), kShownEvidence); ++i) {
    const FlightEvidence& one = verdict.evidence[i];
    const std::string time =
        one.at ? fmt::format("{:.3f}", to_ms(*one.at - verdict.zero)) : std::string("-");
    text += wrapped(fmt::format("{:>12}  rank {} {}", time, one.rank, one.text), indent) + "\n";
  }
  if (verdict.evidence.size() > kShownEvidence) {
    text += fmt::format("{:>12}  {} more: see --json\n", "...",
                        verdict.evidence.size() - kShownEvidence);
  }
  for (const std::string& other : verdict.also) text += wrapped("# also: " + other) + "\n";
  return text;
}

}  // namespace

namespace {

std::string job_text(const FlightJob& job) {
  return fmt::format("# job {:08x}, {}\n", job.job, rank_count(job.ranks.size()));
}

std::string others_text(const FlightJob& job) {
  if (job.others == 0) return "";
  return fmt::format("# {} recordings of other jobs left out\n", job.others);
}

std::string verdict_lines(const FlightVerdict& verdict) {
  std::string text = wrapped("# verdict: " + verdict.line) + "\n";
  if (!verdict.missing.empty()) text += wrapped("# missing: " + verdict.missing) + "\n";
  if (verdict.operation) text += wrapped("# next: " + verdict.next) + "\n";
  return text;
}

}  // namespace

std::string verdict_text(const FlightJob& job, const FlightVerdict& verdict) {
  return job_text(job) + others_text(job) + verdict_lines(verdict);
}

std::string flight_text(const FlightJob& job, const FlightVerdict& verdict, bool all) {
  std::string text = job_text(job);
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    text += rank_line(job.ranks[rank], rank);
  }
  return text + others_text(job) + events_text(job, verdict, all) + "\n" + evidence_text(verdict) +
         verdict_lines(verdict);
}

namespace {

nlohmann::json blames_json(const std::vector<FlightBlame>& blames) {
  nlohmann::json json = nlohmann::json::array();
  for (const FlightBlame& one : blames) json.push_back({{"rank", one.rank}, {"why", one.why}});
  return json;
}

nlohmann::json verdict_json(const FlightVerdict& verdict) {
  nlohmann::json json{{"line", verdict.line},
                      {"cause", row_of(verdict.cause).keyword},
                      {"guilty", blames_json(verdict.guilty)},
                      {"candidates", blames_json(verdict.candidates)},
                      {"links", nlohmann::json::array()},
                      {"evidence", nlohmann::json::array()},
                      {"also", verdict.also},
                      {"missing", verdict.missing},
                      {"next", verdict.next}};
  if (verdict.operation) {
    json["tag"] = verdict.operation->first;
    json["operation"] = verdict.operation->second;
  }
  for (const FlightLink& link : verdict.links) {
    json["links"].push_back({{"from", link.from}, {"to", link.to}});
  }
  for (const FlightEvidence& one : verdict.evidence) {
    nlohmann::json shown{{"rank", one.rank}, {"text", one.text}};
    if (one.at) shown["ms"] = to_ms(*one.at - verdict.zero);
    json["evidence"].push_back(std::move(shown));
  }
  return json;
}

}  // namespace

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
  return {{"job", fmt::format("{:08x}", job.job)},
          {"world_size", job.ranks.size()},
          {"ranks", std::move(ranks)},
          {"verdict", verdict_json(verdict)},
          {"events", std::move(events)}};
}

}  // namespace tarpon
