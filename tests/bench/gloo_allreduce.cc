// A peer of the benchmarks: Gloo's AllReduce by the timing rule of gloo_peer.h.
//
// Usage: gloo_allreduce STORE_DIR INTERFACE ALGORITHM ITERATIONS WARMUP SIZE...
//        gloo_allreduce STORE_DIR INTERFACE ALGORITHM endless SIZE
// with sizes in bytes of float32. Every rank prints a line for each size: measure_gloo(). An
// endless one, traffic beside others, answers each line of its standard input with the operations
// done so far, and ends with that input.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/math.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/gloo_peer.h"

namespace {

using tarpon::bench::connect_gloo;
using tarpon::bench::GlooCalls;
using tarpon::bench::leave_together;
using tarpon::bench::measure_gloo;

/// The algorithm on `data`, ready to be called many times.
std::function<void()> prepare(const std::string& algorithm,
                              const std::shared_ptr<gloo::rendezvous::Context>& context,
                              std::vector<float>& data) {
  if (algorithm == "halving_doubling") {
    auto run = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(
        context, std::vector<float*>{data.data()}, static_cast<int>(data.size()));
    return [run] { run->run(); };
  }
  const auto kind = algorithm == "ring"    ? gloo::AllreduceOptions::Algorithm::RING
                    : algorithm == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                           : throw std::invalid_argument(algorithm);
  return [context, &data, kind] {
    gloo::AllreduceOptions options(context);
    options.setAlgorithm(kind);
    options.setOutput(data.data(), data.size());
    using Function = void (*)(void*, const void*, const void*, size_t);
    options.setReduceFunction(static_cast<Function>(&gloo::sum<float>));
    gloo::allreduce(options);
  };
}

/// `calls`: without the size and its functions.
void measure(const std::shared_ptr<gloo::rendezvous::Context>& context,
             const std::string& algorithm, GlooCalls calls, std::size_t bytes) {
  std::vector<float> data(bytes / sizeof(float));
  calls.bytes = bytes;
  calls.refill = [&] {
    std::fill(data.begin(), data.end(), static_cast<float>(context->rank + 1));
  };
  calls.run = prepare(algorithm, context, data);
  calls.right = [&] {
    const float expected = static_cast<float>(context->size * (context->size + 1)) / 2;
    return std::all_of(data.begin(), data.end(), [=](float x) { return x == expected; });
  };
  measure_gloo(context, calls);
}

/// One operation after another, without a barrier. Whoever reads the input ends the process: an
/// operation waits for peers that may be gone.
[[noreturn]] void run_endlessly(const std::shared_ptr<gloo::rendezvous::Context>& context,
                                const std::string& algorithm, std::size_t bytes) {
  static std::atomic<std::uint64_t> done{0};
  std::thread([] {
    for (int c = std::getchar(); c != EOF; c = std::getchar()) {
      if (c != '\n') continue;
      std::printf("%llu\n", static_cast<unsigned long long>(done.load()));
      std::fflush(stdout);
    }
    std::_Exit(0);
  }).detach();
  std::vector<float> data(bytes / sizeof(float));
  const std::function<void()> run = prepare(algorithm, context, data);
  for (;; ++done) run();
}

}  // namespace

int main(int argc, char** argv) {
  const bool endless = argc == 6 && std::strcmp(argv[4], "endless") == 0;
  if ((argc < 7 && !endless) || std::getenv("RANK") == nullptr ||
      std::getenv("WORLD_SIZE") == nullptr) {
    std::fprintf(stderr,
                 "usage: gloo_allreduce STORE_DIR INTERFACE ALGORITHM {ITERATIONS WARMUP "
                 "SIZE...|endless SIZE} with RANK and WORLD_SIZE set\n");
    return 2;
  }
  try {
    const auto context = connect_gloo(argv[1], argv[2]);
    if (endless) run_endlessly(context, argv[3], std::strtoull(argv[5], nullptr, 10));
    const GlooCalls calls{argv[2], std::atoi(argv[4]), std::atoi(argv[5]), 0, {}, {}, {}};
    for (int i = 6; i < argc; ++i) {
      measure(context, argv[3], calls, std::strtoull(argv[i], nullptr, 10));
    }
    leave_together(argv[1], *context);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_allreduce: %s\n", error.what());
    return 1;
  }
  return 0;
}
