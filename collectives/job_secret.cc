#include "collectives/job_secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/clock.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon {
namespace {

constexpr Duration kPipePatience = 10s;
constexpr const char* kRemedy = "make one with: openssl rand -hex 32 > FILE; chmod 600 FILE";

using Bytes = std::vector<std::byte>;

/// Waits until `descriptor` can be read.
bool await(int descriptor, Time deadline) {
  while (true) {
    const Duration left = deadline - std::min(deadline, monotonic_now());
    pollfd entry{descriptor, POLLIN, 0};
    const int ready = poll(&entry, 1, static_cast<int>(left / 1ms));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

/// As read(2). Of a file that several processes have open together each reads all.
ssize_t read_at(int descriptor, std::size_t offset, std::span<std::byte> to) {
  const ssize_t got = pread(descriptor, to.data(), to.size(), static_cast<off_t>(offset));
  return got < 0 && errno == ESPIPE ? ::read(descriptor, to.data(), to.size()) : got;
}

/// Reads to the end, but at most one byte more than a secret has. `name`: for messages.
Result<std::shared_ptr<const JobSecret>> read_all(int descriptor, const std::string& name) {
  const Time deadline = monotonic_now() + kPipePatience;
  Bytes bytes(JobSecret::kMaxBytes + 2);  // a newline, and one byte too many
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    if (!await(descriptor, deadline)) {
      return fail(Error::Code::timeout, fmt::format("{}: nothing comes, nor the end of it", name));
    }
    const ssize_t got = read_at(descriptor, filled, std::span(bytes).subspan(filled));
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) {
      return fail(Error::Code::unavailable,
                  fmt::format("{} cannot be read: {}", name, std::strerror(errno)));
    }
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  if (filled > 0 && bytes[filled - 1] == std::byte{'\n'}) --filled;
  const std::span secret = std::span(bytes).first(filled);
  Result<std::shared_ptr<const JobSecret>> result =
      filled < JobSecret::kMinBytes || filled > JobSecret::kMaxBytes
          ? Result<std::shared_ptr<const JobSecret>>(
                fail(Error::Code::invalid_argument,
                     fmt::format("{} has {}{} bytes: a secret has {} to {}; {}", name,
                                 filled > JobSecret::kMaxBytes ? "more than " : "",
                                 std::min(filled, JobSecret::kMaxBytes), JobSecret::kMinBytes,
                                 JobSecret::kMaxBytes, kRemedy)))
          : std::make_shared<const JobSecret>(secret);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return result;
}

}  // namespace

JobSecret::~JobSecret() {
  OPENSSL_cleanse(bytes_.data(), bytes_.size());
}

Result<std::shared_ptr<const JobSecret>> JobSecret::read_file(const std::string& path) {
  const std::string name = fmt::format("the secret file '{}'", path);
  const FileDescriptor file(
      open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file) {
    const std::string why =
        errno == ELOOP ? "is a symbolic link: name the file itself"
                       : fmt::format("cannot be opened: {}; {}", std::strerror(errno), kRemedy);
    return fail(Error::Code::unavailable, fmt::format("{} {}", name, why));
  }
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) return fail_system(errno, name);
  if (!S_ISREG(facts.st_mode)) {
    return fail(Error::Code::invalid_argument, fmt::format("{} is no regular file", name));
  }
  if (facts.st_uid != geteuid() && facts.st_uid != 0) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{} belongs to user {}, who can change it: it has to belong to user {} "
                            "or to root",
                            name, facts.st_uid, geteuid()));
  }
  if ((facts.st_mode & 077) != 0) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{} is open to other users (mode {:04o}): chmod 600 {}", name,
                            facts.st_mode & 07777, path));
  }
  return read_all(file.get(), name);
}

Result<std::shared_ptr<const JobSecret>> JobSecret::read_descriptor(int descriptor) {
  const std::string name = fmt::format("the secret at descriptor {}", descriptor);
  if (descriptor < 0 || fcntl(descriptor, F_GETFD) < 0) {
    return fail(Error::Code::invalid_argument, name + " is not open in this process");
  }
  const FileDescriptor owned(descriptor);
  return read_all(descriptor, name);
}

Result<std::shared_ptr<const JobSecret>> JobSecret::random() {
  std::array<std::byte, kMinBytes> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return fail_system(errno, "getrandom");
  }
  auto secret = std::make_shared<const JobSecret>(bytes);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return secret;
}

}  // namespace tarpon
