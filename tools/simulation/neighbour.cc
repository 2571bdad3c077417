#include "tools/simulation/neighbour.h"

#include <fmt/format.h>

#include <algorithm>

namespace tarpon {
namespace {

constexpr std::size_t kElements = 300;
constexpr int kRounds = 2;

}  // namespace

/// Copies the neighbour's packets into our network.
class Neighbour::Leak : public SimulatedTraffic {
 public:
  explicit Leak(SimulatedNetwork& ours) : ours_(ours) {}
  Route route(Time, Rank from, Rank to, std::span<const std::byte> packet) override {
    ours_.inject(from, to, packet);
    return {};
  }
  void ended(Time, Rank, Rank, std::span<const std::byte>, std::string_view) override {}

 private:
  SimulatedNetwork& ours_;
};

Neighbour::Neighbour(const SimulationPlan& plan, SimulatedNetwork& ours)
    : network_({.ranks = plan.ranks,
                .max_payload = std::max(plan.slot_bytes, 512u),
                .receive_bytes = 16 << 20,
                .seed = plan.seed ^ 0x6e626f72}),
      leak_(std::make_unique<Leak>(ours)) {
  network_.watch(leak_.get());
  for (Rank rank = 0; rank < plan.ranks; ++rank) {
    ports_.push_back(network_.make_port(rank));
    EngineOptions options;
    options.endpoint.rank = rank;
    options.endpoint.world_size = plan.ranks;
    options.endpoint.job = 0x7a12;
    options.endpoint.integrity = TARPON_INTEGRITY_CRC32C;
    options.slot_bytes = plan.slot_bytes;
    engines_.push_back(std::make_unique<Engine>(options, *ports_.back()));
  }
}

Neighbour::~Neighbour() = default;

void Neighbour::inject(Rank from, Rank to, std::span<const std::byte> packet) {
  network_.inject(from, to, packet);
}

void Neighbour::submit(Time now) {
  buffers_.clear();
  calls_.clear();
  for (std::size_t rank = 0; rank < engines_.size(); ++rank) {
    buffers_.emplace_back(kElements, static_cast<float>(rank + 1));
    AllreduceArguments arguments;
    arguments.input = arguments.output = buffers_.back().data();
    arguments.count = kElements;
    calls_.push_back(engines_[rank]->submit(arguments, now));
  }
  ++rounds_;
}

Time Neighbour::next_event() const {
  if (rounds_ == 0) return Time{};
  Time next = network_.next_arrival();
  for (const auto& engine : engines_) next = std::min(next, engine->next_deadline());
  return next;
}

void Neighbour::run(Time now) {
  network_.advance_to(now);
  do {
    if (over() && rounds_ < kRounds && judge().empty()) submit(now);
    for (bool moved = true; moved;) {
      moved = false;
      for (const auto& engine : engines_) moved |= engine->progress(now);
    }
  } while (over() && !done());
}

bool Neighbour::over() const {
  return std::all_of(calls_.begin(), calls_.end(),
                     [](const auto& call) { return call->done.load(); });
}

bool Neighbour::done() const {
  return over() && rounds_ > 0 && (rounds_ == kRounds || !judge().empty());
}

std::string Neighbour::judge() const {
  const auto ranks = static_cast<float>(engines_.size());
  for (std::size_t rank = 0; rank < calls_.size(); ++rank) {
    if (!calls_[rank]->done) return fmt::format("the other job's rank {} did not end", rank);
    const Report& report = calls_[rank]->report;
    if (report.status != Status::complete) {
      return fmt::format("the other job's rank {}: {}", rank, report.detail);
    }
    const bool right = std::all_of(buffers_[rank].begin(), buffers_[rank].end(),
                                   [&](float got) { return got == ranks * (ranks + 1) / 2; });
    if (!right) return fmt::format("the other job's rank {} has a wrong result", rank);
  }
  return "";
}

}  // namespace tarpon
