// What a seed stands for: the plan of the job, and its calls with their contents.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "collectives/engine/learning/bounds.h"
#include "collectives/engine/schedules/exchange_plan.h"
#include "tools/reference/reference.h"
#include "tools/simulation/draw.h"
#include "tools/simulation/share_learner.h"
#include "tools/simulation/simulated_call.h"
#include "transport/integrity.h"
#include "transport/random.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

std::int64_t draw_raw(Random& random) {
  return static_cast<std::int64_t>(random.below(2'000'001)) - 1'000'000;
}

/// Exact calls take values whose sum depends on the order of addition. Calls that calibrate take
/// values whose sum does not, because they add on arrival.
template <typename T>
T draw_value(const SimulatedCall& call, Random& random, Rank rank) {
  if (call.bounded) return coded_as<T>(rank);
  const std::int64_t raw = draw_raw(random);
  if (call.calibrates() && can_be_bounded(call.type, call.function)) return coded_as<T>(rank);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(raw % 1000);
  } else {
    return static_cast<T>(static_cast<SumOf<T>>(raw) / SumOf<T>{997});
  }
}

/// A divisor of the ranks, or none given.
std::uint32_t draw_group_size(Random& random, std::uint32_t ranks) {
  const auto size = static_cast<std::uint32_t>(random.below(ranks + 1));
  return size != 0 && ranks % size != 0 ? 0 : size;
}

/// Draws shares. Several ranks, or all but one, may own nothing.
Shares draw_shares(Random& random, std::uint32_t ranks) {
  std::vector<double> weights(ranks);
  const auto owner = static_cast<std::size_t>(random.below(ranks));
  const double chance = random.chance(0.3) ? 0 : 0.7;
  for (double& weight : weights) {
    if (random.chance(chance)) weight = 1 + static_cast<double>(random.below(1000));
  }
  weights[owner] = 500;
  return Shares(weights);
}

/// The element of the victim's input, of `count` elements, that the plan spoils.
std::uint64_t spoilt_element(const SimulationPlan& plan, std::uint64_t count) {
  return plan.seed * 2654435761u % count;
}

/// Puts the plan's NaN or infinity somewhere into the victim's input.
void spoil(const SimulationPlan& plan, SimulatedCall& call, std::vector<std::byte>& input) {
  if (call.count == 0 || is_integer(call.type)) return;
  call.nonfinite = true;
  with_element_type(call.type, [&](auto value) {
    if constexpr (kIsFloat<decltype(value)>) {
      value = static_cast<decltype(value)>(plan.nonfinite_value);
      const std::uint64_t at = spoilt_element(plan, call.count);
      std::memcpy(input.data() + at * sizeof value, &value, sizeof value);
    }
  });
}

std::vector<std::byte> draw_input(const SimulatedCall& call, Random& random, Rank rank) {
  std::vector<std::byte> bytes(call.count * element_bytes(call.type));
  with_element_type(call.type, [&](auto value) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof value) {
      value = draw_value<decltype(value)>(call, random, rank);
      std::memcpy(bytes.data() + at, &value, sizeof value);
    }
  });
  return bytes;
}

/// Draws any type and function that the call may have. The number of bytes stays the same.
void draw_later_types(Random& random, SimulatedCall& call) {
  const std::size_t width = element_bytes(call.type);
  do {
    call.type = static_cast<DataType>(random.below(kDataTypes));
  } while (element_bytes(call.type) > width || (call.bounded && is_integer(call.type)));
  call.count *= width / element_bytes(call.type);
  if (call.bounded) return;
  do {
    call.function = static_cast<ReduceOp>(random.below(kReduceOps));
  } while (!is_defined(call.type, call.function) || call.function == ReduceOp::custom);
}

