// Shares that follow the links, in live jobs on loopback.
#include "collectives/driver/learnt_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
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

/// A call of this rank, the number `call` of its tag. Its values repeat, so that they are filled in
/// and compared by the library's fast code: there are tens of millions.
struct Call {
  static constexpr std::size_t kPeriod = 64;

  std::vector<float> values;
  AllreduceArguments arguments;

  Call(Rank rank, std::uint32_t tag, std::uint32_t call, std::size_t elements = kElements)
      : values(elements) {
    std::array<float, kPeriod> period;
    for (std::size_t i = 0; i < kPeriod; ++i) period[i] = value(i, rank, call);
    for (std::size_t i = 0; i < elements; i += kPeriod) {
      std::copy_n(period.begin(), std::min(kPeriod, elements - i), &values[i]);
    }
    arguments = patient_call(values);
    arguments.tag = tag;
    arguments.learn_shares = true;
  }

  static float value(std::size_t i, Rank rank, std::uint32_t call) {
    return static_cast<float>((i * 7 + 13 * call + 5 * rank) % 64);
  }

  void expect_sum(const Report& report, std::uint32_t call) const {
    ASSERT_EQ(report.status, Status::complete) << report.detail;
    std::array<float, kPeriod> sums{};
    for (std::size_t i = 0; i < kPeriod; ++i) {
      for (Rank rank = 0; rank < kRanks; ++rank) sums[i] += value(i, rank, call);
    }
    for (std::size_t i = 0; i < values.size(); i += kPeriod) {
      const std::size_t bytes = std::min(kPeriod, values.size() - i) * sizeof(float);
      ASSERT_EQ(std::memcmp(&values[i], sums.data(), bytes), 0) << "from element " << i << " on";
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
  const auto ranks = connect(kRanks, Datapath::mmsg, [](CommunicatorOptions& options) {
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
  const auto ranks = connect(kRanks, Datapath::mmsg);
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
  const auto ranks = connect(kRanks, Datapath::mmsg);
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
    Call fresh(job.rank(), kLearningTags, 0);
    fresh.expect_sum(*job.allreduce(fresh.arguments), 0);
  });
}

/// Makes `calls` calls of `tag`, one after another.
void call_in_order(Communicator& job, std::uint32_t tag, std::uint32_t calls) {
  for (std::uint32_t call = 0; call < calls; ++call) {
    Call one(job.rank(), tag, call);
    one.expect_sum(*job.allreduce(one.arguments), call);
  }
}

/// Starts the calls `first` to `end` - 1 of `tag`.
void start(Communicator& job, std::uint32_t tag, std::uint32_t first, std::uint32_t end,
           std::deque<std::pair<Call, AsyncAllreduce>>& started) {
  for (std::uint32_t call = first; call < end; ++call) {
    Call one(job.rank(), tag, call);
    one.arguments.deadline = 60s;
    const AllreduceArguments arguments = one.arguments;
    started.emplace_back(std::move(one), *job.allreduce_async(arguments));
  }
}

TEST(LearntSharesTest, allreduce_async__does_not_wait_for_the_exchange) {
  const auto ranks = connect(kRanks, Datapath::mmsg);
  for (const auto& one : ranks) ASSERT_TRUE(one);
  on_ranks(ranks, [&](Communicator& job) {
    call_in_order(job, 5, 6);
    std::deque<std::pair<Call, AsyncAllreduce>> started;
    if (job.rank() != 0) std::this_thread::sleep_for(5s);
    const Time before = monotonic_now();
    start(job, 5, 6, 16, started);
    EXPECT_LT(monotonic_now() - before, 3s);
    for (std::uint32_t call = 6; call < 16; ++call) {
      started[call - 6].first.expect_sum(started[call - 6].second.wait(), call);
    }
  });
}

TEST(LearntSharesTest, tags_in_opposite_order__do_not_wait_for_each_other) {
  const auto ranks = connect(kRanks, Datapath::mmsg);
  for (const auto& one : ranks) ASSERT_TRUE(one);
  on_ranks(ranks, [&](Communicator& job) {
    const std::uint32_t first = job.rank() % 2 == 0 ? 1 : 2;
    call_in_order(job, 1, 6);
    call_in_order(job, 2, 6);
    const Time before = monotonic_now();
    std::deque<std::pair<Call, AsyncAllreduce>> started;
    for (const std::uint32_t tag : {first, 3 - first}) start(job, tag, 6, 12, started);
    for (std::uint32_t i = 0; i < 12; ++i) {
      started[i].first.expect_sum(started[i].second.wait(), 6 + i % 6);
    }
    EXPECT_LT(monotonic_now() - before, 20s);
  });
}

TEST(LearntSharesTest, abort__ends_a_call_that_waits_for_the_exchange) {
  const auto ranks = connect(kRanks, Datapath::mmsg);
  for (const auto& one : ranks) ASSERT_TRUE(one);
  on_ranks(ranks, [](Communicator& job) { call_in_order(job, 5, 6); });
  std::deque<std::pair<Call, AsyncAllreduce>> started;
  start(*ranks[0], 5, 6, 16, started);
  std::thread waits([&] { EXPECT_EQ(started.back().second.wait().status, Status::aborted); });
  std::this_thread::sleep_for(50ms);
  const Time before = monotonic_now();
  ranks[0]->abort("a test says so");
  EXPECT_LT(monotonic_now() - before, 2s);
  waits.join();
  for (auto& one : started) EXPECT_EQ(one.second.wait().status, Status::aborted);
}

TEST(LearntSharesTest, a_rank_learns_alone__mismatch_and_never_a_wrong_sum) {
  const auto ranks = connect(kRanks, Datapath::mmsg);
  for (const auto& one : ranks) ASSERT_TRUE(one);
  on_ranks(ranks, [&](Communicator& job) {
    for (std::uint32_t call = 0; call < 20; ++call) {
      Call one(job.rank(), 5, call);
      one.arguments.learn_shares = job.rank() == 0 || call > 12;
      const Report report = *job.allreduce(one.arguments);
      if (call > 12) {
        one.expect_sum(report, call);
      } else {
        EXPECT_EQ(report.status, Status::mismatch) << report.detail;
        EXPECT_THAT(report.detail, testing::HasSubstr("learn_shares"));
      }
    }
  });
}

TEST(LearntSharesTest, a_split_communicator_goes_during_an_exchange__its_memory_is_not_used) {
  const auto ranks = connect(kRanks, Datapath::mmsg);
  for (const auto& one : ranks) ASSERT_TRUE(one);
  on_ranks(ranks, [](Communicator& job) {
    auto part = *job.split({0, 1, 2, 3}, 1, 30s);
    std::deque<std::pair<Call, AsyncAllreduce>> started;
    start(*part, 5, 0, job.rank() == 0 ? 12 : 3, started);
    part.reset();
    for (auto& one : started) EXPECT_TRUE(one.second.done());
    started.clear();
    call_in_order(job, 5, 3);
  });
}

TEST(LearntSharesTest, option__is_compared_at_connect_and_counts_for_all_calls) {
  const std::string file = rendezvous_file();
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options = options_of(rank, 2, file);
      options.learn_shares = rank == 1;
      const auto made = Communicator::connect(options);
      ASSERT_FALSE(made);
      EXPECT_THAT(made.error().message, testing::HasSubstr("TARPON_SHARES"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto ranks = connect(kRanks, Datapath::mmsg,
                             [](CommunicatorOptions& options) { options.learn_shares = true; });
  for (const auto& one : ranks) ASSERT_TRUE(one);
  on_ranks(ranks, [](Communicator& job) {
    Call one(job.rank(), 5, 0);
    one.arguments.learn_shares = job.rank() == 0;
    one.expect_sum(*job.allreduce(one.arguments), 0);
  });
}

}  // namespace
}  // namespace tarpon::learnt_shares_test
