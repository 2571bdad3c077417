// The secret of a job: all its ranks have it, and no other process. With it, connections between
// ranks are TLS 1.3 with this secret as the pre-shared key, and packets carry tags (SealedPort).
//
// A secret is 32 to 4096 bytes, as a file has them; one line end (LF or CR LF) at the end does not
// count. `openssl rand -hex 32 > FILE` makes one.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "xdp/base/result.h"

namespace tarpon {

class JobSecret {
 public:
  static constexpr std::size_t kMinBytes = 32;
  static constexpr std::size_t kMaxBytes = 4096;

  /// Reads a file that belongs to this process's user or root, that no other user may read or
  /// write, and that is no symbolic link. /proc/PID/fd/N, with PID a number or "self", is the file
  /// or memfd that the process has open there. Errors, each with the remedy: unavailable: it cannot
  /// be read; invalid_argument: it is open to others, or has another size.
  static Result<std::shared_ptr<const JobSecret>> read_file(const std::string& path);
  /// Reads the file, or memfd, at `descriptor`, which the process has inherited, from its begin.
  /// The descriptor stays open for the next communicator. Errors: as read_file(), but the
  /// owner does not count, and the mode only where the file has a name.
  static Result<std::shared_ptr<const JobSecret>> read_descriptor(int descriptor);
  /// A new one. Errors: unavailable.
  static Result<std::shared_ptr<const JobSecret>> random();

  /// REQUIRES: kMinBytes to kMaxBytes.
  explicit JobSecret(std::span<const std::byte> bytes) : bytes_(bytes.begin(), bytes.end()) {}
  /// Wipes it out.
  ~JobSecret();
  JobSecret(const JobSecret&) = delete;
  JobSecret& operator=(const JobSecret&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace tarpon
