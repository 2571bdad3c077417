#include "tools/cli/files/whole_file.h"

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

/// The status of the file at `place`; mode 0 if there is none.
struct stat status_at(const OutputPlace& place) {
  struct stat status {};
  const int flags = place.in_proc ? 0 : AT_SYMLINK_NOFOLLOW;
  if (::fstatat(place.directory.get(), place.name.c_str(), &status, flags) != 0) return {};
  return status;
}

/// Whether the file cannot appear whole.
bool is_direct_at(const OutputPlace& place, const struct stat& status) {
  return place.in_proc || (status.st_mode != 0 && !S_ISREG(status.st_mode));
}

constexpr mode_t kPermissions = 0777;
constexpr const char* kDescriptors = "/proc/self/fd";

/// Gives the file, whose replacement `fd` is, the owner and permissions that it had. The owner
/// stays the user of this process where that user may not give files away.
bool keep_access(int fd, const struct stat& before) {
  [[maybe_unused]] const int given = ::fchown(fd, before.st_uid, before.st_gid);
  return ::fchmod(fd, before.st_mode & kPermissions) == 0;
}

/// Calls `make` with temporary names beside `name` until it succeeds. "" and errno if none does.
template <typename Make>
std::string take_name(const std::string& name, Make make) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string one = fmt::format("{}.tmp-{}-{}", name, ::getpid(), attempt);
    if (make(one.c_str())) return one;
    if (errno != EEXIST) break;
  }
  return "";
}

}  // namespace

Result<WholeFile> WholeFile::create(const std::string& path) {
  auto place = find_output_place(path);
  if (!place) return fail(place.error());
  const struct stat before = status_at(*place);
  if (is_direct_at(*place, before)) {
    // Append to what a redirected standard output already holds.
    auto fd = open_at(*place, path, O_WRONLY | O_APPEND);
    if (!fd) return fail(fd.error());
    return WholeFile(std::move(*fd), std::move(*place), path, true);
  }
  const int directory = place->directory.get();
  const bool replaces = before.st_mode != 0;
  const mode_t mode = replaces ? before.st_mode & kPermissions : 0666;
  FileDescriptor fd;
  // Without /proc a nameless file cannot be given its name.
  if (::access(kDescriptors, F_OK) == 0) {
    fd = FileDescriptor(::openat(directory, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, mode));
  }
  std::string name;
  if (!fd) {
    name = take_name(place->name, [&](const char* one) {
      fd = FileDescriptor(::openat(directory, one, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
      return static_cast<bool>(fd);
    });
    if (name.empty()) return fail_system(errno, path + ": cannot create a file in its directory");
  }
  WholeFile file(std::move(fd), std::move(*place), path, false);
  file.temporary_ = std::move(name);
  if (replaces && !keep_access(file.fd_.get(), before)) {
    return fail_system(errno, path + ": cannot give its replacement the same permissions");
  }
  return file;
}

Result<void> WholeFile::check(const std::string& path) {
  const auto place = find_output_place(path);
  if (!place) return fail(place.error());
  const struct stat status = status_at(*place);
  if (!is_direct_at(*place, status)) {
    const auto file = create(path);
    if (!file) return fail(file.error());
    return {};
  }
  if (S_ISDIR(status.st_mode)) return fail_system(EISDIR, path + ": cannot write");
  if (::faccessat(place->directory.get(), place->name.c_str(), W_OK, 0) != 0) {
    return fail_system(errno, path + ": cannot write");
  }
  return {};
}

bool WholeFile::is_direct(const std::string& path) {
  const auto place = find_output_place(path);
  return place && is_direct_at(*place, status_at(*place));
}

WholeFile::WholeFile(FileDescriptor fd, OutputPlace place, std::string path, bool direct)
    : fd_(std::move(fd)), place_(std::move(place)), path_(std::move(path)), direct_(direct) {}

WholeFile::WholeFile(WholeFile&& other) noexcept
    : fd_(std::move(other.fd_)),
      place_(std::move(other.place_)),
      path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      direct_(other.direct_) {}

WholeFile::~WholeFile() {
  if (!temporary_.empty()) ::unlinkat(place_.directory.get(), temporary_.c_str(), 0);
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

/// Gives a nameless file its name if that is free, else a temporary one.
Result<void> WholeFile::name_beside() {
  const std::string self = fmt::format("{}/{}", kDescriptors, fd_.get());
  const auto link = [&](const char* name) {
    return ::linkat(AT_FDCWD, self.c_str(), place_.directory.get(), name, AT_SYMLINK_FOLLOW) == 0;
  };
  if (link(place_.name.c_str())) return {};
  if (errno == EEXIST) temporary_ = take_name(place_.name, link);
  if (temporary_.empty()) return fail_system(errno, path_ + ": cannot name it (through /proc)");
  return {};
}

Result<void> WholeFile::commit() {
  if (direct_) return {};
  if (::fsync(fd_.get()) != 0) return fail_system(errno, path_ + ": cannot write to disk");
  if (temporary_.empty()) {
    if (auto named = name_beside(); !named || temporary_.empty()) return named;
  }
  const int directory = place_.directory.get();
  // Replaces a link that was planted meanwhile, instead of following it.
  if (::renameat(directory, temporary_.c_str(), directory, place_.name.c_str()) != 0) {
    return fail_system(errno, path_ + ": cannot replace");
  }
  temporary_.clear();
  return {};
}

Result<void> write_whole_file(const std::string& path, std::string_view text) {
  auto file = WholeFile::create(path);
  if (!file) return fail(file.error());
  if (auto put = file->write(std::as_bytes(std::span(text))); !put) return put;
  return file->commit();
}

}  // namespace tarpon
