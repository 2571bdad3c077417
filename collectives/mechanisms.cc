#include "collectives/mechanisms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <utility>
#include <vector>

namespace tarpon {
namespace {

using Switch = bool Mechanisms::*;
constexpr std::array<std::pair<std::string_view, Switch>, 5> kSwitches{{
    {"repair", &Mechanisms::repair},
    {"scatter-repair", &Mechanisms::scatter_repair},
    {"retention", &Mechanisms::retention},
    {"x-loop", &Mechanisms::x_loop},
    {"nonfinite", &Mechanisms::nonfinite},
}};

}  // namespace

bool Mechanisms::take_out(std::string_view name) {
  for (const auto& [known, member] : kSwitches) {
    if (known != name) continue;
    this->*member = false;
    return true;
  }
  return false;
}

std::string_view name(InflowRule rule) {
  switch (rule) {
    case InflowRule::window:
      return "window";
    case InflowRule::incast:
      return "incast";
  }
  return "?";
}

std::string_view name(SendRule rule) {
  return rule == SendRule::timely ? "timely" : "credit";
}

std::string_view name(Rescale rescale) {
  switch (rescale) {
    case Rescale::count:
      return "count";
    case Rescale::none:
      return "none";
  }
  return "?";
}

std::string_view name(CodecRule rule) {
  switch (rule) {
    case CodecRule::automatic:
      return "auto";
    case CodecRule::on:
      return "on";
    case CodecRule::off:
      return "off";
  }
  return "?";
}

std::string_view order_name(const Mechanisms& mechanisms) {
  return mechanisms.rotation ? "rotating" : "fixed";
}

std::string describe(const Mechanisms& mechanisms) {
  std::vector<std::string_view> off;
  for (const auto& [known, member] : kSwitches) {
    if (!(mechanisms.*member)) off.push_back(known);
  }
  return fmt::format("inflow {}, sending {}, rescale {}, codec {}, loss target {}, without {}",
                     name(mechanisms.inflow), name(mechanisms.sending), name(mechanisms.rescale),
                     name(mechanisms.codec), mechanisms.loss_target,
                     off.empty() ? "nothing" : fmt::format("{}", fmt::join(off, " and ")));
}

}  // namespace tarpon
