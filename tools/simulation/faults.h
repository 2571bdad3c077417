// The faults of a simulation by name: each is on or off in a seed, and can be asked for alone.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>

#include "xdp/base/result.h"

namespace tarpon {

/// To add a fault: add its name to faults.cc, its draw to draw.cc, and what it
/// allows to judge/circumstances.cc, judge/judge.cc and judge/judge_blame.cc.
enum class FaultKind : std::uint8_t {
  loss,             // of each packet, up to 30 %
  burst_loss,       // Gilbert-Elliott on every ingress link: enters 0.01-5 %, leaves 5-70 %
  mask,             // any subset of the first 8 packets from one rank to another
  duplicate,        // up to 50 %
  reorder,          // up to 50 % are held back
  corrupt,          // one bit, up to 10 %
  truncate,         // up to 10 %
  tail,             // Pareto delays, P99/P50 up to 10
  slow_link,        // a bandwidth, a short queue and perhaps a delay on every ingress link
  policer,          // a token bucket on the victim's egress
  background,       // bursts or a TCP flow to the victim, over a slow link
  partition,        // the victim is cut off for a while
  one_way,          // the same, but only what it sends is lost
  jam,              // what is sent to the victim waits, then comes at once
  pause,            // the victim does nothing for a while
  slow_rank,        // the victim does something only every so often
  clock_jump,       // the victim's monotonic clock jumps by 10 s or an hour
  drift,            // the victim's clock is 500 ppm fast or slow
  starved_frames,   // a port has one or two frames to send with
  starved_buffers,  // a receive buffer of a few packets
  mismatch,         // the victim asks for something else in one call
  abort,            // the victim gives its outstanding calls up
  two_jobs,         // another job's packets arrive as well, and ours there
  crash,            // the victim's process dies in a train of packets; the others learn of it 1 to
                    // 300 ms later; in half of the seeds it is started anew then, and sends again
  evict,            // the victim is evicted, which all are told within 2 ms
  nonfinite,        // an input of the victim holds NaN or infinity in one call of each tag
  flow_limit,       // each flow has a token bucket, or a slow wire and queue, of its own
  shared_core,      // all packets cross one more link, with a queue
  broken_port,      // the victim's port fails; its process ends with that, as in a crash
  hostile,          // up to 30 % of the packets have a forged twin (tools/simulation/hostile.h)
  lies,             // up to 5 % have a twin of LieGroup::numbering, which knows the cookie
  refuse,           // one call of each tag has arguments at the victim that its engine refuses
  leave,            // the victim says goodbye, serves what it has made, and ends
  late_call,        // the victim comes to one call of each tag when the others' deadline has passed
  no_memory,        // allocations for the buffers of the victim's calls fail, up to 20 % of them
  count
};

inline constexpr std::size_t kFaultKinds = static_cast<std::size_t>(FaultKind::count);
using FaultSet = std::bitset<kFaultKinds>;

std::string_view name(FaultKind kind);

inline bool has(const FaultSet& set, FaultKind kind) {
  return set[static_cast<std::size_t>(kind)];
}

/// What "all" means.
inline FaultSet all_faults() {
  return FaultSet{}.set();
}

/// Names with commas between them, "all" or "none". Errors: invalid_argument.
Result<FaultSet> parse_faults(std::string_view list);

/// The names, with commas; "none".
std::string describe(const FaultSet& set);

}  // namespace tarpon
