// A grid of few ranks on this host: each rank is a thread, and its host is given.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/grid/grid_communicator.h"
#include "tests/support/live_job.h"

namespace tarpon::testing_support {

using Grid = std::vector<std::unique_ptr<grid::GridCommunicator>>;
using ChangeOptions = std::function<void(CommunicatorOptions&)>;

/// What each rank's connect() returned, for `hosts[rank]` as its host.
inline std::vector<Result<std::unique_ptr<grid::GridCommunicator>>> try_grid(
    const std::vector<int>& hosts, const ChangeOptions& change = nullptr) {
  const std::string file = rendezvous_file();
  const auto world = static_cast<std::uint32_t>(hosts.size());
  std::vector<Result<std::unique_ptr<grid::GridCommunicator>>> made(world);
  on_all(world, [&](Rank rank) {
    auto options = CommunicatorOptions::for_rank(rank, world, "file://" + file);
    if (change) change(options);
    made[rank] = grid::GridCommunicator::connect(
        options, [&](Rank self) { return "host" + std::to_string(hosts[self]); });
  });
  std::filesystem::remove(file);
  return made;
}

/// Empty, with a failed test, when a rank could not connect.
inline Grid connect_grid(const std::vector<int>& hosts, const ChangeOptions& change = nullptr) {
  Grid grid;
  for (auto& made : try_grid(hosts, change)) {
    EXPECT_TRUE(made) << made.error().message;
    if (!made) return {};
    grid.push_back(*std::move(made));
  }
  return grid;
}

}  // namespace tarpon::testing_support
