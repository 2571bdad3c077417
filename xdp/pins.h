// The BPF file system, where a pinned link or program outlives its process, and our directories in
// it: one per interface, with the link and the maps of the program that an administrator loaded.
//
// Any thread. Only our own files are changed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "xdp/base/result.h"

namespace tarpon::xdp {

inline constexpr const char* kBpfFileSystem = "/sys/fs/bpf";
inline constexpr std::string_view kLinkPin = "link";

bool bpf_file_system_mounted();

/// Whether a file system that this process mounts would disappear with it: the process has a mount
/// namespace of its own, as under `ip netns exec`.
bool mounts_go_with_this_process();

/// Mounts the BPF file system at kBpfFileSystem unless it is mounted there. Errors: permission;
/// unavailable where mounts_go_with_this_process(), io.
Result<void> mount_bpf_file_system();

/// kBpfFileSystem/tarpon
std::string pin_root();
/// The directory of `interface` in this network namespace: below pin_root(), named after the
/// namespace and the interface.
std::string default_pin_directory(unsigned interface);
/// Whether `directory` lies below pin_root() and belongs to this network namespace.
bool is_of_this_namespace(const std::string& directory);

/// Whether `directory`, or where it would be made, lies on a BPF file system; changes nothing.
/// Errors: invalid_argument.
Result<void> check_pin_directory(const std::string& directory);

/// Makes a directory and those above it. Errors: invalid_argument (not on a BPF file system),
/// permission, io.
Result<void> make_pin_directory(const std::string& directory);

/// Removes our files in `directory`, then the directory and pin_root() when they are empty. Does
/// nothing when it is not on a BPF file system: ordinary files may have the same names.
void remove_pin_directory(const std::string& directory);

/// A pinned link or program, ours or not.
struct Pin {
  std::string path;
  std::uint32_t program = 0;  // id
  std::uint32_t link = 0;     // id; 0: the program itself is pinned
  unsigned interface = 0;     // of the link; 0: it is gone, or the link is of another kind
  bool ours = false;          // our program
};

/// Whether `directory` holds a pin with the name of our links; true when that cannot be determined.
bool holds_link_pin(const std::string& directory);

/// Finds all pins on the mounted BPF file systems that we may open, at most six directories deep.
std::vector<Pin> find_pins();

}  // namespace tarpon::xdp
