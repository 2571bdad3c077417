// The peer of the benchmarks: Gloo's AllReduce by the same timing rule as `tarpon allreduce`: an
// untimed refill and barrier before each iteration, one operation outstanding, from call to return.
// CPU time is that of the timed calls, all threads.
//
// Usage: gloo_allreduce STORE_DIR INTERFACE ALGORITHM ITERATIONS WARMUP SIZE...
//        gloo_allreduce STORE_DIR INTERFACE ALGORITHM endless SIZE
// with the rank and the world size in RANK and WORLD_SIZE, and sizes in bytes of float32. Where
// LATE_RANK names the rank, it makes each call LATE_US microseconds after the barrier before it.
// Every rank prints one line per size: "SIZE CPU_SECONDS MAX_RSS_KIB PACKETS BYTES TIME_US...",
// with the TCP segments that this network namespace sends in one more call, which is not timed, and
// the bytes of INTERFACE, whose trains of segments count one header. An endless one, traffic beside
// others, answers each line of its standard input with the operations done so far, and ends with
// that input.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tools/system/process_usage.h"

namespace {

using Clock = std::chrono::steady_clock;

/// Of an environment variable, `otherwise` where it is not set.
int number_in(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

std::shared_ptr<gloo::rendezvous::Context> connect(const std::string& store,
                                                   const std::string& interface) {
  const int rank = std::atoi(std::getenv("RANK"));
  const int world = std::atoi(std::getenv("WORLD_SIZE"));
  gloo::transport::tcp::attr attributes;
  attributes.iface = interface;
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore files(store);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, world);
  context->setTimeout(std::chrono::seconds(30));
  context->connectFullMesh(files, device);
  return context;
}

/// Segments and bytes that this network namespace has sent.
struct Sent {
  double segments = 0;
  double bytes = 0;
};

/// Of /proc/net/snmp (tcp(7)) and /proc/net/dev. Zeros where there is no such line.
Sent sent_so_far(const std::string& interface) {
  Sent sent;
  std::ifstream snmp("/proc/self/net/snmp");
  std::vector<std::string> names;
  for (std::string line; std::getline(snmp, line);) {
    std::istringstream words(line);
    std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    if (fields.empty() || fields[0] != "Tcp:") continue;
    const auto found = std::find(names.begin(), names.end(), "OutSegs");
    if (found != names.end()) {
      sent.segments = std::stod(fields.at(static_cast<std::size_t>(found - names.begin())));
    }
    names = std::move(fields);
  }
  std::ifstream interfaces("/proc/self/net/dev");
  for (std::string line; std::getline(interfaces, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.substr(0, colon).find(interface) == std::string::npos) {
      continue;
    }
    std::istringstream words(line.substr(colon + 1));
    const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    constexpr std::size_t kSentBytes = 8;  // after the eight fields of what was received
    sent.bytes = std::stod(fields.at(kSentBytes));
  }
  return sent;
}

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

/// Gloo takes a connection that closes for an error, even after the last call: nobody leaves before
/// all are through.
void leave_together(const std::string& store, const gloo::rendezvous::Context& context) {
  const auto mark = [&](int rank) { return store + "/done-" + std::to_string(rank); };
  std::ofstream(mark(context.rank)).flush();
  const auto limit = Clock::now() + std::chrono::seconds(30);
  for (int rank = 0; rank < context.size && Clock::now() < limit; ++rank) {
    while (!std::filesystem::exists(mark(rank)) && Clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

struct Calls {
  std::string algorithm;
  std::string interface;
  int iterations = 0;
  int warmup = 0;
};

/// What one call sends. It is not timed: ranks that read the counters between barrier and call
/// begin at different times.
Sent sent_in_a_call(const std::function<void()>& run, gloo::BarrierOptions& barrier,
                    const std::string& interface) {
  gloo::barrier(barrier);
  const Sent before = sent_so_far(interface);
  run();
  const Sent after = sent_so_far(interface);
  return {after.segments - before.segments, after.bytes - before.bytes};
}

void measure(const std::shared_ptr<gloo::rendezvous::Context>& context, const Calls& calls,
             std::size_t bytes) {
  std::vector<float> data(bytes / sizeof(float));
  const std::function<void()> run = prepare(calls.algorithm, context, data);
  gloo::BarrierOptions barrier(context);
  std::vector<double> times;
  double cpu = 0;
  const std::chrono::microseconds delay(
      number_in("LATE_RANK", -1) == context->rank ? number_in("LATE_US", 0) : 0);
  for (int i = 0; i < calls.iterations + calls.warmup; ++i) {
    std::fill(data.begin(), data.end(), static_cast<float>(context->rank + 1));
    gloo::barrier(barrier);
    std::this_thread::sleep_for(delay);
    const double cpu_before = tarpon::process_cpu_seconds();
    const auto start = Clock::now();
    run();
    const auto stop = Clock::now();
    if (i >= calls.warmup) {
      cpu += tarpon::process_cpu_seconds() - cpu_before;
      times.push_back(std::chrono::duration<double, std::micro>(stop - start).count());
    }
  }
  const float expected = static_cast<float>(context->size * (context->size + 1)) / 2;
  if (std::any_of(data.begin(), data.end(), [=](float x) { return x != expected; })) {
    throw std::runtime_error("wrong result");
  }
  const Sent sent = sent_in_a_call(run, barrier, calls.interface);
  std::printf("%zu %.6f %" PRIu64 " %.0f %.0f", bytes, cpu, tarpon::max_resident_kib(),
              sent.segments, sent.bytes);
  for (const double time : times) std::printf(" %.2f", time);
  std::printf("\n");
  std::fflush(stdout);
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
    const auto context = connect(argv[1], argv[2]);
    if (endless) run_endlessly(context, argv[3], std::strtoull(argv[5], nullptr, 10));
    const Calls calls{argv[3], argv[2], std::atoi(argv[4]), std::atoi(argv[5])};
    for (int i = 6; i < argc; ++i) {
      measure(context, calls, std::strtoull(argv[i], nullptr, 10));
    }
    leave_together(argv[1], *context);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_allreduce: %s\n", error.what());
    return 1;
  }
  return 0;
}
