// Which processes hold a kernel object open, as far as /proc shows them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tarpon::xdp {

/// Processes that hold the bpf_link `id` open, this one not included.
std::vector<int> link_holders(std::uint32_t id);

/// Processes that hold the socket with `inode` open, this one included.
std::vector<int> socket_holders(std::uint32_t inode);

/// ", of process 71 (python3)", ", of processes 71 (python3) and 75 (python3)", ", of this
/// process"; empty for none.
std::string holders_text(const std::vector<int>& processes);

}  // namespace tarpon::xdp