/// `later`: the generator for types that were added later; null: there are none in this plan.
SimulatedCall draw_call(const SimulationPlan& plan, Random& random, Random* later,
                        std::uint32_t sequence, std::uint32_t index) {
  SimulatedCall call;
  call.tag = plan.fresh_tags ? index * plan.tags + sequence : sequence;
  call.number = plan.fresh_tags ? 0 : index;
  call.index = index;
  call.live = index >= plan.calls_per_tag;
  call.refused = has(plan.on, FaultKind::refuse) && index == plan.refused_call;
  const bool late_drawn = has(plan.on, FaultKind::late_call);
  call.late = late_drawn && index == plan.late_call && !call.refused;
  call.mismatched = has(plan.on, FaultKind::mismatch) && sequence == 0 &&
                    index == plan.mismatched_call && !call.refused && !call.late;
  // Small counts have their own corner cases: empty and short shards.
  call.count = random.chance(0.2) ? random.below(std::uint64_t{2} * plan.ranks)
                                  : random.below(plan.most_elements + 1);
  // Exact calls need the rank that is gone too.
  if (!call.live) call.bound_rule = plan.bound_rule;
  call.bounded = (plan.bounded && call.number >= Bounds::calibration(call.bound_rule)) ||
                 (plan.loses_victim() && index > plan.calls_per_tag);
  if (call.late && !call.bounded) call.deadline = plan.late_deadline;
  // Seeds are kept as tests, so these draws must not change. Types and functions that came later
  // are drawn separately, and take as many bytes.
  call.type = call.bounded ? DataType::float32 : static_cast<DataType>(random.below(4));
  call.function = call.bounded ? (random.chance(0.5) ? ReduceOp::sum : ReduceOp::avg)
                               : static_cast<ReduceOp>(random.below(5));
  const std::uint64_t draws = call.bounded ? 0 : call.count;  // of the input of a rank
  if (later != nullptr) draw_later_types(*later, call);
  call.missing = plan.missing;
  call.in_place = random.chance(0.5);
  for (Rank rank = 0; rank < plan.ranks; ++rank) {
    const auto skew = static_cast<std::uint64_t>(plan.skew.count());
    const Duration late(static_cast<std::int64_t>(random.below(skew + 1)));
    call.submit_at.push_back(Time(index * 100us + (call.live ? Duration{} : late)));
    const bool after_late = late_drawn && index > plan.late_call;
    if (after_late || (call.late && rank == plan.victim)) call.submit_at.back() += plan.late_by;
    std::vector<std::byte> input = draw_input(call, later != nullptr ? *later : random, rank);
    for (std::uint64_t i = 0; later != nullptr && i < draws; ++i) draw_raw(random);
    const bool chosen = has(plan.on, FaultKind::nonfinite) && index == plan.nonfinite_call;
    if (chosen && rank == plan.victim) spoil(plan, call, input);
    call.outputs.push_back(call.in_place ? input : std::vector<std::byte>(input.size()));
    call.inputs.push_back(std::move(input));
  }
  call.pending.resize(plan.ranks);
  call.submitted.resize(plan.ranks, kNever);
  call.worked.resize(plan.ranks, Duration::zero());
  call.ended.resize(plan.ranks, kNever);
  call.told_left.resize(plan.ranks, kNever);
  return call;
}

/// Makes an exact call another collective, and a bounded one `bounded`.
void draw_collective(Random& random, std::uint32_t ranks, SimulatedCall& call,
                     Collective bounded = Collective::reduce_scatter) {
  CollectiveArguments shape;
  shape.collective = bounded;
  if (!call.bounded) {
    // Messages came later: draw_message().
    constexpr auto kLast = static_cast<std::uint64_t>(Collective::all_to_all);
    shape.collective = static_cast<Collective>(1 + random.below(kLast));
  }
  if (has_root(shape.collective)) shape.root = static_cast<Rank>(random.below(ranks));
  const bool even = shape.collective == Collective::all_to_all || random.chance(0.5);
  if (shape.collective == Collective::broadcast || shape.collective == Collective::reduce) {
    shape.count = call.count;
  } else if (even) {
    shape.count = call.count / ranks;
  } else {
    std::uint64_t left = call.count;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const bool last = rank + 1 == ranks;
      const std::uint64_t part = last ? left : random.chance(0.2) ? 0 : random.below(left + 1);
      shape.counts.push_back(part);
      left -= part;
    }
  }
  call.algorithm = Algorithm::tar;
  call.parts.assign(ranks, CollectiveParts::of(shape, ranks, 0));
  call.count = call.parts[0].count;
}

