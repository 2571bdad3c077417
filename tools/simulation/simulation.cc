#include "tools/simulation/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "collectives/membership/membership.h"
#include "tools/simulation/hostile.h"
#include "tools/simulation/leaving.h"
#include "tools/simulation/neighbour.h"
#include "tools/simulation/part_calls.h"
#include "tools/simulation/seal_ledger.h"
#include "tools/simulation/simulated_call.h"
#include "tools/simulation/simulated_hosts.h"
#include "tools/simulation/simulated_rank.h"
#include "tools/simulation/stranger.h"
#include "tools/simulation/traffic.h"
#include "transport/random.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

SimulatedNetworkOptions network_options(const SimulationPlan& plan) {
  return {.ranks = plan.ranks,
          .max_payload = std::max(plan.slot_bytes, 512u) + plan.payload_bytes() - plan.slot_bytes,
          .gathers = plan.gathers,
          .flows = plan.flows,
          .multicasts = plan.multicast,
          .receive_bytes = plan.receive_bytes,
          .frames = plan.frames,
          .seed = plan.seed ^ 0x6e6574,
          .links = plan.links};
}

// By then ranks that were cut off have been heard again: they are asked every 50 ms.
constexpr Duration kRecovery = 200ms;

// Far more than any plan takes. A rank that is always due at once would need more.
constexpr std::uint64_t kMostSteps = 20'000'000;

// Longer than every timer: a call's deadline counts from its submission, also where it ended early.
constexpr Duration kDraining = 3 * kSimulationDeadline;

class Simulation {
 public:
  Simulation(const SimulationPlan& plan, const SimulationHooks& hooks);
  SimulationResult run();

 private:
  bool run_until_done(Time limit);
  void run_all();
  bool advance(Time limit);
  bool excluded() const;
  void drain();
  void run_rank(Rank rank);
  void note_ended(Rank rank);
  void add_other_job();
  void add_successor();
  void add_packets(Rank from, Rank to, std::span<const std::byte> packet);
  Time due_at(const SimulatedCall& call, Rank rank) const;
  void submit_due(Rank rank);
  Time next_action(Rank rank) const;
  Time wake(Rank rank, Time from) const;
  Time next_event() const;
  bool done() const;
  /// Whether the process of `rank` has ended.
  bool gone(Rank rank) const { return (crashed_ || leaving_.has_gone()) && rank == plan_.victim; }
  bool makes_calls(Rank rank) const {
    return !gone(rank) && !(leaving_.has_left() && rank == plan_.victim);
  }
  bool idle(Rank rank) const;
  Time next_crash_news() const;
  Time next_news() const;
  bool end_leaving();
  void tell_news();
  void crash();
  void end_by_broken_port();
  void restart();
  void heal();
  void judge_seals();
  void count();

  const SimulationPlan plan_;
  SealLedger ledger_;
  SimulatedNetwork network_;
  std::unique_ptr<SimulatedHosts> hosts_;               // null: each rank has a host of its own
  std::vector<std::unique_ptr<Neighbour>> neighbours_;  // the other job, and the successor
  Hostile hostile_;
  Hostile liar_;
  Stranger stranger_;
  PlannedTraffic traffic_;
  std::vector<std::unique_ptr<SimulatedRank>> ranks_;
  Leaving leaving_;
  PartCalls part_;
  std::vector<SimulatedCall> calls_;
  std::vector<std::byte> reborn_;  // the buffer of a new incarnation's call
  std::vector<bool> told_;         // by rank: of the crash
  std::vector<bool> told_out_;     // by rank: of the eviction
  bool healed_ = false;
  Time live_from_ = kNever;  // when calls after healing begin
  bool aborted_ = false;
  bool crashed_ = false;
  Time now_{};
  std::uint64_t steps_ = 0;
  SimulationResult result_;
};

