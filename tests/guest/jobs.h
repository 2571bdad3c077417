// Commands on the guest's hosts, and AllReduce between them.
#pragma once

#include <string>
#include <vector>

#include "tests/guest/guest.h"
#include "tests/support/child_program.h"

namespace tarpon::guest {

/// `arguments`, the program first, in the namespace of `host`.
test::Command command_on(const Host& host, std::vector<std::string> arguments);

/// Runs it and expects the exit code 0. Returns its standard output.
std::string run_on(const Host& host, std::vector<std::string> arguments);

/// `tarpon allreduce` with one rank on each host and `arguments` on both. Expects that every value
/// is right, that nothing is lost, and that every rank took AF_XDP for a reason that contains
/// `reason`.
void allreduce(const std::vector<std::string>& arguments, const std::string& reason);

/// Packets of data that allreduce() brings to each host at the least, where a frame has one buffer.
inline constexpr std::uint64_t kLeastPackets = 12 * (256 << 10) / 3712;

}  // namespace tarpon::guest
