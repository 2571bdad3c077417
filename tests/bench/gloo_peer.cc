#include "tests/bench/gloo_peer.h"

#include <gloo/barrier.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tools/system/process_usage.h"

namespace tarpon::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// Of an environment variable, `otherwise` where it is not set.
int number_in(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
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

}  // namespace

std::shared_ptr<gloo::rendezvous::Context> connect_gloo(const std::string& store,
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

void measure_gloo(const std::shared_ptr<gloo::rendezvous::Context>& context,
                  const GlooCalls& calls) {
  gloo::BarrierOptions barrier(context);
  std::vector<double> times;
  double cpu = 0;
  const std::chrono::microseconds delay(
      number_in("LATE_RANK", -1) == context->rank ? number_in("LATE_US", 0) : 0);
  for (int i = 0; i < calls.iterations + calls.warmup; ++i) {
    calls.refill();
    gloo::barrier(barrier);
    std::this_thread::sleep_for(delay);
    const double cpu_before = process_cpu_seconds();
    const auto start = Clock::now();
    calls.run();
    const auto stop = Clock::now();
    if (i >= calls.warmup) {
      cpu += process_cpu_seconds() - cpu_before;
      times.push_back(std::chrono::duration<double, std::micro>(stop - start).count());
    }
  }
  if (!calls.right()) throw std::runtime_error("wrong result");
  const Sent sent = sent_in_a_call(calls.run, barrier, calls.interface);
  std::printf("%zu %.6f %" PRIu64 " %.0f %.0f", calls.bytes, cpu, max_resident_kib(), sent.segments,
              sent.bytes);
  for (const double time : times) std::printf(" %.2f", time);
  std::printf("\n");
  std::fflush(stdout);
}

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

}  // namespace tarpon::bench
