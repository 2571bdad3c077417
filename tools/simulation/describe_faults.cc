#include <fmt/format.h>

#include "tools/simulation/draw.h"

namespace tarpon {
namespace {

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
