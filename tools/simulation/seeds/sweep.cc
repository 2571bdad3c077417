#include "tools/simulation/seeds/sweep.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

namespace tarpon {
namespace {

thread_local std::uint64_t seed_under_way = 0;

/// Uses only what a signal handler may call.
void name_seed(int) {
  constexpr std::string_view kBefore = "tarpon: the process ends in seed ";
  char line[kBefore.size() + 21];
  std::copy(kBefore.begin(), kBefore.end(), line);
  std::size_t end = sizeof line;
  line[--end] = '\n';
  std::uint64_t left = seed_under_way;
  do {
    line[--end] = static_cast<char>('0' + left % 10);
    left /= 10;
  } while (left > 0);
  // Move the digits up to the text.
  std::copy(line + end, line + sizeof line, line + kBefore.size());
  [[maybe_unused]] const auto written =
      ::write(STDERR_FILENO, line, kBefore.size() + sizeof line - end);
}

/// Names the seed on standard error, while it lives. A signal that has a handler already, as with
/// sanitizers, keeps it.
class SeedNamer {
 public:
  SeedNamer() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
      sigaction(kSignals[i], nullptr, &old_[i]);
      if (old_[i].sa_handler != SIG_DFL) continue;
      struct sigaction action {};
      action.sa_handler = name_seed;
      action.sa_flags = static_cast<int>(SA_RESETHAND);  // then it ends the process
      sigaction(kSignals[i], &action, nullptr);
    }
  }
  ~SeedNamer() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &old_[i], nullptr);
  }
  SeedNamer(const SeedNamer&) = delete;
  SeedNamer& operator=(const SeedNamer&) = delete;

 private:
  static constexpr int kSignals[] = {SIGABRT, SIGSEGV};
  std::array<struct sigaction, std::size(kSignals)> old_{};
};

}  // namespace

Coverage run_seeds(
    const Sweep& sweep, const std::function<SimulationPlan(std::uint64_t)>& plan,
    const std::function<void(const SimulationPlan&, const SimulationResult&)>& failed,
    const std::function<void(std::uint64_t)>& progress) {
  const SeedNamer namer;
  std::mutex mutex;  // guards what follows
  Coverage coverage;
  std::atomic<std::uint64_t> next{0}, done{0};
  const auto work = [&] {
    for (std::uint64_t i = next++; i < sweep.seeds; i = next++) {
      seed_under_way = sweep.first + i;
      const SimulationPlan one = plan(seed_under_way);
      const SimulationResult result = run_simulation(one);
      const std::lock_guard lock(mutex);
      coverage.add(one, result);
      if (!result.violations.empty()) failed(one, result);
      ++done;
    }
  };
  const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  const unsigned jobs = sweep.jobs > 0 ? sweep.jobs : processors;
  std::vector<std::jthread> workers;
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(jobs, sweep.seeds); ++i) {
    workers.emplace_back(work);
  }
  while (done < sweep.seeds) {
    std::this_thread::sleep_for(20ms);
    const std::lock_guard lock(mutex);  // it may print, as `failed` does
    progress(done);
  }
  return coverage;
}

}  // namespace tarpon
