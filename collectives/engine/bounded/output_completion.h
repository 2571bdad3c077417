// The work that completes the output of a TAR call that is over: decoding, filling what is missing,
// or NaN. Nothing else touches the buffers then.
//
// Not thread-safe. The pieces of work run outside (Work).
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/engine/bounded/call_layout.h"
#include "collectives/engine/bounded/reducer.h"
#include "collectives/engine/call/buffers.h"
#include "collectives/engine/call/work.h"
#include "collectives/engine/coded/coding.h"

namespace tarpon {

/// What stands in the output for the slots of this rank's slice, in a call over hosts: sums over
/// its host.
struct HostSums {
  const std::vector<std::uint64_t>& contributors;  // by step, of the steps that are done
  std::uint32_t step_slots = 0;                    // slots of a shard in a step
  ReduceOp function = ReduceOp::sum;               // that puts sums of hosts together
};

class OutputCompletion {
 public:
  /// All outlive it.
  struct Call {
    const CallArguments& arguments;
    const CallLayout& layout;
    const Reducer& reducer;
    const std::vector<BufferSink>& gather;  // in the order of the layout's other shards, or empty
    Rank rank = 0;
    std::uint16_t world = 0;
    Rescale rescale = Rescale::count;
    Work& work;
  };
  explicit OutputCompletion(const Call& call);

  /// Decodes the result. Missing rows count as zero. The rows of a block that arrived are scaled up
  /// to the whole block. `late_self`: this rank's shard is void.
  void decode(Coding& coding, bool late_self);
  /// Fills the result of an uncoded call where the reduced value is missing. `sums`: of a call over
  /// hosts, else null.
  void fill_missing(bool late_self, const HostSums* sums);
  void fill_with_nan();

 private:
  void find_missing(const HostSums* sums);
  void void_own_shard(bool over_hosts);
  template <typename Change>
  void change_own_shard(Change change);
  std::uint32_t local_factor() const;
  void fill(std::uint64_t offset, std::uint64_t length) const;
  void scale(std::uint64_t offset, std::uint64_t length, std::uint32_t up,
             std::uint32_t down) const;

  const Call call_;
  const std::byte* const input_;
  std::byte* const output_;
  std::vector<Range> missing_;  // bytes of the slots that the result lacks
  struct Summed {
    Range bytes;
    std::uint32_t ranks = 0;
  };
  std::vector<Summed> summed_;     // the same, where a sum over the host stands
  std::vector<Coding::Gap> gaps_;  // elements that decoding does not give
};

}  // namespace tarpon
