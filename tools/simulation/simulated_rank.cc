#include "tools/simulation/simulated_rank.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "collectives/engine/learning/bounds.h"
#include "transport/integrity.h"
#include "transport/pair_tag.h"
#include "transport/ports/forwarding_port.h"
#include "transport/ports/sealed_port.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

constexpr std::int64_t kMillion = 1'000'000;

constexpr std::uint16_t kPart = 7;  // its communicator

// The buckets of a plan hold 32 KiB at most.
constexpr std::uint64_t kPieceBytes = 1 << 10;

/// A port of the network for a rank with its own clock: packets arrive by the network's time.
class LocalPort : public ForwardingPort {
 public:
  LocalPort(std::unique_ptr<Port> inner, const SimulatedNetwork& network)
      : ForwardingPort(std::move(inner)), network_(network) {}
  std::span<const RxPacket> receive(Time) override {
    return ForwardingPort::receive(network_.now());
  }

 private:
  const SimulatedNetwork& network_;
};

/// Shows the packets that it hands to the engine to `watch`, and fails once it is broken.
class WatchedPort : public ForwardingPort {
 public:
  using Watch = std::function<void(std::span<const RxPacket>)>;
  WatchedPort(std::unique_ptr<Port> inner, const bool& broken, Watch watch)
      : ForwardingPort(std::move(inner)), broken_(broken), watch_(std::move(watch)) {}
  std::span<const RxPacket> receive(Time now) override {
    const std::span<const RxPacket> packets = ForwardingPort::receive(now);
    watch_(packets);
    return packets;
  }
  std::optional<Error> failure() const override {
    if (!broken_) return std::nullopt;
    return Error::make(Error::Code::io, "the port has failed, by the plan");
  }

 private:
  const bool& broken_;
  Watch watch_;
};

/// As at rendezvous: two operations of all peers fit the receive buffer.
std::uint32_t initial_credit(const SimulationPlan& plan) {
  const std::uint64_t unasked =
      2ull * (plan.payload_bytes() + TARPON_HEADER_BYTES) * (plan.ranks - 1u);
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(plan.receive_bytes / unasked, 2, 32));
}

}  // namespace

Time RankClock::local(Time network) const {
  const std::int64_t at = network.time_since_epoch().count();
  const Duration drift(at / kMillion * drift_ppm_ + at % kMillion * drift_ppm_ / kMillion);
  return network + drift + (network >= jump_at_ ? jump_ : Duration{});
}

Time RankClock::network(Time local) const {
  if (local == kNever) return kNever;
  if (local <= Time{}) return Time{};  // at once
  const bool jumped = jump_at_ != kNever && local >= this->local(jump_at_);
  // The clock never shows the times that it jumps over.
  if (!jumped && jump_at_ != kNever && local > this->local(jump_at_ - 1ns)) return jump_at_;
  const std::int64_t steady = (local - (jumped ? jump_ : Duration{})).time_since_epoch().count();
  const std::int64_t scale = kMillion + drift_ppm_;
  // Starts a little early, and goes on to the exact nanosecond.
  Time at(Duration(steady / scale * kMillion + steady % scale * kMillion / scale - 2));
  while (this->local(at) < local) at += 1ns;
  return at;
}

