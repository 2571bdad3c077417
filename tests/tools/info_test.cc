// The limits that `tarpon info` states, held to communicators of this process.
#include "tools/info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "collectives/communicator.h"
#include "transport/ports/uring_port.h"

namespace tarpon {
namespace {

std::size_t entries(const char* folder) {
  std::size_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string("/proc/self/") + folder)) {
    count += entry.is_symlink() || entry.is_directory() ? 1u : 0u;
  }
  return count;
}

/// What all ranks of a job on loopback take together.
struct Taken {
  std::size_t threads = 0, descriptors = 0;
};

Taken taken_by(std::uint32_t world, Datapath datapath) {
  std::string directory = testing::TempDir() + "/info_XXXXXX";
  EXPECT_NE(::mkdtemp(directory.data()), nullptr);
  const Taken before{entries("task"), entries("fd")};
  std::vector<std::unique_ptr<Communicator>> ranks(world);
  {
    std::vector<std::jthread> threads;
    for (Rank rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, rank] {
        auto options = CommunicatorOptions::for_rank(rank, world, "file://" + directory + "/meet");
        options.interface = "lo";
        options.datapath = datapath;
        auto made = Communicator::connect(options);
        ASSERT_TRUE(made) << made.error().message;
        ranks[rank] = std::move(*made);
      });
    }
  }
  const Taken during{entries("task"), entries("fd")};
  ranks.clear();
  std::filesystem::remove_all(directory);
  return {during.threads - before.threads, during.descriptors - before.descriptors};
}

std::size_t stated_descriptors(std::uint32_t world) {
  std::size_t sum = 0;
  for (Rank rank = 0; rank < world; ++rank) sum += descriptors_of_rank(rank, world);
  return sum;
}

TEST(Info, threads_and_descriptors__are_what_is_stated) {
  for (const std::uint32_t world : {2u, 3u, 5u}) {
    const Taken taken = taken_by(world, Datapath::mmsg);
    EXPECT_EQ(taken.threads, kThreadsOfRank * world);
    EXPECT_EQ(taken.descriptors, stated_descriptors(world) - 2 * world);  // the two of io_uring
  }
}

TEST(Info, descriptors__of_io_uring_are_at_most_what_is_stated) {
  if (const auto uring = check_uring(); !uring) GTEST_SKIP() << uring.error().message;
  for (const std::uint32_t world : {2u, 3u, 5u}) {
    const Taken taken = taken_by(world, Datapath::uring);
    EXPECT_EQ(taken.threads, kThreadsOfRank * world);
    EXPECT_LE(taken.descriptors, stated_descriptors(world));
  }
}

}  // namespace
}  // namespace tarpon
