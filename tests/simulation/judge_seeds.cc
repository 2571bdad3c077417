// Judges seeds and shows those that break a promise: `tarpon-sim seeds` without its options.
//
//   judge_seeds FIRST COUNT
//
// Ends with 1 if a promise is broken.
#include <fmt/format.h>

#include <charconv>
#include <string>
#include <string_view>

#include "tools/simulation/seeds/sweep.h"

int main(int argc, char** argv) {
  std::uint64_t first = 0, count = 0;
  const auto number = [&](int at, std::uint64_t& value) {
    const std::string_view text = argv[at];
    return std::from_chars(text.begin(), text.end(), value).ec == std::errc();
  };
  if (argc != 3 || !number(1, first) || !number(2, count)) {
    fmt::print(stderr, "usage: judge_seeds FIRST COUNT\n");
    return 2;
  }
  std::uint64_t failed = 0;
  tarpon::run_seeds(
      {.first = first, .seeds = count},
      [](std::uint64_t seed) { return tarpon::plan_simulation(seed); },
      [&](const tarpon::SimulationPlan& plan, const tarpon::SimulationResult& result) {
        ++failed;
        fmt::print("{}\n", tarpon::describe(plan));
        for (const std::string& violation : result.violations)
          fmt::print("  broken: {}\n", violation);
      },
      [](std::uint64_t) {});
  fmt::print("{} seeds, {} failed\n", count, failed);
  return failed == 0 ? 0 : 1;
}
