// Memory that is refused while a call is submitted: the call ends and takes one number, or the
// process ends. A call that took two numbers would be paired with others from then on.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "collectives/driver/learnt_shares.h"
#include "collectives/driver/rate_meter.h"
#include "tests/simulation/simulated_grid.h"
#include "tests/support/c_calls.h"
#include "tests/support/live_job.h"
#include "tests/support/simulated_job.h"

namespace {

// Of this thread: the allocation after these is refused; -1: none is.
thread_local long allocations_left = -1;

}  // namespace

void* operator new(std::size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocations_left >= 0 && allocations_left-- == 0 ? nullptr : std::malloc(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace tarpon::testing_support::refused_memory_test {
namespace {

enum Outcome : int {
  kNothingRefused = 0,
  kCallRefused = 10,
  kWrong = 11,
  kTerminated = 12,
  kNotNeeded = 13
};

/// How many refused allocations ended a call, or the process.
struct Ended {
  int calls = 0, processes = 0;
};

/// Refuses the first allocation, then the second one, and so on, until `refuse(n)`, in a process of
/// its own, meets none.
Ended refuse_each(const std::function<int(int)>& refuse) {
  Ended ended;
  for (int allocations = 0;; ++allocations) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::set_terminate([] { ::_exit(kTerminated); });
      ::_exit(refuse(allocations));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    const int outcome = WIFEXITED(status) && allocations < 1000 ? WEXITSTATUS(status) : kWrong;
    if (outcome == kNothingRefused) return ended;
    const bool as_wanted =
        outcome == kCallRefused || outcome == kTerminated || outcome == kNotNeeded;
    EXPECT_TRUE(as_wanted) << "allocation " << allocations << ", status " << status;
    if (!as_wanted) return ended;
    if (outcome != kNotNeeded) ++(outcome == kCallRefused ? ended.calls : ended.processes);
  }
}

/// In a process of its own: rank 1's second call meets a refused allocation.
int refuse(int allocations, bool bounded) {
  // Early cells of three ranks are parked. Bounded calls add on arrival: two ranks have one order.
  const std::uint16_t ranks = bounded ? 2 : 3;
  SimulatedJob job({.ranks = ranks});
  std::vector<std::unique_ptr<Buffers<float>>> buffers;
  const auto submit = [&](Rank rank, std::size_t call) {
    auto arguments = buffers[call]->arguments(rank, DataType::float32, ReduceOp::sum);
    arguments.mode = bounded ? Mode::bounded : Mode::exact;
    return job.submit(rank, arguments);
  };
  for (int call = 0; call < 4; ++call) {
    buffers.push_back(std::make_unique<Buffers<float>>(ranks, 5000, false, call + 1));
  }
  for (Rank rank = 0; rank < ranks; ++rank) (void)submit(rank, 0);
  (void)submit(0, 1);
  if (ranks == 3) (void)submit(2, 1);
  allocations_left = allocations;
  const auto refused = submit(1, 1);
  const bool met = allocations_left < 0;
  allocations_left = -1;
  const auto next = submit(0, 2);
  for (Rank rank = 1; rank < ranks; ++rank) (void)submit(rank, 2);
  if (!job.finish(5s)) return kWrong;
  if (next->report.status != Status::complete || next->report.operation != 2) return kWrong;
  if (!same_bits(buffers[2]->outputs[0], buffers[2]->expected(ReduceOp::sum, 2))) return kWrong;
  if (!met) return kNothingRefused;
  const bool ended = refused->report.status == Status::aborted &&
                     refused->report.abort_reason == AbortReason::memory;
  return ended && refused->report.operation == 1 ? kCallRefused : kWrong;
}

TEST(RefusedMemoryTest, submit__takes_one_number_or_ends_the_process) {
  for (const bool bounded : {false, true}) {
    const Ended ended =
        refuse_each([bounded](int allocations) { return refuse(allocations, bounded); });
    EXPECT_GT(ended.calls, 5);
    EXPECT_GT(ended.processes, 0);
  }
}

/// In a process of its own: a live job of two ranks, whose rank 1 meets a refused allocation when
/// it starts its second call. With a `reason` it refuses that call by itself.
int refuse_live(int allocations, const char* reason) {
  const std::string file = rendezvous_file();
  std::array<tarpon_communicator*, 2> jobs{};
  std::array<std::array<float, 100>, 2> values{};
  const auto call_of = [&values](std::size_t rank, const double* shares) {
    tarpon_arguments call = call_on(values[rank].data(), values[rank].size());
    call.algorithm = TARPON_TAR;
    call.shares = shares;
    call.share_count = 2;
    return call;
  };
  std::array<std::array<int, 3>, 2> ends{};
  bool met = false;
  on_both([&](std::size_t rank) {
    tarpon_options options{};
    options.size = sizeof options;
    options.rank = static_cast<std::uint32_t>(rank);
    options.world_size = 2;
    const std::string address = "file://" + file;
    options.rendezvous = address.c_str();
    options.interface = "lo";
    options.datapath = TARPON_DATAPATH_MMSG;
    if (tarpon_connect(&options, &jobs[rank]) != TARPON_OK) ::_exit(kWrong);
    for (std::size_t number = 0; number < 3; ++number) {
      const double shares[] = {1, 2};
      values[rank].fill(static_cast<float>(number));
      tarpon_arguments call = call_of(rank, shares);
      const bool second = number == 1 && rank == 1;
      tarpon_call* started = nullptr;
      if (second) call.refusal = reason;
      if (second) allocations_left = allocations;
      int code = tarpon_allreduce_start(jobs[rank], &call, &started);
      if (second) met = std::exchange(allocations_left, -1) < 0;
      if (code == TARPON_OK) code = tarpon_wait(started, nullptr);
      ends[rank][number] = code;
      tarpon_call_free(started);
    }
  });
  std::filesystem::remove(file);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    if (ends[rank][0] != TARPON_OK || ends[rank][2] != TARPON_OK) return kWrong;
    if (values[rank][0] != 4) return kWrong;
  }
  if (!met) return kNothingRefused;
  if (ends[0][1] == TARPON_OK && ends[1][1] == TARPON_OK) return kNotNeeded;
  return ends[0][1] == TARPON_ERROR_NO_RESULT && ends[1][1] != TARPON_OK ? kCallRefused : kWrong;
}

TEST(RefusedMemoryTest, tarpon_allreduce_start__takes_one_number_or_ends_the_process) {
  for (const char* const reason : {"", "a reason that needs memory when it is copied"}) {
    const Ended ended =
        refuse_each([reason](int allocations) { return refuse_live(allocations, reason); });
    EXPECT_GT(ended.calls, 2);
  }
}

/// One call of all ranks of a grid of 2x2 in virtual time. Rank 1 meets a refused allocation;
/// `allocations` -1: it does not.
struct GridRound {
  std::array<std::shared_ptr<PendingCall>, 4> calls;
  bool met = false;

  GridRound(SimulatedGrid& grid, Collective what, std::uint32_t tag, int allocations) {
    constexpr std::uint64_t kCount = 200;
    std::array<std::vector<float>, 4> inputs, outputs;
    for (const Rank rank : {Rank{0}, Rank{2}, Rank{3}, Rank{1}}) {
      inputs[rank].assign(4 * kCount, 1);
      outputs[rank].resize(4 * kCount);
      AllreduceArguments sum;
      CollectiveArguments other{.collective = what};
      sum.input = other.input = inputs[rank].data();
      sum.output = other.output = outputs[rank].data();
      sum.count = other.count = kCount;
      sum.tag = other.tag = tag;
      if (rank == 1) allocations_left = allocations;
      calls[rank] =
          what == Collective::allreduce ? grid.submit(rank, sum) : grid.submit(rank, other);
    }
    met = std::exchange(allocations_left, -1) < 0 && allocations >= 0;
    if (!grid.finish(20s)) ::_exit(kWrong);
  }
  bool all(Status status) const {
    return std::all_of(calls.begin(), calls.end(),
                       [&](const auto& call) { return call->report.status == status; });
  }
};

/// In a process of its own.
int refuse_in_grid(int allocations, Collective what) {
  SimulatedGrid grid({});
  if (!GridRound(grid, what, 0, -1).all(Status::complete)) return kWrong;
  const GridRound second(grid, what, 0, allocations);
  const bool refused = !second.all(Status::complete);
  if (refused) {
    const Report& report = second.calls[1]->report;
    const bool for_memory = report.abort_reason == AbortReason::memory ||
                            report.detail.find("no memory") != std::string::npos;
    if (!second.met || !second.all(Status::aborted) || !for_memory) return kWrong;
  }
  const GridRound same_tag(grid, what, 0, -1), other_tag(grid, what, 1, -1);
  if (!same_tag.all(refused ? Status::aborted : Status::complete)) return kWrong;
  if (!other_tag.all(Status::complete)) return kWrong;
  return refused ? kCallRefused : second.met ? kNotNeeded : kNothingRefused;
}

TEST(RefusedMemoryTest, grid__ends_the_call_on_all_ranks_or_the_process) {
  for (const Collective what :
       {Collective::allreduce, Collective::all_gather, Collective::reduce_scatter}) {
    const Ended ended =
        refuse_each([what](int allocations) { return refuse_in_grid(allocations, what); });
    EXPECT_GT(ended.calls, ended.processes) << name(what);
  }
}

/// Three ranks whose shares follow their links, by calls of `kLearning` bytes.
class LearningRanks {
 public:
  LearningRanks() {
    for (Rank rank = 0; rank < 3; ++rank) {
      learners_.push_back(std::make_unique<LearntShares>(job_[rank], meters_[rank], rank, 3));
    }
    job_.after_each_round(
        [this](Rank rank) { return steps_ && learners_[rank]->step(job_.now()); });
  }

  std::shared_ptr<PendingCall> submit(Rank rank) {
    const AllreduceArguments arguments{.input = values_[rank].data(),
                                       .output = values_[rank].data(),
                                       .count = values_[rank].size(),
                                       .algorithm = Algorithm::tar,
                                       .learn_shares = true};
    return job_.watch(rank, learners_[rank]->submit(arguments, false, job_.now(), job_.now()));
  }

  /// One call of all ranks. Returns that of rank 1.
  std::shared_ptr<PendingCall> call() {
    for (const Rank rank : {Rank{0}, Rank{2}}) submit(rank);
    auto mine = submit(1);
    return job_.finish(5s) ? mine : nullptr;
  }

  SimulatedJob& job() { return job_; }
  LearntShares& learner(Rank rank) { return *learners_[rank]; }
  void stop_steps() { steps_ = false; }

 private:
  SimulatedJob job_{{.ranks = 3, .slot_bytes = 16384}};
  std::array<RateMeter, 3> meters_;
  std::vector<std::unique_ptr<LearntShares>> learners_;
  std::array<std::vector<float>, 3> values_ = [] {
    const std::vector<float> ones(LearntShares::kSmallest / sizeof(float), 1);
    return std::array{ones, ones, ones};
  }();
  bool steps_ = true;
};

/// The first allocation of the first learning call of a tag is one of LearntShares.
TEST(RefusedMemoryTest, learnt_shares__submit_ends_that_call_alone) {
  LearningRanks ranks;
  for (const Rank rank : {Rank{0}, Rank{2}}) ranks.submit(rank);
  allocations_left = 0;
  const auto refused = ranks.submit(1);
  const bool met = allocations_left < 0;
  allocations_left = -1;
  ASSERT_TRUE(met);
  ASSERT_TRUE(ranks.job().finish(5s));
  EXPECT_EQ(refused->report.status, Status::aborted);
  EXPECT_EQ(refused->report.operation, 0u);
  EXPECT_EQ(refused->report.detail, "allreduce: no memory");
  for (std::uint32_t call = 1; call < 20; ++call) {
    const auto next = ranks.call();
    ASSERT_NE(next, nullptr);
    EXPECT_EQ(next->report.status, Status::complete) << call << ": " << next->report.detail;
    EXPECT_EQ(next->report.operation, call);
  }
}

/// The driver ends the calls of a job after such an exception.
TEST(RefusedMemoryTest, learnt_shares__step_throws_and_goes_on_next_time) {
  LearningRanks ranks;
  for (int call = 0; call < 6; ++call) ASSERT_NE(ranks.call(), nullptr);
  ranks.stop_steps();
  for (const Rank rank : {Rank{0}, Rank{1}, Rank{2}}) ranks.submit(rank);
  ranks.job().run_for(100ms);
  int refused = 0;
  for (Rank rank = 0; rank < 3; ++rank) {
    for (int allocations = 0;; ++allocations) {
      ASSERT_LT(allocations, 1000);
      allocations_left = allocations;
      bool thrown = false;
      try {
        ranks.learner(rank).step(ranks.job().now());
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      allocations_left = -1;
      if (!thrown) break;
      ++refused;
    }
  }
  EXPECT_GT(refused, 3);
  EXPECT_TRUE(ranks.job().finish(5s));
  for (const Rank rank : {Rank{1}, Rank{2}}) {
    EXPECT_EQ(ranks.learner(rank).of(0), ranks.learner(0).of(0));
  }
}

}  // namespace
}  // namespace tarpon::testing_support::refused_memory_test
