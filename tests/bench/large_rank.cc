// One rank of the jobs that `./dev bench large` measures, over loopback: calls of 1 GiB. Prints one
// JSON object a round; every rank prints the same lines.
//
// Usage: large_rank late|beside|abort --rank R --ranks N --rendezvous ADDRESS [options]
//   late    calls whose deadline is shorter than the call needs, exact and bounded in turn:
//           {"mode", "status", "over_ms": how long after its deadline the call returned,
//           "begun_ms": when half of the ranks had begun, "paused_ms": the process stood still,
//           "in_doubt": the rank may have been late, and waited for answers}
//   beside  an exact large call, and small ones on another tag until it ends:
//           {"large_ms", "asked_ms": [until each small call was submitted], "small_ms": [until it
//           had ended]}
//   abort   rank 0 aborts a large call from another thread at a random time; a communicator from
//           shrink() follows. Times of CLOCK_MONOTONIC, so that they compare across processes:
//           {"aborted_ms": when abort() was called, rank 0 alone, "returned_ms": it returned,
//           "ended_ms": the large call ended}
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "transport/clock.h"
#include "transport/random.h"

namespace tarpon::bench {
namespace {

constexpr std::uint32_t kLargeTag = 1, kSmallTag = 2;
constexpr std::uint64_t kSmallBytes = 4096;
constexpr Duration kLong = 60s;  // a deadline that no call or meeting reaches

struct Options {
  std::string cell;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 2;
  std::string rendezvous;
  std::uint32_t rounds = 10;
  std::uint64_t bytes = 1ull << 30;
  std::uint64_t deadline_ms = 150;  // late
  std::uint64_t abort_ms = 150;     // abort: it comes by then
};

[[noreturn]] void die(const Options& options, const std::string& what) {
  std::fprintf(stderr, "large_rank %u: %s\n", options.rank, what.c_str());
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

double milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

double clock_ms() {
  return milliseconds(monotonic_now().time_since_epoch());
}

class Job {
 public:
  explicit Job(const Options& options)
      : options_(options),
        large_(options.bytes / sizeof(float), 1.0f),
        small_(kSmallBytes / sizeof(float), 1.0f) {
    CommunicatorOptions wanted;
    wanted.rendezvous.rank = static_cast<Rank>(options.rank);
    wanted.rendezvous.world_size = options.ranks;
    wanted.rendezvous.address = options.rendezvous;
    communicator_ = value_or_die(options_, Communicator::connect(wanted));
    expect_complete(communicator_->allreduce(large(kLong)));
  }

  void late(std::uint32_t round) {
    AllreduceArguments arguments = large(std::chrono::milliseconds(options_.deadline_ms));
    if (round % 2 == 1) arguments.mode = Mode::bounded;
    meet();
    const Time begun = monotonic_now();
    const Report report = value_or_die(options_, communicator_->allreduce(arguments));
    const Duration took = monotonic_now() - begun;
    print({{"mode", arguments.mode == Mode::bounded ? "bounded" : "exact"},
           {"status", name(report.status)},
           {"over_ms", milliseconds(took - arguments.deadline)},
           {"begun_ms", milliseconds(report.clock_start)},
           {"paused_ms", milliseconds(report.paused)},
           {"in_doubt", report.in_doubt}});
  }

  void beside() {
    meet();
    const Time begun = monotonic_now();
    AsyncAllreduce running = value_or_die(options_, communicator_->allreduce_async(large(kLong)));
    // Ranks see the end of the large call at different times: all make as many small calls.
    std::vector<double> asked, ended;
    for (bool done = false; !done;) {
      done = running.done();
      small_[0] = done ? 1.0f : 0.0f;
      AllreduceArguments arguments;
      arguments.input = arguments.output = small_.data();
      arguments.count = small_.size();
      arguments.tag = kSmallTag;
      arguments.deadline = kLong;
      arguments.function = ReduceOp::max;
      const Time before = monotonic_now();
      AsyncAllreduce small = value_or_die(options_, communicator_->allreduce_async(arguments));
      asked.push_back(milliseconds(monotonic_now() - before));
      expect_complete(small.wait());
      ended.push_back(milliseconds(monotonic_now() - before));
      done = small_[0] > 0;
    }
    expect_complete(running.wait());
    print({{"large_ms", milliseconds(monotonic_now() - begun)},
           {"asked_ms", asked},
           {"small_ms", ended}});
  }

  void abort() {
    meet();
    AsyncAllreduce running = value_or_die(options_, communicator_->allreduce_async(large(kLong)));
    nlohmann::json line;
    std::thread aborter;
    if (options_.rank == 0) {
      // Ranks leave the barrier up to 5 ms apart where they share processors (4 ranks on 2,
      // measured): an abort at once would end the barrier of some.
      const std::uint64_t first_us = 1000 * options_.abort_ms / 5;
      const std::uint64_t after_us = first_us + random_.below(4 * first_us);
      aborter = std::thread([&, after = std::chrono::microseconds(after_us)] {
        std::this_thread::sleep_for(after);
        line["aborted_ms"] = clock_ms();
        communicator_->abort("large_rank");
        line["returned_ms"] = clock_ms();
      });
    }
    const Report report = running.wait();
    const double ended = clock_ms();
    if (aborter.joinable()) aborter.join();
    if (report.status != Status::aborted) {
      die(options_, "the call ended as " + std::string(name(report.status)) + " before the abort");
    }
    line["ended_ms"] = ended;
    print(line);
    communicator_ = value_or_die(options_, communicator_->shrink(kLong));
  }

  void close() {
    if (const auto closed = communicator_->close(kLong); !closed) {
      die(options_, closed.error().message);
    }
  }

 private:
  /// In place: its values do not matter.
  AllreduceArguments large(Duration deadline) {
    AllreduceArguments arguments;
    arguments.input = arguments.output = large_.data();
    arguments.count = large_.size();
    arguments.tag = kLargeTag;
    arguments.deadline = deadline;
    arguments.function = ReduceOp::avg;
    return arguments;
  }

  void meet() {
    if (const auto met = communicator_->barrier(kLong); !met) die(options_, met.error().message);
  }

  void expect_complete(Result<Report> result) {
    const Report report = value_or_die(options_, std::move(result));
    if (report.status != Status::complete) die(options_, report.detail);
  }

  const Options& options_;
  Random random_{1};
  std::vector<float> large_;
  std::vector<float> small_;
  std::unique_ptr<Communicator> communicator_;
};

void run(const Options& options) {
  Job job(options);
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    if (options.cell == "late") job.late(round);
    if (options.cell == "beside") job.beside();
    if (options.cell == "abort") job.abort();
  }
  job.close();
}

}  // namespace
}  // namespace tarpon::bench

int main(int argc, char** argv) {
  tarpon::bench::Options options;
  CLI::App app("One rank of a job that makes calls of 1 GiB.");
  app.add_option("cell", options.cell)
      ->required()
      ->check(CLI::IsMember({"late", "beside", "abort"}));
  app.add_option("--rank", options.rank)->required();
  app.add_option("--ranks", options.ranks)->required();
  app.add_option("--rendezvous", options.rendezvous)->required();
  app.add_option("--rounds", options.rounds);
  app.add_option("--bytes", options.bytes);
  app.add_option("--deadline", options.deadline_ms, "of the cell late, in ms");
  app.add_option("--abort-within", options.abort_ms,
                 "of the cell abort: from a fifth of it on, in ms");
  CLI11_PARSE(app, argc, argv);
  tarpon::bench::run(options);
  return 0;
}
