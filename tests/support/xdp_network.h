// A network namespace and a mount namespace for one test program that loads XDP programs: its BPF
// file system is its own, and nothing of it outlives the program.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/child_program.h"
#include "tests/support/private_network.h"
#include "xdp/attached.h"
#include "xdp/pins.h"

namespace tarpon::test {

/// Why this process cannot have them; empty when it has.
inline const std::string& private_bpf_file_system() {
  static const std::string reason = [] {
    if (!testing_support::private_network().empty()) return testing_support::private_network();
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      return std::string("no mount namespace: ") + std::strerror(errno);
    }
    return std::string();
  }();
  return reason;
}

/// Unmounts it: the next one is empty.
inline void drop_bpf_file_system() {
  while (xdp::bpf_file_system_mounted()) {
    ASSERT_EQ(::umount2(xdp::kBpfFileSystem, MNT_DETACH), 0) << std::strerror(errno);
  }
}

/// What lies in the BPF file system of this program, sorted; paths from its root.
inline std::vector<std::string> bpf_files() {
  std::vector<std::string> paths;
  if (!xdp::bpf_file_system_mounted()) return paths;
  const std::filesystem::path root(xdp::kBpfFileSystem);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string path = entry.path().lexically_relative(root).string();
    // The kernel's own, in every one.
    if (path != "maps.debug" && path != "progs.debug") paths.push_back(path);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// Links vanish a moment after their last holder.
inline bool vanishes(unsigned interface) {
  for (int i = 0; i < 500; ++i) {
    const auto attached = xdp::attached_to(interface);
    if (attached && !*attached) return true;
    ::usleep(10'000);
  }
  return false;
}

/// `tarpon xdp ARGUMENTS`
inline Ended xdp_tool(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "xdp");
  return run(tool(std::move(arguments)));
}

/// What `tarpon xdp status --json` says of it.
inline nlohmann::json status_of(const std::string& interface) {
  const Ended ended = xdp_tool({"status", interface, "--json"});
  EXPECT_EQ(ended.exit_code, 0) << ended.error;
  return nlohmann::json::parse(ended.out).at("results").at(0);
}

/// A veth pair in the namespaces of this program; without them the test is skipped.
class XdpNetworkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!private_bpf_file_system().empty()) GTEST_SKIP() << private_bpf_file_system();
    drop_bpf_file_system();
    pair_.emplace(1500, 2);
    testing_support::run_command("ip address add 10.9.9.9/24 dev va");
  }

  bool attached() const {
    const auto there = xdp::attached_to(pair_->a());
    return there && *there;
  }

  std::optional<testing_support::VethPair> pair_;
};

}  // namespace tarpon::test
