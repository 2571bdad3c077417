// What the scale model is asked, and what it answers: one cell per algorithm and rank count, each a
// sequence of isolated operations on its own fabric. A cell follows from its options alone, so the
// number of threads changes no result.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tools/scale/algorithms.h"
#include "tools/scale/bounded_flow.h"
#include "tools/scale/reliable_flow.h"
#include "tools/scale/straggler_trace.h"
#include "transport/simulated/delay_trace.h"
#include "transport/time.h"
#include "xdp/base/result.h"

namespace tarpon::scale {

/// The network, the same for all algorithms. Per rank a sending interface, then the link's delay,
/// then the queue before the link to the receiver. Everything else has the defaults of LinkOptions.
///
/// To add a property of links: an option here, its field of LinkOptions in fabric_options().
struct Network {
  double bits_per_second = 10e9;                   // towards each rank
  double egress_bits_per_second = 10e9;            // of each rank's interface; 0: does not limit
  std::uint64_t queue_bytes = 1 << 20;             // before the link towards a rank; 0: unlimited
  std::uint64_t burst_bytes = 0;                   // that this link lets pass at once, as tbf does
  double core_bits_per_second = 0;                 // shared by all; 0: none
  Duration delay = std::chrono::microseconds(25);  // one way
  std::uint32_t mtu = 1500;
  std::uint32_t frame = 38;  // bytes on the wire beyond the MTU: Ethernet's, with preamble and gap
  double loss = 0;           // of each packet
  double tail = 1;           // tools/scale/tail.h
  double stragglers = 0.002;
  double background_bits_per_second = 0;  // offered from rank 0 to 1 and from 1 to 0; 0: none
  std::uint32_t background_burst_bytes = 64 << 10;
  std::vector<DelaySample> delay_trace;          // by time since the cell's start
  std::vector<StragglerSample> straggler_trace;  // not empty: in place of the drawn episodes
  /// Above 0: kLateRank begins every operation so much later than the others, in place of the drawn
  /// episodes, and completion times count from then on.
  Duration late{};
};

struct Plan {
  Network network;
  std::vector<std::uint32_t> ranks;
  std::vector<Algorithm> algorithms;
  std::uint64_t bytes = 25 << 20;
  std::uint32_t operations = 0;  // that count, per cell; 0: by operations_per_cell()
  std::uint64_t seed = 1;
  std::optional<Duration> bound;    // of the whole operation; nullopt: learnt
  double loss_target = 0.001;       // mean share that a learnt bound may lose
  std::uint32_t train_packets = 0;  // 0: by packets_per_train()
  TailLoss tail_loss = TailLoss::probe;
  Repair repair = Repair::all;  // of the bounded algorithm
  unsigned threads = 0;         // 0: one per processor
};

/// Checks that the plan is possible. The error is one line.
Result<void> check(const Plan& plan);

struct CellResult {
  Algorithm algorithm = Algorithm::ring;
  std::uint32_t ranks = 0;
  std::uint32_t train_packets = 1;
  std::vector<Duration> completions;  // sorted; warm-up and calibration left out
  double lost_mean = 0;               // share of contributions that a result lacks
  double lost_worst = 0;              // of one rank in one operation
  double cut = 0;                     // part of lost_mean that bounds and early closing cut, about
  double late = 0;                    // ranks per operation that fetch the result
  double early_share = 0;             // of stages: closed early,
  double bound_share = 0;             // by the bound
  std::vector<Duration> bounds;       // sorted; of each operation that counts
  std::uint64_t packets = 0;
  std::uint64_t retransmitted = 0, probes = 0, timeouts = 0;  // reliable
  std::uint64_t queue_drops = 0;                              // trains
};

/// Time of the largest transfer schedules without loss or tail: 2(N-1)/N of the bucket's wire bytes
/// at the slower of the two rates, and `steps` times the delay.
Duration quiet_time(const Plan& plan, std::uint32_t ranks, std::uint32_t steps);

/// Time of a bucket's wire bytes on a link: the unit of published times.
Duration bucket_time(const Plan& plan);

/// Packets per train: the fewest (a power of two, at most 64) with which an operation has no more
/// than kTrainsPerOperation trains.
std::uint32_t packets_per_train(const Plan& plan, std::uint32_t ranks);
inline constexpr std::uint64_t kTrainsPerOperation = 100'000;

/// 100, or 50 above 512 ranks, so that all cells end in minutes; P99 is then the longest time.
std::uint32_t operations_per_cell(const Plan& plan, std::uint32_t ranks);

/// `done`: called after each operation, from any thread.
CellResult run_cell(const Plan& plan, Algorithm algorithm, std::uint32_t ranks,
                    const std::function<void()>& done);

/// `progress`: called a few times a second in the calling thread, with the done and the total work.
/// Results in the order of (ranks, algorithms).
std::vector<CellResult> run_plan(const Plan& plan,
                                 const std::function<void(double, double)>& progress);

}  // namespace tarpon::scale
