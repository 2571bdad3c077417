// Ranks of a host that may not have what sharing memory needs: they say why, and use the network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "tests/support/forbidden_call.h"
#include "tests/support/sanitized.h"
#include "tools/job/process_group.h"

namespace tarpon::hosts_limits_test {
namespace {

constexpr std::uint32_t kRanks = 2;

/// Ranks as processes of their own; `limited` has lost something. Returns what went wrong.
std::string run_job(Rank limited, const std::function<bool()>& limit, const std::string& reason) {
  const std::string file = testing::TempDir() + "tarpon-limits-" + std::to_string(::getpid());
  const std::string expected = "off: rank " + std::to_string(limited) + ": ";
  std::string lines;
  ProcessGroupOptions options;
  options.on_error_line = [&](std::string_view line, bool) { lines += std::string(line) + "\n"; };
  const auto ended = run_process_group(
      kRanks,
      [&](Rank rank) {
        if (rank == limited && !limit()) return 2;
        auto job =
            Communicator::connect(CommunicatorOptions::for_rank(rank, kRanks, "file://" + file));
        if (!job) return std::fprintf(stderr, "%s\n", job.error().message.c_str()), 1;
        const std::string hosts = (*job)->hosts();
        if (hosts.find(expected) != 0 || hosts.find(reason) == std::string::npos) {
          return std::fprintf(stderr, "%s\n", hosts.c_str()), 1;
        }
        std::vector<float> values(100'000, 1);
        const auto report = (*job)->allreduce({.input = values.data(),
                                               .output = values.data(),
                                               .count = values.size(),
                                               .deadline = 60s});
        const bool good = report && report->status == Status::complete && values.back() == kRanks;
        if (!good) std::fprintf(stderr, "no sum\n");
        return (*job)->close(60s) && good ? 0 : 1;
      },
      options);
  if (!ended) return ended.error().message;
  return ended->ok() ? "" : ended->summary() + ": " + lines;
}

TEST(HostsLimits, file_size__too_small_for_the_memory) {
  const auto limit = [] {
    const rlimit little{1 << 20, 1 << 20};  // beyond it a SIGXFSZ kills
    return ::setrlimit(RLIMIT_FSIZE, &little) == 0;
  };
  EXPECT_EQ(run_job(0, limit, "RLIMIT_FSIZE"), "");
}

TEST(HostsLimits, no_memfd) {
  const auto limit = [] { return testing_support::forbid_call(SYS_memfd_create, EPERM); };
  EXPECT_EQ(run_job(0, limit, "memfd_create"), "");
}

TEST(HostsLimits, no_unix_sockets) {
  const auto limit = [] { return testing_support::forbid_call(SYS_socket, EACCES, AF_UNIX); };
  EXPECT_EQ(run_job(1, limit, "UNIX socket"), "");
}

TEST(HostsLimits, no_address_space_for_the_memory) {
  if (testing_support::kSanitizer) GTEST_SKIP() << "sanitizers need address space";
  const auto limit = [] {
    long pages = 0;
    std::FILE* const file = std::fopen("/proc/self/statm", "r");
    if (file == nullptr || std::fscanf(file, "%ld", &pages) != 1) return false;
    std::fclose(file);
    const rlim_t bytes = static_cast<rlim_t>(pages) * 4096 + (90u << 20);
    const rlimit little{bytes, bytes};
    return ::setrlimit(RLIMIT_AS, &little) == 0;
  };
  EXPECT_EQ(run_job(1, limit, "mapping the memory of the host"), "");
}

}  // namespace
}  // namespace tarpon::hosts_limits_test
