// What the benchmarks' programs with Gloo share: connecting, the timing rule, the line of a
// measurement, and leaving.
//
// The timing rule is that of the tool: an untimed refill and barrier before each iteration, one
// operation outstanding, from call to return. CPU time is that of the timed calls, all threads.
#pragma once

#include <gloo/rendezvous/context.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace tarpon::bench {

/// The context of this process: its rank and the world size are in RANK and WORLD_SIZE. `store`: a
/// directory that all ranks share.
std::shared_ptr<gloo::rendezvous::Context> connect_gloo(const std::string& store,
                                                        const std::string& interface);

/// Calls of one size.
struct GlooCalls {
  std::string interface;
  int iterations = 0;
  int warmup = 0;
  std::size_t bytes = 0;
  std::function<void()> refill;  // before each call
  std::function<void()> run;     // the call
  std::function<bool()> right;   // whether the result of the last call is right
};

/// Makes the calls and prints "BYTES CPU_SECONDS MAX_RSS_KIB PACKETS BYTES TIME_US...": the TCP
/// segments that this network namespace sends in one more call, which is not timed, and the bytes
/// of the interface, whose trains of segments count one header. Where LATE_RANK names the rank, it
/// makes each call LATE_US microseconds after the barrier before it. Throws std::runtime_error if
/// the result is wrong.
void measure_gloo(const std::shared_ptr<gloo::rendezvous::Context>& context,
                  const GlooCalls& calls);

/// Returns when all ranks have called it, or after 30 s. Gloo takes a connection that closes for an
/// error, even after the last call.
void leave_together(const std::string& store, const gloo::rendezvous::Context& context);

}  // namespace tarpon::bench
