// Live jobs on 127.0.0.1: the ranks are threads of this process, on both datapaths.
#include "collectives/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <tuple>

#include "collectives/rendezvous/control.h"
#include "tests/support/each_datapath.h"
#include "tests/support/live_job.h"
#include "tests/support/secrets.h"
#include "transport/clock.h"
#include "transport/counters.h"
#include "transport/endpoint.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon::communicator_test {
namespace {

using namespace testing_support;

INSTANTIATE_TEST_SUITE_P(Datapaths, CommunicatorTest,
                         testing::Values(Datapath::mmsg, Datapath::uring, Datapath::automatic),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(CommunicatorTest, algorithm__small_calls_run_one_shot_unless_the_caller_says_otherwise) {
  const Ranks job = connect(4, GetParam());
  ASSERT_EQ(job.size(), 4u);
  const bool shared = GetParam() == Datapath::automatic;
  for (const auto& [count, asked, expected] :
       {std::tuple{std::size_t{2730}, Algorithm::automatic,
                   shared ? Algorithm::hosts : Algorithm::one_shot},
        {std::size_t{2731}, Algorithm::automatic, shared ? Algorithm::hosts : Algorithm::tar},
        {std::size_t{16}, Algorithm::tar, Algorithm::tar},
        {std::size_t{16}, Algorithm::ring, Algorithm::ring}}) {
    SCOPED_TRACE(count);
    on_all(4, [&, count = count, asked = asked, expected = expected](Rank rank) {
      std::vector<float> values = input(rank, count);
      AllreduceArguments arguments = in_place(values);
      arguments.algorithm = asked;
      const auto report = job[rank]->allreduce(arguments);
      expect_complete(report);
      EXPECT_EQ(report->algorithm, expected);
      EXPECT_EQ(values, sum(4, count));
    });
  }
}

TEST(CommunicatorTest, receive_buffer_bytes__limits_the_socket) {
  constexpr std::size_t kBytes = std::size_t{208} << 10;
  const Ranks job = connect(2, Datapath::mmsg, [](CommunicatorOptions& options) {
    if (options.rendezvous.rank == 1) options.receive_buffer_bytes = kBytes;
  });
  ASSERT_FALSE(job.empty());
  EXPECT_GT(job[0]->ranks()[0].receive_bytes, kBytes);
  EXPECT_EQ(job[0]->ranks()[1].receive_bytes, kBytes);
}

TEST(CommunicatorTest, flows__are_published_and_a_wrong_number_is_refused) {
  for (const std::uint32_t flows : {0u, 1u, 2u, 8u}) {
    const Ranks ranks = connect(2, Datapath::mmsg,
                                [flows](CommunicatorOptions& options) { options.flows = flows; });
    ASSERT_EQ(ranks.size(), 2u);
    const std::size_t more = flows == 0 ? kTrialFlows - 1 : flows - 1;
    for (const RankInfo& info : ranks[0]->ranks()) EXPECT_EQ(info.flow_ports.size(), more);
    EXPECT_EQ(ranks[1]->flows(), std::max(1u, flows));
  }
  CommunicatorOptions options;
  options.rendezvous.rank = 0;
  options.rendezvous.world_size = 1;
  options.flows = 3;
  const auto refused = Communicator::connect(options);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("3 flows: give 1, 2, 4 or 8"));
}

TEST_P(CommunicatorTest, allreduce__blocking_calls_of_many_sizes) {
  const Ranks ranks = connect(3, GetParam());
  ASSERT_EQ(ranks.size(), 3u);
  on_all(3, [&](Rank rank) {
    EXPECT_EQ(ranks[rank]->rank(), rank);
    EXPECT_EQ(ranks[rank]->world_size(), 3u);
    for (const std::size_t count : {0u, 1u, 2u, 1000u, 100'000u}) {
      auto values = input(rank, count);
      expect_complete(ranks[rank]->allreduce(in_place(values)));
      EXPECT_EQ(values, sum(3, count)) << "rank " << rank << " count " << count;
    }
    const auto closed = ranks[rank]->close(20s);
    EXPECT_TRUE(closed) << closed.error().message;
  });
}

TEST_P(CommunicatorTest, gso_segments__one_sends_every_packet_alone) {
  for (const std::uint32_t segments : {1u, 64u}) {
    const Ranks ranks = connect(2, GetParam(), [segments](CommunicatorOptions& options) {
      options.gso_segments = segments;
      options.mtu = 1500;
    });
    ASSERT_EQ(ranks.size(), 2u);
    on_all(2, [&](Rank rank) {
      auto values = input(rank, 100'000);
      AllreduceArguments arguments = in_place(values);
      arguments.algorithm = Algorithm::tar;
      expect_complete(ranks[rank]->allreduce(arguments));
    });
    const PortStatistics statistics = ranks[0]->port_statistics();
    EXPECT_GT(statistics.tx_packets, 0u);
    EXPECT_EQ(statistics.tx_units == statistics.tx_packets, segments == 1)
        << statistics.tx_units << " units, " << statistics.tx_packets << " packets";
  }
}

TEST_P(CommunicatorTest, lanes__give_the_same_results) {
  const Ranks ranks = connect(3, GetParam(), [](CommunicatorOptions& options) {
    options.lanes = 3;
    options.mtu = 1500;
  });
  ASSERT_EQ(ranks.size(), 3u);
  on_all(3, [&](Rank rank) {
    EXPECT_EQ(ranks[rank]->ranks()[rank].lanes, 3u);
    for (const std::size_t count : {1u, 100'000u, 2'000'000u}) {
      auto values = input(rank, count);
      AllreduceArguments arguments = in_place(values);
      arguments.algorithm = Algorithm::tar;
      expect_complete(ranks[rank]->allreduce(arguments));
      EXPECT_EQ(values, sum(3, count)) << "rank " << rank << " count " << count;
    }
    const auto closed = ranks[rank]->close(20s);
    EXPECT_TRUE(closed) << closed.error().message;
  });
}

TEST_P(CommunicatorTest, allreduce__several_threads_on_their_own_tags) {
  constexpr std::uint32_t kRanks = 2;
  constexpr std::uint32_t kThreads = 4;
  const Ranks ranks = connect(kRanks, GetParam());
  ASSERT_EQ(ranks.size(), kRanks);
  on_all(kRanks * kThreads, [&](Rank index) {
    const auto rank = static_cast<Rank>(index / kThreads);
    const std::uint32_t tag = index % kThreads;
    for (std::uint32_t call = 0; call < 20; ++call) {
      const std::size_t count = 100 + 777 * tag + call;
      auto values = input(rank, count, tag + call);
      if (tag % 2 == 0) {
        expect_complete(ranks[rank]->allreduce(in_place(values, tag)));
      } else {
        auto pending = ranks[rank]->allreduce_async(in_place(values, tag));
        ASSERT_TRUE(pending);
        EXPECT_EQ(pending->wait().status, Status::complete);
        EXPECT_TRUE(pending->done());
      }
      ASSERT_EQ(values, sum(kRanks, count, tag + call));
    }
    (void)ranks[rank]->counters();
    (void)ranks[rank]->port_statistics();
  });
  on_all(kRanks, [&](Rank rank) { EXPECT_TRUE(ranks[rank]->close(20s)); });
}

TEST_P(CommunicatorTest, async__more_calls_than_the_window_move_without_the_caller) {
  constexpr std::uint32_t kCalls = 30;
  const Ranks ranks = connect(2, GetParam());
  ASSERT_EQ(ranks.size(), 2u);
  on_all(2, [&](Rank rank) {
    std::vector<std::vector<float>> values;
    std::vector<AsyncAllreduce> pending;
    for (std::uint32_t i = 0; i < kCalls; ++i) values.push_back(input(rank, 5000, i));
    for (std::uint32_t i = 0; i < kCalls; ++i) {
      auto call = ranks[rank]->allreduce_async(in_place(values[i]));
      ASSERT_TRUE(call);
      pending.push_back(*call);
    }
    const Time limit = monotonic_now() + 20s;
    const auto all_done = [&] {
      return std::all_of(pending.begin(), pending.end(), [](auto& call) { return call.done(); });
    };
    while (!all_done() && monotonic_now() < limit) std::this_thread::yield();
    for (std::uint32_t i = 0; i < kCalls; ++i) {
      EXPECT_TRUE(pending[i].done());
      EXPECT_EQ(pending[i].wait().operation, i);
      EXPECT_EQ(values[i], sum(2, 5000, i));
    }
    EXPECT_TRUE(ranks[rank]->close(20s));
  });
}

TEST_P(CommunicatorTest, poll__moves_calls_without_a_progress_thread) {
  const Ranks ranks =
      connect(2, GetParam(), [](CommunicatorOptions& options) { options.progress_thread = false; });
  ASSERT_EQ(ranks.size(), 2u);
  on_all(2, [&](Rank rank) {
    auto values = input(rank, 20'000);
    auto pending = ranks[rank]->allreduce_async(in_place(values));
    ASSERT_TRUE(pending);
    const Time limit = monotonic_now() + 20s;
    while (!pending->done() && monotonic_now() < limit) ranks[rank]->poll(10ms);
    ASSERT_TRUE(pending->done());
    EXPECT_EQ(values, sum(2, 20'000));
    EXPECT_TRUE(ranks[rank]->close(20s));  // serves the other one meanwhile
  });
}

TEST_P(CommunicatorTest, wait__system_calls_of_the_caller_after_it_are_not_interrupted) {
  const Ranks ranks = connect(2, GetParam());
  ASSERT_FALSE(ranks.empty());
  constexpr int kCalls = 50;
  std::atomic<int> interrupted = 0;
  on_all(2, [&](Rank rank) {
    const FileDescriptor nothing(::epoll_create1(EPOLL_CLOEXEC));
    for (int call = 0; call < kCalls; ++call) {
      auto values = input(rank, 1000);
      expect_complete(ranks[rank]->allreduce(in_place(values)));
      epoll_event event{};
      // Rank 1 begins its next call, whose packets come to rank 0 while it sleeps here.
      if (rank == 0 && ::epoll_wait(nothing.get(), &event, 1, 5) < 0) ++interrupted;
    }
  });
  EXPECT_EQ(interrupted, 0);
}

TEST_P(CommunicatorTest, destroy__with_calls_in_flight_nobody_hangs) {
  Ranks ranks = connect(3, GetParam());
  ASSERT_EQ(ranks.size(), 3u);
  std::vector<std::vector<float>> values;
  std::vector<AsyncAllreduce> pending;
  for (Rank rank = 0; rank < 2; ++rank) {
    for (std::uint32_t i = 0; i < 10; ++i) {  // the window and two that queue
      values.push_back(input(rank, 10'000));
    }
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto arguments = in_place(values[i]);
    arguments.deadline = 5s;
    auto call = ranks[i / 10]->allreduce_async(arguments);
    ASSERT_TRUE(call);
    pending.push_back(*call);
  }
  ranks[0].reset();
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(pending[i].done());
    const Report report = pending[i].wait();
    EXPECT_EQ(report.status, Status::aborted);
    EXPECT_THAT(report.blamed, testing::ElementsAre(0));
  }
  for (std::size_t i = 10; i < 20; ++i) {
    const Report report = pending[i].wait();
    EXPECT_TRUE(report.status == Status::aborted || report.status == Status::peer_late ||
                report.status == Status::peer_dead)
        << name(report.status);
    if (report.status != Status::aborted) continue;
    EXPECT_THAT(report.blamed, testing::ElementsAre(0));
  }
}

/// Encoding takes tens of milliseconds. A machine that is busy with other things may let it end
/// first.
TEST(CommunicatorTest, abort__returns_while_a_bucket_is_encoded) {
  std::vector<float> values(64 << 20, 1.0f);
  bool met = false;
  for (int attempt = 0; attempt < 5 && !met; ++attempt) {
    const Ranks job = connect(2, Datapath::mmsg, [](CommunicatorOptions& options) {
      options.mechanisms.codec = CodecRule::on;
    });
    ASSERT_FALSE(job.empty());
    AllreduceArguments arguments = in_place(values);
    arguments.mode = Mode::bounded;
    arguments.bound = 1s;
    auto call = job[0]->allreduce_async(arguments);
    ASSERT_TRUE(call);
    std::this_thread::sleep_for(2ms);  // the progress thread encodes
    const Time begin = monotonic_now();
    job[0]->abort("a test");
    EXPECT_LT(monotonic_now() - begin, 1s);
    const Report report = call->wait();
    EXPECT_EQ(report.status, Status::aborted) << report.detail;
    met = report.stage == CallStage::queued;
  }
  EXPECT_TRUE(met) << "every call had begun before abort() got its turn";
}

/// Two threads drive a job of large coded calls, and ask for figures meanwhile.
TEST(CommunicatorTest, coded__large_calls_give_the_sum) {
  constexpr std::size_t kCount = 3'000'000;
  const Ranks job = connect(2, Datapath::mmsg, [](CommunicatorOptions& options) {
    options.mechanisms.codec = CodecRule::on;
  });
  ASSERT_FALSE(job.empty());
  on_all(2, [&](Rank rank) {
    auto first = input(rank, kCount), second = input(rank, kCount, 7);
    for (std::vector<float>* const values : {&first, &second}) {
      AllreduceArguments arguments = in_place(*values, values == &first ? 0 : 1);
      arguments.mode = Mode::bounded;
      arguments.bound = 10s;
      arguments.deadline = 30s;
      const auto call = job[rank]->allreduce_async(arguments);
      ASSERT_TRUE(call);
      while (!call->done()) {
        (void)job[rank]->counters();
        std::this_thread::sleep_for(1ms);
      }
      const Report report = AsyncAllreduce(*call).wait();
      ASSERT_EQ(report.status, Status::complete) << report.detail;
      const std::vector<float> expected = sum(2, kCount, values == &first ? 0 : 7);
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR((*values)[i], expected[i], 2e-2);
    }
  });
}

TEST_P(CommunicatorTest, close__with_a_call_that_a_peer_never_makes_ends_by_its_deadline) {
  const Ranks ranks = connect(2, GetParam());
  ASSERT_EQ(ranks.size(), 2u);
  auto values = input(0, 1000);
  auto arguments = in_place(values);
  arguments.deadline = 100ms;
  ASSERT_EQ(ranks[0]->allreduce(arguments)->status, Status::peer_late);
  const auto closed = ranks[0]->close(300ms);
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().code, Error::Code::timeout);
  EXPECT_THAT(closed.error().message, testing::HasSubstr("close: rank 1 has not finished"));
}

TEST_P(CommunicatorTest, barrier__nobody_leaves_before_all_have_entered) {
  const Ranks ranks = connect(4, GetParam());
  ASSERT_EQ(ranks.size(), 4u);
  std::atomic<int> entered = 0;
  on_all(4, [&](Rank rank) {
    for (int round = 1; round <= 10; ++round) {
      ++entered;
      const auto passed = ranks[rank]->barrier(20s);
      ASSERT_TRUE(passed) << passed.error().message;
      EXPECT_GE(entered.load(), 4 * round);
    }
  });
}

TEST_P(CommunicatorTest, faults__a_live_job_gives_the_same_bits_everywhere) {
  constexpr std::uint32_t kRanks = 4;
  constexpr std::size_t kCount = 200'000;
  const Ranks ranks = connect(kRanks, GetParam(), [](CommunicatorOptions& options) {
    options.faults = {
        .loss = 0.05, .duplicate = 0.05, .reorder = 0.05, .corrupt = 0.02, .truncate = 0.02};
  });
  ASSERT_EQ(ranks.size(), kRanks);
  std::vector<std::vector<float>> results(kRanks);
  on_all(kRanks, [&](Rank rank) {
    EXPECT_EQ(ranks[rank]->integrity(), TARPON_INTEGRITY_CRC32C);
    for (std::uint32_t call = 0; call < 5; ++call) {
      auto values = input(rank, kCount, call);
      for (float& value : values) value /= 7;  // sums that depend on the order
      auto report = ranks[rank]->allreduce(in_place(values));
      expect_complete(report);
      results[rank] = std::move(values);
    }
    EXPECT_TRUE(ranks[rank]->close(20s));
  });
  for (Rank rank = 1; rank < kRanks; ++rank) EXPECT_EQ(results[rank], results[0]);
  const auto exact = sum(kRanks, kCount, 4);
  for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR(results[0][i], exact[i] / 7, 1e-3);
  EXPECT_GT(ranks[0]->counters()[DropReason::integrity], 0u);
}

/// Every packet of it has to have a right tag, and every connection of it the secret.
TEST_P(CommunicatorTest, secret__a_live_job_with_faults_gives_right_sums) {
  constexpr std::uint32_t kRanks = 3;
  constexpr std::size_t kCount = 100'000;
  for (const auto integrity : {TARPON_INTEGRITY_KEYED, TARPON_INTEGRITY_SEALED}) {
    const Ranks ranks = connect(kRanks, GetParam(), [&](CommunicatorOptions& options) {
      options.rendezvous.secret = secret();
      options.integrity = integrity;
      options.mtu = 1500;
      options.faults = {
          .loss = 0.02, .duplicate = 0.05, .reorder = 0.05, .corrupt = 0.05, .truncate = 0.02};
    });
    ASSERT_EQ(ranks.size(), kRanks);
    on_all(kRanks, [&](Rank rank) {
      EXPECT_EQ(ranks[rank]->integrity(), integrity);
      EXPECT_EQ(ranks[rank]->slot_bytes(), 1392u);
      for (std::uint32_t call = 0; call < 3; ++call) {
        auto values = input(rank, kCount, call);
        expect_complete(ranks[rank]->allreduce(in_place(values)));
        EXPECT_EQ(values, sum(kRanks, kCount, call));
      }
      auto bounded = input(rank, kCount);
      auto arguments = in_place(bounded);
      arguments.mode = Mode::bounded;
      arguments.bound = 5s;
      EXPECT_TRUE(ranks[rank]->allreduce(arguments));
      EXPECT_TRUE(ranks[rank]->close(20s));
    });
    const PortStatistics counted = ranks[0]->port_statistics();
    EXPECT_GT(counted.rx_forged, 0u) << "corrupt packets";
    EXPECT_GT(counted.rx_replayed, 0u) << "duplicates";
    EXPECT_EQ(ranks[0]->counters()[DropReason::integrity], 0u);
  }
}

TEST(CommunicatorTest, secret__and_integrity_have_to_fit) {
  CommunicatorOptions options;
  options.rendezvous.world_size = 1;
  options.integrity = TARPON_INTEGRITY_SEALED;
  const auto bare = Communicator::connect(options);
  ASSERT_FALSE(bare);
  EXPECT_THAT(bare.error().message, testing::HasSubstr("need a secret: give all ranks"));
  options.rendezvous.secret = secret();
  EXPECT_TRUE(Communicator::connect(options));
  for (const auto weak : {TARPON_INTEGRITY_CRC32C, TARPON_INTEGRITY_NONE}) {
    options.integrity = weak;
    const auto refused = Communicator::connect(options);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message, testing::HasSubstr("has keyed or sealed packets"));
  }
}

TEST_P(CommunicatorTest, faults__bounded_calls_return_by_their_bounds) {
  const Ranks ranks =
      connect(4, GetParam(), [](CommunicatorOptions& options) { options.faults = {.loss = 0.02}; });
  ASSERT_EQ(ranks.size(), 4u);
  on_all(4, [&](Rank rank) {
    for (int call = 0; call < 5; ++call) {
      auto values = input(rank, 50'000);
      auto arguments = in_place(values);
      arguments.mode = Mode::bounded;
      arguments.bound = 200ms;
      const auto report = ranks[rank]->allreduce(arguments);
      ASSERT_TRUE(report);
      EXPECT_TRUE(report->status == Status::complete || report->status == Status::partial)
          << report->detail;
      EXPECT_LT(report->lost_fraction, 0.5);
    }
    EXPECT_TRUE(ranks[rank]->close(20s));
  });
}

TEST(CommunicatorAloneTest, allreduce__one_rank_needs_nobody) {
  const Ranks ranks = connect(1, Datapath::automatic);
  ASSERT_EQ(ranks.size(), 1u);
  auto values = input(0, 100);
  expect_complete(ranks[0]->allreduce(in_place(values)));
  EXPECT_EQ(values, input(0, 100));
  EXPECT_TRUE(ranks[0]->barrier(1s));
  EXPECT_TRUE(ranks[0]->close(1s));
}

TEST(CommunicatorAloneTest, connect__more_ranks_than_a_job_has_are_refused) {
  CommunicatorOptions options;
  options.rendezvous.world_size = Communicator::kMostRanks + 1;
  options.rendezvous.address = "file://" + rendezvous_file();
  const auto communicator = Communicator::connect(options);
  ASSERT_FALSE(communicator);
  EXPECT_THAT(communicator.error().message, testing::HasSubstr("world size 4097: at most 4096"));
}

TEST(CommunicatorAloneTest, connect__a_lonely_rank_gives_up_and_names_who_is_missing) {
  CommunicatorOptions options;
  options.rendezvous.world_size = 2;
  options.rendezvous.address = "file://" + rendezvous_file();
  options.rendezvous.timeout = 300ms;
  const auto communicator = Communicator::connect(options);
  ASSERT_FALSE(communicator);
  EXPECT_EQ(communicator.error().code, Error::Code::timeout);
  EXPECT_THAT(communicator.error().message, testing::HasSubstr("1"));
}

}  // namespace
}  // namespace tarpon::communicator_test
