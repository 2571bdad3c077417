#include "xdp/pins.h"

#include <bpf/bpf.h>
#include <fmt/format.h>
#include <linux/bpf.h>
#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "xdp/attached.h"
#include "xdp/base/file_descriptor.h"

#ifndef BPF_FS_MAGIC
#define BPF_FS_MAGIC 0xcafe4a11
#endif

namespace tarpon::xdp {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLevels = 6;

bool is_bpf_file_system(const std::string& path) {
  struct statfs info {};
  return ::statfs(path.c_str(), &info) == 0 &&
         static_cast<std::uint32_t>(info.f_type) == BPF_FS_MAGIC;
}

std::uint64_t network_namespace() {
  struct stat info {};
  return ::stat("/proc/thread-self/ns/net", &info) == 0 ? info.st_ino : 0;
}

std::vector<std::string> bpf_mounts() {
  std::vector<std::string> places;
  std::ifstream file("/proc/thread-self/mounts");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string device, place, type;
    words >> device >> place >> type;
    if (type == "bpf" && std::find(places.begin(), places.end(), place) == places.end()) {
      places.push_back(place);
    }
  }
  return places;
}

std::optional<Pin> read_pin(const std::string& path) {
  const FileDescriptor fd(::bpf_obj_get(path.c_str()));
  if (!fd) return std::nullopt;
  Pin pin{.path = path};
  // The kernel does not say what a descriptor is; /proc does.
  std::error_code error;
  const std::string kind =
      fs::read_symlink(fmt::format("/proc/thread-self/fd/{}", fd.get()), error).string();
  if (kind.find("link") != std::string::npos) {
    bpf_link_info info{};
    std::uint32_t length = sizeof info;
    if (::bpf_obj_get_info_by_fd(fd.get(), &info, &length) != 0) return std::nullopt;
    pin.link = info.id;
    pin.program = info.prog_id;
    if (info.type == BPF_LINK_TYPE_XDP) pin.interface = info.xdp.ifindex;
  } else if (kind.find("prog") == std::string::npos) {
    return std::nullopt;
  }
  const FileDescriptor program(pin.link != 0 ? ::bpf_prog_get_fd_by_id(pin.program)
                                             : ::bpf_obj_get(path.c_str()));
  bpf_prog_info info{};
  std::uint32_t length = sizeof info;
  if (!program || ::bpf_obj_get_info_by_fd(program.get(), &info, &length) != 0) return pin;
  pin.program = info.id;
  pin.ours = info.name == kProgramName;
  return pin;
}

/// Adds the pins below `directory` to `pins`. A directory that we may not read, or that disappears
/// meanwhile, does not hide the others.
void collect_pins(const fs::path& directory, int level, std::vector<Pin>& pins) {
  std::error_code error;
  auto at = fs::directory_iterator(directory, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    std::error_code gone;
    const auto kind = at->symlink_status(gone).type();
    if (kind == fs::file_type::directory && level < kMostLevels) {
      collect_pins(at->path(), level + 1, pins);
    } else if (kind == fs::file_type::regular) {
      if (auto pin = read_pin(at->path().string())) pins.push_back(std::move(*pin));
    }
  }
}

}  // namespace

bool bpf_file_system_mounted() {
  return is_bpf_file_system(kBpfFileSystem);
}

bool mounts_go_with_this_process() {
  struct stat ours {};
  struct stat parents {};
  if (::stat("/proc/self/ns/mnt", &ours) != 0) return false;
  if (::stat(fmt::format("/proc/{}/ns/mnt", ::getppid()).c_str(), &parents) != 0) return false;
  return ours.st_ino != parents.st_ino;
}

Result<void> mount_bpf_file_system() {
  if (bpf_file_system_mounted()) return {};
  if (mounts_go_with_this_process()) {
    return fail(Error::Code::unavailable,
                fmt::format("no BPF file system at {}, and one mounted now would go with this "
                            "process (ip netns exec does that): use nsenter --net=FILE",
                            kBpfFileSystem));
  }
  if (::mount("bpf", kBpfFileSystem, "bpf", 0, "mode=0700") != 0) {
    return fail_system(errno, fmt::format("mount -t bpf bpf {}", kBpfFileSystem));
  }
  return {};
}

std::string pin_root() {
  return fmt::format("{}/tarpon", kBpfFileSystem);
}

std::string default_pin_directory(unsigned interface) {
  std::string name = interface_text(interface);
  // This file system takes no dots; interfaces have no colons.
  std::replace(name.begin(), name.end(), '.', ':');
  return fmt::format("{}/{}-{}", pin_root(), network_namespace(), name);
}

bool is_of_this_namespace(const std::string& directory) {
  return directory.starts_with(fmt::format("{}/{}-", pin_root(), network_namespace()));
}

Result<void> check_pin_directory(const std::string& directory) {
  fs::path existing(directory);
  while (!existing.empty() && !fs::exists(existing) && existing != existing.parent_path()) {
    existing = existing.parent_path();
  }
  if (!is_bpf_file_system(existing.string())) {
    return fail(Error::Code::invalid_argument,
                fmt::format("{} is not on a BPF file system: choose a directory below {}",
                            directory, kBpfFileSystem));
  }
  return {};
}

Result<void> make_pin_directory(const std::string& directory) {
  if (auto good = check_pin_directory(directory); !good) return good;
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return fail_system(error.value(), "making " + directory);
  return {};
}

void remove_pin_directory(const std::string& directory) {
  if (!is_bpf_file_system(directory)) return;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name == kLinkPin || name.starts_with("tarpon_")) ::unlink(entry.path().c_str());
  }
  ::rmdir(directory.c_str());
  ::rmdir(pin_root().c_str());
}

bool holds_link_pin(const std::string& directory) {
  std::error_code error;
  return fs::exists(fs::path(directory) / kLinkPin, error) || error;
}

std::vector<Pin> find_pins() {
  std::vector<Pin> pins;
  for (const std::string& place : bpf_mounts()) collect_pins(place, 0, pins);
  return pins;
}

}  // namespace tarpon::xdp
