#include "tools/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "collectives/engine.h"
#include "collectives/schedule.h"
#include "transport/ports/simulated_port.h"

namespace tarpon {
namespace {

constexpr Duration kDeadline = 10s;

void mix(std::uint64_t& hash, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ at[i]) * 1099511628211ull;
}

/// One collective call: what all ranks pass alike, and each rank's buffers.
struct Call {
  std::uint32_t tag = 0;
  std::uint32_t number = 0;
  std::uint64_t count = 0;
  DataType type = DataType::float32;
  ReduceOp function = ReduceOp::sum;
  bool in_place = false;
  std::vector<Time> submit_at;  // by rank
  std::vector<std::vector<std::byte>> inputs, outputs;
  std::vector<std::shared_ptr<PendingCall>> pending;  // by rank; null until submitted
};

/// Value of element `i` of rank `r`. Exact runs take values whose sum depends on the order of
/// addition; bounded ones take 4^r, so that a mean over contributors tells who they are (with 2^r
/// two sets of 8 ranks can have one mean).
template <typename T>
T value(bool coded, Random& random, Rank rank) {
  if (coded) return static_cast<T>(1u << (2 * rank));
  const auto raw = static_cast<std::int64_t>(random.below(2'000'001)) - 1'000'000;
  if constexpr (std::is_integral_v<T>) return static_cast<T>(raw % 1000);
  return static_cast<T>(raw) / static_cast<T>(997);
}

template <typename T>
void fill(std::vector<std::byte>& bytes, bool coded, Random& random, Rank rank) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(T)) {
    const T element = value<T>(coded, random, rank);
    std::memcpy(bytes.data() + at, &element, sizeof element);
  }
}

template <typename T>
T combine(ReduceOp function, T a, T b) {
  using Wide = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                           std::type_identity<T>>::type;
  switch (function) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
    case ReduceOp::prod:
      return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
    case ReduceOp::min:
      return b < a ? b : a;
    case ReduceOp::max:
      return b > a ? b : a;
  }
  return a;
}

template <typename T>
T element(const std::vector<std::byte>& bytes, std::uint64_t index) {
  T result;
  std::memcpy(&result, bytes.data() + index * sizeof(T), sizeof result);
  return result;
}

class Simulation {
 public:
  Simulation(const SimulationPlan& plan, const PortWrapper& wrap);
  SimulationResult run();

 private:
  void plan_calls(Random& random);
  void submit_due();
  bool progress_all();
  Time next_event() const;
  bool all_done() const;
  void judge(const Call& call);
  template <typename T>
  void judge_exact(const Call& call);
  void judge_bounded(const Call& call, Rank rank);
  void violate(const Call& call, Rank rank, const std::string& what);

  const SimulationPlan plan_;
  SimulatedNetwork network_;
  std::vector<std::unique_ptr<FaultPort>> ports_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Call> calls_;
  Time now_{};
  SimulationResult result_;
};

Simulation::Simulation(const SimulationPlan& plan, const PortWrapper& wrap)
    : plan_(plan),
      network_({.ranks = plan.ranks,
                .max_payload = std::max(plan.slot_bytes, 512u),
                .gathers = plan.gathers,
                .receive_bytes = plan.receive_bytes,
                .frames = plan.frames,
                .seed = plan.seed ^ 0x6e6574}) {
  Random random(plan.seed ^ 0x63616c6c73);
  for (Rank rank = 0; rank < plan.ranks; ++rank) {
    FaultOptions faults = plan.faults;
    faults.seed = plan.seed * 1000003 + rank;
    std::unique_ptr<Port> port = network_.make_port(rank);
    if (wrap) port = wrap(rank, std::move(port));
    ports_.push_back(std::make_unique<FaultPort>(std::move(port), faults));
    EngineOptions options;
    options.endpoint.rank = rank;
    options.endpoint.world_size = plan.ranks;
    options.endpoint.job = 0x7a11;
    options.endpoint.integrity = TARPON_INTEGRITY_CRC32C;
    options.slot_bytes = plan.slot_bytes;
    engines_.push_back(std::make_unique<Engine>(options, *ports_.back()));
  }
  plan_calls(random);
}

