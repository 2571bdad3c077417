// A peer of the benchmarks: Gloo's collectives beside AllReduce, called as PyTorch calls them, by
// the timing rule of gloo_peer.h. broadcast, reduce and reduce_scatter work in place.
//
// Usage: gloo_collective STORE_DIR INTERFACE COLLECTIVE ITERATIONS WARMUP SIZE...
// with the tool's names of collectives, and sizes as the tool counts them, in bytes of float32.
// Every rank prints a line for each size: measure_gloo().
//
// reduce_scatter is the class ReduceScatterHalvingDoubling, for numbers of ranks that are powers of
// two: Gloo has no function of that name.
#include <gloo/allgather.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/scatter.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/collective_values.h"
#include "tests/bench/gloo_peer.h"

namespace {

using tarpon::bench::CollectiveValues;
using tarpon::bench::GlooCalls;
using Context = std::shared_ptr<gloo::rendezvous::Context>;
using Floats = std::vector<float>;

constexpr int kRoot = 0;

/// The buffers of one rank.
struct Buffers {
  Floats input;   // of calls that have one apart
  Floats output;  // in place: the input too
};

bool works_in_place(const std::string& collective) {
  return collective == "broadcast" || collective == "reduce" || collective == "reduce_scatter";
}

void all_gather(const Context& context, Buffers& buffers) {
  gloo::AllgatherOptions options(context);
  options.setInput(buffers.input.data(), buffers.input.size());
  options.setOutput(buffers.output.data(), buffers.output.size());
  gloo::allgather(options);
}

void broadcast(const Context& context, Buffers& buffers) {
  gloo::BroadcastOptions options(context);
  options.setRoot(kRoot);
  options.setOutput(buffers.output.data(), buffers.output.size());
  gloo::broadcast(options);
}

void reduce(const Context& context, Buffers& buffers) {
  gloo::ReduceOptions options(context);
  options.setRoot(kRoot);
  using Function = void (*)(void*, const void*, const void*, size_t);
  options.setReduceFunction(static_cast<Function>(&gloo::sum<float>));
  options.setOutput(buffers.output.data(), buffers.output.size());
  gloo::reduce(options);
}

void all_to_all(const Context& context, Buffers& buffers) {
  gloo::AlltoallOptions options(context);
  options.setInput(buffers.input.data(), buffers.input.size());
  options.setOutput(buffers.output.data(), buffers.output.size());
  gloo::alltoall(options);
}

void gather(const Context& context, Buffers& buffers) {
  gloo::GatherOptions options(context);
  options.setRoot(kRoot);
  options.setInput(buffers.input.data(), buffers.input.size());
  if (context->rank == kRoot) options.setOutput(buffers.output.data(), buffers.output.size());
  gloo::gather(options);
}

void scatter(const Context& context, Buffers& buffers) {
  gloo::ScatterOptions options(context);
  options.setRoot(kRoot);
  const std::size_t part = buffers.output.size();
  std::vector<float*> parts;
  for (std::size_t at = 0; at < buffers.input.size(); at += part) {
    parts.push_back(buffers.input.data() + at);
  }
  if (context->rank == kRoot) options.setInputs(parts, part);
  options.setOutput(buffers.output.data(), part);
  gloo::scatter(options);
}

/// The call, ready to be made many times.
std::function<void()> prepare(const Context& context, const CollectiveValues& values,
                              Buffers& buffers) {
  const std::string& name = values.collective();
  if (name == "reduce_scatter") {
    const std::vector<int> parts(static_cast<std::size_t>(context->size),
                                 static_cast<int>(values.part()));
    auto run = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(
        context, std::vector<float*>{buffers.output.data()}, static_cast<int>(values.whole()),
        parts);
    return [run] { run->run(); };
  }
  const auto call = name == "all_gather"  ? all_gather
                    : name == "broadcast" ? broadcast
                    : name == "reduce"    ? reduce
                    : name == "alltoall"  ? all_to_all
                    : name == "gather"    ? gather
                                          : scatter;
  return [call, &context, &buffers] { call(context, buffers); };
}

/// `calls`: without the size and its functions.
void measure(const Context& context, const CollectiveValues& values, GlooCalls calls) {
  const Floats input = values.input(), right = values.output();
  Buffers buffers;
  if (works_in_place(values.collective())) {
    buffers.output.resize(values.whole());
    calls.refill = [&] {
      std::fill(buffers.output.begin(), buffers.output.end(), -1.0f);
      std::copy(input.begin(), input.end(), buffers.output.begin());
    };
  } else {
    buffers.input = input;
    buffers.output.resize(right.size());
    calls.refill = [&] { std::fill(buffers.output.begin(), buffers.output.end(), -1.0f); };
  }
  calls.run = prepare(context, values, buffers);
  // Behind its part, reduce_scatter leaves values that mean nothing.
  calls.right = [&] { return std::equal(right.begin(), right.end(), buffers.output.begin()); };
  measure_gloo(context, calls);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7 || std::getenv("RANK") == nullptr || std::getenv("WORLD_SIZE") == nullptr) {
    std::fprintf(stderr,
                 "usage: gloo_collective STORE_DIR INTERFACE COLLECTIVE ITERATIONS WARMUP SIZE... "
                 "with RANK and WORLD_SIZE set\n");
    return 2;
  }
  try {
    const Context context = tarpon::bench::connect_gloo(argv[1], argv[2]);
    for (int i = 6; i < argc; ++i) {
      const std::size_t bytes = std::strtoull(argv[i], nullptr, 10);
      measure(context, {argv[3], context->rank, context->size, bytes},
              {argv[2], std::atoi(argv[4]), std::atoi(argv[5]), bytes, {}, {}, {}});
    }
    tarpon::bench::leave_together(argv[1], *context);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_collective: %s\n", error.what());
    return 1;
  }
  return 0;
}
