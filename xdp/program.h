// Tarpon's XDP program (bpf/tarpon.bpf.c) on an interface.
//
// A bpf_link attaches the program, and every process that uses the program holds that link. The
// program is detached when the last of them ends, also by SIGKILL, unless an administrator pinned
// it. Processes find the program and its maps by what the kernel says is attached; they need no
// agreement and no file. A program that is not ours is named and left alone.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "xdp/attached.h"
#include "xdp/base/private_descriptor.h"
#include "xdp/base/result.h"
#include "xdp/program_maps.h"

namespace tarpon::xdp {

class Program {
 public:
  /// Returns the program on `interface` when it is ours; attaches a new one when there is none.
  /// Errors: permission, unavailable (a foreign program, named; no native XDP in the driver), io.
  static Result<Program> use(unsigned interface, AttachMode mode);

  /// The program that is on `interface`, alone or below libxdp's dispatcher. Errors: unavailable
  /// when there is none of ours.
  static Result<Program> find(unsigned interface);

  ProgramMaps& maps() { return maps_; }
  const ProgramMaps& maps() const { return maps_; }

  std::uint32_t id() const { return id_; }
  bool attached_here() const { return attached_here_; }  // by this process
  /// Whether the link attaches it still; true where it is attached without one.
  bool attached() const;

  /// Keeps link and maps as files in `directory` of a BPF file system (made when it is not there),
  /// so that the program stays without a process. Errors: unavailable (attached without a link; no
  /// BPF file system), permission, io.
  Result<void> pin(const std::string& directory) const;

  /// Takes the program off the interface, even while other processes use it. Errors: unavailable
  /// (attached without a link), io.
  Result<void> detach();

  /// For BPF_PROG_TEST_RUN.
  int fd() const { return program_.get(); }
  int link_fd() const { return link_.get(); }

 private:
  Program(std::uint32_t id, PrivateDescriptor program, ProgramMaps maps)
      : program_(std::move(program)), maps_(std::move(maps)), id_(id) {}
  static Result<Program> load();

  PrivateDescriptor program_;
  PrivateDescriptor link_;  // empty where the program is attached without one
  ProgramMaps maps_;
  std::uint32_t id_ = 0;
  bool attached_here_ = false;
};

}  // namespace tarpon::xdp
