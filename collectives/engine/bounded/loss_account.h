// Reports the contributions in the result of a bounded AllReduce, and the late ranks: by range, by
// rank and in total, and why they are missing.
//
// A call makes one when it ends, while its operation is open. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/engine/bounded/call_layout.h"
#include "collectives/engine/bounded/reducer.h"
#include "collectives/engine/call/buffers.h"
#include "collectives/engine/coded/coding.h"
#include "transport/endpoint.h"

namespace tarpon {

class LossAccount {
 public:
  /// The call that has ended. All outlive the account.
  struct Call {
    const Endpoint& endpoint;
    OperationHandle handle;
    Rank rank = 0;
    std::uint16_t world = 0;
    const CallLayout& layout;
    const Reducer& reducer;
    const std::vector<BufferSink>& gather;  // in the order of the layout's other shards, or empty
    const codec::CodedLayout* coded = nullptr;  // of the coded bucket
    std::uint64_t gone = 0;       // bit r: rank r is silent, dead, evicted or has left
    std::uint64_t left_out = 0;   // bit r: rank r is of this host, which does without it
    bool late_self = false;       // a peer has ended the call without this rank
    bool waits_for_live = false;  // the owners wait for the data of live ranks
  };
  LossAccount(const Call& call, Report& report);

  /// Fills the report: nothing where the result is whole.
  void fill();

 private:
  bool is_whole() const;
  void list_runs();
  void report_shards();
  void report_causes(std::uint64_t silent);
  bool is_silent(Rank rank) const;
  std::uint64_t lost_with_others() const;
  double slot_elements(std::uint64_t bytes, std::uint32_t slot) const;
  std::uint64_t absent_at_owner(const ContributorMasks& contributors) const;
  void count_own_shard(std::uint64_t late, LossCauses& sums) const;
  void count_shard(std::size_t number, std::uint64_t late, std::uint64_t void_owners,
                   LossCauses& sums) const;

  const Call call_;
  const std::uint64_t all_ranks_;
  Report& report_;
};

}  // namespace tarpon
