// The fixture of the tests of the C interface.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>

#include "tests/support/c_calls.h"

namespace tarpon::testing_support {

/// Two ranks in this process.
class CApi : public testing::Test {
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
      EXPECT_THAT(tarpon_error_text(), testing::StartsWith("aborted: "));
      EXPECT_STREQ(tarpon_error_text(), tarpon_report_text(report));
      EXPECT_EQ(summary_of(report).status, TARPON_STATUS_ABORTED);
      EXPECT_EQ(summary_of(report).blamed, 1u);
      tarpon_report_free(report);
    });
  }

  std::array<tarpon_communicator*, 2> ranks_{};
};

}  // namespace tarpon::testing_support