SimulatedRank::SimulatedRank(const SimulationPlan& plan, SimulatedNetwork& network,
                             SealLedger& ledger, SimulatedHosts* hosts, Rank rank,
                             const SimulationHooks& hooks)
    : rank_(rank),
      network_(network),
      hosts_(hosts),
      memory_(rank == plan.victim && plan.no_memory > 0
                  ? std::make_unique<ScarceMemory>(plan.no_memory, plan.seed ^ 0x6d656d6f7279)
                  : nullptr),
      usual_(plan.usual),
      longest_(plan.most_elements * sizeof(double)) {
  if (rank == plan.victim) {
    clock_ = RankClock(plan.drift_ppm, plan.jump_at, plan.jump);
    if (plan.pause.length() > Duration{}) pauses_.push_back(plan.pause);
    period_ = plan.slow_period;
  }
  for (const auto& [paused, window] : plan.pauses) {
    if (paused == rank) pauses_.push_back(window);
  }
  std::sort(pauses_.begin(), pauses_.end(),
            [](const Window& a, const Window& b) { return a.from < b.from; });
  FaultOptions faults = plan.faults;
  faults.seed = plan.seed * 1000003 + rank;
  std::unique_ptr<Port> port = std::make_unique<LocalPort>(network.make_port(rank), network);
  if (hooks.wrap) port = hooks.wrap(rank, std::move(port));
  auto faulty = std::make_unique<FaultPort>(std::move(port), faults);
  faults_ = faulty.get();
  if (hooks.event) {
    faults_->watch([this, tell = hooks.event](Time, const RxPacket& packet, std::string_view fate) {
      tell(network_.now(), packet.source, rank_, {packet.data, packet.length}, fate);
    });
  }
  port = std::move(faulty);
  if (plan.has_secret()) {
    SealOptions options{.rank = rank,
                        .ranks = plan.ranks,
                        .encrypts = plan.integrity == TARPON_INTEGRITY_SEALED,
                        .packets_of_key_shift = plan.packets_of_key_shift};
    options.key.fill(static_cast<std::byte>(plan.seed));
    port = std::make_unique<SealedPort>(std::move(port), options,
                                        ledger.next_port(seal::fastest_library()));
    sealed_ = port.get();
  }
  port_ = std::make_unique<WatchedPort>(
      std::move(port), broken_, [this](std::span<const RxPacket> packets) { watch(packets); });
  if (plan.part != 0) lines_ = std::make_unique<PortLines>(std::move(port_), plan.ranks);
  options_.endpoint.rank = rank;
  options_.endpoint.world_size = plan.ranks;
  options_.endpoint.job = kCookie;
  options_.endpoint.integrity =
      plan.has_secret() ? TARPON_INTEGRITY_KEYED : TARPON_INTEGRITY_CRC32C;
  options_.endpoint.initial_credit = initial_credit(plan);
  options_.endpoint.flows = plan.flows;
  options_.endpoint.multicast = plan.multicast;
  if (hooks.recorder) options_.endpoint.recorder = hooks.recorder(rank);
  options_.slot_bytes = plan.slot_bytes;
  options_.piece_bytes = kPieceBytes;
  options_.endpoint.inflow = plan.mechanisms.inflow;
  options_.endpoint.sending = plan.mechanisms.sending;
  options_.mechanisms = plan.mechanisms;
  if (memory_) options_.call_memory = memory_.get();
  if (hosts_ != nullptr) options_.endpoint.kept_tags = hosts::kOwnTags;
  restart();
  // A process that starts again shares nothing with the ranks of the job.
  if (hosts_ != nullptr) engine_->host_calls().share(*hosts_->of(rank));
  if ((plan.part & bit(rank)) != 0) open_part(plan.part);
}

/// Splits a communicator off, as Communicator::split() does.
void SimulatedRank::open_part(std::uint64_t members) {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < options_.endpoint.world_size; ++rank) {
    if ((members & bit(rank)) != 0) ranks.push_back(rank);
  }
  part_.reset(new Part{lines_->open(kPart, ranks), RankMap(ranks), nullptr});
  EngineOptions options = options_;
  options.endpoint.rank = part_->ranks.own(rank_);
  options.endpoint.world_size = static_cast<std::uint16_t>(ranks.size());
  options.endpoint.communicator = kPart;
  options.endpoint.recorder = nullptr;
  options.endpoint.multicast = false;
  options.piece_bytes = EngineOptions{}.piece_bytes;
  part_->engine = std::make_unique<Engine>(options, *part_->line);
}

void* ScarceMemory::do_allocate(std::size_t bytes, std::size_t alignment) {
  if (random_.chance(share_)) throw std::bad_alloc();
  return std::pmr::new_delete_resource()->allocate(bytes, alignment);
}

void ScarceMemory::do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) {
  std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
}

