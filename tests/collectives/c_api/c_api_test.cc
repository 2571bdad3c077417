// The C interface: structs that grow, pointers and numbers that make no sense, refused calls that
// keep the numbers of their tag, several threads.
#include "collectives/tarpon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kSecond = 1'000'000;

/// A struct of a program that was built with a newer header.
template <typename T>
struct Newer {
  T known{};
  std::uint64_t more[2]{};

  Newer() { known.size = sizeof(Newer); }
  T* get() { return reinterpret_cast<T*>(this); }
};

void on_both(const std::function<void(std::size_t)>& body) {
  std::thread other([&] { body(1); });
  body(0);
  other.join();
}

tarpon_arguments call_on(float* data, std::uint64_t count, std::uint32_t tag = 0) {
  tarpon_arguments call{};
  call.size = sizeof call;
  call.input = data;
  call.output = data;
  call.count = count;
  call.tag = tag;
  call.deadline_us = 10 * kSecond;
  return call;
}

tarpon_summary summary_of(const tarpon_report* report) {
  tarpon_summary summary{};
  summary.size = sizeof summary;
  EXPECT_EQ(tarpon_report_summary(report, &summary), TARPON_OK) << tarpon_error_text();
  return summary;
}

/// Two ranks in this process.
class CApi : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = testing::TempDir() + "tarpon-c-" + std::to_string(::getpid());
    const std::string meet = "file://" + name;
    on_both([&](std::size_t rank) {
      tarpon_options options{};
      options.size = sizeof options;
      options.rank = static_cast<std::uint32_t>(rank);
      options.world_size = 2;
      options.rendezvous = meet.c_str();
      options.mtu = 1500;
      EXPECT_EQ(tarpon_connect(&options, &ranks_[rank]), TARPON_OK) << tarpon_error_text();
    });
    ASSERT_TRUE(ranks_[0] != nullptr && ranks_[1] != nullptr);
  }

  void TearDown() override {
    on_both([&](std::size_t rank) {
      if (ranks_[rank] != nullptr) tarpon_close(ranks_[rank], 5 * kSecond);
      tarpon_communicator_free(ranks_[rank]);
      ranks_[rank] = nullptr;
    });
  }

  /// A good call of `tag` on both ranks, which is number `operation` of it.
  void expect_pairs(std::uint32_t tag, std::uint32_t operation) {
    on_both([&](std::size_t rank) {
      std::array<float, 100> data{};
      data.fill(static_cast<float>(rank + 1));
      const tarpon_arguments call = call_on(data.data(), data.size(), tag);
      tarpon_report* report = nullptr;
      EXPECT_EQ(tarpon_allreduce(ranks_[rank], &call, &report), TARPON_OK) << tarpon_error_text();
      EXPECT_EQ(summary_of(report).operation, operation) << tarpon_report_text(report);
      EXPECT_EQ(data[99], 3.0f);
      tarpon_report_free(report);
    });
  }

  /// A call of `algorithm` on both ranks.
  void expect_runs_by(std::uint32_t algorithm) {
    on_both([&](std::size_t rank) {
      std::array<float, 5000> data{};
      data.fill(static_cast<float>(rank + 1));
      tarpon_arguments call = call_on(data.data(), data.size());
      call.algorithm = algorithm;
      EXPECT_EQ(tarpon_allreduce(ranks_[rank], &call, nullptr), TARPON_OK) << tarpon_error_text();
      EXPECT_EQ(data[4999], 3.0f);
    });
  }

  /// Rank 1 makes a good call of `tag`; it ends as aborted, blaming rank 0.
  void expect_aborted_by_rank_0(std::uint32_t tag, const std::function<void()>& rank_0) {
    on_both([&](std::size_t rank) {
      if (rank == 0) return rank_0();
      float value = 1;
      const tarpon_arguments call = call_on(&value, 1, tag);
      tarpon_report* report = nullptr;
      EXPECT_EQ(tarpon_allreduce(ranks_[1], &call, &report), TARPON_ERROR_NO_RESULT);
      EXPECT_THAT(tarpon_error_text(), StartsWith("aborted: "));
      EXPECT_STREQ(tarpon_error_text(), tarpon_report_text(report));
      EXPECT_EQ(summary_of(report).status, TARPON_STATUS_ABORTED);
      EXPECT_EQ(summary_of(report).blamed, 1u);
      tarpon_report_free(report);
    });
  }

  std::array<tarpon_communicator*, 2> ranks_{};
};

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
    call.reserved = 1;
    EXPECT_EQ(tarpon_allreduce(ranks_[0], &call, nullptr), TARPON_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(tarpon_error_text(), HasSubstr("reserved is set: set it to 0"));
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

// -- without a job

TEST(CApiAlone, names__and_unknown_numbers) {
  EXPECT_THAT(tarpon_version(), ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_STREQ(tarpon_error_name(TARPON_ERROR_TIMEOUT), "timeout");
  EXPECT_STREQ(tarpon_error_name(-1), "?");
  EXPECT_STREQ(tarpon_error_name(99), "?");
  EXPECT_STREQ(tarpon_status_name(TARPON_STATUS_PEER_LATE), "peer_late");
  EXPECT_STREQ(tarpon_status_name(99), "?");
}

TEST(CApiAlone, null_pointers__are_named) {
  tarpon_options options{};
  options.size = sizeof options;
  tarpon_communicator* job = nullptr;
  const auto refused = [](int code, const char* text) {
    EXPECT_EQ(code, TARPON_ERROR_INVALID_ARGUMENT) << text;
    EXPECT_STREQ(tarpon_error_text(), text);
  };
  refused(tarpon_connect(nullptr, &job), "tarpon_connect: options is NULL");
  refused(tarpon_connect(&options, nullptr), "tarpon_connect: communicator is NULL");
  refused(tarpon_connect_from_environment(nullptr, nullptr),
          "tarpon_connect_from_environment: communicator is NULL");
  refused(tarpon_check_environment(nullptr), "tarpon_check_environment: options is NULL");
  tarpon_arguments call{};
  refused(tarpon_allreduce(nullptr, &call, nullptr), "tarpon_allreduce: communicator is NULL");
  refused(tarpon_allreduce_start(nullptr, &call, nullptr),
          "tarpon_allreduce_start: communicator is NULL");
  int done = 0;
  refused(tarpon_test(nullptr, &done), "tarpon_test: call is NULL");
  refused(tarpon_wait(nullptr, nullptr), "tarpon_wait: call is NULL");
  tarpon_summary summary{};
  refused(tarpon_report_summary(nullptr, &summary), "tarpon_report_summary: report is NULL");
  tarpon_loss loss{};
  refused(tarpon_report_loss(nullptr, &loss), "tarpon_report_loss: report is NULL");
  refused(tarpon_barrier(nullptr, 1), "tarpon_barrier: communicator is NULL");
  refused(tarpon_abort(nullptr, "x"), "tarpon_abort: communicator is NULL");
  tarpon_step_verdict verdict{};
  refused(tarpon_agree(nullptr, 0, nullptr, 1, &verdict), "tarpon_agree: communicator is NULL");
  refused(tarpon_shrink(nullptr, 1, &job), "tarpon_shrink: communicator is NULL");
  refused(tarpon_rejoin(nullptr, 1, &job), "tarpon_rejoin: communicator is NULL");
  refused(tarpon_resync(nullptr, 0, &done, 4, 1), "tarpon_resync: communicator is NULL");
  refused(tarpon_close(nullptr, 1), "tarpon_close: communicator is NULL");
  EXPECT_EQ(tarpon_rank(nullptr), UINT32_MAX);
  EXPECT_EQ(tarpon_world_size(nullptr), 0u);
  EXPECT_STREQ(tarpon_report_text(nullptr), "");
  EXPECT_STREQ(tarpon_left_out(nullptr), "");
  tarpon_call_free(nullptr);
  tarpon_report_free(nullptr);
  tarpon_communicator_free(nullptr);
}

/// The refusal of `options`, which must come before anything is waited for.
std::string refusal(const tarpon_options& options) {
  tarpon_communicator* job = nullptr;
  EXPECT_NE(tarpon_connect(&options, &job), TARPON_OK);
  EXPECT_EQ(job, nullptr);
  return tarpon_error_text();
}

TEST(CApiAlone, connect__sizes_that_make_no_sense) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{4}, std::size_t{20}, SIZE_MAX - 7}) {
    tarpon_options options{};
    options.size = size;
    EXPECT_THAT(refusal(options), AllOf(StartsWith("tarpon_options: size is "),
                                        HasSubstr("set it to sizeof(tarpon_options)")));
  }
}

