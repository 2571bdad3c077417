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

class OutputCompletion {
 public:
  /// All outlive it.
  struct Call {
    const AllreduceArguments& arguments;
    const CallLayout& layout;
    const Reducer& reducer;
    const std::vector<BufferSink>& gather;  // in the order of the layout's other shards
    Rank rank = 0;
    std::uint16_t world = 0;
    Rescale rescale = Rescale::count;
    Work& work;
  };
  explicit OutputCompletion(const Call& call);

  /// Decodes the result. Missing rows count as zero. The rows of a block that arrived are scaled up
  /// to the whole block. `late_self`: this rank's shard is void.
  void decode(Coding& coding, bool late_self);
  /// Fills the result of an uncoded call where the reduced value is missing.
  void fill_missing(bool late_self);
  void fill_with_nan();

 private:
  void find_missing();
  void void_own_shard();
  template <typename Change>
  void change_own_shard(Change change);
  std::uint32_t local_factor() const;
  void fill(std::uint64_t offset, std::uint64_t length) const;
  void scale(std::uint64_t offset, std::uint64_t length, std::uint32_t factor) const;

  const Call call_;
  const std::byte* const input_;
  std::byte* const output_;
  std::vector<Range> missing_;     // bytes of the slots that the result lacks
  std::vector<Coding::Gap> gaps_;  // elements that decoding does not give
};

}  // namespace tarpon