/// Gives each pair of ranks of an all_to_all a count of its own, within the buffers.
void draw_counts_of_pairs(Random& random, std::uint32_t ranks, SimulatedCall& call) {
  const std::uint64_t most = call.count / ranks;
  std::vector<CollectiveArguments> shapes(ranks);
  for (CollectiveArguments& shape : shapes) {
    shape.collective = Collective::all_to_all;
    shape.counts.resize(ranks);
    shape.output_counts.resize(ranks);
  }
  for (Rank from = 0; from < ranks; ++from) {
    for (Rank to = 0; to < ranks; ++to) {
      const std::uint64_t count = random.chance(0.2) ? 0 : random.below(most + 1);
      shapes[from].counts[to] = shapes[to].output_counts[from] = count;
    }
  }
  for (Rank rank = 0; rank < ranks; ++rank) {
    call.parts[rank] = CollectiveParts::of(shapes[rank], ranks, rank);
  }
}

/// Makes a call that has its tag for itself a message between two ranks. If the victim misbehaves,
/// it is one of them.
void draw_message(const SimulationPlan& plan, Random& random, SimulatedCall& call) {
  auto sender = static_cast<Rank>(random.below(plan.ranks));
  auto receiver = static_cast<Rank>((sender + 1 + random.below(plan.ranks - 1)) % plan.ranks);
  if ((call.refused || call.late) && sender != plan.victim) receiver = plan.victim;
  if (random.chance(0.5)) std::swap(sender, receiver);
  CollectiveArguments shape{.collective = Collective::send, .count = call.count, .peer = receiver};
  call.algorithm = Algorithm::tar;
  call.parts.assign(plan.ranks, CollectiveParts::of(shape, plan.ranks, sender));
  shape.collective = Collective::receive;
  shape.peer = sender;
  call.parts[receiver] = CollectiveParts::of(shape, plan.ranks, receiver);
  call.tag = encode(
      PairTag{.sender = sender, .receiver = receiver, .tag = static_cast<std::uint16_t>(call.tag)});
}

/// The shares of an exact call. With FaultKind::mismatch the victim misses measurements of sequence
/// 0, which may make calls mismatched; the one that is mismatched in any case may be so because the
/// victim does not learn.
void give_learnt_shares(const SimulationPlan& plan, std::uint32_t sequence, Random& alone,
                        ShareLearner& learner, SimulatedCall& call) {
  const bool may_differ =
      has(plan.on, FaultKind::mismatch) && sequence == 0 && !call.refused && !call.late;
  if (may_differ) learner.fail_exchanges();
  if (call.live) learner.heal();
  const ShareLearner::Drawn drawn = learner.next();
  call.shares = drawn.shares;
  call.learns = call.victim_learns = true;
  if (call.mismatched) call.victim_learns = alone.chance(0.5);
  if (!may_differ || call.mismatched || call.live || drawn.of_victim == drawn.shares) return;
  call.of_victim = drawn.of_victim;
  call.mismatched = true;
}

}  // namespace

