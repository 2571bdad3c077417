#include "tools/flight_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace tarpon {
namespace {

// Longer than any dump: what is bigger is something else.
constexpr std::size_t kLongestFile = 1 << 20;

Result<FlightDump> read_flight(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail_system(errno, path);
  std::string bytes(kLongestFile, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return parse_flight(std::as_bytes(std::span(bytes)), path);
}

bool same_clock(const FlightHeader& a, const FlightHeader& b) {
  return a.boot_id == b.boot_id && a.boot_id[0] != '\0';
}

using Moments = std::map<OperationKey, Time>;

/// When this rank began each operation, or when it first heard of `peer` in it.
Moments moments_of(const FlightDump& dump, RecordKind kind, std::uint8_t peer) {
  Moments moments;
  for (const Record& record : dump.records) {
    if (record.kind == kind && record.peer == peer) {
      moments.emplace(OperationKey{record.tag, record.operation}, record.time);
    }
  }
  return moments;
}

/// The shortest way from a sender's beginning to the receiver's first packet, by their own clocks.
std::optional<Duration> shortest(const FlightDump& from, const FlightDump& to) {
  const Moments begun = moments_of(from, RecordKind::opened, kNoPeer);
  const Moments heard =
      moments_of(to, RecordKind::first_packet, static_cast<std::uint8_t>(from.header.rank));
  std::optional<Duration> least;
  for (const auto& [key, time] : heard) {
    const auto start = begun.find(key);
    if (start == begun.end()) continue;
    const Duration way = time - start->second;
    if (!least || way < *least) least = way;
  }
  return least;
}

/// As NTP does: what both directions have in common is the clocks' difference.
void align(const FlightDump& reference, FlightRank& rank) {
  FlightDump& dump = *rank.dump;
  if (same_clock(reference.header, dump.header)) return;
  const auto there = shortest(reference, dump);
  const auto back = shortest(dump, reference);
  if (there && back) {
    rank.clock = FlightClock::estimated;
    rank.shift = (*back - *there) / 2;
    return;
  }
  rank.clock = FlightClock::unrelated;
  if (dump.records.empty() || reference.records.empty()) return;
  rank.shift = reference.records.front().time - dump.records.front().time;
}

/// The first number of `tag` that the recording covers; nothing when it does not cover the tag.
std::optional<std::uint32_t> covered_from(const FlightDump& dump, std::uint32_t tag) {
  const bool whole = dump.header.written <= dump.records.size();
  if (whole) return 0;
  for (const Record& record : dump.records) {
    if (record.kind == RecordKind::opened && record.tag == tag) return record.operation;
  }
  return std::nullopt;
}

void note(OperationAtRank& at, const Record& record) {
  switch (record.kind) {
    case RecordKind::submitted:
      at.submitted = record;
      break;
    case RecordKind::opened:
      at.opened = record;
      break;
    case RecordKind::ended:
      at.ended = record;
      break;
    case RecordKind::stage_closed:
      if (record.stage < at.closed.size()) at.closed[record.stage] = record;
      break;
    case RecordKind::first_packet:
      if (record.peer < 64) at.heard |= 1ull << record.peer;
      break;
    case RecordKind::repair_out:
      if (record.stage < at.asked.size() && record.peer < 64) {
        at.asked[record.stage] |= 1ull << record.peer;
      }
      break;
    case RecordKind::abort_in:
    case RecordKind::abort_out:
      if (!at.abort) at.abort = record;
      break;
    default:
      break;
  }
}

void judge_presence(const FlightJob& job, const OperationKey& key,
                    std::vector<OperationAtRank>& operation) {
  const Time begin = begin_of(job, operation);
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    OperationAtRank& at = operation[rank];
    if (at.opened || at.submitted || at.ended) {
      at.presence = OperationAtRank::Presence::begun;
      continue;
    }
    const FlightRank& of = job.ranks[rank];
    if (!of.dump || begin == kNever || of.dumped() < begin) continue;
    const auto from = covered_from(*of.dump, key.first);
    if (from && *from <= key.second) at.presence = OperationAtRank::Presence::never;
  }
}

}  // namespace

Result<std::vector<FlightDump>> read_flights(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      return fail(Error::Code::invalid_argument,
                  path + ": No such file or directory; name what --flight named");
    }
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      if (entry.path().extension() == ".flight") files.push_back(entry.path().string());
    }
    if (error) return fail_system(error.value(), path);
  }
  std::sort(files.begin(), files.end());
  std::vector<FlightDump> dumps;
  for (const std::string& file : files) {
    auto dump = read_flight(file);
    if (!dump) return fail(dump.error());
    dumps.push_back(std::move(*dump));
  }
  return dumps;
}

Result<FlightJob> merge_flights(std::vector<FlightDump> dumps, std::optional<std::uint32_t> job) {
  std::sort(dumps.begin(), dumps.end(), [](const FlightDump& a, const FlightDump& b) {
    return a.header.dumped_realtime < b.header.dumped_realtime;
  });
  FlightJob result;
  if (dumps.empty())
    return fail(Error::Code::invalid_argument,
                "no flight recording there: name what --flight named");
  result.job = job.value_or(dumps.back().header.job);
  const FlightDump* reference = nullptr;
  for (FlightDump& dump : dumps) {
    if (dump.header.job != result.job) {
      ++result.others;
      continue;
    }
    result.ranks.resize(std::max<std::size_t>(result.ranks.size(), dump.header.world_size));
    result.ranks[dump.header.rank].dump = std::move(dump);  // the newest last
  }
  if (result.ranks.empty()) {
    return fail(Error::Code::invalid_argument,
                fmt::format("no flight recording of job {:08x} there", result.job));
  }
  for (FlightRank& rank : result.ranks) {
    if (!rank.dump) continue;
    if (reference == nullptr) {
      reference = &*rank.dump;
    } else {
      align(*reference, rank);
    }
  }
  return result;
}

std::uint64_t OperationAtRank::lacks(std::uint64_t everybody) const {
  std::uint64_t ranks = everybody & ~heard;
  for (std::size_t stage = 0; stage < asked.size(); ++stage) {
    if (!closed[stage]) ranks |= asked[stage];
  }
  return ranks;
}

Time begin_of(const FlightJob& job, const std::vector<OperationAtRank>& operation) {
  Time begin = kNever;
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    if (operation[rank].opened) {
      begin = std::min(begin, job.ranks[rank].at(*operation[rank].opened));
    }
  }
  return begin;
}

std::map<OperationKey, std::vector<OperationAtRank>> operations_of(const FlightJob& job) {
  std::map<OperationKey, std::vector<OperationAtRank>> operations;
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    if (!job.ranks[rank].dump) continue;
    for (const Record& record : job.ranks[rank].dump->records) {
      auto& operation = operations[{record.tag, record.operation}];
      operation.resize(job.ranks.size());
      note(operation[rank], record);
    }
  }
  for (auto& [key, operation] : operations) judge_presence(job, key, operation);
  return operations;
}

}  // namespace tarpon
