// Shares that follow the links, in live jobs on loopback.
#include "collectives/driver/learnt_shares.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "tests/support/membership_job.h"

namespace tarpon::learnt_shares_test {
namespace {

using namespace testing_support;

constexpr std::uint32_t kRanks = 4;
constexpr std::size_t kElements = LearntShares::kSmallest / sizeof(float) + 4321;

/// A call of this rank, the number `call` of its tag.
struct Call {
  std::vector<float> values;
  AllreduceArguments arguments;

  Call(Rank rank, std::uint32_t tag, std::uint32_t call, std::size_t elements = kElements)
      : values(elements) {
    for (std::size_t i = 0; i < elements; ++i) values[i] = value(i, rank, call);
    arguments = in_place(values);
    arguments.tag = tag;
    arguments.learn_shares = true;
  }

  static float value(std::size_t i, Rank rank, std::uint32_t call) {
    return static_cast<float>((i * 7 + 13 * call + 5 * rank) % 64);
  }

  void expect_sum(const Report& report, std::uint32_t call) const {
    ASSERT_EQ(report.status, Status::complete) << report.detail;
    for (std::size_t i = 0; i < values.size(); ++i) {
      float sum = 0;
      for (Rank rank = 0; rank < kRanks; ++rank) sum += value(i, rank, call);
      ASSERT_EQ(values[i], sum) << i;
    }
  }
};

void on_ranks(const std::vector<std::unique_ptr<Communicator>>& ranks,
              const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (const auto& one : ranks) threads.emplace_back([&] { body(*one); });
  for (std::thread& thread : threads) thread.join();
}

/// Which shares are learnt depends on times: share_plan_test judges that, and `./dev bench menu`.
TEST(LearntSharesTest, a_slow_link__all_ranks_have_the_same_shares) {
  const auto ranks = connect(kRanks, [](CommunicatorOptions& options) {
    options.max_bytes_per_second = options.rendezvous.rank == 2 ? 15'000'000 : 40'000'000;
  });
  for (const auto& one : ranks) ASSERT_TRUE(one);
  on_ranks(ranks, [&](Communicator& job) {
    for (std::uint32_t call = 0; call < 27; ++call) {
      Call one(job.rank(), 5, call);
      one.expect_sum(*job.allreduce(one.arguments), call);
    }
  });
  for (const auto& one : ranks) EXPECT_EQ(one->learnt_shares(5), ranks[0]->learnt_shares(5));
  EXPECT_TRUE(ranks[0]->learnt_shares(4).even());
}

TEST(LearntSharesTest, calls_in_flight_of_two_tags__agree) {
  const auto ranks = connect(kRanks);
  for (const auto& one : ranks) ASSERT_TRUE(one);
  on_ranks(ranks, [&](Communicator& job) {
    std::deque<std::pair<Call, AsyncAllreduce>> open;
    std::uint32_t ended = 0;
    const auto end_one = [&] {
      open.front().first.expect_sum(open.front().second.wait(), ended++ / 2);
      open.pop_front();
    };
    for (std::uint32_t call = 0; call < 28; ++call) {
      Call one(job.rank(), call % 2 + 7, call / 2);
      const AllreduceArguments arguments = one.arguments;
      open.emplace_back(std::move(one), *job.allreduce_async(arguments));
      if (open.size() == 6) end_one();
    }
    while (!open.empty()) end_one();
  });
  for (const std::uint32_t tag : {7u, 8u}) {
    for (const auto& one : ranks) {
      EXPECT_EQ(one->learnt_shares(tag), ranks[0]->learnt_shares(tag)) << tag;
    }
  }
}

TEST(LearntSharesTest, other_calls__are_even_and_count_for_nothing) {
  const auto ranks = connect(kRanks);
  for (const auto& one : ranks) ASSERT_TRUE(one);
  on_ranks(ranks, [&](Communicator& job) {
    for (std::uint32_t call = 0; call < 20; ++call) {
      Call one(job.rank(), 3, call);
      const bool refused = call % 5 == 4;
      if (call % 5 == 1) one.values.resize(one.arguments.count = 1000);
      if (call % 5 == 2) one.arguments.algorithm = Algorithm::ring;
      if (call % 5 == 3) one.arguments.mode = Mode::bounded;
      if (refused && job.rank() == 1) one.arguments.input = nullptr;
      const Report report = *job.allreduce(one.arguments);
      if (refused) {
        EXPECT_EQ(report.status, Status::aborted) << report.detail;
      } else {
        one.expect_sum(report, call);
      }
    }
    Call fresh(job.rank(), LearntShares::kTags, 0);
    fresh.expect_sum(*job.allreduce(fresh.arguments), 0);
  });
}

}  // namespace
}  // namespace tarpon::learnt_shares_test
