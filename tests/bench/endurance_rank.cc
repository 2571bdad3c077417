// One rank of the jobs that `./dev bench endurance` measures, over loopback. Prints one JSON object
// a line; every rank prints the same kinds of lines.
//
// Usage: endurance_rank tags|stopped|buckets --rank R --ranks N --rendezvous ADDRESS [options]
//   tags     exact calls, in turn a block that gives each call a fresh tag and a block on one tag.
//            A line for each block: {"fresh": bool, "calls", "cpu_s", "rss_kib"}
//   stopped  bounded calls. After --calls of them the last rank stops itself (SIGSTOP); the others
//            go on until their retention has been full for long. One line: {"healthy_us": [...],
//            "stopped_us": [of the calls that were retained for it], "evicted": whether it is,
//            "rss_kib": [before the stop, largest after it]}
//   buckets  exact calls of several buckets at once. One line: {"seconds": [of each iteration],
//            "credits", "data": packets sent, "repaired", "duplicates", "overruns",
//            "receive_bytes"}
// CPU time is that of all threads of the process. A result that is wrong ends the program with 1.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "tools/system/process_usage.h"
#include "transport/clock.h"
#include "transport/counters.h"
#include "transport/port.h"

namespace tarpon::bench {
namespace {

constexpr std::uint64_t kSmallBytes = 4096;
constexpr std::uint32_t kOneTag = 0;
constexpr Duration kBound = 20ms;   // of a stage
constexpr Duration kDeadline = 1s;  // of bounded calls

struct Options {
  std::string cell;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 4;
  std::string rendezvous;
  std::uint32_t calls = 1000;  // tags: fresh ones; stopped: healthy ones; buckets: iterations
  std::uint32_t block = 500;   // tags: fresh calls of a block
  std::uint32_t same = 100;    // tags: calls on one tag of a block
  std::uint64_t retain_bytes = 64ull << 20;
  std::uint64_t receive_buffer = 0;
  std::uint64_t bytes = 4ull << 20;  // of a bucket
  std::uint32_t buckets = 8;
};

[[noreturn]] void die(const Options& options, const std::string& what) {
  std::fprintf(stderr, "endurance_rank %u: %s\n", options.rank, what.c_str());
  std::exit(1);
}

template <typename T>
T value_or_die(const Options& options, Result<T> result) {
  if (!result) die(options, result.error().message);
  return std::move(*result);
}

void print(const nlohmann::json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

std::uint64_t resident_kib() {
  std::uint64_t size = 0;
  std::uint64_t resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) / 1024;
}

std::unique_ptr<Communicator> connect(const Options& options) {
  CommunicatorOptions wanted;
  wanted.rendezvous.rank = static_cast<Rank>(options.rank);
  wanted.rendezvous.world_size = options.ranks;
  wanted.rendezvous.address = options.rendezvous;
  wanted.mtu = 1500;
  wanted.retain_bytes = options.retain_bytes;
  wanted.receive_buffer_bytes = options.receive_buffer;
  return value_or_die(options, Communicator::connect(wanted));
}

/// The sum of rank + 1 over all ranks, everywhere.
void check(const Options& options, const Report& report, const std::vector<float>& output) {
  if (report.status != Status::complete) die(options, report.detail);
  const auto expected = static_cast<float>(options.ranks * (options.ranks + 1) / 2);
  if (std::any_of(output.begin(), output.end(), [=](float x) { return x != expected; })) {
    die(options, fmt::format("operation {} of tag {}: wrong result", report.operation, report.tag));
  }
}

/// Out of place, so that every result is known.
class SmallCalls {
 public:
  SmallCalls(const Options& options, Communicator& communicator)
      : options_(options),
        communicator_(communicator),
        input_(kSmallBytes / sizeof(float), static_cast<float>(options.rank + 1)),
        output_(input_.size()) {}

  Report exact(std::uint32_t tag) { return run({.tag = tag}); }

  Report bounded() {
    return run({.tag = kOneTag, .mode = Mode::bounded, .deadline = kDeadline, .bound = kBound});
  }

  const std::vector<float>& output() const { return output_; }

 private:
  Report run(AllreduceArguments arguments) {
    arguments.input = input_.data();
    arguments.output = output_.data();
    arguments.count = input_.size();
    return value_or_die(options_, communicator_.allreduce(arguments));
  }

  const Options& options_;
  Communicator& communicator_;
  std::vector<float> input_;
  std::vector<float> output_;
};

// -- tags
// ------------------------------------------------------------------------------------------

class TagBlocks {
 public:
  TagBlocks(const Options& options, Communicator& communicator)
      : options_(options), calls_(options, communicator) {}

  void run() {
    for (std::uint32_t i = 0; i < options_.block; ++i) call(kOneTag);  // warm-up
    for (std::uint32_t done = 0; done < options_.calls; done += options_.block) {
      block(true, std::min(options_.block, options_.calls - done));
      block(false, options_.same);
    }
  }

 private:
  void call(std::uint32_t tag) { check(options_, calls_.exact(tag), calls_.output()); }

  void block(bool fresh, std::uint32_t calls) {
    const double cpu_before = process_cpu_seconds();
    for (std::uint32_t i = 0; i < calls; ++i) call(fresh ? ++latest_tag_ : kOneTag);
    print({{"fresh", fresh},
           {"calls", calls},
           {"cpu_s", process_cpu_seconds() - cpu_before},
           {"rss_kib", resident_kib()}});
  }

