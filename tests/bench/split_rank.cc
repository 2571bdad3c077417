// One rank of the job that the cell `split` of `./dev bench groups` measures, over loopback: splits
// communicators of all ranks from the job, and makes a call of 1 MiB on each. Prints one JSON
// object:
// {"ms": [how long each split() took], "before", "after": {"descriptors", "threads", "rss_kib"}},
// of which "after" counts with all communicators held.
//
// Usage: split_rank --rank R --ranks N --rendezvous ADDRESS --parts N
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "tools/system/process_usage.h"
#include "transport/clock.h"

namespace tarpon::bench {
namespace {

constexpr Duration kLong = 60s;  // a deadline that no call or meeting reaches

struct Options {
  Rank rank = 0;
  std::uint32_t ranks = 2;
  std::string rendezvous;
  std::uint16_t parts = 32;
};

[[noreturn]] void die(const Options& options, const std::string& what) {
  std::fprintf(stderr, "split_rank %u: %s\n", options.rank, what.c_str());
  std::exit(1);
}

nlohmann::json used() {
  const ProcessHoldings held = ProcessHoldings::read();
  return {{"descriptors", held.descriptors},
          {"threads", held.threads},
          {"rss_kib", held.resident_bytes / 1024}};
}

void call(const Options& options, Communicator& communicator, std::vector<float>& values) {
  const auto report = communicator.allreduce(
      {.input = values.data(), .output = values.data(), .count = values.size(), .deadline = kLong});
  if (!report) die(options, report.error().message);
  if (report->status != Status::complete) die(options, report->detail);
}

void run(const Options& options) {
  auto wanted = CommunicatorOptions::for_rank(options.rank, options.ranks, options.rendezvous);
  wanted.address = "127.0.0.1";
  wanted.interface = "lo";
  auto job = Communicator::connect(wanted);
  if (!job) die(options, job.error().message);
  std::vector<Rank> all(options.ranks);
  std::iota(all.begin(), all.end(), Rank{0});
  std::vector<float> values(262'144, 1.0f);
  call(options, **job, values);
  std::this_thread::sleep_for(100ms);  // the progress thread has opened its ring by then
  nlohmann::json told{{"ms", nlohmann::json::array()}, {"before", used()}};
  std::vector<std::unique_ptr<Communicator>> parts;
  for (std::uint16_t number = 1; number <= options.parts; ++number) {
    if (auto met = (*job)->barrier(kLong); !met) die(options, met.error().message);
    const Time began = monotonic_now();
    auto part = (*job)->split(all, number, kLong);
    const std::chrono::duration<double, std::milli> took = monotonic_now() - began;
    if (!part) die(options, part.error().message);
    told["ms"].push_back(took.count());
    call(options, **part, values);
    parts.push_back(*std::move(part));
  }
  told["after"] = used();
  if (auto met = (*job)->barrier(kLong); !met) die(options, met.error().message);
  std::printf("%s\n", told.dump().c_str());
  for (auto& part : parts) {
    if (auto closed = part->close(kLong); !closed) die(options, closed.error().message);
  }
  parts.clear();
  if (auto closed = (*job)->close(kLong); !closed) die(options, closed.error().message);
}

}  // namespace
}  // namespace tarpon::bench

int main(int argc, char** argv) {
  tarpon::bench::Options options;
  CLI::App app("One rank of a job that splits communicators.");
  app.add_option("--rank", options.rank)->required();
  app.add_option("--ranks", options.ranks)->required();
  app.add_option("--rendezvous", options.rendezvous)->required();
  app.add_option("--parts", options.parts);
  CLI11_PARSE(app, argc, argv);
  tarpon::bench::run(options);
  return 0;
}