TEST(CApiAlone, connect__members_that_make_no_sense) {
  const auto with = [](const std::function<void(tarpon_options&)>& change) {
    tarpon_options options{};
    options.size = sizeof options;
    options.world_size = 2;
    options.rendezvous = "127.0.0.1:1";
    options.rendezvous_timeout_us = 100'000;
    change(options);
    return refusal(options);
  };
  EXPECT_THAT(with([](auto& o) { o.world_size = 0; }), HasSubstr("world size 0"));
  EXPECT_THAT(with([](auto& o) { o.world_size = 65; }), HasSubstr("world size 65"));
  EXPECT_THAT(with([](auto& o) { o.rendezvous = nullptr; }), HasSubstr("rendezvous address ''"));
  EXPECT_THAT(with([](auto& o) { o.rendezvous = "host"; }), HasSubstr("tcp://HOST:PORT"));
  EXPECT_THAT(with([](auto& o) { o.datapath = 7; }), StartsWith("tarpon_options: datapath is 7"));
  EXPECT_THAT(with([](auto& o) { o.loss_target = 1; }), HasSubstr("loss_target is 1"));
  EXPECT_THAT(with([](auto& o) { o.loss_target = -1; }), HasSubstr("loss_target is -1"));
  EXPECT_THAT(with([](auto& o) { o.skip_above = -1; }), HasSubstr("skip_above is -1"));
  EXPECT_THAT(with([](auto& o) { o.halt_above = 1.5; }), HasSubstr("halt_above is 1.5"));
  EXPECT_THAT(with([](auto& o) { o.halt_above = 0.1, o.skip_above = 0.2; }),
              HasSubstr("skip_above is 0.2: give at most halt_above"));
  EXPECT_THAT(with([](auto& o) { o.dead_after_us = -1; }), HasSubstr("dead_after_us is -1"));
  EXPECT_THAT(with([](auto& o) { o.rendezvous_timeout_us = -1; }),
              HasSubstr("rendezvous_timeout_us is -1"));
  EXPECT_THAT(with([](auto& o) { o.max_bytes_per_second = -1; }),
              HasSubstr("max_bytes_per_second is -1"));
  EXPECT_THAT(with([](auto& o) { o.rank = 1; }), HasSubstr("cannot reach rank 0"));
}

