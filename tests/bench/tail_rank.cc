// One rank of a job of `./dev bench tail` that stays alive between its turns, so that it learns its
// bound once.
//
// Usage: tail_rank --rank R --ranks N --rendezvous ADDRESS [--interface NAME] [--loss-target SHARE]
//                  [--no-codec] [--bytes B]
// It connects as `tarpon allreduce` does by default and makes one bucket of float32. Then it reads
// commands from its standard input, one a line, alike on all ranks, until that ends:
//   bounded N   N bounded calls with a learnt bound, in place
//   exact N     the same, exact
// Timing is that of `tarpon allreduce`: an untimed refill and barrier before each call, from call
// to return. Standard output has one JSON object a line: for each call
//   {"us", "status", "lost", "counted", "causes": {...}, "bound_us", "clock_start_us",
//    "in_doubt", "late": [ranks]}
// as in Report, and after the last call of a command {"done": N, "cpu_s": of the timed calls}.
// The last result of a command is checked element by element, against the contributors that its
// report names; coded ones are not, as that takes seconds. A wrong result, or a call without a
// result, ends the program with 1. The process ends with its parent.
#include <fmt/format.h>
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "collectives/communicator.h"
#include "tools/collective/pattern.h"
#include "tools/collective/tensor_memory.h"
#include "tools/job/session.h"
#include "tools/system/process_usage.h"
#include "transport/clock.h"

namespace tarpon::bench {
namespace {

struct Options {
  JobOptions job;
  std::uint64_t bytes = 25ull << 20;
};

double to_us(Duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

void print(const nlohmann::json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

class TailRank {
 public:
  TailRank(const Options& options, Communicator& communicator)
      : options_(options), communicator_(communicator) {
    bucket_.resize(options.bytes);
  }

  void run() {
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string mode;
      std::uint32_t calls = 0;
      if (!(words >> mode >> calls) || calls == 0 || (mode != "bounded" && mode != "exact")) {
        die(fmt::format("unknown command \"{}\": write bounded N or exact N", line));
      }
      run_calls(mode == "bounded" ? Mode::bounded : Mode::exact, calls);
    }
  }

 private:
  [[noreturn]] void die(const std::string& what) const {
    std::fprintf(stderr, "tail_rank %u: %s\n", communicator_.rank(), what.c_str());
    std::exit(1);
  }

  void run_calls(Mode mode, std::uint32_t calls) {
    Report last;
    cpu_s_ = 0;
    for (std::uint32_t i = 0; i < calls; ++i) {
      fill_pattern(bucket_, DataType::float32, ReduceOp::sum, communicator_.rank());
      if (const auto met = communicator_.barrier(options_.job.deadline); !met) {
        die(met.error().message);
      }
      last = timed_call(mode);
    }
    if (!last.coded) check(last);
    print({{"done", calls}, {"cpu_s", cpu_s_}});
  }

  void check(const Report& report) const {
    const std::uint64_t wrong =
        count_wrong(bucket_, DataType::float32, ReduceOp::sum, communicator_.rank(),
                    communicator_.world_size(), MissingFill::zero, report);
    if (wrong > 0) die(fmt::format("operation {}: {} wrong elements", report.operation, wrong));
  }

  Report timed_call(Mode mode) {
    const AllreduceArguments arguments{.input = bucket_.data(),
                                       .output = bucket_.data(),
                                       .count = bucket_.size() / sizeof(float),
                                       .mode = mode,
                                       .deadline = options_.job.deadline};
    const double cpu_before = process_cpu_seconds();
    const Time start = monotonic_now();
    Result<Report> report = communicator_.allreduce(arguments);
    const Time stop = monotonic_now();
    cpu_s_ += process_cpu_seconds() - cpu_before;
    if (!report) die(report.error().message);
    const Status status = report->status;
    if (status != Status::complete && status != Status::partial && status != Status::late_self) {
      die(fmt::format("operation {}: {}: {}", report->operation, name(status), report->detail));
    }
    const LossCauses& causes = report->causes;
    print({{"us", to_us(stop - start)},
           {"status", name(status)},
           {"lost", report->lost_fraction},
           {"counted", causes.of_live_ranks()},
           {"causes",
            {{"cut", causes.cut},
             {"network", causes.network},
             {"at_owner", causes.at_owner},
             {"late_ranks", causes.late_ranks},
             {"void_shards", causes.void_shards},
             {"gone", causes.gone}}},
           {"bound_us", to_us(report->bound)},
           {"held_us", to_us(report->held)},
           {"clock_start_us", to_us(report->clock_start)},
           {"in_doubt", report->in_doubt},
           {"late", report->late_ranks}});
    return std::move(*report);
  }

  const Options& options_;
  Communicator& communicator_;
  TensorBytes bucket_;
  double cpu_s_ = 0;  // of the timed calls of this command
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("One rank of the jobs of ./dev bench tail");
  app.add_option("--rank", options.job.place.rank)->required();
  app.add_option("--ranks", options.job.place.world_size)->required();
  app.add_option("--rendezvous", options.job.place.rendezvous)->required();
  app.add_option("--interface", options.job.interface);
  app.add_option("--loss-target", options.job.mechanisms.loss_target, "a share: 0.001 is 0.1 %")
      ->check(CLI::Range(1e-6, 0.999));
  bool no_codec = false;
  app.add_flag("--no-codec", no_codec, "bounded calls are never coded");
  app.add_option("--bytes", options.bytes, "of the bucket");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  if (no_codec) options.job.mechanisms.codec = CodecRule::off;
  return options;
}

int run(const Options& options) {
  return run_job(options.job, [&](const LaunchPlace& place) {
    auto session = open_session(options.job, place, "command=tail_rank\n");
    if (!session) {
      std::fprintf(stderr, "tail_rank %u: %s\n", place.rank, session.error().message.c_str());
      return 1;
    }
    TailRank(options, *session->communicator).run();
    return 0;
  });
}

}  // namespace
}  // namespace tarpon::bench

int main(int argc, char** argv) {
  // SIGKILL ends a stopped process too.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return tarpon::bench::run(tarpon::bench::parse(argc, argv));
}
