// The library's front door: a job's ranks, and AllReduce and other collectives among them.
//
//   auto options = CommunicatorOptions::from_environment();        // or for_rank()
//   if (!options) return report(options.error());
//   auto communicator = Communicator::connect(*options);          // collective: all ranks call it
//   if (!communicator) return report(communicator.error());
//   auto result = (*communicator)->allreduce({.input = gradients, .output = gradients,
//                                             .count = n, .function = ReduceOp::avg});
//   (*communicator)->close(10s);                                   // serves the others to the end
//
// When the process of a rank is killed, the other ranks know within 300 ms, by its control
// connection. A rank whose host is gone is dead when exact calls have needed it for
// CommunicatorOptions::dead_after in all, or one shrink() has needed it that long, and at least
// half of the live ranks do not hear it. Then exact calls end as peer_dead, those in flight and all
// later ones; bounded calls go on without that rank. shrink() makes a new communicator of the
// survivors. A rank whose communicator is destroyed without close() is dead to the others.
//
// If a rank is so late that the others would have to retain more for it than their limit
// (CommunicatorOptions::retain_bytes), bounded calls go on without keeping results for it. Once
// that has lasted as long as a call's deadline, the others evict it: they treat it as dead, and all
// its calls end as evicted. So do the calls of a rank that
// was dead by silence and runs again. Both come back this way:
//   the excluded rank                              the others
//   allreduce() says Status::evicted               agree() names it in StepVerdict::rejoin
//   fresh = rejoin(deadline)                       fresh = rejoin(deadline)
//   fresh->resync(root, state, bytes, deadline)    the same
//
// A communicator belongs to the process that made it. In a child that fork() made, each function
// returns at once: with Error::unavailable, or with an empty value, and abort() does nothing. The
// destructor leaks there. The child may connect() by itself, as a rank of another job.
//
// Exact calls give the same bits on all ranks. Sums, averages and products of floats depend on the
// order of addition in their last bits. That order follows from the number of ranks, the count, the
// type, the algorithm, the shares, how ranks that share memory lie on hosts (hosts()), and the
// number of the call within its tag, by which the work rotates among the ranks. So a run that makes
// the same calls, with its ranks placed alike, has the same bits. Without Mechanisms::rotation
// (TARPON_ORDER=fixed) equal inputs give equal bits in every call and every such run, also in one
// that begins at a checkpoint. Integers, minima and maxima have the same bits in
// any order. Bounded calls, which add what arrives, and calls with
// AllreduceArguments::learn_shares, whose shares follow measurements, are not repeatable.
//
// Thread-safe unless said otherwise: any thread may call, on any tag. Calls of one tag match across
// ranks in the order in which they were made, so one thread at a time should use a tag.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/collective.h"
#include "collectives/options.h"
#include "collectives/rank_info.h"
#include "collectives/step_verdict.h"
#include "xdp/base/result.h"

namespace tarpon {

class ControlChannel;     // collectives/rendezvous/control.h
class CallKeeper;         // collectives/driver/call_keeper.h
struct EndpointCounters;  // transport/counters.h
struct PendingCall;       // collectives/engine/call/pending_call.h
struct PortStatistics;    // transport/port.h

/// An AllReduce on its way. Copyable; all copies name the same call.
class AsyncAllreduce;

class Communicator {
 public:
  /// Largest job: 64 hosts with 64 ranks each. Above kMostOfOne ranks the hosts have as many ranks
  /// each, at most kMostOfOne of them, and share memory (grid/grid_communicator.h says what else).
  static constexpr std::uint32_t kMostRanks = 4096, kMostOfOne = 64;

  /// Sets up the rendezvous, then the network where `options` leave it open, then the data path.
  /// Blocks for at most options.rendezvous.timeout. Errors are the same on every rank that could be
  /// reached and name the rank at fault, or the pair of ranks between which packets do not arrive.
  /// Slots fit what every pair carries in both directions (SlotSizing::by_path).
  static Result<std::unique_ptr<Communicator>> connect(const CommunicatorOptions& options);

  /// Outstanding calls end as aborted, here and on the peers. Call close() first to let peers
  /// fetch what they may still miss.
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Error: unavailable, in a forked child of the process that made this communicator.
  virtual Result<void> check_process() const = 0;

  virtual Rank rank() const = 0;
  virtual std::uint32_t world_size() const = 0;
  /// Of a job of more than 64 ranks, ranks other than 0 know no more than the host of a rank that
  /// shares neither their host nor their place.
  virtual const std::vector<RankInfo>& ranks() const = 0;
  /// The bit that stands for `rank` in masks of reports and verdicts: its number; in a job of more
  /// than kMostOfOne ranks that of its host. REQUIRES: rank < world_size().
  virtual std::uint32_t mask_bit(Rank rank) const { return rank; }
  virtual std::uint32_t slot_bytes() const = 0;
  /// Why slots are smaller than the interfaces allow, in one line that names the pair of ranks
  /// whose path carries less; empty: they are not. Alike on all ranks.
  virtual const std::string& shrunk_slots() const = 0;
  /// Whether the job multicasts (CommunicatorOptions::multicast): "on", or "off: " and the reason
  /// in one line; empty: it was not asked to. Alike on all ranks. A communicator that is split from
  /// the job does not multicast.
  virtual const std::string& multicast() const = 0;
  /// How the ranks lie on hosts, and how much memory a call shares at most
  /// (CommunicatorOptions::hosts), or "off: " and the reason, in one line; empty where no two ranks
  /// share a host. Alike on all ranks, but for the reason of the rank that cannot share in a
  /// communicator that is split.
  virtual const std::string& hosts() const = 0;
  virtual tarpon_integrity integrity() const = 0;