std::vector<SimulatedCall> plan_calls(const SimulationPlan& plan) {
  Random random(plan.seed ^ 0x63616c6c73);
  Random algorithms(plan.seed ^ 0x616c676f);
  Random levels(plan.seed ^ 0x6c6576656c73);
  Random shares(plan.seed ^ 0x736861726573);
  Random owners(plan.seed ^ 0x6f776e657273);
  // Shares of bounded calls came later, too.
  const bool divides_bounded = plan.draws_algorithms && owners.chance(0.4);
  Random late(plan.seed ^ 0x6c617465);
  Random later(plan.seed ^ 0x6c61746572);
  const bool draws_later = later.chance(0.5);
  Random alone(plan.seed ^ 0x616c6f6e65);
  Random lateness(plan.seed ^ 0x6c6174656e657373);
  Random by_host(plan.seed ^ 0x6279686f7374);
  Random collectives(plan.seed ^ 0x636f6c6c656374);
  Random pairs(plan.seed ^ 0x7061697273);
  Random scatters(plan.seed ^ 0x73636174746572);
  Random gathers(plan.seed ^ 0x676174686572);
  std::vector<ShareLearner> learners;  // by sequence
  for (std::uint32_t i = 0; plan.learns_shares && i < plan.tags; ++i) {
    learners.emplace_back(plan.seed * 8 + i, plan.ranks);
  }
  std::vector<SimulatedCall> calls;
  // A rank submits the calls of a tag in order.
  std::vector<std::vector<Time>> earliest(plan.tags, std::vector<Time>(plan.ranks));
  const auto add = [&](std::uint32_t sequence, std::uint32_t index) {
    SimulatedCall& call = calls.emplace_back(
        draw_call(plan, random, draws_later ? &later : nullptr, sequence, index));
    const bool exact = !call.bounded && !call.calibrates();
    const bool by_hosts = by_host.chance(0.8) && plan.host_place_bytes > 0;
    if (plan.draws_collectives && exact && collectives.chance(0.7)) {
      draw_collective(collectives, plan.ranks, call);
      const bool by_pair = call.parts[0].collective == Collective::all_to_all && !call.mismatched;
      const bool alone = plan.fresh_tags && index > 0 && !call.mismatched && !call.live;
      if (by_pair && pairs.chance(0.5)) {
        draw_counts_of_pairs(pairs, plan.ranks, call);
      } else if (alone && pairs.chance(0.4)) {
        draw_message(plan, pairs, call);
      }
      const bool in_memory = by_hosts && ExchangePlan::suits(&call.parts[0], plan.layout());
      if (in_memory) call.algorithm = Algorithm::hosts;
    } else if (by_hosts && exact) {
      call.algorithm = Algorithm::hosts;
    } else if (plan.learns_shares && exact) {
      give_learnt_shares(plan, sequence, alone, learners[sequence], call);
    } else if (plan.draws_algorithms && exact) {
      // Two levels, shares and late ranks came later. Each has a generator of its own, so that the
      // seeds in the tests still draw the other algorithms as before.
      constexpr auto kOneLevel = static_cast<std::uint64_t>(Algorithm::recursive_doubling);
      call.algorithm = static_cast<Algorithm>(1 + algorithms.below(kOneLevel));
      if (levels.chance(0.2)) {
        call.algorithm = Algorithm::two_level_tar;
        call.group_size = draw_group_size(levels, plan.ranks);
      }
      if (shares.chance(0.15)) {
        call.algorithm = Algorithm::tar;
        call.group_size = 0;
        call.shares = draw_shares(shares, plan.ranks);
      } else if (late.chance(0.3) && std::has_single_bit(plan.ranks)) {
        call.algorithm = Algorithm::late_rank;
        call.group_size = 0;
        call.late_rank = static_cast<Rank>(late.below(plan.ranks));
      }
    } else if (divides_bounded && owners.chance(0.5)) {
      call.shares = draw_shares(owners, plan.ranks);
    }
    const bool may_scatter = plan.draws_collectives && call.bounded && call.shares.even() &&
                             call.bound_rule != BoundRule::optireduce;
    if (may_scatter && scatters.chance(0.4)) {
      const std::uint64_t drawn = call.count;
      draw_collective(scatters, plan.ranks, call);
      call.nonfinite = call.nonfinite && spoilt_element(plan, drawn) < call.count;
    } else if (may_scatter && plan.draws_bounded_gathers && gathers.chance(0.5)) {
      draw_collective(gathers, plan.ranks, call, Collective::all_gather);
      call.nonfinite = false;  // no rank looks for NaN in parts
    } else if (by_hosts && call.bounded && call.shares.even()) {
      call.algorithm = Algorithm::hosts;
    }
    for (Rank rank = 0; rank < plan.ranks; ++rank) {
      if (!call.live && (plan.late_ranks >> rank & 1) != 0) {
        const auto percent = static_cast<std::int64_t>(lateness.below(101));
        call.submit_at[rank] += plan.lateness * percent / 100;
      }
      Time& at = earliest[sequence][rank];
      at = call.submit_at[rank] = std::max(at, call.submit_at[rank]);
    }
  };
  for (std::uint32_t index = 0; index < plan.calls_per_tag; ++index) {
    for (std::uint32_t sequence = 0; sequence < plan.tags; ++sequence) add(sequence, index);
  }
  for (std::uint32_t i = 0; i < kLiveCalls; ++i) add(0, plan.calls_per_tag + i);
  return calls;
}

namespace {

/// Whether the traffic beside the job exceeds the core's rate. Most packets of the job are lost
/// then.
bool floods_core(const FabricOptions& links) {
  double offered = 0;
  for (const Background& other : links.background) {
    if (!other.tcp) offered += other.bits_per_second;
  }
  return links.core.bits_per_second > 0 && offered > links.core.bits_per_second;
}

}  // namespace