  const Options& options_;
  SmallCalls calls_;
  std::uint32_t latest_tag_ = kOneTag;
};

// -- stopped
// ---------------------------------------------------------------------------------------

void run_stopped(const Options& options, Communicator& communicator) {
  SmallCalls calls(options, communicator);
  std::vector<double> healthy_us;
  std::vector<double> stopped_us;
  const auto timed = [&](std::vector<double>& times) {
    const Time start = monotonic_now();
    calls.bounded();
    const Duration taken = monotonic_now() - start;
    times.push_back(std::chrono::duration<double, std::micro>(taken).count());
  };
  healthy_us.reserve(options.calls);
  // Resident before the stop: as many entries as the limit allows results.
  const std::uint64_t retained = options.retain_bytes / (kSmallBytes / options.ranks);
  stopped_us.resize(retained);
  stopped_us.clear();
  for (std::uint32_t i = 0; i < options.calls; ++i) timed(healthy_us);
  if (options.rank + 1 == options.ranks) raise(SIGSTOP);
  const std::uint64_t before_kib = resident_kib();
  std::uint64_t most_kib = before_kib;
  while (stopped_us.size() < retained) {
    timed(stopped_us);
    if (stopped_us.size() % 64 == 0) most_kib = std::max(most_kib, resident_kib());
  }
  // The rank is evicted when retention has been full for a deadline: some seconds of calls.
  for (std::uint64_t i = 0; i < retained; ++i) calls.bounded();
  const bool evicted = calls.exact(kOneTag).status == Status::evicted;
  print({{"healthy_us", healthy_us},
         {"stopped_us", stopped_us},
         {"evicted", evicted},
         {"rss_kib", {before_kib, most_kib}}});
}

// -- buckets
// ---------------------------------------------------------------------------------------

class Buckets {
 public:
  Buckets(const Options& options, Communicator& communicator)
      : options_(options), communicator_(communicator) {
    const std::size_t count = options.bytes / sizeof(float);
    input_.assign(count, static_cast<float>(options.rank + 1));
    for (std::uint32_t i = 0; i < options.buckets; ++i) outputs_.emplace_back(count);
  }

  void run() {
    for (int i = 0; i < 2; ++i) iteration();  // warm-up
    const EndpointCounters before = communicator_.counters();
    const PortStatistics port_before = communicator_.port_statistics();
    std::vector<double> seconds;
    for (std::uint32_t i = 0; i < options_.calls; ++i) seconds.push_back(iteration());
    const EndpointCounters after = communicator_.counters();
    print({{"seconds", seconds},
           {"credits", after.credits_out - before.credits_out},
           {"data", after.data_out - before.data_out},
           {"repaired", after.repaired_slots - before.repaired_slots},
           {"duplicates", after[DropReason::duplicate] - before[DropReason::duplicate]},
           {"overruns", communicator_.port_statistics().rx_overruns - port_before.rx_overruns},
           {"receive_bytes", communicator_.ranks()[options_.rank].receive_bytes}});
  }

 private:
  double iteration() {
    if (const auto met = communicator_.barrier(10s); !met) die(options_, met.error().message);
    const Time start = monotonic_now();
    std::vector<AsyncAllreduce> calls;
    for (std::uint32_t tag = 0; tag < options_.buckets; ++tag) {
      AllreduceArguments arguments{.input = input_.data(),
                                   .output = outputs_[tag].data(),
                                   .count = input_.size(),
                                   .tag = tag};
      calls.push_back(value_or_die(options_, communicator_.allreduce_async(arguments)));
    }
    std::vector<Report> reports;
    for (AsyncAllreduce& call : calls) reports.push_back(call.wait());
    const Duration taken = monotonic_now() - start;
    for (std::uint32_t tag = 0; tag < options_.buckets; ++tag) {
      check(options_, reports[tag], outputs_[tag]);
    }
    return std::chrono::duration<double>(taken).count();
  }

  const Options& options_;
  Communicator& communicator_;
  std::vector<float> input_;  // of all buckets
  std::vector<std::vector<float>> outputs_;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("One rank of the jobs of ./dev bench endurance");
  app.add_option("cell", options.cell)
      ->required()
      ->check(CLI::IsMember({"tags", "stopped", "buckets"}));
  app.add_option("--rank", options.rank)->required();
  app.add_option("--ranks", options.ranks);
  app.add_option("--rendezvous", options.rendezvous)->required();
  app.add_option("--calls", options.calls);
  app.add_option("--block", options.block)->check(CLI::PositiveNumber);
  app.add_option("--same", options.same);
  app.add_option("--retain", options.retain_bytes, "bytes");
  app.add_option("--receive-buffer", options.receive_buffer, "bytes; 0: the usual one");
  app.add_option("--bytes", options.bytes, "of a bucket");
  app.add_option("--buckets", options.buckets);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

int run(const Options& options) {
  const std::unique_ptr<Communicator> communicator = connect(options);
  if (options.cell == "tags") TagBlocks(options, *communicator).run();
  if (options.cell == "stopped") run_stopped(options, *communicator);
  if (options.cell == "buckets") Buckets(options, *communicator).run();
  if (const auto closed = communicator->close(10s); !closed) die(options, closed.error().message);
  return 0;
}

}  // namespace
}  // namespace tarpon::bench

int main(int argc, char** argv) {
  return tarpon::bench::run(tarpon::bench::parse(argc, argv));
}