TEST(CApiAlone, connect__one_rank_and_a_struct_of_an_older_header) {
  tarpon_options options{};
  options.size = offsetof(tarpon_options, rendezvous);
  options.world_size = 1;
  options.datapath = 99;  // beyond the size: not read
  tarpon_communicator* job = nullptr;
  ASSERT_EQ(tarpon_connect(&options, &job), TARPON_OK) << tarpon_error_text();
  EXPECT_EQ(tarpon_world_size(job), 1u);
  tarpon_communicator_free(job);
}

TEST(CApiAlone, connect__a_struct_of_a_newer_header) {
  Newer<tarpon_options> options;
  options.known.world_size = 1;
  tarpon_communicator* job = nullptr;
  ASSERT_EQ(tarpon_connect(options.get(), &job), TARPON_OK) << tarpon_error_text();
  tarpon_communicator_free(job);
  options.more[1] = 1;
  EXPECT_EQ(tarpon_connect(options.get(), &job), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(),
              AllOf(HasSubstr("byte at offset " + std::to_string(sizeof(tarpon_options) + 8)),
                    HasSubstr(tarpon_version()), HasSubstr("use a newer library")));
}

TEST(CApiAlone, connect_from_environment__place_and_options) {
  ::setenv("RANK", "0", 1);
  ::setenv("WORLD_SIZE", "1", 1);
  tarpon_communicator* job = nullptr;
  EXPECT_EQ(tarpon_connect_from_environment(nullptr, &job), TARPON_OK) << tarpon_error_text();
  EXPECT_EQ(tarpon_rank(job), 0u);
  tarpon_communicator_free(job);
  tarpon_options options{};
  options.size = sizeof options;
  options.rank = 1;
  EXPECT_EQ(tarpon_connect_from_environment(&options, &job), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("rank is 1 and world_size 0"));
  options.world_size = 1;  // takes precedence over the environment
  EXPECT_EQ(tarpon_connect_from_environment(&options, &job), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("must be 0 to 0"));
  options.rank = options.world_size = 0;
  options.interface = "nope7";
  EXPECT_EQ(tarpon_connect_from_environment(&options, &job), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("nope7: no such interface"));
  options.interface = nullptr;
  options.rendezvous = "nonsense";
  EXPECT_EQ(tarpon_connect_from_environment(&options, &job), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), StartsWith("tarpon_options: rendezvous nonsense: write HOST"));
  options.rendezvous = nullptr;
  ::setenv("TARPON_DATAPATH", "warp", 1);
  EXPECT_EQ(tarpon_connect_from_environment(&options, &job), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), StartsWith("TARPON_DATAPATH=warp"));
  EXPECT_EQ(tarpon_check_environment(&options), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), StartsWith("TARPON_DATAPATH=warp"));
  options.datapath = TARPON_DATAPATH_MMSG;  // takes precedence
  EXPECT_EQ(tarpon_check_environment(&options), TARPON_OK) << tarpon_error_text();
  EXPECT_EQ(tarpon_connect_from_environment(&options, &job), TARPON_OK) << tarpon_error_text();
  tarpon_communicator_free(job);
  ::unsetenv("TARPON_DATAPATH");
  ::setenv("MASTER_ADDR", "::1", 1);  // one rank meets nobody: no route is needed
  ::setenv("MASTER_PORT", "29500", 1);
  EXPECT_EQ(tarpon_connect_from_environment(nullptr, &job), TARPON_OK) << tarpon_error_text();
  tarpon_communicator_free(job);
  ::unsetenv("MASTER_ADDR");
  ::unsetenv("MASTER_PORT");
  ::setenv("RANK", "1", 1);
  EXPECT_EQ(tarpon_connect_from_environment(nullptr, &job), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tarpon_error_text(), "RANK=1: must be 0 to 0");
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
}

