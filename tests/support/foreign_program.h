// An XDP program of somebody else.
#pragma once

#include <bpf/bpf.h>
#include <linux/bpf.h>

#include <array>

#include "xdp/base/file_descriptor.h"

namespace tarpon::testing_support {

/// Lets everything pass; named "stranger".
inline FileDescriptor load_foreign_program() {
  const std::array<bpf_insn, 2> pass{
      bpf_insn{.code = BPF_ALU64 | BPF_MOV | BPF_K,
               .dst_reg = 0,
               .src_reg = 0,
               .off = 0,
               .imm = XDP_PASS},
      bpf_insn{.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}};
  return FileDescriptor(
      ::bpf_prog_load(BPF_PROG_TYPE_XDP, "stranger", "GPL", pass.data(), pass.size(), nullptr));
}

/// The link that attaches it; empty on failure.
inline FileDescriptor attach_foreign_program(const FileDescriptor& program, unsigned interface) {
  return FileDescriptor(
      ::bpf_link_create(program.get(), static_cast<int>(interface), BPF_XDP, nullptr));
}

}  // namespace tarpon::testing_support