Simulation::Simulation(const SimulationPlan& plan, const SimulationHooks& hooks)
    : plan_(plan),
      network_(network_options(plan)),
      hosts_(plan.host_place_bytes == 0 ? nullptr
                                        : std::make_unique<SimulatedHosts>(
                                              plan.layout(), plan.host_place_bytes, plan.seed)),
      hostile_(plan.seed, plan.draws_stranger ? 0 : plan.hostile, plan.ranks),
      liar_(plan.seed, plan.lies, plan.ranks, plan.lie_group),
      stranger_(plan.seed, plan.draws_stranger ? plan.hostile : 0, plan.ranks),
      traffic_(plan_, hooks,
               [this](Rank from, Rank to, std::span<const std::byte> packet) {
                 add_packets(from, to, packet);
               }),
      leaving_(plan_, ranks_),
      part_(plan_, ranks_),
      calls_(plan_calls(plan)),
      told_(plan.ranks),
      told_out_(plan.ranks) {
  network_.watch(&traffic_);
  for (Rank rank = 0; rank < plan.ranks; ++rank) {
    ranks_.push_back(
        std::make_unique<SimulatedRank>(plan_, network_, ledger_, hosts_.get(), rank, hooks));
  }
  if (has(plan.on, FaultKind::two_jobs)) add_other_job();
}

void Simulation::add_other_job() {
  neighbours_.push_back(std::make_unique<Neighbour>(
      plan_,
      NeighbourOptions{.name = "the other job",
                       .members = RankMap::of_job(plan_.ranks).members(),
                       .job = kCookie + 1,
                       .seed = plan_.seed ^ 0x6e626f72},
      [this](Rank from, Rank to, std::span<const std::byte> packet) {
        network_.inject(from, to, packet);
      }));
}

/// Makes the job that takes the place of this one. Packets of this one still reach it.
void Simulation::add_successor() {
  const std::uint64_t live =
      plan_.loses_victim() ? plan_.successor & ~bit(plan_.victim) : plan_.successor;
  const ShrinkPlan plan{.members = plan_.successor,
                        .planner = static_cast<Rank>(std::countr_zero(live))};
  const auto ranks = static_cast<std::size_t>(std::popcount(plan.members));
  NeighbourOptions options{.name = "the successor",
                           .members = std::vector<Rank>(ranks),
                           .job = plan_.same_cookie ? kCookie : kCookie + 2,
                           .seed = plan_.seed ^ 0x737563636573,
                           .integrity = plan_.integrity,
                           .flows = plan_.flows,
                           .multicast = plan_.multicast,
                           .ledger = &ledger_};
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if ((plan.members & bit(rank)) != 0) options.members[plan.new_rank(rank)] = rank;
  }
  Random random(options.seed);  // in place of getrandom()
  for (std::byte& one : options.key) one = static_cast<std::byte>(random.next());
  const auto copy = [this, at = neighbours_.size()](Rank from, Rank to,
                                                    std::span<const std::byte> packet) {
    Neighbour& successor = *neighbours_[at];
    network_.inject(from, to, packet);
    const auto send = [&](const StrangerPacket* one) {
      if (one != nullptr) successor.inject(one->from, one->to, one->bytes);
    };
    if (plan_.hostile > 0) send(stranger_.recall());
    send(stranger_.read(from, to, packet));
  };
  neighbours_.push_back(std::make_unique<Neighbour>(plan_, options, copy));
}

/// Injects the packets that come with `packet`: copies for other jobs, and what strangers make.
void Simulation::add_packets(Rank from, Rank to, std::span<const std::byte> packet) {
  for (const auto& neighbour : neighbours_) neighbour->inject(from, to, packet);
  if (healed_) return;
  if (const StrangerPacket* const one = stranger_.read(from, to, packet)) {
    network_.inject(one->from, one->to, one->bytes);
  }
  for (Hostile* const forger : {&hostile_, &liar_}) {
    const std::span<const std::byte> twin = forger->twin(to, packet);
    if (!twin.empty()) network_.inject(from, to, twin);
  }
}

Time Simulation::due_at(const SimulatedCall& call, Rank rank) const {
  return call.live ? std::max(call.submit_at[rank], live_from_) : call.submit_at[rank];
}

