// The C interface: structs that grow, pointers and numbers that make no sense, refused calls that
// keep the numbers of their tag, several threads.
#include "collectives/tarpon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "tests/support/c_pair.h"

namespace {

using namespace tarpon::testing_support;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(CApi, allreduce__by_each_algorithm) {
  for (const std::uint32_t algorithm :
       {TARPON_ALGORITHM_DEFAULT, TARPON_TAR, TARPON_CIRCULANT, TARPON_ONE_SHOT, TARPON_RING,
        TARPON_RECURSIVE_DOUBLING, TARPON_2D_TAR, TARPON_LATE_RANK}) {
    expect_runs_by(algorithm);
  }
  expect_aborted_by_rank_0(0, [this] {
    float value = 1;
    tarpon_arguments call = call_on(&value, 1);
    call.algorithm = 77;
    EXPECT_EQ(tarpon_allreduce(ranks_[0], &call, nullptr), TARPON_ERROR_NO_RESULT);
    EXPECT_THAT(tarpon_error_text(), HasSubstr("algorithm 77 is unknown"));
  });
}

TEST_F(CApi, allreduce__with_learnt_shares) {
  on_both([&](std::size_t rank) {
    std::vector<float> data(300'000, static_cast<float>(rank + 1));
    tarpon_arguments call = call_on(data.data(), data.size());
    call.learn_shares = 1;
    EXPECT_EQ(tarpon_allreduce(ranks_[rank], &call, nullptr), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(data.back(), 3.0f);
  });
  expect_aborted_by_rank_0(0, [&] {
    float value = 1;
    tarpon_arguments call = call_on(&value, 1);
    call.flags = 2;
    EXPECT_EQ(tarpon_allreduce(ranks_[0], &call, nullptr), TARPON_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tarpon_error_text(), HasSubstr("flags is 2: give TARPON_FOLLOW, or 0"));
  });
}

TEST_F(CApi, allreduce__with_shares) {
  const std::array<double, 2> weights{0, 3};
  on_both([&](std::size_t rank) {
    std::array<float, 5000> data{};
    data.fill(static_cast<float>(rank + 1));
    tarpon_arguments call = call_on(data.data(), data.size());
    call.shares = weights.data();
    call.share_count = 2;
    tarpon_report* report = nullptr;
    EXPECT_EQ(tarpon_allreduce(ranks_[rank], &call, &report), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(data[4999], 3.0f);
    // Two ranks exchange a bucket, whatever their shares are.
    EXPECT_EQ(summary_of(report).bytes_sent, sizeof data);
    tarpon_report_free(report);
  });
  expect_aborted_by_rank_0(0, [&] {
    float value = 1;
    tarpon_arguments call = call_on(&value, 1);
    call.shares = weights.data();
    call.share_count = 1;
    EXPECT_EQ(tarpon_allreduce(ranks_[0], &call, nullptr), TARPON_ERROR_NO_RESULT);
    EXPECT_THAT(tarpon_error_text(), HasSubstr("shares need 1 to 64 weights"));
  });
}

/// 1 and 2 as elements of `type`.
std::vector<std::byte> element(std::uint32_t type, bool two) {
  const auto bytes_of = [](auto value) {
    std::vector<std::byte> bytes(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  };
  switch (type) {
    case TARPON_FLOAT32:
      return bytes_of(two ? 2.0f : 1.0f);
    case TARPON_FLOAT64:
      return bytes_of(two ? 2.0 : 1.0);
    case TARPON_FLOAT16:
      return bytes_of(std::uint16_t{two ? std::uint16_t{0x4000} : std::uint16_t{0x3c00}});
    case TARPON_BFLOAT16:
      return bytes_of(std::uint16_t{two ? std::uint16_t{0x4000} : std::uint16_t{0x3f80}});
    case TARPON_INT8:
    case TARPON_UINT8:
      return bytes_of(static_cast<std::uint8_t>(two ? 2 : 1));
    case TARPON_INT16:
    case TARPON_UINT16:
      return bytes_of(static_cast<std::uint16_t>(two ? 2 : 1));
    case TARPON_INT32:
    case TARPON_UINT32:
      return bytes_of(static_cast<std::uint32_t>(two ? 2 : 1));
    default:
      return bytes_of(static_cast<std::uint64_t>(two ? 2 : 1));
  }
}

TEST_F(CApi, allreduce__every_type) {
  for (std::uint32_t type = 0; type <= TARPON_UINT64; ++type) {
    on_both([&](std::size_t rank) {
      std::vector<std::byte> value = element(type, rank == 1);
      tarpon_arguments call = call_on(nullptr, 1);
      call.input = call.output = value.data();
      call.type = type;
      call.function = TARPON_MAX;
      ASSERT_EQ(tarpon_allreduce(ranks_[rank], &call, nullptr), TARPON_OK) << tarpon_error_text();
      EXPECT_EQ(value, element(type, true)) << type;
      value = element(type, false);
      call.input = call.output = value.data();
      call.function = TARPON_SUM;
      ASSERT_EQ(tarpon_allreduce(ranks_[rank], &call, nullptr), TARPON_OK) << tarpon_error_text();
      EXPECT_EQ(value, element(type, true)) << type;
    });
  }
}

/// Adds pairs of a number and a count; `context` counts the calls.
void add_pairs(void* out, const void* a, const void* b, std::size_t elements, void* context) {
  ++*static_cast<std::atomic<int>*>(context);
  for (std::size_t i = 0; i < elements; ++i) {
    std::uint64_t sum = 0;
    std::uint64_t other = 0;
    std::memcpy(&sum, static_cast<const std::byte*>(a) + 8 * i, 8);
    std::memcpy(&other, static_cast<const std::byte*>(b) + 8 * i, 8);
    sum += other;
    std::memcpy(static_cast<std::byte*>(out) + 8 * i, &sum, 8);
  }
}

TEST_F(CApi, allreduce__a_function_of_the_caller) {
  std::array<std::atomic<int>, 2> calls{};
  on_both([&](std::size_t rank) {
    std::array<std::uint64_t, 300> pairs{};
    pairs.fill((std::uint64_t{rank} << 32) + 1);
    tarpon_arguments call = call_on(nullptr, pairs.size());
    call.input = call.output = pairs.data();
    call.type = TARPON_UINT64;
    call.function = TARPON_CUSTOM;
    call.custom_id = 77;
    call.custom_combine = &add_pairs;
    call.custom_context = &calls[rank];
    ASSERT_EQ(tarpon_allreduce(ranks_[rank], &call, nullptr), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(pairs[299], (std::uint64_t{1} << 32) + 2);
    EXPECT_GT(calls[rank], 0);
    call.custom_id = static_cast<std::uint32_t>(rank);
    EXPECT_EQ(tarpon_allreduce(ranks_[rank], &call, nullptr), TARPON_ERROR_NO_RESULT);
    EXPECT_THAT(tarpon_error_text(), StartsWith("mismatch: "));
  });
}

TEST_F(CApi, wait__several_threads_wait_for_one_call) {
  on_both([&](std::size_t rank) {
    std::vector<float> data(1'000'000, 1.0f);
    tarpon_arguments arguments = call_on(data.data(), data.size());
    arguments.deadline_us = INT64_MAX;
    tarpon_call* call = nullptr;
    ASSERT_EQ(tarpon_allreduce_start(ranks_[rank], &arguments, &call), TARPON_OK);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] { EXPECT_EQ(tarpon_wait(call, nullptr), TARPON_OK); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(data[999'999], 2.0f);
    tarpon_call_free(call);
  });
}

TEST_F(CApi, call_free__the_call_goes_on) {
  std::array<std::vector<float>, 2> data{std::vector<float>(500'000, 1.0f),
                                         std::vector<float>(500'000, 1.0f)};
  on_both([&](std::size_t rank) {
    tarpon_arguments arguments = call_on(data[rank].data(), data[rank].size());
    tarpon_call* call = nullptr;
    ASSERT_EQ(tarpon_allreduce_start(ranks_[rank], &arguments, &call), TARPON_OK);
    tarpon_call_free(call);
  });
  // Up to 8 calls of a tag run at once: the ninth begins when the first has ended.
  for (std::uint32_t number = 1; number <= 8; ++number) expect_pairs(0, number);
  for (const std::vector<float>& one : data) EXPECT_EQ(one[499'999], 2.0f);
}

TEST_F(CApi, communicator_free__before_its_calls) {
  std::vector<float> data(1000, 1.0f);
  tarpon_arguments arguments = call_on(data.data(), data.size());
  tarpon_call* call = nullptr;
  ASSERT_EQ(tarpon_allreduce_start(ranks_[0], &arguments, &call), TARPON_OK);  // rank 1 never does
  tarpon_communicator_free(ranks_[0]);
  ranks_[0] = nullptr;
  int done = 0;
  EXPECT_EQ(tarpon_test(call, &done), TARPON_OK);
  EXPECT_EQ(done, 1);
  tarpon_report* report = nullptr;
  EXPECT_EQ(tarpon_wait(call, &report), TARPON_ERROR_NO_RESULT);
  EXPECT_EQ(summary_of(report).status, TARPON_STATUS_ABORTED);
  tarpon_report_free(report);
  tarpon_call_free(call);
}

TEST_F(CApi, allreduce__numbers_of_functions) {
  on_both([&](std::size_t rank) {
    auto value = static_cast<std::int64_t>(rank + 1);
    tarpon_arguments call = call_on(nullptr, 1);
    call.input = call.output = &value;
    call.type = TARPON_INT64;
    call.function = TARPON_MAX;
    ASSERT_EQ(tarpon_allreduce(ranks_[rank], &call, nullptr), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(value, 2);
    auto real = static_cast<double>(rank + 1);
    call.input = call.output = &real;
    call.type = TARPON_FLOAT64;
    call.function = TARPON_AVG;
    ASSERT_EQ(tarpon_allreduce(ranks_[rank], &call, nullptr), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(real, 1.5);
  });
}

TEST_F(CApi, start_test_wait__more_than_once) {
  on_both([&](std::size_t rank) {
    std::vector<float> data(10'000, 1);
    const tarpon_arguments arguments = call_on(data.data(), data.size());
    tarpon_call* call = nullptr;
    ASSERT_EQ(tarpon_allreduce_start(ranks_[rank], &arguments, &call), TARPON_OK);
    tarpon_report* report = nullptr;
    ASSERT_EQ(tarpon_wait(call, &report), TARPON_OK) << tarpon_error_text();
    int done = 0;
    EXPECT_EQ(tarpon_test(call, &done), TARPON_OK);
    EXPECT_EQ(done, 1);
    EXPECT_EQ(tarpon_wait(call, nullptr), TARPON_OK);
    EXPECT_EQ(data[9'999], 2.0f);
    EXPECT_THAT(tarpon_report_text(report), StartsWith("complete: operation 0 of tag 0"));
    tarpon_report_free(report);
    tarpon_call_free(call);
  });
}

TEST_F(CApi, arguments__of_an_older_and_a_newer_header) {
  on_both([&](std::size_t rank) {
    float value = static_cast<float>(rank);
    tarpon_arguments older = call_on(&value, 1);
    older.size = offsetof(tarpon_arguments, bound_us);
    older.bound_us = -5;  // beyond the size: not read
    EXPECT_EQ(tarpon_allreduce(ranks_[rank], &older, nullptr), TARPON_OK) << tarpon_error_text();
    Newer<tarpon_arguments> newer;
    newer.known = call_on(&value, 1);
    newer.known.size = sizeof newer;
    EXPECT_EQ(tarpon_allreduce(ranks_[rank], newer.get(), nullptr), TARPON_OK);
  });
  expect_pairs(0, 2);
}

TEST_F(CApi, refused_calls__take_their_number) {
  float value = 1;
  const auto refused_by_engine = [&](tarpon_arguments call, const char* line) {
    tarpon_report* report = nullptr;
    EXPECT_EQ(tarpon_allreduce(ranks_[0], &call, &report), TARPON_ERROR_NO_RESULT);
    EXPECT_THAT(tarpon_error_text(), HasSubstr(line));
    EXPECT_EQ(summary_of(report).status, TARPON_STATUS_ABORTED);
    EXPECT_EQ(summary_of(report).blamed, 1u);
    tarpon_report_free(report);
  };
  tarpon_arguments call = call_on(&value, 1, 5);
  std::uint32_t operation = 0;
  const auto check = [&](const std::function<void()>& refuse) {
    expect_aborted_by_rank_0(5, refuse);
    expect_pairs(5, ++operation);
    ++operation;
  };
  call.deadline_us = 0;
  check([&] { refused_by_engine(call, "deadline must be positive, not 0 us"); });
  call = call_on(&value, 1, 5);
  call.bound_us = -3;
  check([&] { refused_by_engine(call, "bound must be positive, not -3 us"); });
  call = call_on(&value, 1, 5);
  call.function = TARPON_CUSTOM;
  check([&] { refused_by_engine(call, "custom_combine of tarpon_arguments"); });
  call = call_on(nullptr, 1, 5);
  check([&] { refused_by_engine(call, "buffer is null"); });
  call = call_on(&value, 1, 5);
  for (const std::uint32_t number : {99u, 256u, 65536u}) {
    call.type = number;
    check([&] { refused_by_engine(call, "element type"); });
  }
  call = call_on(&value, 1, 5);
  call.function = 99;
  check([&] { refused_by_engine(call, "function"); });
  call = call_on(&value, 1, 5);
  call.mode = 99;
  check([&] { refused_by_engine(call, "mode"); });
  call = call_on(nullptr, 1, 5);
  call.refusal = "no memory for a copy";
  check([&] { refused_by_engine(call, "allreduce: no memory for a copy"); });
  Newer<tarpon_arguments> newer;
  newer.known = call_on(&value, 1, 5);
  newer.known.size = sizeof newer;
  newer.more[0] = 1;
  check([&] {
    tarpon_report* report = nullptr;
    EXPECT_EQ(tarpon_allreduce(ranks_[0], newer.get(), &report), TARPON_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tarpon_error_text(), HasSubstr("byte at offset"));
    EXPECT_THAT(tarpon_report_text(report), HasSubstr("byte at offset"));
    tarpon_report_free(report);
  });
  tarpon_call* handle = nullptr;
  check([&] {
    EXPECT_EQ(tarpon_allreduce_start(ranks_[0], newer.get(), &handle),
              TARPON_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(handle, nullptr);
  });
  call = call_on(&value, 1, 5);
  check([&] {
    EXPECT_EQ(tarpon_allreduce_start(ranks_[0], &call, nullptr), TARPON_ERROR_INVALID_ARGUMENT);
    EXPECT_STREQ(tarpon_error_text(), "tarpon_allreduce_start: call is NULL");
  });
}

TEST_F(CApi, calls_without_a_readable_tag__take_no_number) {
  tarpon_arguments call{};
  call.size = 12;
  for (int i = 0; i < 2; ++i) {
    tarpon_call* handle = nullptr;
    EXPECT_EQ(tarpon_allreduce(ranks_[0], &call, nullptr), TARPON_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(tarpon_allreduce_start(ranks_[0], &call, &handle), TARPON_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(tarpon_allreduce(ranks_[0], nullptr, nullptr), TARPON_ERROR_INVALID_ARGUMENT);
  }
  float value = 0;
  call = call_on(&value, 1, UINT32_MAX);
  EXPECT_EQ(tarpon_allreduce(ranks_[0], &call, nullptr), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(),
              HasSubstr("belongs to the library: give a tag below 3758096384"));
  expect_pairs(0, 0);
}

TEST_F(CApi, late_peer__is_named) {
  float value = 1;
  tarpon_arguments call = call_on(&value, 1);
  call.deadline_us = 100'000;
  tarpon_report* report = nullptr;
  EXPECT_EQ(tarpon_allreduce(ranks_[0], &call, &report), TARPON_ERROR_NO_RESULT);
  EXPECT_EQ(summary_of(report).status, TARPON_STATUS_PEER_LATE);
  EXPECT_EQ(summary_of(report).late_ranks, 2u);
  tarpon_loss loss{};
  loss.size = sizeof loss;
  EXPECT_EQ(tarpon_report_loss(report, &loss), TARPON_OK);
  EXPECT_EQ(loss.lost_fraction, 1);
  loss.reserved = 1;
  EXPECT_EQ(tarpon_report_loss(report, &loss), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tarpon_error_text(), "tarpon_loss: reserved is set: set it to 0");
  tarpon_report_free(report);
}

TEST_F(CApi, concurrency__threads_with_tags_of_their_own) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 50;
  std::atomic<int> good = 0;
  on_both([&](std::size_t rank) {
    std::vector<std::thread> threads;
    for (std::uint32_t tag = 0; tag < kThreads; ++tag) {
      threads.emplace_back([&, tag] {
        for (int i = 0; i < kCalls; ++i) {
          std::array<float, 500> data{};
          data.fill(static_cast<float>(tag + rank));
          const auto call = call_on(data.data(), data.size(), tag);
          tarpon_call* handle = nullptr;
          const bool waits = i % 2 == 0;
          int code = waits ? tarpon_allreduce(ranks_[rank], &call, nullptr)
                           : tarpon_allreduce_start(ranks_[rank], &call, &handle);
          if (!waits && code == TARPON_OK) code = tarpon_wait(handle, nullptr);
          tarpon_call_free(handle);
          if (code == TARPON_OK && data[499] == static_cast<float>(2 * tag + 1)) ++good;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_EQ(good, 2 * kThreads * kCalls);
}

}  // namespace
