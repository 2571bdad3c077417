// The limits that `tarpon info` states, held to communicators of this process.
#include "tools/doctor/info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "collectives/communicator.h"
#include "transport/ports/uring/uring_port.h"

namespace tarpon::info_test {
namespace {

std::size_t entries(const char* folder) {
  std::size_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string("/proc/self/") + folder)) {
    count += entry.is_symlink() || entry.is_directory() ? 1u : 0u;
  }
  return count;
}

/// Whether this process comes to have `wanted` threads: the kernel lists an ended one a little
/// longer than join() waits for it.
bool has_threads(std::size_t wanted) {
  for (int i = 0; i < 1000 && entries("task") != wanted; ++i) std::this_thread::sleep_for(10ms);
  return entries("task") == wanted;
}

std::vector<std::unique_ptr<Communicator>> job(std::uint32_t world, Datapath datapath) {
  std::string directory = testing::TempDir() + "/info_XXXXXX";
  EXPECT_NE(::mkdtemp(directory.data()), nullptr);
  std::vector<std::unique_ptr<Communicator>> ranks(world);
  {
    std::vector<std::jthread> threads;
    for (Rank rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, rank] {
        auto options = CommunicatorOptions::for_rank(rank, world, "file://" + directory + "/meet");
        options.interface = "lo";
        options.datapath = datapath;
        options.lanes = 1;
        auto made = Communicator::connect(options);
        ASSERT_TRUE(made) << made.error().message;
        ranks[rank] = std::move(*made);
      });
    }
  }
  std::filesystem::remove_all(directory);
  return ranks;
}

void expect_as_stated(Datapath datapath) {
  std::thread([] {}).join();  // ThreadSanitizer starts a thread of its own with the first one
  const std::size_t threads = entries("task"), descriptors = entries("fd");
  for (const std::uint32_t world : {2u, 3u, 5u}) {
    ASSERT_TRUE(has_threads(threads)) << "of the job before";
    const auto ranks = job(world, datapath);
    EXPECT_TRUE(has_threads(threads + kThreadsOfRank * world)) << entries("task");
    std::size_t stated = 0;
    for (Rank rank = 0; rank < world; ++rank) stated += descriptors_of_rank(rank, world);
    const std::size_t taken = entries("fd") - descriptors;
    EXPECT_LE(taken, stated);
    EXPECT_GE(taken, stated - 2 * world) << "more is stated than is taken";
  }
}

TEST(Info, threads_and_descriptors__are_what_is_stated) {
  expect_as_stated(Datapath::mmsg);
}

TEST(Info, threads_and_descriptors__by_io_uring_too) {
  if (const auto uring = check_uring(); !uring) GTEST_SKIP() << uring.error().message;
  expect_as_stated(Datapath::uring);
}

}  // namespace
}  // namespace tarpon::info_test
