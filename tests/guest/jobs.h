// Commands on the guest's hosts, and AllReduce between them.
#pragma once

#include <string>
#include <vector>

#include "tests/guest/guest.h"
#include "tests/support/child_program.h"

namespace tarpon::guest {

/// An ordinary user of the guest, and its group: "nogroup" is in /etc/group.
inline constexpr unsigned kUser = 65534;

/// `arguments`, the program first, in the namespace of `host`: as root, or as kUser without
/// capabilities.
test::Command command_on(const Host& host, std::vector<std::string> arguments, bool user = false);

/// Runs it and expects the exit code 0. Returns its standard output.
std::string run_on(const Host& host, std::vector<std::string> arguments);

/// `tarpon allreduce` with one rank on each host.
struct Job {
  std::vector<std::string> arguments;  // of both ranks, beside those that all jobs have
  std::string reason;                  // part of why the ranks took their datapath
  std::string datapath = "xdp";        // that they took
  bool user = false;                   // by kUser
};

/// Runs the job. Expects its datapath and reason, that every value is right, and that nothing is
/// lost.
void allreduce(const Job& job);

/// Expects that the program brought the packets of allreduce() to both hosts, and that no port
/// stayed open.
void expect_program_at_work();

/// Packets of data that allreduce() brings to each host at the least, where a frame has one buffer.
inline constexpr std::uint64_t kLeastPackets = 12 * (256 << 10) / 3712;

}  // namespace tarpon::guest
