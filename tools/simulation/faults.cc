#include "tools/simulation/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tarpon {
namespace {

constexpr std::array<std::string_view, kFaultKinds> kNames = {
    "loss",        "burst_loss", "mask",           "duplicate",
    "reorder",     "corrupt",    "truncate",       "tail",
    "slow_link",   "policer",    "background",     "partition",
    "one_way",     "jam",        "pause",          "slow_rank",
    "clock_jump",  "drift",      "starved_frames", "starved_buffers",
    "mismatch",    "abort",      "two_jobs",       "crash",
    "evict",       "nonfinite",  "flow_limit",     "shared_core",
    "broken_port", "hostile",    "lies",           "refuse",
    "leave",       "late_call",  "no_memory",
};

}  // namespace

std::string_view name(FaultKind kind) {
  return kind < FaultKind::count ? kNames[static_cast<std::size_t>(kind)] : "?";
}

Result<FaultSet> parse_faults(std::string_view list) {
  if (list == "all") return all_faults();
  FaultSet set;
  if (list == "none") return set;
  for (;;) {
    const std::string_view word = list.substr(0, list.find(','));
    const auto* const found = std::find(kNames.begin(), kNames.end(), word);
    if (found == kNames.end()) {
      return fail(Error::Code::invalid_argument,
                  fmt::format("--faults: \"{}\" is none of {}", word, describe(FaultSet{}.set())));
    }
    set.set(static_cast<std::size_t>(found - kNames.begin()));
    if (word.size() == list.size()) return set;
    list.remove_prefix(word.size() + 1);
  }
}

std::string describe(const FaultSet& set) {
  std::string text;
  for (std::size_t i = 0; i < kFaultKinds; ++i) {
    if (set[i]) text += fmt::format("{}{}", text.empty() ? "" : ",", kNames[i]);
  }
  return text.empty() ? "none" : text;
}

}  // namespace tarpon
