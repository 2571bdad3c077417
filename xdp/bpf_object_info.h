// What the kernel tells of a BPF program, map or link.
#pragma once

#include <bpf/bpf.h>

#include <cstdint>

namespace tarpon::xdp {

/// Fills `info`, a bpf_prog_info, bpf_map_info or bpf_link_info. False with errno.
template <typename Info>
bool object_info(int fd, Info& info) {
  std::uint32_t length = sizeof info;
  return ::bpf_obj_get_info_by_fd(fd, &info, &length) == 0;
}

}  // namespace tarpon::xdp
