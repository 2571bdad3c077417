#include "tools/simulation/draw.h"

#include <algorithm>
#include <limits>

#include "transport/random.h"

namespace tarpon {
namespace {

/// Parts in 1000, `least` to `most`.
double share(Random& random, std::uint64_t least, std::uint64_t most) {
  return static_cast<double>(least + random.below(most - least + 1)) / 1000;
}

Duration up_to(Random& random, Duration most) {
  return Duration(
      static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most.count()) + 1)));
}

/// Begins while calls are under way; 0.25 ms to 4 s long, short ones as often as long ones.
Window draw_window(Random& random) {
  Window window;
  window.from = Time(up_to(random, 4ms));
  window.to = window.from + 250us * static_cast<std::int64_t>(1ull << random.below(15));
  return window;
}

LinkOptions& ingress(SimulationPlan& plan) {
  if (!plan.links) plan.links.emplace();
  return plan.links->ingress;
}

void draw_links(SimulationPlan& plan, FaultKind kind, Random& random) {
  LinkOptions& link = ingress(plan);
  switch (kind) {
    case FaultKind::burst_loss:
      link.burst_loss_enter = static_cast<double>(1 + random.below(500)) / 10'000;
      link.burst_loss_leave = share(random, 50, 700);
      break;
    case FaultKind::tail:
      link.tail = 1.1 + share(random, 0, 8900);
      link.tail_median = 1us + up_to(random, 500us);
      break;
    case FaultKind::slow_link:
      link.bits_per_second = 1e8 * static_cast<double>(1 + random.below(50));
      link.queue_bytes = (8 + random.below(120)) << 10;
      if (random.chance(0.3)) link.delay = up_to(random, 2ms);
      break;
    case FaultKind::shared_core:
      plan.links->core.bits_per_second = 1e8 * static_cast<double>(1 + random.below(50));
      plan.links->core.queue_bytes = (8 + random.below(120)) << 10;
      break;
    case FaultKind::policer: {
      LinkOptions egress;
      egress.policer_bits_per_second = 1e8 * static_cast<double>(1 + random.below(20));
      egress.policer_burst_bytes = (8 + random.below(64)) << 10;
      plan.links->egress_of.emplace_back(plan.victim, egress);
      break;
    }
    case FaultKind::flow_limit: {
      LinkOptions& flow = plan.links->flow;
      const double rate = 1e8 * static_cast<double>(1 + random.below(20));
      const std::uint64_t bytes = (8 + random.below(64)) << 10;
      if (random.chance(0.5)) {
        flow.policer_bits_per_second = rate;
        flow.policer_burst_bytes = bytes;
      } else {
        flow.bits_per_second = rate;
        flow.queue_bytes = bytes;
      }
      break;
    }
    default: {  // background
      if (link.bits_per_second == 0) link.bits_per_second = 1e9;
      const auto from = static_cast<Rank>((plan.victim + 1) % plan.ranks);
      const double rate = link.bits_per_second * share(random, 100, 900);
      const auto burst = static_cast<std::uint32_t>(1500 * (1 + random.below(40)));
      const bool tcp = random.chance(0.5);
      // TCP slows down only when packets are lost, so the queue needs a limit.
      if (tcp && link.queue_bytes == 0) link.queue_bytes = 256 << 10;
      plan.links->background.push_back({from, plan.victim, rate, burst, tcp});
      break;
    }
  }
}

void draw_crash(SimulationPlan& plan, Random& random) {
  plan.crash_at = Time(up_to(random, 4ms));
  plan.crash_packets = static_cast<std::uint32_t>(random.below(16));
  plan.detection = std::min<Duration>(300ms, 1ms * (1 << random.below(10)));
  plan.detection_spread = up_to(random, 2ms);
  plan.restarts = random.chance(0.5);
}

