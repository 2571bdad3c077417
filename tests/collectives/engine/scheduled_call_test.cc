// Calls that run schedules, in jobs: results bit by bit, faults, ranks that differ, die or hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>

#include "bpf/wire.h"
#include "tests/support/exact_kinds.h"
#include "tests/support/sanitized.h"
#include "tests/support/simulated_job.h"
#include "tools/reference/replay.h"
#include "transport/ports/forwarding_port.h"

namespace tarpon::scheduled_call_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::Buffers;
using testing_support::ExactKind;
using testing_support::first_if_sanitized;
using testing_support::kExactKinds;
using testing_support::kSanitizer;
using testing_support::same_bits;
using testing_support::SimulatedJob;
using testing_support::SimulatedJobOptions;
using Calls = std::vector<std::shared_ptr<PendingCall>>;

constexpr FaultOptions kFaulty{.loss = 0.1, .duplicate = 0.1, .reorder = 0.2, .corrupt = 0.02};

template <typename T>
std::vector<T> expected(const Buffers<T>& buffers, ExactKind kind, ReduceOp function,
                        std::uint32_t number) {
  const auto world = static_cast<std::uint32_t>(buffers.inputs.size());
  const std::uint64_t count = buffers.inputs[0].size();
  std::vector<T> result(count);
  AllreduceArguments call;
  call.count = count;
  call.type = data_type_of<T>();
  kind.ask(call, world);
  for (const auto& program : addition_programs(call, world, number)) {
    for (std::uint64_t i = program.elements.first; i < program.elements.end(); ++i) {
      result[i] =
          replay<T>(program, world, function, [&](Rank rank) { return buffers.inputs[rank][i]; });
    }
  }
  return result;
}

AllreduceArguments sum_by(ExactKind kind, Buffers<float>& buffers, Rank rank) {
  AllreduceArguments arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
  kind.ask(arguments, static_cast<std::uint32_t>(buffers.inputs.size()));
  return arguments;
}

template <typename T>
Calls submit_all(SimulatedJob& job, Buffers<T>& buffers, ExactKind kind, ReduceOp function) {
  Calls calls;
  for (Rank rank = 0; rank < job.ranks(); ++rank) {
    AllreduceArguments arguments = buffers.arguments(rank, data_type_of<T>(), function);
    kind.ask(arguments, static_cast<std::uint32_t>(buffers.inputs.size()));
    calls.push_back(job.submit(rank, arguments));
  }
  return calls;
}

template <typename T>
void expect_exact(const SimulatedJobOptions& options, std::uint64_t count, ExactKind kind,
                  ReduceOp function, bool in_place) {
  if (!kind.runs_on(options.ranks)) return;
  SCOPED_TRACE(kind.text() + ", " + std::string(name(function)) + " of " + std::to_string(count) +
               " on " + std::to_string(options.ranks) + " ranks");
  SimulatedJob job(options);
  for (std::uint32_t number = 0; number < 2; ++number) {
    Buffers<T> buffers(options.ranks, count, in_place, number + 1);
    const Buffers<T> before = buffers;
    const Calls calls = submit_all(job, buffers, kind, function);
    ASSERT_TRUE(job.finish());
    const std::vector<T> result = expected(buffers, kind, function, number);
    for (Rank rank = 0; rank < options.ranks; ++rank) {
      const Report& report = calls[rank]->report;
      ASSERT_EQ(report.status, Status::complete) << report.detail;
      EXPECT_EQ(report.operation, number);
      EXPECT_TRUE(same_bits(buffers.outputs[rank], result)) << "rank " << rank;
      if (in_place) continue;
      EXPECT_TRUE(same_bits(buffers.inputs[rank], before.inputs[rank])) << "rank " << rank;
    }
  }
}

template <typename T>
class ScheduledTypesTest : public testing::Test {};
using Elements =
    testing::Types<float, double, std::int32_t, std::int64_t, Float16, Bfloat16, std::int8_t,
                   std::uint8_t, std::int16_t, std::uint16_t, std::uint32_t, std::uint64_t>;
TYPED_TEST_SUITE(ScheduledTypesTest, Elements);