/// Half of the seeds run what a job runs by default.
Mechanisms draw_mechanisms(Random& random) {
  Mechanisms result;
  const bool all = random.chance(0.5);
  if (random.chance(0.2)) result = Mechanisms::optireduce();
  if (random.chance(0.3)) result.inflow = InflowRule::incast;
  if (random.chance(0.3)) result.sending = SendRule::timely;
  for (bool* one : {&result.rotation, &result.repair, &result.scatter_repair, &result.retention,
                    &result.x_loop, &result.nonfinite}) {
    if (random.chance(0.2)) *one = false;
  }
  if (random.chance(0.15)) result.rescale = Rescale::none;
  return all ? Mechanisms{} : result;
}

/// Without a mesh ranks agree on nothing, so the codec is on in all calls or in none.
CodecRule draw_codec(std::uint64_t seed) {
  Random random(seed ^ 0x636f646563);
  return random.chance(0.3) ? CodecRule::on : CodecRule::off;
}

bool draw_algorithms(std::uint64_t seed) {
  Random random(seed ^ 0x736368656475);
  return seed >= kFirstSeedOfAlgorithms && random.chance(0.8);
}

std::uint32_t draw_host(std::uint64_t seed) {
  Random random(seed ^ 0x686f7374);
  if (seed < kFirstSeedOfHosts || random.chance(0.5)) return 0;
  return 4096u << random.below(5);
}

/// The host of each rank.
std::vector<std::uint8_t> draw_hosts(std::uint64_t seed, std::uint32_t ranks) {
  Random random(seed ^ 0x6c61796f7574);
  std::vector<std::uint8_t> hosts(ranks);
  if (random.chance(0.4)) return hosts;
  const std::uint64_t count = 2 + random.below(2);
  for (std::uint8_t& host : hosts) host = static_cast<std::uint8_t>(random.below(count));
  return hosts;
}

bool draw_multicast(std::uint64_t seed) {
  Random random(seed ^ 0x6d636173);
  return seed >= kFirstSeedOfMulticast && random.chance(0.8);
}

/// Draws the protection of packets. A tag follows the slot: a slot stays a multiple of 64 bytes.
void draw_secret(SimulationPlan& plan) {
  Random random(plan.seed ^ 0x736563726574);
  const bool drawn = random.chance(0.7);
  if (plan.seed < kFirstSeedOfSecrets) return;
  if (!drawn && plan.seed < kFirstSeedOfStrangers) return;
  plan.integrity = random.chance(0.5) ? TARPON_INTEGRITY_KEYED : TARPON_INTEGRITY_SEALED;
}

/// Draws what happens to keys: a part of the job, its successor, short-lived keys, a stranger. The
/// faults are drawn.
void draw_strangers(SimulationPlan& plan, const FaultSet& allowed) {
  if (plan.seed < kFirstSeedOfStrangers) return;
  Random random(plan.seed ^ 0x737472616e67);
  const std::uint64_t all = ~std::uint64_t{0} >> (kMaskRanks - plan.ranks);
  if (random.chance(0.7)) {
    plan.part = random.next() & all;
    while (std::popcount(plan.part) < 2) {
      plan.part |= bit(static_cast<Rank>(random.below(plan.ranks)));
    }
  }
  if (random.chance(0.6)) {
    const bool shrinks = random.chance(0.5);
    const std::uint64_t live = plan.loses_victim() ? all & ~bit(plan.victim) : all;
    plan.successor = shrinks && std::popcount(live) > 1 ? live : all;
  }
  plan.same_cookie = random.chance(0.5);
  plan.draws_stranger = true;
  const double acts = static_cast<double>(10 + random.below(291)) / 1000;
  if (random.chance(0.6) && allowed[static_cast<std::size_t>(FaultKind::hostile)]) {
    plan.on.set(static_cast<std::size_t>(FaultKind::hostile));
    plan.hostile = acts;
  }
  // All packets of a key may be lost, those of the next one too may not.
  FaultSet others = plan.on;
  for (const FaultKind harmless :
       {FaultKind::loss, FaultKind::mask, FaultKind::duplicate, FaultKind::reorder,
        FaultKind::corrupt, FaultKind::truncate, FaultKind::tail, FaultKind::drift,
        FaultKind::clock_jump, FaultKind::mismatch, FaultKind::abort, FaultKind::two_jobs,
        FaultKind::nonfinite, FaultKind::hostile, FaultKind::lies, FaultKind::refuse,
        FaultKind::late_call, FaultKind::no_memory}) {
    others.reset(static_cast<std::size_t>(harmless));
  }
  const unsigned shift = 6 + static_cast<unsigned>(random.below(3));
  if (others.none() && random.chance(0.7)) plan.packets_of_key_shift = shift;
}

