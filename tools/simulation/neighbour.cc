#include "tools/simulation/neighbour.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "transport/ports/sealed_port.h"

namespace tarpon {
namespace {

constexpr std::size_t kElements = 300;
constexpr int kRounds = 2;

}  // namespace

/// Tells of the neighbour's packets.
class Neighbour::Leak : public SimulatedTraffic {
 public:
  Leak(const RankMap& ranks, Copy copy) : ranks_(ranks), copy_(std::move(copy)) {}
  Route route(Time, Rank from, Rank to, std::span<const std::byte> packet) override {
    copy_(ranks_.in_job(from), ranks_.in_job(to), packet);
    return {};
  }
  void ended(Time, Rank, Rank, std::span<const std::byte>, std::string_view) override {}

 private:
  const RankMap& ranks_;
  const Copy copy_;
};

Neighbour::Neighbour(const SimulationPlan& plan, const NeighbourOptions& options, Copy copy)
    : options_(options),
      ranks_(options.members),
      network_({.ranks = static_cast<std::uint16_t>(options.members.size()),
                .max_payload = std::max(plan.slot_bytes, 512u) +
                               (options.ledger == nullptr ? 0 : TARPON_TAG_BYTES),
                .flows = options.flows,
                .multicasts = options.multicast,
                .receive_bytes = 16 << 20,
                .seed = options.seed}),
      leak_(std::make_unique<Leak>(ranks_, std::move(copy))) {
  network_.watch(leak_.get());
  if (options_.ledger != nullptr) first_port_ = options_.ledger->ports();
  const auto ranks = static_cast<Rank>(options.members.size());
  for (Rank rank = 0; rank < ranks; ++rank) {
    ports_.push_back(network_.make_port(rank));
    EngineOptions one;
    one.endpoint.rank = rank;
    one.endpoint.world_size = ranks;
    one.endpoint.job = options.job;
    one.endpoint.integrity = options.integrity;
    one.endpoint.flows = options.flows;
    one.endpoint.multicast = options.multicast;
    one.slot_bytes = plan.slot_bytes;
    if (options.ledger != nullptr) {
      one.endpoint.integrity = TARPON_INTEGRITY_KEYED;
      ports_.back() = std::make_unique<SealedPort>(
          std::move(ports_.back()),
          SealOptions{.key = options.key,
                      .rank = rank,
                      .ranks = ranks,
                      .encrypts = options.integrity == TARPON_INTEGRITY_SEALED},
          options.ledger->next_port(seal::fastest_library()));
    }
    engines_.push_back(std::make_unique<Engine>(one, *ports_.back()));
  }
}

Neighbour::~Neighbour() = default;

void Neighbour::inject(Rank from, Rank to, std::span<const std::byte> packet) {
  const Rank own_from = ranks_.own(from), own_to = ranks_.own(to);
  if (own_from == kUnknownRank || own_to == kUnknownRank) return;
  network_.inject(own_from, own_to, packet);
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
    if (over() && rounds_ < kRounds && judge_calls().empty()) submit(now);
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
  return over() && rounds_ > 0 && (rounds_ == kRounds || !judge_calls().empty());
}

std::string Neighbour::judge() const {
  if (const std::string wrong = judge_calls(); !wrong.empty() || options_.ledger == nullptr) {
    return wrong;
  }
  for (std::size_t rank = 0; rank < ports_.size(); ++rank) {
    const PortStatistics counted = ports_[rank]->statistics();
    const std::uint64_t got = counted.rx_packets - counted.rx_forged - counted.rx_replayed;
    const std::uint64_t opened = options_.ledger->opened(first_port_ + rank);
    if (got == opened) continue;
    return fmt::format("{}: rank {} got {} packets, and {} of them had a right tag", options_.name,
                       rank, got, opened);
  }
  return "";
}

std::string Neighbour::judge_calls() const {
  const auto ranks = static_cast<float>(engines_.size());
  for (std::size_t rank = 0; rank < calls_.size(); ++rank) {
    if (!calls_[rank]->done) return fmt::format("{}: rank {} did not end", options_.name, rank);
    const Report& report = calls_[rank]->report;
    if (report.status != Status::complete) {
      return fmt::format("{}: rank {}: {}", options_.name, rank, report.detail);
    }
    const bool right = std::all_of(buffers_[rank].begin(), buffers_[rank].end(),
                                   [&](float got) { return got == ranks * (ranks + 1) / 2; });
    if (!right) return fmt::format("{}: rank {} has a wrong result", options_.name, rank);
  }
  return "";
}

}  // namespace tarpon
