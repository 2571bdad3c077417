// A running call that may be bounded. It runs exact if it calibrates a bound. Its schedule is TAR.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "collectives/engine/buffers.h"
#include "collectives/engine/coding.h"
#include "collectives/engine/reducer.h"
#include "collectives/engine/running_call.h"
#include "collectives/engine/schedules/tar_shards.h"

namespace tarpon {

class TarCall : public RunningCall {
 public:
  /// Opens the operation on `endpoint`, as its last step. `coding`: the encoded bucket of a coded
  /// call, else null. `submitted` is when the caller asked. Throws std::bad_alloc if a buffer of
  /// the call is refused.
  TarCall(const Setting& setting, std::shared_ptr<PendingCall> call, std::unique_ptr<Coding> coding,
          Endpoint& endpoint, Time submitted, Time now);
  ~TarCall() override;

  void rank_absent(Rank rank) override {
    gone_ |= bit(rank);
    waited_in_vain_ = true;
  }

 private:
  // specification.cc
  TarShards make_shards() const;
  std::uint32_t slot_bytes() const { return coding_ ? coding_->row_bytes() : setting_.slot_bytes; }
  std::uint64_t slot_stride() const;
  SlotArray<std::byte> slots_at(std::uint64_t first_byte) const;
  Reducer::Shape reducer_shape(Mode mode);
  OperationSignature signature() const override;
  OperationSpec specify(Time now);
  CallKind kind() const;
  BoundedCall bounded_call() const;
  void plan_bound(OperationSpec& spec, Time now);
  void start_clock(Time at, Time now);
  HoldPolicy hold_policy(const CallBound& bound) const;
  void extend(Duration by, Time now);
  void hear_terms(Rank peer);
  Duration work_left(bool with_copy) const;
  void close_for_work(Time now);
  void add_scatter(OperationSpec& spec);
  void add_gather(OperationSpec& spec);

  // tar_call.cc
  void on_progress(const Event& event, Time now) override;
  bool advance(Time now) override;
  Time wake_at() const override { return wake_at_; }
  Time limit() const override;
  void finish(Time now) override;
  void complete_output() override;
  void released(Time now) override;
  std::optional<Time> cut_at() const override;
  bool retains() const;
  bool may_finish(Time now);
  Duration settling(Time now) const;
  bool serves_afterwards() const;
  bool confirmed() const;
  void end_whole(Time now);
  std::uint64_t absent() const;
  bool copies() const;
  bool drops_copy(Time now) const;
  void settle();
  void retain();

  // learning.cc
  void take_sample();
  void learn(Time now);
  void learn_losses();

  // loss_report.cc
  void report_loss();
  void report_causes();
  std::uint64_t absent_at_owner(const ContributorMasks& contributors) const;
  void count_losses_of_own_shard(std::uint64_t late, LossCauses& sums) const;
  void count_losses_of(std::size_t number, std::uint64_t late, std::uint64_t void_owners,
                       LossCauses& sums) const;
  void report_shards();
  bool silent(Rank rank) const;
  bool whole() const;
  std::uint64_t all_ranks() const;
  std::uint64_t positions() const;
  double slot_elements(std::uint64_t bytes, std::uint32_t slot) const;
  void list_runs();

  // missing.cc
  void find_missing();
  void decode_result();
  void fill_missing();
  void void_own_shard();
  template <typename Change>
  void change_own_shard(Change change);
  std::uint32_t local_factor() const;
  void fill(std::uint64_t offset, std::uint64_t length);
  void scale(std::uint64_t offset, std::uint64_t length, std::uint32_t factor);

  // nonfinite.cc
  void report_nonfinite();
  void fill_with_nan();

  const std::byte* input_;
  std::byte* output_;
  std::unique_ptr<Coding> coding_;                   // where the call is coded
  const TarShards shards_;                           // in bytes
  std::optional<FloatBufferPool::Buffer> partials_;  // of the reducer, where it uses them
  Reducer reducer_;
  std::vector<BufferSource> scatter_;
  std::vector<BufferSink> gather_;
  std::unique_ptr<Retained> retained_;  // our shard, until the endpoint keeps it
  std::vector<Range> missing_;          // bytes of the slots that the result lacks
  std::vector<Coding::Gap> gaps_;       // elements that decoding does not give
  BoundTerms terms_;                    // bounded: of this rank
  std::uint64_t terms_heard_ = 0;       // bit r: rank r has told its terms
  Time clock_ = kNever;                 // bounded: when half of the ranks had begun
  Time end_ = kNever;                   // bounded: latest end of the call, unless this rank is late
  Time gather_due_ = kNever;  // bounded: when the gather ends, unless peers are asked then
  Time delivered_ = kNever;   // when all peers had confirmed our shard
  Time work_at_ = kNever;     // bounded: when to compare work_left() with what time is left
  std::optional<BoundSample> sample_;
  Time whole_since_ = kNever;    // when the result was complete, or closed by its bound
  Time settle_at_ = kNever;      // until then confirmations may save the copy of our shard
  Time wake_at_ = kNever;        // when step() should look again
  std::uint64_t gone_;           // bit r: rank r is silent, dead, evicted or has left
  bool waited_in_vain_ = false;  // for one that became so
  bool waits_for_live_ = false;  // bounded: the owners wait for the data of live ranks (HoldPolicy)
  bool late_self_ = false;       // a peer has ended this bounded call without us
  bool asks_peers_ = false;      // whether they have ended this bounded call without us
  bool gather_complete_ = false;
  bool finishing_ = false;  // our shard is being copied, or has been
};

}  // namespace tarpon
