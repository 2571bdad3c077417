// What a caller asks of an AllReduce, and what it is told afterwards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collectives/types.h"
#include "transport/port.h"
#include "transport/time.h"

namespace tarpon {

/// What a bounded AllReduce puts where the reduced value could not be had.
enum class MissingFill : std::uint8_t {
  zero,   // zeros: the update leaves these elements alone
  local,  // this rank's own contribution, scaled as if it spoke for all
};

struct AllreduceArguments {
  const void* input = nullptr;  // `count` elements; unchanged unless it is also the output
  void* output = nullptr;       // `count` elements; equal to `input` for in place, else apart
  std::uint64_t count = 0;      // 0: exact calls still wait until every rank has made theirs
  DataType type = DataType::float32;
  ReduceOp function = ReduceOp::sum;
  std::uint32_t tag = 0;    // calls of one tag match in order; tags run independently
  Mode mode = Mode::exact;  // integers, min, max and prod always run exact
  AdditionOrder order = AdditionOrder::fixed;  // exact mode; bounded mode adds on arrival
  Duration deadline = 10s;                     // hard, from the call on
  std::optional<Duration> bound =
      std::nullopt;  // bounded mode, per stage; else half of what the deadline leaves
  MissingFill missing = MissingFill::zero;
};

enum class Status : std::uint8_t {
  complete,   // every contribution is in
  partial,    // bounded mode: the report says what is missing
  peer_late,  // the deadline passed without `late_ranks`; the output is undefined
  mismatch,   // `blamed` run another operation; `detail` names the field; output undefined
  aborted,    // a rank gave up; output undefined
  failed,     // the port broke; `detail` says how; output undefined
};

std::string_view name(Status status);

/// Elements [first, first + count) of a result hold the contributions of the ranks in
/// `contributors` (bit r: rank r) and no others; 0: nobody's, filled by MissingFill.
struct ContributorRun {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t contributors = 0;
  bool operator==(const ContributorRun&) const = default;
};

/// What one call's result is made of, as this rank saw it.
struct Report {
  Status status = Status::complete;
  std::uint32_t tag = 0;
  std::uint32_t operation = 0;       // number within the tag
  Mode mode = Mode::exact;           // what ran
  Duration elapsed{};                // from submission to the end
  std::uint64_t bytes_sent = 0;      // payload of this rank's messages, each counted once
  std::uint64_t bytes_received = 0;  // payload delivered
  /// Contributions lacking in this rank's result, in elements: rank r's at index r. Empty when
  /// nothing is missing.
  std::vector<std::uint64_t> missing;
  /// The same by range, in order and without gaps; empty when nothing is missing.
  std::vector<ContributorRun> runs;
  double lost_fraction = 0;      // 1 - contributions present / (ranks x count)
  double lost_stage1 = 0;        // of it: never reached the owner
  double lost_stage2 = 0;        // of it: the reduced value did not reach this rank
  std::vector<Rank> late_ranks;  // nothing of theirs is in the result
  std::vector<Rank> blamed;      // mismatch, aborted
  std::string detail;            // one line for a human; empty when complete
};

}  // namespace tarpon