void Simulation::plan_calls(Random& random) {
  for (std::uint32_t number = 0; number < plan_.calls_per_tag; ++number) {
    for (std::uint32_t tag = 0; tag < plan_.tags; ++tag) {
      Call call;
      call.tag = tag;
      call.number = number;
      // Small counts have their own corner cases: empty and short shards.
      call.count = random.chance(0.2) ? random.below(2 * plan_.ranks)
                                      : random.below(plan_.most_elements + 1);
      call.type =
          plan_.bounded ? DataType::float32 : static_cast<DataType>(random.below(kDataTypes));
      call.function = plan_.bounded ? (random.chance(0.5) ? ReduceOp::sum : ReduceOp::avg)
                                    : static_cast<ReduceOp>(random.below(kReduceOps));
      call.in_place = random.chance(0.5);
      for (Rank rank = 0; rank < plan_.ranks; ++rank) {
        const auto skew = static_cast<std::uint64_t>(plan_.skew.count());
        call.submit_at.push_back(
            Time(number * 100us + Duration(static_cast<std::int64_t>(random.below(skew + 1)))));
        std::vector<std::byte> input(call.count * element_bytes(call.type));
        switch (call.type) {
          case DataType::float32:
            fill<float>(input, plan_.bounded, random, rank);
            break;
          case DataType::float64:
            fill<double>(input, plan_.bounded, random, rank);
            break;
          case DataType::int32:
            fill<std::int32_t>(input, plan_.bounded, random, rank);
            break;
          case DataType::int64:
            fill<std::int64_t>(input, plan_.bounded, random, rank);
            break;
        }
        call.outputs.push_back(call.in_place ? input : std::vector<std::byte>(input.size()));
        call.inputs.push_back(std::move(input));
      }
      call.pending.resize(plan_.ranks);
      calls_.push_back(std::move(call));
    }
  }
}

void Simulation::submit_due() {
  for (Call& call : calls_) {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      if (call.pending[rank] || call.submit_at[rank] > now_) continue;
      // A rank submits the calls of a tag in order.
      const bool earlier_open = std::any_of(calls_.begin(), calls_.end(), [&](const Call& other) {
        return other.tag == call.tag && other.number < call.number && !other.pending[rank];
      });
      if (earlier_open) continue;
      AllreduceArguments arguments;
      arguments.output = call.outputs[rank].data();
      arguments.input = call.in_place ? call.outputs[rank].data() : call.inputs[rank].data();
      arguments.count = call.count;
      arguments.type = call.type;
      arguments.function = call.function;
      arguments.tag = call.tag;
      arguments.mode = plan_.bounded ? Mode::bounded : Mode::exact;
      arguments.deadline = kDeadline;
      if (plan_.bounded) arguments.bound = plan_.bound;
      call.pending[rank] = engines_[rank]->submit(arguments, now_).value();
    }
  }
}

bool Simulation::progress_all() {
  bool moved = false;
  for (const auto& engine : engines_) moved |= engine->progress(now_);
  return moved;
}

Time Simulation::next_event() const {
  Time next = network_.next_arrival();
  for (const auto& port : ports_) next = std::min(next, port->next_release());
  for (const auto& engine : engines_) next = std::min(next, engine->next_deadline());
  for (const Call& call : calls_) {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      if (!call.pending[rank] && call.submit_at[rank] > now_) {
        next = std::min(next, call.submit_at[rank]);
      }
    }
  }
  return next;
}

bool Simulation::all_done() const {
  return std::all_of(calls_.begin(), calls_.end(), [](const Call& call) {
    return std::all_of(call.pending.begin(), call.pending.end(),
                       [](const auto& pending) { return pending && pending->done; });
  });
}

