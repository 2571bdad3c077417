// Bounded calls through the memory of hosts: results, contributors, and ranks that are late, stand
// still, die, refuse, differ or have NaN.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/sanitized.h"
#include "tests/support/simulated_job.h"

namespace tarpon::hosted_tar_call_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::Buffers;
using testing_support::first_if_sanitized;
using testing_support::SimulatedJob;
using testing_support::SimulatedJobOptions;
using Calls = std::vector<std::shared_ptr<PendingCall>>;

constexpr std::uint32_t kPlace = 16 << 10;  // so that a few KiB take several steps

/// `hosts`: by rank: its host.
SimulatedJobOptions several_hosts(const std::vector<int>& hosts) {
  return {.ranks = static_cast<std::uint16_t>(hosts.size()),
          .host_place_bytes = kPlace,
          .hosts = hosts};
}

/// What rank `rank` contributes to each element: sums tell which ranks are in them.
template <typename T>
T value_of(Rank rank) {
  return static_cast<T>(static_cast<float>(1u << rank));
}

template <typename T>
Buffers<T> coded_buffers(std::uint16_t ranks, std::uint64_t count, bool in_place) {
  Buffers<T> buffers(ranks, count, in_place);
  for (Rank rank = 0; rank < ranks; ++rank) {
    buffers.inputs[rank].assign(count, value_of<T>(rank));
    if (in_place) buffers.outputs[rank] = buffers.inputs[rank];
  }
  return buffers;
}

template <typename T>
AllreduceArguments hosted(Buffers<T>& buffers, Rank rank, ReduceOp function = ReduceOp::sum) {
  AllreduceArguments result = buffers.bounded_arguments(rank, function, std::nullopt);
  result.algorithm = Algorithm::hosts;
  return result;
}

/// The sum of `ranks` alone, scaled up to all.
double scaled_sum(std::uint64_t ranks, std::uint32_t world) {
  double sum = 0;
  for (Rank rank = 0; rank < world; ++rank) {
    if ((ranks >> rank & 1) != 0) sum += static_cast<double>(1u << rank);
  }
  return sum * world / std::popcount(ranks);
}

/// Checks that each element is the sum of the ranks that the report names for it.
void expect_named_sums(const Buffers<float>& buffers, Rank rank, const Report& report) {
  const auto world = static_cast<std::uint32_t>(buffers.inputs.size());
  const std::uint64_t count = buffers.inputs[0].size();
  if (report.runs.empty()) {
    for (std::uint64_t i = 0; i < count; ++i) {
      ASSERT_FLOAT_EQ(buffers.outputs[rank][i],
                      static_cast<float>(scaled_sum(all_ranks(world), world)));
    }
    return;
  }
  std::uint64_t next = 0;
  for (const ContributorRun& run : report.runs) {
    ASSERT_EQ(run.first, next);
    next += run.count;
    if (run.contributors == 0) continue;
    for (std::uint64_t i = run.first; i < next; ++i) {
      ASSERT_FLOAT_EQ(buffers.outputs[rank][i],
                      static_cast<float>(scaled_sum(run.contributors, world)))
          << "element " << i << " of rank " << rank;
    }
  }
  EXPECT_EQ(next, count);
}

template <typename T>
void expect_whole(const std::vector<int>& hosts, std::uint64_t count, ReduceOp function,
                  bool in_place) {
  SCOPED_TRACE(std::string(name(function)) + " of " + std::to_string(count));
  SimulatedJob job(several_hosts(hosts));
  const std::uint16_t ranks = job.ranks();
  for (int number = 0; number < 3; ++number) {
    auto buffers = coded_buffers<T>(ranks, count, in_place);
    const Calls calls = job.submit_all([&](Rank rank) { return hosted(buffers, rank, function); });
    ASSERT_TRUE(job.finish(5s));
    const double sum = scaled_sum(all_ranks(ranks), ranks);
    const double wanted = function == ReduceOp::avg ? sum / ranks : sum;
    for (Rank rank = 0; rank < ranks; ++rank) {
      const Report& report = calls[rank]->report;
      ASSERT_EQ(report.status, Status::complete) << report.detail;
      EXPECT_EQ(report.mode, Mode::bounded);
      EXPECT_EQ(report.algorithm, Algorithm::hosts);
      for (const T& element : buffers.outputs[rank]) {
        ASSERT_NEAR(static_cast<double>(element), wanted, wanted * 0.01);
      }
      for (const PeerReport& peer : report.peers) {
        EXPECT_EQ(peer.bytes_received, peer.bytes_expected);
        EXPECT_EQ(peer.contributors, all_ranks(ranks));
      }
    }
  }
}