  /// Blocks until the call has ended, at most its deadline. A call that this rank refuses (its
  /// arguments make no sense, its deadline is not positive, there is no memory for its buffers)
  /// ends as Status::aborted on every rank, with Report::abort_reason, and later calls match as
  /// before. Errors: invalid_argument for tags of the library (reserved_tags.h), which no other
  /// call uses; unavailable for a call that follows where this rank is not behind.
  virtual Result<Report> allreduce(const AllreduceArguments& arguments) = 0;

  /// Starts a call, without waiting for other ranks or calls. The buffers belong to it until it is
  /// done. Up to 8 calls of a tag run at once; further ones queue. So do calls with learnt shares
  /// while measurements are exchanged.
  virtual Result<AsyncAllreduce> allreduce_async(const AllreduceArguments& arguments) = 0;

  /// As allreduce() and allreduce_async(), for the other collectives and for messages between two
  /// ranks. Collectives take numbers of their tag, as AllReduces do. Messages are numbered apart.
  /// Errors: those of allreduce(); invalid_argument for a message whose peer is no other rank, or
  /// whose tag is not below kMessageTags.
  virtual Result<Report> collective(const CollectiveArguments& arguments) = 0;
  virtual Result<AsyncAllreduce> collective_async(const CollectiveArguments& arguments) = 0;

  /// Waits for a message of `tag` that another rank has begun to send to this one, and that this
  /// rank has not begun to receive. Returns its sender: the next Collective::receive of that peer
  /// and tag takes it. One thread at a time probes for a tag. Looks every 200 to 400 us. Errors:
  /// timeout; invalid_argument, of a tag that no message has; unavailable, after an abort().
  virtual Result<Rank> probe(std::uint32_t tag, Duration patience) = 0;

  /// How many of this rank's next calls of `tag` another rank that takes part has ended. Above 0
  /// after a pause of this rank: AllreduceArguments::follows then takes the results one by one,
  /// without inputs. A rank that stood still hears how far the others are when it ends its next
  /// call. 0 in a forked child.
  virtual std::uint32_t behind(std::uint32_t tag) const = 0;

  /// The loss target (Mechanisms::loss_target) of calls that begin from now on. All ranks set it
  /// between the same calls. A call takes the median of the ranks' bounds, so one rank that is a
  /// call behind changes little. Budgets of steps stay as they are. Errors: invalid_argument.
  virtual Result<void> set_loss_target(double share) = 0;

  /// Returns when every rank has entered it.
  Result<void> barrier(Duration deadline);

  /// Ends all outstanding and later calls as aborted, on all ranks. Reports blame this rank and
  /// have `reason` in the detail. agree() halts. Only shrink(), rejoin(), close() and destruction
  /// still work, and a thread that waits in one of these goes on waiting until its deadline. A call
  /// that is being decoded or filled keeps its result. A second abort() has no effect. The abort()
  /// of a rank that is evicted, dead to the others or closed ends only its own calls. Any thread.
  virtual void abort(const std::string& reason) = 0;

  /// Returns the verdict on step `step`, the same on all ranks that get one
  /// (collectives/membership/agreement.h). The lowest live rank decides by
  /// CommunicatorOptions::loss_budgets, from the reports that reach it within half of `deadline`.
  /// Blocks until `deadline` at most; without a verdict the answer is to halt. A late rank gets the
  /// verdict that was given, for the last 64 steps. Steps ascend; one thread at a time asks for one
  /// step. A lost packet costs milliseconds, but 200 ms without a progress thread.
  virtual StepVerdict agree(std::uint64_t step, const LossReport& report, Duration deadline) = 0;

  /// Makes a communicator of some ranks of the job. It shares the job's sockets, threads and
  /// control mesh. These ranks call it with the same list and number; rank i of the new
  /// communicator is ranks[i]. Other ranks need not know. `number`: 1 to 65535; no two calls of a
  /// rank give the same one. Returns when all of them have called it.
  ///
  /// The new communicator has calls, tags, abort(), agree(), dead and evicted ranks and close() of
  /// its own. Options are those of connect(), and each communicator counts by itself: the limit of
  /// its rate, the memory of retained results, the receive buffer that it counts on. It writes no
  /// flight records. split(), shrink() and rejoin() are refused: call them on this communicator. A
  /// rank that destroys it without close() is dead to its other ranks. When this communicator is
  /// destroyed, all calls of the new one end as aborted, now and later. close() of either starts
  /// the progress thread.
  ///
  /// Cost: a round trip, three where ranks share hosts; some memory (`./dev bench groups`), no
  /// descriptor, no thread.
  /// Errors: invalid_argument; mismatch: a rank gives another list under this number; unavailable
  /// and timeout, naming the ranks that did not come. A number is used up unless the error is
  /// invalid_argument.
  virtual Result<std::unique_ptr<Communicator>> split(const std::vector<Rank>& ranks,
                                                      std::uint16_t number, Duration deadline) = 0;