SimulatedRank::~SimulatedRank() = default;

Time SimulatedRank::may_run(Time now) const {
  Time at = awake(now);
  if (period_ == Duration{}) return at;
  const auto beat = [this](Time time) {
    return Time((time.time_since_epoch() + period_ - 1ns) / period_ * period_);
  };
  for (Time next = awake(at = beat(at)); next != at; next = awake(at)) at = beat(next);
  return at;
}

/// The first time from `at` on that is in no pause. Pauses may follow one another.
Time SimulatedRank::awake(Time at) const {
  for (const Window& pause : pauses_) {
    if (pause.contains(at)) at = pause.to;
  }
  return at;
}

Time SimulatedRank::next_event() const {
  if (const auto until = work_.until()) return *until;
  if (engine_->pieces().any()) return network_.now();
  Time own = std::min(engine_->next_deadline(), faults_->next_release());
  if (part_) own = std::min(own, part_->engine->next_deadline());
  const Time rung = hosts_ == nullptr ? kNever : hosts_->rung_at(rank_);
  return std::min({network_.next_arrival(rank_), clock_.network(own), rung});
}

void SimulatedRank::run(Time now) {
  const Time local = clock_.local(now);
  if (!work_.end(*engine_, now, local)) return;
  if (hosts_ != nullptr) {
    hosts_->advance_to(now);
    hosts_->heard(rank_);
  }
  hosts::HostCalls& shared = engine_->host_calls();
  shared.wake();
  do {
    while (progress(local)) {
    }
  } while (!shared.fall_asleep());
  work_.start(*engine_, now, local);
}

/// The job's engine comes first: its line receives for both.
bool SimulatedRank::progress(Time local) {
  bool moved = engine_->progress(local);
  if (part_ && part_->engine->progress(local)) moved = true;
  return moved;
}

std::shared_ptr<PendingCall> SimulatedRank::submit_to_part(const CallArguments& arguments,
                                                           Time now) {
  return part_->engine->submit(arguments, clock_.local(now));
}

std::shared_ptr<PendingCall> SimulatedRank::submit(const CallArguments& arguments, Time now) {
  return engine_->submit(arguments, clock_.local(now));
}

/// Why the endpoint has to refuse a packet in any state; nullopt: it may accept it.
std::optional<DropReason> SimulatedRank::refusal(const RxPacket& packet) const {
  if (packet.length < TARPON_HEADER_BYTES) return DropReason::runt;
  tarpon_header header;
  std::memcpy(&header, packet.data, sizeof header);
  const std::span payload(packet.data + sizeof header, packet.length - sizeof header);
  const EndpointOptions& own = options_.endpoint;
  switch (tarpon_check_header(
      &header, own.job, static_cast<std::uint32_t>(payload.size()) + tarpon_tag_bytes(&header))) {
    case TARPON_HEADER_MAGIC:
      return DropReason::magic;
    case TARPON_HEADER_VERSION:
      return DropReason::version;
    case TARPON_HEADER_JOB:
      return DropReason::foreign_job;
    case TARPON_HEADER_TYPE:
      return DropReason::type;
    case TARPON_HEADER_FIELDS:
      return DropReason::fields;
    case TARPON_HEADER_OK:
      break;
  }
  if (part_ && header.communicator == kPart && part_->ranks.own(packet.source) != kUnknownRank) {
    return std::nullopt;  // it goes to the part
  }
  const bool foreign =
      header.sender >= own.world_size || header.sender == rank_ || header.sender != packet.source;
  if (foreign || (dead_ >> header.sender & 1) != 0) return DropReason::sender;
  if (header.communicator != own.communicator) return DropReason::communicator;
  const bool summed = own.integrity == TARPON_INTEGRITY_CRC32C;
  if (tarpon_integrity_of(&header) != own.integrity ||
      (summed && packet_check(header, payload) != header.check)) {
    return DropReason::integrity;
  }
  if (header.incarnation != 0) return DropReason::epoch;
  const std::uint64_t both = bit(header.sender) | bit(rank_);
  if ((ranks_of_tag(header.tag) & both) != both) return DropReason::sender;
  return std::nullopt;
}

