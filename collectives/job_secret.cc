#include "collectives/job_secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "transport/wipe.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon {
namespace {

constexpr const char* kRemedy = "make one with: openssl rand -hex 32 > FILE; chmod 600 FILE";

/// Takes digits off the begin of `text`. False: there is none.
bool skip_digits(std::string_view& text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  text.remove_prefix(digits);
  return digits > 0;
}

/// Whose open descriptor a path names.
enum class Descriptor { none, of_this_process, of_a_process };

/// The kernel makes the link of such a path, for the users that may trace the process.
Descriptor descriptor_at(std::string_view path) {
  constexpr std::string_view kBegin = "/proc/", kSelf = "self", kFolder = "/fd/";
  if (!path.starts_with(kBegin)) return Descriptor::none;
  path.remove_prefix(kBegin.size());
  const bool own = path.starts_with(kSelf);
  if (own) path.remove_prefix(kSelf.size());
  if (!own && !skip_digits(path)) return Descriptor::none;
  if (!path.starts_with(kFolder)) return Descriptor::none;
  path.remove_prefix(kFolder.size());
  if (!skip_digits(path) || !path.empty()) return Descriptor::none;
  return own ? Descriptor::of_this_process : Descriptor::of_a_process;
}

/// Reads from the begin of a file. `name`: for messages.
Result<std::shared_ptr<const JobSecret>> read_all(int descriptor, const std::string& name) {
  std::array<std::byte, JobSecret::kMaxBytes + 3> buffer{};  // a line end, and one byte too many
  const WipeAtEnd wipe(buffer);
  std::size_t filled = 0;
  while (filled < buffer.size()) {
    const auto rest = std::span(buffer).subspan(filled);
    const ssize_t got = pread(descriptor, rest.data(), rest.size(), static_cast<off_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return fail(Error::Code::unavailable,
                  fmt::format("{} cannot be read: {}", name, std::strerror(errno)));
    }
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  if (filled > 0 && buffer[filled - 1] == std::byte{'\n'}) {
    --filled;
    if (filled > 0 && buffer[filled - 1] == std::byte{'\r'}) --filled;
  }
  if (filled >= JobSecret::kMinBytes && filled <= JobSecret::kMaxBytes) {
    return std::make_shared<const JobSecret>(std::span<const std::byte>(buffer).first(filled));
  }
  const bool many = filled > JobSecret::kMaxBytes;
  return fail(Error::Code::invalid_argument,
              fmt::format("{} has {}{} bytes: a secret has {} to {}; {}", name,
                          many ? "more than " : "", std::min(filled, JobSecret::kMaxBytes),
                          JobSecret::kMinBytes, JobSecret::kMaxBytes, kRemedy));
}

/// Whether the mode keeps other users out. `path`: for the remedy.
Result<void> check_mode(const struct stat& facts, const std::string& name,
                        const std::string& path) {
  if ((facts.st_mode & 077) == 0) return {};
  return fail(Error::Code::invalid_argument,
              fmt::format("{} is open to other users (mode {:04o}): chmod 600 {}", name,
                          facts.st_mode & 07777, path));
}

/// Whether other users can neither read nor change a file of these facts.
Result<void> check_private(const struct stat& facts, const std::string& name,
                           const std::string& path) {
  if (facts.st_uid != geteuid() && facts.st_uid != 0) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{} belongs to user {}, who can change it: it has to belong to user {} "
                            "or to root",
                            name, facts.st_uid, geteuid()));
  }
  return check_mode(facts, name, path);
}

/// Why open() has failed, with the remedy.
std::string why_not_opened(int error) {
  switch (error) {
    case ELOOP:
      return "is a symbolic link: name the file itself";
    case ENOENT:
      return fmt::format("cannot be opened: {}; {}", std::strerror(error), kRemedy);
    case EACCES:
      return fmt::format("cannot be opened: {}; run as its owner", std::strerror(error));
    default:
      return fmt::format("cannot be opened: {}", std::strerror(error));
  }
}

}  // namespace

JobSecret::~JobSecret() {
  wipe(bytes_);
}

Result<std::shared_ptr<const JobSecret>> JobSecret::read_file(const std::string& path) {
  if (path.empty()) {
    return fail(Error::Code::invalid_argument,
                "the name of the secret file is empty: is the variable set that it comes from?");
  }
  const std::string name = fmt::format("the secret file '{}'", path);
  const Descriptor kind = descriptor_at(path);
  const int follow = kind == Descriptor::none ? O_NOFOLLOW : 0;
  const FileDescriptor file(
      open(path.c_str(), O_RDONLY | follow | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file) {
    return fail(Error::Code::unavailable, fmt::format("{} {}", name, why_not_opened(errno)));
  }
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) return fail_system(errno, name);
  if (!S_ISREG(facts.st_mode)) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{} is no regular file; {}", name, kRemedy));
  }
  // Another process may have the number by now, and any file of root's open.
  if (kind == Descriptor::of_a_process && facts.st_nlink != 0) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{} is a file with a name: give that name", name));
  }
  if (auto checked = check_private(facts, name, path); !checked) return fail(checked.error());
  return read_all(file.get(), name);
}

Result<std::shared_ptr<const JobSecret>> JobSecret::read_descriptor(int descriptor) {
  const std::string name = fmt::format("the secret at descriptor {}", descriptor);
  if (descriptor < 0 || fcntl(descriptor, F_GETFD) < 0) {
    return fail(
        Error::Code::invalid_argument,
        name + " is not open in this process: its starter has to leave it open, as 5< FILE");
  }
  struct stat facts {};
  if (fstat(descriptor, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    return fail(Error::Code::invalid_argument,
                name + " is no file: give one, or a memfd, which can be read more than once");
  }
  // Other users cannot open a memfd or a deleted file: neither has a name.
  if (facts.st_nlink != 0) {
    if (auto checked = check_mode(facts, name, "its file"); !checked) {
      return fail(checked.error());
    }
  }
  return read_all(descriptor, name);
}

Result<std::shared_ptr<const JobSecret>> JobSecret::random() {
  std::array<std::byte, kMinBytes> bytes;
  const WipeAtEnd wipe(bytes);
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return fail_system(errno, "getrandom");
  }
  return std::make_shared<const JobSecret>(bytes);
}

}  // namespace tarpon
