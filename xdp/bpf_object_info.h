// Facts that the kernel reports about a BPF program, map or link.
#pragma once

#include <bpf/bpf.h>

#include <cstdint>

namespace tarpon::xdp {

/// Fills `info`, a bpf_prog_info, bpf_map_info or bpf_link_info. Returns false, and errno says why,
/// if the kernel refuses. Needs the capabilities that bpf(2) asks for.
template <typename Info>
bool object_info(int fd, Info& info) {
  std::uint32_t length = sizeof info;
  return ::bpf_obj_get_info_by_fd(fd, &info, &length) == 0;
}

}  // namespace tarpon::xdp
