#include "xdp/base/output_place.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <deque>
#include <string_view>

namespace tarpon {
namespace {

constexpr int kMaxLinks = 40;  // the kernel's limit

bool is_in_proc(const FileDescriptor& directory) {
  struct statfs status {};
  return ::fstatfs(directory.get(), &status) == 0 && status.f_type == PROC_SUPER_MAGIC;
}

/// Whether all users may create files in `directory`, but remove only their own.
bool is_shared(const struct stat& directory) {
  return (directory.st_mode & S_ISVTX) != 0 && (directory.st_mode & S_IWOTH) != 0;
}

bool is_trusted(const struct stat& node) {
  return node.st_uid == ::geteuid() || node.st_uid == 0;
}

/// The components of `path`; a directory's "/" at the end becomes ".".
std::deque<std::string> components(std::string_view path) {
  std::deque<std::string> parts;
  while (!path.empty()) {
    const std::size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (!part.empty()) parts.emplace_back(part);
    if (slash == std::string_view::npos) break;
    path.remove_prefix(slash + 1);
    if (path.empty()) parts.emplace_back(".");
  }
  return parts;
}

class Walk {
 public:
  explicit Walk(const std::string& path) : path_(path), left_(components(path)) {}

  /// Walks until one component is left, which is not a link that can be followed.
  Result<OutputPlace> to_file() {
    if (auto begun = begin(path_); !begun) return fail(begun.error());
    while (true) {
      if (left_.empty()) left_.emplace_back(".");
      const bool last = left_.size() == 1;
      const bool in_proc = is_in_proc(at_);
      if (last && in_proc) return OutputPlace{std::move(at_), left_.front(), true};
      const std::string name = left_.front();
      struct stat status {};
      const bool exists = ::fstatat(at_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
      if (!exists && !last && errno == ENOENT) return fail(no_directory());
      if (!exists && (!last || errno != ENOENT)) return fail_system(errno, path_);
      if (exists && S_ISLNK(status.st_mode) && !in_proc) {
        if (auto followed = follow(name, last); !followed) return fail(followed.error());
        continue;
      }
      if (last) return OutputPlace{std::move(at_), name, false};
      if (auto entered = enter(name, in_proc); !entered) return fail(entered.error());
    }
  }

 private:
  Error no_directory() const {
    Error error = Error::system(ENOENT, path_);
    error.message += ": create its directory, or choose another path";
    return error;
  }

  Result<void> begin(const std::string& path) {
    const char* root = path.starts_with('/') ? "/" : ".";
    if (path.empty()) return fail_system(ENOENT, "\"\"");
    at_ = FileDescriptor(::open(root, O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!at_) return fail_system(errno, path_);
    return {};
  }

  /// Moves into the directory `name`. Only procfs' own links are followed.
  Result<void> enter(const std::string& name, bool in_proc) {
    const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC | (in_proc ? 0 : O_NOFOLLOW);
    FileDescriptor next(::openat(at_.get(), name.c_str(), flags));
    if (!next) return fail_system(errno, path_);
    at_ = std::move(next);
    left_.pop_front();
    return {};
  }

  /// Replaces the link `name` by the components of its target.
  Result<void> follow(const std::string& name, bool last) {
    if (++links_ > kMaxLinks) return fail_system(ELOOP, path_);
    const FileDescriptor link(::openat(at_.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat of_link {
    }, of_directory{};
    if (!link || ::fstat(link.get(), &of_link) != 0 || ::fstat(at_.get(), &of_directory) != 0) {
      return fail_system(errno, path_);
    }
    if (!S_ISLNK(of_link.st_mode)) return {};  // replaced meanwhile: the caller looks again
    if (!may_follow(of_link, of_directory, last)) {
      return fail(Error::Code::permission,
                  path_ + ": the symbolic link \"" + name + "\" belongs to another user (" +
                      std::to_string(of_link.st_uid) +
                      ") and is not followed: remove it or choose another path");
    }
    std::array<char, PATH_MAX> target{};
    const ssize_t bytes = ::readlinkat(link.get(), "", target.data(), target.size());
    if (bytes < 0) return fail_system(errno, path_);
    const std::string text(target.data(), static_cast<std::size_t>(bytes));
    left_.pop_front();
    std::deque<std::string> parts = components(text);
    if (!left_.empty() && !parts.empty() && parts.back() == ".") parts.pop_back();
    left_.insert(left_.begin(), parts.begin(), parts.end());
    return text.starts_with('/') ? begin(text) : Result<void>();
  }

  static bool may_follow(const struct stat& link, const struct stat& directory, bool last) {
    return is_trusted(link) || (!last && !is_shared(directory) && link.st_uid == directory.st_uid);
  }

  const std::string& path_;
  std::deque<std::string> left_;
  FileDescriptor at_;
  int links_ = 0;
};

}  // namespace

Result<OutputPlace> find_output_place(const std::string& path) {
  return Walk(path).to_file();
}

Result<FileDescriptor> open_at(const OutputPlace& place, const std::string& path, int flags) {
  const int directory = place.directory.get();
  struct stat node {
  }, around{};
  const bool special = !place.in_proc &&
                       ::fstatat(directory, place.name.c_str(), &node, AT_SYMLINK_NOFOLLOW) == 0 &&
                       !S_ISREG(node.st_mode);
  if (special && ::fstat(directory, &around) == 0 && is_shared(around) && !is_trusted(node)) {
    return fail(Error::Code::permission,
                path + ": belongs to another user (" + std::to_string(node.st_uid) +
                    ") and is not written: remove it or choose another path");
  }
  const int all = flags | O_CLOEXEC | (place.in_proc ? 0 : O_NOFOLLOW);
  FileDescriptor fd(::openat(directory, place.name.c_str(), all, 0666));
  if (!fd) return fail_system(errno, path + ": cannot write");
  return fd;
}

Result<FileDescriptor> open_output_directory(const std::string& path) {
  const std::string inside = path.empty() ? path : path + "/.";
  auto place = find_output_place(inside);
  if (!place) return fail(place.error());
  return std::move(place->directory);
}

Result<std::FILE*> open_stream(const std::string& path, const char* mode) {
  const auto place = find_output_place(path);
  if (!place) return fail(place.error());
  const auto fd = open_at(*place, path, O_WRONLY | O_CREAT | (*mode == 'a' ? O_APPEND : O_TRUNC));
  if (!fd) return fail(fd.error());
  const int own = ::fcntl(fd->get(), F_DUPFD_CLOEXEC, 0);
  std::FILE* file = own < 0 ? nullptr : ::fdopen(own, mode);
  if (file != nullptr) return file;
  const int error = errno;
  if (own >= 0) ::close(own);
  return fail_system(error, path);
}

}  // namespace tarpon
