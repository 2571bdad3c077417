// Delay traces and straggler traces, which come from anywhere.
#include "tests/fuzz/fuzz.h"
#include "tools/scale/straggler_trace.h"
#include "transport/simulated/delay_trace.h"

using namespace tarpon;
using fuzz::require;

namespace {

constexpr std::string_view kName = "trace.csv";
constexpr std::uint32_t kRanks = 4;

template <typename Samples>
bool accepted(const Result<Samples>& samples) {
  require(samples || samples.error().message.starts_with(kName), "a refusal names the file");
  return static_cast<bool>(samples);
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  if (const auto samples = parse_delay_trace(text, kName); accepted(samples)) {
    require(samples->size() <= size, "a sample takes a line");
    DelayTrace trace(*samples, kRanks);
    for (const DelaySample& sample : *samples) {
      require(sample.delay >= Duration::zero(), "a delay is not negative");
    }
    for (Rank rank = 0; rank < kRanks; ++rank) {
      require(trace.at(Time(std::chrono::hours(24)), rank) >= Duration::zero(),
              "sums are in range");
    }
  }
  if (const auto samples = scale::parse_straggler_trace(text, kName); accepted(samples)) {
    require(samples->size() <= size, "a sample takes a line");
    std::vector<scale::Episode> episodes(kRanks);
    for (const auto& sample : *samples) scale::replay(*samples, sample.operation, episodes);
    for (const scale::Episode& episode : episodes) {
      require(episode.from >= Duration::zero() && episode.length >= Duration::zero(),
              "an episode is not negative");
    }
  }
  return 0;
}
