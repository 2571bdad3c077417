// The control mesh of a job: a TCP connection between every two ranks, for news that must not wait
// for a deadline, or depend on a datagram: deaths, aborts, verdicts.
//
// A rank is *gone* when its connection ends: orderly, after its GOODBYE, or dead without one. The
// kernel ends the connections of a killed process at once. It does not where the process has
// forked children that still run: they hold the sockets.
//
// Two ranks that lose their connection while both live would each call the other dead, and the
// rest would not know whom to believe: a rank tells the others whom it has lost, and is believed by
// them when it is lower than the lost one. So all drop the same rank of the two.
//
// One thread a mesh reads, asleep in epoll: nothing wakes it while nothing comes. It also calls the
// handlers, one at a time, with no lock held. The other members may be called from any thread, also
// from handlers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/mesh/link.h"
#include "transport/port.h"
#include "transport/time.h"
#include "xdp/result.h"

namespace tarpon::mesh {

class Mesh {
 public:
  struct Handlers {
    /// Once a rank. `evidence`: why it is dead; empty when it has said goodbye.
    std::function<void(Rank, const std::string& evidence)> gone;
    std::function<void(Rank, const Frame&)> frame;
    /// What time asks for; returns when it wants to be called next.
    std::function<Time(Time now)> tick;
  };

  /// `links` by rank, as open_mesh() gives them. Errors: io.
  static Result<std::unique_ptr<Mesh>> make(Rank rank, std::vector<Link> links);

  /// Says goodbye if nobody has yet. No handler runs any more when it returns.
  ~Mesh();

  /// Starts the thread. REQUIRES: not started yet.
  void start(Handlers handlers);

  /// Never blocks. To a rank that is gone: nothing happens.
  void send(Rank to, FrameKind kind, std::string_view body);
  void send_all(FrameKind kind, std::string_view body);

  /// Has tick() called soon.
  void wake();

  /// Tells all that what ends from now on ends in order.
  void say_goodbye();

  /// Ends the thread; connections stay open until destruction. Not from a handler.
  void stop();

 private:
  class Impl;
  explicit Mesh(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tarpon::mesh
