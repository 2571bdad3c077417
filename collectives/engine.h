// Runs AllReduces of one rank over one port: schedules on an endpoint, without thread or clock.
//
// The Communicator drives it with real time; the simulator drives it with virtual time. One thread
// at a time.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/allreduce.h"
#include "transport/endpoint.h"
#include "transport/port.h"
#include "xdp/result.h"

namespace tarpon {

class AllreduceOperation;

/// A submitted call. Shared by the caller and the engine; any thread may read `report` once `done`.
struct PendingCall {
  AllreduceArguments arguments;
  Report report;
  std::atomic<bool> done = false;
};

struct EngineOptions {
  EndpointOptions endpoint;
  std::uint32_t slot_bytes = 1408;  // agreed by all ranks; a multiple of 64, <= max_payload
};

class Engine {
 public:
  /// `port` outlives the engine.
  Engine(const EngineOptions& options, Port& port);
  ~Engine();

  /// Takes the call; buffers belong to the engine until `done`. Errors: invalid_argument.
  Result<std::shared_ptr<PendingCall>> submit(const AllreduceArguments& arguments, Time now);

  /// One round: receive a batch, deliver, send what is due. False when nothing moved.
  bool progress(Time now);

  /// When progress() has something to do even if no packet arrives.
  Time next_deadline() const;

  /// Calls that are not done.
  std::size_t outstanding() const { return running_.size() + waiting_.size() - expired_; }

  /// Gives every outstanding call up: it ends as `aborted` here and, told by us, at the peers.
  void abort(Time now);

  const EndpointCounters& counters() const { return endpoint_.counters(); }
  const Port& port() const { return port_; }

 private:
  void start(std::shared_ptr<PendingCall> call, Time submitted, Time now);
  void start_waiting(Time now);
  void expire_waiting(Time now);
  void pass_over(std::uint32_t tag, Time now);
  void handle_events(Time now);
  void step(Time now);
  bool transmit(Time now);
  void fail_all(Time now, const Error& error);

  struct Waiting {
    std::shared_ptr<PendingCall> call;
    Time submitted;
    Time deadline() const { return after(submitted, call->arguments.deadline); }
  };

  const EngineOptions options_;
  Port& port_;
  Endpoint endpoint_;
  std::vector<std::unique_ptr<AllreduceOperation>> running_;
  std::deque<Waiting> waiting_;  // beyond the window of their tag
  std::size_t expired_ = 0;      // of them: over, but their numbers are not taken yet
  Time next_expiry_ = kNever;    // no later than the first deadline among the others
  std::optional<Error> broken_;  // why the port no longer works
};

}  // namespace tarpon
