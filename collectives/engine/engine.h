// Runs AllReduces of one rank over one port: schedules on an endpoint, without thread or clock.
//
// The Communicator drives it with real time; the simulator drives it with virtual time. One thread
// at a time, except for the pieces of work on the buffers of calls (piece.h), which run outside.
#pragma once

#include <memory>
#include <memory_resource>
#include <optional>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/engine/call/float_buffer_pool.h"
#include "collectives/engine/call/pending_call.h"
#include "collectives/engine/call/running_call.h"
#include "collectives/engine/call_pieces.h"
#include "collectives/engine/call_rules.h"
#include "collectives/engine/coded/coded_calls.h"
#include "collectives/engine/departures.h"
#include "collectives/engine/eviction_wish.h"
#include "collectives/engine/hosts/host_calls.h"
#include "collectives/engine/learning/learnt_times.h"
#include "collectives/engine/unbegun_calls.h"
#include "collectives/flight/flight.h"
#include "collectives/mechanisms.h"
#include "collectives/membership/epoch_history.h"
#include "collectives/membership/facts.h"
#include "transport/endpoint.h"
#include "transport/port.h"
#include "xdp/base/result.h"

namespace tarpon {

struct EngineOptions {
  EndpointOptions endpoint;
  std::uint32_t slot_bytes = 1408;  // agreed by all ranks; a multiple of 64, <= max_payload
  Mechanisms mechanisms;            // those of the endpoint are set in `endpoint` as well
  /// Memory for the buffers of calls: coded buckets, contributor masks, retained shards. If it
  /// refuses an allocation, only that call ends, as aborted on all ranks. Outlives the engine and
  /// the calls.
  std::pmr::memory_resource* call_memory = std::pmr::new_delete_resource();
  /// Work on a call's buffers that moves more bytes than this is done in pieces of this size: a few
  /// hundred microseconds each.
  std::uint64_t piece_bytes = 1 << 20;
};

class Engine {
 public:
  /// `port` outlives the engine.
  Engine(const EngineOptions& options, Port& port);
  ~Engine();

  /// Takes the call; buffers belong to the engine until `done`. Every call takes the next number of
  /// its tag. A call that rules() refuse ends at once as aborted, here and at the peers, which this
  /// rank tells. Algorithm::automatic runs tar. The first form searches the input for NaN if the
  /// mechanisms say so; the second takes the result of CallRules::looks_nonfinite(), which the
  /// caller ran between `asked` and `now`, in any thread. The deadline of the call counts from
  /// `asked`. `held`: the call has its number, but it does not begin before release(), and neither
  /// do later calls of its tag. Until then its `shares` may be changed.
  std::shared_ptr<PendingCall> submit(const CallArguments& arguments, Time now);
  std::shared_ptr<PendingCall> submit(const CallArguments& arguments, bool nonfinite, Time asked,
                                      Time now, bool held = false) noexcept;
  /// Lets the held calls of `tag` begin, at the next progress().
  void release(std::uint32_t tag) { unbegun_.release(tag); }
  /// The number that the next call of `tag` takes.
  std::uint32_t next_number(std::uint32_t tag) const { return unbegun_.next_number(tag); }
  /// Which calls submit() refuses. Any thread, but not during HostCalls::share().
  const CallRules& rules() const { return rules_; }

  /// How many of the next calls of `tag` a rank that takes part in them has ended, as far as heard.
  /// A bounded call of such a number contributes nothing. 0 without Mechanisms::retention.
  std::uint32_t behind(std::uint32_t tag) const {
    if (!options_.mechanisms.retention) return 0;
    return endpoint_.tags().ended_elsewhere(tag, next_number(tag));
  }

  /// Runs one round: receives a batch, delivers it, and sends the packets that are due. Returns
  /// false when no packet moved. If memory for the buffers of a call is refused, that call ends; if
  /// other memory is refused, the process ends. REQUIRES: no piece runs.
  bool progress(Time now) noexcept;

  /// When progress() has something to do even if no packet arrives. Pieces do not count.
  Time next_deadline() const;

  /// The work on the buffers of calls: encoding before a call begins; then the copy of its shard
  /// for the peers, decoding and filling. The driver takes its pieces. While one runs, all
  /// functions but progress() may be called; a call that they end is done, and its buffers are
  /// released, once its piece has ended.
  CallPieces& pieces() { return pieces_; }

