// One AllReduce on its way: the schedule laid out on an endpoint, and the report at its end.
#pragma once

#include <array>
#include <memory>
#include <memory_resource>
#include <optional>
#include <vector>

#include "collectives/engine/buffers.h"
#include "collectives/engine/coding.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/float_buffer_pool.h"
#include "collectives/engine/learning/bounds.h"
#include "collectives/engine/reducer.h"
#include "collectives/engine/schedules/tar_schedule.h"
#include "collectives/engine/sender_loss.h"
#include "collectives/engine/signature.h"
#include "collectives/engine/work.h"
#include "collectives/engine/work_rate.h"
#include "collectives/mechanisms.h"
#include "collectives/membership/epoch_history.h"
#include "transport/rank_mask.h"

namespace tarpon {

/// What operation `number` of its tag runs as: the first ones may calibrate.
Mode effective_mode(const AllreduceArguments& arguments, std::uint32_t number);

class AllreduceOperation {
 public:
  struct Setting {
    Rank rank = 0;
    std::uint16_t world = 1;
    std::uint32_t slot_bytes = 0;
    Mechanisms mechanisms;
    Bounds* bounds = nullptr;                     // of the communicator; outlives the operation
    SenderLoss* losses = nullptr;                 // the same
    std::pmr::memory_resource* memory = nullptr;  // for the buffers of the call; the same
    FloatBufferPool* partial_buffers = nullptr;   // the same
    std::uint64_t piece_bytes = 0;                // EngineOptions::piece_bytes
    EpochSetting epoch = {};                      // of this operation
    std::uint64_t absent = 0;                     // bit r: rank r is dead or suspect already
    Time began{};                         // when the call began: its encoding, where it is coded
    const WorkRate* work_rate = nullptr;  // of such calls; outlives the operation
    std::uint32_t open = 1;               // calls of this rank that run, this one included
    std::vector<Rank> behind = {};        // late in the calls of its tag that it had to wait for
  };

  /// Opens the operation on `endpoint`, as the last thing that it does. `coding`: the encoded
  /// bucket of a coded call, else null. `submitted` is when the caller asked. Throws std::bad_alloc
  /// where a buffer of the call is refused.
  AllreduceOperation(const Setting& setting, std::shared_ptr<PendingCall> call,
                     std::unique_ptr<Coding> coding, Endpoint& endpoint, Time submitted, Time now);
  ~AllreduceOperation();
  AllreduceOperation(const AllreduceOperation&) = delete;
  AllreduceOperation& operator=(const AllreduceOperation&) = delete;

  OperationHandle handle() const { return handle_; }

  void on_event(const Event& event, Time now);

  /// Moves on after deliveries. True once the operation is over and closed at the endpoint; the
  /// report is filled then.
  bool step(Time now);

  /// When step() should run even if nothing arrives.
  Time next_deadline() const;

  /// Ends it now; fills the report.
  void end(Status status, std::string detail, Time now);
  bool over() const { return over_; }
  /// As aborted by `origin`; the peers learn it.
  void give_up(Rank origin, const std::string& detail, Time now);
  /// Ends it as peer_dead, evicted or peer_left, if it runs exact and its result needs a rank that
  /// `facts` exclude.
  void peers_gone(const Facts& facts, Time now);
  /// This rank is evicted: ends it now, as evicted unless its result is whole.
  void evicted(const std::string& detail, Time now);
  /// Once over: ranks so far behind that there was no room to retain this rank's shard for them.
  /// Bit r: rank r.
  std::uint64_t held_back_by() const { return held_back_by_; }
  /// It may have waited for `rank`, which is dead or suspect: it teaches nothing.
  void rank_absent(Rank) { waited_in_vain_ = true; }

  /// Once over: the deadline for the port to send the packets that it still holds. kNever once the
  /// port holds none.
  Time release_by() const;

  /// Decodes or fills the output, in pieces if that takes long. True once the output is complete.
  /// REQUIRES: over(), and the port holds no packet of the call.
  bool complete(Time now);
  /// The same without pieces.
  void complete_at_once(Time now);

  /// The buffers are complete: the call is done.
  void release(Time now);

  /// The next piece of the work on the buffers. It runs until piece_ended(), which says how long it
  /// took; step(), complete() and release() are not called meanwhile.
  bool has_piece() const { return over_ == completing_ && work_.has_piece(); }
  Piece take_piece();
  void piece_ended(Duration took);

  /// How long the pieces took, and how much they moved.
  Duration worked() const { return worked_; }
  std::uint64_t worked_bytes() const { return worked_bytes_; }
  /// Whether the bound closed its stages, and nothing but work followed since_closing().
  bool is_cut() const;
  /// How long ago both stages closed, and the peers' answers about a doubt were here. REQUIRES:
  /// is_cut().
  Duration since_closing(Time now) const { return now - whole_since_; }

  const Report& report() const { return call_->report; }
  PendingCall& call() { return *call_; }
  const PendingCall& call() const { return *call_; }
  /// The process stood still for so long when it was due to act.
  void note_pause(Duration pause) { call_->report.paused += pause; }
  Time submitted() const { return submitted_; }
  bool coded() const { return coding_ != nullptr; }
  std::uint64_t bucket_bytes() const;

  /// Whom it is waiting for.
  std::vector<Rank> absent_ranks() const;
  /// Who is to blame should it end now: the same, unless most of its time went by behind earlier
  /// calls, so that whom it asked need not be late.
  std::vector<Rank> late_ranks() const;