TEST(CApiAlone, listen__the_ranks_meet_at_its_address) {
  tarpon_listener* listener = nullptr;
  ASSERT_EQ(tarpon_listen("localhost", nullptr, &listener), TARPON_OK) << tarpon_error_text();
  const std::string address = tarpon_listener_address(listener);
  EXPECT_THAT(address, StartsWith("tcp://127.0.0.1:"));
  on_both([&](std::size_t rank) {
    tarpon_options options{};
    options.size = sizeof options;
    options.rank = static_cast<std::uint32_t>(rank);
    options.world_size = 2;
    options.codec = TARPON_CODEC_OFF;
    if (rank == 0) options.listener = listener;
    if (rank == 1) options.rendezvous = address.c_str();
    tarpon_communicator* job = nullptr;
    ASSERT_EQ(tarpon_connect_from_environment(&options, &job), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(tarpon_world_size(job), 2u);
    EXPECT_EQ(tarpon_barrier(job, 5 * kSecond), TARPON_OK) << tarpon_error_text();
    EXPECT_EQ(tarpon_close(job, 5 * kSecond), TARPON_OK) << tarpon_error_text();
    tarpon_communicator_free(job);
  });
  tarpon_options again{};
  again.size = sizeof again;
  again.world_size = 2;
  again.listener = listener;
  EXPECT_THAT(refusal(again), HasSubstr("listener has served a connect"));
  tarpon_listener_free(listener);
}

TEST(CApiAlone, listen__what_makes_no_sense) {
  tarpon_listener* listener = nullptr;
  EXPECT_EQ(tarpon_listen(nullptr, nullptr, nullptr), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("listener is NULL"));
  EXPECT_EQ(tarpon_listen(nullptr, "nope7", &listener), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("nope7"));
  EXPECT_EQ(listener, nullptr);
  EXPECT_STREQ(tarpon_listener_address(nullptr), "");
  tarpon_listener_free(nullptr);
  ASSERT_EQ(tarpon_listen(nullptr, "lo", &listener), TARPON_OK) << tarpon_error_text();
  tarpon_options options{};
  options.size = sizeof options;
  options.rank = 1;
  options.world_size = 2;
  options.listener = listener;
  EXPECT_THAT(refusal(options), HasSubstr("listener is given to rank 1"));
  options.rank = 0;
  options.rendezvous = "127.0.0.1:1";
  EXPECT_THAT(refusal(options), HasSubstr("listener and rendezvous are given"));
  options.rendezvous = nullptr;
  options.codec = 3;
  EXPECT_THAT(refusal(options), HasSubstr("codec is 3"));
  tarpon_listener_free(listener);
}

TEST(CApiAlone, error_text__is_of_the_thread) {
  EXPECT_NE(tarpon_barrier(nullptr, 1), TARPON_OK);
  std::thread([] { EXPECT_STREQ(tarpon_error_text(), ""); }).join();
  EXPECT_THAT(tarpon_error_text(), StartsWith("tarpon_barrier"));
}

// -- calls

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
  check([&] { refused_by_engine(call, "deadline must be positive"); });
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
  EXPECT_THAT(tarpon_error_text(), HasSubstr("belongs to barriers"));
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

// -- reports

TEST_F(CApi, summary__of_an_older_and_a_newer_header) {
  on_both([&](std::size_t rank) {
    float value = 1;
    const tarpon_arguments call = call_on(&value, 1, 3);
    tarpon_report* report = nullptr;
    ASSERT_EQ(tarpon_allreduce(ranks_[rank], &call, &report), TARPON_OK);
    tarpon_summary older{};
    std::memset(&older, 0x5a, sizeof older);
    older.size = offsetof(tarpon_summary, operation);
    EXPECT_EQ(tarpon_report_summary(report, &older), TARPON_OK);
    EXPECT_EQ(older.status, TARPON_STATUS_COMPLETE);
    EXPECT_EQ(older.tag, 3u);
    EXPECT_EQ(older.operation, 0x5a5a5a5au) << "beyond the size";
    Newer<tarpon_summary> newer;
    newer.more[0] = newer.more[1] = 7;
    EXPECT_EQ(tarpon_report_summary(report, newer.get()), TARPON_OK);
    EXPECT_EQ(newer.known.tag, 3u);
    EXPECT_EQ(newer.known.size, sizeof newer);
    EXPECT_EQ(newer.more[0] + newer.more[1], 0u);
    older.size = 3;
    EXPECT_EQ(tarpon_report_summary(report, &older), TARPON_ERROR_INVALID_ARGUMENT);
    tarpon_report_free(report);
  });
}

// -- more than one call

TEST_F(CApi, agree__one_verdict) {
  on_both([&](std::size_t rank) {
    tarpon_loss loss{};
    loss.size = sizeof loss;
    loss.lost_fraction = rank == 1 ? 0.2 : 0;
    tarpon_step_verdict verdict{};
    verdict.size = sizeof verdict;
    ASSERT_EQ(tarpon_agree(ranks_[rank], 4, &loss, 5 * kSecond, &verdict), TARPON_OK);
    EXPECT_EQ(verdict.verdict, TARPON_STEP_SKIP);
    EXPECT_EQ(verdict.step, 4u);
    EXPECT_EQ(verdict.lost_fraction, 0.2);
    EXPECT_EQ(verdict.reporters, 3u);
    EXPECT_NE(verdict.detail[0], '\0');
    ASSERT_EQ(tarpon_agree(ranks_[rank], 5, nullptr, 5 * kSecond, &verdict), TARPON_OK);
    EXPECT_EQ(verdict.verdict, TARPON_STEP_APPLY);
    EXPECT_STREQ(verdict.detail, "");
  });
}

TEST_F(CApi, barrier_and_resync__and_deadlines_that_have_passed) {
  on_both([&](std::size_t rank) {
    EXPECT_EQ(tarpon_barrier(ranks_[rank], 5 * kSecond), TARPON_OK) << tarpon_error_text();
    char text[8] = "-------";
    if (rank == 1) std::memcpy(text, "weights", 8);
    EXPECT_EQ(tarpon_resync(ranks_[rank], 1, text, sizeof text, 5 * kSecond), TARPON_OK)
        << tarpon_error_text();
    EXPECT_STREQ(text, "weights");
  });
  EXPECT_EQ(tarpon_resync(ranks_[0], 70'000, nullptr, 0, kSecond), TARPON_ERROR_INVALID_ARGUMENT);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("no such rank"));
  EXPECT_NE(tarpon_barrier(ranks_[0], -1), TARPON_OK);
  EXPECT_THAT(tarpon_error_text(), HasSubstr("deadline must be positive"));
}

TEST_F(CApi, abort__ends_calls_and_shrink_goes_on) {
  on_both([&](std::size_t rank) {
    float value = 1;
    if (rank == 0) {
      EXPECT_EQ(tarpon_abort(ranks_[0], "enough"), TARPON_OK);
    } else {
      const tarpon_arguments call = call_on(&value, 1);
      EXPECT_EQ(tarpon_allreduce(ranks_[1], &call, nullptr), TARPON_ERROR_NO_RESULT);
      EXPECT_THAT(tarpon_error_text(), HasSubstr("enough"));
    }
    tarpon_communicator* fresh = nullptr;
    ASSERT_EQ(tarpon_shrink(ranks_[rank], 10 * kSecond, &fresh), TARPON_OK) << tarpon_error_text();
    tarpon_communicator_free(ranks_[rank]);
    ranks_[rank] = fresh;
    EXPECT_STREQ(tarpon_left_out(fresh), "");
  });
  expect_pairs(0, 0);
}

}  // namespace
