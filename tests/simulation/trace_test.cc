// The same seeds leave the same traces, whatever built the code. Built as the other tests are, and
// again at other levels of optimisation.
//
// traces.txt holds the hash of each seed's trace, in hexadecimal: line n is seed n. A commit that
// moves or renames code leaves all of them as they are. A commit that changes behaviour renews
// them, with its reason.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tools/simulation/simulation.h"

namespace tarpon {
namespace {

constexpr std::size_t kRecorded = 1000;
constexpr std::size_t kSeeds = TARPON_TRACED_SEEDS;  // slow builds run the first ones

std::vector<std::uint64_t> recorded_hashes() {
  std::ifstream file(TARPON_TRACES);
  std::vector<std::uint64_t> hashes;
  for (std::string line; std::getline(file, line);)
    hashes.push_back(std::stoull(line, nullptr, 16));
  return hashes;
}

TEST(TraceTest, run_simulation__leaves_the_same_traces_with_every_compiler) {
  const std::vector<std::uint64_t> recorded = recorded_hashes();
  std::vector<std::uint64_t> hashes, changed;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    hashes.push_back(run_simulation(plan_simulation(seed)).trace_hash);
    if (seed > recorded.size() || hashes.back() != recorded[seed - 1]) changed.push_back(seed);
  }
  EXPECT_EQ(recorded.size(), kRecorded) << TARPON_TRACES;
  if (changed.empty()) return;
  std::string remedy = "see trace_test of the release build";
  if (kSeeds == kRecorded) {
    const std::string name = (std::filesystem::current_path() / "traces.txt").string();
    std::ofstream file(name);
    for (const std::uint64_t hash : hashes) file << std::hex << hash << "\n";
    remedy = "if the protocol or the plans changed on purpose, replace that file by " + name;
  }
  ADD_FAILURE() << changed.size() << " of " << kSeeds << " traces are not those of " TARPON_TRACES
                << ", the first is of seed " << changed.front() << "; " << remedy;
}

}  // namespace
}  // namespace tarpon
