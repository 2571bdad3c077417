// Attaches our program beside others on one interface, by libxdp's dispatcher, only if an
// administrator asks for it. The program then has no link, so a record in the BPF file system names
// its owner.
//
// Needs a kernel that lets programs replace functions of programs (type ext). Only this file uses
// libxdp: jobs find a shared program by what the kernel says. One thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xdp/attached.h"
#include "xdp/base/result.h"

namespace tarpon {

/// Checks whether attach_shared() can work: the kernel has type ext, and what is attached is
/// libxdp's, in the same mode. Errors: unavailable, permission, io.
Result<void> check_sharing(unsigned interface, xdp::AttachMode mode);

/// Attaches our program beside what is there, and records it in `directory` of a BPF file system as
/// owned by this process until keep_shared(). Returns the program's id. A failure leaves nothing
/// behind. Errors: those of check_sharing().
Result<std::uint32_t> attach_shared(unsigned interface, xdp::AttachMode mode,
                                    const std::string& directory);

/// Keeps the program from now on until it is unloaded.
Result<void> keep_shared(const std::string& directory);

/// Removes our program `id`, and no other one, and the record. Programs of others stay; packets
/// that arrive in the meantime pass to them or to the kernel.
Result<void> detach_shared(unsigned interface, std::uint32_t id, const std::string& directory);

/// A shared program and its owner.
struct SharedRecord {
  std::string directory;
  unsigned interface = 0;
  std::uint32_t program = 0;  // id; 0: the process has not written it down
  bool kept = false;          // by an administrator; else its process has to confirm
  bool owner_alive = false;   // where not kept
};

/// Records of this network namespace.
std::vector<SharedRecord> shared_records();

}  // namespace tarpon
