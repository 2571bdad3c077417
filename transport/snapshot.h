// What an endpoint is doing, in a few hundred bytes that may be copied to any observer.
#pragma once

#include <array>
#include <cstdint>

#include "transport/counters.h"
#include "transport/time.h"

namespace tarpon {

struct OperationSnapshot {
  std::uint32_t tag = 0;
  std::uint32_t operation = 0;
  std::uint32_t stage = 0;   // the first that is open; `stages` when all are closed
  std::uint32_t stages = 0;  // of the operation
  Time opened{};
  Time deadline = kNever;
  /// Bit r: rank r. With an open stage: the ranks whose message has not come whole. With all stages
  /// closed: the ranks whose confirmation is awaited.
  std::uint64_t waiting = 0;
  std::uint64_t silent = 0;  // bit r: nothing of this operation has come from rank r
};

struct EndpointSnapshot {
  static constexpr std::uint32_t kOperations = 4;

  std::uint32_t open = 0;                                   // operations
  std::array<OperationSnapshot, kOperations> operations{};  // the oldest of them
  std::array<Time, 64> last_heard{};  // by rank, of any operation; Time{}: never
  EndpointCounters counters;
};

}  // namespace tarpon