void Simulation::submit_due(Rank rank) {
  if (!makes_calls(rank)) return;  // a new incarnation has a call of its own
  part_.submit_due(rank, now_);
  for (SimulatedCall& call : calls_) {
    if (call.pending[rank] || !call.takes_part(rank) || due_at(call, rank) > now_) continue;
    call.submitted[rank] = now_;
    call.worked[rank] = -ranks_[rank]->worked();
    if (ranks_[rank]->behind(call.tag)) call.behind |= bit(rank);
    call.pending[rank] = ranks_[rank]->submit(arguments_of(plan_, call, rank), now_);
  }
}

/// When `rank` submits or aborts next.
Time Simulation::next_action(Rank rank) const {
  if (gone(rank)) return kNever;
  Time next = kNever;
  if (!aborted_ && rank == plan_.victim) next = plan_.abort_at;
  if (!makes_calls(rank)) return next;
  next = std::min(next, part_.next(rank));
  for (const SimulatedCall& call : calls_) {
    const bool due = !call.pending[rank] && call.takes_part(rank);
    if (due) next = std::min(next, due_at(call, rank));
  }
  return next;
}

/// When `rank` gets to do something, from `from` on.
Time Simulation::wake(Rank rank, Time from) const {
  if (!ranks_[rank]->runs()) return kNever;
  const Time next = std::min(ranks_[rank]->next_event(), next_action(rank));
  return next == kNever ? kNever : ranks_[rank]->may_run(std::max(next, from));
}

void Simulation::run_rank(Rank rank) {
  submit_due(rank);
  if (!aborted_ && rank == plan_.victim && !crashed_ && now_ >= plan_.abort_at) {
    aborted_ = true;
    ranks_[rank]->abort(now_);
  }
  ranks_[rank]->run(now_);
  note_ended(rank);
  leaving_.ran(rank, now_);
}

/// Whether no call of `rank` is under way.
bool Simulation::idle(Rank rank) const {
  return std::all_of(calls_.begin(), calls_.end(), [rank](const SimulatedCall& call) {
    return !call.pending[rank] || call.pending[rank]->done;
  });
}

void Simulation::note_ended(Rank rank) {
  for (SimulatedCall& call : calls_) {
    if (call.ended[rank] == kNever && call.pending[rank] && call.pending[rank]->done) {
      call.ended[rank] = now_;
      call.worked[rank] += ranks_[rank]->worked();
    }
  }
}

/// When the victim crashes, or a rank is told of that.
Time Simulation::next_crash_news() const {
  if (!crashed_) return plan_.crash_at;
  Time next = kNever;
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (!told_[rank]) next = std::min(next, plan_.told_at(rank));
  }
  return next;
}

/// The same, or when a rank is told of the victim's eviction or leaving.
Time Simulation::next_news() const {
  Time next = std::min(next_crash_news(), leaving_.next(now_));
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (!told_out_[rank]) next = std::min(next, plan_.evicted_at(rank));
  }
  return next;
}

/// Lets the victim go, if it has left and nothing keeps it. Returns whether it went.
bool Simulation::end_leaving() {
  if (plan_.leave_at == kNever || !leaving_.run(now_, idle(plan_.victim))) return false;
  traffic_.dead();
  ranks_[plan_.victim]->crash();
  return true;
}

void Simulation::tell_news() {
  end_leaving();
  if (next_news() > now_) return;
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (told_out_[rank] || plan_.evicted_at(rank) > now_) continue;
    told_out_[rank] = true;
    if (ranks_[rank]->runs()) ranks_[rank]->evicted(plan_.victim, now_);
    note_ended(rank);  // it may crash before it runs again
    leaving_.evicted(rank, now_);
  }
  if (next_crash_news() > now_) return;
  if (!crashed_) crash();
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (told_[rank] || plan_.told_at(rank) > now_) continue;
    told_[rank] = true;
    ranks_[rank]->peer_dead(plan_.victim, now_);
  }
  if (plan_.restarts && next_crash_news() == kNever) restart();
}

