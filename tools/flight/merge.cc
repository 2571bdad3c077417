#include "tools/flight/merge.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>

#include "transport/rank_mask.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon {
namespace {

// Longer than any dump: what is bigger is something else.
constexpr std::size_t kLongestFile = 1 << 20;

// Recordings read at once. A job leaves at most a few for each of 64 ranks.
constexpr std::size_t kMaxFiles = 4096;

Result<FlightDump> read_flight(const std::string& path) {
  // O_NONBLOCK: a FIFO is refused, not waited for.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return fail_system(errno, path);
  if (!S_ISREG(status.st_mode)) {
    return fail(Error::Code::invalid_argument,
                path + " is not a regular file; name what --flight named");
  }
  std::string bytes(kLongestFile, '\0');
  std::size_t length = 0;
  while (length < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + length, bytes.size() - length);
    if (got < 0) return fail_system(errno, path);
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  bytes.resize(length);
  return parse_flight(std::as_bytes(std::span(bytes)), path);
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
      if (record.peer < 64) at.heard |= bit(record.peer);
      break;
    case RecordKind::repair_out:
      if (record.stage < at.asked.size() && record.peer < 64) {
        at.asked[record.stage] |= bit(record.peer);
      }
      break;
    case RecordKind::abort_in:
    case RecordKind::abort_out:
      if (!at.abort) at.abort = record;
      break;
    case RecordKind::nonfinite:
      at.nonfinite = record;
      break;
    case RecordKind::lacked:
      if (record.peer < 64) at.lacked |= bit(record.peer);
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
  if (files.size() > kMaxFiles) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{} recordings are more than {} at once; name those of one job",
                            files.size(), kMaxFiles));
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
  std::vector<const FlightDump*> recorded;
  for (const FlightRank& rank : result.ranks) {
    if (rank.dump) recorded.push_back(&*rank.dump);
  }
  const auto shifts = align_clocks(recorded);
  std::size_t next = 0;
  for (FlightRank& rank : result.ranks) {
    if (rank.dump) rank.clock = shifts[next++];
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
      if (is_rank_wide(record.kind)) continue;
      auto& operation = operations[{record.tag, record.operation}];
      operation.resize(job.ranks.size());
      note(operation[rank], record);
    }
  }
  for (auto& [key, operation] : operations) judge_presence(job, key, operation);
  return operations;
}

}  // namespace tarpon
