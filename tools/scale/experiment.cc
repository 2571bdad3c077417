#include "tools/scale/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "tools/scale/bounds_model.h"
#include "tools/scale/schedule_run.h"

namespace tarpon::scale {
namespace {

constexpr std::uint32_t kWarmUp = 3;  // operations in which TCP's windows open
constexpr Duration kPause = 1ms;      // between operations
constexpr std::uint64_t kLeastCredit = 128 << 10;

FabricOptions fabric_options(const Plan& plan, std::uint32_t ranks, std::uint64_t seed) {
  const Network& network = plan.network;
  FabricOptions options;
  options.ranks = ranks;
  // scale::Senders is the sending interface; the egress link only adds its delays.
  options.egress.delay = network.delay;
  options.egress.tail = network.tail;
  options.egress.tail_median = network.tail > 1 ? network.delay / 4 : Duration{};
  options.ingress.bits_per_second = network.bits_per_second;
  options.ingress.queue_bytes = network.queue_bytes;
  options.ingress.burst_bytes = network.burst_bytes;
  options.core.bits_per_second = network.core_bits_per_second;
  if (network.background_bits_per_second > 0) {
    for (const auto& [from, to] : {std::pair{Rank{0}, Rank{1}}, std::pair{Rank{1}, Rank{0}}}) {
      options.background.push_back(
          {from, to, network.background_bits_per_second, network.background_burst_bytes});
    }
  }
  for (const DelaySample& sample : network.delay_trace) {
    const bool there = sample.rank == kUnknownRank || sample.rank < ranks;
    if (there) options.delay_trace.push_back(sample);
  }
  options.seed = seed;
  return options;
}

/// A bandwidth-delay product and half of the queue: enough to keep the link busy, and no overflow.
std::uint64_t credit_bytes(const Plan& plan, const Trains& trains) {
  const Network& network = plan.network;
  const double round_trip = 2 * std::chrono::duration<double>(network.delay).count();
  const auto product = static_cast<std::uint64_t>(network.bits_per_second / 8 * round_trip);
  const std::uint64_t room = network.queue_bytes > 0 ? network.queue_bytes / 2 : kLeastCredit;
  return std::max(product + room, std::uint64_t{2} * trains.wire_bytes(trains.bytes()));
}

/// The parts that both kinds of cells use.
struct Bench {
  Bench(const Plan& plan, Algorithm algorithm, std::uint32_t ranks)
      : random(plan.seed ^ std::uint64_t{ranks} << 32),
        // The same episodes for every algorithm of a rank count.
        episode_random(random.next()),
        fabric(fabric_options(plan, ranks, random.next())),
        loss(plan.network.loss, random.next() + static_cast<std::uint64_t>(algorithm)),
        senders(ranks, plan.network.egress_bits_per_second),
        tail({plan.network.tail, plan.network.stragglers,
              quiet_time(plan, kReferenceRanks, 2 * (kReferenceRanks - 1))}),
        trace(plan.network.straggler_trace),
        late(plan.network.late),
        episodes(ranks) {}

  /// `counted`: how many operations that count came before; nullopt if this one does not count.
  const std::vector<Episode>& next_episodes(std::optional<std::size_t> counted) {
    if (late > Duration{}) {
      episodes[kLateRank] = {Duration{}, late, true};
    } else if (trace.empty()) {
      tail.draw(episode_random, episodes);
    } else if (counted) {
      replay(trace, static_cast<std::uint32_t>(*counted), episodes);
    }
    return episodes;
  }