/// Ends the victim's process. Its last packets are the first ones of what it would have sent now.
void Simulation::crash() {
  traffic_.crash(plan_.crash_packets);
  const bool runs = ranks_[plan_.victim]->may_run(now_) <= now_;
  if (plan_.port_breaks && runs)
    end_by_broken_port();
  else if (wake(plan_.victim, now_) <= now_)
    run_rank(plan_.victim);
  crashed_ = told_[plan_.victim] = true;
  traffic_.dead();
  ranks_[plan_.victim]->crash();
  leaving_.crashed();
}

/// Breaks the victim's port. Its running calls fail, and so do all that it would still have made.
void Simulation::end_by_broken_port() {
  ranks_[plan_.victim]->break_port(now_);
  run_rank(plan_.victim);
  for (SimulatedCall& call : calls_) {
    const bool made = call.pending[plan_.victim] != nullptr;
    if (made || !call.takes_part(plan_.victim) || call.live || leaving_.has_left()) continue;
    call.submitted[plan_.victim] = now_;
    call.worked[plan_.victim] = -ranks_[plan_.victim]->worked();
    call.pending[plan_.victim] =
        ranks_[plan_.victim]->submit(arguments_of(plan_, call, plan_.victim), now_);
  }
  run_rank(plan_.victim);
}

/// Starts the victim anew. It makes the first call again.
void Simulation::restart() {
  traffic_.restart();
  ranks_[plan_.victim]->restart();
  SimulatedCall& first = calls_.front();
  reborn_ = first.inputs[plan_.victim];
  std::byte* const buffer = reborn_.data();
  CallArguments arguments;
  if (first.parts.empty()) {
    arguments = arguments_of(plan_, first, plan_.victim);
    arguments.input = arguments.output = buffer;
  } else {
    arguments = collective_arguments(first, plan_.ranks, plan_.victim, buffer, buffer);
  }
  if (arguments.algorithm == Algorithm::hosts) arguments.algorithm = Algorithm::tar;
  ranks_[plan_.victim]->submit(arguments, now_);
}

Time Simulation::next_event() const {
  Time next = std::min(network_.next_crossing(), next_news());
  for (Rank rank = 0; rank < plan_.ranks; ++rank) next = std::min(next, wake(rank, now_ + 1ns));
  for (const auto& neighbour : neighbours_) next = std::min(next, neighbour->next_event());
  return next;
}

bool Simulation::done() const {
  for (const auto& neighbour : neighbours_) {
    if (!neighbour->done()) return false;
  }
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (!gone(rank) && !part_.done(rank, makes_calls(rank))) return false;
  }
  if (next_news() != kNever || !leaving_.over()) return false;
  return std::all_of(calls_.begin(), calls_.end(), [this](const SimulatedCall& call) {
    if (call.live && !healed_) return true;
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      if (!call.takes_part(rank)) continue;
      const bool makes_it = call.pending[rank] ? !gone(rank) : makes_calls(rank);
      if (makes_it && !(call.pending[rank] && call.pending[rank]->done)) return false;
    }
    return true;
  });
}

/// Runs until every call of the phase has ended. Returns false if one does not.
bool Simulation::run_until_done(Time limit) {
  for (;;) {
    run_all();
    if (done()) return true;
    if (!advance(limit)) return false;
  }
}

/// Does what is due now.
void Simulation::run_all() {
  tell_news();
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (wake(rank, now_) <= now_) run_rank(rank);
  }
  for (const auto& neighbour : neighbours_) neighbour->run(now_);
}

/// Goes on to the next event. Returns false if there is none until `limit`, or too many have been.
bool Simulation::advance(Time limit) {
  if (++steps_ > kMostSteps) return false;
  const Time next = next_event();
  if (next == kNever) return end_leaving();  // its last call may just have ended
  if (next > limit) return false;
  now_ = std::max(next, now_ + 1ns);
  network_.advance_to(now_);
  return true;
}

/// Whether the victim runs while the others treat it as dead. It then never stops asking them.
bool Simulation::excluded() const {
  return ranks_[plan_.victim]->runs() && (crashed_ || plan_.evict_at != kNever);
}

