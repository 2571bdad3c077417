// The order of addition by the C interface: bits of sums in repeated calls and runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/c_calls.h"

namespace tarpon::testing_support::c_api_order_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::uint32_t kRanks = 3;  // sums of two numbers have no order
using Errors = std::array<std::string, kRanks>;

/// Calls `body(rank)` on a thread for each rank.
template <typename Body>
void on_all(Body body) {
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

/// A job in this process.
class Job {
 public:
  /// `fixed`: of each rank.
  explicit Job(std::array<bool, kRanks> fixed) {
    static int jobs = 0;
    const std::string meet = "file://" + testing::TempDir() + "tarpon-order-" +
                             std::to_string(::getpid()) + "-" + std::to_string(jobs++);
    on_all([&](std::uint32_t rank) {
      tarpon_options options{};
      options.size = sizeof options;
      options.rank = rank;
      options.world_size = kRanks;
      options.rendezvous = meet.c_str();
      options.mtu = 1500;
      options.fixed_order = fixed[rank] ? 1 : 0;
      options.rendezvous_timeout_us = rank == 0 && fixed != everywhere(fixed[0]) ? 2 * kSecond : 0;
      if (tarpon_connect(&options, &ranks_[rank]) != TARPON_OK) errors[rank] = tarpon_error_text();
    });
  }
  explicit Job(bool fixed) : Job(everywhere(fixed)) {}
  ~Job() {
    on_all([&](std::uint32_t rank) {
      if (ranks_[rank] != nullptr) tarpon_close(ranks_[rank], 10 * kSecond);
      tarpon_communicator_free(ranks_[rank]);
    });
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// The sum of numbers whose sizes differ, the same in each call; equal on all ranks.
  std::vector<float> sum(std::uint32_t algorithm, std::uint64_t count) {
    std::array<std::vector<float>, kRanks> data;
    on_all([&](std::uint32_t rank) {
      for (std::uint64_t i = 0; i < count; ++i) {
        const float size = rank % 2 == 0 ? 1e3f : 1e-3f;
        data[rank].push_back(size / static_cast<float>(1 + rank + i % 77));
      }
      tarpon_arguments call = call_on(data[rank].data(), count);
      call.algorithm = algorithm;
      EXPECT_EQ(tarpon_allreduce(ranks_[rank], &call, nullptr), TARPON_OK) << tarpon_error_text();
    });
    EXPECT_EQ(data[1], data[0]);
    EXPECT_EQ(data[2], data[0]);
    return data[0];
  }

  /// How a call with learnt shares ends on each rank.
  Errors learning(std::uint64_t count) {
    Errors texts;
    on_all([&](std::uint32_t rank) {
      std::vector<float> data(count);
      tarpon_arguments call = call_on(data.data(), count);
      call.learn_shares = 1;
      if (tarpon_allreduce(ranks_[rank], &call, nullptr) == TARPON_OK) return;
      texts[rank] = tarpon_error_text();
    });
    return texts;
  }

  Errors errors;  // of the connect, by rank

 private:
  static std::array<bool, kRanks> everywhere(bool fixed) { return {fixed, fixed, fixed}; }

  std::array<tarpon_communicator*, kRanks> ranks_{};
};

constexpr std::uint64_t kCount = 20'003;

TEST(CApiOrder, fixed__equal_inputs_give_equal_bits_in_every_call_and_job) {
  for (const std::uint32_t algorithm :
       {TARPON_ALGORITHM_DEFAULT, TARPON_TAR, TARPON_CIRCULANT, TARPON_ONE_SHOT, TARPON_RING,
        TARPON_RECURSIVE_DOUBLING, TARPON_2D_TAR}) {
    std::vector<float> first;
    {
      Job job(true);
      first = job.sum(algorithm, kCount);
      for (int call = 0; call < 3; ++call) EXPECT_EQ(job.sum(algorithm, kCount), first);
    }
    Job resumed(true);
    resumed.sum(algorithm, 5);
    EXPECT_EQ(resumed.sum(algorithm, kCount), first) << algorithm;
  }
}

TEST(CApiOrder, rotating__the_same_calls_give_the_same_bits) {
  std::vector<float> first, second;
  {
    Job job(false);
    first = job.sum(TARPON_TAR, kCount);
    second = job.sum(TARPON_TAR, kCount);
    EXPECT_NE(first, second) << "the owners are others";
  }
  Job again(false);
  EXPECT_EQ(again.sum(TARPON_TAR, kCount), first);
  EXPECT_EQ(again.sum(TARPON_TAR, kCount), second);
}

TEST(CApiOrder, fixed__refuses_learnt_shares) {
  Job job(true);
  for (const std::uint64_t count : {std::uint64_t{10}, std::uint64_t{1} << 19}) {
    EXPECT_THAT(job.learning(count),
                Each(AllOf(HasSubstr("learn_shares changes the order of addition"),
                           HasSubstr("leave one out"))));
  }
  EXPECT_EQ(job.sum(TARPON_TAR, 100).size(), 100u) << "later calls match";
}

TEST(CApiOrder, fixed__on_one_rank_alone_is_refused_by_name) {
  Job job({false, true, false});
  EXPECT_THAT(job.errors[1],
              HasSubstr("rank 1 runs with order=fixed where rank 0 has order=rotating"));
  EXPECT_NE(job.errors[0], "");
  EXPECT_NE(job.errors[2], "");
}

}  // namespace
}  // namespace tarpon::testing_support::c_api_order_test
