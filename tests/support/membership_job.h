// Live jobs on 127.0.0.1 whose ranks are processes that may be killed.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "tests/support/live_job.h"
#include "tools/job/process_group.h"
#include "transport/clock.h"

namespace tarpon::testing_support {

inline constexpr std::uint32_t kMost = 8;

/// What the processes of a job see of each other.
struct Board {
  std::array<std::atomic<int>, kMost> stage{};
  std::array<std::atomic<std::int64_t>, kMost> ended_ns{};  // on the monotonic clock
  std::atomic<std::int64_t> killed_ns = 0;
  std::atomic<pid_t> pid = 0;  // of the rank that is stopped
};

class Shared {
 public:
  Shared()
      : at_(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                 0)) {
    new (at_) Board();
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { munmap(at_, sizeof(Board)); }
  Board* operator->() const { return static_cast<Board*>(at_); }

 private:
  void* at_;
};

inline std::int64_t clock_ns() {
  return monotonic_now().time_since_epoch().count();
}

inline CommunicatorOptions options_of(Rank rank, std::uint32_t ranks, const std::string& file) {
  CommunicatorOptions options;
  options.rendezvous.rank = rank;
  options.rendezvous.world_size = ranks;
  options.rendezvous.address = "file://" + file;
  options.datapath = Datapath::mmsg;
  options.mtu = 1500;
  return options;
}

/// A failed condition ends the rank's process with a line and a code of its own.
struct Failed {
  std::string what;
};
inline void require(bool condition, const std::string& what) {
  if (!condition) throw Failed{what};
}

using Body = std::function<void(Communicator&)>;

/// Runs the ranks as processes; all that are not killed must end well.
inline void run_processes(std::uint32_t ranks, const std::vector<Rank>& killed, const Body& body,
                          const std::function<void(CommunicatorOptions&)>& change = nullptr) {
  const std::string file = rendezvous_file();
  ProcessGroupOptions group;
  group.grace = 60s;
  const auto ended = run_process_group(
      ranks,
      [&](Rank rank) {
        CommunicatorOptions options = options_of(rank, ranks, file);
        if (change) change(options);
        auto communicator = Communicator::connect(options);
        if (!communicator) {
          std::fprintf(stderr, "rank %d: %s\n", rank, communicator.error().message.c_str());
          return 2;
        }
        try {
          body(**communicator);
        } catch (const Failed& failed) {
          std::fprintf(stderr, "rank %d: %s\n", rank, failed.what.c_str());
          return 3;
        }
        return 0;
      },
      group);
  std::filesystem::remove(file);
  ASSERT_TRUE(ended) << ended.error().message;
  for (Rank rank = 0; rank < ranks; ++rank) {
    const RankStatus& status = ended->ranks[rank];
    const bool dies = std::find(killed.begin(), killed.end(), rank) != killed.end();
    EXPECT_EQ(status.signal, dies ? SIGKILL : 0) << "rank " << rank;
    if (dies) continue;
    EXPECT_EQ(status.exit_code, 0) << "rank " << rank;
  }
}

inline void kill_self(const Shared& board) {
  board->killed_ns = clock_ns();
  kill(getpid(), SIGKILL);
}

inline void await(const Shared& board, const std::vector<Rank>& ranks, int stage) {
  const Time limit = monotonic_now() + 20s;
  for (const Rank rank : ranks) {
    while (board->stage[rank] < stage) {
      require(monotonic_now() < limit, "another rank did not get there");
      usleep(200);
    }
  }
}

/// In place, with much time.
inline AllreduceArguments patient_call(std::vector<float>& values, Mode mode = Mode::exact) {
  AllreduceArguments arguments = in_place(values);
  arguments.mode = mode;
  arguments.deadline = 60s;
  if (mode == Mode::bounded) arguments.bound = 10s;
  return arguments;
}

inline Report must(Result<Report> report) {
  require(report.has_value(), report ? "" : report.error().message);
  return *std::move(report);
}

inline void require_dead(const Report& report, const std::vector<Rank>& dead) {
  require(report.status == Status::peer_dead,
          std::string(name(report.status)) + ": " + report.detail);
  require(report.blamed == dead, "blames others: " + report.detail);
  require(report.detail.find("control connection") != std::string::npos, report.detail);
}

}  // namespace tarpon::testing_support