  Random random, episode_random;
  Fabric fabric;
  LossDraw loss;
  Senders senders;
  Tail tail;
  const std::vector<StragglerSample>& trace;
  Duration late;
  std::vector<Episode> episodes;
  Time now{kPause};
};

std::uint32_t operations_of(const Plan& plan, Algorithm algorithm, std::uint32_t ranks) {
  const std::uint32_t counting = operations_per_cell(plan, ranks);
  if (algorithm != Algorithm::bounded) return kWarmUp + counting;
  return counting + (plan.bound ? 0 : kCalibration);
}

void run_reliable(const Plan& plan, Bench& bench, CellResult& cell,
                  const std::function<void()>& done) {
  const Network& network = plan.network;
  const Trains trains = tcp_trains(network.mtu, network.frame, cell.train_packets);
  ReliableFlows flows({cell.ranks, trains, network.delay, plan.tail_loss}, bench.fabric, bench.loss,
                      bench.senders);
  ScheduleRun run(cell.algorithm, cell.ranks, plan.bytes, flows, bench.senders);
  for (std::uint32_t i = 0; i < operations_of(plan, cell.algorithm, cell.ranks); ++i) {
    const bool counts = i >= kWarmUp;
    const auto counted = counts ? std::optional(cell.completions.size()) : std::nullopt;
    const auto outcome = run.operate(bench.now, bench.next_episodes(counted));
    bench.now = outcome.idle + kPause;
    if (counts) cell.completions.push_back(outcome.completion - network.late);
    done();
  }
  cell.packets = flows.statistics().packets;
  cell.retransmitted = flows.statistics().retransmitted;
  cell.probes = flows.statistics().probes;
  cell.timeouts = flows.statistics().timeouts;
}

void add(CellResult& cell, const BoundedOutcome& outcome) {
  cell.completions.push_back(outcome.completion);
  cell.lost_mean += outcome.lost_mean;
  cell.lost_worst = std::max(cell.lost_worst, outcome.lost_worst);
  cell.late += outcome.late;
  const double on_time = std::max(1u, cell.ranks - outcome.late);
  for (const StageOutcome& stage : outcome.stages) {
    cell.cut += stage.cut;
    cell.early_share += stage.early / (kStages * on_time);
    cell.bound_share += stage.bound / (kStages * on_time);
  }
}

void run_bounded(const Plan& plan, Bench& bench, CellResult& cell,
                 const std::function<void()>& done) {
  const Network& network = plan.network;
  const Trains trains = tarpon_trains(network.mtu, network.frame, cell.train_packets);
  BoundedFlow flow(
      {cell.ranks, plan.bytes, trains, network.delay, credit_bytes(plan, trains), plan.repair},
      bench.fabric, bench.loss, bench.senders);
  BoundsModel bounds(plan.bound, plan.loss_target, cell.ranks);
  while (cell.completions.size() < operations_per_cell(plan, cell.ranks)) {
    const bool counts = !bounds.calibrating();
    const auto counted = counts ? std::optional(cell.completions.size()) : std::nullopt;
    const Limits limits = bounds.next();
    const BoundedOutcome outcome = flow.operate(bench.now, limits, bench.next_episodes(counted));
    bench.now = outcome.idle + kPause;
    bounds.learn(outcome);
    if (counts) add(cell, outcome);
    if (counts) cell.bounds.push_back(limits.whole);
    done();
  }
  for (double* mean :
       {&cell.lost_mean, &cell.cut, &cell.late, &cell.early_share, &cell.bound_share}) {
    *mean /= static_cast<double>(cell.completions.size());
  }
  std::sort(cell.bounds.begin(), cell.bounds.end());
  cell.packets = flow.packets();
}

/// Trains of one operation: what a cell costs to compute.
double trains_of(const Plan& plan, Algorithm algorithm, std::uint32_t ranks) {
  const double packets = 2.0 * static_cast<double>(plan.bytes) * ranks / plan.network.mtu;
  const double levels = std::log2(ranks);
  double buckets = 1, messages = 2.0 * ranks * (ranks - 1);  // of two buckets a rank
  if (algorithm == Algorithm::halving_doubling) messages = 2.0 * ranks * levels;
  if (algorithm == Algorithm::recursive_doubling) buckets = levels / 2;
  if (algorithm == Algorithm::one_shot) buckets = (ranks - 1) / 2.0;
  return std::max(buckets * packets / packets_per_train(plan, ranks), messages);
}

}  // namespace

Duration quiet_time(const Plan& plan, std::uint32_t ranks, std::uint32_t steps) {
  const Network& network = plan.network;
  const Trains trains = tcp_trains(network.mtu, network.frame, 1);
  const double rate = network.egress_bits_per_second > 0
                          ? std::min(network.bits_per_second, network.egress_bits_per_second)
                          : network.bits_per_second;
  const double wire = static_cast<double>(plan.bytes) * (trains.payload + trains.overhead) /
                      static_cast<double>(trains.payload);
  const double seconds = 2.0 * (ranks - 1) / ranks * wire * 8 / rate;
  return Duration(std::llround(seconds * 1e9)) + steps * network.delay;
}

Duration bucket_time(const Plan& plan) {
  return quiet_time(plan, 2, 0);
}

std::uint32_t packets_per_train(const Plan& plan, std::uint32_t ranks) {
  if (plan.train_packets > 0) return plan.train_packets;
  const std::uint64_t packets = 2 * plan.bytes * ranks / plan.network.mtu;
  std::uint32_t train = 1;
  while (train < 64 && packets / train > kTrainsPerOperation) train *= 2;
  return train;
}

std::uint32_t operations_per_cell(const Plan& plan, std::uint32_t ranks) {
  if (plan.operations > 0) return plan.operations;
  return ranks > 512 ? 50 : 100;
}

Result<void> check(const Plan& plan) {
  const auto refuse = [](std::string text) {
    return fail(Error::Code::invalid_argument, std::move(text));
  };
  const Network& network = plan.network;
  for (const std::uint32_t ranks : plan.ranks) {
    if (ranks >= 2 && ranks <= 4096) continue;
    return refuse(fmt::format("--ranks {}: the model has 2 to 4096 ranks", ranks));
  }
  for (const Algorithm algorithm : plan.algorithms) {
    for (const std::uint32_t ranks : plan.ranks) {
      if (can_run(algorithm, ranks)) continue;
      return refuse(fmt::format("--algorithms {}: {} ranks cannot run it: choose {}",
                                name_of(algorithm), ranks, rank_counts(algorithm)));
    }
  }
  const std::uint32_t most = *std::max_element(plan.ranks.begin(), plan.ranks.end());
  if (plan.bytes < most || plan.bytes > 1ull << 34) {
    return refuse(fmt::format("--bytes {}: choose 1 byte a rank ({}) to 16G", plan.bytes, most));
  }
  if (network.mtu < 576 || network.mtu > 9000) {
    return refuse(fmt::format("--mtu {}: choose 576 to 9000", network.mtu));
  }
  const std::uint64_t train =
      std::uint64_t{network.mtu + network.frame} * packets_per_train(plan, most);
  if (network.queue_bytes > 0 && network.queue_bytes < 2 * train) {
    return refuse(
        fmt::format("--queue {}: two trains of {} bytes do not fit; choose a longer "
                    "queue or a smaller --train",
                    network.queue_bytes, train));
  }
  if (network.tail > 1 && (network.stragglers < 0.0013 || network.stragglers > 0.08)) {
    return refuse(
        fmt::format("--stragglers {:g}%: choose 0.13% to 8%, so that P50 of 8 ranks has "
                    "no episode and P99 has one",
                    network.stragglers * 100));
  }
  if (network.background_bits_per_second > 0 && network.background_burst_bytes == 0) {
    return refuse("--background-burst 0: choose how many bytes come at once, as 64K");
  }
  if (plan.algorithms.empty()) return refuse("--algorithms: name at least one");
  if (network.late > Duration{} &&
      std::count(plan.algorithms.begin(), plan.algorithms.end(), Algorithm::bounded) > 0) {
    return refuse("--late: bounded does not wait for a late rank: leave it out of --algorithms");
  }
  if (network.late > Duration{} && !network.straggler_trace.empty()) {
    return refuse("--late and --straggler-trace both say which ranks are late: leave one out");
  }
  if (!(network.tail >= 1)) return refuse("--tail: choose 1 (none) to 50");
  if (network.delay > 1s || network.late > 1h || (plan.bound && *plan.bound > 1h)) {
    return refuse("--delay is at most 1s, --late and --bound at most 1h");
  }
  if (!(plan.loss_target > 0 && plan.loss_target < 1)) {
    return refuse(fmt::format("--loss-target {:g}%: give a share above 0% and below 100%",
                              plan.loss_target * 100));
  }
  return {};
}

CellResult run_cell(const Plan& plan, Algorithm algorithm, std::uint32_t ranks,
                    const std::function<void()>& done) {
  Bench bench(plan, algorithm, ranks);
  CellResult cell;
  cell.algorithm = algorithm;
  cell.ranks = ranks;
  cell.train_packets = packets_per_train(plan, ranks);
  if (algorithm == Algorithm::bounded) {
    run_bounded(plan, bench, cell, done);
  } else {
    run_reliable(plan, bench, cell, done);
  }
  std::sort(cell.completions.begin(), cell.completions.end());
  cell.queue_drops = bench.fabric.statistics().dropped_queue;
  return cell;
}

std::vector<CellResult> run_plan(const Plan& plan,
                                 const std::function<void(double, double)>& progress) {
  struct Job {
    Algorithm algorithm;
    std::uint32_t ranks;
    double cost;  // of one operation
  };
  std::vector<Job> jobs;
  double total = 0;
  for (const std::uint32_t ranks : plan.ranks) {
    for (const Algorithm algorithm : plan.algorithms) {
      jobs.push_back({algorithm, ranks, trains_of(plan, algorithm, ranks)});
      total += jobs.back().cost * operations_of(plan, algorithm, ranks);
    }
  }
  std::vector<std::size_t> order(jobs.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  // The longest first, so that no thread ends with one.
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return jobs[a].cost > jobs[b].cost; });

  std::vector<CellResult> results(jobs.size());
  std::atomic<std::size_t> next{0};
  std::atomic<std::uint64_t> done{0};
  std::atomic<unsigned> running{0};
  const auto work = [&] {
    for (std::size_t at = next++; at < order.size(); at = next++) {
      const Job& job = jobs[order[at]];
      const auto cost = static_cast<std::uint64_t>(job.cost);
      results[order[at]] = run_cell(plan, job.algorithm, job.ranks, [&] { done += cost; });
    }
    --running;
  };
  const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  const auto most = static_cast<unsigned>(jobs.size());
  const unsigned threads = std::min(most, plan.threads > 0 ? plan.threads : processors);
  running = threads;
  std::vector<std::jthread> workers;
  for (unsigned i = 0; i < threads; ++i) workers.emplace_back(work);
  while (running > 0) {
    std::this_thread::sleep_for(20ms);
    progress(static_cast<double>(done), total);
  }
  return results;
}

}  // namespace tarpon::scale