void draw_victim(SimulationPlan& plan, FaultKind kind, Random& random) {
  switch (kind) {
    case FaultKind::partition:
    case FaultKind::one_way:
      plan.cut = draw_window(random);
      if (random.chance(0.1)) plan.cut.to = plan.cut.from + 15s;
      break;
    case FaultKind::jam:
      plan.jam = draw_window(random);
      break;
    case FaultKind::pause:
      plan.pause = draw_window(random);
      // Calls are over soon, so half of the pauses begin early.
      if (random.chance(0.5)) {
        const Duration length = plan.pause.length();
        plan.pause.from = Time(plan.pause.from.time_since_epoch() / 16);
        plan.pause.to = plan.pause.from + length;
      }
      break;
    case FaultKind::slow_rank:
      plan.slow_period = 20us + up_to(random, 2ms);
      break;
    case FaultKind::clock_jump:
      plan.jump_at = Time(up_to(random, 4ms));
      plan.jump = random.chance(0.5) ? Duration(10s) : Duration(1h);
      break;
    case FaultKind::drift:
      plan.drift_ppm = random.chance(0.5) ? 500 : -500;
      break;
    case FaultKind::mismatch:
      plan.mismatched_call = static_cast<std::uint32_t>(random.below(plan.calls_per_tag));
      plan.difference =
          static_cast<Difference>(random.below(static_cast<std::uint64_t>(Difference::kinds)));
      break;
    case FaultKind::leave:
      plan.leave_at = Time(up_to(random, random.chance(0.5) ? 4ms : 250us));
      plan.leave_news = std::min<Duration>(300ms, 100us * (1 << random.below(13)));
      plan.leave_spread = up_to(random, 2ms);
      break;
    case FaultKind::late_call:
      plan.late_call = static_cast<std::uint32_t>(random.below(plan.calls_per_tag));
      plan.late_deadline = 300ms + up_to(random, 700ms);
      plan.late_by = plan.late_deadline * 11 / 10 + up_to(random, plan.late_deadline);
      break;
    case FaultKind::refuse:
      plan.refused_call = static_cast<std::uint32_t>(random.below(plan.calls_per_tag));
      plan.wrong_argument = static_cast<WrongArgument>(
          random.below(static_cast<std::uint64_t>(WrongArgument::kinds)));
      break;
    case FaultKind::broken_port:
      plan.port_breaks = true;
      if (!plan.crashes()) draw_crash(plan, random);
      break;
    case FaultKind::crash:
      draw_crash(plan, random);
      break;
    case FaultKind::evict:
      plan.evict_at = Time(up_to(random, 4ms));
      plan.evict_spread = up_to(random, 2ms);
      break;
    default:  // abort
      plan.abort_at = Time(up_to(random, 2ms));
      break;
  }
}

double draw_nonfinite(Random& random) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (random.chance(0.5)) return std::numeric_limits<double>::quiet_NaN();
  return random.chance(0.5) ? infinity : -infinity;
}

void draw(SimulationPlan& plan, FaultKind kind, Random& random) {
  switch (kind) {
    case FaultKind::loss:
      plan.faults.loss = share(random, 1, 300);
      break;
    case FaultKind::duplicate:
      plan.faults.duplicate = share(random, 1, 500);
      break;
    case FaultKind::reorder:
      plan.faults.reorder = share(random, 1, 500);
      plan.faults.reorder_delay = up_to(random, 3ms);
      break;
    case FaultKind::corrupt:
      plan.faults.corrupt = share(random, 1, 100);
      break;
    case FaultKind::truncate:
      plan.faults.truncate = share(random, 1, 100);
      break;
    case FaultKind::mask:
      plan.mask = static_cast<std::uint8_t>(plan.seed);
      plan.mask_from = static_cast<Rank>(random.below(plan.ranks));
      plan.mask_to =
          static_cast<Rank>((plan.mask_from + 1 + random.below(plan.ranks - 1u)) % plan.ranks);
      break;
    case FaultKind::burst_loss:
    case FaultKind::tail:
    case FaultKind::slow_link:
    case FaultKind::policer:
    case FaultKind::background:
    case FaultKind::flow_limit:
    case FaultKind::shared_core:
      draw_links(plan, kind, random);
      break;
    case FaultKind::starved_frames:
      plan.frames = static_cast<std::uint32_t>(1 + random.below(2));
      break;
    case FaultKind::starved_buffers:
      plan.receive_bytes = (plan.payload_bytes() + TARPON_HEADER_BYTES) * (4 + random.below(60));
      break;
    case FaultKind::partition:
    case FaultKind::one_way:
    case FaultKind::jam:
    case FaultKind::pause:
    case FaultKind::slow_rank:
    case FaultKind::clock_jump:
    case FaultKind::drift:
    case FaultKind::mismatch:
    case FaultKind::abort:
    case FaultKind::crash:
    case FaultKind::broken_port:
    case FaultKind::evict:
    case FaultKind::refuse:
    case FaultKind::leave:
    case FaultKind::late_call:
      draw_victim(plan, kind, random);
      break;
    case FaultKind::nonfinite:
      plan.nonfinite_call = static_cast<std::uint32_t>(random.below(plan.calls_per_tag));
      plan.nonfinite_value = draw_nonfinite(random);
      break;
    case FaultKind::no_memory:
      plan.no_memory = share(random, 1, 200);
      break;
    case FaultKind::hostile:
      plan.hostile = share(random, 10, 300);
      break;
    case FaultKind::lies:
      plan.lies = share(random, 1, 50);
      break;
    case FaultKind::two_jobs:
    case FaultKind::count:
      break;
  }
}

}  // namespace

void draw_faults(SimulationPlan& plan, const FaultSet& allowed) {
  Random random(plan.seed ^ 0x6661756c7473);
  // Some seeds are calm and some wild: faults hide one another.
  constexpr double kChances[] = {0.04, 0.1, 0.2, 0.4};
  const double chance = kChances[random.below(4)];
  // In some seeds a rank is paused, and no other fault is on that could be to blame.
  const bool only_pause = Random(plan.seed ^ 0x7061757365).chance(0.05);
  for (std::size_t i = 0; i < kFaultKinds; ++i) {
    Random own(random.next());
    const bool on = only_pause ? static_cast<FaultKind>(i) == FaultKind::pause : own.chance(chance);
    if (!on || !allowed[i]) continue;
    plan.on.set(i);
    draw(plan, static_cast<FaultKind>(i), own);
  }
}

}  // namespace tarpon
