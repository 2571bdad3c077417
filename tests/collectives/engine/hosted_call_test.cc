// Calls through the memory of a host: results bit by bit, order, and ranks that differ, refuse,
// die, hang or write garbage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/sanitized.h"
#include "tests/support/simulated_job.h"
#include "tools/reference/replay.h"

namespace tarpon::hosted_call_test {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::Buffers;
using testing_support::first_if_sanitized;
using testing_support::left;
using testing_support::same_bits;
using testing_support::SimulatedJob;
using testing_support::SimulatedJobOptions;
using Calls = std::vector<std::shared_ptr<PendingCall>>;

constexpr std::uint32_t kSmallPlace = 4096;  // so that a few KiB take several steps

SimulatedJobOptions one_host(std::uint16_t ranks) {
  return {.ranks = ranks, .host_place_bytes = kSmallPlace};
}

/// `hosts`: by rank: its host.
SimulatedJobOptions several_hosts(const std::vector<int>& hosts) {
  return {.ranks = static_cast<std::uint16_t>(hosts.size()),
          .host_place_bytes = kSmallPlace,
          .hosts = hosts};
}

template <typename T>
AllreduceArguments hosted(Buffers<T>& buffers, Rank rank, ReduceOp function = ReduceOp::sum) {
  AllreduceArguments arguments = buffers.arguments(rank, data_type_of<T>(), function);
  arguments.algorithm = Algorithm::hosts;
  return arguments;
}

template <typename T>
std::vector<T> in_order_of_ranks(const Buffers<T>& buffers, ReduceOp function) {
  const auto ranks = static_cast<std::uint32_t>(buffers.inputs.size());
  std::vector<T> result(buffers.inputs[0].size());
  for (std::uint64_t i = 0; i < result.size(); ++i) {
    result[i] = reduce_over<T>(all_ranks(ranks), ranks, 0, function,
                               [&](Rank rank) { return buffers.inputs[rank][i]; });
  }
  return result;
}

/// What the order of additions gives: first in each host, then over the hosts.
template <typename T>
std::vector<T> by_hosts(const SimulatedJobOptions& job, const Buffers<T>& buffers,
                        ReduceOp function, std::uint32_t number) {
  Buffers<T> copy = buffers;
  const auto layout =
      hosts::HostLayout::by(job.hosts.empty() ? std::vector<int>(job.ranks) : job.hosts);
  std::vector<T> result(buffers.inputs[0].size());
  for (const AdditionProgram& program :
       addition_programs(hosted(copy, 0, function), layout,
                         SimulatedHosts::shape(job.ranks, job.host_place_bytes), number)) {
    for (std::uint64_t i = program.elements.first; i < program.elements.end(); ++i) {
      result[i] = replay<T>(program, job.ranks, function,
                            [&](Rank rank) { return buffers.inputs[rank][i]; });
    }
  }
  return result;
}

template <typename T>
void expect_exact(const SimulatedJobOptions& options, std::uint64_t count, ReduceOp function,
                  bool in_place) {
  const std::uint16_t ranks = options.ranks;
  SCOPED_TRACE(std::string(name(function)) + " of " + std::to_string(count) + " on " +
               std::to_string(ranks) + " ranks");
  SimulatedJob job(options);
  for (std::uint32_t number = 0; number < 3; ++number) {
    Buffers<T> buffers(ranks, count, in_place, number + 1);
    const Buffers<T> before = buffers;
    const Calls calls = job.submit_all([&](Rank rank) { return hosted(buffers, rank, function); });
    ASSERT_TRUE(job.finish(5s));
    const std::vector<T> result = options.hosts.empty()
                                      ? in_order_of_ranks(before, function)
                                      : by_hosts(options, before, function, number);
    for (Rank rank = 0; rank < ranks; ++rank) {
      const Report& report = calls[rank]->report;
      ASSERT_EQ(report.status, Status::complete) << report.detail;
      EXPECT_EQ(report.operation, number);
      EXPECT_EQ(report.algorithm, Algorithm::hosts);
      EXPECT_TRUE(same_bits(buffers.outputs[rank], result)) << "rank " << rank;
      if (in_place) continue;
      EXPECT_TRUE(same_bits(buffers.inputs[rank], before.inputs[rank])) << "rank " << rank;
    }
  }
}

template <typename T>
class HostedTypesTest : public testing::Test {};
using Elements =
    testing::Types<float, double, std::int32_t, std::int64_t, Float16, Bfloat16, std::int8_t,
                   std::uint8_t, std::int16_t, std::uint16_t, std::uint32_t, std::uint64_t>;
TYPED_TEST_SUITE(HostedTypesTest, Elements);

TYPED_TEST(HostedTypesTest, exact__every_function_in_the_order_of_ranks) {
  for (std::size_t op = 0; op < kReduceOps; ++op) {
    const auto function = static_cast<ReduceOp>(op);
    if (function == ReduceOp::custom || !is_defined(data_type_of<TypeParam>(), function)) continue;
    for (const std::uint16_t ranks : first_if_sanitized<std::uint16_t>(2, {3, 8, 2, 5})) {
      for (const std::uint64_t count : {33u, 1u, 70'001u}) {
        expect_exact<TypeParam>(one_host(ranks), count, function, count != 33);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TYPED_TEST(HostedTypesTest, several_hosts__every_function_in_the_order_of_hosts) {
  const std::vector<std::vector<int>> layouts{
      {0, 0, 1, 1}, {0, 1, 0, 1, 1}, {0, 0, 1}, {2, 1, 2, 0, 1, 0, 2}, {0, 1, 0}};
  for (std::size_t op = 0; op < kReduceOps; ++op) {
    const auto function = static_cast<ReduceOp>(op);
    if (function == ReduceOp::custom || !is_defined(data_type_of<TypeParam>(), function)) continue;
    for (const auto& hosts : first_if_sanitized<std::vector<int>>(2, layouts)) {
      for (const std::uint64_t count : {33u, 1u, 20'001u}) {
        expect_exact<TypeParam>(several_hosts(hosts), count, function, count != 33);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(HostedCallTest, sizes__around_steps_and_slices) {
  constexpr std::uint64_t kStep = kSmallPlace / sizeof(float);
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{15}, kStep - 1, kStep,
                                    kStep + 1, 32 * kStep, 32 * kStep + 17}) {
    for (const int world : {2, 3, 7, 64}) {
      const auto ranks = static_cast<std::uint16_t>(world);
      expect_exact<float>(one_host(ranks), count, ReduceOp::sum, true);
      expect_exact<float>(one_host(ranks), count, ReduceOp::avg, false);
    }
  }
}

TEST(HostedCallTest, custom__operands_in_the_order_of_ranks) {
  SimulatedJob job(one_host(3));
  Buffers<float> buffers(3, 5000, true);
  const Buffers<float> before = buffers;
  const Calls calls = job.submit_all([&](Rank rank) {
    AllreduceArguments arguments = hosted(buffers, rank, ReduceOp::custom);
    arguments.custom = {.id = 9,
                        .combine = [](void* out, const void* a, const void* b, std::size_t elements,
                                      void*) noexcept {
                          for (std::size_t i = 0; i < elements; ++i) {
                            static_cast<float*>(out)[i] = 2 * static_cast<const float*>(a)[i] +
                                                          static_cast<const float*>(b)[i];
                          }
                        }};
    return arguments;
  });
  ASSERT_TRUE(job.finish());
  for (std::uint64_t i = 0; i < 5000; ++i) {
    const auto& in = before.inputs;
    ASSERT_EQ(buffers.outputs[1][i], 2 * (2 * in[0][i] + in[1][i]) + in[2][i]);
  }
}

TEST(HostedCallTest, custom__may_write_before_it_reads_the_second_operand) {
  const auto combine = [](void* out, const void* a, const void* b, std::size_t elements,
                          void*) noexcept {
    std::memmove(out, a, elements * sizeof(float));
    for (std::size_t i = 0; i < elements; ++i) {
      static_cast<float*>(out)[i] -= static_cast<const float*>(b)[i];
    }
  };
  for (const int world : {2, 3}) {
    const auto ranks = static_cast<std::uint16_t>(world);
    SimulatedJob job(one_host(ranks));
    Buffers<float> buffers(ranks, 100, true);
    const Buffers<float> before = buffers;
    job.submit_all([&](Rank rank) {
      AllreduceArguments arguments = hosted(buffers, rank, ReduceOp::custom);
      arguments.custom = {.id = 9, .combine = combine};
      return arguments;
    });
    ASSERT_TRUE(job.finish());
    for (std::uint64_t i = 0; i < 100; ++i) {
      float expected = before.inputs[0][i];
      for (Rank rank = 1; rank < ranks; ++rank) expected -= before.inputs[rank][i];
      for (Rank rank = 0; rank < ranks; ++rank) ASSERT_EQ(buffers.outputs[rank][i], expected);
    }
  }
}

TEST(HostedCallTest, good_call__sends_no_packet) {
  SimulatedJob job(one_host(4));
  Buffers<float> buffers(4, 50'000, true);
  job.submit_all([&](Rank rank) { return hosted(buffers, rank); });
  ASSERT_TRUE(job.finish());
  for (Rank rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(job[rank].endpoint().counters().packets_out, 0u);
  }
}

// Ranks of other slices send no packets, so they do not tell that they have passed a call.
TEST(HostedCallTest, several_hosts__keep_results_for_their_receivers_alone) {
  SimulatedJobOptions options = several_hosts({0, 0, 1, 1});
  options.retain_bytes = 100'000;
  SimulatedJob job(options);
  for (int i = 0; i < 100; ++i) {
    Buffers<float> buffers(4, 8'000, true);
    const Calls calls = job.submit_all([&](Rank rank) { return hosted(buffers, rank); });
    ASSERT_TRUE(job.finish());
    for (const auto& call : calls) {
      ASSERT_EQ(call->report.status, Status::complete);
      ASSERT_LT(call->report.elapsed, 10ms) << i;
    }
    for (Rank rank = 0; rank < 4; ++rank) {
      EXPECT_LE(job[rank].endpoint().memory().retained_entries, 2u);
    }
  }
}

TEST(HostedCallTest, report__counts_what_was_taken_from_each_rank) {
  for (const std::uint64_t count : {std::uint64_t{64}, std::uint64_t{48'000}}) {
    SimulatedJob job(one_host(3));
    Buffers<float> buffers(3, count, true);
    const Calls calls = job.submit_all([&](Rank rank) { return hosted(buffers, rank); });
    ASSERT_TRUE(job.finish());
    const Report& report = calls[1]->report;
    std::uint64_t expected = 0;
    for (const Rank peer : {Rank{0}, Rank{2}}) {
      const PeerReport& from = report.peers[peer];
      EXPECT_EQ(from.bytes_received, from.bytes_expected);
      EXPECT_EQ(from.contributors, 7u);
      expected += from.bytes_received[0] + from.bytes_received[1];
    }
    EXPECT_EQ(report.bytes_received, expected);
    EXPECT_GE(expected, count * 4);  // 2 (P - 1) / P of the bucket or more
    EXPECT_EQ(report.peers[1].bytes_expected, (std::array<std::uint64_t, 2>{}));
  }
}

// -- order ---------------------------------------------------------------------------------------

struct Planned {
  std::uint32_t tag = 0;
  Algorithm algorithm = Algorithm::hosts;
  std::unique_ptr<Buffers<float>> buffers;
};

TEST(HostedCallTest, many_calls__of_several_tags_match_in_any_order_of_submission) {
  constexpr std::uint16_t kRanks = 3;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    SimulatedJob job(one_host(kRanks));
    std::vector<Planned> plan;
    for (int i = 0; i < 40; ++i) {
      const std::uint64_t count = random.chance(0.5) ? random.below(100) : random.below(60'000);
      plan.push_back({.tag = static_cast<std::uint32_t>(random.below(3)),
                      .algorithm = random.chance(0.2) ? Algorithm::tar : Algorithm::hosts,
                      .buffers = std::make_unique<Buffers<float>>(kRanks, count, true, seed + i)});
    }
    std::vector<std::vector<float>> results;
    for (const Planned& call : plan) {
      const bool by_hosts = call.algorithm == Algorithm::hosts;
      results.push_back(by_hosts ? in_order_of_ranks(*call.buffers, ReduceOp::sum)
                                 : std::vector<float>());
    }
    std::array<std::array<std::size_t, 3>, kRanks> next{};  // by rank, tag: index into the plan
    std::array<std::size_t, kRanks> submitted{};
    Calls calls;
    while (submitted[0] + submitted[1] + submitted[2] < kRanks * plan.size()) {
      const auto rank = static_cast<Rank>(random.below(kRanks));
      const auto tag = static_cast<std::uint32_t>(random.below(3));
      std::size_t& at = next[rank][tag];
      while (at < plan.size() && plan[at].tag != tag) ++at;
      if (at == plan.size()) continue;
      AllreduceArguments arguments = hosted(*plan[at].buffers, rank);
      arguments.algorithm = plan[at].algorithm;
      arguments.tag = tag;
      calls.push_back(job.submit(rank, arguments));
      ++at;
      ++submitted[rank];
      if (random.chance(0.3))
        job.run_for(Duration(static_cast<std::int64_t>(random.below(100'000))));
    }
    ASSERT_TRUE(job.finish());
    for (const auto& call : calls) ASSERT_EQ(call->report.status, Status::complete);
    for (std::size_t i = 0; i < plan.size(); ++i) {
      if (plan[i].algorithm != Algorithm::hosts) continue;
      for (Rank rank = 0; rank < kRanks; ++rank) {
        ASSERT_TRUE(same_bits(plan[i].buffers->outputs[rank], results[i])) << i;
      }
    }
  }
}

// -- ranks that do not take part -----------------------------------------------------------------

/// Elements; the host of each rank; the tag.
using FaultCase = std::tuple<std::uint64_t, std::vector<int>, std::uint32_t>;

class HostedFaults : public testing::TestWithParam<FaultCase> {
 protected:
  std::uint64_t count() const { return std::get<0>(GetParam()); }
  SimulatedJobOptions job_of() const { return several_hosts(std::get<1>(GetParam())); }
  std::uint16_t ranks() const { return job_of().ranks; }
  std::uint32_t tag() const { return std::get<2>(GetParam()); }
  AllreduceArguments call(Buffers<float>& buffers, Rank rank) const {
    AllreduceArguments result = hosted(buffers, rank);
    result.tag = tag();
    return result;
  }
};
INSTANTIATE_TEST_SUITE_P(
    Jobs, HostedFaults,
    testing::Combine(testing::Values(64, 60'000),
                     testing::Values(std::vector{0, 0, 0, 0}, std::vector{0, 1, 0},
                                     std::vector{0, 0, 0, 1, 1, 1}, std::vector{0, 1, 0, 1, 0},
                                     std::vector{0, 0, 1, 1, 1}),
                     testing::Values(0, 1000)));

TEST_P(HostedFaults, absent_rank__is_named_on_all_and_the_next_call_matches) {
  SimulatedJob job(job_of());
  Buffers<float> buffers(ranks(), count(), true), more(ranks(), count(), true, 5);
  const auto arguments = [&](Rank rank) {
    AllreduceArguments result = call(buffers, rank);
    result.deadline = 200ms;
    return result;
  };
  const Calls calls = job.submit_all(arguments, {2});
  ASSERT_TRUE(job.finish());
  for (const auto& one : calls) {
    EXPECT_EQ(one->report.status, Status::peer_late) << one->report.detail;
    EXPECT_THAT(one->report.late_ranks, ElementsAre(2));
    EXPECT_THAT(one->report.detail, HasSubstr("rank 2"));
  }
  const auto late = job.submit(2, arguments(2));
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(late->report.status, Status::aborted);
  EXPECT_EQ(late->report.abort_reason, AbortReason::late);
  const std::vector<float> result = by_hosts(job_of(), more, ReduceOp::sum, 1);
  const Calls next = job.submit_all([&](Rank rank) { return call(more, rank); });
  ASSERT_TRUE(job.finish());
  for (const auto& one : next) ASSERT_EQ(one->report.status, Status::complete);
  EXPECT_TRUE(same_bits(more.outputs[2], result));
}

TEST_P(HostedFaults, late_rank__is_waited_for) {
  SimulatedJob job(job_of());
  Buffers<float> buffers(ranks(), count(), true);
  const std::vector<float> result = by_hosts(job_of(), buffers, ReduceOp::sum, 0);
  Calls calls = job.submit_all([&](Rank rank) { return call(buffers, rank); }, {1});
  job.run_for(8s);  // longer than a silent rank lives: it answers
  calls.push_back(job.submit(1, call(buffers, 1)));
  ASSERT_TRUE(job.finish());
  for (const auto& one : calls) ASSERT_EQ(one->report.status, Status::complete);
  EXPECT_TRUE(same_bits(buffers.outputs[1], result));
}

TEST_P(HostedFaults, refusing_rank__ends_the_call_on_all) {
  SimulatedJob job(job_of());
  Buffers<float> buffers(ranks(), count(), true);
  const auto run = [&](bool refuses) {
    const Calls calls = job.submit_all([&](Rank rank) {
      AllreduceArguments arguments = call(buffers, rank);
      if (refuses && rank == 1) arguments.refusal = "no gradient";
      return arguments;
    });
    EXPECT_TRUE(job.finish());
    return calls;
  };
  for (int i = 0; i < 6; ++i) {  // more often than there are places
    for (const auto& one : run(true)) {
      EXPECT_EQ(one->report.status, Status::aborted) << one->report.detail;
      EXPECT_EQ(one->report.abort_reason, AbortReason::exception);
      EXPECT_THAT(one->report.blamed, ElementsAre(1));
    }
  }
  for (const auto& one : run(false)) EXPECT_EQ(one->report.status, Status::complete);
}

TEST_P(HostedFaults, mismatch__names_the_field_and_the_rank) {
  for (const bool by_network : {false, true}) {
    SimulatedJob job(job_of());
    Buffers<float> buffers(ranks(), count(), true);
    const Calls calls = job.submit_all([&](Rank rank) {
      AllreduceArguments arguments = call(buffers, rank);
      if (rank == 1 && by_network) arguments.algorithm = Algorithm::tar;
      if (rank == 1 && !by_network) arguments.count -= 1;
      return arguments;
    });
    ASSERT_TRUE(job.finish());
    for (const auto& one : calls) {
      EXPECT_EQ(one->report.status, Status::mismatch) << one->report.detail;
      EXPECT_THAT(one->report.detail, HasSubstr(by_network ? "algorithm" : "count"));
    }
    EXPECT_THAT(calls[0]->report.blamed, ElementsAre(1));
    const Calls next = job.submit_all([&](Rank rank) { return call(buffers, rank); });
    ASSERT_TRUE(job.finish());
    for (const auto& one : next) ASSERT_EQ(one->report.status, Status::complete);
  }
}

TEST_P(HostedFaults, dead_rank__ends_the_call_with_the_evidence) {
  SimulatedJob job(job_of());
  Buffers<float> buffers(ranks(), count(), true);
  const Calls calls = job.submit_all([&](Rank rank) { return call(buffers, rank); }, {2});
  job.run_for(1ms);
  job.kill(2);
  job.tell_dead(2);
  ASSERT_TRUE(job.finish());
  for (const auto& one : calls) {
    EXPECT_EQ(one->report.status, Status::peer_dead);
    EXPECT_THAT(one->report.blamed, ElementsAre(2));
    EXPECT_THAT(one->report.detail, HasSubstr("killed by a test"));
  }
}

TEST_P(HostedFaults, death__is_told_by_the_mesh_alone) {
  SimulatedJob job(job_of());
  Buffers<float> buffers(ranks(), count(), true);
  const Calls calls = job.submit_all([&](Rank rank) { return call(buffers, rank); }, {2});
  job.run_for(1ms);
  job.kill(2);
  job[0].learn(testing_support::dead(2), job.now());
  job.run_for(5ms);
  EXPECT_FALSE(calls[1]->done);  // it has not heard the evidence yet
  job.tell_dead(2);
  ASSERT_TRUE(job.finish());
  for (const auto& one : calls) EXPECT_EQ(one->report.status, Status::peer_dead);
}

TEST_P(HostedFaults, rank_that_left__ends_later_calls_and_serves_its_own) {
  SimulatedJob job(job_of());
  Buffers<float> buffers(ranks(), count(), true), more(ranks(), count(), true);
  const auto first = job.submit(2, call(buffers, 2));
  Calls calls{job.submit(0, call(buffers, 0))};
  job.run_for(1ms);
  for (Rank rank = 0; rank < ranks(); ++rank) {
    if (rank != 2) job[rank].learn(left(2, {{tag(), 1}}), job.now());
  }
  for (Rank rank = 1; rank < ranks(); ++rank) {
    if (rank != 2) calls.push_back(job.submit(rank, call(buffers, rank)));
  }
  ASSERT_TRUE(job.finish());
  for (const auto& one : calls) EXPECT_EQ(one->report.status, Status::complete);
  EXPECT_EQ(first->report.status, Status::complete);
  const Calls next = job.submit_all([&](Rank rank) { return call(more, rank); }, {2});
  ASSERT_TRUE(job.finish());
  for (const auto& one : next) EXPECT_EQ(one->report.status, Status::peer_left);
}

TEST_P(HostedFaults, stopped_rank__is_waited_for_until_the_deadline_and_then_named) {
  for (const Duration pause : {Duration(100ms), Duration(3s)}) {
    SimulatedJob job(job_of());
    Buffers<float> buffers(ranks(), count(), true);
    const auto arguments = [&](Rank rank) {
      AllreduceArguments result = call(buffers, rank);
      result.deadline = 1s;
      return result;
    };
    Calls calls = job.submit_all(arguments, {0});
    job.stop(2);
    calls.push_back(job.submit(0, arguments(0)));
    job.run_for(pause);
    job.resume(2);
    ASSERT_TRUE(job.finish());
    for (const auto& one : calls) {
      const Report& report = one->report;
      if (pause < 1s) {
        EXPECT_EQ(report.status, Status::complete) << report.detail;
      } else if (report.status == Status::peer_late) {
        EXPECT_THAT(report.late_ranks, ElementsAre(2)) << report.detail;
      } else {
        EXPECT_EQ(report.status, Status::aborted);
        EXPECT_THAT(report.blamed, ElementsAre(2));
      }
    }
    const Calls next = job.submit_all(arguments);
    ASSERT_TRUE(job.finish());
    for (const auto& one : next) EXPECT_EQ(one->report.status, Status::complete);
  }
}

// A rank stood still until its deadline, or until a rank died. Its result lies in the memory.
TEST(HostedCallTest, rank_that_stood_still__takes_the_result_that_is_there) {
  for (const bool dies : {false, true}) {
    SimulatedJob job(one_host(3));
    Buffers<float> buffers(3, 64, true);
    const std::vector<float> result = in_order_of_ranks(buffers, ReduceOp::sum);
    const auto arguments = [&](Rank rank) {
      AllreduceArguments call = hosted(buffers, rank);
      call.deadline = 200ms;
      return call;
    };
    const auto slow = job.submit(2, arguments(2));
    job.run_for(1ms);
    job.stop(2);
    const Calls calls = job.submit_all(arguments, {2});
    job.run_for(300ms);
    for (const auto& call : calls) ASSERT_EQ(call->report.status, Status::complete);
    if (dies) {
      job.kill(1);
      job[2].learn(testing_support::dead(1), job.now());
    }
    job.resume(2);
    ASSERT_TRUE(job.finish());
    EXPECT_EQ(slow->report.status, Status::complete) << slow->report.detail;
    EXPECT_TRUE(same_bits(buffers.outputs[2], result));
  }
}

TEST_P(HostedFaults, stopped_rank_that_had_begun__is_found_silent) {
  SimulatedJob job(job_of());
  Buffers<float> buffers(ranks(), count(), true);
  job.submit(2, call(buffers, 2));
  job.stop(2);  // it has begun, and copied nothing in
  job.submit_all([&](Rank rank) { return call(buffers, rank); }, {2});
  job.run_for(500ms);
  EXPECT_EQ(job[0].endpoint().peers().silent(), 4u);
  EXPECT_EQ(job[1].endpoint().peers().silent(), 4u);
}

TEST_P(HostedFaults, given_up__on_all_ranks_with_the_rank_to_blame) {
  SimulatedJob job(job_of());
  Buffers<float> buffers(ranks(), count(), true);
  const Calls calls = job.submit_all([&](Rank rank) { return call(buffers, rank); }, {2});
  job.run_for(1ms);
  job[0].abort(job.now());
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(calls[0]->report.status, Status::aborted);
  EXPECT_EQ(calls[1]->report.status, Status::aborted);
  EXPECT_THAT(calls[1]->report.blamed, ElementsAre(0));
  const auto last = job.submit(2, call(buffers, 2));
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(last->report.status, Status::aborted);
}

TEST_P(HostedFaults, dropped_calls__touch_no_buffer_afterwards) {
  SimulatedJob job(job_of());
  auto buffers = std::make_unique<Buffers<float>>(ranks(), count(), true);
  const auto one = job.submit(0, call(*buffers, 0));
  job.run_for(1ms);
  job[0].drop_calls(job.now());
  EXPECT_TRUE(one->done);
  EXPECT_EQ(one->report.status, Status::aborted);
  buffers.reset();
  job.run_for(1s);
}

TEST(HostedCallTest, refused__without_a_host) {
  SimulatedJob job({.ranks = 2, .host_place_bytes = 0});
  Buffers<float> buffers(2, 10, true);
  const Calls calls = job.submit_all([&](Rank rank) { return hosted(buffers, rank); });
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(calls[0]->report.abort_reason, AbortReason::argument);
  EXPECT_THAT(calls[0]->report.detail, HasSubstr("share the memory of their hosts"));
}

// -- calls that share lines ----------------------------------------------------------------------

/// All ranks make `calls` calls, each with a tag of its own, in an order of their own.
void expect_any_order(const SimulatedJobOptions& options, std::uint32_t calls) {
  Random random(calls);
  SimulatedJob job(options);
  std::vector<std::unique_ptr<Buffers<float>>> buffers;
  std::vector<std::vector<float>> results;
  std::vector<std::vector<std::uint32_t>> orders(options.ranks);
  for (std::uint32_t i = 0; i < calls; ++i) {
    buffers.push_back(std::make_unique<Buffers<float>>(options.ranks, 2000, true, i));
    results.push_back(by_hosts(options, *buffers[i], ReduceOp::sum, 0));
    for (auto& order : orders) {
      order.insert(order.begin() + static_cast<std::ptrdiff_t>(random.below(i + 1)), i);
    }
  }
  Calls made;
  for (std::uint32_t at = 0; at < calls; ++at) {
    for (Rank rank = 0; rank < options.ranks; ++rank) {
      const std::uint32_t i = orders[rank][at];
      AllreduceArguments arguments = hosted(*buffers[i], rank);
      arguments.tag = 1000 + i;
      made.push_back(job.submit(rank, arguments));
    }
  }
  ASSERT_TRUE(job.finish());
  for (const auto& one : made) ASSERT_EQ(one->report.status, Status::complete);
  for (std::uint32_t i = 0; i < calls; ++i) {
    for (Rank rank = 0; rank < options.ranks; ++rank) {
      ASSERT_TRUE(same_bits(buffers[i]->outputs[rank], results[i])) << i;
    }
  }
}

TEST(HostedCallTest, calls_of_many_tags__match_in_any_order) {
  for (const auto& options : {one_host(3), several_hosts({0, 1, 0, 1}), several_hosts({0, 1, 0})}) {
    expect_any_order(options, hosts::kCommonLines);
  }
}

TEST(HostedCallTest, more_calls_than_lines__match_in_one_order) {
  constexpr std::uint32_t kCalls = 2 * hosts::kCommonLines + 5;
  for (const auto& options : {one_host(3), several_hosts({0, 1, 0})}) {
    SimulatedJob job(options);
    std::vector<std::unique_ptr<Buffers<float>>> buffers;
    Calls calls;
    for (std::uint32_t i = 0; i < kCalls; ++i) {
      buffers.push_back(std::make_unique<Buffers<float>>(3, 100, true, i));
      for (Rank rank = 0; rank < 3; ++rank) {
        AllreduceArguments arguments = hosted(*buffers[i], rank);
        arguments.tag = 1000 + i;
        calls.push_back(job.submit(rank, arguments));
      }
    }
    ASSERT_TRUE(job.finish());
    for (const auto& one : calls)
      ASSERT_EQ(one->report.status, Status::complete)
          << one->report.tag << " " << one->report.detail;
  }
}

/// Ranks see each other on a line. A late lowest rank gives none, so the others blame it alone.
TEST(HostedCallTest, late_lowest_rank__is_blamed_alone) {
  SimulatedJob job(one_host(4));
  Buffers<float> buffers(4, 64, true);
  const auto arguments = [&](Rank rank) {
    AllreduceArguments call = hosted(buffers, rank);
    call.tag = 1000;
    call.deadline = 200ms;
    return call;
  };
  const Calls calls = job.submit_all(arguments, {0});
  ASSERT_TRUE(job.finish());
  for (const auto& one : calls) {
    EXPECT_EQ(one->report.status, Status::peer_late) << one->report.detail;
    EXPECT_THAT(one->report.late_ranks, ElementsAre(0));
  }
  const auto late = job.submit(0, arguments(0));
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(late->report.status, Status::aborted);
  for (std::uint32_t i = 0; i < hosts::kCommonLines + 5; ++i) {
    const Calls next = job.submit_all(arguments);
    ASSERT_TRUE(job.finish());
    for (const auto& one : next)
      ASSERT_EQ(one->report.status, Status::complete) << i << " " << one->report.detail;
  }
}

/// A rank forgets a tag when all ranks have passed its calls, whether packets say so or not.
TEST(HostedCallTest, tags_that_are_used_once__are_forgotten) {
  for (const auto& options : {one_host(3), several_hosts({0, 0, 0, 1}), several_hosts({0, 1})}) {
    SimulatedJob job(options);
    Buffers<float> buffers(options.ranks, 64, true);
    for (std::uint32_t i = 0; i < 500; ++i) {
      const Calls calls = job.submit_all([&](Rank rank) {
        AllreduceArguments call = hosted(buffers, rank);
        call.tag = 1000 + i;
        return call;
      });
      ASSERT_TRUE(job.finish());
      job.run_for(1ms);
    }
    job.run_for(2s);
    for (Rank rank = 0; rank < options.ranks; ++rank) {
      EXPECT_LE(job[rank].endpoint().memory().active_tags, 20u) << rank;
    }
  }
}

/// Calls that end before the lowest rank begins them give their lines back.
TEST(HostedCallTest, refused_calls_of_many_tags__hold_no_line) {
  for (const Rank refusing : {Rank{0}, Rank{2}}) {
    SimulatedJob job(several_hosts({0, 0, 0, 1}));
    Buffers<float> buffers(4, 64, true);
    for (std::uint32_t i = 0; i < 3 * hosts::kCommonLines; ++i) {
      const Calls calls = job.submit_all([&](Rank rank) {
        AllreduceArguments call = hosted(buffers, rank);
        call.tag = 1000 + i;
        if (rank == refusing && i % 2 == 0) call.refusal = "no gradient";
        return call;
      });
      ASSERT_TRUE(job.finish());
      const auto expected = i % 2 == 0 ? Status::aborted : Status::complete;
      for (const auto& one : calls) ASSERT_EQ(one->report.status, expected) << i;
    }
  }
}

TEST(HostedCallTest, bounded_calls__run_over_the_network) {
  SimulatedJob job(one_host(2));
  Buffers<float> buffers(2, 5000, true);
  const Calls calls =
      job.submit_all([&](Rank rank) { return buffers.bounded_arguments(rank, ReduceOp::sum); });
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(calls[0]->report.algorithm, Algorithm::tar);
  EXPECT_EQ(calls[0]->report.mode, Mode::bounded);
}

// A process of the same user may write into the memory. Results may be wrong then, but nothing
// reads or writes outside, and every call ends.
TEST(HostedCallTest, garbage_in_the_memory__costs_the_result_at_most) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    SimulatedJob job(one_host(3));
    Buffers<float> buffers(3, seed % 2 == 0 ? 64 : 30'000, true);
    const std::span<std::byte> memory = job.hosts().bytes();
    const auto spoil = [&] {
      const std::size_t boards = memory.size() / 64;  // the boards come first
      for (int i = 0; i < 200; ++i) {
        memory[random.below(random.chance(0.8) ? boards : memory.size())] =
            static_cast<std::byte>(random.below(256));
      }
    };
    for (int round = 0; round < 3; ++round) {
      if (random.chance(0.7)) spoil();
      Calls calls = job.submit_all(
          [&](Rank rank) {
            AllreduceArguments arguments = hosted(buffers, rank);
            arguments.deadline = 100ms;
            return arguments;
          },
          {2});
      job.run_for(1ms);
      spoil();
      AllreduceArguments last = hosted(buffers, 2);
      last.deadline = 100ms;
      calls.push_back(job.submit(2, last));
      ASSERT_TRUE(job.finish());
    }
  }
}

}  // namespace
}  // namespace tarpon::hosted_call_test
