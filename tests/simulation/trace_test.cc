// The same seeds leave the same traces, whatever built the code: each preset has a compiler and a
// level of optimisation of its own (CMakeLists.txt).
//
// traces.txt holds the hash of each seed's trace, in hexadecimal: line n is seed n up to 500;
// then come 200 of the seeds that draw algorithms. A commit that moves or renames code leaves all
// of them as they are. A commit that changes behaviour renews them, with its reason.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "tools/simulation/simulation.h"

namespace tarpon::trace_test {
namespace {

constexpr std::size_t kOfTar = 500;
constexpr std::size_t kRecorded = kOfTar + 200;
constexpr std::size_t kSeeds = TARPON_TRACED_SEEDS;

/// The seed of line `line`, counted from 1.
std::uint64_t seed_of(std::size_t line) {
  return line <= kOfTar ? line : kFirstSeedOfAlgorithms + line - kOfTar;
}

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
  std::vector<std::size_t> lines(kRecorded);
  std::iota(lines.begin(), lines.end(), 1);
  // Slow builds run the first ones of both kinds.
  std::erase_if(lines, [](std::size_t line) { return (line - 1) % kOfTar >= kSeeds; });
  for (const std::size_t line : lines) {
    const std::uint64_t seed = seed_of(line);
    hashes.push_back(run_simulation(plan_simulation(seed)).trace_hash);
    if (line > recorded.size() || hashes.back() != recorded[line - 1]) changed.push_back(seed);
  }
  EXPECT_EQ(recorded.size(), kRecorded) << TARPON_TRACES;
  if (changed.empty()) return;
  std::string remedy = "see trace_test of the release build";
  if (hashes.size() == kRecorded) {
    const std::string name = (std::filesystem::current_path() / "traces.txt").string();
    std::ofstream file(name);
    for (const std::uint64_t hash : hashes) file << std::hex << hash << "\n";
    remedy = "if the protocol or the plans changed on purpose, replace that file by " + name;
  }
  ADD_FAILURE() << changed.size() << " of " << hashes.size()
                << " traces are not those of " TARPON_TRACES << ", the first is of seed "
                << changed.front() << "; " << remedy;
}

}  // namespace
}  // namespace tarpon::trace_test
