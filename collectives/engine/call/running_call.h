// A call that has begun: its operation at the endpoint, how it ends when something goes wrong, and
// its report. Derived classes decide which messages it sends and receives.
//
// Not thread-safe, except for the pieces of work on the buffers (piece.h), which run outside.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <memory_resource>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "collectives/engine/call/call_blame.h"
#include "collectives/engine/call/closed_stages.h"
#include "collectives/engine/call/float_buffer_pool.h"
#include "collectives/engine/call/mismatches.h"
#include "collectives/engine/call/pending_call.h"
#include "collectives/engine/call/signature.h"
#include "collectives/engine/call/work.h"
#include "collectives/engine/learning/bounds.h"
#include "collectives/engine/learning/work_rate.h"
#include "collectives/mechanisms.h"
#include "collectives/membership/epoch_history.h"
#include "collectives/membership/facts.h"
#include "transport/rank_mask.h"

namespace tarpon {

class RunningCall {
 public:
  struct Setting {
    Rank rank = 0;
    std::uint16_t world = 1;
    std::uint32_t slot_bytes = 0;
    Mechanisms mechanisms;
    Bounds* bounds = nullptr;                     // of the communicator; outlives the operation
    std::pmr::memory_resource* memory = nullptr;  // for the buffers of the call; the same
    FloatBufferPool* partial_buffers = nullptr;   // the same
    std::uint64_t piece_bytes = 0;                // EngineOptions::piece_bytes
    EpochSetting epoch = {};                      // of this operation
    std::uint64_t absent = 0;                     // bit r: rank r is dead or suspect already
    Time began{};                   // when the call began: if it is coded, its encoding
    WorkRate* work_rate = nullptr;  // of coded or uncoded calls; outlives the operation
    std::uint32_t open = 1;         // calls of this rank that run, this one included
    std::vector<Rank> behind = {};  // late ranks of the calls of its tag that it waited for
  };

  virtual ~RunningCall() = default;
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;

  const OperationHandle& handle() const { return handle_; }
  PendingCall& call() const { return *call_; }
  Time submitted() const { return submitted_; }

  void on_event(const Event& event, Time now);

  /// Moves on after deliveries. True once the operation is over and closed at the endpoint; the
  /// report is filled then.
  bool step(Time now);

  /// When step() should run even if nothing arrives. Once over(): when the port drops the packets
  /// that it could not send by then; kNever once it holds none.
  Time next_deadline() const;

  /// Notes that the process stood still for `pause` when it was due to act.
  void note_pause(Duration pause) { call_->report.paused += pause; }

  // -- endings. They have no effect on a call that is over.

  bool over() const { return phase_ != Phase::runs; }
  /// Ends it now; fills the report.
  void end(Status status, std::string detail, Time now);
  /// Ends it as aborted by `origin`, and tells the peers.
  void give_up(Rank origin, const std::string& detail, Time now);
  /// Ends it as peer_dead, evicted or peer_left, if it runs exact and its result needs a rank that
  /// `facts` exclude.
  void peers_gone(const Facts& facts, Time now);
  /// Ends it now because this rank is evicted: as evicted unless its result is whole.
  void evicted(const std::string& detail, Time now);
  /// Notes that it may have waited for `rank`, which is dead or suspect: it teaches nothing. Call
  /// it before the endpoint hears that the rank is gone.
  virtual void rank_absent(Rank rank) {
    gone_ |= bit(rank);
    waited_in_vain_ = true;
  }

  /// Which ranks it waits for. REQUIRES: not over().
  const CallBlame& blame() const { return blame_; }

  // -- once over

  /// Completes the output, in pieces if that takes long. True once the output is complete.
  /// REQUIRES: over(), and the port holds no packet of the call.
  bool complete(Time now);

  /// Drops the work that the output still needs; the call then ends as aborted by this rank. Does
  /// nothing if the output is complete. REQUIRES: over(), no piece runs, and the port holds no
  /// packet of the call.
  void drop_work(Time now);

  /// Marks the call as done, and teaches the learnt values of the communicator. REQUIRES:
  /// complete(), or drop_work() has run.
  void release(Time now);

  /// Ranks so far behind that there was no room to retain this rank's shard for them. Bit r:
  /// rank r.
  std::uint64_t held_back_by() const { return held_back_by_; }

  /// The work on the buffers. While a piece of it runs, step(), complete() and release() are not
  /// called.
  Work& work() { return work_; }

 protected:
  /// Up to this many bytes, data that late peers may still need is copied for them rather than
  /// confirmed by them: a copy of 64 KiB costs less than the packets.
  static constexpr std::uint64_t kConfirmAbove = 64 << 10;
  /// Minimum time for confirmations to save a copy: sending the last packets takes a moment even
  /// when the result was complete at once.
  static constexpr Duration kLeastSettling = 1ms;

