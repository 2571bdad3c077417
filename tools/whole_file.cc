#include "tools/whole_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

namespace tarpon {
namespace {

bool is_special(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

}  // namespace

Result<WholeFile> WholeFile::create(const std::string& path) {
  if (is_special(path)) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return fail_system(errno, path + ": cannot write");
    return WholeFile(fd, path, "");
  }
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string name = fmt::format("{}.tmp-{}-{}", path, ::getpid(), attempt);
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) return WholeFile(fd, path, std::move(name));
    if (errno != EEXIST) break;
  }
  return fail_system(errno, path + ": cannot create a file beside it");
}

Result<void> WholeFile::check(const std::string& path) {
  if (is_special(path)) {
    if (::access(path.c_str(), W_OK) != 0) return fail_system(errno, path + ": cannot write");
    return {};
  }
  const auto file = create(path);
  if (!file) return fail(file.error());
  return {};
}

WholeFile::WholeFile(int fd, std::string path, std::string temporary)
    : fd_(fd), path_(std::move(path)), temporary_(std::move(temporary)) {}

WholeFile::WholeFile(WholeFile&& other) noexcept
    : fd_(std::move(other.fd_)),
      path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})) {}

WholeFile::~WholeFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Result<void> WholeFile::write(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t put = ::write(fd_.get(), data.data(), std::min<std::size_t>(data.size(), 1 << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return fail_system(errno, path_ + ": cannot write");
    data = data.subspan(static_cast<std::size_t>(put));
  }
  return {};
}

Result<void> WholeFile::commit() {
  if (temporary_.empty()) return {};
  if (::fsync(fd_.get()) != 0) return fail_system(errno, path_ + ": cannot write to disk");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return fail_system(errno, path_ + ": cannot replace");
  }
  temporary_.clear();
  return {};
}

}  // namespace tarpon
