// Ranks that pause: late, they fetch what they missed; evicted, they come back by rejoin() and
// resync(). Never a silent difference between replicas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "tests/support/membership_job.h"
#include "tools/reference/fnv.h"

namespace tarpon::rejoin_test {
namespace {

using namespace testing_support;

constexpr std::uint32_t kRanks = 4;
constexpr Rank kPaused = 2;
constexpr std::size_t kElements = 6000;
constexpr Duration kBound = 400ms;  // a rank that runs ends before it on a busy machine too

std::uint64_t hash_of(const std::vector<float>& values) {
  std::uint64_t hash = kFnvStart;
  fnv_mix(hash, std::as_bytes(std::span(values)));
  return hash;
}

/// One replica: parameters to which the average of all ranks' gradients is added, call by call.
struct Replica {
  std::vector<float> parameters = std::vector<float>(kElements, 1.0f);
  std::vector<Report> reports;

  /// Report of the call; `parameters` is untouched unless it has a result.
  Report step(Communicator& communicator, Mode mode, Duration deadline) {
    std::vector<float> gradients(kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      gradients[i] = static_cast<float>((i * 7 + reports.size() * 13 + communicator.rank()) % 101);
    }
    auto arguments = patient_call(gradients, mode);
    arguments.function = ReduceOp::avg;
    arguments.deadline = deadline;
    if (mode == Mode::bounded) arguments.bound = kBound;
    Report report = *communicator.allreduce(arguments);
    if (report.status == Status::complete || report.status == Status::partial ||
        report.status == Status::late_self) {
      for (std::size_t i = 0; i < kElements; ++i) parameters[i] += gradients[i];
      reports.push_back(report);
    }
    return report;
  }