bool draw_learnt_shares(std::uint64_t seed, std::uint32_t ranks) {
  Random random(seed ^ 0x6c6561726e74);
  return seed >= kFirstSeedOfLearntShares && ranks > 2 && random.chance(0.7);
}

bool draw_fresh_tags(std::uint64_t seed) {
  Random random(seed ^ 0x6672657368);
  return random.chance(0.2);
}

MissingFill draw_missing(std::uint64_t seed) {
  Random random(seed ^ 0x66696c6c);
  return random.chance(0.5) ? MissingFill::local : MissingFill::zero;
}

std::uint32_t draw_flows(std::uint64_t seed) {
  Random random(seed ^ 0x666c6f7773);
  return random.chance(0.6) ? 1 : 2u << random.below(3);
}

/// Draws the calls of a tag: 1 to 4. One seed in 20 has more than the window of open operations
/// holds; the bounds of its bounded calls may be learnt from them.
void draw_calls(SimulationPlan& plan, Random& random) {
  plan.calls_per_tag = static_cast<std::uint32_t>(1 + random.below(4));
  Random own(plan.seed ^ 0x77696e646f77);
  if (!own.chance(0.05)) return;
  const bool most = own.chance(0.2);
  plan.calls_per_tag += most ? 21 : 9;
  if (plan.bounded && own.chance(0.7)) {
    plan.bound_rule = most ? BoundRule::optireduce : BoundRule::learnt;
  }
}

/// Draws what ranks have learnt before the first call, and how late some of them are: in two of
/// five jobs of bounded calls.
void draw_learnt(SimulationPlan& plan) {
  Random own(plan.seed ^ 0x6c6561726e74);
  if (!plan.bounded || plan.bound_rule == BoundRule::optireduce || !own.chance(0.4)) return;
  plan.bound_rule = BoundRule::learnt;
  plan.usual = plan.bound / static_cast<std::int64_t>(2 + own.below(15));
  plan.limited = own.chance(0.3);
  if (!own.chance(0.7)) return;
  const std::uint64_t all = ~std::uint64_t{0} >> (kMaskRanks - plan.ranks);
  plan.late_ranks =
      all & (own.chance(0.6) ? bit(static_cast<Rank>(own.below(plan.ranks))) : own.next());
  plan.lateness = plan.usual * static_cast<std::int64_t>(1 + own.below(50)) / 10;
}

std::string describe_rule(const SimulationPlan& plan) {
  switch (plan.bound_rule) {
    case BoundRule::automatic:
      break;
    case BoundRule::learnt:
      if (plan.usual > Duration::zero()) {
        return fmt::format("bounded by what is learnt ({} us{}), ranks {:#x} late by up to {} us",
                           plan.usual / 1us,
                           plan.limited ? fmt::format(", at most {} us", plan.bound / 1us) : "",
                           plan.late_ranks, plan.lateness / 1us);
      }
      return "bounded by what is learnt";
    case BoundRule::optireduce:
      return "bounded by what 20 exact calls took";
  }
  return fmt::format("bounded by {} us", plan.bound / 1us);
}

std::string describe_mode(const SimulationPlan& plan) {
  if (!plan.bounded) return "exact";
  const bool zero = plan.missing == MissingFill::zero;
  return describe_rule(plan) + (zero ? ", gaps are zero" : ", gaps are filled with the own input");
}