/// Runs on after the last call: packets on their way arrive, and ranks tell one another how far
/// they are. Then no rank can ask for anything, so ranks hold nothing and have nothing left to do.
void Simulation::drain() {
  if (excluded()) {
    traffic_.dead();
    ranks_[plan_.victim]->crash();
  }
  const Time limit = now_ + kDraining;
  while (advance(limit)) run_all();
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (!ranks_[rank]->runs()) continue;
    judge_memory(rank, ranks_[rank]->memory(), result_);
    if (wake(rank, now_) == kNever) continue;
    result_.violations.push_back(fmt::format("rank {} does not come to rest", rank));
  }
}

void Simulation::heal() {
  healed_ = true;
  live_from_ = now_ + kRecovery;
  aborted_ = true;  // an abort that is not due yet is a fault like the others
  network_.heal();
  traffic_.heal();
  part_.heal(live_from_);
  if (plan_.successor != 0) add_successor();
  for (const auto& rank : ranks_) rank->heal();
}

SimulationResult Simulation::run() {
  const Duration troubles = plan_.troubles();
  const Duration most = kSimulationDeadline * (plan_.calls_per_tag + 1) + plan_.skew + troubles;
  bool ended = run_until_done(Time(most));
  if (ended) {
    heal();
    ended = run_until_done(now_ + 2 * kSimulationDeadline);
  }
  if (!ended) {
    result_.violations.push_back(
        fmt::format("hang: {} at {} us, {}",
                    steps_ > kMostSteps ? "no end of things to do" : "nothing more to do",
                    now_.time_since_epoch() / 1us, healed_ ? "healed" : "not yet healed"));
  }
  result_.virtual_time = now_.time_since_epoch();
  if (ended) drain();
  result_.trace_hash = network_.trace_hash();
  for (SimulatedCall& call : calls_) {
    leaving_.note(call);
    judge(plan_, call, result_);
  }
  if (leaving_.in_vain() && !plan_.deadlines_may_pass() && !leaving_.waited_for_bounds(calls_)) {
    result_.violations.push_back("close() took its whole deadline");
  }
  judge_seals();
  part_.judge(result_);
  for (const auto& neighbour : neighbours_) {
    if (const std::string wrong = neighbour->judge(); !wrong.empty()) {
      result_.violations.push_back(wrong);
    }
  }
  count();
  return std::move(result_);
}

/// Checks that no nonce comes twice under a key, and that ports hand on no unopened packet.
void Simulation::judge_seals() {
  if (!plan_.has_secret()) return;
  if (const std::string wrong = ledger_.wrong(); !wrong.empty()) {
    result_.violations.push_back(wrong);
  }
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    const std::uint64_t got = ranks_[rank]->port_counts().received, opened = ledger_.opened(rank);
    if (got == opened) continue;
    result_.violations.push_back(
        fmt::format("rank {} got {} packets, and {} of them had a right tag", rank, got, opened));
  }
}

void Simulation::count() {
  for (Rank number = 0; number < plan_.ranks; ++number) {
    const SimulatedRank* rank = ranks_[number].get();
    result_.packets += rank->port().statistics().tx_packets;
    const SimulatedRank::PortCounts counted = rank->port_counts();
    result_.forged += counted.forged;
    result_.replayed += counted.replayed;
    const FaultStatistics& faults = rank->port().faults();
    result_.faults.lost += faults.lost;
    result_.faults.duplicated += faults.duplicated;
    result_.faults.reordered += faults.reordered;
    result_.faults.corrupted += faults.corrupted;
    result_.faults.truncated += faults.truncated;
    const EndpointCounters counters = rank->counters();
    judge_refusals(number, counters, counted.to_refuse, result_);
    for (std::size_t i = 0; i < counters.dropped.size(); ++i) {
      result_.counters.dropped[i] += counters.dropped[i];
    }
  }
}

}  // namespace

SimulationResult run_simulation(const SimulationPlan& plan, const SimulationHooks& hooks) {
  return Simulation(plan, hooks).run();
}

}  // namespace tarpon
