// Threads that give trains to the kernel, in place of the thread that drives a UDP port.
//
// Of the time of a driving thread, more than half goes into sends: the kernel copies the bytes, and
// on a virtual interface it also takes them to the receiver's socket.
//
// DESIGN NOTES
// 1. A lane has a ring of slots. The driver fills a slot and moves `given`; the lane sends it and
//    moves `done`; the driver settles it with the pool. So one thread at a time touches the pool,
//    and no lock is held while the kernel copies.
// 2. Trains to one peer and of one flow go to the kernel in order: while a lane holds some, the
//    next ones follow them into that lane. They stay there later too, unless another lane holds
//    fewer trains by two: network interfaces choose their queues by the processor that sends.
// 3. A lane whose socket has no room waits for room itself, so the driver goes on receiving.
// 4. Every packet can be a train of its own, so a ring has as many slots as the pool has frames.
//    What a slot points to comes from a stack, since few trains are on their way at a time: the
//    same few stay in the cache.
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "transport/ports/udp_train.h"
#include "transport/ports/wake_event.h"
#include "xdp/base/result.h"

namespace tarpon {

/// All functions are for the thread that drives the port.
class SendLanes {
 public:
  /// Returns the descriptor that packets of a flow are sent from.
  using Descriptor = std::function<int(std::uint8_t flow)>;

  struct Options {
    std::uint32_t count = 1;  // threads
    std::size_t frames = 0;   // of the pool
    std::size_t flows = 1;
  };

  /// Starts the threads. `destinations`: as TrainMessages. `driver`: what ends the sleep of the
  /// driving thread; it outlives this object. Errors: io, as start_error().
  static Result<std::unique_ptr<SendLanes>> start(const Options& options,
                                                  std::span<const sockaddr_in> destinations,
                                                  WakeEvent& driver);
  /// REQUIRES: recall() was called since the last give().
  ~SendLanes();
  SendLanes(const SendLanes&) = delete;
  SendLanes& operator=(const SendLanes&) = delete;

  /// Takes all trains from the queue of `pool`. Without memory it leaves some there. The memory of
  /// a train stays unchanged until the train is settled.
  void give(TrainPool& pool, const Descriptor& descriptor);

  /// Settles with `pool` the trains that the kernel has taken or refused. Returns the errno of one
  /// that ended as SendOutcome::fatal, else 0.
  int settle(TrainPool& pool);

  /// Takes back all trains and settles them. Trains that were not sent return to the queue of
  /// `pool`. Waits for the running send of each lane, at most a millisecond where a socket has no
  /// room. Returns as settle().
  int recall(TrainPool& pool);

  /// Whether lanes hold trains that are not settled.
  bool busy() const { return held_ > 0; }

  /// Has the next train that is sent end the driver's sleep. Returns false if one was sent since
  /// the last settle(): the driver must not sleep.
  bool fall_asleep();

  /// Trains settled since the start.
  std::uint64_t settled() const { return settled_; }

 private:
  class Lane;
  /// Trains to one peer and of one flow.
  struct Way {
    Lane* lane = nullptr;        // that got the latest train; null: none has
    std::uint32_t position = 0;  // of that train in the lane's ring
  };

  SendLanes(const Options& options, std::span<const sockaddr_in> destinations, WakeEvent& driver);
  Lane& lane_for(const Way& way);
  std::unique_ptr<TrainMessages> take_message();
  void note_sent();

  const Options options_;
  const std::vector<sockaddr_in> destinations_;
  WakeEvent& driver_;
  std::atomic<bool> asleep_ = false;                      // the driver sleeps, or is about to
  std::vector<Way> ways_;                                 // by peer, then by flow
  std::vector<std::unique_ptr<TrainMessages>> messages_;  // a stack of those that no slot uses
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::size_t held_ = 0;
  std::uint64_t settled_ = 0;
};

}  // namespace tarpon