  /// `submitted` is when the caller asked.
  RunningCall(const Setting& setting, std::shared_ptr<PendingCall> call, Endpoint& endpoint,
              Time submitted, Time now);

  // -- for the derived class

  /// Submits the operation, as the last step of the constructor.
  void open(OperationSpec spec, const OperationSignature& signature, Time now);
  /// Closes the stages that the caller of the endpoint closes (StageSpec::closed_by_caller). Those
  /// of which packets are due close when these have come.
  void close_stages(Time now);
  /// Closes the operation, whose report is filled: the call is over.
  void close(std::unique_ptr<Retained> retained, std::uint64_t absent);
  /// The same, and tells the peers why.
  void abort_operation(AbortReason reason, std::uint64_t ranks);
  /// Ends it as aborted, here and at the peers. A peer's ABORT is passed on too: a peer that missed
  /// it would wait.
  void end_aborted(AbortReason reason, std::uint64_t ranks, std::string detail, Time now);
  /// Runs `copy`, which copies data that peers may still ask for. Returns false if it throws: the
  /// call has then ended as aborted, since peers could not get that data any more.
  template <typename Copy>
  bool copy_for_peers(Copy copy, Time now) {
    try {
      copy();
      return true;
    } catch (const std::bad_alloc&) {
      end_aborted(AbortReason::memory, bit(setting_.rank),
                  "allreduce: no memory to keep this rank's part for the peers", now);
    } catch (const std::exception& error) {
      end_aborted(AbortReason::exception, bit(setting_.rank),
                  std::string("allreduce: ") + error.what(), now);
    }
    return false;
  }
  /// Fills the part of the report that every call has. The operation is still open.
  void report_end(Time now);

  /// Whether it only waits for the moment at which it ends as mismatched: advance() is not called.
  bool is_mismatched() const { return mismatches_.any(); }

  /// Acts upon a change of limit_: a mismatch still has to reach the peers in time.
  void limit_changed(Time now) { mismatches_.collect(now, limit_); }

  const Setting setting_;
  const std::shared_ptr<PendingCall> call_;
  Endpoint& endpoint_;
  const Time submitted_;
  const Time began_;
  const Time deadline_;
  Work work_;            // on the buffers
  ClosedStages closed_;  // this class alone changes it

  // -- set by the derived class

  Time wake_at_ = kNever;           // when step() should look again
  Time limit_;                      // when the call ends, whatever it still waits for
  std::uint64_t held_back_by_ = 0;  // held_back_by()
  std::uint64_t unknown_ = 0;       // bit r: rank r may have begun, this rank cannot know
  bool awaits_near_ = false;        // data that comes by other ways than packets is due
  // If the bound closed the stages, and only work followed: when they had closed, and the peers'
  // answers had arrived.
  std::optional<Time> cut_at_;

  // -- read by the derived class

  std::uint64_t gone_;           // bit r: rank r is silent, dead, evicted or has left
  bool waited_in_vain_ = false;  // a rank joined `gone_` after the call had begun

 private:
  // -- implemented by the derived class

  /// Handles the events stage_closed, acknowledged, clock, extended and late.
  virtual void on_progress(const Event& event, Time now) = 0;
  /// step() of a call that is not over and has met no mismatch.
  virtual bool advance(Time now) = 0;
  /// Ends the call, whose stages have all closed, and for which every rank was heard.
  virtual void finish(Time now) = 0;
  /// Whether peers still need data of this rank, and the call is not done without them, although
  /// its own result is whole.
  virtual bool owes() const { return false; }
  /// Adds the work that the output still needs. The port holds no packet of the call.
  virtual void complete_output() {}
  /// Passes the times of the finished call to the learnt bounds.
  virtual void released(Time) {}

  /// Whether nothing more can come that the result needs.
  bool has_all() const { return closed_.all() && !awaits_near_; }
  void end_mismatched(Time now);
  void teach_work_rate(Time now);
  void on_abort(const Event& event, Time now);
  void on_late_abort(const Event& event, Time now);
  void end_at_deadline(Time now);

  OperationHandle handle_;
  OperationSignature signature_;
  const CallBlame blame_;
  Mismatches mismatches_;
  enum class Phase : std::uint8_t {
    runs,
    over,       // closed at the endpoint; the port may hold packets
    completes,  // the port holds none
  };
  Phase phase_ = Phase::runs;
};

/// Whether operation `number` of its tag runs exact or bounded: the first ones may run exact to
/// calibrate.
Mode effective_mode(const CallArguments& arguments, std::uint32_t number);

}  // namespace tarpon
