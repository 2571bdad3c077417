#include "tools/simulation/draw.h"

#include <fmt/format.h>

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
      // It slows down for losses alone.
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
      // Calls are soon over: half of the pauses begin with them.
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
      plan.receive_bytes = (plan.slot_bytes + TARPON_HEADER_BYTES) * (4 + random.below(60));
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

std::string text(const Window& window) {
  return fmt::format("{}-{} us", window.from.time_since_epoch() / 1us,
                     window.to.time_since_epoch() / 1us);
}

std::string describe_links(const FabricOptions& links) {
  const LinkOptions& in = links.ingress;
  std::string result =
      fmt::format("ingress {} bit/s, queue {} B, delay {} us, tail {} of {} us, burst loss {}/{}",
                  in.bits_per_second, in.queue_bytes, in.delay / 1us, in.tail, in.tail_median / 1us,
                  in.burst_loss_enter, in.burst_loss_leave);
  if (links.core != LinkOptions{}) {
    result += fmt::format(", core {} bit/s, queue {} B", links.core.bits_per_second,
                          links.core.queue_bytes);
  }
  for (const auto& [rank, link] : links.egress_of) {
    result += fmt::format(", rank {} policed to {} bit/s, {} B", rank, link.policer_bits_per_second,
                          link.policer_burst_bytes);
  }
  if (links.flow != LinkOptions{}) {
    result += fmt::format(", flows of {} bit/s, queue {} B, policed to {} bit/s, {} B",
                          links.flow.bits_per_second, links.flow.queue_bytes,
                          links.flow.policer_bits_per_second, links.flow.policer_burst_bytes);
  }
  for (const Background& other : links.background) {
    result += fmt::format(", background {} to {}", other.from, other.to);
    result += other.tcp
                  ? " by TCP"
                  : fmt::format(" of {} bit/s in {} B", other.bits_per_second, other.burst_bytes);
  }
  return result;
}

const char* name(WrongArgument what) {
  switch (what) {
    case WrongArgument::deadline:
      return "deadline";
    case WrongArgument::bound:
      return "bound";
    case WrongArgument::function:
      return "function";
    case WrongArgument::input:
      return "input";
    case WrongArgument::count:
      return "count";
    case WrongArgument::overlap:
      return "overlap";
    case WrongArgument::kinds:
      break;
  }
  return "?";
}

const char* name(Difference what) {
  switch (what) {
    case Difference::count:
      return "count";
    case Difference::function:
      return "function";
    case Difference::type:
      return "type";
    case Difference::mode:
      return "mode";
    case Difference::kinds:
      break;
  }
  return "?";
}

std::string values(const SimulationPlan& plan, FaultKind kind) {
  switch (kind) {
    case FaultKind::loss:
      return fmt::format(" {}", plan.faults.loss);
    case FaultKind::duplicate:
      return fmt::format(" {}", plan.faults.duplicate);
    case FaultKind::reorder:
      return fmt::format(" {} within {} us", plan.faults.reorder, plan.faults.reorder_delay / 1us);
    case FaultKind::corrupt:
      return fmt::format(" {}", plan.faults.corrupt);
    case FaultKind::truncate:
      return fmt::format(" {}", plan.faults.truncate);
    case FaultKind::mask:
      return fmt::format(" {:#x} from {} to {}", plan.mask, plan.mask_from, plan.mask_to);
    case FaultKind::partition:
    case FaultKind::one_way:
      return " " + text(plan.cut);
    case FaultKind::jam:
      return " " + text(plan.jam);
    case FaultKind::pause:
      return " " + text(plan.pause);
    case FaultKind::slow_rank:
      return fmt::format(" every {} us", plan.slow_period / 1us);
    case FaultKind::clock_jump:
      return fmt::format(" of {} s at {} us", plan.jump / 1s,
                         plan.jump_at.time_since_epoch() / 1us);
    case FaultKind::drift:
      return fmt::format(" {} ppm", plan.drift_ppm);
    case FaultKind::mismatch:
      return fmt::format(" of {} in call {}", name(plan.difference), plan.mismatched_call);
    case FaultKind::abort:
      return fmt::format(" at {} us", plan.abort_at.time_since_epoch() / 1us);
    case FaultKind::nonfinite:
      return fmt::format(" {} in call {}", plan.nonfinite_value, plan.nonfinite_call);
    case FaultKind::evict:
      return fmt::format(" at {} us, told within {} us", plan.evict_at.time_since_epoch() / 1us,
                         plan.evict_spread / 1us);
    case FaultKind::refuse:
      return fmt::format(" call {} for its {}", plan.refused_call, name(plan.wrong_argument));
    case FaultKind::late_call:
      return fmt::format(" {} by {} us, with a deadline of {} us", plan.late_call,
                         plan.late_by / 1us, plan.late_deadline / 1us);
    case FaultKind::leave:
      return fmt::format(" at {} us, words take {} to {} us",
                         plan.leave_at.time_since_epoch() / 1us, plan.leave_news / 1us,
                         (plan.leave_news + plan.leave_spread) / 1us);
    case FaultKind::no_memory:
      return fmt::format(" {}", plan.no_memory);
    case FaultKind::hostile:
      return fmt::format(" {}", plan.hostile);
    case FaultKind::lies:
      return fmt::format(" {} of group {}", plan.lies, static_cast<int>(plan.lie_group));
    case FaultKind::crash:
    case FaultKind::broken_port:
      return fmt::format(" at {} us, {} packets later, told {} to {} us later{}",
                         plan.crash_at.time_since_epoch() / 1us, plan.crash_packets,
                         plan.detection / 1us, (plan.detection + plan.detection_spread) / 1us,
                         plan.restarts ? ", comes up again" : "");
    case FaultKind::burst_loss:
    case FaultKind::tail:
    case FaultKind::slow_link:
    case FaultKind::policer:
    case FaultKind::background:
    case FaultKind::starved_frames:
    case FaultKind::starved_buffers:
    case FaultKind::two_jobs:
    case FaultKind::flow_limit:
    case FaultKind::shared_core:
    case FaultKind::count:
      break;
  }
  return "";
}

}  // namespace

void draw_faults(SimulationPlan& plan, const FaultSet& allowed) {
  Random random(plan.seed ^ 0x6661756c7473);
  // Some seeds are calm and some wild: faults hide one another.
  constexpr double kChances[] = {0.04, 0.1, 0.2, 0.4};
  const double chance = kChances[random.below(4)];
  // And in some a rank is stopped, and nothing else happens that could be to blame.
  const bool only_pause = Random(plan.seed ^ 0x7061757365).chance(0.05);
  for (std::size_t i = 0; i < kFaultKinds; ++i) {
    Random own(random.next());
    const bool on = only_pause ? static_cast<FaultKind>(i) == FaultKind::pause : own.chance(chance);
    if (!on || !allowed[i]) continue;
    plan.on.set(i);
    draw(plan, static_cast<FaultKind>(i), own);
  }
}

std::string describe_faults(const SimulationPlan& plan) {
  if (plan.on.none()) return "none";
  std::string result = fmt::format("victim {}", plan.victim);
  for (std::size_t i = 0; i < kFaultKinds; ++i) {
    if (!plan.on[i]) continue;
    const auto kind = static_cast<FaultKind>(i);
    result += fmt::format(", {}{}", name(kind), values(plan, kind));
  }
  return plan.links ? result + "; " + describe_links(*plan.links) : result;
}

}  // namespace tarpon
