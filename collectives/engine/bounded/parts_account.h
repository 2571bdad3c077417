// Reports which parts of a bounded all_gather are missing in the output, and why: by range, by rank
// and in total. An element has one contributor, the rank of its part.
//
// A call makes one when it ends, while its operation is open. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/engine/bounded/call_layout.h"
#include "collectives/engine/call/buffers.h"
#include "transport/endpoint.h"

namespace tarpon {

class PartsAccount {
 public:
  /// The call that has ended. All outlive the account.
  struct Call {
    const Endpoint& endpoint;
    OperationHandle handle;
    Rank rank = 0;
    std::uint16_t world = 0;
    const CallLayout& layout;
    const std::vector<BufferSink>& parts;  // in the order of the layout's other shards
    std::uint64_t gone = 0;                // bit r: rank r is silent, dead, evicted or has left
    bool late_self = false;                // a peer has ended the call without this rank
  };
  PartsAccount(const Call& call, Report& report) : call_(call), report_(report) {}

  /// Fills the report. Runs and losses stay empty where nothing is missing.
  void fill();

 private:
  void list_runs();
  void append(std::uint64_t elements, std::uint64_t contributors);
  void count_losses();
  void count_part(std::size_t number, LossCauses& sums);

  const Call call_;
  Report& report_;
  std::uint64_t next_ = 0;     // the first element that no run has
  std::uint64_t missing_ = 0;  // elements
};

}  // namespace tarpon