template <typename T>
class HostedTarTypesTest : public testing::Test {};
using Elements = testing::Types<float, double, Float16, Bfloat16>;
TYPED_TEST_SUITE(HostedTarTypesTest, Elements);

TYPED_TEST(HostedTarTypesTest, whole__on_every_layout_of_hosts) {
  const std::vector<std::vector<int>> layouts{
      {0, 0, 1, 1}, {0, 1, 0, 1, 1},       {0, 0, 0},
      {0, 0, 1},    {2, 1, 2, 0, 1, 0, 2}, {0, 1, 2, 3, 3, 2, 1, 0}};
  for (const auto& hosts : first_if_sanitized<std::vector<int>>(2, layouts)) {
    for (const std::uint64_t count : {1u, 33u, 3000u, 40'001u}) {
      expect_whole<TypeParam>(hosts, count, ReduceOp::sum, count != 33);
      expect_whole<TypeParam>(hosts, count, ReduceOp::avg, count == 33);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Packets carry the sums of hosts, so a host sends each byte once.
TEST(HostedTarCallTest, network__carries_each_byte_once_a_host) {
  constexpr std::uint64_t kCount = 64'000;
  SimulatedJob job(several_hosts({0, 0, 0, 0, 1, 1, 1, 1}));
  auto buffers = coded_buffers<float>(8, kCount, true);
  job.submit_all([&](Rank rank) { return hosted(buffers, rank); });
  ASSERT_TRUE(job.finish());
  std::uint64_t packets = 0;
  for (Rank rank = 0; rank < 4; ++rank) packets += job[rank].endpoint().counters().packets_out;
  // The DATA of 2 (H - 1) / H buckets, and control packets.
  EXPECT_LT(packets * 512, kCount * sizeof(float) * 3 / 2);
}

TEST(HostedTarCallTest, lost_packets__are_sent_again) {
  SimulatedJobOptions options = several_hosts({0, 0, 1, 1, 2});
  options.faults.loss = 0.05;
  SimulatedJob job(options);
  for (int number = 0; number < 5; ++number) {
    auto buffers = coded_buffers<float>(5, 20'000, number % 2 == 0);
    const Calls calls = job.submit_all([&](Rank rank) { return hosted(buffers, rank); });
    ASSERT_TRUE(job.finish());
    for (Rank rank = 0; rank < 5; ++rank) {
      const Report& report = calls[rank]->report;
      EXPECT_LT(report.lost_fraction, 0.001) << report.detail;
      expect_named_sums(buffers, rank, report);
    }
  }
}

// Ranks of other slices send no packets, so they do not tell that they have passed a call.
TEST(HostedTarCallTest, results__are_kept_for_their_receivers_alone) {
  SimulatedJobOptions options = several_hosts({0, 0, 1, 1});
  options.retain_bytes = 100'000;
  SimulatedJob job(options);
  for (int i = 0; i < 100; ++i) {
    auto buffers = coded_buffers<float>(4, 8'000, true);
    const Calls calls = job.submit_all([&](Rank rank) { return hosted(buffers, rank); });
    ASSERT_TRUE(job.finish());
    for (const auto& call : calls) ASSERT_EQ(call->report.status, Status::complete);
    for (Rank rank = 0; rank < 4; ++rank) {
      EXPECT_LE(job[rank].endpoint().memory().retained_entries, 2u);
    }
  }
}

// -- ranks that do not take part -----------------------------------------------------------------

/// Elements, and the host of each rank.
using FaultCase = std::tuple<std::uint64_t, std::vector<int>>;

class HostedTarFaults : public testing::TestWithParam<FaultCase> {
 protected:
  std::uint64_t count() const { return std::get<0>(GetParam()); }
  SimulatedJobOptions job_of() const { return several_hosts(std::get<1>(GetParam())); }
  std::uint16_t ranks() const { return job_of().ranks; }
  bool share_host(Rank a, Rank b) const {
    return std::get<1>(GetParam())[a] == std::get<1>(GetParam())[b];
  }

  /// Runs calls, so that their times are known.
  void warm_up(SimulatedJob& job) const {
    for (int i = 0; i < 3; ++i) {
      auto buffers = coded_buffers<float>(ranks(), count(), true);
      job.submit_all([&](Rank rank) { return hosted(buffers, rank); });
      ASSERT_TRUE(job.finish());
    }
  }
};
INSTANTIATE_TEST_SUITE_P(
    Jobs, HostedTarFaults,
    testing::Combine(testing::Values(64, 60'000),
                     testing::Values(std::vector{0, 0, 0, 1, 1, 1}, std::vector{0, 0, 0, 0},
                                     std::vector{0, 1, 0, 1, 0}, std::vector{0, 0, 1, 1, 1})));

TEST_P(HostedTarFaults, late_rank__is_waited_for) {
  SimulatedJob job(job_of());
  warm_up(job);
  for (const Rank late : {Rank{0}, Rank{1}, Rank{2}}) {
    auto buffers = coded_buffers<float>(ranks(), count(), true);
    Calls calls = job.submit_all([&](Rank rank) { return hosted(buffers, rank); }, {late});
    job.run_for(50ms);
    calls.push_back(job.submit(late, hosted(buffers, late)));
    ASSERT_TRUE(job.finish());
    for (const auto& call : calls) EXPECT_EQ(call->report.status, Status::complete);
  }
}

/// A rank that stands still costs its host the slice that it owns, and all ranks what they have of
/// it. Once it runs again, it fetches the result.
TEST_P(HostedTarFaults, stopped_rank__is_left_out_and_fetches_the_result) {
  for (const Rank victim : {Rank{1}, Rank{2}}) {
    SimulatedJob job(job_of());
    warm_up(job);
    job.stop(victim);
    auto buffers = coded_buffers<float>(ranks(), count(), true);
    Calls calls = job.submit_all([&](Rank rank) { return hosted(buffers, rank); }, {victim});
    ASSERT_TRUE(job.run_until(
        [&] {
          return std::all_of(calls.begin(), calls.end(),
                             [](const auto& one) -> bool { return one->done; });
        },
        5s));
    const std::uint64_t others = all_ranks(ranks()) & ~bit(victim);
    Rank rank = 0;
    for (const auto& call : calls) {
      if (rank == victim) ++rank;
      const Report& report = call->report;
      EXPECT_EQ(report.status, Status::partial) << report.detail;
      EXPECT_THAT(report.late_ranks, ElementsAre(victim));
      for (const ContributorRun& run : report.runs) {
        EXPECT_EQ(run.contributors & bit(victim), 0u);
      }
      expect_named_sums(buffers, rank, report);
      // All but the victim's slice has all other ranks.
      std::uint64_t good = 0;
      for (const ContributorRun& run : report.runs)
        good += run.contributors == others ? run.count : 0;
      if (count() > 64) {
        EXPECT_GE(good, count() / 3);
      }
      ++rank;
    }
    job.resume(victim);
    const auto late = job.submit(victim, hosted(buffers, victim));
    ASSERT_TRUE(job.finish());
    EXPECT_EQ(late->report.status, Status::late_self) << late->report.detail;
    // Without its own slice, and its contribution to the others.
    EXPECT_LE(late->report.lost_fraction, count() == 64 ? 0.9 : 0.7) << late->report.detail;
    expect_named_sums(buffers, victim, late->report);
    // Once the others have heard it, calls are whole.
    job.run_for(1s);
    for (int i = 0; i < 3; ++i) {
      auto next = coded_buffers<float>(ranks(), count(), true);
      const Calls later = job.submit_all([&](Rank one) { return hosted(next, one); });
      ASSERT_TRUE(job.finish());
      for (const auto& call : later) {
        EXPECT_EQ(call->report.status, Status::complete) << call->report.detail;
      }
    }
  }
}

/// Their boards no longer tell of its call.
TEST_P(HostedTarFaults, rank_far_behind__is_late_in_all_calls) {
  constexpr int kCalls = 70;
  SimulatedJob job(job_of());
  warm_up(job);
  constexpr Rank kVictim = 1;
  std::vector<std::unique_ptr<Buffers<float>>> all;
  const auto next = [&](int number) -> Buffers<float>& {
    if (number == std::ssize(all)) {
      all.push_back(std::make_unique<Buffers<float>>(coded_buffers<float>(ranks(), count(), true)));
    }
    return *all[static_cast<std::size_t>(number)];
  };
  const auto first = job.submit(kVictim, hosted(next(0), kVictim));
  job.stop(kVictim);
  for (int number = 0; number < kCalls; ++number) {
    Calls calls = job.submit_all([&](Rank rank) { return hosted(next(number), rank); }, {kVictim});
    ASSERT_TRUE(job.run_until([&] {
      return std::all_of(calls.begin(), calls.end(),
                         [](const auto& one) -> bool { return one->done; });
    }));
  }
  job.resume(kVictim);
  Calls late{first};
  for (int number = 1; number < kCalls; ++number) {
    late.push_back(job.submit(kVictim, hosted(next(number), kVictim)));
  }
  ASSERT_TRUE(job.finish());
  for (int number = 0; number < kCalls; ++number) {
    const Report& report = late[static_cast<std::size_t>(number)]->report;
    EXPECT_EQ(report.status, Status::late_self) << number << ": " << report.detail;
    expect_named_sums(next(number), kVictim, report);
  }
}

TEST_P(HostedTarFaults, bound__is_learnt_on_every_rank) {
  SimulatedJob job(job_of());
  Duration longest{};
  for (int number = 0; number < 80; ++number) {
    auto buffers = coded_buffers<float>(ranks(), count(), true);
    const Calls calls = job.submit_all([&](Rank rank) { return hosted(buffers, rank); });
    ASSERT_TRUE(job.finish());
    longest = {};
    for (const auto& call : calls) longest = std::max(longest, call->report.bound);
  }
  EXPECT_GT(longest, Duration{});
  EXPECT_LT(longest, 100ms);
}

/// It stands still while it reads and writes.
TEST_P(HostedTarFaults, rank_stopped_within_a_call__never_spoils_a_result) {
  for (int after = 0; after < 40; ++after) {
    SimulatedJob job(job_of());
    warm_up(job);
    const auto victim = static_cast<Rank>(after % 3);
    std::vector<std::unique_ptr<Buffers<float>>> all;
    Calls calls;
    for (int number = 0; number < 4; ++number) {
      all.push_back(
          std::make_unique<Buffers<float>>(coded_buffers<float>(ranks(), count(), number != 1)));
      for (Rank rank = 0; rank < ranks(); ++rank) {
        calls.push_back(job.submit(rank, hosted(*all.back(), rank)));
      }
    }
    job.run_for(Duration(after * 40'000));
    job.stop(victim);
    job.run_for(700ms);
    job.resume(victim);
    ASSERT_TRUE(job.finish());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const Report& report = calls[i]->report;
      SCOPED_TRACE(report.detail);
      EXPECT_TRUE(report.status == Status::complete || report.status == Status::partial ||
                  report.status == Status::late_self)
          << name(report.status);
      expect_named_sums(*all[i / ranks()], static_cast<Rank>(i % ranks()), report);
    }
  }
}

TEST_P(HostedTarFaults, dead_rank__later_calls_go_on_without_it) {
  SimulatedJob job(job_of());
  warm_up(job);
  constexpr Rank kVictim = 1;
  job.kill(kVictim);
  for (int number = 0; number < 6; ++number) {
    if (number == 2) job.tell_dead(kVictim);
    if (number == 4) {  // as the ranks agree then
      for (Rank rank = 0; rank < ranks(); ++rank) {
        if (rank == kVictim) continue;
        job[rank].coded_calls().decided({{64, false, true}, {}});
      }
    }
    auto buffers = coded_buffers<float>(ranks(), count(), true);
    const Calls calls = job.submit_all([&](Rank rank) { return hosted(buffers, rank); }, {kVictim});
    ASSERT_TRUE(job.finish());
    Rank rank = 0;
    for (const auto& call : calls) {
      if (rank == kVictim) ++rank;
      const Report& report = call->report;
      EXPECT_EQ(report.status, Status::partial) << report.detail;
      EXPECT_EQ(report.algorithm, number < 4 ? Algorithm::hosts : Algorithm::tar);
      if (number > 2) {
        EXPECT_LT(report.elapsed, 100ms);
      }
      if (number >= 2) {
        EXPECT_EQ(report.causes.of_live_ranks(), 0) << report.detail;
      }
      expect_named_sums(buffers, rank++, report);
    }
  }
}

TEST_P(HostedTarFaults, rank_that_refuses__ends_the_call_on_all) {
  for (const Rank victim : {Rank{0}, Rank{2}}) {
    SimulatedJob job(job_of());
    auto buffers = coded_buffers<float>(ranks(), count(), true);
    const Calls calls = job.submit_all([&](Rank rank) {
      AllreduceArguments arguments = hosted(buffers, rank);
      if (rank == victim) arguments.input = nullptr;
      return arguments;
    });
    ASSERT_TRUE(job.finish());
    for (const auto& call : calls) {
      EXPECT_EQ(call->report.status, Status::aborted) << call->report.detail;
      EXPECT_EQ(call->report.abort_reason, AbortReason::argument);
      EXPECT_THAT(call->report.blamed, ElementsAre(victim));
    }
  }
}

TEST_P(HostedTarFaults, rank_that_differs__is_named) {
  SimulatedJob job(job_of());
  auto buffers = coded_buffers<float>(ranks(), count(), true);
  const Calls calls = job.submit_all([&](Rank rank) {
    AllreduceArguments arguments = hosted(buffers, rank);
    if (rank == 1) arguments.function = ReduceOp::avg;
    return arguments;
  });
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::mismatch) << call->report.detail;
    EXPECT_THAT(call->report.detail, HasSubstr("avg"));
  }
}

TEST_P(HostedTarFaults, nan_of_one_rank__makes_all_results_nan) {
  for (Rank victim = 0; victim < ranks(); ++victim) {
    SimulatedJob job(job_of());
    auto buffers = coded_buffers<float>(ranks(), count(), true);
    buffers.inputs[victim][count() / 2] = std::nanf("");
    buffers.outputs[victim] = buffers.inputs[victim];
    const Calls calls = job.submit_all([&](Rank rank) { return hosted(buffers, rank); });
    ASSERT_TRUE(job.finish());
    for (Rank rank = 0; rank < ranks(); ++rank) {
      const Report& report = calls[rank]->report;
      EXPECT_TRUE(report.nonfinite) << "rank " << rank << ": " << report.detail;
      for (const float element : buffers.outputs[rank]) ASSERT_TRUE(std::isnan(element));
    }
  }
}

TEST_P(HostedTarFaults, garbage_in_the_memory__ends_no_later_than_the_deadline) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SimulatedJob job(job_of());
    warm_up(job);
    auto buffers = coded_buffers<float>(ranks(), count(), true);
    const Calls calls = job.submit_all([&](Rank rank) { return hosted(buffers, rank); });
    Random random(seed);
    job.run_for(Duration(static_cast<std::int64_t>(random.below(300'000))));
    for (std::byte& byte : job.hosts().bytes().first(200'000)) {
      if (random.chance(0.5)) byte = static_cast<std::byte>(random.below(256));
    }
    ASSERT_TRUE(job.finish(6s)) << "seed " << seed;
  }
}

// -- which calls
// -----------------------------------------------------------------------------------

TEST(HostedTarCallTest, calls_that_would_not_wait_for_live_ranks__are_flat) {
  const auto ran = [](const SimulatedJobOptions& options, const auto& change) {
    SimulatedJob job(options);
    auto buffers = coded_buffers<float>(options.ranks, 1000, true);
    const Calls calls = job.submit_all([&](Rank rank) {
      AllreduceArguments arguments = hosted(buffers, rank);
      change(arguments);
      return arguments;
    });
    EXPECT_TRUE(job.finish());
    EXPECT_EQ(calls[0]->report.status, Status::complete);
    return calls[0]->report.algorithm;
  };
  const SimulatedJobOptions two = several_hosts({0, 0, 1, 1});
  EXPECT_EQ(ran(two, [](AllreduceArguments&) {}), Algorithm::hosts);
  EXPECT_EQ(ran(two, [](AllreduceArguments& call) { call.algorithm = Algorithm::tar; }),
            Algorithm::tar);
  EXPECT_EQ(ran(two, [](AllreduceArguments& call) { call.bound = 20ms; }), Algorithm::tar);
  EXPECT_EQ(ran(two, [](AllreduceArguments& call) { call.tag = 16; }), Algorithm::tar);
  EXPECT_EQ(ran(two, [](AllreduceArguments& call) { call.bound_rule = BoundRule::optireduce; }),
            Algorithm::tar);
  EXPECT_EQ(ran(several_hosts({0, 1, 2}), [](AllreduceArguments&) {}), Algorithm::tar);
  EXPECT_EQ(ran(several_hosts({0, 0, 0}), [](AllreduceArguments&) {}), Algorithm::hosts);
  SimulatedJobOptions coded = two;
  coded.mechanisms.codec = CodecRule::on;
  EXPECT_EQ(ran(coded, [](AllreduceArguments&) {}), Algorithm::tar);
  SimulatedJobOptions lossy = two;
  lossy.mechanisms.repair = false;
  EXPECT_EQ(ran(lossy, [](AllreduceArguments&) {}), Algorithm::tar);
}

}  // namespace
}  // namespace tarpon::hosted_tar_call_test