SimulationPlan plan_simulation(std::uint64_t seed, const FaultSet& allowed) {
  Random random(seed);
  SimulationPlan plan;
  plan.seed = seed;
  plan.ranks = static_cast<std::uint16_t>(2 + random.below(7));
  plan.slot_bytes = static_cast<std::uint32_t>(64 * (1 + random.below(22)));
  plan.tags = static_cast<std::uint32_t>(1 + random.below(3));
  plan.most_elements = 1ull << (4 + random.below(10));
  plan.bounded = random.chance(0.5);
  draw_calls(plan, random);
  plan.bound = 2 * Duration(static_cast<std::int64_t>(1'000'000 + random.below(20'000'000)));
  draw_learnt(plan);
  if (random.chance(0.5)) plan.skew = Duration(static_cast<std::int64_t>(random.below(5'000'000)));
  plan.frames = static_cast<std::uint32_t>(3 + random.below(62));
  plan.receive_bytes = 1ull << (16 + random.below(8));
  plan.gathers = random.chance(0.5);
  plan.victim = static_cast<Rank>(random.below(plan.ranks));
  plan.mechanisms = draw_mechanisms(random);
  plan.mechanisms.codec = draw_codec(seed);
  plan.flows = draw_flows(seed);
  plan.draws_algorithms = draw_algorithms(seed);
  plan.multicast = draw_multicast(seed);
  // A job whose order is fixed refuses learnt shares.
  plan.learns_shares = plan.mechanisms.rotation && draw_learnt_shares(seed, plan.ranks);
  plan.draws_collectives = seed >= kFirstSeedOfCollectives && !plan.learns_shares;
  plan.draws_bounded_gathers = plan.draws_collectives && seed >= kFirstSeedOfBoundedGathers;
  plan.host_place_bytes = draw_host(seed);
  plan.hosts = draw_hosts(seed, plan.ranks);
  plan.fresh_tags = draw_fresh_tags(seed);
  plan.missing = draw_missing(seed);
  draw_secret(plan);
  draw_faults(plan, allowed);
  draw_strangers(plan, allowed);
  return plan;
}

const char* describe_algorithms(const SimulationPlan& plan) {
  if (plan.draws_collectives) return " of any collective";
  if (plan.host_place_bytes > 0) return " by hosts and any algorithm";
  if (plan.learns_shares) return " with learnt shares";
  return plan.draws_algorithms ? " by any algorithm" : "";
}

std::string describe_strangers(const SimulationPlan& plan) {
  if (!plan.draws_stranger) return "";
  std::string text = fmt::format(", keys of {} packets", 1u << plan.packets_of_key_shift);
  if (plan.part != 0) text += fmt::format(", part {:#x}", plan.part);
  if (plan.successor != 0) {
    text += fmt::format(", successor of {:#x} with {} cookie", plan.successor,
                        plan.same_cookie ? "the same" : "another");
  }
  return text;
}

std::string describe(const SimulationPlan& plan) {
  return fmt::format(
      "seed {}: {} ranks, {} {} x {} calls{} of up to {} elements, slots of {} B {}, {}, skew {} "
      "us, "
      "{} frames, {} B of receive buffer, {}, {} flows{}{}; {}; faults: {}",
      plan.seed, plan.ranks, plan.tags, plan.fresh_tags ? "sequences of fresh tags" : "tags",
      plan.calls_per_tag, describe_algorithms(plan), plan.most_elements, plan.slot_bytes,
      name(plan.integrity), describe_mode(plan), plan.skew / 1us, plan.frames, plan.receive_bytes,
      plan.gathers ? "gathering port" : "copying port", plan.flows,
      plan.multicast ? " and multicast" : "", describe_strangers(plan), describe(plan.mechanisms),
      describe_faults(plan));
}

bool SimulationPlan::loses_long_bursts() const {
  constexpr double kLeavesLongBurst = 0.15;
  return links && links->ingress.burst_loss_leave < kLeavesLongBurst;
}

bool SimulationPlan::may_silence_live_ranks() const {
  constexpr double kManyLosses = 0.2;
  const bool bursts = links && links->ingress.burst_loss_enter > 0;
  return loses_long_bursts() || (bursts && faults.loss > kManyLosses);
}

bool SimulationPlan::deadlines_may_pass() const {
  return has(on, FaultKind::clock_jump) || loses_long_bursts() || (links && floods_core(*links)) ||
         troubles() > kSimulationDeadline * 4 / 5;
}

}  // namespace tarpon
