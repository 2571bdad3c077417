// The library's front door: a job's ranks, and AllReduce among them.
//
//   auto options = CommunicatorOptions::from_environment();        // or for_rank()
//   if (!options) return report(options.error());
//   auto communicator = Communicator::connect(*options);          // collective: all ranks call it
//   if (!communicator) return report(communicator.error());
//   auto result = (*communicator)->allreduce({.input = gradients, .output = gradients,
//                                             .count = n, .function = ReduceOp::avg});
//   (*communicator)->close(10s);                                   // serves the others to the end
//
// The others know within 300 ms that a rank's process was killed, by its control connection. A rank
// whose host is gone is dead when exact calls have needed it for CommunicatorOptions::dead_after in
// all, or one shrink() for so long, and at least half of the live ranks do not hear it. Exact calls
// end as peer_dead then, those in flight and all later ones; bounded calls go on without that rank.
// shrink() makes a new communicator of the survivors. A rank that is destroyed without close() is
// dead to the others.
//
// A rank that is so late that the others would have to retain more for it than their limit
// (CommunicatorOptions::retain_bytes) is waited for until the deadline of a bounded call, then it
// is evicted: it is as dead to the others, and all its calls end as evicted. So do the calls of a
// rank that was dead by silence, when it runs again. Both come back so:
//   the excluded rank                              the others
//   allreduce() says Status::evicted               agree() says who wants back
//   fresh = rejoin(deadline)                       fresh = rejoin(deadline)
//   fresh->resync(root, state, bytes, deadline)    the same
//
// Thread-safe unless said otherwise: any thread may call, on any tag. Calls of one tag match across
// ranks in the order in which they were made, so one thread at a time should use a tag.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/options.h"
#include "collectives/rank_info.h"
#include "collectives/step_verdict.h"
#include "xdp/result.h"

namespace tarpon {

class ControlChannel;     // collectives/rendezvous/control.h
struct EndpointCounters;  // transport/counters.h
struct PortStatistics;    // transport/port.h
enum class Regroup : std::uint8_t;

/// An AllReduce on its way. Copyable; all copies name the same call.
class AsyncAllreduce;

class Communicator {
 public:
  /// Rendezvous, then the network where `options` leave it open, then the data path. Blocks for at
  /// most options.rendezvous.timeout. Errors are the same on every rank that could be reached and
  /// name the rank at fault, or the pair of ranks between which packets do not arrive. Slots fit
  /// what every pair carries in both directions (SlotSizing::by_path).
  static Result<std::unique_ptr<Communicator>> connect(const CommunicatorOptions& options);

  /// Outstanding calls end as aborted, here and on the peers. Call close() first to let peers
  /// fetch what they may still miss.
  ~Communicator();

  Rank rank() const;
  std::uint32_t world_size() const;
  const std::vector<RankInfo>& ranks() const;
  std::uint32_t slot_bytes() const;
  /// Why slots are smaller than the interfaces allow, in one line that names the pair of ranks
  /// whose path carries less; empty: they are not. Alike on all ranks.
  const std::string& shrunk_slots() const;
  tarpon_integrity integrity() const;

  /// Blocks until the call has ended, at most its deadline. A call that this rank refuses (its
  /// arguments make no sense, its deadline is not positive, there is no memory for its buffers)
  /// ends as Status::aborted on every rank, with Report::abort_reason, and later calls pair as
  /// before. Errors: invalid_argument for the tag of barriers, which takes no number.
  Result<Report> allreduce(const AllreduceArguments& arguments);

  /// Starts a call. The buffers belong to it until it is done. Up to 8 calls of a tag run at once;
  /// further ones queue.
  Result<AsyncAllreduce> allreduce_async(const AllreduceArguments& arguments);

  /// Returns when every rank has entered it.
  Result<void> barrier(Duration deadline);

  /// From any thread: ends every outstanding call, here and on all other ranks, as aborted, blaming
  /// this rank, with `reason` in the detail; agree() halts. A call that is being decoded or filled
  /// keeps its result. The calls of one tag no longer match across ranks then: later calls end the
  /// same way at once. Only shrink(), which makes a communicator that works, close() and
  /// destruction still work; a thread that waits in one of these goes on waiting, until its
  /// deadline. A second abort() has no effect. The abort() of a rank that is evicted, dead to the
  /// others or closed ends only its own calls.
  void abort(const std::string& reason);

