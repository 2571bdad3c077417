#include "tools/whole_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

namespace tarpon {
namespace {

constexpr int kMaxLinks = 40;  // as the kernel

bool in_proc(const std::filesystem::path& directory) {
  struct statfs status {};
  return ::statfs(directory.empty() ? "." : directory.c_str(), &status) == 0 &&
         status.f_type == PROC_SUPER_MAGIC;
}

/// The regular file that `path` is or is to become: behind symbolic links their target, because the
/// links themselves must stay. "" for what is_direct(), and for links in a circle. Followed by
/// hand: the target need not exist, and what a link of /proc/PID/fd says need not be a path.
std::string regular_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) return "";
  std::filesystem::path at = path;
  for (int links = 0; links < kMaxLinks; ++links) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(at, error);
    if (error) return at.string();
    if (in_proc(at.parent_path())) return "";
    at = at.parent_path() / target;
  }
  return "";
}

/// Has `make` take the first free temporary name beside `path`; "" and errno when it cannot.
template <typename Make>
std::string take_name(const std::string& path, Make make) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string name = fmt::format("{}.tmp-{}-{}", path, ::getpid(), attempt);
    if (make(name.c_str())) return name;
    if (errno != EEXIST) break;
  }
  return "";
}

}  // namespace

Result<WholeFile> WholeFile::create(const std::string& path) {
  const std::string target = regular_file(path);
  if (target.empty()) {
    // Behind what a redirected standard output holds already.
    const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0) return fail_system(errno, path + ": cannot write");
    return WholeFile(fd, path, "", true);
  }
  const auto directory = std::filesystem::path(target).parent_path();
  int fd =
      ::open(directory.empty() ? "." : directory.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (fd >= 0) return WholeFile(fd, target, "", false);
  std::string name = take_name(target, [&fd](const char* one) {
    fd = ::open(one, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return fd >= 0;
  });
  if (name.empty()) return fail_system(errno, path + ": cannot create a file beside it");
  return WholeFile(fd, target, std::move(name), false);
}

Result<void> WholeFile::check(const std::string& path) {
  if (regular_file(path).empty()) {
    std::error_code error;  // what cannot be looked at cannot be written either
    if (std::filesystem::is_directory(path, error)) {
      return fail_system(EISDIR, path + ": cannot write");
    }
    if (::access(path.c_str(), W_OK) != 0) return fail_system(errno, path + ": cannot write");
    return {};
  }
  const auto file = create(path);
  if (!file) return fail(file.error());
  return {};
}

bool WholeFile::is_direct(const std::string& path) {
  return regular_file(path).empty();
}

WholeFile::WholeFile(int fd, std::string path, std::string temporary, bool direct)
    : fd_(fd), path_(std::move(path)), temporary_(std::move(temporary)), direct_(direct) {}

WholeFile::WholeFile(WholeFile&& other) noexcept
    : fd_(std::move(other.fd_)),
      path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      direct_(other.direct_) {}

WholeFile::~WholeFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Result<void> WholeFile::write(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t put =
        ::write(fd_.get(), data.data(), std::min<std::size_t>(data.size(), 1 << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return fail_system(errno, path_ + ": cannot write");
    data = data.subspan(static_cast<std::size_t>(put));
  }
  return {};
}

/// Gives a nameless file its name where that is free, else a temporary one.
Result<void> WholeFile::name_beside() {
  const std::string self = fmt::format("/proc/self/fd/{}", fd_.get());
  const auto link = [&self](const char* name) {
    return ::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
  };
  if (link(path_.c_str())) return {};
  if (errno == EEXIST) temporary_ = take_name(path_, link);
  if (temporary_.empty()) return fail_system(errno, path_ + ": cannot name it (through /proc)");
  return {};
}

Result<void> WholeFile::commit() {
  if (direct_) return {};
  if (::fsync(fd_.get()) != 0) return fail_system(errno, path_ + ": cannot write to disk");
  if (temporary_.empty()) {
    if (auto named = name_beside(); !named || temporary_.empty()) return named;
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return fail_system(errno, path_ + ": cannot replace");
  }
  temporary_.clear();
  return {};
}

}  // namespace tarpon
