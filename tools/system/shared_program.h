// Our program beside others on one interface, by libxdp's dispatcher: only where an administrator
// asks for it. It then hangs on no link, so a record in the BPF file system says whose it is.
//
// Needs a kernel that lets programs replace functions of programs (type ext). libxdp is used here
// alone: jobs find a shared program by what the kernel says. One thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xdp/attached.h"
#include "xdp/result.h"

namespace tarpon {

/// Whether attach_shared() has a chance: the kernel has type ext, and what is attached is
/// libxdp's, in the same mode. Errors: unavailable, permission, io.
Result<void> check_sharing(unsigned interface, xdp::AttachMode mode);

/// Attaches our program beside what is there, and records it in `directory` of a BPF file system as
/// of this process until keep_shared(). On failure nothing is left. Returns the program's id.
/// Errors: those of check_sharing().
Result<std::uint32_t> attach_shared(unsigned interface, xdp::AttachMode mode,
                                    const std::string& directory);

/// From now on it stays until it is unloaded.
Result<void> keep_shared(const std::string& directory);

/// Removes our program `id` alone, and the record. What others attached stays, and the packets that
/// arrive meanwhile pass to it or to the kernel.
Result<void> detach_shared(unsigned interface, std::uint32_t id, const std::string& directory);

/// Who attached a shared program.
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
