// Runs AllReduces of one rank over one port: schedules on an endpoint, without thread or clock.
//
// The Communicator drives it with real time; the simulator drives it with virtual time. One thread
// at a time.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/bounds.h"
#include "collectives/epochs.h"
#include "collectives/flight.h"
#include "collectives/mechanisms.h"
#include "collectives/sender_loss.h"
#include "transport/endpoint.h"
#include "transport/port.h"
#include "xdp/result.h"

namespace tarpon {

class AllreduceOperation;
class CodedRooms;

/// A submitted call. Shared by the caller and the engine; any thread may read `report` once `done`.
struct PendingCall {
  AllreduceArguments arguments;
  Report report;
  bool nonfinite = false;  // the input holds NaN or infinity; of calls that may run bounded
  std::atomic<bool> done = false;
};

struct EngineOptions {
  EndpointOptions endpoint;
  std::uint32_t slot_bytes = 1408;  // agreed by all ranks; a multiple of 64, <= max_payload
  Mechanisms mechanisms;            // their part in the endpoint goes to it
};

/// The ranks that are dead or evicted, and how that is known.
struct Deaths {
  std::vector<Rank> ranks;  // ascending
  std::uint64_t dead = 0;   // bit r: rank r; the others are evicted
  std::string text;         // "rank 2 is dead: EVIDENCE; rank 5 is evicted: REASON"

  Status status() const { return dead != 0 ? Status::peer_dead : Status::evicted; }
};

class Engine {
 public:
  /// `port` outlives the engine.
  Engine(const EngineOptions& options, Port& port);
  ~Engine();

  /// Takes the call; buffers belong to the engine until `done`. Errors: invalid_argument. The input
  /// is looked through for NaN here, where the mechanisms say so; or was, with that result.
  Result<std::shared_ptr<PendingCall>> submit(const AllreduceArguments& arguments, Time now);
  Result<std::shared_ptr<PendingCall>> submit(const AllreduceArguments& arguments, bool nonfinite,
                                              Time now);
  /// What submit() finds, to be asked for by a caller that holds a lock meanwhile. Any thread.
  bool looks_nonfinite(const AllreduceArguments& arguments) const;

  /// One round: receive a batch, deliver, send what is due. False when nothing moved.
  bool progress(Time now);

  /// When progress() has something to do even if no packet arrives.
  Time next_deadline() const;

  /// Calls that are not done.
  std::size_t outstanding() const { return running_.size() + waiting_.size() - expired_; }

  /// Gives every outstanding call up: it ends as `aborted` here and, told by us, at the peers.
  void abort(Time now);

  /// The same, blaming `origin`, for `reason`; from now on every call ends so at once.
  void abort_for_good(Rank origin, const std::string& reason, Time now);

  /// `rank` is dead, as `evidence` shows. What runs exact ends as peer_dead, now and later; bounded
  /// calls go on without it.
  void peer_dead(Rank rank, const std::string& evidence, Time now);

  /// `rank` is evicted, for `reason`: to this engine it is as a dead one, but for the status. The
  /// own rank: all its calls end as evicted, now and later; the peers are not told.
  void evicted(Rank rank, const std::string& reason, Time now);

  /// Whose lateness has made bounded calls wait until their deadlines, since the last time: what
  /// they retain for those exceeds the limit. Bit r: rank r.
  std::uint64_t take_eviction_wish() { return std::exchange(wish_, 0); }

  /// What all ranks have agreed on for operations to come.
  void epoch_decided(const EpochRecord& record) { epochs_.decided(record); }
  /// The next number of each tag that was called: those below have begun here or wait to.
  std::vector<EpochRecord::Start> next_numbers() const;

  /// What bounded calls lacked of ranks that were in time, since the last time: shares.
  std::vector<double> take_losses() { return std::exchange(losses_told_, {}); }

  /// `rank` is silent, or no longer: meanwhile bounded calls do not wait for it.
  void peer_silent(Rank rank, bool silent, Time now);

  /// Whom calls have lacked since the last time: bit r: rank r. `waiting`: also whom those that are
  /// running lack by now.
  std::uint64_t take_lacked(bool waiting);

  const EndpointCounters& counters() const { return endpoint_.counters(); }

  /// Over how many flows large messages go at present.
  std::uint32_t flows() const { return endpoint_.flows(); }

  /// What is going on, for the status socket.
  FlightSnapshot snapshot(Time now) const;
  const Port& port() const { return port_; }
  const Bounds& bounds() const { return bounds_; }

 private:
  /// How every call ends after abort_for_good(), an eviction, or when the port has broken.
  struct Ending {
    Status status = Status::aborted;
    std::vector<Rank> blamed;
    std::string detail;
  };

  struct Waiting {
    std::shared_ptr<PendingCall> call;
    Time submitted;
    std::vector<Rank> behind = {};  // late in the call that was the last to fail before it
    Time deadline() const { return after(submitted, call->arguments.deadline); }
  };

  /// The numbers of a tag whose calls end without beginning.
  struct Lane {
    std::uint32_t tag = 0;
    std::uint32_t first_missed = 0;  // evicted
    std::uint32_t next = 0;          // number of the next call
  };

  Result<void> check(const AllreduceArguments& arguments) const;
  void start(Waiting next, Time now);
  void start_waiting(Time now);
  void expire_waiting(Time now);
  void pass_over(const PendingCall& call, Time now);
  void handle_events(Time now);
  void handle_event(AllreduceOperation& operation, const Event& event, Time now);
  void step(Time now);
  bool transmit(Time now);
  void note_loss(const Report& report);
  void give_up(Rank origin, const std::string& detail, Time now);
  void note_absent(Rank rank);
  void leave_out(Rank rank, bool dead, const std::string& why, Time now);
  void end_by_eviction(const std::string& reason, Time now);
  void end_waiting(const Ending& ending, Time now);
  void end_unbegun(PendingCall& call, const Ending& ending, Time submitted, Time now);
  void note_unbegun(Report& report, Time submitted, Time now) const;
  Lane& lane_of(std::uint32_t tag);
  void note_missed(Report& report);
  std::uint32_t next_queued(std::uint32_t tag) const;
  void forget_waiting();
  void fail_all(Time now, const Error& error);

  const EngineOptions options_;
  Port& port_;
  Endpoint endpoint_;
  Bounds bounds_;
  SenderLoss losses_;
  EpochHistory epochs_;
  std::unique_ptr<CodedRooms> rooms_;
  std::vector<std::unique_ptr<AllreduceOperation>> running_;
  std::deque<Waiting> waiting_;    // beyond the window of their tag
  std::size_t expired_ = 0;        // of them: over, but their numbers are not taken yet
  Time next_expiry_ = kNever;      // no later than the first deadline among the others
  std::optional<Ending> broken_;   // why the port no longer works
  std::optional<Ending> aborted_;  // for good
  std::vector<Lane> lanes_;        // by then; one a tag that was called since
  Deaths deaths_;
  std::uint64_t absent_ = 0;  // bit r: rank r is dead or silent
  std::uint64_t lacked_ = 0;
  std::uint64_t wish_ = 0;
  std::vector<double> losses_told_;
};

}  // namespace tarpon