SimulationResult Simulation::run() {
  const Time limit = Time(kDeadline * (plan_.calls_per_tag + 1) + plan_.skew);
  while (!all_done()) {
    submit_due();
    while (progress_all()) {
    }
    const Time next = next_event();
    if (all_done()) break;
    if (next == kNever || now_ > limit) {
      result_.violations.push_back(fmt::format(
          "hang: nothing to do at {} us",
          std::chrono::duration_cast<std::chrono::microseconds>(now_.time_since_epoch()).count()));
      break;
    }
    now_ = std::max(next, now_ + 1ns);
    network_.advance_to(now_);
  }
  result_.trace_hash = network_.trace_hash();
  for (const Call& call : calls_) judge(call);
  result_.virtual_time = now_.time_since_epoch();
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    result_.packets += ports_[rank]->statistics().tx_packets;
    const FaultStatistics& faults = ports_[rank]->faults();
    result_.faults.lost += faults.lost;
    result_.faults.duplicated += faults.duplicated;
    result_.faults.reordered += faults.reordered;
    result_.faults.corrupted += faults.corrupted;
    result_.faults.truncated += faults.truncated;
  }
  return std::move(result_);
}

void Simulation::violate(const Call& call, Rank rank, const std::string& what) {
  result_.violations.push_back(fmt::format("tag {} call {} ({} {} x {}) rank {}: {}", call.tag,
                                           call.number, name(call.function), name(call.type),
                                           call.count, rank, what));
}

void Simulation::judge(const Call& call) {
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (!call.pending[rank] || !call.pending[rank]->done) {
      violate(call, rank, "did not end");
      return;
    }
    const Report& report = call.pending[rank]->report;
    ++result_.calls;
    if (report.status == Status::partial) ++result_.partial;
    mix(result_.trace_hash, call.outputs[rank].data(), call.outputs[rank].size());
    if (report.elapsed > kDeadline) violate(call, rank, "ended after its deadline");
    // Until half of the ranks are heard, two bounds, an eighth for confirmations. Where the first
    // announcements are lost, hearing may take a few repetitions.
    const Duration hearing = plan_.skew + (plan_.faults.any() ? 500ms : 2ms);
    const Duration most = (hearing + 2 * plan_.bound) * 9 / 8;
    if (report.mode == Mode::bounded && plan_.calls_per_tag == 1 && report.elapsed > most) {
      violate(call, rank, fmt::format("took {} us", report.elapsed / 1us));
    }
    const bool good =
        report.status == Status::complete || (plan_.bounded && report.status == Status::partial);
    if (!good) violate(call, rank, fmt::format("{}: {}", name(report.status), report.detail));
    if (good && plan_.bounded) judge_bounded(call, rank);
  }
  if (plan_.bounded) return;
  switch (call.type) {
    case DataType::float32:
      return judge_exact<float>(call);
    case DataType::float64:
      return judge_exact<double>(call);
    case DataType::int32:
      return judge_exact<std::int32_t>(call);
    case DataType::int64:
      return judge_exact<std::int64_t>(call);
  }
}

template <typename T>
void Simulation::judge_exact(const Call& call) {
  const ShardLayout layout{call.count, sizeof(T), plan_.ranks};
  for (std::uint32_t shard = 0; shard < plan_.ranks; ++shard) {
    const Rank owner = owner_of(shard, call.number, plan_.ranks);
    const Range range = layout.elements(shard);
    for (std::uint64_t i = range.first; i < range.end(); ++i) {
      T expected = element<T>(call.inputs[owner], i);
      for (Rank step = 1; step < plan_.ranks; ++step) {
        const auto rank = static_cast<Rank>((owner + step) % plan_.ranks);
        expected = combine(call.function, expected, element<T>(call.inputs[rank], i));
      }
      if (call.function == ReduceOp::avg) expected /= static_cast<T>(plan_.ranks);
      for (Rank rank = 0; rank < plan_.ranks; ++rank) {
        const T got = element<T>(call.outputs[rank], i);
        if (std::memcmp(&got, &expected, sizeof got) == 0) continue;
        return violate(call, rank, fmt::format("element {} is {}, not {}", i, got, expected));
      }
    }
  }
}

