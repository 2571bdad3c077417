// Live jobs on 127.0.0.1 whose ranks are threads of the test, and calls with known results.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"

namespace tarpon::testing_support {

using Ranks = std::vector<std::unique_ptr<Communicator>>;

/// Runs `body(rank)` in one thread a rank.
inline void on_all(std::uint32_t ranks, const std::function<void(Rank)>& body) {
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&body, rank] { body(static_cast<Rank>(rank)); });
  }
  for (std::thread& thread : threads) thread.join();
}

inline std::string rendezvous_file() {
  static std::atomic<int> next = 0;
  return testing::TempDir() + "tarpon-communicator-" + std::to_string(getpid()) + "-" +
         std::to_string(next++);
}

/// A job of `ranks` communicators; empty, with a failed test, when one could not connect.
inline Ranks connect(std::uint32_t ranks, Datapath datapath,
                     const std::function<void(CommunicatorOptions&)>& change = nullptr) {
  const std::string file = rendezvous_file();
  Ranks result(ranks);
  on_all(ranks, [&](Rank rank) {
    CommunicatorOptions options;
    options.rendezvous.rank = rank;
    options.rendezvous.world_size = ranks;
    options.rendezvous.address = "file://" + file;
    options.datapath = datapath;
    options.mtu = 1500;
    if (change) change(options);
    auto communicator = Communicator::connect(options);
    if (communicator) {
      result[rank] = std::move(*communicator);
    } else {
      ADD_FAILURE() << "rank " << rank << ": " << communicator.error().message;
    }
  });
  std::filesystem::remove(file);
  if (testing::Test::HasFailure()) result.clear();
  return result;
}

/// Small integers as floats: every order of addition gives the same bits.
inline std::vector<float> input(Rank rank, std::size_t count, std::uint32_t salt = 0) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 7 + rank * 13u + salt) % 101);
  }
  return values;
}

inline std::vector<float> sum(std::uint32_t ranks, std::size_t count, std::uint32_t salt = 0) {
  std::vector<float> total(count, 0.0f);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const auto one = input(static_cast<Rank>(rank), count, salt);
    for (std::size_t i = 0; i < count; ++i) total[i] += one[i];
  }
  return total;
}

inline AllreduceArguments in_place(std::vector<float>& values, std::uint32_t tag = 0) {
  AllreduceArguments arguments;
  arguments.input = arguments.output = values.data();
  arguments.count = values.size();
  arguments.tag = tag;
  return arguments;
}

inline void expect_complete(const Result<Report>& report) {
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->status, Status::complete) << report->detail;
}

}  // namespace tarpon::testing_support