TYPED_TEST(ScheduledTypesTest, exact__every_function_in_the_order_of_the_schedule) {
  for (const ExactKind& kind : kExactKinds) {
    for (std::size_t op = 0; op < kReduceOps; ++op) {
      const auto function = static_cast<ReduceOp>(op);
      if (function == ReduceOp::custom || !is_defined(data_type_of<TypeParam>(), function))
        continue;
      for (const std::uint16_t ranks : first_if_sanitized<std::uint16_t>(2, {3, 8, 2, 5})) {
        for (const std::uint64_t count : first_if_sanitized<std::uint64_t>(2, {33, 5001, 1})) {
          expect_exact<TypeParam>({.ranks = ranks}, count, kind, function, count == 33);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TYPED_TEST(ScheduledTypesTest, exact__under_faults_the_same_bits) {
  for (const ExactKind& kind : kExactKinds) {
    for (const bool in_place : {false, true}) {
      for (const std::uint16_t ranks : std::initializer_list<std::uint16_t>{2, 4, 7}) {
        expect_exact<TypeParam>({.ranks = ranks, .faults = kFaulty}, 5000, kind, ReduceOp::avg,
                                in_place);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(ScheduledCallTest, exact__any_number_of_ranks) {
  for (const ExactKind& kind : kExactKinds) {
    for (std::uint16_t ranks = 2; ranks <= 20; ranks += kSanitizer ? 3 : 1) {
      expect_exact<float>({.ranks = ranks, .faults = {.loss = 0.02}}, 3001, kind, ReduceOp::sum,
                          ranks % 2 == 0);
      if (testing::Test::HasFailure()) return;
    }
  }
}

/// Counts the messages and the DATA packets that a rank receives.
class CountingPort : public ForwardingPort {
 public:
  struct Received {
    std::map<std::uint32_t, std::set<Rank>> senders;  // by stage
    std::uint64_t packets = 0;
  };

  CountingPort(std::unique_ptr<Port> inner, Received& received)
      : ForwardingPort(std::move(inner)), received_(received) {}

  std::span<const RxPacket> receive(Time now) override {
    const auto packets = ForwardingPort::receive(now);
    for (const RxPacket& packet : packets) {
      tarpon_header header;
      std::memcpy(&header, packet.data, sizeof header);
      if (header.type != TARPON_DATA) continue;
      received_.senders[tarpon_stage(&header)].insert(header.sender);
      ++received_.packets;
    }
    return packets;
  }

 private:
  Received& received_;
};

/// What each of 8 ranks receives in an exact sum of 64 slots.
std::vector<CountingPort::Received> received_in_sum(Algorithm algorithm, std::uint32_t group_size) {
  constexpr std::uint32_t kSlot = 512;
  std::vector<CountingPort::Received> received(8);
  SimulatedJob job({.ranks = 8, .slot_bytes = kSlot},
                   [&](Rank rank, std::unique_ptr<Port> inner) -> std::unique_ptr<Port> {
                     return std::make_unique<CountingPort>(std::move(inner), received[rank]);
                   });
  Buffers<float> buffers(8, 64 * kSlot / sizeof(float), false, 1);
  for (Rank rank = 0; rank < 8; ++rank) {
    AllreduceArguments arguments = sum_by(algorithm, buffers, rank);
    arguments.group_size = group_size;
    job.submit(rank, arguments);
  }
  EXPECT_TRUE(job.finish());
  return received;
}

/// OptiReduce counts 2 (ranks in a group - 1) messages in groups, and one from each group to each
/// other one. Here groups scatter and gather, so that there are two. The bytes are those of TAR.
TEST(ScheduledCallTest, two_level_tar__few_messages_and_the_bytes_of_tar) {
  using Senders = std::vector<std::size_t>;  // by stage
  for (const auto& [algorithm, group_size, senders] :
       {std::tuple(Algorithm::two_level_tar, 4u, Senders{3, 1, 1, 3}),
        std::tuple(Algorithm::two_level_tar, 2u, Senders{1, 3, 3, 1}),
        std::tuple(Algorithm::tar, 0u, Senders{7, 7})}) {
    for (const CountingPort::Received& received : received_in_sum(algorithm, group_size)) {
      Senders counted;
      for (const auto& [stage, ranks] : received.senders) counted.push_back(ranks.size());
      EXPECT_EQ(counted, senders) << name(algorithm) << group_size;
      EXPECT_EQ(received.packets, 2u * 64 * 7 / 8);
    }
  }
}

/// Beyond what is copied for late peers: they confirm it.
TEST(ScheduledCallTest, exact__large_buckets_under_faults) {
  for (const ExactKind& kind : kExactKinds) {
    for (const std::uint64_t seed : first_if_sanitized<std::uint64_t>(1, {2, 1, 3})) {
      expect_exact<float>({.ranks = kind.ranks_up_to(5), .faults = kFaulty, .seed = seed}, 100'003,
                          kind, ReduceOp::sum, seed == 2);
      if (testing::Test::HasFailure()) return;
    }
  }
}

/// In 4 chunks a rank, and its bucket kept at the late rank.
TEST(ScheduledCallTest, exact__late_rank_of_large_buckets_of_half_precision_in_place) {
  for (const std::uint16_t ranks : std::initializer_list<std::uint16_t>{2, 4}) {
    expect_exact<Float16>({.ranks = ranks, .faults = kFaulty}, 400'003, Algorithm::late_rank,
                          ReduceOp::avg, true);
  }
}

/// Element i holds zeros of both signs, or numbers, or NaN of the ranks whose bit is set in i / 3.
/// The NaN differ by rank.
template <typename T>
T awkward(Rank rank, std::size_t i) {
  const bool chosen = (i / 3 >> rank & 1) != 0;
  if (i % 3 == 0) return static_cast<T>(chosen ? -0.0f : 0.0f);
  if (i % 3 == 1 || !chosen) return static_cast<T>(static_cast<float>((i * 7 + rank * 5) % 11));
  T nan{};
  if constexpr (kIsHalf<T>) {
    const int infinity = ((1 << (15 - T::kMantissa)) - 1) << T::kMantissa;
    nan = T::from_bits(static_cast<std::uint16_t>((rank % 2) << 15 | infinity | (1 + rank)));
  } else {
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    const Bits sign = Bits{rank % 2u} << (8 * sizeof(Bits) - 1);
    const T infinity = std::numeric_limits<T>::infinity();
    const Bits bits = sign | (std::bit_cast<Bits>(infinity) + 1 + rank);
    std::memcpy(&nan, &bits, sizeof nan);
  }
  return nan;
}

/// By the definition, whatever the order of the ranks.
template <typename T>
T lowest_or_highest(const Buffers<T>& buffers, std::size_t i, ReduceOp function) {
  using Number = SumOf<T>;
  auto result = static_cast<Number>(buffers.inputs[0][i]);
  for (const std::vector<T>& input : buffers.inputs) {
    const auto next = static_cast<Number>(input[i]);
    if (std::isnan(next)) return static_cast<T>(std::numeric_limits<Number>::quiet_NaN());
    const bool below =
        next < result || (next == result && std::signbit(next) > std::signbit(result));
    const bool above =
        next > result || (next == result && std::signbit(next) < std::signbit(result));
    if (function == ReduceOp::min ? below : above) result = next;
  }
  return static_cast<T>(result);
}

template <typename T>
void expect_order(ExactKind kind, ReduceOp function, std::uint16_t ranks, std::uint64_t count,
                  bool in_place) {
  SCOPED_TRACE(kind.text() + ", " + std::string(name(function)) + " of " + std::to_string(count) +
               " on " + std::to_string(ranks) + " ranks");
  SimulatedJob job({.ranks = ranks, .faults = {.loss = 0.05, .reorder = 0.2}});
  for (std::uint32_t number = 0; number < ranks; ++number) {
    Buffers<T> buffers(ranks, count, in_place);
    for (Rank rank = 0; rank < ranks; ++rank) {
      for (std::size_t i = 0; i < count; ++i) buffers.inputs[rank][i] = awkward<T>(rank, i);
      if (in_place) buffers.outputs[rank] = buffers.inputs[rank];
    }
    std::vector<T> result(count);
    for (std::size_t i = 0; i < count; ++i) result[i] = lowest_or_highest(buffers, i, function);
    submit_all(job, buffers, kind, function);
    ASSERT_TRUE(job.finish());
    ASSERT_TRUE(same_bits(result, expected(buffers, kind, function, number)));
    for (Rank rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(same_bits(buffers.outputs[rank], result)) << "call " << number << " at " << rank;
    }
  }
}

template <typename T>
class ScheduledFloatsTest : public testing::Test {};
using Floats = testing::Types<float, double, Float16, Bfloat16>;
TYPED_TEST_SUITE(ScheduledFloatsTest, Floats);

TYPED_TEST(ScheduledFloatsTest, min_and_max__of_nan_and_zeros_have_the_same_bits_in_any_order) {
  for (const ExactKind& kind : kExactKinds) {
    for (const ReduceOp function : {ReduceOp::min, ReduceOp::max}) {
      for (const std::uint16_t ranks : first_if_sanitized<std::uint16_t>(2, {3, 8, 2, 5})) {
        if (!kind.runs_on(ranks)) continue;
        for (const std::uint64_t count : first_if_sanitized<std::uint64_t>(1, {3001, 9, 1})) {
          expect_order<TypeParam>(kind, function, ranks, count, count != 3001);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(ScheduledCallTest, custom__the_callers_function) {
  for (const ExactKind& kind : kExactKinds) {
    const std::uint16_t ranks = kind.ranks_up_to(5);
    SimulatedJob job({.ranks = ranks});
    Buffers<std::int32_t> buffers(ranks, 1000, false);
    Calls calls;
    for (Rank rank = 0; rank < ranks; ++rank) {
      AllreduceArguments arguments = buffers.arguments(rank, DataType::int32, ReduceOp::custom);
      kind.ask(arguments, static_cast<std::uint32_t>(buffers.inputs.size()));
      arguments.custom.combine = [](void* out, const void* a, const void* b, std::size_t elements,
                                    void*) noexcept {
        for (std::size_t i = 0; i < elements; ++i) {
          std::int32_t x, y;
          std::memcpy(&x, static_cast<const std::byte*>(a) + i * sizeof x, sizeof x);
          std::memcpy(&y, static_cast<const std::byte*>(b) + i * sizeof y, sizeof y);
          x += y;
          std::memcpy(static_cast<std::byte*>(out) + i * sizeof x, &x, sizeof x);
        }
      };
      calls.push_back(job.submit(rank, arguments));
    }
    ASSERT_TRUE(job.finish());
    for (Rank rank = 0; rank < ranks; ++rank) {
      EXPECT_TRUE(same_bits(buffers.outputs[rank], expected(buffers, kind, ReduceOp::sum, 0)));
    }
  }
}

TEST(ScheduledCallTest, zero_elements__every_rank_has_to_make_the_call) {
  for (const ExactKind& kind : kExactKinds) {
    const std::uint16_t ranks = kind.ranks_up_to(6);
    const auto last = static_cast<Rank>(ranks - 1);
    SimulatedJob job({.ranks = ranks});
    Buffers<float> buffers(ranks, 0, false);
    Calls calls;
    for (Rank rank = 0; rank < last; ++rank) {
      AllreduceArguments arguments = sum_by(kind, buffers, rank);
      calls.push_back(job.submit(rank, arguments));
    }
    job.run_for(1s);
    for (const auto& call : calls) EXPECT_FALSE(call->done);
    AllreduceArguments arguments = sum_by(kind, buffers, last);
    calls.push_back(job.submit(last, arguments));
    ASSERT_TRUE(job.finish());
    for (const auto& call : calls) EXPECT_EQ(call->report.status, Status::complete);
  }
}

TEST(ScheduledCallTest, time__a_lost_confirmation_is_asked_for) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SimulatedJob job({.ranks = 4, .faults = {.loss = 0.003}, .seed = seed});
    Buffers<float> buffers(4, 50'000, false);
    const Calls calls = submit_all(job, buffers, Algorithm::circulant, ReduceOp::sum);
    ASSERT_TRUE(job.finish());
    for (const auto& call : calls) {
      EXPECT_EQ(call->report.status, Status::complete);
      EXPECT_LT(call->report.elapsed, 50ms) << "seed " << seed;  // news of ends takes 100 ms
    }
  }
}

/// Where all ranks send one piece, small ones are kept; between 64 and 128 KiB the bucket is large
/// and its shards are not.
TEST(ScheduledCallTest, exact__sizes_around_the_limit_of_what_is_kept) {
  for (const ExactKind& kind : kExactKinds) {
    for (const std::uint16_t ranks : std::initializer_list<std::uint16_t>{2, 3, 4}) {
      for (const std::uint64_t count :
           first_if_sanitized<std::uint64_t>(2, {16'385, 40'000, 16'384, 25'000, 50'000})) {
        expect_exact<float>({.ranks = ranks, .faults = {.loss = 0.05}, .seed = count}, count, kind,
                            ReduceOp::sum, false);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

/// Rank 0 has its result, and rank 1 hangs before it confirms the piece of rank 0.
TEST(ScheduledCallTest, hung__a_large_piece_is_copied_for_a_rank_that_does_not_confirm) {
  for (const auto& [kind, sent] : {std::pair{ExactKind(Algorithm::tar), Duration(15ms)},
                                   std::pair{ExactKind(Algorithm::one_shot), Duration(22ms)}}) {
    SimulatedJob job({.ranks = 3, .max_bytes_per_second = 1e8});
    Buffers<float> buffers(3, 300'000, false);
    const Calls calls = submit_all(job, buffers, kind, ReduceOp::sum);
    job.run_for(sent);
    EXPECT_FALSE(calls[0]->done) << kind.text();
    job.stop(1);
    job.run_for(100ms);
    EXPECT_TRUE(calls[0]->done) << kind.text();
    EXPECT_GT(job[0].endpoint().memory().retained_bytes, 0u);
    EXPECT_FALSE(calls[1]->done);
    job.resume(1);
    ASSERT_TRUE(job.finish());
    for (Rank rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(calls[rank]->report.status, Status::complete) << calls[rank]->report.detail;
      EXPECT_TRUE(same_bits(buffers.outputs[rank], expected(buffers, kind, ReduceOp::sum, 0)));
    }
  }
}

/// The same where there is no copy: rank 0 waits for the confirmation.
TEST(ScheduledCallTest, hung__a_rank_that_does_not_confirm_is_found_silent) {
  SimulatedJob job({.ranks = 5, .max_bytes_per_second = 1e8});
  Buffers<float> buffers(5, 300'000, false);
  Calls calls;
  for (Rank rank = 0; rank < 5; ++rank) {
    AllreduceArguments arguments = sum_by(Algorithm::ring, buffers, rank);
    arguments.deadline = 3s;
    calls.push_back(job.submit(rank, arguments));
  }
  job.run_for(17ms);
  job.stop(1);
  job.run_for(2s);
  EXPECT_FALSE(calls[0]->done);
  EXPECT_NE(job[0].endpoint().peers().silent() & 0b010u, 0u);
  EXPECT_NE(job[0].awaited() & 0b010u, 0u);
  job.run_for(2s);
  EXPECT_EQ(calls[0]->report.status, Status::complete);
  for (const Rank rank : {Rank{2}, Rank{3}, Rank{4}}) {
    EXPECT_TRUE(calls[rank]->done);
    const Report& report = calls[rank]->report;
    if (report.status == Status::complete) continue;
    EXPECT_THAT(report.late_ranks, ElementsAre(1));
  }
  job.resume(1);
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(calls[1]->report.status, Status::complete) << calls[1]->report.detail;
}

TEST(ScheduledCallTest, calibration__calls_that_are_to_be_bounded_run_tar_from_the_first) {
  SimulatedJob job({.ranks = 2});
  for (std::uint32_t number = 0; number < 22; ++number) {
    Buffers<float> buffers(2, 1000, false);
    Calls calls;
    for (Rank rank = 0; rank < 2; ++rank) {
      AllreduceArguments arguments = sum_by(Algorithm::circulant, buffers, rank);
      arguments.mode = Mode::bounded;
      arguments.bound_rule = BoundRule::optireduce;
      calls.push_back(job.submit(rank, arguments));
    }
    ASSERT_TRUE(job.finish());
    EXPECT_EQ(calls[0]->report.algorithm, Algorithm::tar);
    if (number < 20) continue;
    EXPECT_EQ(calls[0]->report.mode, Mode::bounded);
    EXPECT_LT(calls[0]->report.bound, 1s);  // learnt
  }
}

TEST(ScheduledCallTest, mismatch__another_algorithm_is_named) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, 1000, false);
  Calls calls;
  for (Rank rank = 0; rank < 3; ++rank) {
    AllreduceArguments arguments = buffers.arguments(rank, DataType::float32, ReduceOp::sum);
    if (rank != 1) arguments.algorithm = Algorithm::circulant;
    calls.push_back(job.submit(rank, arguments));
  }
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::mismatch);
    EXPECT_THAT(call->report.blamed, ElementsAre(1));
  }
  EXPECT_THAT(calls[0]->report.detail, HasSubstr("algorithm tar instead of circulant"));
}

TEST(ScheduledCallTest, mismatch__other_shares_are_named) {
  SimulatedJob job({.ranks = 4});
  Buffers<float> buffers(4, 1000, false);
  Calls calls;
  for (Rank rank = 0; rank < 4; ++rank) {
    calls.push_back(job.submit(rank, sum_by({Algorithm::tar, rank == 2}, buffers, rank)));
  }
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) EXPECT_EQ(call->report.status, Status::mismatch);
  EXPECT_THAT(calls[0]->report.detail, HasSubstr("rank 2 differs: hash of the shares "));
}

TEST(ScheduledCallTest, refusal__an_unknown_algorithm) {
  SimulatedJob job({.ranks = 2});
  Buffers<float> buffers(2, 10, false);
  AllreduceArguments arguments = buffers.arguments(0, DataType::float32, ReduceOp::sum);
  arguments.algorithm = static_cast<Algorithm>(9);
  const auto call = job.submit(0, arguments);
  EXPECT_TRUE(call->done);
  EXPECT_THAT(call->report.detail, HasSubstr("algorithm 9 is unknown"));
}

TEST(ScheduledCallTest, dead__every_rank_ends_and_blames_it) {
  for (const ExactKind& kind : kExactKinds) {
    SimulatedJob job({.ranks = 8, .max_bytes_per_second = 1e8});
    Buffers<float> buffers(8, 50'000, false);
    const Calls calls = submit_all(job, buffers, kind, ReduceOp::sum);
    job.run_for(500us);
    job.kill(3);
    job.tell_dead(3);
    ASSERT_TRUE(job.finish(1s));
    for (Rank rank = 0; rank < 8; ++rank) {
      if (rank == 3) continue;
      EXPECT_EQ(calls[rank]->report.status, Status::peer_dead);
      EXPECT_THAT(calls[rank]->report.blamed, ElementsAre(3));
    }
  }
}

/// Rank 3 has begun and hangs. Others wait for ranks that wait for it.
TEST(ScheduledCallTest, hung__the_rank_is_blamed_by_all_at_the_deadline) {
  for (const ExactKind& kind : kExactKinds) {
    SimulatedJob job({.ranks = 8, .max_bytes_per_second = 1e8});
    Buffers<float> buffers(8, 50'000, false);
    Calls calls;
    for (Rank rank = 0; rank < 8; ++rank) {
      AllreduceArguments arguments = sum_by(kind, buffers, rank);
      arguments.deadline = 2s;
      calls.push_back(job.submit(rank, arguments));
    }
    job.run_for(500us);
    job.stop(3);
    ASSERT_FALSE(job.finish(3s));
    for (Rank rank = 0; rank < 8; ++rank) {
      if (rank == 3) continue;
      EXPECT_EQ(calls[rank]->report.status, Status::peer_late) << calls[rank]->report.detail;
      EXPECT_THAT(calls[rank]->report.late_ranks, ElementsAre(3)) << kind.text() << rank;
    }
  }
}

TEST(ScheduledCallTest, late__a_rank_that_never_begins_is_blamed_by_all) {
  for (const ExactKind& kind : kExactKinds) {
    const std::uint16_t ranks = kind.ranks_up_to(6);
    const auto last = static_cast<Rank>(ranks - 1);
    SimulatedJob job({.ranks = ranks});
    Buffers<float> buffers(ranks, 5000, false);
    Calls calls;
    for (Rank rank = 0; rank < last; ++rank) {
      AllreduceArguments arguments = sum_by(kind, buffers, rank);
      arguments.deadline = 1s + 10ms * rank;
      calls.push_back(job.submit(rank, arguments));
    }
    ASSERT_TRUE(job.finish());
    for (const auto& call : calls) {
      EXPECT_EQ(call->report.status, Status::peer_late);
      EXPECT_THAT(call->report.late_ranks, ElementsAre(last)) << kind.text();
    }
  }
}

TEST(ScheduledCallTest, bounded__calls_run_tar) {
  SimulatedJob job({.ranks = 3});
  Buffers<float> buffers(3, 5000, false);
  Calls calls;
  for (Rank rank = 0; rank < 3; ++rank) {
    AllreduceArguments arguments = sum_by(Algorithm::circulant, buffers, rank);
    arguments.mode = Mode::bounded;
    arguments.bound = 1s;
    calls.push_back(job.submit(rank, arguments));
  }
  ASSERT_TRUE(job.finish());
  for (const auto& call : calls) {
    EXPECT_EQ(call->report.status, Status::complete);
    EXPECT_EQ(call->report.mode, Mode::bounded);
  }
}

}  // namespace
}  // namespace tarpon::scheduled_call_test