  /// The calls through the memory of the host: those of Algorithm::hosts, which are refused before
  /// HostCalls::share(). EndpointOptions::kept_tags has to be hosts::kOwnTags then. The driver asks
  /// them before it sleeps.
  hosts::HostCalls& host_calls() { return host_calls_; }

  /// Calls that are not done.
  std::size_t outstanding() const { return running_.size() + unbegun_.open() + pieces_.ending(); }

  /// Gives up every outstanding call: it ends as `aborted`, here and at the peers, which this rank
  /// tells. A call that is over, and waits for the port or its pieces, keeps its result.
  void abort(Time now);

  /// Ends every outstanding call at once: afterwards no work touches its buffers, and the port
  /// points into none. Does abort() first. A call that is over, but whose output needs more work,
  /// ends as `aborted` here. REQUIRES: no piece runs, no thread is inside the port.
  void drop_calls(Time now);

  /// Does abort(), blaming `origin`, for `reason`. Every later call ends like this at once.
  void abort_for_good(Rank origin, const std::string& reason, Time now);

  /// Stores what the control mesh says about a rank. Exact calls that need a rank which is dead,
  /// evicted or has left end with that status, now and later; bounded ones go on without it. A rank
  /// that left and serves still takes part in the calls that it has made. If this rank itself is
  /// evicted or dead to the others, all its calls end as evicted, now and later, and the peers are
  /// not told.
  void learn(const Fact& fact, Time now);

  /// The next number of each tag that some live rank, this one included, has not passed, as far as
  /// heard.
  std::vector<NextNumber> unpassed() const;

  /// Returns and forgets the ranks that left and whose calls have all ended here. Bit r: rank r.
  std::uint64_t take_passed();

  /// Ranks that running exact calls lack and that are silent now: bit r: rank r.
  std::uint64_t awaited() const;

  /// Returns and forgets the ranks to be evicted: for as long as a deadline there was no room to
  /// retain the shards of bounded calls for them. Bit r: rank r.
  std::uint64_t take_eviction_wish() { return wish_.take(); }

  /// The agreed setting of later coded calls, and the evidence of ended ones.
  CodedCalls& coded_calls() { return coded_calls_; }
  /// The next number of each tag that was called: calls with lower numbers have begun here or wait.
  std::vector<EpochRecord::Start> next_numbers() const;

  /// The endpoint, for messages on verdicts, ranks in rejoin(), and what it is doing. The engine
  /// alone submits operations to it and moves its packets.
  const Endpoint& endpoint() const { return endpoint_; }
  Endpoint& endpoint() { return endpoint_; }

  /// The current state, for the status socket.
  FlightSnapshot snapshot(Time now) const;
  /// What ended calls have taught. It lives as long as the engine.
  LearntTimes& learnt() { return learnt_; }

 private:
  const CallEnding* final_ending() const;
  void open(const UnbegunCalls::Waiting& next, Time now);
  bool start(const UnbegunCalls::Waiting& next, Time now) noexcept;
  void start_waiting(Time now);
  void pass_over(const PendingCall& call, Time now) noexcept;
  void handle_events(Time now);
  void step(Time now);
  void note_pause(Time now);
  void move_hosted(Time now);
  void give_up(Rank origin, const std::string& detail, Time now);
  void note_absent(Rank rank);
  void note_silent(Rank rank, bool silent, Time now);
  void end_by_exclusion(const Fact& own, Time now);
  void fail_all(Time now, const Error& error);

  const EngineOptions options_;
  Port& port_;
  hosts::HostCalls host_calls_;
  const CallRules rules_;
  Endpoint endpoint_;
  LearntTimes learnt_;
  CodedCalls coded_calls_;
  FloatBufferPool partial_buffers_;  // of partial results in float32
  std::vector<std::unique_ptr<RunningCall>> running_;
  CallPieces pieces_;
  UnbegunCalls unbegun_;
  std::optional<CallEnding> broken_;   // why the port no longer works
  std::optional<CallEnding> aborted_;  // for good, or this rank is excluded
  Facts facts_;
  Departures departures_;
  std::uint64_t absent_ = 0;  // bit r: rank r is gone or silent
  EvictionWish wish_;
  Time driven_{};  // when progress() ran last, or the first running call was submitted
};

}  // namespace tarpon
