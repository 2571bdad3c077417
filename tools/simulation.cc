#include "tools/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tools/simulation_call.h"
#include "transport/ports/simulated_port.h"

namespace tarpon {
namespace {

class Simulation {
 public:
  Simulation(const SimulationPlan& plan, const PortWrapper& wrap);
  SimulationResult run();

 private:
  void submit_due();
  bool progress_all();
  Time next_event() const;
  bool all_done() const;
  void count_packets();

  const SimulationPlan plan_;
  SimulatedNetwork network_;
  std::vector<std::unique_ptr<FaultPort>> ports_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<SimulatedCall> calls_;
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
                .seed = plan.seed ^ 0x6e6574}),
      calls_(plan_calls(plan)) {
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
}

void Simulation::submit_due() {
  for (SimulatedCall& call : calls_) {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      if (call.pending[rank] || call.submit_at[rank] > now_) continue;
      // A rank submits the calls of a tag in order.
      const bool earlier_open =
          std::any_of(calls_.begin(), calls_.end(), [&](const SimulatedCall& other) {
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
      arguments.deadline = kSimulationDeadline;
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
  for (const SimulatedCall& call : calls_) {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      if (!call.pending[rank] && call.submit_at[rank] > now_) {
        next = std::min(next, call.submit_at[rank]);
      }
    }
  }
  return next;
}

bool Simulation::all_done() const {
  return std::all_of(calls_.begin(), calls_.end(), [](const SimulatedCall& call) {
    return std::all_of(call.pending.begin(), call.pending.end(),
                       [](const auto& pending) { return pending && pending->done; });
  });
}

SimulationResult Simulation::run() {
  const Time limit = Time(kSimulationDeadline * (plan_.calls_per_tag + 1) + plan_.skew);
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
  for (const SimulatedCall& call : calls_) judge(plan_, call, result_);
  result_.virtual_time = now_.time_since_epoch();
  count_packets();
  return std::move(result_);
}

void Simulation::count_packets() {
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    result_.packets += ports_[rank]->statistics().tx_packets;
    const FaultStatistics& faults = ports_[rank]->faults();
    result_.faults.lost += faults.lost;
    result_.faults.duplicated += faults.duplicated;
    result_.faults.reordered += faults.reordered;
    result_.faults.corrupted += faults.corrupted;
    result_.faults.truncated += faults.truncated;
  }
}

}  // namespace

SimulationResult run_simulation(const SimulationPlan& plan, const PortWrapper& wrap) {
  return Simulation(plan, wrap).run();
}

}  // namespace tarpon
