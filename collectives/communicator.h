// The library's front door: a job's ranks, and AllReduce among them.
//
//   auto communicator = Communicator::connect(options);           // collective: all ranks call it
//   if (!communicator) return report(communicator.error());
//   auto result = (*communicator)->allreduce({.input = gradients, .output = gradients,
//                                             .count = n, .function = ReduceOp::avg});
//   (*communicator)->close(10s);                                   // collective as well
//
// Thread-safe unless said otherwise: any thread may call, on any tag. Calls of one tag match across
// ranks in the order in which they were made, so one thread at a time should use a tag.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/connection.h"
#include "transport/counters.h"
#include "xdp/result.h"

namespace tarpon {

/// An AllReduce on its way. Copyable; all copies name the same call.
class AsyncAllreduce;

class Communicator {
 public:
  /// Rendezvous, then the data path. Blocks for at most options.rendezvous.timeout. Errors are the
  /// same on every rank that could be reached and name the rank at fault.
  static Result<std::unique_ptr<Communicator>> connect(const CommunicatorOptions& options);

  /// Outstanding calls end as aborted, here and on the peers. Call close() first to let peers
  /// fetch what they may still miss.
  ~Communicator();

  Rank rank() const;
  std::uint32_t world_size() const;
  const std::vector<RankInfo>& ranks() const;
  std::uint32_t slot_bytes() const;
  tarpon_integrity integrity() const;

  /// Blocks until the call has ended, at most its deadline. The error is for arguments that make no
  /// sense; what happens on the network is in the report.
  Result<Report> allreduce(const AllreduceArguments& arguments);

  /// Starts a call. The buffers belong to it until it is done. Up to 8 calls of a tag run at once;
  /// further ones queue.
  Result<AsyncAllreduce> allreduce_async(const AllreduceArguments& arguments);

  /// Returns when every rank has entered it.
  Result<void> barrier(Duration deadline);

  /// One round of progress for callers without progress thread; sleeps at most `wait` when nothing
  /// moves.
  void poll(Duration wait);

  /// Collective. Serves the peers until all of them have come here too, at most `deadline`.
  Result<void> close(Duration deadline);

  /// The control channel, for exchanges beside the data path. One thread at a time, collective.
  ControlChannel& control();

  PortStatistics port_statistics() const;
  EndpointCounters counters() const;

 private:
  friend class AsyncAllreduce;
  class State;
  explicit Communicator(std::shared_ptr<State> state);
  Result<Report> run(const AllreduceArguments& arguments);
  std::shared_ptr<State> state_;
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