  /// What becomes of step `step`, alike on all ranks that get a verdict
  /// (collectives/membership/agreement.h): decided by the lowest live rank from the reports that it
  /// has within half of `deadline`, by CommunicatorOptions::loss_budgets. Blocks until `deadline`
  /// at most; halts without a verdict. A late rank gets the verdict that was given, of the last 64
  /// steps. Steps ascend; one thread at a time asks for one step.
  StepVerdict agree(std::uint64_t step, const LossReport& report, Duration deadline);

  /// Collective among the ranks that are neither dead nor evicted, with the same deadline: a
  /// communicator of them, ranks 0.. in the old order, a new job to the network. Blocks until
  /// `deadline` at most. This one ends all its calls as aborted, and is of no use but for another
  /// try. When a rank dies meanwhile, it may end at the deadline on every rank: call it again.
  /// Errors: timeout and unavailable, naming the ranks that did not come; those of connect().
  /// AF_XDP: a receive queue is free again only when this one is destroyed, so that the new one may
  /// take io_uring.
  Result<std::unique_ptr<Communicator>> shrink(Duration deadline);

  /// Collective among the live and the evicted ranks, and those that were dead by silence and call
  /// it, with the same deadline: a communicator of them all, as by shrink(), but for the order: the
  /// lowest live or evicted rank is rank 0, and the others follow in the old order. A rank whose
  /// calls end as Status::evicted calls it to come back; the others see that in
  /// StepVerdict::rejoin, alike on all of them at the same step, and call it too. Where no rank is
  /// live or evicted, since two halves of the job have excluded each other, it waits for every rank
  /// whose process is not gone.
  Result<std::unique_ptr<Communicator>> rejoin(Duration deadline);

  /// Of a communicator that shrink() or rejoin() made: why ranks of the one before are not in it,
  /// by their ranks there: "rank 1 is dead: silent for 5 s (without majority)", with "; " between
  /// them. `without majority`: exactly half of the live ranks did not hear that rank, so the other
  /// half may have made a communicator of its own. Empty after connect().
  const std::string& left_out() const { return left_out_; }

  /// Ranks that wait in rejoin() for this one: bit r: rank r. Not alike on all ranks at one time;
  /// whom a verdict has named here is among them.
  std::uint64_t rejoin_wanted() const;

  /// Collective; exact. Afterwards `data` holds on every rank the `bytes` bytes that it holds on
  /// `root`, whatever they are. `root` and `bytes` are alike on all ranks. 4 MiB at a time, through
  /// a buffer of that size. Errors: invalid_argument; mismatch; timeout; unavailable. After an
  /// error `data` is untouched from some piece on, and always on `root`.
  Result<void> resync(Rank root, void* data, std::uint64_t bytes, Duration deadline);

  /// One round of progress for callers without progress thread; sleeps at most `wait` when nothing
  /// moves.
  void poll(Duration wait);

  /// Says goodbye: this rank makes no further call. Serves the peers until every live rank has
  /// passed the operations of this rank, or has said goodbye too, at most `deadline`. Not
  /// collective: ranks may close at any time, whichever other ranks are dead. Errors: timeout,
  /// naming the ranks that still lack operations.
  Result<void> close(Duration deadline);

  /// The control channel, for exchanges beside the data path. One thread at a time, collective.
  ControlChannel& control();

  PortStatistics port_statistics() const;
  EndpointCounters counters() const;

  /// Over how many flows this rank's large messages go at present: as asked for, or as a trial has
  /// shown.
  std::uint32_t flows() const;

 private:
  friend class AsyncAllreduce;
  class State;
  explicit Communicator(std::shared_ptr<State> state);
  Result<Report> run(const AllreduceArguments& arguments);
  Result<void> run_exact(const AllreduceArguments& arguments, const char* what);
  Result<std::unique_ptr<Communicator>> regroup(Regroup what, Duration deadline);
  std::shared_ptr<State> state_;
  std::string left_out_;
};

struct PendingCall;

class AsyncAllreduce {
 public:
  bool done() const;
  /// Blocks until done; the calling thread moves packets meanwhile.
  Report wait();

 private:
  friend class Communicator;
  AsyncAllreduce(std::shared_ptr<Communicator::State> state, std::shared_ptr<PendingCall> call);
  std::shared_ptr<Communicator::State> state_;
  std::shared_ptr<PendingCall> call_;
};

}  // namespace tarpon