 private:
  // Below this a shard is copied for late peers rather than confirmed by them: a copy of 64 KiB
  // costs less than the packets.
  static constexpr std::uint64_t kConfirmAbove = 64 << 10;

  // specification.cc
  TarSchedule make_schedule() const;
  std::uint32_t slot_bytes() const { return coding_ ? coding_->row_bytes() : setting_.slot_bytes; }
  std::uint64_t slot_stride() const;
  SlotArray<std::byte> slots_at(std::uint64_t first_byte) const;
  Reducer::Shape reducer_shape(Mode mode);
  OperationSignature signature() const;
  OperationSpec specify(Time now);
  CallKind kind() const;
  BoundedCall bounded_call() const;
  void plan_bound(OperationSpec& spec, Time now);
  void start_clock(Time at, Time now);
  void hear_terms(Rank peer);
  Duration work_left(bool with_copy) const;
  void close_for_work(Time now);
  void add_scatter(OperationSpec& spec);
  void add_gather(OperationSpec& spec);

  // allreduce_operation.cc
  bool retains() const;
  bool queued_too_long() const;
  bool may_finish(Time now);
  Duration settling(Time now) const;
  bool serves_afterwards() const;
  Time limit() const;
  bool unheard() const;
  bool confirmed() const;
  void on_abort(const Event& event, Time now);
  bool is_cut_off(const Event& late_abort) const;
  void on_mismatch(const Event& event, Time now);
  void collect_mismatches(Time now);
  void on_late_abort(const Event& event, Time now);
  void end_aborted(AbortReason reason, std::uint64_t ranks, std::string detail, Time now);
  void finish(Time now);
  void close(Time now);
  std::uint64_t absent() const;
  bool copies() const;
  bool drops_copy(Time now) const;
  void settle();
  void retain();
  void end_at_deadline(Time now);
  std::string silence_text() const;

  // peer_report.cc
  void report_end(Time now);

  // learning.cc
  void take_sample();
  void learn(Time now);
  void learn_losses();

  // loss_report.cc
  void report_loss();
  void report_causes();
  void report_shards();
  bool silent(Rank rank) const;
  bool whole() const;
  std::uint64_t positions() const;
  void add_runs(std::uint64_t first_byte, std::uint64_t bytes,
                const ContributorMasks& contributors);
  void join_runs();

  // missing.cc
  void find_missing();
  void decode_result();
  void fill_missing();
  void void_own_shard();
  template <typename Change>
  void change_own_shard(Change change);
  void fill(std::uint64_t offset, std::uint64_t length);
  void scale(std::uint64_t offset, std::uint64_t length, std::uint32_t factor);

  // nonfinite.cc
  void report_nonfinite();
  void fill_with_nan();

  const Setting setting_;
  std::shared_ptr<PendingCall> call_;
  Endpoint& endpoint_;
  const std::byte* input_;
  std::byte* output_;
  std::unique_ptr<Coding> coding_;  // where the call is coded
  const TarSchedule schedule_;
  std::optional<FloatBufferPool::Buffer> partials_;  // of the reducer, where it uses them
  Reducer reducer_;
  std::vector<BufferSource> scatter_;
  std::vector<BufferSink> gather_;
  Work work_;                           // on the buffers, once both stages have closed
  std::unique_ptr<Retained> retained_;  // our shard, until the endpoint keeps it
  std::vector<Range> missing_;          // bytes of the slots that the result lacks
  std::vector<Coding::Gap> gaps_;       // elements that decoding does not give
  Duration worked_{};
  std::uint64_t worked_bytes_ = 0;
  std::array<Duration, 2> latest_pieces_{};  // of the copy of our shard; 0: none yet
  OperationHandle handle_;
  const Time submitted_;
  const Time began_;
  const Time deadline_;
  BoundTerms terms_;               // bounded: of this rank
  std::uint64_t terms_heard_ = 0;  // bit r: rank r has told its terms
  Time clock_ = kNever;            // bounded: when half of the ranks had begun
  Time end_ = kNever;              // bounded: when the call ends at the latest, but for late ranks
  Time gather_due_ = kNever;       // bounded: when the gather ends, unless peers are asked then
  Time delivered_ = kNever;        // when all peers had confirmed our shard
  Time work_at_ = kNever;          // bounded: when to compare work_left() with what time is left
  std::optional<BoundSample> sample_;
  Time whole_since_ = kNever;  // when the result was complete, or closed by its bound
  Time settle_at_ = kNever;    // until then confirmations may save the copy of our shard
  Time wake_at_ = kNever;      // when step() should look again
  Time fail_at_ = kNever;      // after a mismatch: when to stop collecting the ranks that differ
  // What the first rank that differs asked for, and whether all that differ asked for the same.
  std::optional<OperationSignature> others_signature_;
  bool others_alike_ = true;
  std::uint64_t held_back_by_ = 0;
  bool waited_in_vain_ = false;
  bool late_self_ = false;   // a peer has ended this bounded call without us
  bool asks_peers_ = false;  // whether they have ended this bounded call without us
  bool scatter_closed_ = false;
  bool gather_closed_ = false;
  bool gather_complete_ = false;
  bool finishing_ = false;   // our shard is being copied, or has been
  bool over_ = false;        // and closed at the endpoint
  bool completing_ = false;  // and the port holds nothing of the buffers
};

}  // namespace tarpon