void SimulatedRank::watch(std::span<const RxPacket> packets) {
  received_ += packets.size();
  for (const RxPacket& packet : packets) {
    if (const auto reason = refusal(packet)) ++to_refuse_[*reason];
  }
}

void SimulatedRank::peer_dead(Rank rank, Time now) {
  dead_ |= bit(rank);
  learn({.rank = rank, .standing = Standing::dead, .evidence = "its process has crashed"}, now);
}

void SimulatedRank::evicted(Rank rank, Time now) {
  if (rank != rank_) dead_ |= bit(rank);
  learn({.rank = rank, .standing = Standing::evicted, .evidence = "by the plan"}, now);
}

void SimulatedRank::peer_left(Rank rank, const std::vector<NextNumber>& next_numbers, Time now) {
  engine_->learn(
      {.rank = rank, .standing = Standing::left, .serves = true, .next_numbers = next_numbers},
      clock_.local(now));
}

void SimulatedRank::peer_gone(Rank rank, Time now) {
  dead_ |= bit(rank);
  learn({.rank = rank, .standing = Standing::left}, now);
}

/// Tells all its engines.
void SimulatedRank::learn(Fact fact, Time now) {
  const Time local = clock_.local(now);
  engine_->learn(fact, local);
  if (!part_ || part_->ranks.own(fact.rank) == kUnknownRank) return;
  fact.rank = part_->ranks.own(fact.rank);
  part_->engine->learn(fact, local);
}

void SimulatedRank::crash() {
  crashed_ = counters();
  work_.drop();
  part_.reset();
  engine_.reset();
}

void SimulatedRank::break_port(Time now) {
  broken_ = true;
  work_.end(*engine_, kNever, clock_.local(now));  // so that the engine learns it
}

void SimulatedRank::restart() {
  broken_ = false;
  engine_ = std::make_unique<Engine>(options_, port_of_job());
  if (usual_ > Duration::zero()) learn_usual();
}

/// Teaches the engine what calls of each size and kind have taken before.
void SimulatedRank::learn_usual() {
  constexpr int kCalls = 50;  // so many make a bound
  for (std::uint64_t bytes = 1; bytes / 2 <= longest_; bytes *= 2) {
    const CallKind plain{.bytes = bytes};
    CallKind coded = plain, over_hosts = plain, scatter = plain, gather = plain;
    coded.coded = over_hosts.over_hosts = true;
    scatter.collective = Collective::reduce_scatter;
    gather.collective = Collective::all_gather;
    for (const CallKind& kind : {plain, coded, over_hosts, scatter, gather}) {
      const BoundSample sample{.kind = kind,
                               .elapsed = usual_,
                               .stages = {usual_ * 6 / 10, usual_},
                               .gather = usual_ * 4 / 10,
                               .straggler = std::nullopt,
                               .bounded = true,
                               .packets = 100};
      for (int call = 0; call < kCalls; ++call) {
        engine_->learnt().bounds.learn(sample, BoundRule::learnt, std::nullopt);
      }
    }
  }
}

SimulatedRank::PortCounts SimulatedRank::port_counts() const {
  const PortStatistics counted = sealed_ == nullptr ? PortStatistics{} : sealed_->statistics();
  return {.received = received_,
          .forged = counted.rx_forged,
          .replayed = counted.rx_replayed,
          .to_refuse = to_refuse_};
}

EndpointCounters SimulatedRank::counters() const {
  EndpointCounters sum = crashed_;
  for (std::size_t i = 0; engine_ && i < sum.dropped.size(); ++i) {
    sum.dropped[i] += engine_->endpoint().counters().dropped[i];
  }
  return sum;
}

void SimulatedRank::heal() {
  pauses_.clear();
  period_ = {};
  clock_.steady_from(network_.now());
  faults_->heal();
  if (memory_) memory_->heal();
}

}  // namespace tarpon