  /// Makes a communicator of the ranks that are neither dead nor evicted; they call it
  /// collectively, with the same deadline. Its ranks count from 0 in the old order, and it is a new
  /// job to the network. Blocks until `deadline` at most. The old communicator ends all its calls
  /// as aborted, and is then of no use except for another try. When a rank dies meanwhile, shrink()
  /// may end at the deadline on every rank: call it again. Errors: timeout and unavailable, naming
  /// the ranks that did not come; those of connect(). AF_XDP: the old communicator keeps its
  /// receive queue until it is destroyed, so the new one may take io_uring.
  virtual Result<std::unique_ptr<Communicator>> shrink(Duration deadline) = 0;

  /// Makes a communicator as shrink() does, but of the live ranks, the evicted ranks, and those
  /// ranks that were dead by silence and call it; all call it with the same deadline. The lowest
  /// live or evicted rank is rank 0, and the others follow in the old order. A rank whose calls end
  /// as Status::evicted calls it to come back. The others see that in StepVerdict::rejoin, all of
  /// them at the same step, and call it too. If no rank is live or evicted, since two halves of the
  /// job have excluded each other, it waits for every rank whose process is not gone.
  virtual Result<std::unique_ptr<Communicator>> rejoin(Duration deadline) = 0;

  /// Why ranks of the previous communicator are not in this one, which shrink() or rejoin() made.
  /// Each has its old number: "rank 1 is dead: silent for 5 s (without majority)"; several are
  /// separated by "; ". `without majority`: exactly half of the live ranks did not hear that rank,
  /// so the other half may have made a communicator of its own. Empty after connect().
  virtual const std::string& left_out() const = 0;

  /// Ranks that wait in rejoin() for this one. Bit r: rank r. Other ranks may know more or fewer at
  /// this moment. Ranks that a verdict has named are among them.
  virtual std::uint64_t rejoin_wanted() const = 0;

  /// Copies `bytes` bytes of `data`, whatever they are, from `root` to all ranks. Collective;
  /// exact. `root` and `bytes` are alike on all ranks. Copies 4 MiB at a time, through a buffer of
  /// that size. Errors: invalid_argument; mismatch; timeout; unavailable. After an error `data` is
  /// untouched from some piece on; on `root` it is never changed.
  Result<void> resync(Rank root, void* data, std::uint64_t bytes, Duration deadline);

  /// Makes one round of progress, for callers without progress thread; sleeps at most `wait` when
  /// nothing moves.
  virtual void poll(Duration wait) = 0;

  /// Says goodbye: this rank makes no further call. Serves the peers until every live rank has
  /// passed the operations of this rank, or has said goodbye too, at most `deadline`. Not
  /// collective: ranks may close at any time, whichever other ranks are dead. Errors: timeout,
  /// naming the ranks that still lack operations.
  virtual Result<void> close(Duration deadline) = 0;

  /// The control channel of the job, for exchanges beside the data path. One thread at a time,
  /// collective over the job.
  virtual ControlChannel& control() = 0;

  /// Has the flight recording written soon, at most once a second. No effect without
  /// FlightOptions::directory. Any thread.
  virtual void record_flight() = 0;

  virtual PortStatistics port_statistics() const = 0;
  virtual EndpointCounters counters() const = 0;

  /// The shares of the next call of `tag` with AllreduceArguments::learn_shares.
  virtual Shares learnt_shares(std::uint32_t tag) const = 0;

  /// Number of flows that carry this rank's large messages at present: the number asked for, or the
  /// result of a trial.
  virtual std::uint32_t flows() const = 0;

 protected:
  Communicator() = default;

 private:
  /// An exact AllReduce of a tag that belongs to the library.
  virtual Result<Report> run_reserved(const AllreduceArguments& arguments) = 0;
  Result<void> run_exact(const AllreduceArguments& arguments, const char* what);
};

class AsyncAllreduce {
 public:
  /// `keeper` runs the call.
  AsyncAllreduce(std::shared_ptr<CallKeeper> keeper, std::shared_ptr<PendingCall> call);

  /// As Communicator::check_process().
  Result<void> check_process() const;
  bool done() const;  // true in a forked child
  /// Blocks until done; the calling thread moves packets meanwhile. In a forked child the status is
  /// Status::failed.
  Report wait();

 private:
  std::shared_ptr<CallKeeper> keeper_;
  std::shared_ptr<PendingCall> call_;
};

}  // namespace tarpon
