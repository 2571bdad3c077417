// Live jobs with a secret, on 127.0.0.1: no nonce comes twice under a key, over all communicators
// that are split from a job, over the jobs that shrink() and rejoin() make, over flows, lanes and
// the parts of a grid. In this program every sealed port seals and opens by a ledger.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/collectives/grid/grid_job.h"
#include "tests/support/live_job.h"
#include "tests/support/secrets.h"
#include "tools/simulation/seal_ledger.h"
#include "transport/ports/uring/uring_port.h"

namespace tarpon {
namespace {

/// Of the test that runs.
std::unique_ptr<SealLedger>& ledger() {
  static auto current = std::make_unique<SealLedger>();
  return current;
}

}  // namespace

namespace seal {

/// In place of that of the library.
std::unique_ptr<CipherLibrary> fastest_library() {
  return ledger()->next_port(openssl_library());
}

}  // namespace seal

namespace nonces_test {
namespace {

using namespace testing_support;
using testing::IsEmpty;

constexpr std::size_t kCount = 30'000;

class NoncesTest : public testing::TestWithParam<Datapath> {
 protected:
  void SetUp() override {
    ledger() = std::make_unique<SealLedger>();
    if (GetParam() != Datapath::uring) return;
    if (const auto uring = check_uring(); !uring) GTEST_SKIP() << uring.error().message;
  }

  static void expect_sum(Communicator& one, std::uint32_t tag) {
    auto values = input(one.rank(), kCount);
    AllreduceArguments arguments = in_place(values, tag);
    arguments.algorithm = Algorithm::tar;  // packets, not memory that the ranks share
    expect_complete(one.allreduce(arguments));
    EXPECT_EQ(values, sum(one.world_size(), kCount));
  }

  static Ranks split(const Ranks& job, const std::vector<Rank>& members, std::uint16_t number) {
    Ranks parts(job.size());
    on_all(static_cast<std::uint32_t>(job.size()), [&](Rank rank) {
      if (std::find(members.begin(), members.end(), rank) == members.end()) return;
      auto part = job[rank]->split(members, number, 20s);
      ASSERT_TRUE(part) << part.error().message;
      parts[rank] = std::move(*part);
    });
    return parts;
  }

  /// Calls of the job and of its parts at the same time.
  static void run(const Ranks& job, const std::vector<const Ranks*>& parts) {
    std::vector<std::thread> threads;
    for (const Ranks* const ranks : parts) {
      for (const auto& one : *ranks) {
        if (one) threads.emplace_back([&part = *one] { expect_sum(part, 1); });
      }
    }
    for (const auto& one : job) {
      if (one) threads.emplace_back([&rank = *one] { expect_sum(rank, 1); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void expect_good(std::size_t ports) const {
    EXPECT_THAT(ledger()->wrong(), IsEmpty());
    EXPECT_EQ(ledger()->ports(), ports);
    EXPECT_GT(ledger()->sealed(), 100 * ports);
  }
};

INSTANTIATE_TEST_SUITE_P(Datapaths, NoncesTest,
                         testing::Values(Datapath::mmsg, Datapath::uring, Datapath::automatic),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(NoncesTest, split__rejoin__shrink__flows__and_lanes) {
  Ranks job = connect(3, GetParam(), [](CommunicatorOptions& options) {
    options.rendezvous.secret = secret();
    options.flows = 4;
    options.lanes = 2;
    options.faults = {.loss = 0.01, .duplicate = 0.02, .reorder = 0.02};
  });
  ASSERT_EQ(job.size(), 3u);
  {
    const Ranks all = split(job, {2, 0, 1}, 1), two = split(job, {0, 2}, 2);
    ASSERT_FALSE(HasFailure());
    run(job, {&all, &two});
  }
  expect_good(3);  // parts have the port of their job

  Ranks whole(3);
  on_all(3, [&](Rank rank) {
    auto made = job[rank]->rejoin(20s);
    ASSERT_TRUE(made) << made.error().message;
    whole[rank] = std::move(*made);
  });
  ASSERT_FALSE(HasFailure());
  job.clear();
  {
    const Ranks two = split(whole, {1, 2}, 1);
    ASSERT_FALSE(HasFailure());
    run(whole, {&two});
  }
  expect_good(6);

  whole[2].reset();
  Ranks fewer(2);
  on_all(2, [&](Rank rank) {
    auto made = whole[rank]->shrink(20s);
    ASSERT_TRUE(made) << made.error().message;
    fewer[rank] = std::move(*made);
  });
  ASSERT_FALSE(HasFailure());
  whole.clear();
  {
    const Ranks two = split(fewer, {1, 0}, 1);
    ASSERT_FALSE(HasFailure());
    run(fewer, {&two});
  }
  expect_good(8);
}

TEST_P(NoncesTest, parts_of_a_grid) {
  const Grid grid = connect_grid({0, 0, 1, 1}, [](CommunicatorOptions& options) {
    options.rendezvous.secret = secret();
    options.datapath = GetParam();
  });
  ASSERT_EQ(grid.size(), 4u);
  on_all(4, [&](Rank rank) {
    for (int call = 0; call < 3; ++call) {
      auto values = input(rank, kCount);
      expect_complete(grid[rank]->allreduce(in_place(values)));
      EXPECT_EQ(values, sum(4, kCount));
    }
  });
  EXPECT_THAT(ledger()->wrong(), IsEmpty());
  EXPECT_EQ(ledger()->ports(), 8u) << "each rank has one among its host and one along its rail";
  EXPECT_GT(ledger()->sealed(), 100u);
}

}  // namespace
}  // namespace nonces_test
}  // namespace tarpon