/// The mean over a set of ranks with values 4^r tells the set: every element must be the reduction
/// over exactly the ranks that the report names for it.
void Simulation::judge_bounded(const Call& call, Rank rank) {
  const Report& report = call.pending[rank]->report;
  std::vector<ContributorRun> runs = report.runs;
  if (runs.empty()) runs = {{0, call.count, (1ull << plan_.ranks) - 1}};
  std::uint64_t next = 0;
  std::vector<std::uint64_t> missing(plan_.ranks, 0);
  for (const ContributorRun& run : runs) {
    if (run.first != next) return violate(call, rank, "the report's runs have gaps");
    next += run.count;
    float sum = 0;
    for (Rank r = 0; r < plan_.ranks; ++r) {
      const bool present = (run.contributors >> r & 1) != 0;
      if (present) sum += static_cast<float>(1u << (2 * r));
      if (!present) missing[r] += run.count;
    }
    // In the arithmetic of ReduceKernels::scale.
    const auto size = static_cast<float>(std::popcount(run.contributors));
    float expected = 0;
    if (run.contributors != 0) {
      expected = call.function == ReduceOp::avg ? sum / size
                                                : sum * (static_cast<float>(plan_.ranks) / size);
    }
    for (std::uint64_t i = run.first; i < next; ++i) {
      const float got = element<float>(call.outputs[rank], i);
      if (got == expected) continue;
      return violate(call, rank,
                     fmt::format("element {} is {}, but the contributors {:#x} give {}", i, got,
                                 run.contributors, expected));
    }
  }
  if (next != call.count) violate(call, rank, "the report's runs do not cover the result");
  if (!report.missing.empty() && report.missing != missing) {
    violate(call, rank, "the report's sums per rank differ from its runs");
  }
}

}  // namespace

SimulationPlan plan_simulation(std::uint64_t seed) {
  Random random(seed);
  SimulationPlan plan;
  plan.seed = seed;
  plan.ranks = static_cast<std::uint16_t>(2 + random.below(7));
  plan.slot_bytes = static_cast<std::uint32_t>(64 * (1 + random.below(22)));
  plan.tags = static_cast<std::uint32_t>(1 + random.below(3));
  plan.calls_per_tag = static_cast<std::uint32_t>(1 + random.below(4));
  plan.most_elements = 1ull << (4 + random.below(11));
  plan.bounded = random.chance(0.5);
  plan.bound = Duration(static_cast<std::int64_t>(1'000'000 + random.below(20'000'000)));
  if (random.chance(0.7)) plan.skew = Duration(static_cast<std::int64_t>(random.below(5'000'000)));
  if (random.chance(0.6)) plan.faults.loss = static_cast<double>(random.below(300)) / 1000;
  if (random.chance(0.4)) plan.faults.duplicate = static_cast<double>(random.below(500)) / 1000;
  if (random.chance(0.4)) plan.faults.reorder = static_cast<double>(random.below(500)) / 1000;
  if (random.chance(0.3)) plan.faults.corrupt = static_cast<double>(random.below(100)) / 1000;
  if (random.chance(0.3)) plan.faults.truncate = static_cast<double>(random.below(100)) / 1000;
  plan.faults.reorder_delay = Duration(static_cast<std::int64_t>(random.below(3'000'000)));
  plan.frames = static_cast<std::uint32_t>(1 + random.below(64));
  plan.receive_bytes = 1ull << (14 + random.below(8));
  plan.gathers = random.chance(0.5);
  return plan;
}

std::string describe(const SimulationPlan& plan) {
  return fmt::format(
      "seed {}: {} ranks, {} tags x {} calls of up to {} elements, slots of {} B, {}, skew {} us, "
      "loss {}, duplicate {}, reorder {} within {} us, corrupt {}, truncate {}, {} frames, "
      "{} B of receive buffer, {}",
      plan.seed, plan.ranks, plan.tags, plan.calls_per_tag, plan.most_elements, plan.slot_bytes,
      plan.bounded ? fmt::format("bounded by 2 x {} us", plan.bound / 1us) : "exact",
      plan.skew / 1us, plan.faults.loss, plan.faults.duplicate, plan.faults.reorder,
      plan.faults.reorder_delay / 1us, plan.faults.corrupt, plan.faults.truncate, plan.frames,
      plan.receive_bytes, plan.gathers ? "gathering port" : "copying port");
}

SimulationResult run_simulation(const SimulationPlan& plan, const PortWrapper& wrap) {
  return Simulation(plan, wrap).run();
}

}  // namespace tarpon