  /// Whose contributions are in element `i` of call `call`.
  std::uint64_t contributors(std::size_t call, std::uint64_t i) const {
    for (const ContributorRun& run : reports[call].runs) {
      if (i >= run.first && i < run.first + run.count) return run.contributors;
    }
    return (1ull << kRanks) - 1;
  }
};

/// Elements that differ must have been reported: in some call the replicas' reports say different
/// things of them.
void expect_no_silent_difference(const std::vector<Replica>& replicas) {
  for (std::size_t i = 0; i < kElements; ++i) {
    std::set<std::uint32_t> values;
    bool reported = false;
    for (const Replica& one : replicas) {
      values.insert(std::bit_cast<std::uint32_t>(one.parameters[i]));
      ASSERT_EQ(one.reports.size(), replicas[0].reports.size());
      for (std::size_t call = 0; call < one.reports.size(); ++call) {
        reported |= one.contributors(call, i) != replicas[0].contributors(call, i);
      }
    }
    ASSERT_TRUE(values.size() == 1 || reported) << "element " << i;
  }
}

void run_ranks(const std::function<void(Rank)>& body) {
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < kRanks; ++rank) threads.emplace_back([&, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

void await(const std::atomic<int>& count, int enough) {
  const Time limit = monotonic_now() + 60s;
  while (count < enough && monotonic_now() < limit) usleep(200);
  EXPECT_GE(count, enough);
}

TEST(RejoinTest, pause__of_three_calls_leaves_no_silent_difference) {
  auto ranks = connect(kRanks, Datapath::mmsg);
  for (const auto& one : ranks) ASSERT_TRUE(one);
  std::vector<Replica> replicas(kRanks);
  std::atomic<int> ended = 0;
  run_ranks([&](Rank rank) {
    if (rank == kPaused) await(ended, 3 * (kRanks - 1));
    for (int call = 0; call < 6; ++call) {
      const Report report = replicas[rank].step(*ranks[rank], Mode::bounded, 20s);
      EXPECT_NE(report.status, Status::peer_late) << report.detail;
      if (rank == kPaused && call < 3) {
        EXPECT_TRUE(report.status == Status::late_self || report.status == Status::partial)
            << name(report.status);
      }
      ++ended;
    }
  });
  expect_no_silent_difference(replicas);
}

TEST(RejoinTest, pause__beyond_what_is_retained_evicts_and_rejoin_makes_replicas_equal) {
  auto ranks = connect(kRanks, Datapath::mmsg,
                       [](CommunicatorOptions& options) { options.retain_bytes = 1; });
  for (const auto& one : ranks) ASSERT_TRUE(one);
  std::vector<Replica> replicas(kRanks);
  std::vector<std::unique_ptr<Communicator>> fresh(kRanks);
  std::atomic<int> ended = 0;
  run_ranks([&](Rank rank) {
    Communicator& old = *ranks[rank];
    if (rank == kPaused) {
      await(ended, 3 * (kRanks - 1));
      Report report;
      const Time limit = monotonic_now() + 60s;
      while (report.status != Status::evicted && monotonic_now() < limit) {
        report = replicas[rank].step(old, Mode::bounded, 2s);
      }
      EXPECT_EQ(report.status, Status::evicted);
      EXPECT_THAT(report.blamed, testing::ElementsAre(kPaused));
      EXPECT_THAT(report.detail, testing::HasSubstr("rejoin()"));
      EXPECT_EQ(replicas[rank].step(old, Mode::exact, 60s).status, Status::evicted);
      EXPECT_EQ(old.agree(1000, {}, 60s).verdict, Verdict::halt);
      EXPECT_FALSE(old.shrink(60s));
    } else {
      StepVerdict verdict;
      for (std::uint64_t step = 0; verdict.rejoin == 0 && step < 5000; ++step) {
        const Report report = replicas[rank].step(old, Mode::bounded, 2s);
        EXPECT_TRUE(report.status == Status::partial || report.status == Status::complete)
            << name(report.status) << ": " << report.detail;
        for (const Rank late : report.late_ranks) EXPECT_EQ(late, kPaused);
        ++ended;
        verdict = old.agree(step, {}, 4s);
        EXPECT_NE(verdict.reporters, 0u) << verdict.detail;
      }
      EXPECT_EQ(verdict.rejoin, 1u << kPaused);
      EXPECT_NE(old.rejoin_wanted() & (1u << kPaused), 0u);
      const Report exact = replicas[rank].step(old, Mode::exact, 60s);
      EXPECT_EQ(exact.status, Status::evicted) << exact.detail;
      EXPECT_THAT(exact.blamed, testing::ElementsAre(kPaused));
    }
    auto whole = old.rejoin(60s);
    ASSERT_TRUE(whole) << whole.error().message;
    fresh[rank] = std::move(*whole);
    EXPECT_EQ(fresh[rank]->world_size(), kRanks);
    std::vector<float>& state = replicas[rank].parameters;
    const auto synced = fresh[rank]->resync(1, state.data(), state.size() * sizeof(float), 60s);
    ASSERT_TRUE(synced) << synced.error().message;
    replicas[rank].reports.clear();
    for (int call = 0; call < 2; ++call) {
      EXPECT_EQ(replicas[rank].step(*fresh[rank], Mode::exact, 60s).status, Status::complete);
    }
  });
  for (const Replica& one : replicas) {
    EXPECT_EQ(hash_of(one.parameters), hash_of(replicas[0].parameters));
  }
}

TEST(RejoinTest, resync__any_bytes_and_refuses_what_differs) {
  auto ranks = connect(kRanks, Datapath::mmsg);
  for (const auto& one : ranks) ASSERT_TRUE(one);
  const std::size_t bytes = (4 << 20) + 4099;  // more than a piece, and no whole words
  std::vector<std::string> states(kRanks);
  run_ranks([&](Rank rank) {
    std::string& state = states[rank];
    state.resize(bytes);
    for (std::size_t i = 0; i < bytes; ++i) state[i] = static_cast<char>(i * 31 + rank * 7 + 255);
    EXPECT_TRUE(ranks[rank]->resync(3, state.data() + 1, bytes - 1, 60s));
    EXPECT_TRUE(ranks[rank]->resync(3, nullptr, 0, 60s));
    const auto other = ranks[rank]->resync(rank % 2, state.data(), bytes, 60s);
    EXPECT_TRUE(!other && other.error().code == Error::Code::mismatch);
    const auto wrong = ranks[rank]->resync(kRanks, state.data(), bytes, 60s);
    EXPECT_TRUE(!wrong && wrong.error().code == Error::Code::invalid_argument);
  });
  for (const std::string& state : states) EXPECT_TRUE(state.substr(1) == states[3].substr(1));
}

}  // namespace
}  // namespace tarpon::rejoin_test
